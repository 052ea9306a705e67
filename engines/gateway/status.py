"""What a gateway says of itself: service by client, the gap against its bound, ends, and what a shadow counted."""

from collections import Counter
from typing import Any

from fairsched.engines.gateway.gateway import Gateway
from fairsched.model.events import Admitted, Cancelled, Decoded, Event, Finished, Settled
from fairsched.model.monitor import Monitor
from fairsched.model.request import Client
from fairsched.policies.base import LocalPolicy

_TWO = (Client(0, "a"), Client(1, "b"))


class Books:
    """A listener of the window: tokens charged to each client, and the policy's promise held to the events.

    `tokens` is the window's, M of the theorem.
    """

    def __init__(self, policy: LocalPolicy[Any], tokens: int) -> None:
        promise = policy.promise(_TWO, policy.limits(tokens, tokens))
        self.monitor = None if promise is None else Monitor(promise, policy.gate_check())
        self.prompt_tokens: Counter[int] = Counter()
        self.output_tokens: Counter[int] = Counter()
        self.requests: Counter[int] = Counter()
        self._charged: dict[int, int] = {}

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


def status(gateway: Gateway, books: Books) -> dict[str, Any]:
    """Plain JSON values.  Gaps are in cost units of the policy's rates, as in `compare`."""
    window = gateway.window
    document: dict[str, Any] = {
        "clients": {
            client.name: {
                "weight": client.weight,
                "requests": books.requests[client.id],
                "prompt_tokens": books.prompt_tokens[client.id],
                "output_tokens": books.output_tokens[client.id],
                "waiting": window.waiting_of(client.id),
            }
            for client in gateway.clients.all
        },
        "servers": {
            server.url: {"up": up, "window_tokens": server.window_tokens}
            for server, up in zip(gateway.config.servers, window.up, strict=True)
        },
        "waiting": window.waiting,
        "in_flight": window.in_flight,
        "in_flight_tokens": window.in_flight_tokens,
        "window_tokens": window.tokens,
        "overrun_tokens": window.overrun_tokens,
        "outcomes": dict(sorted(gateway.outcomes.items())),
        "retries": gateway.retries,
        "policy": window.policy_name,
        "set_aside": window.set_aside,
    }
    if books.monitor is not None:
        report = books.monitor.report()
        document["promise"] = {
            "gap": None if report.gap is None else report.gap.cost,
            "gap_bound": report.gap_bound,
            "bound_violations": report.bound_violations,
            "broken_assumptions": {
                name: finding.violated
                for name, finding in sorted(report.assumptions.items())
                if finding.theorems and finding.violated
            },
        }
    if gateway.shadow is not None:
        document["shadow"] = dict(sorted(gateway.shadow.counts.items()))
    return document
