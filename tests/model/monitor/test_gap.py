"""What is given back, who is compared, and what a gap goes on over."""

from random import Random

import attrs
import pytest
from hypothesis import given

from fairsched.model import events as ev
from fairsched.model.events import Event
from fairsched.model.monitor import ClusterMonitor, Monitor, MonitorReport, Promise
from fairsched.model.monitor.gap import Lags, PairGaps
from fairsched.model.pricing import multipliers
from fairsched.model.service import Charging
from tests.model.monitor.test_assumptions import SEEDS, runs
from tests.model.test_service import CLIENTS, admitted, arrived, decoded


def promise(charging: Charging, gap_bound: int | None = None, lag_bound: int | None = None) -> Promise:
    """A promise about bounds alone."""
    return Promise(charging, (1,) * CLIENTS, (), gap_bound=gap_bound, lag_bound=lag_bound)


def watched(events: list[Event], held: Promise) -> tuple[MonitorReport, ...]:
    """Each worker's report on a run."""
    monitor = ClusterMonitor(lambda worker: Monitor(held, worker=worker))
    monitor.observe_all(events)
    return monitor.reports()


@pytest.mark.parametrize(("kind", "left_out"), [(PairGaps, 2), (Lags, 4)])
def test_more_clients_than_are_compared_are_counted(kind: type[PairGaps] | type[Lags], left_out: int) -> None:
    """Beyond the limit clients are left out and counted, the others are compared exactly."""
    gaps = kind(3)
    for client in range(5):
        gaps.join(client)
    gaps.charge((0, 4), (3, 100), 1)
    assert gaps.charge((4,), (9,), 1).cost == 0
    gaps.leave(4)
    gaps.charge((2,), (2,), 1)
    assert (gaps.largest.cost, gaps.left_out) == (3, left_out)
    assert gaps.charge((2,), (2,), 1).cost == 4


@pytest.mark.parametrize("follows", [True, False])
def test_a_client_that_comes_begins_no_interval_anew(follows: bool) -> None:
    """Of weight 1 beside clients of weight 2 it changes no unit: the gap goes on, and is held to a bound."""

    def reweighted(now: tuple[int, ...], *_: object) -> Promise:
        return attrs.evolve(held, charging=Charging(multipliers=multipliers(now)), weights=now)

    weighted = Charging(multipliers=(1, 1))
    held = Promise(weighted, (2, 2), (), gap_bound=9, reweighted=reweighted if follows else None)
    waits: list[Event] = [arrived(0, client, client) for client in range(2)]
    [report] = watched([*waits, decoded(1, {0: 5}), arrived(2, 2, 2), decoded(3, {0: 5})], held)
    assert report.gap is not None
    assert (report.gap.cost, report.gap_bound, report.gap_violations) == (20, 9, 2)


def test_new_limits_hold_for_weights_as_they_are_and_begin_no_interval_anew() -> None:
    """A promise of other limits is made for the weights now, and judges what comes; a gap goes on over it."""

    def limits(bound: int) -> Promise:
        def reweighted(now: tuple[int, ...], *_: object) -> Promise:
            return attrs.evolve(limits(bound), charging=Charging(multipliers=multipliers(now)), weights=now)

        return Promise(Charging(), (1, 1), (), gap_bound=bound, reweighted=reweighted)

    monitor = Monitor(limits(25))
    monitor.observe_all([arrived(0, client, client) for client in range(2)])
    monitor.observe_all([ev.ClientConfigured(1, 0, 1, 2), decoded(2, {0: 3})])
    for time, (bound, violations) in enumerate([(23, 1), (35, 2), (48, 2)], 3):
        monitor.promised(limits(bound), time)
        assert (monitor.promise.weights, monitor.promise.gap_bound) == ((1, 2), bound)
        monitor.observe(decoded(time, {0: 3}))
        report = monitor.report()
        assert report.gap is not None
        assert (report.gap.cost, report.gap_violations) == (12 * (time - 1), violations)


def most_given_back(events: list[Event]) -> dict[int, int]:
    """By client, the most that is given back, at any time to come, of what is in flight at one time; from hindsight."""
    admissions: dict[int, tuple[int, int]] = {}
    returned: list[tuple[int, int, int, int]] = []
    for now, event in enumerate(events):
        if isinstance(event, ev.Admitted):
            admissions[event.request_id] = (now, event.extend_tokens)
        elif isinstance(event, ev.WorkerLeft):
            admissions.clear()
        elif isinstance(event, ev.Preempted | ev.Finished):
            admissions.pop(event.request_id, None)
        elif isinstance(event, ev.Settled) and event.request_id in admissions:
            since, planned = admissions[event.request_id]
            returned.append((event.client, since, now, planned - event.extend_tokens))
            admissions[event.request_id] = (since, event.extend_tokens)
        elif isinstance(event, ev.Cancelled | ev.Migrated) and event.request_id in admissions:
            returned.append((event.client, admissions.pop(event.request_id)[0], now, event.uncomputed_tokens))
    most: dict[int, int] = {}
    for now in range(len(events)):
        for client in {each[0] for each in returned}:
            held = sum(
                cost for who, since, until, cost in returned if who == client and since <= now < until and cost > 0
            )
            most[client] = max(most.get(client, 0), held)
    return {client: cost for client, cost in most.items() if cost}


@given(SEEDS)
def test_what_is_given_back_is_the_most_that_was_in_flight_at_one_time(random: Random) -> None:
    """B of each client, and what it adds to both bounds, are those of the theorem, known only from hindsight; in the
    unit of the weights as they are."""

    def reweighted(now: tuple[int, ...], *_: object) -> Promise:
        return attrs.evolve(held, charging=Charging(multipliers=multipliers(now)), weights=now)

    events, weights = list(runs(random, weighs=0.3)), [1] * CLIENTS
    held = attrs.evolve(promise(Charging(), 1000, 2000), refunds_widen=True, reweighted=reweighted)
    for event in events:
        if isinstance(event, ev.ClientConfigured):
            weights[event.client] = event.weight
    for report in watched(events, held):
        most = most_given_back(events)
        assert report.given_back == most
        times = multipliers(weights)
        assert report.widening == sum(sorted(cost * times[client] for client, cost in most.items())[-2:])
        assert (report.gap_bound, report.lag_bound) == (1000 + report.widening, 2000 + report.widening)


def test_requests_that_are_cancelled_one_after_the_other_widen_no_bound_together() -> None:
    """A client keeps one request open and cancels a hundred others, of 10 tokens each: 10 and the open one's 1 were in
    flight at one time."""
    events: list[Event] = [arrived(0, 0, 0), admitted(0, 0, 0, 11)]
    for request in range(1, 101):
        events += [arrived(0, request, 0), admitted(0, request, 0, 10), ev.Cancelled(0, 0, request, 0, True, 10, 0)]
    monitor = Monitor(attrs.evolve(promise(Charging(), 1000), refunds_widen=True))
    monitor.observe_all(events)
    before = monitor.report()
    monitor.observe(ev.Cancelled(0, 0, 0, 0, True, 1, 0))
    report = monitor.report()
    assert (before.given_back, before.widening) == ({0: 10}, 10)
    assert (report.given_back, report.widening) == ({0: 11}, 11)
