"""The event log of a gateway, in the form of `engines.serving_log`: `fairsched replay` and `audit` read it.

The window is its one worker.  A log that cannot be written any more stops, and the gateway serves on.
"""

from typing import Any

from fairsched.engines.gateway.window import Window
from fairsched.engines.serving_audience import Audience
from fairsched.engines.serving_log import ServingLog
from fairsched.model.events import Arrived, Event
from fairsched.model.request import Client
from fairsched.model.workload import Job
from fairsched.policies.base import LocalPolicy


class Recorded:
    """A listener of the window that writes `log`."""

    def __init__(self, log: ServingLog) -> None:
        self._log = log
        self._audience = Audience(log, ())

    def client(self, client: Client) -> None:
        """The next client."""
        self._audience.client(client)

    def record(self, event: Event) -> None:
        """The window's next event."""
        if isinstance(event, Arrived):
            self._audience.request(Job(event.request, event.request.max_output_tokens))
        self._audience.tell([event])

    def close(self, window: Window) -> None:
        """The last line, unless the policy was set aside on the way or the log failed: then it is an interrupted
        one."""
        if window.set_aside is None and self._audience.log is not None:
            self._log.complete(window.state)
        else:
            self._log.close()


def state_of(policy: LocalPolicy[Any], state: Any) -> dict[str, Any] | None:
    """A policy's state as a log's first line has it."""
    return None if state is None else policy.state_to_json(state)
