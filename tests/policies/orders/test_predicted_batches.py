"""S3 and PiA: what they reserve, who shares a batch, and what happens to whoever was predicted too little."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.simulation import Bucketed, Oracle, Predictor, simulate_events
from fairsched.model.decision import StepPlan
from fairsched.model.events import Admitted, Finished, Preempted
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.model.worker import transitions
from fairsched.policies.catalog import S3, FCFSOptimistic, PiA
from fairsched.policies.local.predicted_batches import SimilarLength, reservation
from fairsched.policies.routers import RoundRobin
from tests.support.logs import LATENCY
from tests.support.policy_play import Play


def arrive(play: Play, predicted: int | None, output: int, declared: int = 40, prompt: int = 4) -> int:
    """A request of client 0 comes with a prediction; its id."""
    return play.arrive(0, prompt, output, declared, predicted_output_tokens=predicted)


@given(predicted=st.none() | st.integers(1, 50), declared=st.integers(1, 40), share=st.integers(0, 99))
def test_a_reservation_is_the_prediction_doubled_as_often_as_needed(
    predicted: int | None, declared: int, share: int
) -> None:
    """It is more than was produced, at most what was declared, at most twice what was needed, and the prediction
    itself at first."""
    generated = declared * share // 100
    request = Request(0, 0, 0, Prompt(1), declared, predicted_output_tokens=predicted)
    found, first = reservation(request, generated), min(predicted or declared, declared)
    assert generated < found <= declared
    assert reservation(request, 0) == first
    assert found <= max(first, 2 * generated)


def test_memory_is_for_predictions_and_the_batch_is_closed() -> None:
    """Three of 4 + 6 tokens share 30 of memory though each declared 16; a fourth waits until all have ended."""
    play = Play(S3(), 30)
    ids = [arrive(play, predicted=6, output=6 - i, declared=16) for i in range(4)]
    assert play.admitted() == ids[:3]
    play.step(4)
    assert play.worker.view(0).running == 2
    assert play.admitted() == []
    play.step(2)
    assert play.admitted() == ids[3:]


def test_who_reaches_its_reservation_comes_again_with_twice_the_room() -> None:
    """One that was predicted to produce 3 and produces 10 is let in for 3, for 6 and for 12 tokens, and ends once."""
    play = Play(S3(), 100)
    arrive(play, predicted=3, output=10)
    play.step(30)
    kinds = [type(event) for event in play.events if isinstance(event, Admitted | Preempted | Finished)]
    assert kinds == [Admitted, Preempted, Admitted, Preempted, Admitted, Finished]
    assert [event.generated_tokens for event in play.events if isinstance(event, Preempted)] == [3, 6]


def test_a_pause_by_another_policy_moves_the_end_of_a_reservation() -> None:
    """One that stood still for a step has 6 tokens to produce as before, of which 3 are left."""
    play = Play(S3(), 100)
    late, other = arrive(play, predicted=6, output=20), arrive(play, predicted=30, output=20)
    play.step(2)
    for plan in (StepPlan(pause=(late,)), StepPlan(resume=(late,))):
        play.worker, events = transitions.step(play.worker, plan, play.now_ns)
        play.tell(events)
    assert [play.worker.view(0).decoded_tokens(each) for each in (late, other)] == [3, 4]
    assert play.decide().valid_steps == 3
    play.step(4)
    assert [event.generated_tokens for event in play.events if isinstance(event, Preempted)] == [6]


def test_batches_of_similar_lengths() -> None:
    """PiA's batch has one bin, the shortest; S3's has whoever comes first."""
    for policy, expected in ((PiA(), [1, 3]), (S3(), [0, 1, 2, 3])):
        play = Play(policy, 1_000)
        for predicted in (250, 40, 150, 90):
            arrive(play, predicted=predicted, output=2, declared=300)
        assert play.admitted() == expected


def test_a_rule_that_reserves_outputs_takes_nobody_out() -> None:
    """With `reserve=static` predictions play no part."""
    policy: Any = S3()
    play = Play(type(policy)(batching=type(policy.batching)(reserve="static")), 30)
    ids = [arrive(play, predicted=1, output=6, declared=11) for _ in range(3)]
    assert play.admitted() == ids[:2]
    play.step(40)
    assert not [event for event in play.events if isinstance(event, Preempted)]


def test_it_takes_over_a_batch_that_was_let_in_for_prompts_alone() -> None:
    """Swapped in while outputs of another policy's batch outgrow memory, it takes the youngest out, and all finish."""
    play = Play(FCFSOptimistic(), 44)
    for _ in range(5):
        arrive(play, predicted=30, output=30)
    play.step(3)
    assert play.worker.view(0).running == 5
    play.policy = S3()
    play.step(200)
    assert sum(isinstance(event, Finished) for event in play.events) == 5
    assert any(isinstance(event, Preempted) for event in play.events)


@pytest.mark.parametrize("policy", [S3(), PiA()], ids=lambda policy: policy.name)
@given(
    rows=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=12),
    by=st.sampled_from([Oracle(), Bucketed(0.5, 4, 10), None]),
)
def test_everybody_is_served_and_an_oracle_is_never_overrun(
    policy: S3 | PiA, rows: list[tuple[int, int, int]], by: Predictor | None
) -> None:
    """Whatever is predicted, all requests finish; with true predictions, and with none, nobody is taken out."""
    jobs = [
        Job(Request(i, 0, 10**6 * at_ms, Prompt(prompt), 40), output)
        for i, (at_ms, prompt, output) in enumerate(sorted(rows))
    ]
    workload = Workload("by hand", tuple(jobs), (Client(0, "a"),))
    events = simulate_events(workload, policy, RoundRobin(), LATENCY, kv_capacity_tokens=60, predictor=by)
    assert sum(isinstance(event, Finished) for event in events) == len(jobs)
    if not isinstance(by, Bucketed):
        assert not any(isinstance(event, Preempted) for event in events)


def test_a_bin_ends_with_its_last_token() -> None:
    """Of ten tokens a bin, outputs of 1 and of 10 are batched together, and one of 11 comes after them."""
    order = SimilarLength(10)
    ranks = [order.rank_after(Request(0, 0, 0, Prompt(1), output), 0, False) for output in (1, 10, 11, 20, 21)]
    assert ranks == [0, 0, -1, -1, -2]
