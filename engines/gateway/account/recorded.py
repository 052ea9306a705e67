"""The event log of a window, which `fairsched audit` reads."""

from fairsched.engines.gateway.window import Window
from fairsched.engines.serving import Document, EventBus, ServingLog
from fairsched.model.events import Arrived, Event
from fairsched.model.request import Client, Job


class Recorded:
    """A listener of the window that writes its event log, which `fairsched audit` reads.

    The window is the log's one worker.  A log that cannot be written any more stops, and the gateway serves on.
    """

    def __init__(self, log: ServingLog) -> None:
        self._log = log
        self._bus = EventBus(log, ())

    def client(self, client: Client) -> None:
        """Define the next client."""
        self._bus.client(client)

    def record(self, event: Event) -> None:
        """Write the window's next event."""
        if isinstance(event, Arrived):
            self._bus.request(Job(event.request, event.request.max_output_tokens))
        self._bus.tell([event])

    def status(self) -> Document:
        return {"log": {"written": self._bus.log is not None}}

    def drain(self, window: Window) -> None:
        """Write the last line; without it, as where the policy was set aside, the log is an interrupted one."""
        if window.guard.set_aside is None and self._bus.log is not None:
            self._log.complete(window.guard.state)
        else:
            self._log.close()
