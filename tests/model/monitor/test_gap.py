"""The gaps that grow with a run against those computed from the whole of it."""

from itertools import permutations

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.events import Admitted, Cancelled, ClientConfigured, Event, Migrated, Settled
from fairsched.model.monitor import ClusterMonitor, Monitor, MonitorReport, Promise
from fairsched.model.monitor.gap import Lags, PairGaps
from fairsched.model.service import Charging, backlogs, charges, concatenate, tables
from fairsched.model.service.received import service_lag
from tests.model.test_service import CHARGINGS, CLIENTS, admitted, arrived, decoded, gap_of, runs


def promise(charging: Charging, gap_bound: int | None = None, lag_bound: int | None = None) -> Promise:
    """A promise about bounds alone."""
    return Promise(charging, (1,) * CLIENTS, (), gap_bound=gap_bound, lag_bound=lag_bound)


def watched(events: list[Event], held: Promise) -> tuple[MonitorReport, ...]:
    """Each worker's report on a run."""
    monitor = ClusterMonitor(lambda worker: Monitor(held, worker=worker))
    monitor.observe_all(events)
    return monitor.reports()


@given(runs(), CHARGINGS)
def test_gap_equals_the_one_computed_from_the_whole_run(events: list[Event], charging: Charging) -> None:
    """On any run, with preemptions, cancellations, refunds and corrections, the largest gap of any worker is that of
    `service_gap`."""
    reports = watched(events, promise(charging))
    assert max((report.gap.cost for report in reports if report.gap), default=0) == gap_of(events, charging).cost


@given(runs(), CHARGINGS)
def test_lag_equals_the_one_computed_from_the_whole_run(events: list[Event], charging: Charging) -> None:
    """The largest lag on each worker is the largest that `service_lag` finds for any two clients."""
    trace = concatenate([tables(events)])
    charged, waited = charges(trace, charging), backlogs(trace)
    for report in watched(events, promise(charging)):
        rows = [service_lag(charged, waited, report.worker, *two) for two in permutations(range(CLIENTS), 2)]
        assert report.lag is not None
        assert report.lag.cost == max(int(lags[:, 1].max(initial=0)) for lags in rows)


@given(runs(), st.integers(0, 40))
def test_bound_is_first_exceeded_when_the_gap_first_is_larger(events: list[Event], bound: int) -> None:
    """The first breach of a bound is told at the event from which on the gap of the run so far exceeds it."""
    charging = Charging()
    events = [event for event in events if event.worker == 0]
    [report] = watched(events, promise(charging, gap_bound=bound)) or [None]
    gaps = [gap_of(events[: count + 1], charging).cost for count in range(len(events))]
    over = [position for position, gap in enumerate(gaps) if gap > bound]
    if not over:
        assert report is None or (report.gap_violations, report.first_gap) == (0, None)
        return
    assert report is not None
    assert report.first_gap is not None
    assert (report.first_gap.position, report.first_gap.cost) == (over[0], gaps[over[0]])
    assert report.first_gap.time_ns == events[over[0]].time_ns


def test_who_is_ahead() -> None:
    """A breach names who received more, who waited, and by how much."""
    events: list[Event] = [arrived(0, i, i % 2) for i in range(4)]
    events += [admitted(1, 0, 0, 5), decoded(2, {0: 7}), decoded(3, {0: 1})]
    [report] = watched(events, promise(Charging(), gap_bound=18, lag_bound=20))
    assert report.first_gap is not None
    assert (report.first_gap.ahead, report.first_gap.behind, report.first_gap.cost) == (0, 1, 19)
    assert report.first_lag is not None
    assert (report.first_lag.ahead, report.first_lag.behind, report.first_lag.cost) == (0, 1, 21)
    assert report.bound_violations == report.gap_violations + report.lag_violations == 3


def test_new_weight_begins_a_new_interval() -> None:
    """With a client's weight the unit of service changes, so that no gap spans the change."""
    waits: list[Event] = [arrived(0, i, i % 2) for i in range(4)]
    before, after = decoded(1, {0: 10}), decoded(3, {0: 10})
    change = ClientConfigured(2, 0, 1, 2)
    held = promise(Charging(), gap_bound=30)
    same = ClientConfigured(2, 0, 1, 1)
    # Client 0 pays twice as much as client 1 after the change; which bound holds then, this promise does not say.
    for between, bound, violations in (((), 30, 1), ((change,), None, 0), ((same,), 30, 1)):
        [report] = watched([*waits, before, *between, after], held)
        assert report.gap is not None
        assert (report.gap.cost, report.gap_bound, report.gap_violations) == (40, bound, violations)


