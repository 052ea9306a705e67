"""The watched assumptions against the same written out: each sum is counted anew over the requests that run."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairsched.model import events as ev
from fairsched.model import theorem as th
from fairsched.model.monitor import Monitor, Promise
from fairsched.model.monitor.guarantee import BoundBreach, Largest
from fairsched.model.pricing import Rates, charged_tokens, multipliers
from fairsched.model.request import Groups, Prompt, Request
from fairsched.model.service import Charging, ServiceCurve
from fairsched.model.theorem import Theorem

CLIENTS = 3
SEEDS = st.randoms(use_true_random=True)
MORE = settings(max_examples=4 * settings().max_examples)
"""Runs are cheap, and promises many."""


WEIGHTS = [9, 9, 3, 7, 7, 1, 2, 3, 2, 2, 0.5]
BUSY = [6, 9, 9, 5, 7, 7, 2, 0, 2, 1, 0.1]
"""How often what happens in a run."""


@attrs.define(eq=False)
class Known:
    """A request that was seen: what was declared, what it had before its admission, and what it runs with."""

    client: int
    most: int | None = None
    before: int = 0
    context: int = 0
    extend: int = 0
    left: int = 0
    reserved: int = 0
    kv: int = 0
    queued: bool = False
    running: bool = False


@attrs.define(eq=False)
class Account:
    """What a client was charged since its last admission, and by that; what it held since, and decoded of requests
    that run."""

    since: int = 0
    last: int = 0
    held: int = 0
    decoded: int = 0
    wait: tuple[int, int] = (0, 0)


@attrs.define(eq=False)
class WrittenOut:
    """The assumptions of a run as `theorem` words them: `broken` has (name, time, position) of each breach."""

    promise: Promise
    capacity: int | None = None
    requests: dict[int, Known] = attrs.field(factory=dict)
    accounts: dict[int, Account] = attrs.field(factory=dict)
    broken: list[tuple[str, int, int]] = attrs.field(factory=list)
    total: int = 0
    charged: dict[int, int] = attrs.field(factory=dict)
    together_ns: int = 0
    least: tuple[Fraction, str] | None = None
    now_ns: int = 0

    def waiting(self) -> set[int]:
        return {each.client for each in self.requests.values() if each.queued}

    def running(self, client: int | None = None) -> list[Known]:
        return [each for each in self.requests.values() if each.running and client in (None, each.client)]

    def runs(self, request_id: int) -> bool:
        return request_id in self.requests and self.requests[request_id].running

    def account(self, client: int) -> Account:
        return self.accounts.setdefault(client, Account())

    def owed(self, client: int) -> int:
        """R: what may still be charged for reserved outputs."""
        reserved = sum(each.reserved for each in self.running(client))
        return self.promise.charging.rates.output * max(reserved - self.account(client).decoded, 0)

    def back(self, client: int) -> int:
        """K: what may be given back."""
        return self.promise.charging.rates.input * sum(each.left for each in self.running(client))

    def observe(self, position: int, event: ev.Event) -> None:
        """Look at the run's next event."""
        self.together_ns += (event.time_ns - self.now_ns) * (len(self.waiting()) > 1)
        self.now_ns, self.charged = event.time_ns, {}
        self.broken += [(name.name, event.time_ns, position) for name in self._broken_by(event)]

    def _broken_by(self, event: ev.Event) -> Iterator[th.Assumption]:  # noqa: C901  (one case a kind)
        held, rates = self.promise, self.promise.charging.rates
        match event:
            case ev.WorkerJoined(kv_capacity_tokens=capacity):
                self.capacity = capacity
            case ev.WorkerDraining():
                yield th.BOTH_SERVE
            case ev.WorkerLeft():
                yield th.BOTH_SERVE
                if self.waiting() and held.capacity_floor is not None:
                    yield th.CAPACITY_FLOOR
                self.requests.clear()
                self.accounts.clear()
            case ev.Arrived(request=request):
                if self.capacity is not None and request.prompt.tokens + request.max_output_tokens > self.capacity:
                    yield th.FITS_ALONE
                self._joins(request.client)
                known = Known(request.client, request.max_output_tokens, event.generated_tokens, queued=True)
                self.requests[request.id] = known
            case ev.Admitted():
                yield from self._admitted(event)
            case ev.Settled() if self.runs(event.request_id):
                yield from self._settled(event)
            case ev.Prefilled() if self.runs(event.request_id):
                self.requests[event.request_id].left -= min(event.tokens, self.requests[event.request_id].left)
            case ev.Decoded():
                for client, tokens in zip(event.clients, event.tokens, strict=True):
                    account = self.account(client)
                    account.decoded += tokens
                    account.since += tokens * rates.output
                    self._charge(client, tokens * rates.output)
                    if held.outputs_predicted:
                        yield from self._over_since(account, th.MEM_RESERVE)
                    elif not held.outputs_reserved:
                        yield from self._over_since(account, th.OUTPUTS_BOUNDED)
                    elif account.decoded > sum(each.reserved for each in self.running(client)):
                        yield th.MEM_RESERVE
            case ev.Held():
                for client, tokens in zip(event.clients, event.tokens, strict=True):
                    account = self.account(client)
                    account.held += tokens
                    account.since += tokens * rates.output
                    self._charge(client, tokens * rates.output)
                    if account.held > held.hold_tokens:
                        yield th.MEM_RESERVE
            case ev.Preempted():
                yield from self._ends(event, event.generated_tokens)
                self._joins(event.client)
                self.requests[event.request_id].queued = True
            case ev.Finished():
                yield from self._ends(event, event.output_tokens)
                del self.requests[event.request_id]
            case ev.Cancelled(was_running=True) | ev.Migrated(was_running=True):
                yield from self._ends(event, event.generated_tokens)
                del self.requests[event.request_id]
                cost = event.uncomputed_tokens * rates.input
                self._charge(event.client, -cost)
                self.account(event.client).since -= cost
                if cost:
                    yield th.NOTHING_REFUNDED
            case ev.Cancelled() | ev.Migrated() | ev.Rejected():
                self.requests.pop(event.request_id, None)
                if not isinstance(event, ev.Rejected):
                    self._charge(event.client, 0)

    def _charge(self, client: int, cost: int) -> None:
        self.total += cost
        self.charged[client] = cost

    def _joins(self, client: int) -> None:
        if client not in self.waiting():
            self.account(client).wait = self.now_ns, self.total

    def _over_since(self, account: Account, broken: th.Assumption) -> Iterator[th.Assumption]:
        """Whether more was charged since the last admission than U, without what was charged for holding."""
        most = self.promise.charge_max
        if most is None or self.pauses:
            return
        held = self.promise.charging.rates.output * (account.held - self.promise.hold_tokens)
        if account.since - held > most:
            yield broken

    @property
    def pauses(self) -> bool:
        return "PausesObeyed" in self.promise.needed_by()

    def _admitted(self, event: ev.Admitted) -> Iterator[th.Assumption]:  # noqa: C901  (one check after the other)
        held, rates = self.promise, self.promise.charging.rates
        known = self.requests.setdefault(event.request_id, Known(event.client))
        account = self.account(event.client)
        tokens = charged_tokens(event.extend_tokens, event.cached_prefix_tokens, held.charging.percent)
        cost = account.since = account.last = tokens * rates.input
        self._charge(event.client, cost)
        account.held = 0
        known.context = event.extend_tokens + event.cached_prefix_tokens
        known.extend = known.left = event.extend_tokens
        known.reserved = event.reserved_output_tokens
        produces = 0 if known.most is None else known.most - known.before
        if held.unreserved_tokens and not held.outputs_predicted:
            known.reserved = max(known.reserved, produces)
        known.running = True
        if tokens < 1:
            yield th.CHARGES_AT_LEAST_ONE
        if known.most is not None:
            short = event.reserved_output_tokens < produces - held.unreserved_tokens
            if held.outputs_reserved and not held.outputs_predicted and short:
                yield th.MEM_RESERVE
            known.kv = event.extend_tokens + produces
            kv = sum(each.kv for each in self.running(event.client))
            if held.in_flight_cap_tokens is not None and kv > held.in_flight_cap_tokens:
                yield th.CAPPED
        yield from self._over_room(event.request_id)
        if held.running_max is not None and len(self.running()) > held.running_max:
            yield th.OUTPUTS_BOUNDED
            yield th.BATCH_BOUNDED
        if self.pauses and held.charge_max is not None and self.capacity is not None:
            step = min(self.capacity if held.running_max is None else held.running_max, self.capacity)
            if cost + rates.output * step > held.charge_max:
                yield th.BATCH_BOUNDED
        if known.queued:
            known.queued = False
            since_ns, before = account.wait
            span, charged = self.now_ns - since_ns, self.total - before
            if event.client in self.waiting():
                return
            if span and (self.least is None or Fraction(charged, span) < self.least[0]):
                while_waiting = f"while client {event.client} waited {span} ns"
                said = f"least {charged * 1e9 / span:.6g} cost units a second, {while_waiting}"
                self.least = Fraction(charged, span), said
            if held.capacity_floor is not None and charged * 1e9 < held.capacity_floor * span:
                yield th.CAPACITY_FLOOR

    def _over_room(self, request_id: int) -> Iterator[th.Assumption]:
        """Whether the last admission and all that may follow is over U: of the client, or of it and another."""
        held, rates, known = self.promise, self.promise.charging.rates, self.requests[request_id]
        if held.charge_max is None or not held.outputs_reserved or self.pauses:
            return
        whole = self.account(known.client).last + self.owed(known.client)
        if whole > held.charge_max - rates.output * held.hold_tokens:
            yield th.MEM_RESERVE
        if "MemShared" in held.needed_by():
            times = held.charging.times
            mine = (whole + self.back(known.client) - rates.input * known.left) * times(known.client)
            others = self.accounts.keys() - {known.client}
            beside = max((times(each) * (self.owed(each) + self.back(each)) for each in others), default=0)
            if mine + beside > held.charge_max * max(held.charging.multipliers, default=1):
                yield th.MEM_SHARED

    def _settled(self, event: ev.Settled) -> Iterator[th.Assumption]:
        held, known, account = self.promise, self.requests[event.request_id], self.account(event.client)
        percent = held.charging.percent
        before, after = (
            charged_tokens(extend, known.context - extend, percent) for extend in (known.extend, event.extend_tokens)
        )
        cost, more = (after - before) * held.charging.rates.input, event.extend_tokens - known.extend
        self._charge(event.client, cost)
        known.extend = event.extend_tokens
        known.left = max(known.left + more, 0)
        if more > 0:
            yield th.EXTEND_AS_PLANNED
        if percent == 100:
            return
        account.last += cost
        account.since += cost
        if more < 0:
            yield th.NOTHING_REFUNDED
        if event.extend_tokens < 1:
            yield th.CHARGES_AT_LEAST_ONE
        if more > 0 and held.outputs_predicted:
            yield from self._over_since(account, th.MEM_RESERVE)
        elif more > 0:
            yield from self._over_room(event.request_id)

    def _ends(
        self, event: ev.Preempted | ev.Finished | ev.Cancelled | ev.Migrated, generated: int
    ) -> Iterator[th.Assumption]:
        known = self.requests.setdefault(event.request_id, Known(event.client))
        here = generated - known.before
        self.account(event.client).decoded -= here * known.running
        known.running, known.before = False, generated
        if known.most is not None and generated > known.most:
            yield th.OUTPUTS_BOUNDED
            reserves = self.promise.outputs_reserved and not self.promise.outputs_predicted
            if reserves and here > known.reserved:
                yield th.MEM_RESERVE


