"""Orders: whom age, size or locality would pick first.  An order is one integer a request, larger first.

The integer may depend on what of the prompt is cached; whoever keeps the queue (`policies.waiting`) asks again when
that changes.  Equal integers are served in order of arrival, so every order is total.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import attrs

from fairsched.model.request import Request


class Order(ABC):
    """The integer by which waiting requests are ranked; `follows_cache` says that it depends on `cached_tokens`.

    With `waits_for_prefix`, a request whose next missing block is being computed for somebody else waits for it
    rather than computing it a second time.
    """

    name: ClassVar[str]
    follows_cache: ClassVar[bool] = False
    waits_for_prefix: ClassVar[bool] = False

    @abstractmethod
    def rank(self, request: Request, cached_tokens: int) -> int:
        """Rank of a waiting request, between -TOKENS_MAX and TOKENS_MAX: larger goes first.  O(1)."""


@attrs.frozen
class Arrival(Order):
    """First come, first served."""

    name: ClassVar[str] = "arrival"

    def rank(self, request: Request, cached_tokens: int) -> int:
        return 0


@attrs.frozen
class ShortestPrompt(Order):
    """Fewest prompt tokens first."""

    name: ClassVar[str] = "shortest-prompt"

    def rank(self, request: Request, cached_tokens: int) -> int:
        return -request.prompt.tokens


@attrs.frozen
class LongestPrefix(Order):
    """Longest cached prefix first (SGLang's LPM).

    Of several cold requests with one prefix the first computes it and the others wait for it.
    """

    name: ClassVar[str] = "longest-prefix"
    follows_cache: ClassVar[bool] = True
    waits_for_prefix: ClassVar[bool] = True

    def rank(self, request: Request, cached_tokens: int) -> int:
        return cached_tokens
