"""What a window says of itself: service by client, the gap against its bound, and what is under way."""

from collections.abc import Iterable
from typing import Any

from fairsched.engines.gateway.books import Books
from fairsched.engines.gateway.window import Window
from fairsched.model.request import Client


def window_status(window: Window, books: Books, clients: Iterable[Client]) -> dict[str, Any]:
    """Plain JSON values.  Gaps are in cost units of the policy's rates, times lcm / weight."""
    document: dict[str, Any] = {
        "policy": window.policy_name,
        "set_aside": window.set_aside,
        "waiting": window.waiting,
        "in_flight": window.in_flight,
        "in_flight_tokens": window.in_flight_tokens,
        "window_tokens": window.tokens,
        "overrun_tokens": window.overrun_tokens,
        "clients": {
            client.name: {
                "weight": client.weight,
                "requests": books.requests[client.id],
                "prompt_tokens": books.prompt_tokens[client.id],
                "output_tokens": books.output_tokens[client.id],
                "waiting": window.waiting_of(client.id),
            }
            for client in clients
        },
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
    return document
