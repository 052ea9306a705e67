"""Workers that die: each in its own way, at a call that was chosen beforehand."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Literal

import attrs

from fairsched.engines.serving.cluster.worker import Cadence, Command, Recipe, ServingReport, WorkerConfig, WorkerHost

How = Literal["deaf", "untold", "silent", "stillborn"]
"""Dies before it hears the commands; after it served and before it reports; serves and never answers; never comes."""


class WorkerDiedError(RuntimeError):
    """What a call of a dead worker comes to."""


@attrs.frozen
class Death:
    """At which call a worker dies, from 1 on, and how."""

    call: int
    how: How


class FlakyWorkers:
    """Starts workers that serve within the call; the first die as `deaths` say, one after the other, None: never."""

    def __init__(self, recipe: Recipe, deaths: Sequence[Death | None] = ()) -> None:
        self.recipe = recipe
        self.started: list[FlakyWorker] = []
        self._deaths: Iterator[Death | None] = iter(deaths)

    def __call__(self, config: WorkerConfig) -> "FlakyWorker":
        self.started.append(FlakyWorker(self.recipe, config, next(self._deaths, None)))
        return self.started[-1]

    @property
    def alive(self) -> "list[FlakyWorker]":
        """The workers that have not died and were not stopped."""
        return [worker for worker in self.started if worker.alive]


class FlakyWorker:
    """A worker that serves within the call, until it dies."""

    def __init__(self, recipe: Recipe, config: WorkerConfig, death: Death | None) -> None:
        self.config = config
        self.host = WorkerHost(recipe, config)
        self.alive = True
        self._death = death
        self._calls = 0

    def serve(self, commands: Sequence[Command], pace: Cadence) -> "Future[ServingReport]":
        future: Future[ServingReport] = Future()
        self._calls += 1
        death = self._death
        dies = death is not None and (self._calls >= death.call or death.how == "stillborn")
        if death is None or not dies:
            future.set_result(self.host.serve(commands, pace))
            return future
        self.alive = False
        if death.how in ("untold", "silent"):
            self.host.serve(commands, pace)
        if death.how != "silent":
            future.set_exception(WorkerDiedError(f"worker {self.config.worker} died at call {self._calls}"))
        return future

    def stop(self) -> None:
        self.alive = False
        self.host.close()
