"""What the actor says of itself: service by client, the gap against its bound, and how calls ended."""

from typing import Any

from fairsched.engines.ray_serve.desk import Desk


def status(desk: Desk) -> dict[str, Any]:
    """Plain JSON values.  Gaps are in cost units of the policy's rates."""
    window, books = desk.window, desk.books
    document: dict[str, Any] = {
        "policy": window.policy_name,
        "router": desk.router.name,
        "set_aside": window.set_aside,
        "handles": desk.handles,
        "replicas": desk.replicas,
        "waiting": window.waiting,
        "in_flight": window.in_flight,
        "in_flight_tokens": window.in_flight_tokens,
        "window_tokens": window.tokens,
        "overrun_tokens": window.overrun_tokens,
        "outcomes": dict(sorted(desk.outcomes.items())),
        "clients": {
            client.name: {
                "weight": client.weight,
                "requests": books.requests[client.id],
                "prompt_tokens": books.prompt_tokens[client.id],
                "output_tokens": books.output_tokens[client.id],
                "waiting": window.waiting_of(client.id),
            }
            for client in desk.clients.all
        },
    }
    if books.monitor is not None:
        report = books.monitor.report()
        document["promise"] = {
            "gap": None if report.gap is None else report.gap.cost,
            "gap_bound": report.gap_bound,
            "bound_violations": report.bound_violations,
        }
    return document
