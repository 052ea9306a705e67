"""What a call asks of the account, and what either says of it then."""

import msgspec

from fairsched.engines.gateway.servers import Upstream


class PlaceRequest(msgspec.Struct, frozen=True):
    """What a call wants of an account: a place for the client `name` within `wait_seconds`.

    `declared`: the caller named the outputs itself; `avoid`: servers that failed it already; `program`: what the caller
    says that it is part of; `quota_tokens`: what of quotas its prompt reserves; `prompt_tokens_max`: what its prompt
    may be at most, where that is more.
    """

    name: str
    prompt_tokens: int
    max_output_tokens: int
    declared: bool = True
    wait_seconds: float = 600.0
    avoid: frozenset[int] = frozenset()
    program: str = ""
    quota_tokens: int = 0
    prompt_tokens_max: int = 0


class Placed(msgspec.Struct, frozen=True):
    """A call that may go: its number, where, the limit of its outputs, where its caller named none, and headers that
    its caller is told with the answer."""

    request_id: int
    upstream: Upstream
    max_output_tokens: int | None = None
    headers: dict[str, str] = {}
