"""What a process and the account say to each other: msgpack in frames, over a stream that keeps order.

A frame is its length in four bytes and a list of messages; an empty one says that the sender is there.  The process
says `Hello` first and is answered `Welcome` or `Bye`.  It numbers its calls itself, from 0, and no number twice; so a
call is known by its connection and its number.  After `Withdraw`, or the end of the connection, the account has ended
the call, and what is said of it on the way means nothing.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fairsched.engines.gateway.config import GatewayConfig
from fairsched.engines.gateway.servers import Upstream, Why

VERSION = 1
"""Both ends must have the same."""
FRAME_MAX = 16 << 20
"""Bytes of a frame; a longer one is not ours."""


Number = Annotated[int, Meta(ge=0)]
Tokens = Annotated[int, Meta(ge=0, le=1 << 40)]
Some = Annotated[int, Meta(ge=1, le=1 << 40)]


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


# --- a process says -------------------------------------------------------------------------------------------------


class Hello(_Message, frozen=True):
    """A process is there: the version that it speaks, and its process id."""

    version: int
    pid: Annotated[int, Meta(ge=1)]


class Ready(_Message, frozen=True):
    """The process takes connections."""


class PlaceRequest(msgspec.Struct, frozen=True, array_like=True):
    """What a call wants of an account: a place for the client `name` within `wait_seconds`.

    `declared`: the caller named the outputs itself; `avoid`: servers that failed it already; `program`: what the caller
    says that it is part of; `quota_tokens`: what of quotas its prompt reserves.
    """

    name: str
    prompt_tokens: Some
    max_output_tokens: Some
    declared: bool = True
    wait_seconds: float = 600.0
    avoid: frozenset[Number] = frozenset()
    program: str = ""
    quota_tokens: Tokens = 0


class Place(_Message, frozen=True):
    """A call waits (`Account.place`)."""

    call: Number
    wanted: PlaceRequest


class Withdraw(_Message, frozen=True):
    """The caller left, and nothing of its call was sent: whether it has a place by now or not."""

    call: Number


class Produced(_Message, frozen=True):
    """Output tokens that passed by since the last report, for each of these calls."""

    calls: tuple[Number, ...]
    tokens: tuple[Tokens, ...]


class Finish(_Message, frozen=True):
    """A whole answer (`Account.finish`); `produced`: tokens that passed since the last report."""

    call: Number
    produced: Tokens
    computed_tokens: Tokens | None
    output_tokens: Tokens | None
    cached_tokens: Tokens = 0


class Cancel(_Message, frozen=True):
    """The end of a call whose usage is not known (`Account.cancel`)."""

    call: Number
    produced: Tokens
    outcome: str


class GiveBack(_Message, frozen=True):
    """The end of a call of which the server computed nothing (`Account.give_back`)."""

    call: Number
    outcome: str


class Count(_Message, frozen=True):
    """Calls that ended without a place, by outcome."""

    outcomes: dict[str, Number]


class Failed(_Message, frozen=True):
    """A server failed a call of the client `name`, which waited so long for it if it was late."""

    server: Number
    name: str
    why: Why
    message: str
    retry_after_seconds: float | None = None
    waited_seconds: float = 0.0


class Worked(_Message, frozen=True):
    """A server gave a client an answer."""

    server: Number
    name: str


class Ask(_Message, frozen=True):
    """The process wants the whole gateway's status, metrics, or what clients used."""

    ticket: Number
    what: Literal["status", "metrics", "usage"]


class Weigh(_Message, frozen=True):
    """An administrator gives clients other weights."""

    ticket: Number
    weights: dict[str, int]


ToAccount = (
    Weigh | Hello | Ready | Place | Withdraw | Produced | Finish | Cancel | GiveBack | Count | Failed | Worked | Ask
)  # fmt: skip


# --- the account says -----------------------------------------------------------------------------------------------


class Welcome(_Message, frozen=True):
    """The account takes calls: the configuration in force, and the servers that take calls."""

    config: GatewayConfig
    upstreams: tuple[Upstream, ...]


class Bye(_Message, frozen=True):
    """The account takes nothing from this process, and why."""

    why: str


class Placed(_Message, frozen=True):
    """A call that may go: its number, where, the priority that the server is told, if it is told one, the limit of its
    outputs, where its caller named none, and headers that its caller is told with the answer."""

    request_id: Number
    upstream: Upstream
    priority: int | None = None
    max_output_tokens: Some | None = None
    headers: dict[str, str] = {}


class Refused(_Message, frozen=True):
    """The call goes nowhere (`CallError`)."""

    call: Number
    status: int
    message: str
    retry_after_seconds: int | None
    code: str | None = None
    headers: dict[str, str] = {}


class Answer(_Message, frozen=True):
    """What was asked for: JSON, or the text of the metrics.  `error`: why there is none, and the status and the seconds
    to wait that its caller is told."""

    ticket: Number
    body: bytes
    error: str = ""
    status: int = 500
    retry_after_seconds: int | None = None


class Upstreams(_Message, frozen=True):
    """The servers that take calls, when they change."""

    upstreams: tuple[Upstream, ...]


class Hung(_Message, frozen=True):
    """A server does not answer (`Account.hung`)."""

    server: Number


class Configured(_Message, frozen=True):
    """The configuration that is in force from now on."""

    config: GatewayConfig


ToProcess = Welcome | Bye | Placed | Refused | Answer | Upstreams | Hung | Configured

_encode = msgspec.msgpack.Encoder().encode
decoder_of_process: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(list[ToAccount])
decoder_of_account: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(list[ToProcess])


def frame(messages: list[Any]) -> bytes:
    """Return the frame of these messages."""
    body = _encode(messages)
    return len(body).to_bytes(4, "big") + body
