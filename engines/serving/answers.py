"""What callers get: each request's answer so far, and the calls that tell of it.

Callers are called between steps, when all states agree, so that they may submit and cancel.  A caller that raises is
taken to have gone.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Literal

import attrs

from fairsched.engines.serving.executor import Sampling
from fairsched.model.events import Admitted, Cancelled, Event, Finished, Rejected

Outcome = Literal["finished", "cancelled", "rejected"]

OUTCOMES: dict[type, Outcome] = {Finished: "finished", Cancelled: "cancelled", Rejected: "rejected"}
End = Finished | Cancelled | Rejected
_log = logging.getLogger("fairsched.engine")


@attrs.define(eq=False, repr=False)
class Answer:
    """What a request has been answered so far: its `tokens`, and how it ended (`outcome`, `reason`), None until then.

    `on_token` is called with each token, and `on_end` with the answer when there will be no more.  `cached_tokens` of
    the prompt came from the cache when the request was first admitted.
    """

    request_id: int
    client: int
    prompt_ids: Sequence[int]
    sampling: Sampling
    on_token: Callable[[int], None] | None = None
    on_end: "Callable[[Answer], None] | None" = None
    tokens: list[int] = attrs.field(factory=list, init=False)
    outcome: Outcome | None = attrs.field(default=None, init=False)
    reason: str = attrs.field(default="", init=False)
    cached_tokens: int | None = attrs.field(default=None, init=False)

    @property
    def ended(self) -> bool:
        return self.outcome is not None

    def call(self, token: int | None) -> None:
        """Tell the caller a token, or (None) the end."""
        if token is not None and self.on_token is not None:
            self.on_token(token)
        elif token is None and self.on_end is not None:
            self.on_end(self)

    def __repr__(self) -> str:
        return f"Answer(request {self.request_id}, {len(self.tokens)} tokens, {self.outcome or 'open'})"


class Answers:
    """The answers of requests that are `open`, by id, and the calls that are due."""

    def __init__(self) -> None:
        self.open: dict[int, Answer] = {}
        self._due: list[tuple[Answer, int | None]] = []
        self._calling = False

    def take(self, tokens: dict[int, int]) -> list[int]:
        """Take note of requests that produced one token each; returns those that stop there, in order of their ids."""
        stopping, answers = [], self.open
        for request_id, token in tokens.items():
            answer = answers[request_id]
            answer.tokens.append(token)
            if answer.on_token is not None:
                self._due.append((answer, token))
            if token in answer.sampling.stop_tokens:
                stopping.append(request_id)
        return sorted(stopping)

    def hear(self, event: Event) -> None:
        """Something happened; a request's first admission says how much of its prompt was cached by others."""
        if isinstance(event, Admitted):
            answer = self.open.get(event.request_id)
            if answer is not None and answer.cached_tokens is None:
                answer.cached_tokens = event.cached_prefix_tokens

    def end(self, event: End) -> None:
        """End the request."""
        answer = self.open.pop(event.request_id)
        answer.outcome = OUTCOMES[type(event)]
        if isinstance(event, Rejected):
            answer.reason = event.reason
        if answer.on_end is not None:
            self._due.append((answer, None))

    def call(self, cancel: Callable[[int], object]) -> None:
        """Make the calls that are due, and those that come of them; `cancel` is what happens where one raises."""
        if self._calling:
            return
        self._calling = True
        while self._due:
            due, self._due = self._due, []
            for answer, token in due:
                try:
                    answer.call(token)
                except Exception:
                    _log.exception("request %d: its caller failed, and is taken to have gone", answer.request_id)
                    answer.on_token = None
                    cancel(answer.request_id)
        self._calling = False
