"""From an access log to advice: what it shows, which machine it is of, what a gate would change, and what to do.

The log is audited first.  Where no client starved or fell behind, it is left as it is.  Else a machine is fitted to it;
where the fit is credible, and repeats the stretch in which requests waited most, that stretch is simulated as the
server is today and with gates, the quantum is tuned, and the effect is told.  Where it is not, no claim is made.
"""

from collections.abc import Mapping

import attrs

from fairsched.engines.analysis.audit import Audit, audit_log, pools
from fairsched.engines.calibration.from_log import LIMIT, fit_log
from fairsched.engines.capacity.advice.advice import Advice
from fairsched.engines.capacity.advice.effects import Effects, cases, present
from fairsched.engines.capacity.advice.window import REQUESTS, busiest_window
from fairsched.engines.capacity.tuning import tune
from fairsched.engines.logs.access import UNKNOWN, AccessLog, Columns, Filters, Paths, only, read_access_log
from fairsched.engines.simulation import Cluster, Progress, compare
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import local_policy, unknown, with_parameters

SECOND_NS = 10**9
HELPS = 1.25
"""A gate helps if the harmed clients' p99 time to the first token is so many times shorter, or half of the starved time
is gone."""
MISFIT_MAX = LIMIT
"""Nothing is claimed where today's simulation of the stretch misses a percentile by more than this share."""
TOLD_MIN = 0.1
"""So many requests must have a first token (or a time in the queue) for waits to be told."""
QUANTA = (4_096, 32_768)
"""Quanta that are tried.  A log does not tell which prompts share a prefix, and smaller quanta cost locality."""


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
    found = Advice(log, audit, _harmed(audit, starved_after_ns), "leave", weights=weights, models=models)
    if not _waits_are_told(log):
        why = "the log has a first token (or a time in the queue) for too few requests, so waits are not known"
        return attrs.evolve(found, verdict="unknown" if len(log.clients) > 1 else "leave", why_not=why)
    if not found.harmed:
        return found
    found = attrs.evolve(found, verdict="unknown", why_not="it was interrupted", complete=False)
    try:
        found = _fitted(found, workers, told)
        if found.why_not:
            return found
        found = _simulated(found, starved_after_ns, requests, told)
    except KeyboardInterrupt:
        return found
    return found


def _waits_are_told(log: AccessLog) -> bool:
    """Return whether enough requests say when their wait was over."""
    ran = log.output > 0
    return bool(ran.any()) and float((log.served_ns[ran] != UNKNOWN).mean()) >= TOLD_MIN


def _harmed(audit: Audit, starved_after_ns: int) -> tuple[int, ...]:
    """Return clients that starved, longest first, and those that fell far behind and waited for half as long as
    starving."""
    starved = list(audit.starved)
    behind = [
        client
        for client in audit.losers()
        if client not in audit.starved and (audit.clients[client].wait_us.p99 or 0.0) * 2e3 >= starved_after_ns
    ]
    return (*starved, *behind)


def _fitted(found: Advice, workers: int | None, told: Progress) -> Advice:
    """Return the machine of the log; `why_not` says why it is not good enough."""
    log = found.log
    if workers is None and "worker" in log.fields:
        workers = len(log.workers)
    try:
        fit = fit_log(log, workers=workers, progress=lambda what: told(f"fitting a machine: {what}", 0, 0))
    except ValueError as error:
        return attrs.evolve(found, why_not=str(error).removeprefix(f"{log.path}: "), complete=True)
    return attrs.evolve(found, fit=fit, why_not=fit.refusal, complete=True)


def _simulated(found: Advice, starved_after_ns: int, requests: int, told: Progress) -> Advice:
    """Return what gates would change in the stretch in which requests waited most."""
    assert found.fit is not None
    machine = found.fit.machine
    window = busiest_window(found.log, requests)
    if window is None:
        return attrs.evolve(found, why_not="no request in the log had an output")
    here = present(window)
    harmed = tuple(client for client in found.harmed if client in here)
    workload = window.workload(found.weights)
    cluster = Cluster(machine.latency(), machine.workers)
    found = attrs.evolve(found, window=window, why_not="it was interrupted", complete=False)
    router = "join-shortest-queue"
    tuning = tune(
        workload,
        starved_after_ns,
        policy=f"{machine.policy}+deficit",
        params=machine.params,
        router=router,
        cluster=cluster,
        quanta=QUANTA,
        capped=False,
        progress=lambda what, done, total: told(f"choosing the quantum: {what}", done, total),
    )
    found = attrs.evolve(found, tuning=tuning)
    if not tuning.complete:
        return found
    policies = [_policy(machine.policy, machine.params)]
    policies += [_policy(f"{machine.policy}+counter", machine.params)]
    policies += [_policy(f"{machine.policy}+deficit", {**machine.params, "quantum": str(found.quantum)})]
    comparison = compare(
        workload,
        policies,
        [router],
        cluster=cluster,
        progress=lambda what, done, total: told(f"simulating {what}", done, total),
    )
    if not comparison.complete:
        return found
    told("auditing what was simulated", 0, 0)
    logged, simulated = cases(window, comparison, found.weights, starved_after_ns)
    today, _, gated = simulated.values()
    others = tuple(sorted(here - set(harmed)))
    effects = Effects(window, comparison, logged, today, gated, harmed, others)
    found = attrs.evolve(found, effects=effects, why_not="", complete=True)
    if effects.misfit > MISFIT_MAX:
        why = f"today's simulation of the busiest stretch misses what was logged by {effects.misfit:.0%}"
        return attrs.evolve(found, effects=None, why_not=why)
    return attrs.evolve(found, verdict="gate" if _helps(effects) else "capacity")


def _policy(name: str, params: Mapping[str, str]) -> ComposedPolicy:
    return attrs.evolve(with_parameters(local_policy(name), params), name=name)


def _helps(effects: Effects) -> bool:
    today, gated = effects.today.group(effects.harmed), effects.gated.group(effects.harmed)
    return effects.speedup >= HELPS or (today.starved_us > 0 and 2 * gated.starved_us <= today.starved_us)
