"""The event bus of an engine: its log, which must know clients and requests before events name them, and listeners.

A log or listener that fails is not called again, and the engine serves on: the failure is logged.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from fairsched.model.events import Event
from fairsched.model.request import Client, Job

_log = logging.getLogger("fairsched.engine")

Listener = Callable[[list[Event]], None]
"""Receive the events of each transition, in order.  A listener must not call the engine."""


class EventLog(Protocol):
    """Where a live engine writes what happens."""

    def define_client(self, client: Client) -> None:
        """The next client."""

    def define_request(self, job: Job) -> None:
        """The next request; its `output_tokens` are those that it produces unless it stops earlier."""

    def record(self, events: list[Event]) -> None:
        """The events of a transition."""


class EventBus:
    """The log, if there is one, and then the listeners, in their order."""

    def __init__(self, log: EventLog | None, listeners: Sequence[Listener]) -> None:
        self.log = log
        self.listeners = list(listeners)

    def client(self, client: Client) -> None:
        """Define a new client."""
        self._write(lambda log: log.define_client(client))

    def request(self, job: Job) -> None:
        """Define a request that events will name."""
        self._write(lambda log: log.define_request(job))

    def tell(self, events: list[Event]) -> None:
        """Report the events of a transition."""
        if self.log is not None:
            self._write(lambda log: log.record(events))
        for listener in self.listeners:
            try:
                listener(events)
            except Exception:
                _log.exception("a listener failed, and is not called again")
                self.listeners = [other for other in self.listeners if other != listener]

    def _write(self, write: Callable[[EventLog], None]) -> None:
        if self.log is not None:
            try:
                write(self.log)
            except Exception:
                _log.exception("the event log failed, and is not written any more")
                self.log = None
