"""What a call is charged in the gateway's window however it ends: the gate's deficit and the client's usage agree."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fairsched.engines.gateway import Share, Window, window_policy
from fairsched.model.request import Client
from fairsched.policies.guarantees.window import WindowTerms
from fairsched.policies.registry import ROUTERS

QUANTUM = 10_000
BEFORE = (400, 1, 0)
LEFT = QUANTUM - 400 - 2
DECLARED = 10
ESTIMATE = 21
AT_ONCE = 11
"""Half of the estimate, rounded up, is charged when a call is forwarded."""

End = Callable[[Window], object]


def opened(*, share: int = 100, hold_ns: int = 1 << 40, call_ns: int = 1 << 50) -> Window:
    """A window before one server, in which a call of client 0 is in flight, and the gate has given it a quantum."""
    terms = WindowTerms(0, hold_ns=hold_ns, call_ns=call_ns)
    window = Window(window_policy("fcfs+deficit", QUANTUM), ROUTERS["round-robin"], [Share(share)], terms=terms)
    # A call before it leaves the client so far below its quantum that no refund is cut.
    window.arrive(99, 0, 30, 1, 0)
    window.admit(0)
    window.finish(99, *BEFORE[:2], 0)
    window.arrive(0, 0, ESTIMATE, DECLARED, 0)
    assert [placement.request_id for placement in window.admit(0)] == [0]
    return window


def deficit(window: Window, client: int = 0) -> int:
    """What is left of the client's credit."""
    state: Any = window.guard.state
    return int(state.gate.q[client])


def usage(window: Window, client: int = 0) -> tuple[int, int, int]:
    """Tokens of prompts, of outputs and of holding that the client was charged since the call came."""
    account, before = window.usage, (0, 0, 0) if client else BEFORE
    tokens = account.prompt_tokens[client], account.output_tokens[client], account.hold_tokens[client]
    return tokens[0] - before[0], tokens[1] - before[1], tokens[2] - before[2]


ENDS: dict[str, tuple[End, int, int]] = {
    "whole": (lambda window: window.finish(0, 14, 4, 0), 14, 4),
    "longer than estimated": (lambda window: window.finish(0, 40, 4, 0), 40, 4),
    "nothing said of the prompt": (lambda window: window.finish(0, None, 4, 0), ESTIMATE, 4),
    "a prompt of nothing": (lambda window: window.finish(0, 0, 4, 0), 1, 4),
    "cancelled": (lambda window: window.cancel(0, 0), ESTIMATE, DECLARED),
    "given back": (lambda window: window.give_back(0, 0), 0, 0),
    "withdrawn": (lambda window: window.withdraw(0, 0), 0, 0),
}
"""How a call may end; the tokens of its prompt and of outputs that stay charged."""


@pytest.mark.parametrize(("end", "prompt", "outputs"), ENDS.values(), ids=ENDS)
def test_a_call_is_charged_what_its_end_says(end: End, prompt: int, outputs: int) -> None:
    """At once half of the estimate, and at its end what was true, or what is assumed where nobody says; nothing is left
    in flight, and the gate and the usage say the same."""
    window = opened()
    assert (usage(window), deficit(window)) == ((AT_ONCE, 0, 0), LEFT - AT_ONCE)
    end(window)
    assert usage(window) == (prompt, outputs, 0)
    assert deficit(window) == LEFT - prompt - 2 * outputs
    assert (window.in_flight, window.in_flight_tokens, window.unreserved_of(0)) == (0, 0, 0)
    assert not window.holds(0)


@pytest.mark.parametrize(
    ("end", "prompt", "outputs"),
    [(lambda window: window.finish(0, 14, 4, 0), 14, 4), (lambda window: window.finish(0, 14, 2, 0), 14, 3)]
    + [(lambda window: window.cancel(0, 0), ESTIMATE, DECLARED), (lambda window: window.give_back(0, 0), 0, 3)],
    ids=["more than came by", "less than came by", "cancelled", "given back"],
)
def test_outputs_that_came_are_charged_once(end: End, prompt: int, outputs: int) -> None:
    """Three outputs came by and were charged in a tick: an end adds what it says beyond them, and takes none back."""
    window = opened()
    window.produced(0, 3, 0)
    window.charge(0)
    assert usage(window) == (AT_ONCE, 3, 0)
    end(window)
    assert usage(window) == (prompt, outputs, 0)
    assert deficit(window) == LEFT - prompt - 2 * outputs


def test_a_cancelled_call_is_charged_what_is_usual_in_its_time() -> None:
    """A call had 8 outputs in 80 ns: one that is given up after 30 ns is charged 3, and one that had 5 by then 5."""
    window = opened()
    window.finish(0, ESTIMATE, 8, 80)
    for number, came, expected in ((1, 0, 3), (2, 5, 5)):
        before = usage(window)[1]
        window.arrive(number, 0, ESTIMATE, DECLARED, 100)
        window.admit(100)
        if came:
            window.produced(number, came, 110)
        window.cancel(number, 130)
        assert usage(window)[1] - before == expected
    assert deficit(window) == LEFT - 3 * ESTIMATE - 2 * (8 + 3 + 5)