@attrs.define(eq=False)
class Course:
    """A run so far, as gaps see it: which clients waited before each event, what it charged them, and where intervals
    begin anew."""

    waited: list[set[int]] = attrs.field(factory=list)
    charged: list[dict[int, int]] = attrs.field(factory=list)
    restart: int = 0

    def leads(self, f: int, g: int, *waiting: int) -> list[int]:
        """W_f - W_g at the present and at each moment before it since when `waiting` wait, the latest first."""
        leads = [0]
        for waited, charged in zip(reversed(self.waited[self.restart :]), reversed(self.charged), strict=False):
            if not waited.issuperset(waiting):
                break
            leads.append(leads[-1] - charged.get(f, 0) + charged.get(g, 0))
        return leads

    def gap(self, f: int, g: int) -> int:
        leads = self.leads(f, g, f, g)
        return max(leads) - min(leads)

    def lag(self, f: int, g: int) -> int:
        return -min(self.leads(f, g, g))

    def changed(self) -> tuple[int, int]:
        """The largest gap and the largest lag that the present event changed."""
        now = self.charged[-1]
        pairs = list(permutations(range(CLIENTS), 2))
        lags = (self.lag(f, g) for f, g in pairs if f in now or now.get(g, 0) < 0)
        return max((self.gap(f, g) for f, g in pairs if f in now), default=0), max(lags, default=0)