@pytest.mark.parametrize("kind", [PairGaps, Lags])
def test_more_clients_than_are_compared_are_counted(kind: type[PairGaps] | type[Lags]) -> None:
    """Beyond the limit clients are left out and counted, the others are compared exactly."""
    gaps = kind(3)
    for client in range(5):
        gaps.join(client)
    gaps.charge((0, 4), (3, 100), 1)
    assert (gaps.largest.cost, gaps.left_out >= 2) == (3, True)


@given(st.lists(st.tuples(st.integers(0, 39), st.booleans(), st.integers(1, 9)), max_size=300))
def test_many_clients(moves: list[tuple[int, bool, int]]) -> None:
    """The matrices grow and shrink with the clients, and every pair that waits is compared since both wait."""
    gaps, waiting = PairGaps(), dict[int, int]()
    history: list[tuple[dict[int, int], dict[int, int]]] = []
    service = dict.fromkeys(range(40), 0)
    largest = 0
    for client, moves_queue, amount in moves:
        if moves_queue and client in waiting:
            gaps.leave(client)
            del waiting[client]
        elif moves_queue:
            gaps.join(client)
            waiting[client] = len(history)
        else:
            gaps.charge((client,), (amount,), 0)
            history.append((dict(service), dict(waiting)))
            service[client] += amount
            for other in waiting.keys() - {client} if client in waiting else ():
                start = max(waiting[client], waiting[other])
                leads = [row[client] - row[other] for row, _ in history[start:]] + [service[client] - service[other]]
                largest = max(largest, int(np.ptp(leads)))
    assert gaps.largest.cost == largest


def most_given_back(events: list[Event]) -> dict[int, int]:
    """By client, the most that is given back, at any time to come, of what is in flight at one time; from hindsight."""
    admissions: dict[int, tuple[int, int]] = {}
    returned: list[tuple[int, int, int, int]] = []
    for now, event in enumerate(events):
        if isinstance(event, Admitted):
            admissions[event.request_id] = (now, event.extend_tokens)
        elif isinstance(event, Settled) and event.request_id in admissions:
            since, planned = admissions[event.request_id]
            returned.append((event.client, since, now, planned - event.extend_tokens))
            admissions[event.request_id] = (since, event.extend_tokens)
        elif isinstance(event, Cancelled | Migrated) and event.was_running:
            returned.append((event.client, admissions[event.request_id][0], now, event.uncomputed_tokens))
    most: dict[int, int] = {}
    for now in range(len(events)):
        for client in {each[0] for each in returned}:
            held = sum(
                cost for who, since, until, cost in returned if who == client and since <= now < until and cost > 0
            )
            most[client] = max(most.get(client, 0), held)
    return {client: cost for client, cost in most.items() if cost}


@given(runs())
def test_what_is_given_back_is_the_most_that_was_in_flight_at_one_time(events: list[Event]) -> None:
    """B of each client, and what it adds to both bounds, are those of the theorem, known only from hindsight."""
    held = attrs.evolve(promise(Charging(), 1000, 2000), refunds_widen=True)
    events = [event for event in events if event.worker == 0]
    for report in watched(events, held):
        most = most_given_back(events)
        assert {client: cost for client, cost in report.given_back.items() if cost} == most
        assert report.widening == sum(sorted(most.values())[-2:])
        assert (report.gap_bound, report.lag_bound) == (1000 + report.widening, 2000 + report.widening)


def test_requests_that_are_cancelled_one_after_the_other_widen_no_bound_together() -> None:
    """A client keeps one request open and cancels a hundred others, of 10 tokens each: 10 and the open one's 1 were in
    flight at one time."""
    events: list[Event] = [arrived(0, 0, 0), admitted(0, 0, 0, 11)]
    for request in range(1, 101):
        events += [arrived(0, request, 0), admitted(0, request, 0, 10), Cancelled(0, 0, request, 0, True, 10, 0)]
    events.append(Cancelled(0, 0, 0, 0, True, 1, 0))
    [report] = watched(events, attrs.evolve(promise(Charging(), 1000), refunds_widen=True))
    assert (report.given_back, report.widening) == ({0: 11}, 11)


def test_what_one_client_had_before_a_change_of_units_is_forgotten() -> None:
    """A restart begins every interval anew, with no client's lead from before."""
    lags = Lags()
    lags.charge((1,), (10,), 0)
    lags.join(0)
    lags.charge((1,), (3,), 1)
    lags.restart()
    assert lags.charge((1,), (5,), 2).cost == 5
