"""Replaying a log: every worker and every policy state rebuilt from its events, and all of it compared with the log.

Equal means: each event is what the worker tells at that point, written again it has the same bytes, the hash of all
events is the one in the last line, and so is the digest of each policy state that the events lead to.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from fairsched.engines import logs
from fairsched.engines.analysis.assumptions import Watched, log_assumptions, log_limits
from fairsched.engines.analysis.figures import UNBROKEN, broken
from fairsched.model.monitor import Finding
from fairsched.model.request import Client
from fairsched.model.serialization import digest
from fairsched.policies.base import AnyLocalPolicy

BuildPolicy = Callable[[logs.LogHeader], AnyLocalPolicy]
"""Makes the policy that a log's header names, with its parameters."""


@attrs.frozen
class WorkerReport:
    """A worker after the last event: the digest of its policy's state, what waits, runs, and is cached."""

    worker: int
    state_digest: str
    waiting_requests: int
    running_requests: int
    cached_tokens: int


@attrs.frozen
class ReplayReport:
    """What a replay found.

    `clients` are those that the log names, also those that came while it was written.  `difference` is the first one
    (None: there is none), `complete` is False for the log of an interrupted run, whose events can be replayed but have
    no hash and no digests to be compared with.  `assumptions` are those of the policy's theorems, empty if it promises
    nothing or the log differs; `unexplained` says that a gap was over its bound and no assumption of the theorem was
    broken.  `states_left_out` is why the states of policies were not compared, if they were not.
    """

    path: Path
    header: logs.LogHeader
    clients: tuple[Client, ...]
    events: int
    requests: int
    log_sha256: str
    workers: tuple[WorkerReport, ...]
    complete: bool
    difference: str | None
    assumptions: Mapping[str, Finding]
    states_left_out: str | None = None
    unexplained: bool = False

    @property
    def equal(self) -> bool:
        """Whether the run was completed and the replay equals it."""
        return self.complete and self.difference is None

    def text(self) -> str:
        run = self.header.run
        lines = [
            f"{self.path}: {run.policy} behind {run.router}, {run.workers} worker(s), workload {run.workload}",
            f"{self.events:,} events of {self.requests:,} requests replayed",
        ]
        for w in self.workers:
            lines.append(
                f"worker {w.worker}: policy state {w.state_digest[:16]}, {w.waiting_requests:,} waiting, "
                f"{w.running_requests:,} running, {w.cached_tokens:,} tokens cached"
            )
        if self.assumptions:
            names = [client.name for client in self.clients]
            lines.append(f"assumptions: {'; '.join(broken(self.assumptions, names)) or UNBROKEN}")
        lines.append(f"log_sha256 {self.log_sha256}")
        lines.append(self._verdict())
        return "\n".join(lines)

    def _verdict(self) -> str:
        if self.difference is not None:
            return f"different: {self.difference}"
        if not self.complete:
            return "interrupted: the log has no last line, so there is no hash and no state to compare with"
        if self.states_left_out is not None:
            return f"equal: every event and the hash of the log; {self.states_left_out}"
        return "equal: every event, the hash of the log, and the policy state of every worker"

    def to_json(self) -> dict[str, Any]:
        return {
            "log": str(self.path),
            "equal": self.equal,
            "complete": self.complete,
            "difference": self.difference,
            "events": self.events,
            "requests": self.requests,
            "log_sha256": self.log_sha256,
            "workers": [attrs.asdict(worker) for worker in self.workers],
            "unexplained": self.unexplained,
            "assumptions": {name: attrs.asdict(finding) for name, finding in self.assumptions.items()},
        }


def replay(path: Path, build_policy: BuildPolicy = logs.logged_policy) -> ReplayReport:
    """Replay the log at `path`; raises `LogError` for a file that is no log or breaks its format.

    O(events), each as long as the worker's transition and the policy's `observe` take; a log without a difference is
    read twice, since what is promised depends on all its requests.
    """
    log = logs.LogReader(path)
    policy = build_policy(log.header)
    workers = logs.replayers_of(log, policy)
    difference = _follow(log, workers)
    reports = tuple(itertools.starmap(_report, enumerate(workers)))
    # A log sums up decode steps, so it does not say in which order several workers used credit that they share.
    alone = policy.shared_credit is None or len(workers) == 1
    left_out = None if alone else "the workers share credit, whose state it does not tell"
    if difference is None and log.footer is not None:
        difference = _difference(log, () if left_out else reports)
    complete = difference is not None or log.footer is not None
    found = Watched()
    if difference is None and alone:
        limits = log_limits(log, policy, len(workers))
        found = log_assumptions(log, policy, limits, (event for _, event in log), gaps=True)
    return ReplayReport(
        path=path,
        header=log.header,
        clients=tuple(log.clients),
        events=log.events,
        requests=len(log.jobs),
        log_sha256=log.sha256(),
        workers=reports,
        complete=complete,
        difference=difference,
        assumptions=found.findings,
        states_left_out=left_out,
        unexplained=found.unexplained,
    )


def _follow(log: logs.LogReader, workers: Sequence[logs.LogReplayer]) -> str | None:
    """Feed every event to its worker; returns the first difference."""
    try:
        for _, event in log:
            if event.worker >= 0:
                workers[event.worker].feed(event)
            for number, worker in enumerate(workers):
                if number != event.worker:
                    worker.hears(event)
        if log.footer is not None:
            for worker in workers:
                worker.end()
    except logs.DifferenceError as error:
        stages = max(log.header.run.latency_of(worker).stages for worker in range(log.header.run.workers))
        why = f"; prefills that overlap in {stages} stages are not replayed" if stages > 1 else ""
        return f"line {log.line}: {error}{why}"
    return None


def _report(number: int, worker: logs.LogReplayer) -> WorkerReport:
    return WorkerReport(number, digest(worker.policy_state), *worker.replica.counts())


def _difference(log: logs.LogReader, reports: tuple[WorkerReport, ...]) -> str | None:
    """Return what the last line says otherwise."""
    assert log.footer is not None
    for report, state in zip(reports, log.footer.states, strict=bool(reports)):
        if report.state_digest != state:
            mine = report.state_digest
            return f"line {log.line}: the policy state of worker {report.worker} is {state}, and the replay's {mine}"
    return None if log.changed is None else f"line {log.line}: {log.changed}"
