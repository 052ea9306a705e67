"""Admissions at the edges: KV that came along, memory that is just enough, slots, pauses, and what a leap rests on."""

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.model import worker as transitions
from fairsched.model.decision import Admission, StepPlan
from fairsched.model.events import Preempted
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import BATCHINGS, Chunked, EagerPrefill, MemoryCentric
from fairsched.policies.catalog import DLPM, FCFS, DLPMGlobal, DLPMInBatch
from fairsched.policies.gates import DeficitGate, GlobalDeficitGate, InBatchGate, OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.local.admission import AdmissionPass
from fairsched.policies.local.pausing import with_pauses
from fairsched.policies.orders import SkipJoin
from fairsched.policies.registry import LOCAL_POLICIES
from fairsched.verify.conformance.strategies import worker_states
from tests.support.policy_play import Play

GROWING = Chunked(reserve="optimistic")


def landed(play: Play, client: int = 0, prompt: int = 8, output: int = 4, lacks: int = 0) -> int:
    """A request comes with the KV of its prompt, or all but some tokens of that, and one token generated elsewhere; its
    id."""
    request = Request(play.count, client, play.now_ns, Prompt(prompt), output)
    play.count += 1
    reserved = 0 if play.policy.batching.grows else output - 1
    play.worker = transitions.reserve(play.worker, request.id, prompt + reserved)
    play.worker, told = transitions.receive(play.worker, request, output, play.now_ns, 1, prompt - lacks)
    play.tell(told)
    return request.id


# --- KV that came along -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", ["chunked", "eager-prefill", "whole-prompts"])
def test_what_came_with_its_kv_computes_one_token_beside_the_others(batching: str) -> None:
    """Under every rule its first step is a decode: it stops no other, and takes one token of the budget."""
    play = Play(FCFS(batching=BATCHINGS[batching](reserve="optimistic")))
    play.arrive(output=9)
    play.step(2)
    request_id = landed(play)
    plan = play.decide()
    assert plan.admit == (Admission(request_id, 0, 1, 0, 0),)
    assert (plan.chunks, plan.decode) == (((request_id, 1),), True)


def test_what_came_without_some_of_its_kv_computes_that() -> None:
    """It computes the three tokens that lack and the one that was generated, as a prefill of the budget left."""
    play = Play(FCFS(batching=Chunked(max_batched_tokens=3, reserve="optimistic")))
    request_id = landed(play, lacks=3)
    plan = play.decide()
    assert (plan.admit, plan.chunks) == ((Admission(request_id, 0, 4, 0, 0),), ((request_id, 3),))


@pytest.mark.parametrize(("prompt", "admitted"), [(9, [0, 1]), (10, [0])])
@pytest.mark.parametrize("reserve", ["optimistic", "predicted"])
def test_what_it_holds_it_need_not_be_given(reserve: Any, prompt: int, admitted: list[int]) -> None:
    """It holds 8 of 20 tokens and takes 2 more, one to compute and one for its output, so that 10 are left."""
    play = Play(FCFS(batching=Chunked(reserve=reserve)), 20)
    landed(play, output=2)
    play.arrive(prompt=prompt, output=1)
    assert play.admitted() == admitted


def test_one_that_runs_alone_may_have_what_is_withheld_beside_kv_that_came() -> None:
    """It was let in with that, so it is not taken out for it in the next step, to be let in again for ever."""
    play = Play(FCFS(batching=MemoryCentric(max_batched_tokens=7, kv_threshold_percent=80, reserve="optimistic")), 22)
    first = play.arrive(prompt=13, output=3)
    second = landed(play, prompt=6)
    assert play.admitted() == [first]
    play.step(12)
    assert not [event for event in play.events if isinstance(event, Preempted)]
    assert play.finished() == [first, second]