def promises(random: Random) -> Promise:
    """Return a promise that has each field or has not."""

    def perhaps(*values: int) -> int | None:
        return random.choice((None, *values))

    rates = Rates(random.randint(1, 3), random.randint(1, 3))
    times = random.choice([(), (1, 2), (3, 1, 2)])
    charging = Charging(rates, random.choice(["extend", "prompt"]), times, random.choice([0, 0, 40]))
    needs = (th.MEM_SHARED,) * (random.random() < 0.6) + (th.PAUSES_OBEYED,) * (random.random() < 0.35)
    return Promise(
        charging,
        (1,) * CLIENTS,
        (Theorem("T", "", "", (th.MEM_RESERVE, *needs)),),
        charge_max=perhaps(12, 25, 40),
        quanta=random.choice([(), (4, 4), (5, 3), (4, 0)]),
        broken=frozenset(random.sample([th.CAPPED, th.CAPPED_TOGETHER, th.LIFT_ON_JOIN, th.EQUAL_WORKERS], 2)),
        outputs_reserved=random.random() < 0.7,
        unreserved_tokens=random.choice([0, 0, 2]),
        hold_tokens=random.choice([0, 0, 3]),
        outputs_predicted=random.random() < 0.3,
        running_max=perhaps(1, 2),
        in_flight_cap_tokens=perhaps(8, 16),
        capacity_floor=random.choice([None, 1e9, 4e9]),
    )


