"""Holistic shares: an order by what requests are predicted to cost, against counters kept as the paper says."""

from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.request import Prompt, Request
from fairsched.policies.orders import HolisticShares, QueuedRequest
from fairsched.policies.orders.holistic import Scores

STEPS = st.lists(st.none() | st.tuples(st.integers(0, 3), st.integers(1, 90), st.integers(1, 40)), max_size=60)


@given(steps=STEPS, user_percent=st.integers(0, 100))
def test_the_client_with_the_least_counter_goes_first(
    steps: list[tuple[int, int, int] | None], user_percent: int
) -> None:
    """The place that a request gets when it comes is that of counters which are charged by prediction as requests are
    let in, and lifted to the one served last when a client comes back."""
    order, kept = HolisticShares(user_percent=user_percent), Scores()
    waiting: list[QueuedRequest] = []
    counters: dict[int, int] = {}
    served = 0
    for age, drawn in enumerate(steps):
        if drawn is not None:
            client, prompt, output = drawn
            queued = QueuedRequest(Request(age, client, 0, Prompt(prompt), output), age, 0)
            if all(other.request.client != client for other in waiting):
                counters[client] = max(counters.get(client, 0), served)
            kept, queued = kept.joined(order, queued, 0, PrefixCache())
            waiting.append(queued)
            kept.check(order, [(each, 0, 0) for each in waiting], PrefixCache())
        elif waiting:
            chosen = min(waiting, key=lambda each: (order.number(each), each.age))
            heads = {each.request.client: each for each in reversed(waiting)}
            assert chosen == min(heads.values(), key=lambda each: (counters[each.request.client], each.age))
            served = max(served, counters[chosen.request.client])
            counters[chosen.request.client] += order.cost_us(chosen)
            waiting.remove(chosen)
            kept = kept.left(order, chosen, 0, 0, True)


def test_what_a_client_gets_and_what_the_worker_gives_are_two_costs() -> None:
    """An output token counts as two of a prompt by service, and as 200 by the time that it takes."""
    request = Request(0, 0, 0, Prompt(100), 50)
    costs = [HolisticShares(user_percent=share).cost_us(QueuedRequest(request, 0, 0)) for share in (100, 0, 50)]
    assert costs == [20_000, 1_010_000, 515_000]
    assert costs[2] == (costs[0] + costs[1]) // 2
