"""Phases of requests and times between tokens, against a reckoning event by event."""

from collections import Counter, defaultdict
from functools import partial
from itertools import pairwise
from typing import Any

from hypothesis import given, settings

from fairsched.engines.analysis import EventTables, Outcomes
from fairsched.engines.analysis.phases import PHASES
from fairsched.engines.simulation import Simulator
from fairsched.model import events as ev
from fairsched.model.request import Workload
from tests.support.logs import RUNS, Case, recorded
from tests.support.policies.pausing import PAUSES, paused_run


def outcomes(workload: Workload, simulator: Simulator, events: list[ev.Event]) -> Outcomes:
    """What became of the requests of a run."""
    collected = EventTables()
    collected.add(events)
    return Outcomes(workload, collected.whole(), [worker.latency for worker in simulator.workers])


LEAVES = ev.Paused | ev.Arrived | ev.Preempted | ev.Migrated | ev.Finished | ev.Cancelled | ev.Rejected
"""What takes a request out of the batch."""


def request_of(event: ev.Event) -> int | None:
    """The request that an event is about, if it is about one."""
    return event.request.id if isinstance(event, ev.Arrived) else getattr(event, "request_id", None)


def phases_by_hand(events: list[ev.Event]) -> dict[int, Counter[str]]:
    """Nanoseconds of each request in each phase, one event after the other."""
    names = {
        ev.Arrived: ("prefill_queue", "decode_queue"),
        ev.Preempted: ("prefill_queue", "decode_queue"),
        ev.Admitted: ("prefill", "decode"),
        ev.Prefilled: ("prefill", "decode"),
        ev.Migrated: ("transfer_wait", "transfer_wait"),
        ev.TransferFailed: ("transfer_wait", "transfer_wait"),
        ev.TransferStarted: ("transfer", "transfer"),
    }
    times: dict[int, Counter[str]] = defaultdict(Counter)
    since: dict[int, tuple[int, tuple[str, str] | None]] = {}
    begun: set[int] = set()
    for event in events:
        request_id = request_of(event)
        ends = isinstance(event, ev.Finished | ev.Cancelled | ev.Rejected)
        if request_id is None or (type(event) not in names and not ends):
            continue
        before, phase = since.get(request_id, (event.time_ns, None))
        if isinstance(event, ev.TransferFailed) and phase != names[ev.TransferStarted]:
            continue  # it was called off before it began
        if phase is not None:
            times[request_id][phase[request_id in begun]] += event.time_ns - before
        since[request_id] = event.time_ns, names.get(type(event))
        if isinstance(event, ev.Prefilled) and not event.remaining_tokens:
            begun.add(request_id)
    return times


def gaps_by_hand(events: list[ev.Event]) -> tuple[Counter[tuple[int, int]], dict[int, int]]:
    """How often each (client, time between two tokens) occurred, and the first of each request; events are steps."""
    batches: dict[int, dict[int, int]] = defaultdict(dict)
    tokens: dict[int, list[int]] = defaultdict(list)
    client_of: dict[int, int] = {}
    joined: dict[int, list[int]] = defaultdict(list)
    for event in events:
        if isinstance(event, ev.Decoded):
            assert event.steps == 1
            batch, new = batches[event.worker], joined.pop(event.worker, [])
            assert sum(event.tokens) in (len(batch), len(new))
            for request_id in batch if sum(event.tokens) == len(batch) else new:
                tokens[request_id].append(event.time_ns)
            continue
        of = request_of(event)
        if isinstance(event, ev.Prefilled) and not event.remaining_tokens:
            batches[event.worker][event.request_id] = event.client
            joined[event.worker].append(event.request_id)
            client_of[event.request_id] = event.client
        elif isinstance(event, ev.Resumed):
            batches[event.worker][event.request_id] = event.client
        elif isinstance(event, LEAVES) and of is not None:
            for batch in batches.values():
                batch.pop(of, None)
    gaps = Counter(
        (client_of[request_id], after - before)
        for request_id, times in tokens.items()
        for before, after in pairwise(times)
    )
    return gaps, {request_id: times[1] - times[0] for request_id, times in tokens.items() if len(times) > 1}


def check(workload: Workload, simulator: Simulator, events: list[ev.Event], stepped: list[ev.Event]) -> None:
    """Phases and gaps are those reckoned event by event (gaps from the `stepped` events of the same run), and the
    phases of a request that finished add up to its latency."""
    found = outcomes(workload, simulator, events)
    by_hand = phases_by_hand(events)
    for i, job in enumerate(workload.jobs):
        times = by_hand.get(job.request.id, Counter())
        assert found.phases[i].tolist() == [times[name] for name in PHASES]
        if found.finished[i]:
            assert found.phases[i].sum() == found.finish[i] - found.arrival[i]
    gaps, second = gaps_by_hand(stepped)
    assert found.gaps is not None
    counted: Counter[tuple[int, int]] = Counter()
    for client, ns, weight in zip(
        found.gaps.client.tolist(), found.gaps.ns.tolist(), found.gaps.weight.tolist(), strict=True
    ):
        counted[client, ns] += weight
    assert counted == gaps
    assert dict(zip(found.gaps.second_id.tolist(), found.gaps.second_ns.tolist(), strict=True)) == second


def pauses_by_hand(events: list[ev.Event]) -> Counter[int]:
    """Nanoseconds for which each request was paused."""
    since: dict[int, int] = {}
    times: Counter[int] = Counter()
    for event in events:
        request_id = request_of(event)
        if isinstance(event, ev.Paused):
            since[event.request_id] = event.time_ns
        elif request_id in since:
            times[request_id] += event.time_ns - since.pop(request_id)
    return times


@given(RUNS, PAUSES)
@settings(max_examples=25)
def test_a_pause_is_a_part_of_one_time_between_tokens(drawn: tuple[Workload, Case], pausing: Any) -> None:
    """Whatever pauses, also twice between two tokens: the times between tokens and those of pauses are the ones
    reckoned event by event, and of each client the times between tokens cover its pauses."""
    workload, case = drawn
    runs = [recorded(partial(paused_run, workload, case, pausing, leap)) for leap in (True, False)]
    simulator, events, _ = runs[0]
    check(workload, simulator, events, runs[1][1])
    found = outcomes(workload, simulator, events)
    by_hand = pauses_by_hand(events)
    assert found.paused_ns.tolist() == [by_hand[job.request.id] for job in workload.jobs]
    assert sum(found.measures(client).pauses for client in range(found.n_clients)) == sum(
        isinstance(event, ev.Paused) for event in events
    )


@given(RUNS)
def test_phases_and_gaps_are_those_of_the_steps(drawn: tuple[Workload, Case]) -> None:
    """Whatever policy runs, also with preemptions and failures, and whether its simulator leaps or not."""
    workload, case = drawn
    simulator, events, _ = recorded(partial(case.simulator, workload))
    _, stepped, _ = recorded(partial(case.simulator, workload, leap=False))
    check(workload, simulator, events, stepped)
