"""The log of a run: written, read and replayed. Read `log` first, then `replayer`; `access` reads logs of servers."""

from fairsched.engines.logs.log_file import (
    CanonicalLog,
    LogError,
    LogHeader,
    LogWriter,
    RunInfo,
    logged_policy,
    params_of,
)
from fairsched.engines.logs.log_reader import LogReader
from fairsched.engines.logs.replayer import DifferenceError, LogReplayer, WorkerReplica, replayers_of

__all__ = [
    "CanonicalLog", "DifferenceError", "LogError", "LogHeader", "LogReader", "LogReplayer", "LogWriter", "RunInfo",
    "WorkerReplica", "logged_policy", "params_of", "replayers_of"
]  # fmt: skip
