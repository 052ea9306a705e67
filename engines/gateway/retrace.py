"""A gateway's window and its policy's state, rebuilt from the events of a log.

A window has no steps: calls come, are let in where there is room, produce, are settled and end.  Each event is held to
what the window would have told, and the policy observes it all.  Which server took a call is not in a log, so room is
that of all servers together.
"""

from typing import Any

import attrs

from fairsched.engines.log import line_of
from fairsched.engines.log_file import RunInfo
from fairsched.engines.retrace import DifferenceError
from fairsched.model.events import (
    Admitted,
    Arrived,
    Cancelled,
    ClientConfigured,
    Decoded,
    Event,
    Finished,
    Prefilled,
    Settled,
    WorkerJoined,
)
from fairsched.model.request import Request
from fairsched.model.window import charged_at_once, held_tokens
from fairsched.policies.base import LocalPolicy


@attrs.define
class _Flight:
    request: Request
    begun: bool = False
    settled: bool = False


class WindowRetrace:
    """A window in the middle of its log; `worker` is its number in events."""

    worker = 0

    def __init__(self, policy: LocalPolicy[Any], run: RunInfo) -> None:
        self.policy = policy
        self.policy_state = policy.init() if run.state is None else policy.state_from_json(run.state)
        self._most = max(run.windows)
        self._free = sum(run.windows)
        self._queue: dict[int, Request] = {}
        self._flights: dict[int, _Flight] = {}
        self._produced: dict[int, int] = {}

    @property
    def waiting(self) -> int:
        """Calls that wait."""
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """Calls at servers."""
        return len(self._flights)

    def feed(self, event: Event) -> None:
        """The window's next event.  Raises `DifferenceError` if it cannot be."""
        try:
            why = self._follow(event)
            if why is None:
                self.policy_state = self.policy.observe(self.policy_state, event)
        except Exception as error:
            # The log is input: what it makes a policy raise is said of its line.
            why = f"{type(error).__name__}: {error}"
        if why is not None:
            raise DifferenceError(f"{line_of(event).decode()} cannot happen here ({why})")

    def end(self) -> None:
        """The log ends: whatever is open stays open."""

    def _follow(self, event: Event) -> str | None:
        """Take the event; why it cannot be, if it cannot."""
        match event:
            case Arrived(request=request):
                if held_tokens(request.prompt_tokens, request.max_output_tokens) > self._most:
                    return f"no server takes more than {self._most} tokens"
                self._queue[request.id] = request
            case Admitted():
                return self._admitted(event)
            case Prefilled() | Settled():
                return self._happened(event)
            case Decoded(clients=clients, tokens=tokens):
                # Whose call it was is not told; what they end with is held to the sum.
                for client, count in zip(clients, tokens, strict=True):
                    self._produced[client] = self._produced.get(client, 0) + count
            case Finished():
                return self._ended(event.request_id, event.client, event.output_tokens)
            case Cancelled(was_running=False):
                return None if self._queue.pop(event.request_id, None) else "it does not wait"
            case Cancelled():
                return self._ended(event.request_id, event.client, event.generated_tokens)
            case WorkerJoined() | ClientConfigured():
                pass
            case _:
                return "a window tells no such thing"
        return None

    def _admitted(self, event: Admitted) -> str | None:
        request = self._queue.pop(event.request_id, None)
        if request is None:
            return "it does not wait"
        at_once = charged_at_once(request.prompt_tokens)
        planned = (at_once, request.prompt_tokens - at_once, request.max_output_tokens)
        if (event.extend_tokens, event.cached_prefix_tokens, event.reserved_output_tokens) != planned:
            return f"half of {request.prompt_tokens} tokens is {at_once}, and all outputs are reserved"
        self._free -= held_tokens(request.prompt_tokens, request.max_output_tokens)
        if self._free < 0:
            return f"the windows are {-self._free} tokens too small"
        self._flights[request.id] = _Flight(request)
        return None

    def _happened(self, event: Prefilled | Settled) -> str | None:
        flight = self._flights.get(event.request_id)
        if flight is None:
            return "it is not in flight"
        if flight.settled or (isinstance(event, Prefilled) and flight.begun):
            return "it was told already"
        flight.begun |= isinstance(event, Prefilled)
        flight.settled = isinstance(event, Settled)
        return None

    def _ended(self, request_id: int, client: int, output_tokens: int) -> str | None:
        flight = self._flights.pop(request_id, None)
        if flight is None:
            return "it is not in flight"
        self._free += held_tokens(flight.request.prompt_tokens, flight.request.max_output_tokens)
        left = self._produced.get(client, 0) - output_tokens
        self._produced[client] = left
        return f"its client produced {-left} tokens less" if left < 0 else None
