"""What a window of tokens before servers counts: what a call holds there, what of it is charged when, and U.

A call holds its prompt, by estimate, and all outputs that it declared.  Half of the prompt is charged when the call is
forwarded, outputs as they pass, and the rest when the answer says what was true.  Theorems:
`verify.proofs.memory.window`.
"""

from fairsched.model.pricing import Rates, charge_max_reserved


def held_tokens(prompt_tokens: int, max_output_tokens: int) -> int:
    """Tokens of the window that a call takes until it ends."""
    return prompt_tokens + max_output_tokens


def charged_at_once(prompt_tokens: int) -> int:
    """What of an estimated prompt is charged when it is forwarded: half, so that the truth seldom takes some back."""
    return (prompt_tokens + 1) // 2


def charge_max_window(rates: Rates, window_tokens: int) -> int:
    """U of a client's calls in windows of `window_tokens` together, in cost units: most that it can be charged after it
    was last let in.  For an input token that is not dearer than an output token: w_q W - (w_q - w_e).

    >>> charge_max_window(Rates(1, 2), 100)
    199
    """
    return charge_max_reserved(rates, window_tokens, 1)
