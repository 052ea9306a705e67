"""An audit of a log file, whichever kind it is: an event log of ours or an access log of your own."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.analysis.audit.evidence import AuditRun
from fairsched.engines.analysis.audit.findings import SECOND_NS, Audit, findings
from fairsched.engines.analysis.audit.reconstruct import evidence_of
from fairsched.engines.analysis.audit.run_log import read_gateway_logs, read_run_log
from fairsched.engines.analysis.figures import safe_text
from fairsched.engines.logs import LogHeader, access, logged_policy
from fairsched.engines.workloads import workload_of_columns
from fairsched.model.request import Client, Workload
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import unknown


def audit_log(
    log: access.AccessLog | access.Paths,
    *,
    weights: Mapping[str, int] | None = None,
    columns: access.Columns | None = None,
    skip_malformed: bool = False,
    filters: access.Filters | None = None,
    starved_after_ns: int = 10 * SECOND_NS,
    window_ns: int = 10 * SECOND_NS,
    progress: access.Progress | None = None,
) -> Audit:
    """Return what a log shows of its clients: service, waits, the largest gap and its bound, starvation and gains.

    `log` names its files, or is an access log that was read already.  A client starves when it waits for
    `starved_after_ns` without service while others get some; gains are over windows of `window_ns`.  Of an access log,
    `weights` are those of clients (1 unless named), `columns` says which column is what (None: guessed),
    `skip_malformed` leaves out rows that cannot be read, and `filters` those that are not asked for.  All models are
    taken together, as if they shared what serves them; `audit_models` takes them apart.  Raises `ValueError`, and its
    kinds `TraceError` and `LogError` for what is wrong in the file.

    >>> from tempfile import TemporaryDirectory
    >>> row = '{"client": "a", "start_ms": 0, "latency_ms": 250, "prompt_tokens": 10, "output_tokens": 5}'
    >>> with TemporaryDirectory() as folder:
    ...     log = Path(folder, "access.jsonl")
    ...     _ = log.write_text(row)
    ...     found = audit_log(log)
    >>> [(client.name, client.requests, client.service) for client in found.clients]
    [('a', 1, 20)]
    """
    if not isinstance(log, access.AccessLog):
        logged = _event_logged(log, weights, (columns, skip_malformed, filters), progress)
        if logged is not None:
            return findings(logged[0], starved_after_ns=starved_after_ns, window_ns=window_ns)
        log = access.read_access_log(log, columns, skip=skip_malformed, filters=filters, progress=progress)
    evidence = evidence_of(log, _weights(weights or {}, log.clients))
    if len(apart := pools(log)) > 1:
        names = " | ".join(safe_text(name) for name, _ in apart)
        note = f"Models that share no upstream are taken together, though they do not compete: {names}."
        evidence = attrs.evolve(evidence, notes=(*evidence.notes, note))
    return findings(evidence, starved_after_ns=starved_after_ns, window_ns=window_ns)


def audit_models(
    path: access.Paths,
    *,
    weights: Mapping[str, int] | None = None,
    columns: access.Columns | None = None,
    skip_malformed: bool = False,
    filters: access.Filters | None = None,
    starved_after_ns: int = 10 * SECOND_NS,
    window_ns: int = 10 * SECOND_NS,
    progress: access.Progress | None = None,
) -> tuple[Audit, ...]:
    """Return an audit as `audit_log` for all models of a log that share an upstream, those with most requests first.

    Models on servers of their own do not compete: what one client got of the one is no loss of a client of the other.
    Where a log names no upstreams, every model is taken to have its own.  An event log is of one model.
    """
    logged = _event_logged(path, weights, (columns, skip_malformed, filters), progress)
    if logged is not None:
        evidences = [logged[0]]
    else:
        log = access.read_access_log(path, columns, skip=skip_malformed, filters=filters, progress=progress)
        weight = dict(zip(log.clients, _weights(weights or {}, log.clients), strict=True))
        found = pools(log)
        parts = [(name, access.only(log, rows)) for name, rows in found] if len(found) > 1 else [(None, log)]
        evidences = [evidence_of(part, [weight[client] for client in part.clients], model=name) for name, part in parts]
    return tuple(findings(each, starved_after_ns=starved_after_ns, window_ns=window_ns) for each in evidences)


def _event_logged(
    path: access.Paths, weights: Mapping[str, int] | None, reading: Sequence[object], progress: access.Progress | None
) -> tuple[AuditRun, Workload] | None:
    """Return what event logs show, and the workload that was served; None for a log of another kind."""
    event_logs = event_logs_in(path)
    if not event_logs:
        return None
    if weights is not None:
        raise ValueError("--clients is for access logs; an event log names its own clients")
    told = _event_logs(event_logs, reading, progress)
    if len(event_logs) == 1:
        return read_run_log(event_logs[0], policy_if_there, told)
    return read_gateway_logs(event_logs, policy_if_there, told)


def pools(log: access.AccessLog) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    """Return models that share upstreams, by name and with their rows, those with most requests first."""
    pairs = np.unique(np.column_stack((log.model, log.worker)), axis=0).tolist()
    unnamed = {i for i, name in enumerate(log.workers) if name in ("", access.NO_NAME)}
    pool_of = {model: {model} for model, _ in pairs}
    by_worker: dict[int, int] = {}
    for model, worker in pairs:
        if worker in unnamed:
            continue
        other = by_worker.setdefault(worker, model)
        together = pool_of[model] | pool_of[other]
        for each in together:
            pool_of[each] = together
    found = []
    for members in {id(pool): pool for pool in pool_of.values()}.values():
        names = sorted(log.models[model] if model != access.UNKNOWN else "(no model)" for model in members)
        found.append((", ".join(names), np.isin(log.model, sorted(members))))
    return sorted(found, key=lambda pool: (-int(pool[1].sum()), pool[0]))


def logged_workload(
    path: access.Paths,
    *,
    columns: access.Columns | None = None,
    skip_malformed: bool = False,
    filters: access.Filters | None = None,
    progress: access.Progress | None = None,
) -> Workload:
    """Return what was asked for in a log of either kind, to be tried under other policies.

    Raises `ValueError` as `audit` does, and for a log in which no request had an output.
    """
    logged = _event_logged(path, None, (columns, skip_malformed, filters), progress)
    if logged is not None:
        found = logged[1]
    else:
        log = access.read_access_log(path, columns, skip=skip_malformed, filters=filters, progress=progress)
        found = workload_of_log(log)
    if not found.jobs:
        raise ValueError(f"{found.name}: no request in it had an output")
    return found


def event_logs_in(path: access.Paths) -> tuple[Path, ...]:
    """Return the files that are named if they are our own event logs; none if not all are.  A pipe, which can be read
    once, is none.

    Raises `OSError` if one cannot be read, and `ValueError` for a pattern that matches no file.
    """
    found = access.expanded([path] if isinstance(path, str | Path) else path)
    return found if all(map(_is_event_log, found)) else ()


def _is_event_log(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b'{"fairsched_log"')


def is_log(path: Path) -> bool:
    """Return whether a file is an event log or can be read as an access log."""
    return bool(event_logs_in(path)) or access.looks_like_access_log(path)


def policy_if_there(header: LogHeader) -> ComposedPolicy | None:
    """Return the policy that a log names, None where it cannot be had here."""
    try:
        return logged_policy(header)
    except ValueError:
        return None


def _event_logs(
    paths: Sequence[Path], reading: Sequence[object], progress: access.Progress | None
) -> Callable[[int], None]:
    """Return the progress of reading event logs, which have no columns and no rows to leave out."""
    if any(reading):
        raise ValueError("--map, --skip-malformed and --only are for access logs; an event log is read as it is")
    if progress is None:
        return lambda done: None
    told = progress
    lines = 0
    for path in paths:
        with path.open("rb") as file:
            lines += sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))
    return lambda done: told(done, lines)


def _weights(given: Mapping[str, int], names: tuple[str, ...]) -> list[int]:
    for name in given:
        if name not in names:
            raise unknown("client", name, names)
    return [given.get(name, 1) for name in names]


def workload_of_log(log: access.AccessLog) -> Workload:
    """Return the requests of an access log in order of arrival, from time 0, to be tried under other policies.

    An access log has lengths and times, and no contents: no two prompts share a prefix.  Requests without an output are
    left out: as far as the log tells, they never ran.
    What the log does not say of the most that a request asked for is the largest output in it.
    """
    kept = np.flatnonzero(log.output > 0)
    origin = int(log.arrival_ns[kept].min(initial=np.iinfo(np.int64).max))
    longest = int(log.output[kept].max(initial=1))
    known, client = np.unique(log.client[kept], return_inverse=True)
    clients = tuple(Client(i, log.clients[one]) for i, one in enumerate(known.tolist()))
    output, most = log.output[kept], log.most[kept]
    most = np.where(most == access.UNKNOWN, longest, np.maximum(most, output))
    columns = (client, log.arrival_ns[kept] - origin, np.maximum(log.prompt[kept], 1), output, most)
    notes = [*log.opening, "Prompts have no contents in an access log: none shares a prefix with another."]
    left = len(log.client) - len(kept)
    if left:
        notes.append(f"Requests without an output, which are left out: {left:,}.")
    if bool((log.most[kept] == access.UNKNOWN).any()):
        notes.append(f"max_output_tokens is {longest:,}, the largest output, where the log does not say it.")
    return workload_of_columns(log.path.name, clients, columns, tuple(notes))
