"""The requests of an audited log, and of an event log the events too, as parquet files.

Needs the `frame` extra (pyarrow), imported when they are written.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fairsched.engines.analysis.audit.evidence import Calls
from fairsched.engines.analysis.audit.findings import Audit
from fairsched.engines.analysis.outcomes import EventTables
from fairsched.engines.analysis.report import FrameWriter
from fairsched.engines.logs import LogReader
from fairsched.engines.logs.access import UNKNOWN, Ending
from fairsched.model.service import Table, Tables

_OUTCOMES = ("unfinished", *(outcome.name.lower() for outcome in Ending))


def write_audit_frames(target: Path, audits: Sequence[Audit]) -> None:
    """Write the requests into `target` if it ends in `.parquet`, else requests and events into that folder.

    Of several audits of a log each is a run of its own, by its models.  Only an event log has events, and is read once
    more for them.  Raises `OSError` and `ModuleNotFoundError`.
    """
    with FrameWriter(target) as writer:
        for audit in audits:
            evidence = audit.evidence
            wanted = evidence.kind == "run log" and writer.has_events
            events = _events(evidence.path) if wanted else None
            names = [client.name for client in evidence.clients]
            writer.add(evidence.model or evidence.path.name, _requests(evidence.calls), events, names, _OUTCOMES)


def _requests(calls: Calls) -> Table:
    over = calls.end_ns != UNKNOWN
    return {
        "request": np.arange(len(calls.client)),
        "client": calls.client,
        "arrival_ns": calls.arrival_ns,
        "admitted_ns": calls.served_ns,
        "first_token_ns": calls.first_ns,
        "end_ns": calls.end_ns,
        "outcome": np.where(over | (calls.outcome != Ending.FINISHED), calls.outcome + 1, 0),
        "cost": calls.cost,
    }


def _events(path: Path) -> Tables:
    events = EventTables()
    events.add(event for _, event in LogReader(path))
    return events.whole()