def runs(  # noqa: C901  (one case a kind)
    random: Random, most: int = 80, weighs: float = 0.0
) -> Iterator[ev.Event]:
    """A worker's run in which requests of three clients do whatever an engine may let them do."""
    time, ids = 0, 0
    queued, running = dict[int, int](), dict[int, tuple[int, int]]()
    generated, lost = Counter[int](), set[int]()
    if random.random() < 0.6:
        yield ev.WorkerJoined(0, 0, random.choice([9, 14, 40]))
    for _ in range(random.randint(0, most)):
        time += random.choice([0, 1, 1, 4])
        kind = random.choices(
            [
                "arrive",
                "admit",
                "settle",
                "prefill",
                "decode",
                "hold",
                "preempt",
                "finish",
                "cancel",
                "gone",
                "worker",
                "weigh",
            ],
            [*WEIGHTS, weighs],
        )[0]
        some = tuple(sorted(random.sample(range(CLIENTS), random.randint(1, CLIENTS))))
        tokens = tuple(random.randint(1, 3) for _ in some)
        if kind == "arrive":
            ids += 1
            queued[ids] = random.randrange(CLIENTS)
            generated[ids] = random.choice([0, 0, 2])
            request = Request(ids, queued[ids], time, Prompt(random.randint(1, 8)), random.randint(2, 6))
            yield ev.Arrived(time, 0, request, generated[ids])
        elif kind == "admit":
            ids += 1
            request_id = random.choice([*queued, *lost, ids] if random.random() < 0.2 else [*queued] or [ids])
            lost -= {request_id}
            client = queued.pop(request_id, None)
            client = random.randrange(CLIENTS) if client is None else client
            extend = random.randint(0, 6)
            running[request_id] = client, extend
            yield ev.Admitted(time, 0, request_id, client, extend, random.randint(0, 4), random.randint(0, 6))
        elif kind == "decode":
            yield ev.Decoded(time, 0, 1, some, tokens)
        elif kind == "hold":
            yield ev.Held(time, 0, some, tokens)
        elif kind == "worker":
            which = random.choice("dhl")
            if which == "d":
                yield ev.WorkerDraining(time, 0)
            elif which == "h":
                yield ev.HostLost(time, 0)
            else:
                yield ev.WorkerLeft(time, 0)
                lost |= {*queued, *running}
                queued.clear()
                running.clear()
        elif kind == "weigh":
            yield ev.ClientConfigured(time, 0, random.randrange(CLIENTS), random.randint(1, 3))
        elif kind == "gone":
            request_id = random.choice([*queued, 99])
            what = random.choice([ev.Cancelled, ev.Migrated, ev.Rejected])
            client = queued.pop(request_id, 0)
            rest = ("",) if what is ev.Rejected else (False, 0, 0)
            yield what(time, 0, request_id, client, *rest)
        elif running:
            request_id = random.choice([*running])
            if random.random() < 0.2:
                ids += 1
                request_id = random.choice([*queued, *lost, ids] if kind in ("settle", "prefill") else [*lost, ids])
                lost -= {request_id}
            client, extend = running.get(request_id, (0, 0))
            of = (time, 0, request_id, client)
            generated[request_id] += random.randint(0, 3)
            if kind == "settle":
                yield ev.Settled(*of, random.randint(0, 6))
            elif kind == "prefill":
                yield ev.Prefilled(*of, random.randint(1, 5), random.choice([0, 0, 2]))
            else:
                running.pop(request_id, None)
                lost |= {request_id} if kind != "preempt" else set()
                if kind == "preempt":
                    queued[request_id] = client
                    yield ev.Preempted(*of, generated[request_id], 0)
                elif kind == "finish":
                    yield ev.Finished(*of, generated[request_id])
                else:
                    what = random.choice([ev.Cancelled, ev.Migrated])
                    yield what(*of, True, random.randint(0, extend), generated[request_id])


