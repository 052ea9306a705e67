"""What a gateway says of itself: service by client, the gap against its bound, ends, and what a shadow counted."""

from typing import Any

from fairsched.engines.gateway.books import Books
from fairsched.engines.gateway.gateway import Gateway
from fairsched.engines.window_status import window_status


def status(gateway: Gateway, books: Books) -> dict[str, Any]:
    """Plain JSON values.  Gaps are in cost units of the policy's rates, as in `compare`."""
    document = {
        **window_status(gateway.window, books, gateway.clients.all),
        "servers": {
            server.url: {"up": up, "window_tokens": server.window_tokens}
            for server, up in zip(gateway.config.servers, gateway.window.up, strict=True)
        },
        "outcomes": dict(sorted(gateway.outcomes.items())),
        "retries": gateway.retries,
    }
    if gateway.shadow is not None:
        document["shadow"] = dict(sorted(gateway.shadow.counts.items()))
    return document
