"""What a policy inside an engine says of itself: the status of its tracker, as a document and as samples."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

from fairsched.engines import serving
from fairsched.engines.adapters.common.settings import Chosen, InsideSettings, own_file
from fairsched.engines.adapters.common.tracker import RequestTracker
from fairsched.engines.files import write_whole
from fairsched.model.monitor import Monitor

REPORT_SECONDS = 10.0
"""How often a report is written while the engine serves."""
OUTCOMES = ("finished", "cancelled")


class TrackerStatus(serving.ServiceStatus):
    """A listener of a tracker's events, with the `tracker` once there is one; `uncovered` counts requests beside it."""

    def __init__(self, monitor: Monitor | None) -> None:
        super().__init__(monitor)
        self.tracker: RequestTracker[Any] | None = None
        self.uncovered: Callable[[], int] = int

    def document(self) -> serving.Document:
        assert self.tracker is not None
        tracker, guard, tokens = self.tracker, self.tracker.guard, self.tokens
        said: serving.Document = {
            "policy": getattr(guard.policy, "name", type(guard.policy).__name__),
            "kv_capacity_tokens": tracker.memory.capacity_tokens,
            "outputs_reserved": tracker.memory.reserves,
            "clients": {
                client.name: {
                    "weight": client.weight,
                    **{f"{phase}_tokens": tokens[client.id, phase] for phase in serving.PHASES},
                }
                for client in list(tracker.clients.all)
            },
            "outcomes": {outcome: self.outcomes[outcome] for outcome in OUTCOMES},
            "preemptions": self.preemptions,
            "uncovered_requests": self.uncovered(),
            "interventions": {cause: guard.interventions[cause] for cause in get_args(serving.AdmissionCause)},
            "set_aside": guard.set_aside,
            "promise": None,
        }
        report = self.report()
        if report is not None and self.monitor is not None:
            promise = self.monitor.promise
            theorems = [theorem.id for theorem in promise.theorems]
            said["promise"] = {"theorems": theorems, "charge_max": promise.charge_max} | serving.promise_document(
                report
            )
        return said

    def write(self, path: Path) -> None:
        """Write the document as a file.  Raises `OSError`."""
        write_whole(path, json.dumps(self.document(), indent=1) + "\n")

    def samples(self) -> Iterator[serving.Sample]:
        assert self.tracker is not None
        tracker, said = self.tracker, self.document()
        for name, client in said["clients"].items():
            for phase in serving.PHASES:
                yield "client_service_tokens_total", {"client": name, "phase": phase}, client[f"{phase}_tokens"]
        for cause, count in said["interventions"].items():
            yield "guard_interventions_total", {"cause": cause}, count
        for outcome, count in said["outcomes"].items():
            yield "requests_total", {"outcome": outcome}, count
        yield "policy_set_aside", {}, said["set_aside"] is not None
        yield "waiting_requests", {}, len(tracker.waiting)
        yield "running_requests", {}, len(tracker.running)
        yield "kv_free_tokens", {}, tracker.memory.free_tokens
        yield from self.promised()

    def promise_text(self, bound: str = "", *, nothing: str = "promises nothing") -> str:
        """Return a sentence for the engine's log: what the policy promises, with `bound` after it."""
        said = self.document()
        text = f"policy {said['policy']}, {said['kv_capacity_tokens']:,} tokens of KV cache: "
        promise = said["promise"]
        if promise is None or promise["gap_bound"] is None:
            return text + nothing
        name = "U" if said["outputs_reserved"] else "U_dyn"
        return text + (
            f"two clients of equal weight that wait differ by at most {promise['gap_bound']:,} cost units, "
            f"{name} = {promise['charge_max']:,}{bound}"
        )


class Outputs:
    """The log, the report and the metrics of one engine, as its settings say; of several, `rank` is in their names."""

    def __init__(self, settings: InsideSettings, status: TrackerStatus, rank: int, log: logging.Logger) -> None:
        self._settings = settings
        self._status = status
        self._rank = rank
        self._log = log
        self._report_at = time.monotonic()

    def event_log(
        self, chosen: Chosen, engine: str, kv_capacity_tokens: int, **parameters: int
    ) -> serving.ServingLog | None:
        """Begin the event log, if one is asked for; `parameters` are the engine's, for readers of the log."""
        if self._settings.log is None:
            return None
        path, said = own_file(self._settings.log, self._rank), chosen.parameters | parameters
        return serving.ServingLog(path, chosen.policy.name, said, kv_capacity_tokens=kv_capacity_tokens, name=engine)

    def serve_metrics(self) -> Callable[[], None]:
        """Answer scrapes, if that is asked for; what is returned stops it.  Raises `OSError` for a taken port."""
        if self._settings.metrics_port is None:
            return lambda: None
        from fairsched.engines.serving import serve

        port = self._settings.metrics_port + self._rank
        return serve(self._status.samples, self._settings.metrics_host, port, self._rank)

    def report(self, *, if_due: bool = False) -> None:
        """Write the report, if one is asked for; a process that is killed leaves the one of a few seconds ago."""
        if self._settings.report is None or (if_due and time.monotonic() < self._report_at):
            return
        self._report_at = time.monotonic() + REPORT_SECONDS
        try:
            self._status.write(own_file(self._settings.report, self._rank))
        except Exception as error:  # No report is worth an engine.
            self._log.warning("the report cannot be written: %s", error)
