"""FairBatching's time for prompts, in played worlds: no token is later than the first, and prompts always go on."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.model.decision import InFlight
from fairsched.model.request import Prompt, Request, Slo
from fairsched.policies.batching import FairBatching
from fairsched.policies.orders import QueuedRequest
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


TARGETS = st.none() | st.builds(Slo, ttft_ns=st.none() | st.integers(1, 400), tpot_ns=st.none() | st.integers(30, 90))
RUNNING = st.lists(
    st.tuples(TARGETS, st.integers(0, 400), st.integers(0, 5), st.integers(0, 8), st.sampled_from([None, None, 9]))
    | st.none(),
    max_size=5,
)


@settings(max_examples=200)
@given(running=RUNNING, now=st.integers(400, 500), most=st.integers(1, 400))
def test_the_budget_is_what_the_nearest_deadline_leaves(running: list[Any], now: int, most: int) -> None:
    """Of requests that decode, by definition, each with its own targets where it names some; a token at least, and no
    more than `max_batched_tokens` with the decodes.  Requests that prefill (None) or are paused do not count."""
    rule = FairBatching(
        max_batched_tokens=most, ttft_ns=300, tpot_ns=60, step_ns=4, token_ns=3, request_ns=2, context_token_ns=1
    )
    flights: dict[int, Any] = {}
    in_flight, due, tpots, context = dict[int, InFlight](), list[int](), list[int](), 0
    for i, each in enumerate(running):
        slo, arrival, generated, decoded, paused = each or (None, 0, 0, 0, None)
        entry = QueuedRequest(Request(i, 0, arrival, Prompt(1), 99, slo=slo), i, generated)
        flights[i] = SimpleNamespace(entry=entry)
        start = None if each is None else 31 - decoded
        in_flight[i] = InFlight(i, 0, i, 1 + generated, 0, 0, False, start, paused)
        if each is not None and paused is None:
            ttft, tpot = (slo.ttft_ns or 300, slo.tpot_ns or 60) if slo else (300, 60)
            due.append(arrival + ttft + tpot * (generated + decoded))
            tpots.append(tpot)
            context += 1 + generated + decoded
    view: Any = SimpleNamespace(now_ns=now, clock=30, decoding=len(due), in_flight=in_flight)
    left = most - len(due)
    if due:
        spare = max(min(due) - now, min(tpots))
        left = min(left, max((spare - 4 - 2 * len(due) - context) // 3, 1))
    assert rule.prompt_tokens(view, flights) == left
