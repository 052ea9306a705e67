"""What a policy inside an engine says of itself: service by client, the gap against its bound, and what went wrong.

Everything is in cost units of the policy's rates, as in `compare`, or in tokens; the metrics are those of
`fairsched.engines.prometheus`, for one worker.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any, Protocol, get_args

import attrs

from fairsched.engines.inside.decider import Cause, Decider
from fairsched.engines.inside.names import Names
from fairsched.model.events import Admitted, Cancelled, Decoded, Event, Finished, Preempted, Prefilled
from fairsched.model.monitor import Monitor
from fairsched.model.monitor_promise import MonitorReport
from fairsched.model.request import Client
from fairsched.policies.base import LocalPolicy

PHASES = ("prefill", "decode", "cached")
OUTCOMES = ("finished", "cancelled")


class Memory(Protocol):
    """An engine's KV memory."""

    @property
    def capacity_tokens(self) -> int:
        """What it holds in all."""

    @property
    def free_tokens(self) -> int:
        """What of it nobody uses."""

    @property
    def reserves(self) -> bool:
        """Whether whoever is let in is sure of room for its output."""


class Desk(Protocol):
    """The books of an engine."""

    @property
    def decider(self) -> Decider:
        """The policy."""

    @property
    def names(self) -> Names:
        """Its clients."""

    @property
    def memory(self) -> Memory:
        """Its memory."""

    @property
    def waiting(self) -> Sized:
        """Who waits."""

    @property
    def running(self) -> Sized:
        """Who runs."""


def monitor_of(policy: LocalPolicy[Any], memory: Memory, output_tokens_max: int, running_max: int) -> Monitor | None:
    """What the policy promises inside an engine of so many seats, None if nothing; weights come by events."""
    limits = attrs.evolve(policy.limits(memory.capacity_tokens, output_tokens_max), running_max=running_max)
    promise = policy.promise((Client(0, "a"), Client(1, "b")), limits)
    return None if promise is None else Monitor(promise, policy.gate_check())


class Status:
    """A listener of the desk's events; what it says may be read by another thread."""

    def __init__(self, monitor: Monitor | None) -> None:
        self.monitor = monitor
        self.desk: Desk | None = None
        self.uncovered: Callable[[], int] = int
        self.outcomes: Counter[str] = Counter()
        self.preemptions = 0
        self.tokens: Counter[tuple[int, str]] = Counter()
        self._lock = threading.Lock()

    def record(self, events: list[Event]) -> None:
        """What happened."""
        with self._lock:
            for event in events:
                match event:
                    case Decoded():
                        for client, tokens in zip(event.clients, event.tokens, strict=True):
                            self.tokens[client, "decode"] += tokens
                    case Prefilled():
                        self.tokens[event.client, "prefill"] += event.tokens
                    case Admitted():
                        self.tokens[event.client, "cached"] += event.cached_prefix_tokens
                    case Preempted():
                        self.preemptions += 1
                    case Finished():
                        self.outcomes["finished"] += 1
                    case Cancelled():
                        self.outcomes["cancelled"] += 1
                    case _:
                        pass
            if self.monitor is not None:
                self.monitor.observe_all(events)

    def report(self) -> MonitorReport | None:
        """What the monitor found so far; None if the policy promises nothing."""
        with self._lock:
            return None if self.monitor is None else self.monitor.report()

    def document(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        assert self.desk is not None
        desk, decider = self.desk, self.desk.decider
        with self._lock:
            tokens = dict(self.tokens)
        said: dict[str, Any] = {
            "policy": getattr(decider.policy, "name", type(decider.policy).__name__),
            "kv_capacity_tokens": desk.memory.capacity_tokens,
            "outputs_reserved": desk.memory.reserves,
            "clients": {
                client.name: {
                    "weight": client.weight,
                    **{f"{phase}_tokens": tokens.get((client.id, phase), 0) for phase in PHASES},
                }
                for client in list(desk.names.clients.all)
            },
            "outcomes": {outcome: self.outcomes[outcome] for outcome in OUTCOMES},
            "preemptions": self.preemptions,
            "uncovered_requests": self.uncovered(),
            "interventions": {cause: decider.interventions[cause] for cause in get_args(Cause)},
            "set_aside": decider.set_aside,
            "promise": None,
        }
        report = self.report()
        if report is not None and self.monitor is not None:
            promise = self.monitor.promise
            said["promise"] = {
                "theorems": [theorem.id for theorem in promise.theorems],
                "charge_max": promise.charge_max,
                "gap_bound": report.gap_bound,
                "gap": None if report.gap is None else report.gap.cost,
                "bound_violations": report.bound_violations,
                "broken_assumptions": {name: found.violated for name, found in sorted(report.violated().items())},
            }
        return said

    def write(self, path: Path) -> None:
        """The document as a file.  Raises `OSError`."""
        path.write_text(json.dumps(self.document(), indent=1) + "\n", encoding="utf-8")

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Metrics: name without prefix, labels, value.  Gaps are in output tokens of a client of the largest weight."""
        said = self.document()
        for name, client in said["clients"].items():
            for phase in PHASES:
                yield "client_service_tokens_total", {"client": name, "phase": phase}, client[f"{phase}_tokens"]
        for cause, count in said["interventions"].items():
            yield "guard_interventions_total", {"cause": cause}, count
        for outcome, count in said["outcomes"].items():
            yield "requests_total", {"outcome": outcome}, count
        yield "policy_set_aside", {}, said["set_aside"] is not None
        assert self.desk is not None
        yield "waiting_requests", {}, len(self.desk.waiting)
        yield "running_requests", {}, len(self.desk.running)
        yield "kv_free_tokens", {}, self.desk.memory.free_tokens
        promise = said["promise"]
        if promise is None or self.monitor is None:
            return
        charging = self.monitor.promise.charging
        unit = charging.rates.output * min(charging.multipliers, default=1)
        for name, key in (("service_gap_tokens", "gap"), ("service_gap_bound_tokens", "gap_bound")):
            if promise[key] is not None:
                yield name, {}, promise[key] / unit
        yield "bound_violations_total", {}, promise["bound_violations"]
        for name, count in promise["broken_assumptions"].items():
            yield "assumption_violations_total", {"assumption": name}, count
