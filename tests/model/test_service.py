"""Service, backlog and the service gap against definitions written out over every pair and every interval."""

from itertools import combinations, pairwise, permutations, product

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model import events as ev
from fairsched.model import service as sv
from fairsched.model.events import Event
from fairsched.model.pricing import Rates
from fairsched.model.request import Prompt, Request
from fairsched.model.service import Charging, service
from fairsched.model.service.received import FOREVER, service_lag

CLIENTS = 4


def arrived(time: int, request: int, client: int, worker: int = 0) -> ev.Arrived:
    """A request of `client` joins the queue."""
    return ev.Arrived(time, worker, Request(request, client, time, Prompt(8), 16))


def admitted(time: int, request: int, client: int, extend: int, cached: int = 0, worker: int = 0) -> ev.Admitted:
    """The request enters the batch."""
    return ev.Admitted(time, worker, request, client, extend, cached, 16)


def decoded(time: int, tokens: dict[int, int], worker: int = 0) -> ev.Decoded:
    """One step's output."""
    return ev.Decoded(time, worker, 1, tuple(sorted(tokens)), tuple(tokens[client] for client in sorted(tokens)))


def trace_of(events: list[Event]) -> sv.Tables:
    """The columns of a run."""
    return sv.concatenate([sv.tables(events)])


def gap_of(events: list[Event], charging: Charging = Charging()) -> sv.Gap:  # noqa: B008
    """The largest gap of a run."""
    trace = trace_of(events)
    return sv.service_gap(sv.charges(trace, charging), sv.backlogs(trace))


# --- definitions, written out ---------------------------------------------------------------------------------------


def queues(events: list[Event]) -> list[dict[tuple[int, int], set[int]]]:
    """For each event the requests of each (worker, client) that wait just before it."""
    waiting: dict[tuple[int, int], set[int]] = {}
    before = []
    for event in events:
        if isinstance(event, ev.WorkerLeft):
            waiting = {key: ids for key, ids in waiting.items() if key[0] != event.worker}
        before.append({key: set(ids) for key, ids in waiting.items() if ids})
        match event:
            case ev.Arrived(worker=worker, request=request):
                waiting.setdefault((worker, request.client), set()).add(request.id)
            case ev.Preempted(worker=worker, client=client, request_id=request_id):
                waiting.setdefault((worker, client), set()).add(request_id)
            case ev.Admitted() | ev.Cancelled() | ev.Migrated() | ev.Rejected():
                waiting.get((event.worker, event.client), set()).discard(event.request_id)
    return before


def ledger(events: list[Event], charging: Charging) -> list[dict[tuple[int, int], int]]:
    """For each event what it charges each (worker, client)."""
    extend: dict[int, int] = {}
    rows = []
    for event in events:
        row: dict[tuple[int, int], int] = {}
        rates = charging.rates
        match event:
            case ev.Admitted():
                extend[event.request_id] = event.extend_tokens
                cached = event.cached_prefix_tokens if charging.input == "prompt" else 0
                row[event.worker, event.client] = rates.input * (event.extend_tokens + cached)
            case ev.Settled():
                change = event.extend_tokens - extend[event.request_id]
                extend[event.request_id] = event.extend_tokens
                row[event.worker, event.client] = rates.input * change if charging.input == "extend" else 0
            case ev.Cancelled() | ev.Migrated():
                row[event.worker, event.client] = -rates.input * event.uncomputed_tokens
            case ev.Decoded() | ev.Held():
                for client, tokens in zip(event.clients, event.tokens, strict=True):
                    row[event.worker, client] = rates.output * tokens
        multipliers = charging.multipliers or (1,) * CLIENTS
        rows.append({key: cost * multipliers[key[1]] for key, cost in row.items()})
    return rows


def largest_gap(events: list[Event], charging: Charging) -> int:
    """Over every worker, every two clients and every interval of events in which both wait throughout."""
    before, charged = queues(events), ledger(events, charging)
    largest = 0
    for worker in (0, 1):
        for f, g in combinations(range(CLIENTS), 2):
            for start in range(len(events)):
                lead = 0
                for p in range(start, len(events)):
                    if (worker, f) not in before[p] or (worker, g) not in before[p]:
                        break
                    lead += charged[p].get((worker, f), 0) - charged[p].get((worker, g), 0)
                    largest = max(largest, abs(lead))
    return largest


