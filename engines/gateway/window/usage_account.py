"""The usage account of a window: what each client was charged, and the policy's promise held to the events."""

from collections import Counter

from fairsched.engines.serving import TWO_CLIENTS, promise_document
from fairsched.model.events import Admitted, Cancelled, Decoded, Event, Finished, Held, Settled
from fairsched.model.monitor import Monitor, Promise
from fairsched.model.request import Client
from fairsched.policies.base import AnyLocalPolicy
from fairsched.policies.guarantees import WindowTerms, window_curve, window_limits


class UsageAccount:
    """Tokens charged to each client, and a monitor of the policy's promise.

    `tokens` is the window's, W of the theorem, `terms` its others; `grow` sets larger ones, and the over-run, V, which
    is 0 at first.  `resumed`: the window goes
    on from debts that this account did not see, so the gate's choices cannot be held to it.
    """

    def __init__(self, policy: AnyLocalPolicy, tokens: int, terms: WindowTerms, *, resumed: bool = False) -> None:
        self._policy = policy
        promise = self._promise(tokens, terms)
        self.monitor = (
            None if promise is None else Monitor(promise, None if resumed else policy.guarantee.gate_monitor())
        )
        self.prompt_tokens: Counter[int] = Counter()
        self.output_tokens: Counter[int] = Counter()
        self.hold_tokens: Counter[int] = Counter()
        self.requests: Counter[int] = Counter()
        self._charged: dict[int, int] = {}

    def grow(self, tokens: int, terms: WindowTerms, overrun: int, now_ns: int) -> None:
        """Hold the promise of a larger window or over-run from now on: there was never as much before."""
        promise = self._promise(tokens, terms, overrun)
        if self.monitor is not None and promise is not None:
            self.monitor.promised(promise, now_ns)

    def _promise(self, tokens: int, terms: WindowTerms, overrun: int = 0) -> Promise | None:
        guarantee = self._policy.guarantee
        curve = window_curve(guarantee, tokens + overrun, terms)
        return guarantee.promise(TWO_CLIENTS, window_limits(guarantee, tokens, terms, overrun), curve)

    def record(self, event: Event) -> None:
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
            case Held():
                self.hold_tokens.update(dict(zip(event.clients, event.tokens, strict=True)))
            case Cancelled(was_running=True, uncomputed_tokens=tokens) if tokens:
                self._charge(event.request_id, event.client, 0)
        if isinstance(event, Finished | Cancelled):
            self._charged.pop(event.request_id, None)

    def _charge(self, request_id: int, client: int, tokens: int) -> None:
        self.prompt_tokens[client] += tokens - self._charged.get(request_id, 0)
        self._charged[request_id] = tokens

    def of(self, client: Client) -> dict[str, int]:
        return {
            "weight": client.weight,
            "requests": self.requests[client.id],
            "prompt_tokens": self.prompt_tokens[client.id],
            "output_tokens": self.output_tokens[client.id],
            "hold_tokens": self.hold_tokens[client.id],
        }

    def promise(self) -> dict[str, dict[str, object]]:
        """Return the gap against its bound as an entry of a document, in cost units times lcm / weight."""
        return {} if self.monitor is None else {"promise": promise_document(self.monitor.report())}
