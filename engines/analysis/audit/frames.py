"""The requests of an audited log, and of an event log the events too, as parquet files.

Needs the `frame` extra (pyarrow), imported when they are written.
"""

from pathlib import Path

import numpy as np

from fairsched.engines.analysis.audit.findings import Audit
from fairsched.engines.analysis.outcomes import EventTables
from fairsched.engines.analysis.report import FrameWriter
from fairsched.engines.logs import LogReader
from fairsched.engines.logs.access import UNKNOWN
from fairsched.model.service import Tables

_OUTCOMES = ("unfinished", "finished", "failed")


def write_audit_frames(target: Path, audit: Audit) -> None:
    """Write the requests into `target` if it ends in `.parquet`, else requests and events into that folder.

    Only an event log has events, and is read once more for them.  Raises `OSError` and `ModuleNotFoundError`.
    """
    evidence = audit.evidence
    calls = evidence.calls
    requests = {
        "request": np.arange(len(calls.client)),
        "client": calls.client,
        "arrival_ns": calls.arrival_ns,
        "admitted_ns": calls.served_ns,
        "end_ns": calls.end_ns,
        "outcome": np.where(calls.failed != 0, 2, (calls.end_ns != UNKNOWN).astype(np.int64)),
        "cost": calls.cost,
    }
    names = [client.name for client in evidence.clients]
    with FrameWriter(target) as writer:
        wanted = evidence.kind == "run log" and writer.has_events
        writer.add(evidence.path.name, requests, _events(evidence.path) if wanted else None, names, _OUTCOMES)


def _events(path: Path) -> Tables:
    events = EventTables()
    events.add(event for _, event in LogReader(path))
    return events.whole()
