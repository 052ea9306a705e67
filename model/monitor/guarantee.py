"""What a run is held to, as a value: how a policy charges, what it promises, and on which assumptions that rests.

A policy makes the `Promise` from its configuration (`LocalPolicy.promise`); the monitor holds a stream of events to it.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from fairsched.model import theorem as th
from fairsched.model.request import Groups
from fairsched.model.service import Charging, ServiceCurve


class WaitBound(Protocol):
    """A worst wait in seconds, as a monitor holds a run to it."""

    @property
    def theorem(self) -> th.Theorem:
        """The theorem that says it."""

    @property
    def theorems(self) -> tuple[th.Theorem, ...]:
        """The same, after those that it rests on here."""

    @property
    def curve(self) -> ServiceCurve:
        """What the worker charges at least while the client waits."""

    @property
    def cost(self) -> int:
        """Cost units of multiplier 1 that are charged to all before a client that waits is let in."""

    @property
    def admission_ns(self) -> int:
        """Until one of the client's waiting requests is let in."""

    def prefill_ns(self, extend_tokens: int) -> int | None:
        """Return the time from an admission to the first token of a request with so many tokens to compute; None if
        nothing is promised."""

    def decode_ns(self, output_tokens: int) -> int | None:
        """Return the time from the first token to the last of so many; None if nothing is promised."""


class FirstTokenBound(WaitBound, Protocol):
    """A worst wait on a worker whose steps are known, up to the tokens of the request that ends it."""

    @property
    def with_nothing_in_flight(self) -> "FirstTokenBound | None":
        """The same of a client with nothing in flight, where that is less."""

    def first_token_ns(self, extend_tokens: int | None = None) -> int:
        """Return the time from the beginning of a wait to the first token of the request that ends it (None: of the
        longest prompt)."""

    def completion_ns(self, extend_tokens: int | None = None, output_tokens: int | None = None) -> int | None:
        """Return the time from the beginning of a wait to the end of the request that ends it (None: the longest);
        None if it may be paused."""

    def parts(self) -> tuple[tuple[str, int], ...]:
        """Return what the time to the last token that is promised is made of, in nanoseconds."""


@attrs.frozen
class Promise:
    """One worker's promise, all from the configuration.

    `weights` and `quanta` are by client id (`quanta` empty for a gate that has none).  `charge_max` is U in cost units
    of multiplier 1: the most that one client can be charged after it was let in; of these are `hold_tokens` output
    tokens for holding memory, and `unreserved_tokens` that may be produced without having been reserved: those of
    requests that declared them, or where outputs are predicted (`outputs_predicted`) any.  `gap_bound`
    (D-4.1, V-4.4) bounds the service gap of two clients that both wait, `lag_bound` (D-4.2, V-4.9) how far a waiting
    client falls behind any; both in cost units times the multiplier of `charging`, None where nothing is promised.
    `theorems` are those of the gate, `broken` the assumptions that this configuration does not fulfil.
    `capacity_floor` is the a of CapacityFloor in cost units a second, if one is claimed.  With `refunds_widen` both
    bounds are those of a run in which nothing is given back, and grow by B of the two clients, the most that was
    charged to each for requests in flight at one time and given back.  `gap_theorems` and `lag_theorems` are the ids of
    those that say the bounds.  `worst_wait` bounds waits in nanoseconds, where
    the worker's latency model or a rate is known.

    `groups` are those that each client is in, if any is in some.  `reweighted`, if given, makes the promise that holds
    once clients have other weights or groups: called with their weights now, the lowest that each had in the run, and
    their groups.
    """

    charging: Charging
    weights: tuple[int, ...]
    theorems: tuple[th.Theorem, ...]
    charge_max: int | None = None
    gap_bound: int | None = None
    lag_bound: int | None = None
    quanta: tuple[int, ...] = ()
    broken: frozenset[th.Assumption] = frozenset()
    outputs_reserved: bool = True
    unreserved_tokens: int = 0
    hold_tokens: int = 0
    outputs_predicted: bool = False
    running_max: int | None = None
    in_flight_cap_tokens: int | None = None
    capacity_floor: float | None = None
    refunds_widen: bool = False
    gap_theorems: tuple[str, ...] = ()
    lag_theorems: tuple[str, ...] = ()
    worst_wait: WaitBound | None = None
    wait_theorems: tuple[str, ...] = ()
    groups: tuple[Groups, ...] = ()
    reweighted: Callable[[tuple[int, ...], tuple[int, ...], tuple[Groups, ...]], "Promise"] | None = attrs.field(
        default=None, eq=False, repr=False
    )

    def needed_by(self) -> dict[str, tuple[str, ...]]:
        """Return for each assumption's name the ids of the theorems that rest on it, by themselves or through
        others."""
        known = {theorem.id: theorem for theorem in self.theorems}
        needed: dict[str, list[str]] = {}
        for theorem in self.theorems:
            for name in sorted(_names(theorem, known)):
                needed.setdefault(name, []).append(theorem.id)
        return {name: tuple(ids) for name, ids in needed.items()}

    def defects(self) -> list[tuple[th.Assumption, str]]:
        """Return the assumptions that the configuration itself breaks, and how; a cap that is not set breaks
        nothing."""
        found = [
            (assumption, "the policy's configuration does not fulfil it")
            for assumption in sorted(self.broken, key=lambda each: each.name)
            if assumption not in (th.CAPPED, th.CAPPED_TOGETHER)
        ]
        if self.quanta and min(self.quanta) < 1:
            found.append((th.QUANTUM_POSITIVE, f"the least quantum is {min(self.quanta)}"))
        if len(set(self.quanta)) > 1:
            found.append((th.EQUAL_QUANTA, f"quanta differ, from {min(self.quanta)} to {max(self.quanta)}"))
        rates = self.charging.rates
        if rates.input > rates.output:
            found.append((th.WEIGHTS_ORDERED, f"an input token costs {rates.input}, an output token {rates.output}"))
        return found