@st.composite
def runs(draw: st.DrawFn) -> list[Event]:
    """A run of up to 60 events in which each of some requests waits, runs, and is preempted or leaves in any order."""
    events: list[Event] = []
    time = 0
    where: dict[int, str] = {}
    owner: dict[int, tuple[int, int]] = {}
    for _ in range(draw(st.integers(0, 60))):
        time += draw(st.integers(0, 3))
        kind = draw(st.sampled_from(["arrive", "arrive", "admit", "admit", "decode", "decode", "other", "other"]))
        if kind == "arrive":
            request = len(where)
            worker, client = draw(st.integers(0, 1)), draw(st.integers(0, CLIENTS - 1))
            owner[request] = (worker, client)
            if draw(st.integers(0, 9)) == 0:
                where[request] = "gone"
                events.append(ev.Rejected(time, worker, request, client, "too large"))
            else:
                where[request] = "waits"
                events.append(arrived(time, request, client, worker))
        elif kind == "decode":
            worker = draw(st.integers(0, 1))
            tokens = draw(st.dictionaries(st.integers(0, CLIENTS - 1), st.integers(1, 9), min_size=1))
            event = decoded(time, tokens, worker)
            match draw(st.integers(0, 7)):
                case 0:
                    events.append(ev.Held(time, worker, event.clients, event.tokens))
                case 1:
                    events.append(ev.WorkerLeft(time, worker))
                    where |= {request: "gone" for request, (at, _) in owner.items() if at == worker}
                case _:
                    events.append(event)
        else:
            state = "waits" if kind == "admit" else draw(st.sampled_from(["waits", "runs"]))
            chosen = [request for request, now in where.items() if now == state]
            if chosen:
                request = draw(st.sampled_from(chosen))
                events += _move(draw, time, request, *owner[request], state, kind, where)
    return events


def _move(
    draw: st.DrawFn, time: int, request: int, worker: int, client: int, state: str, kind: str, where: dict[int, str]
) -> list[Event]:
    if kind == "admit":
        where[request] = "runs"
        extend, cached = draw(st.integers(1, 9)), draw(st.integers(0, 9))
        events: list[Event] = [admitted(time, request, client, extend, cached, worker)]
        if draw(st.booleans()):
            events.append(ev.Settled(time, worker, request, client, draw(st.integers(1, 9))))
        return events
    leaves = draw(st.sampled_from([ev.Cancelled, ev.Migrated]))
    if state == "waits":
        where[request] = "gone"
        return [leaves(time, worker, request, client, False, 0, 0)]
    if draw(st.booleans()):
        where[request] = "waits"
        return [ev.Preempted(time, worker, request, client, 1, 0)]
    where[request] = "gone"
    uncomputed = draw(st.integers(0, 4))
    return [leaves(time, worker, request, client, True, uncomputed, 0)]


CHARGINGS = st.builds(
    Charging,
    rates=st.builds(Rates, st.integers(1, 4), st.integers(1, 4)),
    input=st.sampled_from(["extend", "prompt"]),
    multipliers=st.sampled_from([(), (1, 2, 3, 6), (5, 1, 1, 1)]),
)


# --- properties -----------------------------------------------------------------------------------------------------