@pytest.mark.parametrize("beside", [False, True])
def test_a_request_alone_is_let_in_whatever_is_predicted(beside: bool) -> None:
    """It does not fit beside KV that came, by its prediction; alone it may try, and beside another it may not."""
    play = Play(FCFS(batching=Chunked(reserve="predicted")), 24)
    if beside:
        play.arrive(prompt=1, output=3)
        play.step()
    request_id = play.arrive(prompt=6, output=12)
    landed(play)
    assert play.admitted() == ([] if beside else [request_id])


def test_who_did_not_land_waits_behind_those_of_its_client_that_did() -> None:
    """Under shared credit no request of the client without KV enters before, here or elsewhere."""
    play = Play(DLPMGlobal(gate=GlobalDeficitGate(quantum=50)))
    request_id = play.arrive(0)
    other = play.arrive(1)
    assert play.admitted() == [request_id, other]
    gate = play.policy.gate
    assert isinstance(gate, GlobalDeficitGate)
    play.state = replace(play.state, gate=gate.held(play.state.gate, 0, 1))
    assert play.admitted() == [other]
    here = landed(play, 0)
    assert sorted(play.admitted()) == [request_id, other, here]
    play.cancel(here)
    assert play.state.gate.landed.tolist() == [1, 0]
    assert play.admitted() == [other]


# --- the next that goes -----------------------------------------------------------------------------------------------


def passing(play: Play, batch: Any = None) -> AdmissionPass:
    """A decision on the play's worker, by hand."""
    view = play.worker.view(play.now_ns)
    batch = batch or play.policy.batching.open(view, play.state.flights)
    return AdmissionPass(play.policy, play.state, view, batch, view.kv_free_tokens)


def test_one_at_its_cap_is_passed_over_for_the_next_that_memory_keeps_out() -> None:
    """Of two clients in credit the first holds its cap: the request that goes next is the other's, if none fits."""
    policy = DLPM(gate=DeficitGate(quantum=50, in_flight_cap_tokens=9))
    for prompt, wanted in ((4, (1, 3)), (3, None)):
        play = Play(policy, 12)
        play.arrive(1, prompt=1, output=1)
        play.arrive(0, prompt=3, output=3)
        play.step()
        play.arrive(0, prompt=4, output=2)
        play.arrive(1, prompt=prompt, output=3)
        assert play.worker.free == 6
        assert passing(play).refused() == wanted


def test_a_whole_prompt_waits_for_a_step_that_has_room_for_it() -> None:
    """Beside six tokens of nine a prompt of five does not go, and no other one goes past it."""
    play = Play(FCFS(batching=EagerPrefill(max_batched_tokens=9)))
    first = play.arrive(prompt=6)
    second, _ = play.arrive(prompt=5), play.arrive(prompt=3)
    plan = play.decide()
    assert [admission.request_id for admission in plan.admit] == [first]
    assert play.policy.wait_reason(play.state, play.worker.view(0), second) == "order"


@pytest.mark.parametrize(("slots", "admitted"), [(1, None), (2, 2)])
def test_a_request_enters_past_those_taken_out_for_it_only_with_a_slot(slots: int, admitted: int | None) -> None:
    """Its adapter needs one, too."""
    play = Play(FCFS(), adapter_slots=slots)
    play.arrive(adapter="ann", output=9)
    play.step()
    out, entering = play.arrive(), play.arrive(adapter="bob")
    entered = passing(play).run_only(0, entering, (out,))
    assert (entered and entered[0].admit[0].request_id) == admitted
    assert passing(play).run_only(0, entering) is None
    assert passing(play).run_only(1, entering, (out,)) is None