def _names(theorem: th.Theorem, known: dict[str, th.Theorem]) -> set[str]:
    """Return names of a theorem's assumptions and of those that it takes for granted."""
    names = {assumption.name for assumption in theorem.assumptions}
    for other in theorem.rests_on:
        if other in known:
            names |= _names(known[other], known)
    return names


@attrs.frozen
class Breach:
    """The first time that an assumption was broken: when, at which of the worker's events (from 0), and how."""

    time_ns: int
    worker: int
    position: int
    text: str


@attrs.frozen
class Finding:
    """What is known of one assumption."""

    violated: int | None
    """How many events broke it; none if it cannot be watched here."""
    first: Breach | None = None
    """The first that did: `time_ns`, `worker`, `position` (which of the worker's events, from 0) and `text`."""
    why: str | None = None
    """Why it is not watched."""
    note: str | None = None
    """What was measured beside: the least rate of charged service while a client waited (CapacityFloor), how long
    clients waited together (BackloggedDuring)."""
    theorems: tuple[str, ...] = ()
    """The policy's theorems that rest on it; empty if it does not matter here."""

    @property
    def matters(self) -> bool:
        """Whether it was broken and a theorem of the policy rests on it."""
        return bool(self.violated) and bool(self.theorems)


@attrs.frozen
class BoundBreach:
    """A gap over its bound: `ahead` received `cost` more than `behind` on `worker`."""

    time_ns: int
    worker: int
    position: int
    ahead: int
    behind: int
    cost: int
    bound: int


@attrs.frozen
class Largest:
    """The largest gap so far, whose it is, and since when it is so large."""

    cost: int = 0
    ahead: int | None = None
    behind: int | None = None
    time_ns: int = 0


@attrs.frozen
class MonitorReport:
    """One worker's run so far.

    `gap` is between two clients that both wait (over intervals in which the weights stay), `lag` that of a waiting
    client behind any; None where they are not measured.  The counts say at how many events one exceeded its bound, the
    first of which is named.  `left_out` counts how often a client was not compared since too many were.  `given_back`
    is B of each client that was given something back, in cost units of multiplier 1, and `widening` what both bounds
    have grown by for it.  `wait` is the longest wait in nanoseconds; None where none is bounded.
    """

    worker: int
    events: int
    assumptions: dict[str, Finding]
    gap: Largest | None
    lag: Largest | None
    gap_bound: int | None
    lag_bound: int | None
    gap_violations: int
    lag_violations: int
    first_gap: BoundBreach | None
    first_lag: BoundBreach | None
    left_out: int
    given_back: Mapping[int, int] = attrs.field(factory=dict)
    widening: int = 0
    gap_theorems: tuple[str, ...] = ()
    lag_theorems: tuple[str, ...] = ()
    wait: Largest | None = None
    wait_bound_ns: int | None = None
    wait_violations: int = 0
    first_wait: BoundBreach | None = None
    wait_theorems: tuple[str, ...] = ()

    @property
    def bound_violations(self) -> int:
        """At how many events a gap, a lag or a wait exceeded its bound."""
        return self.gap_violations + self.lag_violations + self.wait_violations

    @property
    def unexplained(self) -> BoundBreach | None:
        """The first gap, lag or wait over its bound where no assumption of the theorem that says it was broken.

        What was proved says that there is none: it is a failure of the library, not of the run.
        """
        for breach, theorems in (
            (self.first_gap, self.gap_theorems),
            (self.first_lag, self.lag_theorems),
            (self.first_wait, self.wait_theorems),
        ):
            if breach is not None and not excused(self.assumptions, theorems):
                return breach
        return None

    def violated(self) -> dict[str, Finding]:
        """Return the assumptions that were broken and that a theorem of the policy rests on."""
        return {name: finding for name, finding in self.assumptions.items() if finding.matters}


def excused(findings: Mapping[str, Finding], theorems: tuple[str, ...]) -> tuple[str, ...]:
    """Return the broken assumptions on which these theorems rest: what excuses a gap over the bound that they say."""
    return tuple(name for name, found in findings.items() if found.violated and set(found.theorems) & set(theorems))
