"""Orders by deadline: earliest first and least slack first, against what targets and a clock say of them."""

from fractions import Fraction
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.request import Prompt, Request, Slo
from fairsched.model.worker import WorkerState
from fairsched.policies.base import Limits
from fairsched.policies.batching import RequestLevel
from fairsched.policies.catalog import AFS, EDF
from fairsched.policies.gates import DeficitGate, OpenGate
from fairsched.policies.gates.deficit import late_cost
from fairsched.policies.orders import EarliestDeadline, JustInTime, LeastSlack, QueuedRequest
from fairsched.policies.orders.abilities import OWN_MAX, Fronts, RanksByKey
from fairsched.policies.orders.deadlines import NO_DEADLINE_NS
from fairsched.verify.conformance import WorkerPlay, admitted
from fairsched.verify.proofs.orders import deadlines
from tests.support.policy_play import Play

NS_PER_S = 10**9
DAY_NS = 86_400 * NS_PER_S
TARGETS = st.none() | st.integers(0, 10**6) | st.integers(0, 400 * DAY_NS)
ARRIVALS = st.integers(0, 10**6) | st.integers(0, 3_650 * DAY_NS)


@st.composite
def waiting(draw: st.DrawFn) -> list[Request]:
    """Requests in order of arrival, over anything from a millisecond to ten years, some with targets."""
    arrivals = sorted(draw(st.lists(ARRIVALS, min_size=1, max_size=40)))
    return [
        Request(
            i, 0, arrival_ns, Prompt(draw(st.integers(1, 50))), 40, draw(st.none() | st.integers(1, 60)),
            slo=draw(st.none() | st.builds(Slo, TARGETS, TARGETS, TARGETS)),
        )
        for i, arrival_ns in enumerate(arrivals)
    ]  # fmt: skip


def order_of(order: EarliestDeadline, requests: list[Request]) -> list[int]:
    """Requests in the order in which one decision admits them."""
    fronts, waiting = Fronts(), [QueuedRequest(request, request.id, 0) for request in requests]
    for queued in waiting:
        fronts, _ = fronts.joined(order, queued, 0, PrefixCache())
    ranking, found = fronts.ranking(order, 1, 1_000), []
    for _ in requests:
        found.append(ranking.best(0))
        fronts = fronts.left(order, waiting[found[-1]], 0, 0, admitted=True)
        ranking.leave(fronts, found[-1], 0)
    return found


def slack_ns(request: Request, now_ns: int, order: LeastSlack) -> int | None:
    """What is left at `now_ns` until the first target that would be missed, None without one."""
    prompt_ns = order.prompt_token_ns * request.prompt.tokens
    predicted = request.max_output_tokens
    if request.predicted_output_tokens is not None:
        predicted = min(predicted, request.predicted_output_tokens)
    end_ns = now_ns + prompt_ns + order.output_token_ns * (predicted - 1)
    slo = request.slo or Slo()
    first = None if slo.ttft_ns is None else request.arrival_ns + slo.ttft_ns - (now_ns + prompt_ns)
    last = None if slo.latency_ns is None else request.arrival_ns + slo.latency_ns - end_ns
    return min((left for left in (first, last) if left is not None), default=None)


def by_slack(requests: list[Request], now_ns: int, order: LeastSlack) -> list[int]:
    """Those with a target by what is left at `now_ns`, then the others; equals by age."""
    left = {request.id: slack_ns(request, now_ns, order) for request in requests}
    return sorted(left, key=lambda i: (left[i] is None, left[i] or 0, i))


@given(requests=waiting(), now_ns=ARRIVALS)
def test_the_least_slack_goes_first_at_any_time(requests: list[Request], now_ns: int) -> None:
    """The order found without a clock is that of slack at every time, to the nanosecond and over years."""
    order = LeastSlack()
    assert order_of(order, requests) == by_slack(requests, now_ns, order)


@given(requests=waiting())
def test_the_earliest_deadline_goes_first(requests: list[Request]) -> None:
    """Slack of no work is the time to the deadline: to the nanosecond, over years, those without a deadline last."""
    order = order_of(EarliestDeadline(), requests)
    assert order == by_slack(requests, 0, LeastSlack(0, 0)) == order_of(LeastSlack(0, 0), requests)


def test_a_deadline_out_of_reach_is_none() -> None:
    """A target beyond 2^62 ns counts as none, and no key leaves 64 bits."""
    far = Request(0, 0, 2**62, Prompt(1), 1, slo=Slo(ttft_ns=2**62))
    assert EarliestDeadline().number(QueuedRequest(far, 0, 0)) == NO_DEADLINE_NS
    work = LeastSlack(2**62, 2**62)
    assert work.number(QueuedRequest(Request(1, 0, 0, Prompt(9), 9, slo=Slo(latency_ns=1)), 0, 0)) == -OWN_MAX