@given(runs(), CHARGINGS, st.sampled_from([1, 3, 64]))
def test_gap_is_the_largest_over_all_pairs_and_intervals(events: list[Event], charging: Charging, block: int) -> None:
    """The gap computed from columns equals the one found by trying every pair of clients and every interval."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairsched.model.service.received._BLOCK", block)
        assert gap_of(events, charging).cost == largest_gap(events, charging)


@given(runs(), CHARGINGS)
def test_witness_of_the_gap_shows_it(events: list[Event], charging: Charging) -> None:
    """In the interval that the gap names both wait, and the one received so much more; the progress ends there."""
    events = [msgspec.structs.replace(event, time_ns=p) for p, event in enumerate(events)]
    gap = gap_of(events, charging)
    if gap.worker is None or gap.ahead is None or gap.behind is None:
        assert gap == sv.Gap()
        return
    named = range(gap.start_ns, gap.stop_ns + 1)
    ahead, behind = (gap.worker, gap.ahead), (gap.worker, gap.behind)
    before, charged = queues(events), ledger(events, charging)
    together = [p for p in range(len(events)) if ahead in before[p] and behind in before[p]]
    assert set(named) <= set(together)
    assert sum(charged[p].get(ahead, 0) - charged[p].get(behind, 0) for p in named) == gap.cost
    assert gap.progress[-1].tolist() == [gap.stop_ns, gap.cost]
    assert (np.diff(gap.progress, axis=0) > 0).all()
    # The first moment of an interval is its opening event, one position earlier; one that stays open ends early.
    assert gap.together_ns <= len(together)


@given(runs(), CHARGINGS)
def test_lag_is_the_largest_over_all_intervals_of_one_clients_waiting(events: list[Event], charging: Charging) -> None:
    """What another gained on a client is looked for in every interval in which that client waits, and only there."""
    trace = trace_of(events)
    charged, waited = sv.charges(trace, charging), sv.backlogs(trace)
    before, rows = queues(events), ledger(events, charging)
    for worker, (ahead, behind) in product((0, 1), permutations(range(CLIENTS), 2)):
        largest = 0
        for start in range(len(events)):
            lead = 0
            for p in range(start, len(events)):
                if (worker, behind) not in before[p]:
                    break
                lead += rows[p].get((worker, ahead), 0) - rows[p].get((worker, behind), 0)
                largest = max(largest, lead)
        lag = service_lag(charged, waited, worker, ahead, behind)
        assert (lag[-1, 1] if len(lag) else 0) == largest
        assert (np.diff(lag[:, 1]) > 0).all()


@given(runs(), CHARGINGS, st.integers(0, 40), st.integers(0, 40))
def test_service_is_additive_over_adjacent_intervals(
    events: list[Event], charging: Charging, t: int, length: int
) -> None:
    """W[0, t) + W[t, u) + W[u, ...) is the service of the run, and that is what the events charge."""
    charged = sv.charges(trace_of(events), charging)
    u = t + length
    parts = service(charged, CLIENTS, 0, t) + service(charged, CLIENTS, t, u) + service(charged, CLIENTS, u)
    written_out = [
        sum(cost for row in ledger(events, charging) for (_, who), cost in row.items() if who == client)
        for client in range(CLIENTS)
    ]
    assert parts.tolist() == service(charged, CLIENTS).tolist() == written_out


@given(runs())
def test_backlogs_are_the_maximal_intervals_of_waiting(events: list[Event]) -> None:
    """A position lies in a client's interval exactly if one of its requests waits there; intervals do not touch, and
    those of two clients of a worker overlap if both ever wait at one position."""
    waited = sv.backlogs(trace_of(events))
    before = queues(events)
    rows = list(zip(*(waited[name].tolist() for name in ("worker", "client", "start", "stop")), strict=True))
    for p, waiting in enumerate(before):
        assert sorted(waiting) == sorted((w, c) for w, c, start, stop in rows if start <= p < stop)
    for (w1, c1, _, stop), (w2, c2, start, _) in pairwise(rows):
        assert (w1, c1) < (w2, c2) or stop < start
    after = queues([*events, ev.WorkerDraining(99, 0)])
    assert sv.overlap(waited) == any(one[0] == two[0] for waiting in after for one, two in combinations(waiting, 2))


@given(runs())
def test_hits_of_a_prompt_are_those_of_its_first_admission(events: list[Event]) -> None:
    """What a request found in the prefix cache when it was first let in, as that was settled before it was let in
    again."""
    hits: dict[int, tuple[int, int, int, int, int]] = {}
    again = set[int]()
    for event in events:
        match event:
            case ev.Admitted(request_id=number) if number in hits:
                again.add(number)
            case ev.Admitted(request_id=number, extend_tokens=extend, cached_prefix_tokens=cached):
                hits[number] = (number, event.worker, event.client, extend + cached, cached)
            case ev.Settled(request_id=number, extend_tokens=extend) if number not in again:
                hits[number] = (*hits[number][:4], hits[number][3] - extend)
    found = sv.prompt_hits(trace_of(events))
    columns = [found[name].tolist() for name in ("request_id", "worker", "client", "context", "cached")]
    assert list(zip(*columns, strict=True)) == [hits[number] for number in sorted(hits)]


@given(runs(), st.lists(st.integers(0, 60), max_size=4))
def test_pieces_of_a_run_give_the_same_columns(events: list[Event], cuts: list[int]) -> None:
    """Recording a run in pieces loses nothing and keeps the order; what has no table only takes a place."""
    events = [ev.HostLost(0, 0), *events]
    edges = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]
    pieces = [sv.tables(events[a:b], a) for a, b in pairwise(edges)]
    whole, joined = trace_of(events), sv.concatenate(pieces)
    assert whole.keys() == joined.keys()
    for kind, columns in whole.items():
        assert {name: values.tolist() for name, values in columns.items()} == {
            name: values.tolist() for name, values in joined[kind].items()
        }


@given(st.integers(-1, 2), st.integers(-1, 2), st.integers(-1, 5), st.integers(0, 20))
def test_a_service_curve_serves_a_cost_in_the_time_that_it_says(delay: int, ns: int, cost: int, wanted: int) -> None:
    """Whole nanoseconds, rounded down once; a curve without service, or with a time below zero, is none."""
    if delay < 0 or ns < 0 or cost < 1:
        with pytest.raises(ValueError, match="a service curve"):
            sv.ServiceCurve(delay, ns, cost)
        return
    span = sv.ServiceCurve(delay, ns, cost).time_ns(wanted) - delay
    assert span * cost <= wanted * ns < (span + 1) * cost


# --- examples -------------------------------------------------------------------------------------------------------


def test_waits_that_touch_at_different_workers_are_not_together() -> None:
    """With all workers as one, a client's wait may end with its worker where another's begins: no gap lies between."""
    events: list[Event] = [arrived(0, 0, 1), arrived(1, 1, 0, 1), decoded(2, {1: 3}), admitted(3, 1, 0, 1, worker=1)]
    events += [decoded(4, {0: 9}, 1), arrived(5, 2, 0, 1), ev.WorkerLeft(6, 0), decoded(7, {0: 9}, 1)]
    trace = trace_of(events)
    assert sv.service_gap(*sv.anywhere(sv.charges(trace, Charging()), sv.backlogs(trace))).cost == 6


def test_a_request_that_joins_just_before_its_worker_leaves_never_waits() -> None:
    """No event lies between the two; of an empty interval the gap would see a stop and no start."""
    trace = trace_of([arrived(0, 0, 0), arrived(1, 1, 1), ev.WorkerLeft(2, 0)])
    assert sv.backlogs(trace)["client"].tolist() == [0]


def test_only_the_asked_clients_are_compared() -> None:
    """With more than the limit of clients the gap is over the busiest, by service, ties to the smaller id."""
    events: list[Event] = [arrived(0, client, client) for client in range(3)]
    events += [decoded(1, {0: 1, 2: 9}), decoded(2, {1: 1})]
    trace = trace_of(events)
    charged, waited = sv.charges(trace, Charging()), sv.backlogs(trace)
    chosen = sv.busiest(charged, 3, limit=2)
    assert chosen is not None
    assert chosen.tolist() == [0, 2]
    assert sv.busiest(charged, 3, limit=3) is None
    assert sv.service_gap(charged, waited, chosen).cost == 16
    assert sv.service_gap(charged, waited).cost == 18


def test_an_empty_run_has_no_gap() -> None:
    """Without events there is nothing to compare, and a client alone has nobody to be compared with."""
    assert gap_of([]) == sv.Gap()
    assert gap_of([arrived(0, 0, 0), ev.Finished(1, 0, 0, 0, 1)]) == sv.Gap()
    assert sv.backlogs(trace_of([arrived(0, 0, 0)]))["stop"].tolist() == [FOREVER]
