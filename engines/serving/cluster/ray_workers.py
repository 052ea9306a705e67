"""Workers as Ray actors: one process each, on this machine or on others.

Ray starts and finds processes, and says when one is gone; all else is the cluster's.  Ray restarts no actor here:
an actor that came back by itself would have forgotten what every client owes.  `ray.init` is the caller's, and so are
the resources of an actor.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import ray

from fairsched.engines.serving.calls import settle
from fairsched.engines.serving.cluster import worker as wire
from fairsched.engines.serving.cluster.worker import ServingReport


class RayWorkers:
    """Starts workers as actors; `options` are Ray's, such as `num_gpus=1` or `scheduling_strategy="SPREAD"`.

    The recipe travels to the actor's process, and makes the executor there.
    """

    def __init__(self, recipe: wire.Recipe, **options: object) -> None:
        self._recipe = recipe
        self._actor: Any = ray.remote(_Actor).options(**options, max_restarts=0, max_task_retries=0)

    def __call__(self, config: wire.WorkerConfig) -> wire.Worker:
        return _RayWorker(self._actor.remote(self._recipe, config))


class _Actor:
    """What runs in the actor's process."""

    def __init__(self, recipe: wire.Recipe, config: wire.WorkerConfig) -> None:
        self._host = wire.WorkerHost(recipe, config)

    def serve(self, commands: bytes, pace: wire.Cadence) -> bytes:
        return wire.encode(self._host.serve(wire.commands_from(commands), pace))


class _RayWorker:
    """An actor by its handle."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def serve(self, commands: Sequence[wire.Command], pace: wire.Cadence) -> "Future[ServingReport]":
        future: Future[ServingReport] = Future()
        answer: Future[bytes] = self._actor.serve.remote(wire.encode(commands), pace).future()
        answer.add_done_callback(lambda answered: settle(future, lambda: wire.report_from(answered.result())))
        return future

    def stop(self) -> None:
        ray.kill(self._actor, no_restart=True)