def unwatched(held: Promise, capacity: int | None, asks_gate: bool) -> set[th.Assumption]:
    """What no event can break under this promise."""
    needed = held.needed_by()
    always = {th.BACKLOGGED_DURING, th.CAPPED_TOGETHER, th.OUTPUTS_LIKELY, th.REJOIN_KEEPS_DEBT, th.LIFT_ON_JOIN}
    always |= {th.BACKLOGGED_EVERYWHERE, th.BACKLOGGED_TOGETHER, th.EQUAL_WORKERS, th.GLOBAL_REFILL, th.STALE_READS}
    always |= {th.BOTH_SERVE, th.PHASES_APART, th.STEPS_IN_TIME}
    sometimes = {
        th.MEM_RESERVE: not held.outputs_reserved,
        th.MEM_SHARED: not held.outputs_reserved or held.charge_max is None or "MemShared" not in needed,
        th.GATE_RESPECTED: not asks_gate,
        th.PAUSES_OBEYED: not asks_gate or "PausesObeyed" not in needed,
        th.BATCH_BOUNDED: "PausesObeyed" not in needed,
        th.CAPPED: held.in_flight_cap_tokens is None,
        th.CAPACITY_FLOOR: held.capacity_floor is None,
        th.FITS_ALONE: capacity is None,
        th.QUANTUM_POSITIVE: not held.quanta,
        th.EQUAL_QUANTA: not held.quanta,
    }
    return always | {each for each, is_unwatched in sometimes.items() if is_unwatched}


class Check:
    """A gate check that refuses every fifth nanosecond."""

    kinds = frozenset[type]((ev.Admitted, ev.Decoded))

    def observe(self, event: ev.Event) -> str | None:
        """Return a reason, or none."""
        assert type(event) in self.kinds
        return None if event.time_ns % 5 else "refused"


