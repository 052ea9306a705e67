"""A request in flight, and the events by which a window tells of it."""

import attrs

from fairsched.model.events import Admitted, Arrived, Cancelled
from fairsched.model.request import Prompt, Request
from fairsched.policies.guarantees import charged_at_once, held_tokens

WINDOW = 0
"""The window as a worker: what the policy and its monitor see."""


@attrs.frozen
class Placement:
    """The request goes to the server now."""

    request_id: int
    server: int


@attrs.define
class CallInFlight:
    """A request in flight: its server, the outputs that it has reserved there, what of its prompt was charged, and when
    it came there.

    `produced` output tokens came so far; `counted` of them are charged, of a request whose outputs are not seen more by
    an estimate; it had reserved `first` of them at first.  The prompt of a `quiet` one is in the accounts that the
    window began with: no listener knows it.
    """

    request: Request
    server: int
    reserved: int
    charged: int
    begun_ns: int
    quiet: bool = False
    produced: int = 0
    counted: int = 0
    first: int = attrs.field(init=False, default=attrs.Factory(lambda flight: flight.reserved, takes_self=True))

    @property
    def unreserved(self) -> int:
        return self.request.max_output_tokens - self.reserved

    @property
    def astray(self) -> bool:
        """Whether it came to far more than it reserved at first: twice that, and an eighth of what it declared."""
        return self.produced > max(2 * self.first, self.request.max_output_tokens // 8)

    @property
    def tokens(self) -> int:
        return held_tokens(self.request.prompt_tokens, self.reserved)


def request_of(request_id: int, client: int, prompt_tokens: int, max_output_tokens: int, now_ns: int) -> Request:
    """Return a request of so many tokens, whose text is not known."""
    return Request(request_id, client, now_ns, Prompt(prompt_tokens), max_output_tokens)


def arrived(request: Request, now_ns: int) -> Arrived:
    """Return the event of a request that waits.

    What is not charged yet is told as tokens that need no computing; memory holds them all the same.
    """
    return Arrived(now_ns, WINDOW, request, 0, request.prompt_tokens - charged_at_once(request.prompt_tokens))


def admitted(request: Request, charged: int, reserved: int, now_ns: int) -> Admitted:
    """Return the event of a request that is let in, with what of its prompt is charged, and what is reserved."""
    cached = request.prompt_tokens - charged
    return Admitted(now_ns, WINDOW, request.id, request.client, charged, cached, reserved)


def cancelled(flight: CallInFlight, uncomputed_tokens: int, now_ns: int) -> Cancelled:
    """Return the event of a request in flight that ends unfinished."""
    request = flight.request
    return Cancelled(now_ns, WINDOW, request.id, request.client, True, uncomputed_tokens, flight.produced)
