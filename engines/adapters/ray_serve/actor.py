"""The named actor of a deployment, which every handle finds or makes, and which Ray restarts when it dies.

It ends by itself when no handle was there for a while, so that nothing stays behind when Serve shuts down.
"""

import asyncio
from typing import Any

import msgspec
import ray

from fairsched.engines.adapters.ray_serve.connection import Actor
from fairsched.engines.adapters.ray_serve.host import CoordinatorHost
from fairsched.engines.adapters.ray_serve.settings import RouterSettings
from fairsched.engines.serving import Document

NAMESPACE = "fairsched"
"""Ray's namespace for these actors."""


def actor_name(app: str, deployment: str) -> str:
    """Return the name of a deployment's actor."""
    return f"fairsched:{app}:{deployment}"


class _PolicyActor(CoordinatorHost):
    """The host in the actor's process.  It runs from the first `hello` on, and ends the actor when it is idle."""

    def __init__(self, settings: Document) -> None:
        again = ray.get_runtime_context().was_current_actor_reconstructed
        super().__init__(RouterSettings(**settings), again=again)
        self._running: asyncio.Task[None] | None = None

    async def hello(self, handle: str, session: int, raw: bytes) -> bytes:
        if self._running is None:
            self._running = asyncio.create_task(self._run(ray.get_runtime_context().current_actor))
        return await super().hello(handle, session, raw)

    async def _run(self, this: Any) -> None:
        await self.run()
        ray.kill(this, no_restart=True)


def found_or_made(name: str, settings: RouterSettings) -> Actor:
    """Return the actor of that name.  Talks to Ray, and may take a while.  Raises `ConnectionError` without Ray."""
    if not ray.is_initialized():  # It has been shut down: `remote` would start another one, on this machine.
        raise ConnectionError("Ray is not running")
    make = ray.remote(_PolicyActor).options(
        name=name,
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=10_000,  # A handle has two calls there at a time; nothing may wait behind others' waiting.
    )
    made = make.remote(msgspec.structs.asdict(settings))

    async def call(method: str, handle: str, session: int, *raw: bytes) -> bytes:
        answer: bytes = await getattr(made, method).remote(handle, session, *raw)
        return answer

    return call


def found(name: str) -> Any:
    """Return the handle of the actor of that name.  Raises `ValueError` if there is none."""
    return ray.get_actor(name, namespace=NAMESPACE)
