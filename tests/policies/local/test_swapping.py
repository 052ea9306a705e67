"""Who runs goes to host memory ahead of need and comes back: when, who, that it ends, and what it costs in time."""

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.simulation import Simulator, simulate_events
from fairsched.engines.workloads.fleet import Change, Crash, Drain, KvLink, Restart, WorkerSpec, host_link
from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch, Migration, StepPlan
from fairsched.model.events import Admitted, Arrived, Event, Finished, Preempted, SwappedIn, SwappedOut, Transferred
from fairsched.model.machine import PRESETS, DecodePiece, LatencyModel
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.model.worker import transitions
from fairsched.policies.batching import BATCHINGS, Reserve
from fairsched.policies.gates import AnyGate, CounterGate, DeficitGate, OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import SkipJoin
from fairsched.policies.routers import RoundRobin
from fairsched.policies.routers.load_based import TurnState
from fairsched.verify.conformance.event_invariants import EventLedger
from fairsched.verify.conformance.strategies import workloads
from tests.support.logs import recorded
from tests.support.policy_play import Play

LEVELS = SkipJoin(quantum_us=2, step_us=2, promote_ms=1, prefill_token_ns=1_000, prefill_constant_us=0)
"""A prompt token takes 1, a step 2, and level 0 lasts for 2."""
LATENCY = LatencyModel("test", "made for tests", 30, 7, 1_500, (DecodePiece(1, 50, 1, 2),), 40)
RESERVES: tuple[Reserve, ...] = ("static", "optimistic")
GATES: tuple[AnyGate, ...] = (OpenGate(), DeficitGate(quantum=5), CounterGate())


def played(capacity: int, host: int, reserve: Reserve = "optimistic", order: SkipJoin = LEVELS, seats: int = 4) -> Play:
    """A worker with host memory under the order."""
    rule = BATCHINGS["chunked"](max_batched_tokens=50, max_running=seats, reserve=reserve)
    return Play(ComposedPolicy("swaps", order, OpenGate(), rule), capacity, host)


@pytest.mark.parametrize("reserve", RESERVES)
def test_who_stands_behind_makes_room(reserve: Reserve) -> None:
    """The long one goes out while the short one waits, which enters a step later; it comes back without computing."""
    play = played(32, 100, reserve)
    long = play.arrive(prompt=24, output=8)
    play.step(3)
    short = play.arrive(prompt=6, output=2)
    plan = play.step()
    assert (plan.swap_out, plan.preempt, plan.admit) == ((long,), (), ())
    assert [admission.request_id for admission in play.step().admit] == [short]
    play.step(30)
    assert play.finished() == [short, long]
    assert not any(isinstance(event, Admitted) and event.extend_tokens > 24 for event in play.events)
    back = [event for event in play.events if isinstance(event, Admitted)][-1]
    assert (back.request_id, back.extend_tokens) == (long, 1)


def test_the_share_is_kept_for_new_requests() -> None:
    """Of 50 tokens 10 are kept free: those behind go out for them, and who is new may have them at once."""
    play = played(50, 100, order=attrs.evolve(LEVELS, swap_free_percent=20))
    low = [play.arrive(prompt=16, output=9) for _ in range(2)]
    play.step(4)
    first = play.arrive(prompt=2, output=3)
    play.arrive(prompt=12, output=3)
    plan = play.step()
    assert [admission.request_id for admission in plan.admit] == [first]
    assert set(plan.swap_out) <= set(low)
    assert plan.swap_out


@pytest.mark.parametrize(("percent", "beside"), [(0, 1), (25, 0)])
def test_who_comes_back_leaves_the_share_free(percent: int, beside: int) -> None:
    """Of 40 tokens some 30 are free beside the last short one: enough for the long one, but not with 10 kept free."""
    play = played(40, 100, order=attrs.evolve(LEVELS, swap_free_percent=percent))
    long = play.arrive(prompt=20, output=8)
    play.step(3)
    play.arrive(prompt=10, output=2)
    play.arrive(prompt=6, output=8)
    while not any(isinstance(event, SwappedIn) for event in play.events):
        running = len(play.worker.in_flight)
        play.step()
    assert running == beside
    assert long in play.worker.in_flight


