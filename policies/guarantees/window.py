"""What a window of tokens before servers counts: what a call holds there, what of it is charged when, and U.

A call *declares* the most outputs that may come, and *reserves* what is predicted of them.  It holds its prompt, by
estimate, and its reservation, which grows when more outputs come.  Half of the prompt is charged when the call is
forwarded, outputs as they pass, and the rest when the answer says what was true.  Holding a token for a time T costs as
much as an output token; a call holds for the longest time of a call, C, at most.

Nothing can take back what a server computes beyond an estimate, so that it is counted: the *over-run* V is the most
that calls of one client came to beyond what they held, from its last admission on, and what the last one held beyond
the window.  U is that of a window of W + V tokens.
Theorems: `verify.proofs.memory.window`.
"""

import attrs

from fairsched.model.pricing import Rates, charge_max_reserved
from fairsched.policies.base import Guarantee, Limits

SECOND_NS = 1_000_000_000


@attrs.frozen
class WindowTerms:
    """How a window before servers counts, besides its size; times in nanoseconds."""

    unreserved_tokens: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(0))
    )
    """A: outputs beyond reservations that are to be expected of one client's calls in flight, for weight 1; None: the
    largest server's window."""
    hold_ns: int = attrs.field(default=3600 * SECOND_NS, validator=attrs.validators.ge(1))
    """T: a token that is held for so long costs as much as an output token."""
    call_ns: int = attrs.field(default=600 * SECOND_NS, validator=attrs.validators.ge(1))
    """C: the longest call; one that is cut off later is charged for holding no more."""
    tokens_per_s: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(1)))
    """Output tokens a second that the servers together yield at least while a call waits; None: no wait in seconds is
    promised."""


def held_tokens(prompt_tokens: int, output_tokens: int) -> int:
    """Return tokens of the window that a call takes with so many outputs reserved."""
    return prompt_tokens + output_tokens


def room_needed(tokens: int, window_tokens: int) -> int:
    """Return the tokens that have to be free for a call of so many: all of them, or an eighth of the window.

    A larger call goes beyond the window then, instead of emptying it.

    >>> room_needed(100, 1000), room_needed(900, 1000)
    (100, 125)
    """
    return min(tokens, max(window_tokens // 8, 1))


def unreserved_max(tokens: int, requests: int, overran: int) -> int:
    """Return how many outputs a client may leave unreserved if `tokens` of them may come, and `overran` of its last
    requests came to more than they reserved: one of (requests + 2) / (overran + 1) will, by the rule of succession.

    >>> unreserved_max(100, 32, 0), unreserved_max(100, 32, 16), unreserved_max(100, 0, 0)
    (3400, 200, 200)
    """
    return tokens * (requests + 2) // (overran + 1)


def charged_at_once(prompt_tokens: int) -> int:
    """Return what of an estimated prompt is charged when it is forwarded: half, so that the truth seldom takes some
    back."""
    return (prompt_tokens + 1) // 2


def reserved_outputs(predicted: int, declared: int, unreserved_left: int) -> int:
    """Return the outputs that a call reserves when it is let in: what is predicted, and all that its client may not
    leave unreserved.

    >>> reserved_outputs(100, 3990, 4000), reserved_outputs(100, 3990, 110)
    (100, 3880)
    """
    return max(min(declared, predicted), declared - unreserved_left)


def grown_outputs(reserved: int, produced: int, declared: int) -> int:
    """Return the outputs that a call has reserved when so many have come."""
    return min(max(reserved, produced), declared)


def hold_units(token_ns: int, hold_ns: int) -> int:
    """Output tokens that holding costs, of a sum of tokens times nanoseconds."""
    return token_ns // hold_ns


def hold_units_max(tokens: int, call_ns: int, hold_ns: int) -> int:
    """Return most output tokens that calls are charged for holding so many tokens, each for `call_ns` at most.

    >>> hold_units_max(8000, 600, 60)
    80000
    """
    return -(-tokens * call_ns // hold_ns)


def charge_max_window(rates: Rates, window_tokens: int, overrun_tokens: int = 0, hold_tokens: int = 0) -> int:
    """U of a client's calls in windows of `window_tokens` together, in cost units: most that it can be charged after it
    was last let in.  For an input token that is not dearer than an output token, with H `hold_tokens`:
    w_q (W + V) - (w_q - w_e) + w_q H.

    >>> charge_max_window(Rates(1, 2), 100)
    199
    >>> charge_max_window(Rates(1, 2), 100, 100, 2000)
    4399
    """
    return charge_max_reserved(rates, window_tokens + overrun_tokens, 1) + rates.output * hold_tokens


def window_limits(guarantee: Guarantee, window_tokens: int, terms: WindowTerms, overrun_tokens: int = 0) -> Limits:
    """Return what bounds rest on in windows of `window_tokens` together, while no over-run was larger than this."""
    limits = guarantee.limits(window_tokens, window_tokens)
    hold = hold_units_max(window_tokens + overrun_tokens, terms.call_ns, terms.hold_ns)
    return attrs.evolve(limits, unreserved_tokens=overrun_tokens, outputs_predicted=True, hold_tokens=hold)