def test_work_that_was_done_counts_no_more() -> None:
    """A preempted request has less output to come and more to compute again."""
    order = LeastSlack(3, 100)
    request = Request(0, 0, 0, Prompt(10), 8, slo=Slo(latency_ns=10_000))
    assert [order.number(QueuedRequest(request, 0, done)) for done in (0, 5, 8)] == [
        10_000 - 30 - 700,
        10_000 - 45 - 200,
        10_000 - 54,
    ]


@pytest.mark.parametrize("own", [2**62 + 1, 1.5, None])
def test_a_number_that_no_key_holds_is_refused_where_it_arises(own: object) -> None:
    """The error names the order and the number."""

    class Odd(EarliestDeadline):
        name = "odd"

        def number(self, queued: QueuedRequest) -> int:
            return own  # type: ignore[return-value]

    assert issubclass(Odd, RanksByKey)
    with pytest.raises(ValueError, match="order odd keeps"):
        Play(EDF(order=Odd())).arrive()


@given(requests=waiting(), now_ns=ARRIVALS)
def test_tokens_for_the_work_make_up_for_slack_at_any_time(requests: list[Request], now_ns: int) -> None:
    """Just in time is the order of slack less a window for each factor of two of tokens a second, whatever the time."""
    order = JustInTime(window_ns=30_000_000)

    def due(request: Request) -> int | None:
        slack = slack_ns(request, now_ns, order)
        left = min(request.predicted_output_tokens or request.max_output_tokens, request.max_output_tokens)
        work = order.prompt_token_ns * request.prompt.tokens + order.output_token_ns * (left - 1)
        rate = (request.prompt.tokens + left) * 10**9 // work
        return None if slack is None else slack - order.window_ns * int(log2(rate))

    found = {request.id: due(request) for request in requests}
    assert order_of(order, requests) == sorted(found, key=lambda i: (found[i] is None, found[i] or 0, i))


def test_the_bound_of_what_a_gate_adds_is_reached() -> None:
    """In the world of F-DL-1 the shipped policy lets requests in that cost 20, due later, before one that is first of
    all: D-late's constant on a worker of 5 tokens; without the gate none."""
    gate = DeficitGate(quantum=deadlines.QUANTUM)
    charge_max = gate.charge_max(Limits(deadlines.MEMORY, 1, 4, 1, True))
    bound = late_cost(gate.quantum, charge_max, gate.quantum, charge_max) // gate.quantum
    assert [deadlines.passed_cost(each, deadlines.IN_DEBT, 6) for each in (gate, OpenGate())] == [bound, 0] == [20, 0]


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 6), st.integers(0, 2), st.integers(0, 9)),
        min_size=1,
        max_size=14,
    )
)
def test_the_client_whose_work_is_most_urgent_goes_first(rows: list[tuple[int, int, int, int, int]]) -> None:
    """One call a step of a second; a token of a prompt takes a second.  Each client has the work of its calls that wait
    and of those that follow, over what is left until the first is due at the last event, and 1 ns if that is over."""
    play = WorkerPlay(
        AFS(prompt_token_ns=NS_PER_S, output_token_ns=0, batching=RequestLevel(max_running=1)), WorkerState(0, 1_000)
    )
    due = [sum(gap for gap, *_ in rows[: i + 1]) for i in range(len(rows))]
    waiting: dict[int, list[int]] = {}
    last = 0

    def owed(i: int) -> int:
        return rows[i][2] * (rows[i][3] + 1) * NS_PER_S

    def ends(i: int) -> int:
        return due[i] * NS_PER_S + (rows[i][4] * NS_PER_S or 3 * owed(i) // 2)

    def urgency(client: int) -> tuple[bool, Fraction]:
        work, left = sum(map(owed, waiting[client])), min(map(ends, waiting[client])) - last * NS_PER_S
        return left <= 0, Fraction(work, max(left, 1))

    for step in range(due[-1] + len(rows) + 1):
        for i in (i for i, at in enumerate(due) if at == step):
            _, client, prompt, levels, target = rows[i]
            slo = Slo(latency_ns=target * NS_PER_S or None)
            now = step * NS_PER_S
            play.arrive(Request(i, client, now, Prompt(prompt), 1, slo=slo, downstream_levels=levels), 1, now)
            waiting.setdefault(client, []).append(i)
            last = step
        best = max(waiting, key=lambda client: (urgency(client), -waiting[client][0]), default=None)
        for i in admitted(play.step(step * NS_PER_S)):
            assert (rows[i][1], i) == (best, waiting[rows[i][1]].pop(0))
            waiting = {client: calls for client, calls in waiting.items() if calls}
            last = step
    assert not waiting
