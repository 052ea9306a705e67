"""What tests with Ray Serve run in other processes: a replica, callers, and a router that keeps its state to itself."""

import asyncio
import os
import time
from collections import Counter
from typing import Any

import ray
from ray import serve

from fairsched.integrations.ray_serve import report_usage

TOKENS = {"prompt_tokens": 10, "max_output_tokens": 10}


class Replica:
    """Answers after a while with its process, as a model would after its tokens."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def __call__(self, request: Any, client: str, prompt_tokens: int, max_output_tokens: int) -> int:
        await asyncio.sleep(self.seconds)
        await report_usage(output_tokens=max_output_tokens, computed_prompt_tokens=prompt_tokens)
        return os.getpid()


@ray.remote(num_cpus=0.1, max_restarts=0)
class Caller:
    """A process with a handle of its own, whose client always has so many calls open."""

    def __init__(self, deployment: str, app: str, client: str) -> None:
        self.handle = serve.get_deployment_handle(deployment, app)
        self.client = client

    async def warm(self) -> None:
        """Have one call answered."""
        await self.handle.remote(0, client=self.client, **TOKENS)

    async def run(self, at_once: int, begin: float, end: float) -> int:
        """Calls answered between two times."""
        answered: Counter[str] = Counter()

        async def loop() -> None:
            while time.time() < end:
                await self.handle.remote(0, client=self.client, **TOKENS)
                answered["in time"] += begin <= time.time() < end

        await asyncio.gather(*(loop() for _ in range(at_once)))
        return answered["in time"]


class Web:
    """An ingress for HTTP."""

    async def __call__(self, request: Any) -> str:
        return f"{await request.body()!r}"
