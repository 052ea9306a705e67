"""The way of a request from worker to worker: its phases, and what happened where."""

import attrs

from fairsched.engines.analysis.explained.explanation import Moment
from fairsched.engines.analysis.phases import PHASES, Phase, begins_phase, phase_of
from fairsched.model import events as ev


def request_of(event: ev.Event) -> int | None:
    """The request that an event is about; None for one about no single request."""
    return event.request.id if isinstance(event, ev.Arrived) else getattr(event, "request_id", None)


@attrs.define
class RequestPath:
    """Where a request was and is, from its own events: nanoseconds by phase, in order, and moments.

    `moved` says whether KV of it was to go to another worker.
    """

    phases: dict[Phase, int] = attrs.field(factory=lambda: dict.fromkeys(PHASES, 0))
    moments: list[Moment] = attrs.field(factory=list)
    moved: bool = False
    _has_first: bool = False
    _phase: Phase | None = None
    _since_ns: int = 0

    def saw(self, event: ev.Event) -> None:
        """The next event of the request."""
        if begins_phase(event, self._phase):
            if self._phase is not None:
                self.phases[self._phase] += event.time_ns - self._since_ns
            ends_prefill = isinstance(event, ev.Prefilled) and not self._has_first
            self._has_first |= isinstance(event, ev.Prefilled)
            self._phase, self._since_ns = phase_of(event, self._has_first), event.time_ns
            if ends_prefill:
                self._note(event, f"first token at worker {event.worker}")
        match event:
            case ev.Arrived(worker=worker) if worker == ev.NOWHERE:
                self._note(event, "waits at no worker")
            case ev.Arrived(worker=worker, kv_tokens=kv):
                self._note(event, f"arrives at worker {worker}" + (f" with the KV of {kv:,} tokens" if kv else ""))
            case ev.Admitted():
                self._note(event, f"enters the batch of worker {event.worker}")
            case ev.Migrated():
                self._note(event, f"leaves worker {event.worker}")
            case ev.TransferStarted(target=target, kv_tokens=kv):
                self.moved = True
                self._note(event, f"the KV of {kv:,} tokens goes from worker {event.worker} to worker {target}")
            case ev.TransferFailed(target=target):
                self.moved = True
                self._note(event, f"its KV does not come to worker {target}: the link, or an end of it, failed")

    def _note(self, event: ev.Event, what: str) -> None:
        self.moments.append(Moment(event.time_ns, what))
