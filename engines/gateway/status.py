"""What a gateway says of itself: service by client, the gap against its bound, ends, and what a shadow counted."""

from typing import Any

from fairsched.engines.gateway.books import Books
from fairsched.engines.gateway.gateway import Gateway


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
