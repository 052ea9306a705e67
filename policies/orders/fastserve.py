"""FastServe: a multi-level feedback queue that a request joins at the level of its prefill.

Source: "Fast Distributed Inference Serving for Large Language Models" (FastServe): skip-join MLFQ; its constants are in
its code (10 ms, ratio 2, 3 s).

Rule.  Level p has a quantum of q0 2^p.  A request joins the first level whose quantum covers its prefill, and goes down
one when it has been served for longer than its level's quantum.  The highest level (0) goes first; of one level those
that have run before go before those that have not, the oldest first.  A waiting request displaces a running one of a
lower level. A request that has not run for 3 s is promoted: it waits at level 0, and once let in goes down from there,
unless it is higher by its service, which is what counts again once it is displaced.

No length is known or predicted.  Service is counted in what steps are said to take, not on a clock: the prompt at
`prefill_token_ns` and a constant, each further token at `step_us`; the 3 s are as many steps with output.  Hence
decode steps may be leapt over up to the next demotion or promotion.  What is computed again after a preemption is not
counted.  In the code the starved are pushed to the front one by one, the last one first, and are looked for once in
1,000 iterations; here the oldest is first and they are promoted when it is time.

Where the worker has host memory, KV of low levels is swapped there ahead of need and back
(`policies.local.swapping`), by the order above: the paper's estimate of when a request is scheduled next is made of
the same levels and promotions. Without host memory a displaced request is computed again, with its prompt if that
is not cached any more.
"""

from typing import ClassVar

import attrs

from fairsched.model.request import Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.orders.abilities import P_DISPLACED, SWAPPING, Promotes, Swap, Swaps
from fairsched.policies.validators import not_negative, percent, positive

P_FS_1 = Theorem(
    "P-FS-1",
    "a request with a prefill of t joins level max(0, ceil(log2(t / q0))), leaves a level exactly when it has been "
    "served there for longer than q0 2^p, and goes down only, unless it is promoted",
    "FastServe; this library, for services up to the size that was tried",
    scope=Scope.BOUNDED,
)


def join_level(prefill: int, quantum: int) -> int:
    """Return the first level whose quantum covers a prefill.

    >>> [join_level(prefill, 10) for prefill in (1, 10, 11, 20, 21, 40)]
    [0, 0, 1, 1, 2, 2]
    """
    return (-(-prefill // quantum) - 1).bit_length() if prefill > quantum else 0


def level_after(joined: int, service: int, quantum: int) -> int:
    """Return the level of a request that joined at one, after so much service."""
    return max((-(-service // quantum) + (1 << joined) - 1).bit_length() - 1, joined)


def service_left(joined: int, level: int, service: int, quantum: int) -> int:
    """Return how much more service keeps it at its level."""
    return quantum * ((2 << level) - (1 << joined)) - service


@attrs.frozen
class SkipJoin(Promotes, Swaps):
    """The highest level first (level 0), and of one level those that have run before others."""

    name: ClassVar[str] = "skip-join"

    quantum_us: int = attrs.field(default=10_000, validator=positive)
    """q0: the quantum of level 0."""
    promote_ms: int = attrs.field(default=3_000, validator=positive)
    """A request that waits for so long, counted in steps of `step_us`, is promoted."""
    step_us: int = attrs.field(default=20_000, validator=positive)
    """What a decode step is said to take."""
    prefill_token_ns: int = attrs.field(default=62_700, validator=positive)
    """What a prompt token is said to take; of the preset llama-3.1-8b-a100, like the constant."""
    prefill_constant_us: int = attrs.field(default=11_100, validator=not_negative)
    """What the prefill of a prompt is counted as, beside its tokens."""

    swap_free_percent: int = attrs.field(default=10, validator=percent)
    """With host memory: how much of the KV capacity is kept free for new requests, and swapped out for them."""
    swap_step_tokens: int = attrs.field(default=4_096, validator=positive)
    """With host memory: how many tokens of KV move in a step, if more than one request's do."""

    @property
    def swap(self) -> Swap:
        return Swap(self.swap_free_percent, self.swap_step_tokens)

    @property
    def promote_steps(self) -> int:
        return max(-(-1_000 * self.promote_ms // self.step_us), 1)

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """About levels, displacing and swapping."""
        return (P_FS_1, P_DISPLACED, *SWAPPING)

    def rank_after(self, request: Request, generated_tokens: int, promoted: bool) -> int:
        level = 0 if promoted else self._level(request, generated_tokens, None)[0]
        return -2 * level - (not promoted and not generated_tokens)

    def preemption_rank(self, request: Request, generated_tokens: int, promoted_steps: int | None) -> int | None:
        return -2 * self._level(request, generated_tokens, promoted_steps)[0]

    def preemption_rank_steps(self, request: Request, generated_tokens: int, promoted_steps: int | None) -> int | None:
        return self._level(request, generated_tokens, promoted_steps)[1] // (1_000 * self.step_us) + 1

    def _level(self, request: Request, generated_tokens: int, promoted_steps: int | None) -> tuple[int, int]:
        """Return its level, and the service that is left to it there, in nanoseconds; of two, the higher level."""
        quantum_ns, step_ns = 1_000 * self.quantum_us, 1_000 * self.step_us
        prefill_ns = 1_000 * self.prefill_constant_us + self.prefill_token_ns * request.prompt.tokens
        service_ns = prefill_ns + step_ns * max(generated_tokens - 1, 0)
        levels = [_level(join_level(prefill_ns, quantum_ns), service_ns, quantum_ns)]
        if promoted_steps is not None:
            levels.append(_level(0, promoted_steps * step_ns, quantum_ns))
        return min(levels)


def _level(joined: int, service: int, quantum: int) -> tuple[int, int]:
    level = level_after(joined, service, quantum)
    return level, service_left(joined, level, service, quantum)
