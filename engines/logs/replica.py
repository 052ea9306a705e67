"""What a log drives: a worker (`replayer`), or a gateway's window.

A gateway's `WindowReplica` has no steps: calls arrive, are admitted where there is room, produce, are settled and end.
A log does not say which server took a call, so room is that of all servers together.
"""

from collections.abc import Iterator
from typing import Protocol

import attrs

from fairsched.engines.logs.log import line_of
from fairsched.engines.logs.log_file import RunInfo
from fairsched.model import events as ev
from fairsched.model.request import Request
from fairsched.policies.guarantees import charged_at_once, held_tokens


class DifferenceError(ValueError):
    """The log holds an event that this worker would not have told."""


class Replica(Protocol):
    """What a log drives: a worker or a gateway's window."""

    def follow(self, event: ev.Event) -> Iterator[ev.Event]:
        """Take the next event; yields what the policy observes, in order.  Raises an error if it cannot be."""

    def hears(self, event: ev.Event) -> None:
        """Take an event of another worker, or of none."""

    def end(self) -> None:
        """Note that the log ends.  Raises `DifferenceError` if something is missing."""

    def counts(self) -> tuple[int, int, int]:
        """Return the waiting requests, the running requests, and the cached tokens."""


@attrs.define
class _Flight:
    request: Request
    tokens: int
    begun: bool = False
    settled: bool = False


class WindowReplica(Replica):
    """A gateway's window in the middle of its log.

    Reservations grow with outputs, which a log counts by client; what was reserved at admission is held to the windows.
    Of servers that join later a log says what all make together, and not how large each is.
    """

    def __init__(self, run: RunInfo) -> None:
        self._terms = run.terms
        self._on_lease = run.lease is not None
        self._most = max(run.windows)
        self._windows = self._free = sum(run.windows)
        self._queue: dict[int, Request] = {}
        self._flights: dict[int, _Flight] = {}
        self._produced: dict[int, int] = {}

    @property
    def _unreserved(self) -> int:
        return 0 if self._terms is None else self._terms.of(self._most).unreserved_tokens or 0

    def hears(self, event: ev.Event) -> None:
        """No call goes from window to window."""

    def counts(self) -> tuple[int, int, int]:
        """Return the waiting calls, the calls at servers, and 0: what servers cache is unknown."""
        return len(self._queue), len(self._flights), 0

    def end(self) -> None:
        """Leave open what is open."""

    def follow(self, event: ev.Event) -> Iterator[ev.Event]:
        why = self._take(event)
        if why is not None:
            raise impossible(event, why)
        yield event

    def _take(self, event: ev.Event) -> str | None:
        """Take the event; returns why it cannot be, if it cannot."""
        match event:
            case ev.Arrived(request=request):
                if held_tokens(request.prompt_tokens, request.max_output_tokens) > self._most:
                    return f"no server takes more than {self._most} tokens"
                self._queue[request.id] = request
            case ev.Admitted():
                return self._admitted(event)
            case ev.Prefilled() | ev.Settled():
                return self._happened(event)
            case ev.Decoded():
                self._decoded(event)
            case ev.Finished():
                return self._ended(event.request_id, event.client, event.output_tokens)
            case ev.Cancelled() | ev.Migrated(was_running=False):
                return self._gone(event)
            case ev.WorkerJoined(kv_capacity_tokens=tokens):
                if tokens > self._windows:
                    self._free += tokens - self._windows
                    self._windows = self._most = tokens
            case ev.Lent() if not self._on_lease:
                return "its clients' credit is not on lease"
            case ev.Held() | ev.Lent() | ev.ClientConfigured():
                pass
            case _:
                return "a window tells no such thing"
        return None

    def _decoded(self, event: ev.Decoded) -> None:
        """The log does not say which call produced; the totals at the ends are held to the client's sum."""
        for client, count in zip(event.clients, event.tokens, strict=True):
            self._produced[client] = self._produced.get(client, 0) + count

    def _gone(self, event: ev.Cancelled | ev.Migrated) -> str | None:
        if event.was_running:
            return self._ended(event.request_id, event.client, event.generated_tokens)
        return None if self._queue.pop(event.request_id, None) else "it does not wait"

    def _admitted(self, event: ev.Admitted) -> str | None:
        request = self._queue.pop(event.request_id, None)
        if request is None:
            return "it does not wait"
        at_once = charged_at_once(request.prompt_tokens)
        planned = (at_once, request.prompt_tokens - at_once)
        if (event.extend_tokens, event.cached_prefix_tokens) != planned:
            return f"half of {request.prompt_tokens} tokens is {at_once}"
        most, reserved = request.max_output_tokens, event.reserved_output_tokens
        if not most - self._unreserved <= reserved <= most:
            return f"of {most} outputs {self._unreserved} at most are not reserved"
        flight = self._flights[request.id] = _Flight(request, held_tokens(request.prompt_tokens, reserved))
        self._free -= flight.tokens
        if self._free < 0:
            return f"the windows are {-self._free} tokens too small"
        return None

    def _happened(self, event: ev.Prefilled | ev.Settled) -> str | None:
        flight = self._flights.get(event.request_id)
        if flight is None:
            return "it is not in flight"
        if flight.settled or (isinstance(event, ev.Prefilled) and flight.begun):
            return "it was told already"
        flight.begun |= isinstance(event, ev.Prefilled)
        flight.settled = isinstance(event, ev.Settled)
        return None

    def _ended(self, request_id: int, client: int, output_tokens: int) -> str | None:
        flight = self._flights.pop(request_id, None)
        if flight is None:
            return "it is not in flight"
        self._free += flight.tokens
        left = self._produced.get(client, 0) - output_tokens
        self._produced[client] = left
        return f"its client produced {-left} tokens less" if left < 0 else None


def impossible(event: ev.Event, why: str) -> DifferenceError:
    """Return the error of an event that cannot be, with why."""
    return DifferenceError(f"{text(event)} cannot happen here ({why})")


def text(event: ev.Event) -> str:
    """Return the event as the log has it."""
    return line_of(event).decode()


def texts(events: list[ev.Event]) -> str:
    """Return some events as the log has them."""
    return " ".join(map(text, events)) or "nothing"
