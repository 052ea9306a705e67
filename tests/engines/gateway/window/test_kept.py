"""What a window keeps of clients whose calls come again and again."""

from fairsched.engines.gateway import Share, Window, window_policy
from fairsched.policies.guarantees import SECOND_NS, WindowTerms
from fairsched.policies.registry import ROUTERS
from tests.support.policies.kept import kept_bytes

CLIENTS = 40
_NUMBER = 32
"""Bytes of a number that is not small."""


def test_what_a_window_keeps_of_a_client_does_not_grow_with_its_calls() -> None:
    """After 8 calls of each client and after 40, with nothing in the window: at most one number a client more, such as
    a count that is no small number any more."""
    policy, router = window_policy("dlpm", 10_000), ROUTERS["join-shortest-queue"]
    window = Window(policy, router, (Share(10_000),), terms=WindowTerms(0, hold_ns=60, call_ns=600))

    def play(first: int, last: int) -> int:
        for number in range(first * CLIENTS, last * CLIENTS):
            now_ns = number * SECOND_NS
            window.arrive(number, number % CLIENTS, 400, 2_000, now_ns)
            assert [each.request_id for each in window.admit(now_ns)] == [number]
            window.finish(number, 390, 300 + 7 * number % 1_000, now_ns + SECOND_NS // 2)
        window.charge((last * CLIENTS + 1) * SECOND_NS)
        assert window.waiting == window.in_flight == 0
        return kept_bytes(window)

    early = play(0, 8)
    assert play(8, 40) - early <= CLIENTS * _NUMBER