@MORE
@given(SEEDS)
def test_assumptions_are_those_of_the_run_written_out(random: Random) -> None:
    """Of any run under any promise the monitor counts each breach of each assumption, and keeps the first; what it
    does not watch it names."""
    held, check = promises(random), random.choice([None, Check()])
    held, measured = attrs.evolve(held, gap_bound=0, lag_bound=0), random.random() < 0.5
    written, monitor, events = WrittenOut(held), Monitor(held, check, gaps=measured), list(runs(random))
    begun = {
        th.WEIGHTS_ORDERED: held.charging.rates.input > held.charging.rates.output,
        th.QUANTUM_POSITIVE: 0 in held.quanta,
        th.EQUAL_QUANTA: held.quanta in ((5, 3), (4, 0)),
        th.LIFT_ON_JOIN: th.LIFT_ON_JOIN in held.broken,
        th.EQUAL_WORKERS: th.EQUAL_WORKERS in held.broken,
    }
    written.broken += [(assumption.name, 0, 0) for assumption, is_broken in begun.items() if is_broken]
    for position, event in enumerate(events):
        if check is not None and type(event) in check.kinds and check.observe(event):
            name = "PausesObeyed" if isinstance(event, ev.Decoded) else "GateRespected"
            written.broken.append((name, event.time_ns, position))
        monitor.observe(event)
        written.observe(position, event)
    report = monitor.report()
    assert (report.gap is None, report.lag is None) == (not measured, not measured)
    assert measured or report.bound_violations == 0
    assert report.events == len(events)
    findings, counts = report.assumptions, Counter(name for name, _, _ in written.broken)
    firsts = {name: (time, position) for name, time, position in reversed(written.broken)}
    blind = {each.name for each in unwatched(held, written.capacity, check is not None)} - firsts.keys()
    for name, found in findings.items():
        assert (name, found.violated) == (name, None if name in blind else counts[name])
        assert (name, found.first and (found.first.time_ns, found.first.position)) == (name, firsts.get(name))
    during = f"two or more clients waited together for {written.together_ns} ns"
    assert findings["BackloggedDuring"].note == during
    assert findings["CapacityFloor"].note == (written.least and written.least[1])


@MORE
@given(SEEDS)
def test_assumptions_are_those_written_out_where_much_is_settled_and_held(random: Random) -> None:
    """The same of runs in which admissions are settled again and again, and memory is held."""
    agree: Any = test_assumptions_are_those_of_the_run_written_out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.WEIGHTS", BUSY)
        agree.hypothesis.inner_test(random)


