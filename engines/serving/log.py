"""What a live engine tells of: an `EventBus` to its listeners and its log, the file that a simulated run writes, line
by line while the engine serves.

A log or listener that fails is not called again, and the engine serves on: the failure is logged.

Clients and requests are not known beforehand, so each is defined when it comes.  Where it is not known how long an
output will be, its definition says the most that it may be, and a `Finished` before that is an early end.  Only labels
of time are measured; so `fairsched audit --replay` rebuilds every state and compares every hash, and `--explain`
answers.

What is not in a log is a policy's state that the guard had to make anew: a replay of such a run says that the states
differ.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Protocol

from fairsched.engines.logs import CanonicalLog, LogWriter, RunInfo, params_of
from fairsched.model.events import Event
from fairsched.model.machine import DecodePiece, LatencyModel
from fairsched.model.request import Client, Job, Workload
from fairsched.policies.gates import Terms
from fairsched.policies.guarantees import WindowTerms

_log = logging.getLogger("fairsched.engine")

MEASURED = LatencyModel(
    name="measured",
    source="a live engine: time is what the clock said; within a run of decode steps it is shared out evenly",
    prefill_constant_ns=1,
    prefill_token_ns=0,
    prefill_attention_ps=0,
    decode=(DecodePiece(1, 1, 0, 0),),
    kv_capacity_tokens=2,
)


Listener = Callable[[list[Event]], None]
"""Receive the events of each transition, in order.  A listener must not call the engine."""


class EventLog(Protocol):
    """Where a live engine writes what happens."""

    def define_client(self, client: Client) -> None:
        """Make the next client."""

    def define_request(self, job: Job) -> None:
        """Define the next request; its `output_tokens` are those that it produces unless it stops earlier."""

    def record(self, events: list[Event]) -> None:
        """Record the events of a transition."""


class EventBus:
    """The log, if there is one, and then the listeners, in their order."""

    def __init__(self, log: EventLog | None, listeners: Sequence[Listener]) -> None:
        self.log = log
        self.listeners = list(listeners)

    def client(self, client: Client) -> None:
        self._write(lambda log: log.define_client(client))

    def request(self, job: Job) -> None:
        self._write(lambda log: log.define_request(job))

    def tell(self, events: list[Event]) -> None:
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


class ServingLog(EventLog):
    """A log being written: the `log` of an `Engine` or of a `Cluster`, and a context manager.

    `policy` is the name by which `fairsched audit` finds the policy (a shipped one's, or `module:attribute`), `params`
    all its parameters; a cluster's log has a `router`, and as many `workers` as it may have, a gateway's has the
    `windows` of its servers with their `terms`, the policy's `state` if it went on from one, the terms of its `lease`
    if clients' credit is on lease, and `begun_ns`.  Call `complete` when the engine is idle or closed; a log without is
    that of an interrupted run, and readable up to where it ends.  Raises `OSError` where the file cannot be written.
    """

    def __init__(
        self,
        path: Path,
        policy: str,
        params: Mapping[str, object],
        *,
        kv_capacity_tokens: int,
        router: str = "none",
        workers: int = 1,
        name: str = "live",
        latency: LatencyModel = MEASURED,
        windows: tuple[int, ...] = (),
        terms: WindowTerms | None = None,
        state: dict[str, object] | None = None,
        lease: Terms | None = None,
        begun_ns: int | None = None,
    ) -> None:
        run = RunInfo(
            *(policy, params_of(params), router, workers, kv_capacity_tokens, latency, name),
            windows=windows,
            terms=terms,
            state=state,
            lease=lease,
            begun_ns=begun_ns,
        )
        self._writer = LogWriter(path, metadata.version("fairsched"), run, Workload(name, (), ()))
        self._canonical = CanonicalLog(self._writer)

    def define_client(self, client: Client) -> None:
        self._writer.define_client(client)

    def define_request(self, job: Job) -> None:
        self._writer.define_request(job)

    def record(self, events: list[Event]) -> None:
        self._canonical.record(events)

    def complete(self, *policy_states: object) -> str:
        """Write the last line, with the digest of each worker's policy state, and close the file; returns the hash."""
        sha256 = self._canonical.sha256()
        self._writer.complete(sha256, policy_states)
        self.close()
        return sha256

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> "ServingLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
