"""An audit of a log file, whichever kind it is: an event log of ours or an access log of your own."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fairsched.engines.analysis.audit.findings import SECOND_NS, Audit, findings
from fairsched.engines.analysis.audit.reconstruct import evidence_of
from fairsched.engines.analysis.audit.run_log import read_run_log
from fairsched.engines.logs import LogHeader, logged_policy
from fairsched.engines.logs.access import UNKNOWN, AccessLog, Columns, read_access_log
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import unknown

Progress = Callable[[int, int], None]
"""Called with how much of the log was read, and how much there is (bytes of an access log, lines of an event log)."""


def audit_log(
    path: str | Path,
    *,
    weights: Mapping[str, int] | None = None,
    columns: Columns | None = None,
    skip_malformed: bool = False,
    starved_after_ns: int = 10 * SECOND_NS,
    window_ns: int = 10 * SECOND_NS,
    progress: Progress | None = None,
) -> Audit:
    """Return what a log shows of its clients: service, waits, the largest gap and its bound, starvation and gains.

    A client starves when it waits for `starved_after_ns` without service while others get some; gains are over windows
    of `window_ns`.  Of an access log, `weights` are those of clients (1 unless named), `columns` says which column is
    what (None: guessed), and `skip_malformed` leaves out rows that cannot be read.  Raises `ValueError`, and its kinds
    `TraceError` and `LogError` for what is wrong in the file.

    >>> from tempfile import TemporaryDirectory
    >>> row = '{"client": "a", "start_ms": 0, "latency_ms": 250, "prompt_tokens": 10, "output_tokens": 5}'
    >>> with TemporaryDirectory() as folder:
    ...     log = Path(folder, "access.jsonl")
    ...     _ = log.write_text(row)
    ...     found = audit_log(log)
    >>> [(client.name, client.requests, client.service) for client in found.clients]
    [('a', 1, 20)]
    """
    path = Path(path)
    if is_event_log(path):
        if weights is not None:
            raise ValueError("--clients is for access logs; an event log names its own clients")
        evidence, _ = read_run_log(path, policy_if_there, _event_log(path, columns, skip_malformed, progress))
    else:
        log = _access_log(path, columns, skip_malformed, progress)
        return audit_of(log, weights=weights, starved_after_ns=starved_after_ns, window_ns=window_ns)
    return findings(evidence, starved_after_ns=starved_after_ns, window_ns=window_ns)


def audit_of(
    log: AccessLog,
    *,
    weights: Mapping[str, int] | None = None,
    starved_after_ns: int = 10 * SECOND_NS,
    window_ns: int = 10 * SECOND_NS,
) -> Audit:
    """Return what an access log that was read already shows, as `audit_log` does."""
    evidence = evidence_of(log, _weights(weights or {}, log.clients))
    return findings(evidence, starved_after_ns=starved_after_ns, window_ns=window_ns)


def logged_workload(
    path: str | Path, *, columns: Columns | None = None, skip_malformed: bool = False, progress: Progress | None = None
) -> Workload:
    """Return what was asked for in a log of either kind, to be tried under other policies.

    Raises `ValueError` as `audit` does, and for a log in which no request had an output.
    """
    path = Path(path)
    if is_event_log(path):
        _, found = read_run_log(path, policy_if_there, _event_log(path, columns, skip_malformed, progress))
    else:
        found = workload_of_log(_access_log(path, columns, skip_malformed, progress))
    if not found.jobs:
        raise ValueError(f"{path}: no request in it had an output")
    return found


def is_event_log(path: Path) -> bool:
    """Return whether the file is one of our own event logs; raises `OSError` if it cannot be read."""
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b'{"fairsched_log"')


def policy_if_there(header: LogHeader) -> ComposedPolicy | None:
    """Return the policy that a log names, None where it cannot be had here."""
    try:
        return logged_policy(header)
    except ValueError:
        return None


def _event_log(
    path: Path, columns: Columns | None, skip_malformed: bool, progress: Progress | None
) -> Callable[[int], None]:
    """The progress of reading an event log, which has no columns and no rows to leave out."""
    if columns is not None or skip_malformed:
        raise ValueError("--map and --skip-malformed are for access logs; an event log is read as it is")
    if progress is None:
        return lambda done: None
    told = progress
    with path.open("rb") as file:
        lines = sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))
    return lambda done: told(done, lines)


def _access_log(path: Path, columns: Columns | None, skip_malformed: bool, progress: Progress | None) -> AccessLog:
    size = path.stat().st_size
    step = None if progress is None else lambda done: progress(done, size)
    return read_access_log(path, columns, skip=skip_malformed, progress=step)


def _weights(given: Mapping[str, int], names: tuple[str, ...]) -> list[int]:
    for name in given:
        if name not in names:
            raise unknown("client", name, names)
    return [given.get(name, 1) for name in names]


def workload_of_log(log: AccessLog) -> Workload:
    """Return the requests of an access log in order of arrival, from time 0, to be tried under other policies.

    An access log has lengths and times, and no contents: no two prompts share a prefix.  Requests without an output are
    left out: as far as the log tells, they never ran.
    What the log does not say of the most that a request asked for is the largest output in it.
    """
    kept = np.flatnonzero(log.output > 0)
    origin = int(log.arrival_ns[kept].min(initial=np.iinfo(np.int64).max))
    longest = int(log.output[kept].max(initial=1))
    known = np.unique(log.client[kept]).tolist()
    clients = tuple(Client(i, log.clients[client]) for i, client in enumerate(known))
    number = {client: i for i, client in enumerate(known)}
    columns = (log.client, log.arrival_ns, log.prompt, log.output, log.most)
    rows = zip(*(column[kept].tolist() for column in columns), strict=True)
    jobs = tuple(
        Job(
            Request(
                id=i,
                client=number[client],
                arrival_ns=arrival - origin,
                prompt=Prompt(tokens=max(prompt, 1)),
                max_output_tokens=max(most, output) if most != UNKNOWN else longest,
            ),
            output_tokens=output,
        )
        for i, (client, arrival, prompt, output, most) in enumerate(rows)
    )
    notes = ["Prompts have no contents in an access log: none shares a prefix with another."]
    left = len(log.client) - len(kept)
    if left:
        notes.append(f"Requests without an output, which are left out: {left:,}.")
    if bool((log.most[kept] == UNKNOWN).any()):
        notes.append(f"max_output_tokens is {longest:,}, the largest output, where the log does not say it.")
    return Workload(log.path.name, jobs, clients, tuple(notes))