def test_who_comes_back_takes_a_place_in_the_batch() -> None:
    """Both that were swapped out come back into a batch of two, and a third one that fits beside them waits."""
    play = played(100, 200, seats=2)
    both = [play.arrive(prompt=4, output=9) for _ in range(2)]
    play.step(2)
    plan = StepPlan(swap_out=tuple(both))
    play.worker, events = transitions.begin(play.worker, plan, play.now_ns)
    play.tell(events)
    play.worker, events = transitions.finish(play.worker, plan, 1, play.now_ns)
    play.tell(events)
    play.arrive(prompt=40, output=2)
    assert sorted(play.step().swap_in) == both
    assert sorted(play.worker.in_flight) == both


def test_output_that_might_not_fit_is_swapped_for() -> None:
    """Nobody waits, and outputs grow: who stands last goes out before memory is short, and nobody computes again."""
    play = played(34, 100)
    for _ in range(2):
        play.arrive(prompt=8, output=16)
    play.step(80)
    assert len(play.finished()) == 2
    assert sum(isinstance(event, SwappedOut) for event in play.events) == sum(
        isinstance(event, Preempted) for event in play.events
    )
    assert any(isinstance(event, SwappedOut) for event in play.events)


@pytest.mark.parametrize("step_tokens", [1, 12])
def test_no_more_moves_in_a_step_than_is_said(step_tokens: int) -> None:
    """Three must go out for one that waits; the link takes one a step."""
    moves = attrs.evolve(LEVELS, swap_step_tokens=step_tokens)
    play = played(34, 100, order=moves)
    for _ in range(3):
        play.arrive(prompt=8, output=9)
    play.step(2)
    play.arrive(prompt=26, output=1)
    play.arrive(prompt=1, output=1)
    outs = [len(play.step().swap_out) for _ in range(12)]
    assert max(outs) == 1


@pytest.mark.parametrize(("capacity", "out"), [(17, 1), (18, 0)])
def test_the_next_output_is_also_of_who_enters(capacity: int, out: int) -> None:
    """Two run and a third enters: the step after takes three tokens, and where two are free one goes out for that."""
    play = played(capacity, 100, order=attrs.evolve(LEVELS, swap_free_percent=0))
    for _ in range(2):
        play.arrive(prompt=4, output=9)
    play.step()
    play.arrive(prompt=2, output=9)
    plan = play.decide()
    assert (len(plan.admit), len(plan.swap_out)) == (1, out)


def test_a_full_host_means_computing_again() -> None:
    """Whoever does not fit there is displaced as on a worker without host memory."""
    play = played(32, 10)
    long = play.arrive(prompt=24, output=8)
    play.step(3)
    short = play.arrive(prompt=6, output=2)
    plan = play.step()
    assert (plan.swap_out, plan.preempt) == ((), (long,))
    assert [admission.request_id for admission in plan.admit] == [short]


def test_why_it_waits() -> None:
    """Of one that was swapped out the policy says so; of who was not, what it always says."""
    play = played(32, 100)
    long = play.arrive(prompt=24, output=8)
    play.step(3)
    short = play.arrive(prompt=6, output=4)
    play.step(2)
    view = play.worker.view(play.now_ns)
    assert view.host.kv.get(long)
    assert play.policy.wait_reason(play.state, view, long) == "swapped"
    other = play.arrive(prompt=20, output=4)
    assert play.policy.wait_reason(play.state, view, other) != "swapped"
    assert short in view.in_flight


def run(
    workload: Workload, host: int, gate: AnyGate, reserve: Reserve = "optimistic", leap: bool = True, **options: Any
) -> tuple[str, list[Event]]:
    """The hash of a run's log, and its events."""
    spec = WorkerSpec(LATENCY, 24, host, KvLink(1_000, 10_000_000_000))
    policy = ComposedPolicy("swaps", LEVELS, gate, BATCHINGS["chunked"](max_running=3, reserve=reserve))
    workers = (spec,) * options.pop("workers", 1)
    made = partial(Simulator, workload, policy, RoundRobin(), LATENCY, workers=workers, leap=leap, **options)
    _, events, sha256 = recorded(made)
    return sha256, events


def ended(workload: Workload, events: list[Event]) -> EventLedger:
    """The ledger of the events, in which every request of the workload ended once, with all its tokens."""
    ledger = EventLedger()
    for event in events:
        ledger.record(event)
    ledger.check_over(job.request.id for job in workload.jobs)
    return ledger


CHANGES: tuple[Callable[[int], Change], ...] = (
    lambda at: Crash(0, at, 500),
    lambda at: Restart(0, at, 300),
    lambda at: Drain(0, at),
)


