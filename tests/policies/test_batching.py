"""FairBatching's time for prompts, in played worlds: no token is later than the first, and prompts always go on."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.request import Prompt, Request, Slo
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import FairBatching
from fairsched.policies.catalog import FCFS
from fairsched.verify.conformance import WorkerPlay
from fairsched.verify.proofs.memory.prefill_batches import lateness

CAPACITY, SEATS = 60, 4
ROWS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 30), st.integers(1, 20)).filter(lambda row: sum(row[1:]) < CAPACITY),
    min_size=1,
    max_size=12,
).map(sorted)
COSTS = st.fixed_dictionaries(
    {name: st.integers(0, 3) for name in ("step_ns", "request_ns", "context_token_ns")}
    | {"token_ns": st.integers(1, 4)}
)


@given(rows=ROWS, costs=COSTS, spare=st.integers(0, 20), ttft=st.integers(1, 200))
def test_no_token_is_later_than_the_first(
    rows: list[tuple[int, int, int]], costs: dict[str, int], spare: int, ttft: int
) -> None:
    """Whatever comes, where all that may decode fits beside a token of a prompt into the time a token; and every
    request has its first token, so that prompts go on beside any decodes."""
    rule = FairBatching(**costs, max_running=SEATS, ttft_ns=ttft)  # type: ignore[arg-type]
    most = rule.decode_ns(SEATS, CAPACITY) + rule.token_ns + spare
    late = lateness(FairBatching(**costs, max_running=SEATS, ttft_ns=ttft, tpot_ns=most), rows, CAPACITY)  # type: ignore[arg-type]
    assert {number: len(tokens) for number, tokens in late.items()} == {i: row[2] for i, row in enumerate(rows)}
    assert all(max(tokens) <= max(tokens[0], 0) for tokens in late.values())


def chunks(slo: Slo | None, now_ns: int, **rule: Any) -> list[int]:
    """Return how much of a long prompt each of the next steps computes, of 1 ms, beside one request that decodes."""
    policy = FCFS(batching=FairBatching(step_ns=4, token_ns=2, request_ns=1, context_token_ns=1, **rule))
    play, found = WorkerPlay(policy, WorkerState(0, 2_000)), []
    play.arrive(Request(0, 0, 0, Prompt(5), 9, slo=slo), 9, 0)
    play.step(0, now_ns)
    play.arrive(Request(1, 0, now_ns, Prompt(1_000), 1), 1, now_ns)
    for _ in range(3):
        plan = play.decide(now_ns)
        found.append(plan.chunks[0][1])
        play.execute(plan, now_ns, took_ns=10)
        now_ns += 10
    return found


def test_a_step_lasts_until_the_nearest_deadline() -> None:
    """The second token is due at 100 + 20, at 10 there are 110 ns, less 4 + 1 + 6 for the decode: 49 tokens of 2 ns;
    each further step of 10 ns leaves 10 more, and a token of context takes one."""
    assert chunks(None, 10, ttft_ns=100, tpot_ns=20) == [49, 54, 58]


def test_a_request_s_own_targets_count() -> None:
    """The same by the targets that the request names, whatever the rule's are."""
    assert chunks(Slo(ttft_ns=100, tpot_ns=20), 10, ttft_ns=1, tpot_ns=1) == [49, 54, 58]


def test_late_requests_leave_the_time_of_a_token() -> None:
    """The first token came at 500 for 100: steps last 20 ns, 9 of which are for prompts; a token at least goes on."""
    assert chunks(None, 500, ttft_ns=100, tpot_ns=20) == [4, 4, 3]
    assert chunks(None, 500, ttft_ns=100, tpot_ns=1) == [1, 1, 1]


def test_the_budget_of_tokens_is_kept() -> None:
    """However much time there is, a step computes no more than `max_batched_tokens`."""
    assert chunks(None, 10, ttft_ns=10_000, max_batched_tokens=8) == [7, 7, 7]
