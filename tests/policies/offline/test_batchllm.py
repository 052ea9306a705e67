"""BatchLLM's order: groups go together, when they are made, and what a gate keeps of its bound; the threshold."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.analysis import Run
from fairsched.engines.simulation import Cluster, RunSpec
from fairsched.engines.simulation.runs import run_one
from fairsched.model.machine import PRESETS
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.batching import MemoryCentric
from fairsched.policies.catalog import BatchLLM, HybridBatchLLM
from fairsched.policies.gates import AnyGate, DeficitGate, OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.offline import PrefixGroupOrder
from fairsched.policies.offline.batchllm import ALONE_MAX
from fairsched.policies.orders import AGE_BITS, NO_PLACE, Arrival
from fairsched.policies.registry import ROUTERS
from fairsched.verify.conformance.local import check_local_policy
from tests.support.policy_play import Play

ONE = MemoryCentric(max_running=1)


def prompt(family: int, own: int, number: int) -> Prompt:
    """A prompt of a family of ten shared tokens, with tokens of its own."""
    return Prompt.from_keys([family] * 10 + [1_000 + number] * own)


def ranks(play: Play) -> dict[int, int]:
    """The rank of each that waits."""
    return {i: score >> AGE_BITS for i, score in play.state.queue.scores.items()}


def test_groups_are_made_when_an_eighth_is_new() -> None:
    """Groups are made with the first request that enters; of 16 that wait one more changes nothing, and with the second
    groups are made anew, once a request enters."""
    play = Play(BatchLLM(batching=ONE), 4_000)
    for number in range(18):
        play.arrive(0, prompt(number % 2, 2, number), 3)
    assert max(ranks(play).values()) <= ALONE_MAX
    play.step()
    assert len(ranks(play)) == 17
    assert min(ranks(play).values()) > ALONE_MAX
    late = [play.arrive(0, prompt(5, 2, 20), 1)]
    play.step(3)
    assert len(ranks(play)) == 17
    assert ranks(play)[late[0]] <= ALONE_MAX
    late += [play.arrive(0, prompt(5, 2, number), 1) for number in (21, 22)]
    play.step()
    assert max(ranks(play)[i] for i in late) <= ALONE_MAX
    play.step(2)
    assert min(ranks(play)[i] for i in late) > ALONE_MAX


def test_there_are_no_groups_where_nothing_is_shared() -> None:
    """Below the backlog, or below the saving, everybody keeps a rank of its own."""
    for order, families in (
        (PrefixGroupOrder(backlog_min=9), "aaaaaaaa"),
        (PrefixGroupOrder(saving_min_percent=1), "abcdefgh"),
        (PrefixGroupOrder(saving_min_percent=80), "aaaabbbb"),
    ):
        play = Play(BatchLLM(order=order, batching=ONE), 200)
        for number, family in enumerate(families):
            play.arrive(0, prompt(ord(family), 2, number), 3)
        play.step()
        assert max(ranks(play).values()) <= ALONE_MAX


def test_ranks_fall_back_when_the_backlog_is_gone() -> None:
    """With too few left for groups waiting requests are ranked by what is cached again, but for those whose group's
    prefix is cached."""
    play = Play(BatchLLM(order=PrefixGroupOrder(backlog_min=5), batching=ONE), 200)
    for number, family in enumerate((7, 7, 7, 7, 8, 8)):
        play.arrive(0, prompt(family, 2, number), 1)
    play.step(2)
    assert ALONE_MAX < ranks(play)[4] == ranks(play)[5] < ranks(play)[3]
    late = play.arrive(0, prompt(9, 2, 9), 1)
    play.step()
    assert sorted(ranks(play)) == [3, 4, 5, late]
    assert max(ranks(play)[i] for i in (4, 5, late)) <= ALONE_MAX < ranks(play)[3]


@pytest.mark.parametrize(("tokens", "family"), [(2_048, 7), (10, 9)])
def test_a_group_whose_prefix_is_computed_or_under_way_stays(tokens: int, family: int) -> None:
    """It does not count towards a backlog, and too few others are left: they are in no group and share no prefix, even
    what is cached."""
    batching = MemoryCentric(max_batched_tokens=tokens, max_running=1 if tokens > 10 else 2)
    play = Play(BatchLLM(order=PrefixGroupOrder(backlog_min=5), batching=batching), 200)
    for number, each in enumerate((7, 7, 7, 7, 8, 8)):
        play.arrive(0, prompt(each, 2, number), 1)
    play.step(2 if tokens > 10 else 1)
    late = play.arrive(0, prompt(family, 2, 9), 1)
    play.step()
    entries = play.state.queue.entries
    alone = [entries[i] for i in (4, 5, late) if i in entries]
    assert [(queued.place, queued.prefix_tokens) for queued in alone] == [(NO_PLACE, 0)] * len(alone)
    assert len(alone) >= 2
    assert all(queued.place != NO_PLACE for i, queued in entries.items() if i < 4)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=2, max_size=12), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_places_follow_the_groups(jobs: list[tuple[int, int]], saving: int) -> None:
    """Places are equal exactly within a group, which shares what its family does."""
    requests = [Request(i, 0, 0, prompt(family, own, i), own) for i, (family, own) in enumerate(jobs)]
    found = PrefixGroupOrder(saving_min_percent=saving, group_order="known_lengths").groups_together(requests)
    if found is None:
        assert saving > 0
        return
    places, prefixes = found
    for i, (family, _) in enumerate(jobs):
        assert prefixes[i] in (0, 10)
        assert (prefixes[i] == 10) == (sum(family == other for other, _ in jobs) > 1)
        for j, (other, _) in enumerate(jobs):
            assert (places[i] == places[j]) == (i == j or family == other)


# --- the bound under backlog ------------------------------------------------------------------------------------------


def mixed() -> Workload:
    """A batch of 400 prompts of 20 families at once, shuffled, and somebody online with ten requests a second."""
    batch = [
        Job(Request(i, 0, 0, Prompt.from_keys([i * 7 % 20] * 1_000 + [100 + i] * 100), 40), 40) for i in range(400)
    ]
    online = [Job(Request(400 + i, 1, i * 10**8, Prompt.from_keys([10_000 + i] * 400), 20), 20) for i in range(200)]
    jobs = sorted(batch + online, key=lambda job: job.request.arrival_ns)
    return Workload("mixed", tuple(jobs), (Client(0, "batch"), Client(1, "online")))


def ran(policy: ComposedPolicy) -> Run:
    """The run of that workload on a worker that holds few of the families."""
    cluster = Cluster(PRESETS["llama-3.1-8b-a100"], 1, 6_000)
    result, _, complete = run_one(mixed(), RunSpec(policy, policy.name, {}, ROUTERS["round-robin"]), cluster)
    assert complete
    return result


def test_the_hybrid_keeps_the_bound_of_its_gate() -> None:
    """Groups under backlog share more than arrival and the longest prefix do, the gap between batch and online client
    stays within 2(Q + U - 1), and without a gate it does not."""
    gate = DeficitGate(quantum=4_096)
    order = PrefixGroupOrder(backlog_min=64, saving_min_percent=30)
    hybrid, ungated, arrival = (
        ran(policy)
        for policy in (HybridBatchLLM(order=order, gate=gate), BatchLLM(), HybridBatchLLM(order=Arrival(), gate=gate))
    )
    assert hybrid.service_gap_bound is not None
    assert hybrid.gap.cost <= hybrid.service_gap_bound < ungated.common_gap.cost
    assert hybrid.measures.prefix_hit_ratio is not None
    assert arrival.measures.prefix_hit_ratio == 0
    assert hybrid.measures.prefix_hit_ratio > 0.7


@pytest.mark.nightly
@pytest.mark.parametrize("gate", [OpenGate(), DeficitGate(quantum=5)], ids=["open", "deficit"])
@pytest.mark.parametrize("reserve", ["static", "optimistic"])
@pytest.mark.parametrize("percent", [50, 100])
def test_groups_of_few_conform(gate: AnyGate, reserve: Any, percent: int, full_budget: bool) -> None:
    """In small worlds too, where a backlog of two is grouped and the threshold is near, with and without a gate."""
    policy = BatchLLM(
        order=PrefixGroupOrder(saving_min_percent=20),
        gate=gate,
        batching=MemoryCentric(max_batched_tokens=7, max_running=4, reserve=reserve, kv_threshold_percent=percent),
    )
    check_local_policy(policy, settings=settings(max_examples=200 if full_budget else 10, stateful_step_count=30))