@pytest.mark.parametrize(("slots", "valid_steps"), [(1, 1), (0, None)])
def test_while_some_stand_still_a_lack_of_a_slot_is_looked_at_anew(slots: int, valid_steps: int | None) -> None:
    """Another adapter may come to be the first to be done; where none lacks a slot the plan stands."""
    play = Play(FCFS(), 24, adapter_slots=slots)
    names: list[dict[str, Any]] = [{"adapter": name} if slots else {} for name in ("ann", "bob")]
    for _ in range(2):
        play.arrive(prompt=2, output=9, **names[0])
    play.step()
    play.arrive(prompt=2, output=9, **names[1])
    play.worker, told = transitions.begin(play.worker, StepPlan(pause=(0,), decode=False), play.now_ns)
    play.tell(told)
    plan, _ = play.policy.step(play.state, play.worker.view(play.now_ns))
    assert (plan.admit, plan.valid_steps) == ((), valid_steps)


# --- pauses -----------------------------------------------------------------------------------------------------------


@given(state=worker_states(), data=st.data())
def test_a_view_with_pauses_is_that_of_a_worker_that_paused(state: WorkerState, data: st.DataObject) -> None:
    """Whoever pauses, or goes on a step later: clients, counts, clocks and what grows are the worker's own."""

    def some(requests: list[int]) -> tuple[int, ...]:
        return tuple(data.draw(st.lists(st.sampled_from(requests), unique=True))) if requests else ()

    for _ in range(2):
        decoding = sorted(i for i, flight in state.in_flight.items() if flight.decodes)
        pause, resume = some(decoding), some(sorted(state.paused))
        try:
            after, _ = transitions.begin(state, StepPlan(pause=pause, resume=resume, decode=False), 0)
        except transitions.InfeasiblePlanError:
            return
        assert with_pauses(state.view(0), pause, resume) == after.view(0)
        state = transitions.step(after, StepPlan(), 0)[0] if after.decoding and after.decode_steps_max() else after


@pytest.mark.parametrize(("room", "goes_on"), [(2, (0,)), (1, ()), (3, (0, 1))])
def test_as_many_go_on_as_memory_lets_produce_a_token(room: int, goes_on: tuple[int, ...]) -> None:
    """Of two that another policy paused, beside one that decodes; none where there is no token for one more."""
    play = Play(FCFS(batching=GROWING), 12 + room)
    for _ in range(3):
        play.arrive(prompt=3, output=9)
    play.step()
    assert play.worker.view(play.now_ns).kv_free_tokens == room
    play.worker, told = transitions.begin(play.worker, StepPlan(pause=(0, 1), decode=False), play.now_ns)
    play.tell(told)
    plan = play.decide()
    assert (plan.resume, plan.decode) == (goes_on, True)


def test_who_is_paused_beside_kv_that_came_makes_room_though_none_enters() -> None:
    """The request that goes next fits beside neither, and nothing computes: the one that is paused is taken out."""
    play = Play(DLPMInBatch(gate=InBatchGate(quantum=2, context_tokens=19), batching=GROWING), 20)
    play.arrive(0, prompt=2, output=12)
    play.step()
    play.arrive(2, prompt=14, output=2)
    landed(play, 1, prompt=6)
    plan = StepPlan()
    for _ in range(40):
        plan = play.decide()
        if play.worker.running and not (play.worker.decoding or plan.chunks or plan.admit):
            break
        if plan.preempt:
            break
        play.step()
    assert plan.preempt == (0,)


def test_a_prefill_that_was_given_up_is_waited_for_no_more() -> None:
    """Its prompt is computed by nobody: another request with that prefix enters."""
    play = Play(attrs.evolve(LOCAL_POLICIES["lpm"], batching=Chunked(max_batched_tokens=4)))
    given_up = play.arrive(prompt=Prompt.from_keys(range(9)))
    play.step()
    after = play.arrive(prompt=Prompt.from_keys(range(8)))
    assert play.admitted() == []
    play.cancel(given_up)
    assert play.admitted() == [after]


