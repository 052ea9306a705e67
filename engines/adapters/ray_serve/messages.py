"""What a handle and the actor say to each other, as msgpack.

A handle says things in order: it asks, leaves, tells ends, and which replicas it sees.  Whatever may have been lost, it
says `HandleHello` again with all that is open, and both go on from that.
"""

from typing import Literal

import msgspec

Outcome = Literal["answered", "left", "given back"]


class AskPlace(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A call waits.  `ticket` is the handle's own number; `name` is the call's id in Serve, under which a replica
    may report what it used."""

    ticket: int
    name: str
    client: str
    prompt_tokens: int
    max_output_tokens: int


class HeldPlace(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A call that is in flight at a replica: in a `HandleHello`, or told when it went around the policy.

    `number` is its placement's, 0 if it has none.
    """

    ask: AskPlace
    replica: str
    number: int


class EndedCall(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A call that was answered, left by its caller, or given back by its replica, of which nothing was computed."""

    ticket: int
    outcome: Outcome


class Replicas(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The replicas that the handle sees, and how many calls each takes at a time."""

    replicas: dict[str, int]


class Died(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A replica that is dead."""

    replica: str


Message = AskPlace | HeldPlace | EndedCall | Replicas | Died


class Accounts(msgspec.Struct, frozen=True):
    """What clients owe, kept by every handle for an actor that is made anew.

    `number`: placements up to this one are in it.  `state` is the policy's, as its `state_to_json` makes it.
    """

    number: int
    policy: str
    clients: tuple[tuple[str, int], ...]
    state: dict[str, object]


class HandleHello(msgspec.Struct, frozen=True):
    """All that is open at a handle, and how many calls went around the policy since the last one."""

    replicas: dict[str, int]
    waiting: tuple[AskPlace, ...] = ()
    held: tuple[HeldPlace, ...] = ()
    accounts: Accounts | None = None
    around: int = 0


class PlacedCall(msgspec.Struct, frozen=True, array_like=True):
    """The call goes to that replica now; or, with a refusal, nowhere ever."""

    ticket: int
    replica: str
    number: int
    refusal: str = ""


class CoordinatorAnswer(msgspec.Struct, frozen=True):
    """What the actor answers."""

    placed: tuple[PlacedCall, ...] = ()
    accounts: Accounts | None = None
    known: bool = True
    """False: the actor knows nothing of this handle, which must say `HandleHello`."""


encode = msgspec.msgpack.Encoder().encode
messages_of = msgspec.msgpack.Decoder(tuple[Message, ...]).decode
hello_of = msgspec.msgpack.Decoder(HandleHello).decode
heard_of = msgspec.msgpack.Decoder(CoordinatorAnswer).decode