@MORE
@given(SEEDS, st.integers(5, 60), st.integers(5, 60), st.booleans())
def test_gaps_are_those_of_the_run_written_out(random: Random, gap_bound: int, lag_bound: int, known: bool) -> None:
    """The largest gap and lag, how many events changed one that is over its bound, and the first of them, with its two
    clients, are those found by trying every two clients and moment; with a weight the unit changes, and all begins
    anew."""
    held = attrs.evolve(promises(random), charging=Charging(Rates(random.randint(1, 2), random.randint(1, 2))))
    held = attrs.evolve(held, gap_bound=gap_bound, lag_bound=lag_bound)

    def reweighted(now: tuple[int, ...], lowest: tuple[int, ...], groups: tuple[Groups, ...]) -> Promise:
        return attrs.evolve(begun, charging=attrs.evolve(held.charging, multipliers=multipliers(now)), weights=now)

    begun = attrs.evolve(held, reweighted=reweighted if known else None)
    written, monitor, course, weights = WrittenOut(held), Monitor(begun), Course(), [1] * CLIENTS
    judged = True
    largest, violations, before = [0, 0], [0, 0], [Largest(), Largest()]
    firsts: list[BoundBreach | None] = [None, None]
    for position, event in enumerate(runs(random, 60, 0.7)):
        course.waited.append(written.waiting())
        monitor.observe(event)
        written.observe(position, event)
        if isinstance(event, ev.ClientConfigured) and weights[event.client] != event.weight:
            weights[event.client] = event.weight
            judged = known
            course.restart = position
        course.charged.append({client: cost * multipliers(weights)[client] for client, cost in written.charged.items()})
        report = monitor.report()
        shown = ((report.gap, report.first_gap, gap_bound), (report.lag, report.first_lag, lag_bound))
        for i, (cost, (found, first, bound)) in enumerate(zip(course.changed(), shown, strict=True)):
            assert found is not None
            over = judged and cost > bound
            violations[i] += over
            if cost <= largest[i]:
                assert found == before[i]
            before[i] = found
            named = [found] * (cost > largest[i]) + [first] * (over and violations[i] == 1)
            largest[i] = max(largest[i], cost)
            assert found.cost == largest[i]
            for each in named:
                assert each is not None
                assert each.ahead is not None
                assert each.ahead in range(-1, CLIENTS)
                assert each.behind is not None
                assert (each.time_ns, each.cost) == (event.time_ns, cost)
                assert (course.gap, course.lag)[i](each.ahead, each.behind) == cost
                assert max(course.leads(each.ahead, each.behind, each.behind, each.ahead)) == 0 or i == 1
            if over and violations[i] == 1:
                firsts[i] = first
                assert first is not None
                assert (first.position, first.bound) == (position, bound)
            assert first == firsts[i]
        assert [report.gap_violations, report.lag_violations] == violations
        assert (report.gap_bound, report.lag_bound) == ((gap_bound, lag_bound) if judged else (None, None))
    assert monitor.promise.weights == tuple(weights)


@attrs.frozen
class Worst:
    """A worst wait of round numbers."""

    curve: ServiceCurve
    admission_ns: int
    token_ns: int
    waits: bool
    pauses: bool

    def prefill_ns(self, extend_tokens: int) -> int | None:
        """Return the time to the first token."""
        return None if self.waits else extend_tokens * self.token_ns

    def decode_ns(self, output_tokens: int) -> int | None:
        """Return the time to the last token."""
        return None if self.pauses else output_tokens * self.token_ns


@MORE
@given(SEEDS)
def test_waits_are_those_of_the_run_written_out(random: Random) -> None:
    """Each admission of a client that waited ends a wait, which began when the client had joined, was let in last, or
    weights had changed; it is held to the bound and the service curve, and the request's tokens to the steps' times."""
    curve = ServiceCurve(random.randint(0, 4), 2, random.randint(1, 3))
    worst: Any = Worst(curve, random.randint(3, 12), random.randint(0, 2), random.random() < 0.3, random.random() < 0.3)
    held = attrs.evolve(promises(random), worst_wait=worst, wait_theorems=("T",))
    held = attrs.evolve(held, charging=attrs.evolve(held.charging, multipliers=()))
    # Of a client of weight 3 no wait is bounded.
    begun = attrs.evolve(held, reweighted=lambda now, *_: attrs.evolve(begun, worst_wait=None if 3 in now else worst))
    written, monitor = WrittenOut(held), Monitor(begun)
    since, weights = dict[int, tuple[int, int]](), [1] * CLIENTS
    admitted, first_ns = dict[int, tuple[int, int, int]](), dict[int, int]()
    waits, over, slow = [(0, 0, 0)], list[BoundBreach](), Counter[str]()
    for position, event in enumerate(runs(random, 100, 0.7)):
        waited, total, now, judged = written.waiting(), written.total, event.time_ns, 3 not in weights
        match event:
            case ev.Admitted(request_id=request_id, client=client):
                known = written.requests.get(request_id)
                if known is not None and known.queued:
                    span, charged = now - since[client][0], total - since[client][1]
                    waits.append((span, -position, client))
                    slow["CapacityFloor"] += judged and span > curve.time_ns(charged)
                    if judged and span > worst.admission_ns:
                        over.append(BoundBreach(now, 0, position, client, client, span, worst.admission_ns))
                first_ns.pop(request_id, None)
                admitted[request_id] = now, event.extend_tokens, known.before if known else 0
            case ev.Prefilled(request_id=request_id, remaining_tokens=0) if judged and written.runs(request_id):
                first_ns[request_id] = now
                most = worst.prefill_ns(admitted[request_id][1])
                slow["StepsInTime"] += most is not None and now - admitted[request_id][0] > most
            case ev.Finished(request_id=request_id) if judged and written.runs(request_id) and request_id in first_ns:
                most = worst.decode_ns(event.output_tokens - admitted[request_id][2])
                slow["StepsInTime"] += most is not None and now - first_ns[request_id] > most
            case ev.Preempted() | ev.Cancelled() | ev.Migrated():
                first_ns.pop(event.request_id, None)
        monitor.observe(event)
        written.observe(position, event)
        joined = written.waiting() - waited
        if isinstance(event, ev.Admitted):
            joined = written.waiting() & {event.client}
        elif isinstance(event, ev.ClientConfigured) and weights[event.client] != event.weight:
            weights[event.client] = event.weight
            joined = written.waiting()
        since |= dict.fromkeys(joined, (now, written.total))
    report = monitor.report()
    longest, _, client = max(waits)
    assert report.wait is not None
    assert (report.wait.cost, report.wait.ahead if longest else client) == (longest, client)
    assert (report.wait_violations, report.first_wait) == (len(over), over[0] if over else None)
    bound = None if 3 in weights else worst.admission_ns
    assert (report.wait_bound_ns, report.wait_theorems) == (bound, ("T",))
    counts = slow + Counter(name for name, _, _ in written.broken)
    for name, floor in (("CapacityFloor", held.capacity_floor), ("StepsInTime", None)):
        expected = counts[name] or (0 if bound is not None or floor is not None else None)
        assert (name, report.assumptions[name].violated) == (name, expected)
    assert report.bound_violations == len(over)
    assert monitor._watch.total == written.total