def test_one_that_computes_nothing_frees_what_it_holds_and_no_more() -> None:
    """Four decode, one token is free, and the youngest, two tokens large, has no part in the step's budget: it goes and
    so does one of the four."""
    play = Play(FCFS(batching=Chunked(max_batched_tokens=4, reserve="optimistic")), 11)
    for prompt in (1, 1, 1, 1, 2):
        play.arrive(prompt=prompt, output=6)
    plan = StepPlan(
        admit=tuple(Admission(i, 0, 1 + i // 4, 0, 0) for i in range(5)), chunks=tuple((i, 1) for i in range(5))
    )
    play.worker, told = transitions.begin(play.worker, plan, 0)
    play.tell(told)
    play.worker, told = transitions.finish(play.worker, plan, 1, 1)
    play.tell(told)
    assert play.worker.view(1).kv_free_tokens == 1
    assert play.decide().preempt == (4, 3)


# --- memory that is just enough ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("reserve", ["static", "optimistic"])
@pytest.mark.parametrize(("cached", "fresh"), [(0, 5), (1, 4), (2, 3), (4, 1)])
def test_what_fits_to_the_last_token_is_let_in(reserve: Any, cached: int, fresh: int) -> None:
    """With blocks of two tokens of which some are cached, and protected by one that runs: the request enters if what it
    computes and its output are free, and not with a token less."""
    lpm = LOCAL_POLICIES["lpm"]
    warm = Prompt.from_keys(range(4), block_tokens=2)
    prompt = Prompt.from_keys([*range(cached), *range(50, 50 + fresh)], block_tokens=2)
    output = 3 if reserve == "static" else 1
    for short in (0, 1):
        play = Play(attrs.evolve(lpm, batching=Chunked(reserve=reserve)), 8 + 4 + 2 * fresh + output - short)
        play.arrive(0, warm, 4)
        play.step()
        request_id = play.arrive(0, prompt, output)
        # The one that runs has its prompt and one token or four, and grows by one where none is reserved.
        assert play.worker.free == 2 * fresh + output - short + 3 * (reserve != "static")
        play.worker = replace(play.worker, capacity=play.worker.capacity - 2 * (reserve != "static"))
        assert play.admitted() == ([] if short else [request_id])


@pytest.mark.parametrize(("keys", "why"), [((1, 2, 3, 4, 9, 9), "memory"), ((7, 9), "budget")])
def test_where_none_decodes_what_is_protected_more_has_no_room(keys: tuple[int, ...], why: str) -> None:
    """Under the printed rule of the first to finish: beside a request that prefills, one that computes two tokens
    enters, unless it protects four that are cached."""
    policy = attrs.evolve(LOCAL_POLICIES["lpm"], batching=Chunked(max_batched_tokens=12, reserve="first-finish"))
    play = Play(policy, 60)
    play.arrive(0, Prompt.from_keys((1, 2, 3, 4)), 1)
    play.step()
    play.arrive(0, prompt=20, output=2)
    play.step()
    request_id = play.arrive(0, Prompt.from_keys(keys), 2)
    assert play.admitted() == ([] if why == "memory" else [request_id])
    assert play.policy.wait_reason(play.state, play.worker.view(play.now_ns), request_id) == why


@pytest.mark.parametrize(("host", "moved"), [(10, True), (9, False)])
def test_a_host_may_be_filled_to_the_last_token(host: int, moved: bool) -> None:
    """One that holds 10 tokens goes to a host of 10; to one of 9 it does not, and computes again."""
    levels = SkipJoin(quantum_us=2, step_us=2, promote_ms=1, prefill_token_ns=1_000, prefill_constant_us=0)
    play = Play(ComposedPolicy("swaps", levels, OpenGate(), Chunked(max_running=1, reserve="optimistic")), 40, host)
    long = play.arrive(prompt=8, output=20)
    play.step(3)
    assert play.worker.view(play.now_ns).computed_tokens(long) == 10
    play.arrive(prompt=1, output=1)
    plan = play.decide()
    assert (plan.swap_out, plan.preempt) == (((long,), ()) if moved else ((), (long,)))
