"""What the actor says of itself."""

from typing import Any

from fairsched.engines.ray_serve.desk import Desk
from fairsched.engines.window_status import window_status


def status(desk: Desk) -> dict[str, Any]:
    """Plain JSON values: handles and replicas that are there, how calls ended, and the window's own."""
    return {
        "router": desk.router.name,
        "handles": desk.handles,
        "replicas": desk.replicas,
        "outcomes": dict(sorted(desk.outcomes.items())),
        **window_status(desk.window, desk.books, desk.clients.all),
    }
