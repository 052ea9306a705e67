"""From an access log to advice: what it shows, which machine it is of, what a gate would change, and what to do.

The log is audited first.  Where no client waited long, it is left as it is.  Else machines are fitted to it, and the
stretch in which requests waited most is simulated on each, as the server is today and with a gate.  What is advised is
what all of them say.
"""

from collections.abc import Mapping

import attrs

from fairsched.engines.analysis.audit import Audit, audit_log, pools
from fairsched.engines.calibration.from_log import fit_log
from fairsched.engines.capacity.advice.advice import Advice
from fairsched.engines.capacity.advice.configuration import LARGEST, Windows
from fairsched.engines.capacity.advice.effects import effects
from fairsched.engines.capacity.advice.window import REQUESTS, busiest_window
from fairsched.engines.logs.access import UNKNOWN, AccessLog, Columns, Filters, Paths, only, read_access_log
from fairsched.engines.simulation import Progress
from fairsched.policies.registry import unknown

SECOND_NS = 10**9
FITTED_TO = 400
"""So many requests of each half of the log are simulated to fit a machine."""
TOLD_MIN = 0.1
"""So many requests must have a first token (or a time in the queue) for waits to be told."""


def advise(
    log: AccessLog | Paths,
    *,
    weights: Mapping[str, int] | None = None,
    columns: Columns | None = None,
    skip_malformed: bool = False,
    filters: Filters | None = None,
    starved_after_ns: int = 10 * SECOND_NS,
    workers: int | None = None,
    requests: int = REQUESTS,
    progress: Progress | None = None,
) -> Advice:
    """Return advice on an access log: which clients wait and starve, what a gate would change, and how sure that is.

    `weights` are those of clients (1 unless named).  Where `log` is a path or several, `columns` says which column is
    what, `skip_malformed` leaves out rows that cannot be read, and `filters` says which requests are looked at.  A
    client starves that waits for `starved_after_ns` without service while others get some.  `workers` is the number of
    servers (None: as many as the log names, or as fit it).  At most about `requests` are simulated.  Of models that
    share no server, those with most requests are looked at.  An interrupt ends it with what was found.  The same log
    gets the same advice.  Raises `ValueError` and `TraceError` for what is wrong in the log.
    """

    def told(what: str, done: int, total: int) -> None:
        if progress is not None:
            progress(what, done, total)

    if not isinstance(log, AccessLog):
        log = read_access_log(
            log,
            columns,
            skip=skip_malformed,
            filters=filters,
            progress=lambda done, total: told("reading the log", done, total),
        )
    weights = weights or {}
    for name in weights:
        if name not in log.clients:
            raise unknown("client", name, log.clients)
    models: tuple[str, ...] = ()
    if len(found_pools := pools(log)) > 1:
        models, log = tuple(name for name, _ in found_pools), only(log, found_pools[0][1])
        weights = {name: weight for name, weight in weights.items() if name in log.clients}
    told("auditing", 0, 0)
    audit = audit_log(log, weights=weights, starved_after_ns=starved_after_ns)
    found = Advice(log, audit, _waited(audit, starved_after_ns), "leave", weights=weights, models=models)
    if not _waits_are_told(log):
        why = "the log has a first token (or a time in the queue) for too few requests, so waits are not known"
        return attrs.evolve(found, verdict="unknown" if len(log.clients) > 1 else "leave", why_not=why)
    if not found.harmed or len(log.clients) < 2:
        return attrs.evolve(found, verdict="capacity" if found.harmed else "leave")
    found = attrs.evolve(found, verdict="unknown", why_not="it was interrupted", complete=False)
    try:
        return _simulated(found, workers, requests, told)
    except KeyboardInterrupt:
        return found


def _waits_are_told(log: AccessLog) -> bool:
    """Return whether enough requests say when their wait was over."""
    ran = log.output > 0
    return bool(ran.any()) and float((log.served_ns[ran] != UNKNOWN).mean()) >= TOLD_MIN


def _waited(audit: Audit, starved_after_ns: int) -> tuple[int, ...]:
    """Return clients that starved, longest first, and those whose p99 wait is as long as starving."""
    long = [i for i, client in enumerate(audit.clients) if (client.wait_us.p99 or 0.0) * 1e3 >= starved_after_ns]
    return (*audit.starved, *(client for client in long if client not in audit.starved))


def _simulated(found: Advice, workers: int | None, requests: int, told: Progress) -> Advice:
    """Return what a gate would change in the stretch in which requests waited most, by machines fitted to the log."""
    log = found.log
    if workers is None and "worker" in log.fields:
        workers = len(log.workers)
    try:
        fit = fit_log(
            log,
            workers=workers,
            requests_max=FITTED_TO,
            progress=lambda what: told(f"fitting a machine: {what}", 0, 0),
        )
    except ValueError as error:
        return attrs.evolve(found, why_not=str(error).removeprefix(f"{log.path}: "), complete=True)
    window = busiest_window(log, requests)
    if window is None:
        return attrs.evolve(found, why_not="no request in the log had an output", complete=True)
    weights = {log.clients.index(name): weight for name, weight in found.weights.items()}
    found = attrs.evolve(found, fit=fit)
    windows = Windows.of(found)
    # Prompts in progress hold memory that a log without queue times does not show.
    unseen = 0 if "queue" in log.fields else LARGEST * int((log.prompt + log.output).max())
    at_once = max(windows.tokens, unseen), windows.requests
    changed = effects(window, fit, at_once, found.harmed, weights, told)
    return attrs.evolve(
        found,
        effects=changed,
        verdict=changed.verdict,
        harmed=changed.helped if changed.verdict == "gate" else found.harmed,
        why_not="",
        complete=True,
    )
