"""The requests of each client that waited longest, so that a figure leads to a request, and a request to its life."""

from collections.abc import Sequence

import attrs
import numpy as np

from fairsched.engines.analysis.audit.findings import Audit
from fairsched.engines.analysis.explained import Explanation, explain
from fairsched.engines.logs.access import UNKNOWN, Ending
from fairsched.model.service import Ints

EXPLAINED = 3
"""So many requests of different clients are explained: each takes a replay of the log up to its end."""
EXPLAINED_BYTES_MAX = 1 << 24
"""Larger logs take minutes to replay."""


@attrs.frozen
class LongWait:
    """A request that waited long; times in nanoseconds.

    `number` is its id in an event log, and the number of its line in an access log, in that `file` of several.
    `wait_ns` lasts until it was served or, if it never was, until its end or that of the log; `is_over` says whether it
    was served, and `is_inferred` whether that time is.
    """

    client: int
    number: int
    file: int
    arrival_ns: int
    wait_ns: int
    latency_ns: int | None
    cost: int
    outcome: Ending | None
    is_over: bool
    is_inferred: bool


def longest_waits(audit: Audit, client: int, most: int) -> list[LongWait]:
    """Return the requests of a client that waited longest, at most so many, the longest first."""
    calls, last_ns = audit.evidence.calls, audit.evidence.last_ns
    rows = np.flatnonzero((calls.client == client) & ~calls.kept_out)
    left = calls.left_ns[rows]
    waits: Ints = np.where(left == UNKNOWN, last_ns, left) - calls.arrival_ns[rows]
    order = np.lexsort((calls.number[rows], calls.arrival_ns[rows], -waits))[:most]
    found = []
    for row, wait in zip(rows[order].tolist(), waits[order].tolist(), strict=True):
        arrival, end = int(calls.arrival_ns[row]), int(calls.end_ns[row])
        found.append(
            LongWait(
                client=client,
                number=int(calls.number[row]),
                file=int(calls.file[row]),
                arrival_ns=arrival,
                wait_ns=wait,
                latency_ns=None if end == UNKNOWN else end - arrival,
                cost=int(calls.cost[row]),
                outcome=None if end == UNKNOWN else Ending(int(calls.outcome[row])),
                is_over=bool(calls.served_ns[row] != UNKNOWN),
                is_inferred=bool(calls.wait_margin_ns[row]),
            )
        )
    return found


def explained(audit: Audit, waits: Sequence[LongWait]) -> dict[int, Explanation]:
    """Return the lives of requests that waited longest, one of a client, by id; none where a log cannot be replayed.

    An access log does not say why a request waited; nor does the log of a gateway, or of a policy that is not there.
    """
    path = audit.evidence.path
    if audit.evidence.kind != "run log" or path.stat().st_size > EXPLAINED_BYTES_MAX:
        return {}
    found = {}
    longest: dict[int, LongWait] = {}
    for wait in sorted(waits, key=lambda wait: -wait.wait_ns):
        longest.setdefault(wait.client, wait)
    for wait in list(longest.values())[:EXPLAINED]:
        try:
            found[wait.number] = explain(path, wait.number)
        except ValueError:
            break
    return found