@example([(0, 2, ()), (3, 0, ())], (1, 1), False)
@MORE
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 3), st.sampled_from([(), (("a", 1),), (("b", 1),)])), max_size=12
    ),
    st.sampled_from([(2, 3), (2, 2), (1, 1)]),
    st.booleans(),
)
def test_a_promise_is_made_anew_for_weights_and_groups_as_they_are(
    changes: list[tuple[int, int, Groups]], begun: tuple[int, int], waits: bool
) -> None:
    """Whatever clients come or are configured, the promise is asked for with each one's weight, the lowest that it had,
    and its groups; a client that nothing was said of has a weight of 1, and matters beside others or to waits."""
    asked: list[tuple[Any, ...]] = [(begun, begun, ((("g", 1),), ()))]

    def reweighted(*now: Any) -> Promise:
        asked.append(now)
        return held

    worst: Any = Worst(ServiceCurve(0, 1, 1), 9, 1, False, False) if waits else None
    held = Promise(Charging(), begun, (), groups=((("g", 1),),), worst_wait=worst, reweighted=reweighted)
    monitor = Monitor(held)
    weights, lowest, kinds = dict(enumerate(begun)), dict(enumerate(begun)), {*begun, 1}
    groups: defaultdict[int, Groups] = defaultdict(tuple, {0: (("g", 1),)})
    groups_before = groups.copy()
    for time, (client, weight, within) in enumerate(changes):
        if weight:
            monitor.observe(ev.ClientConfigured(time, 0, client, weight, within))
            groups[client] = within or groups[client]
        else:
            monitor.observe(ev.Arrived(time, 0, Request(time, client, time, Prompt(3), 3)))
        told = weight and (weights.get(client, 1), groups_before[client]) != (weight, groups[client])
        if told or (not weight and (waits or len(kinds) > 1)):
            for each in range(len(weights), client + 1):
                weights[each] = lowest[each] = 1
        if told:
            kinds.add(weight)
            weights[client], lowest[client] = weight, min(lowest[client], weight)
        groups_before = groups.copy()
        assert monitor.promise == held
        clients = range(len(weights))
        assert asked[-1] == tuple(tuple(each[client] for client in clients) for each in (weights, lowest, groups))