def test_holding_is_charged_until_a_call_ends_or_is_too_long() -> None:
    """31 tokens, a unit for 10 token-nanoseconds: by whole units, and no more after the longest time of a call."""
    window = opened(hold_ns=10, call_ns=50)
    window.charge(2)
    assert usage(window) == (AT_ONCE, 0, 6)
    window.charge(3)
    assert usage(window) == (AT_ONCE, 0, 9)
    window.finish(0, AT_ONCE, 0, 10)
    assert (usage(window), deficit(window)) == ((AT_ONCE, 0, 31), LEFT - AT_ONCE - 62)
    window.charge(100)
    assert usage(window)[2] == 31
    window = opened(hold_ns=10, call_ns=50)
    window.charge(1000)
    assert usage(window)[2] == 31 * 50 // 10
    window.give_back(0, 2000)
    assert usage(window) == (0, 0, 31 * 50 // 10)


@pytest.mark.parametrize("second", [1, 2])
def test_a_call_that_waits_is_charged_for_room_that_is_kept_for_it_and_nothing_else(second: int) -> None:
    """The first of two has two free tokens kept for it, until it is withdrawn; it holds nothing else, and no longer in
    all than the longest time of a call, together with the second, of the same client or of another in its group."""
    window = opened(share=33, hold_ns=10, call_ns=50)
    for number, client in ((1, 1), (2, second)):
        window.configure(Client(client, str(client), 1, (("group", 1),)), 0)
        window.arrive(number, client, ESTIMATE, DECLARED, 0)
    assert window.admit(5) == []
    assert (window.waiting, window.waiting_of(1)) == (2, 3 - second)
    assert window.cancel(1, 15)
    assert not window.cancel(1, 15)
    window.charge(15)
    assert usage(window, 1) == (0, 0, 2)
    assert window.admit(20) == []
    window.withdraw(2, 2_000_000)
    window.charge(2_000_000)
    assert sum(usage(window, client)[2] for client in {1, second}) == 33 * 50 // 10
    assert (window.waiting, window.in_flight) == (0, 1)


def test_a_prompt_of_which_no_server_says_its_tokens_is_charged_all_that_it_may_be() -> None:
    """A token a byte at first; by the densest that was counted once some were, which vouch for an eighth as much; a
    prompt whose tokens the server said before its caller left is charged those."""
    window, prompts = opened(share=4_000), list[int]()

    def ends(number: int, end: End) -> None:
        before = usage(window)[0]
        window.arrive(number, 0, 25, 1, 0, 100)
        window.admit(0)
        end(window)
        prompts.append(usage(window)[0] - before)

    ends(1, lambda window: window.cancel(1, 0))
    ends(2, lambda window: window.finish(2, None, 1, 0))
    ends(3, lambda window: window.cancel(3, 0, 30))
    for number in range(4, 19):
        ends(
            number,
            partial(
                Window.finish,
                request_id=number,
                computed_tokens=10 + number,
                output_tokens=1,
                now_ns=0,
                cached_tokens=6,
            ),
        )
    for number in range(19, 22):
        ends(number, partial(Window.cancel, request_id=number, now_ns=0))
    assert prompts == [100, 100, 30, *range(14, 29), 34, 100, 100]


def test_accounts_count_what_is_in_flight_to_its_estimate() -> None:
    """What is kept for another window: as if all in flight left now, their prompts charged whole and nothing given
    back; a call that is adopted there is not charged for its prompt again, but for its outputs and its end."""
    window = opened()
    window.produced(0, 2, 0)
    kept = window.accounts(0)
    assert int(kept.gate.q[0]) == LEFT - ESTIMATE - 4
    assert not kept.flights
    assert deficit(window) == LEFT - AT_ONCE - 4
    ((request, charged),) = window.flights
    assert charged == AT_ONCE
    for charged_before in (True, False):
        terms = WindowTerms(0, hold_ns=1 << 40, call_ns=1 << 50)
        state = kept if charged_before else None
        again = Window(
            window_policy("fcfs+deficit", QUANTUM), ROUTERS["round-robin"], [Share(100)], state=state, terms=terms
        )
        again.adopt(request, 0, 1, charged=charged_before)
        assert again.in_flight_tokens == ESTIMATE + DECLARED
        again.produced(0, 3, 2)
        again.finish(0, 15, 5, 3)
        assert deficit(again) == (LEFT - ESTIMATE - 4 - 2 * 5 if charged_before else QUANTUM - 15 - 2 * 5)
        assert again.in_flight_tokens == 0