@given(
    data=st.data(),
    gate=st.sampled_from(GATES),
    change=st.none() | st.sampled_from(CHANGES),
    host=st.sampled_from([10, 40, 200]),
    reserve=st.sampled_from(RESERVES),
)
def test_nobody_is_lost_with_a_worker_and_leaps_are_steps(
    data: st.DataObject, gate: AnyGate, change: Callable[[int], Change] | None, host: int, reserve: Reserve
) -> None:
    """It dies, restarts or drains while KV is on its host or on the way, or does not: every request ends once, with all
    its tokens, leapt or not, and a host that goes on is empty in the end."""
    workload = data.draw(workloads(10))
    changes = () if change is None else (change(data.draw(st.integers(0, 5_000))),)
    leapt, events = run(workload, host, gate, reserve, changes=changes, workers=2)
    assert run(workload, host, gate, reserve, leap=False, changes=changes, workers=2)[0] == leapt
    kept = ended(workload, events).kept
    assert changes or not kept


def crowd() -> Workload:
    """A long request, and short ones that come while it decodes."""
    jobs = [Job(Request(0, 0, 0, Prompt(20), 15), 15)]
    jobs += [Job(Request(i, 0, 400 * i, Prompt(12), 3), 3) for i in range(1, 5)]
    return Workload("crowd", tuple(jobs), (Client(0, "one"),))


def crowded(link: KvLink, router: RoundRobin | None = None, workers: int = 1) -> list[Event]:
    """The events of that crowd on workers with host memory behind this link."""
    policy = ComposedPolicy("swaps", LEVELS, OpenGate(), BATCHINGS["chunked"](max_running=3, reserve="optimistic"))
    specs = (WorkerSpec(LATENCY, 40, 100, link),) * workers
    return simulate_events(crowd(), policy, router or RoundRobin(), LATENCY, workers=specs)


def test_a_transfer_takes_the_links_time() -> None:
    """A step is not over before its transfers are, and what they take beside a longer step costs nothing."""
    slow = KvLink(1_000_000, 1_000_000_000)  # a millisecond a token, where a step takes some dozen nanoseconds
    fast = KvLink(1, 1_000_000_000)
    ends = {}
    for link in (slow, fast):
        events = crowded(link)
        begun: dict[int, int] = {}
        for event in events:
            if isinstance(event, SwappedOut | SwappedIn):
                begun[event.worker] = event.time_ns
            elif isinstance(event, Transferred):
                moved = event.out_tokens + event.in_tokens
                assert event.time_ns - begun[event.worker] >= link.transfer_ns(moved)
        ends[link] = max(event.time_ns for event in events if isinstance(event, Finished))
        assert any(isinstance(event, SwappedIn) for event in events)
    assert ends[slow] > ends[fast]


@attrs.frozen
class SendsAway(RoundRobin):
    """All requests come to the first worker; the long one is moved once it has been swapped out."""

    at_ns: int = 1_300

    def route(self, state: Any, request: Request, view: ClusterView) -> tuple[Dispatch, Any]:
        return Dispatch(request.id, 0), state

    def decide(self, state: Any, view: ClusterView) -> tuple[ClusterPlan, Any]:
        if view.now_ns < self.at_ns or state.placed:
            return ClusterPlan(), state
        return ClusterPlan((), (Migration(0, 0, 1, with_kv=True),)), TurnState(1)


@pytest.mark.parametrize(("at_ns", "kv_tokens"), [(1_300, 21), (1_150, 0)])
def test_who_is_moved_takes_its_kv_from_the_host_along(at_ns: int, kv_tokens: int) -> None:
    """Once it is there whole: then it computes one token at its new worker; else nothing comes, and it computes all."""
    events = crowded(KvLink(2, 1_000_000_000), SendsAway(at_ns=at_ns), 2)
    came = [event for event in events if isinstance(event, Arrived) and event.worker == 1]
    assert [(event.request.id, event.generated_tokens, event.kv_tokens) for event in came] == [(0, 2, kv_tokens)]
    entered = [event for event in events if isinstance(event, Admitted) and event.worker == 1]
    assert [event.extend_tokens for event in entered] == [22 - kv_tokens]
    assert not ended(crowd(), events).kept


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_says_what_a_token_of_kv_takes(name: str) -> None:
    """The default link is PCIe's, at the preset's own bytes a token."""
    link, known = host_link(PRESETS[name]), PRESETS[name].deployment
    assert known is not None
    assert link.bytes_per_token * (PRESETS[name].gpus or 1) == known.kv_token_bytes
    assert link.transfer_ns(1_000) == -(-1_000 * link.bytes_per_token // 25)
