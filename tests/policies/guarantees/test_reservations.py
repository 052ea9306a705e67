"""What requests reserve: beside a list of all ends, of which the last ones are looked at again each time."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.request import Client, Groups
from fairsched.policies.guarantees import Reservations, charged_at_once
from tests.support.policies.kept import kept_bytes

PLACES: tuple[Groups, ...] = ((), (("a", 2), ("x", 1)), (("a", 2), ("y", 3)), (("b", 2),), ())
"""Clients 1 and 2 are in one outermost group, 3 is alone in one, and the others are in none."""
ENDS = st.one_of(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60)), max_size=12),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), min_size=40, max_size=70),
)
"""A few requests, and so many that the first ones are forgotten: a client and what it had."""


def usual(ends: list[tuple[int, int]], client: int) -> int | None:
    """What nine of ten of the last 32 requests of the client's group had at most, and one of them that runs has on
    average at least; of all where that had fewer than four; None where all had fewer."""

    def group(each: int) -> str:
        return PLACES[each][0][0] if PLACES[each] else str(each)

    for known in ([tokens for each, tokens in ends if group(each) == group(client)], [tokens for _, tokens in ends]):
        if len(known) >= 4:
            last = sorted(known[-32:])
            running = sum(each**2 for each in last) // sum(last) if any(last) else 0
            return max(last[ceil(9 * len(last) / 10) - 1], running)
    return None


@given(ENDS, st.integers(0, 80), st.integers(0, 40), st.integers(0, 80))
def test_what_is_reserved_is_what_the_last_requests_of_a_group_had(
    ends: list[tuple[int, int]], most: int, least: int, unreserved_max: int
) -> None:
    """After each end, for each client: what is usual, predicted and ample, and that what is not reserved stays within
    what the client's whole group may leave unreserved."""
    reservations = Reservations()
    for client, place in enumerate(PLACES):
        reservations.place(Client(client, str(client), 1, place))
    assert len({reservations.payer(client) for client in range(5)} - {-1}) == 4
    for count, (ended, tokens) in enumerate(ends, 1):
        reservations.learn(ended, tokens)
        for client in range(5) if count < 12 or count == len(ends) else (ended,):
            known = usual(ends[:count], client)
            assert reservations.usual(client) == known
            predicted = reservations.predicted(client, most)
            assert predicted == (most if known is None else min(most, known))
            assert reservations.ample(client, least, most) == min(most, max(least, 8 * (known or 0)))
            taken = min(tokens, unreserved_max)
            reservations.unreserved[reservations.payer(client)] = taken
            reserved = reservations.reserves(client, most, predicted, unreserved_max)
            assert reserved == max(predicted, most - (unreserved_max - taken))


def test_a_client_takes_the_same_memory_after_its_first_request_and_its_hundredth() -> None:
    """Whatever its outputs were, and one that is too large for a machine's integer counts as the largest of these."""
    reservations = Reservations()
    for client in range(50):
        reservations.learn(client, 2**70)
    assert reservations.usual(0) == 2**63 - 1
    first = kept_bytes(reservations)
    for each in range(99 * 50):
        reservations.learn(each % 50, 1_000 + 7 * each)
        reservations.usual(each % 50)
    assert kept_bytes(reservations) == first


def test_a_client_is_trusted_by_its_record_and_its_weight() -> None:
    """Of ten outputs that may come: none known, 2 in 1; the more requests came to what they reserved the more, at most
    34; half as many for each that did not, and ten while one that runs goes astray; for its weight."""
    reservations, trusted = Reservations(), list[int]()
    reservations.place(Client(1, "1", 3, ()))
    for overran in (False,) * 32 + (True,):
        trusted.append(reservations.trusted(0, 10))
        reservations.learn(0, 5, overran)
    assert trusted == [20 + 10 * count for count in range(33)]
    assert (reservations.trusted(0, 10), reservations.trusted(1, 10)) == (170, 60)
    reservations.astray[0] += 1
    assert reservations.trusted(0, 10) == 10


@given(st.integers(1, 1000))
def test_half_of_a_prompt_is_charged_at_once(prompt: int) -> None:
    """Rounded up, so that a prompt of one token is charged for."""
    assert 2 * charged_at_once(prompt) == prompt + prompt % 2
