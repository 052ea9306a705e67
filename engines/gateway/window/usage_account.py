"""A window's books: what each client was charged, and the policy's promise held to the events."""

from collections import Counter
from typing import Any

from fairsched.model.events import Admitted, Cancelled, Decoded, Event, Finished, Settled
from fairsched.model.monitor import Monitor
from fairsched.model.monitor_promise import Promise
from fairsched.model.request import Client
from fairsched.policies.base import LocalPolicy

_TWO = (Client(0, "a"), Client(1, "b"))


class Books:
    """A listener of the window: tokens charged to each client, and the policy's promise held to the events.

    `tokens` is the window's, M of the theorem; `grow` tells of a larger one.  `resumed`: the window goes on from debts
    that these books did not see, so who the gate lets in cannot be held to it.
    """

    def __init__(self, policy: LocalPolicy[Any], tokens: int, *, resumed: bool = False) -> None:
        self._policy = policy
        promise = self._promise(tokens)
        self.monitor = None if promise is None else Monitor(promise, None if resumed else policy.gate_check())
        self.prompt_tokens: Counter[int] = Counter()
        self.output_tokens: Counter[int] = Counter()
        self.requests: Counter[int] = Counter()
        self._charged: dict[int, int] = {}

    def grow(self, tokens: int, now_ns: int) -> None:
        """More servers are there than ever before: the bound is that of the larger window from now on."""
        promise = self._promise(tokens)
        if self.monitor is not None and promise is not None:
            self.monitor.promised(promise, now_ns)

    def _promise(self, tokens: int) -> Promise | None:
        return self._policy.promise(_TWO, self._policy.limits(tokens, tokens))

    def record(self, event: Event) -> None:
        """The window's next event."""
        if self.monitor is not None:
            self.monitor.observe(event)
        match event:
            case Admitted():
                self.requests[event.client] += 1
                self._charge(event.request_id, event.client, event.extend_tokens)
            case Settled():
                self._charge(event.request_id, event.client, event.extend_tokens)
            case Decoded():
                self.output_tokens.update(dict(zip(event.clients, event.tokens, strict=True)))
            case Cancelled(was_running=True, uncomputed_tokens=tokens) if tokens:
                self._charge(event.request_id, event.client, 0)
            case _:
                pass
        if isinstance(event, Finished | Cancelled):
            self._charged.pop(event.request_id, None)

    def _charge(self, request_id: int, client: int, tokens: int) -> None:
        self.prompt_tokens[client] += tokens - self._charged.get(request_id, 0)
        self._charged[request_id] = tokens
