"""SGLang's real plugin registry, scheduling policy, requests and prefix cache, in a process of their own.

SGLang's engine needs CUDA kernels, which a CPU machine has not: the packages that bring them are empty here, and the
batch that admits, computes and retracts is played.  What is asked of the hook, and what it reads, is SGLang's own.

    python sglang_parts.py WORLD      # a JSON document comes back
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import sys
from array import array
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch

ABSENT = {
    *("IPython", "flashinfer", "gguf", "kernels", "orjson", "pynvml", "quack", "sgl_kernel", "torchao"),
    *("torchvision", "traitlets"),
}
"""What SGLang imports beside the scheduler, and nothing here computes with."""


class Nothing(ModuleType):
    """A package in which there is anything, and nothing works."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds nothing for what is absent."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of a package that is absent."""
        if fullname.split(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Nothing, by that name."""
        return Nothing(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


sys.meta_path.insert(0, Finder())

from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, Req  # noqa: E402
from sglang.srt.managers.schedule_policy import SchedulePolicy  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import InsertParams  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey  # noqa: E402
from sglang.srt.plugins import GENERAL_PLUGINS_GROUP, load_plugins  # noqa: E402
from sglang.srt.plugins.hook_registry import HookRegistry  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402

KV_TOKENS, SEATS = 4096, 2


def cache() -> RadixCache:
    """The real prefix cache over a pool of which there is a size only."""
    allocator = SimpleNamespace(
        size=KV_TOKENS, device="cpu", available_size=lambda: KV_TOKENS, free=lambda *_: None, page_size=1
    )
    tree = RadixCache.create_simulated(mock_allocator=allocator)
    tree.req_to_token_pool = SimpleNamespace(size=SEATS)
    return tree


def request(rid: str, client: str, ids: list[int], most: int) -> Req:
    """A real request."""
    params = SamplingParams(max_new_tokens=most, custom_params={"client": client})
    return Req(rid, "", array("q", ids), params)


class World:
    """A batch of `SEATS` requests, filled from the front of the queue that SGLang's policy has ordered."""

    def __init__(self, policy: str) -> None:
        self.tree = cache()
        self.policy = SchedulePolicy(policy, self.tree, False, False, False)
        self.queue: list[Req] = []
        self.running: list[Req] = []
        self.let_in: list[str] = []
        self.computed = {"prefill": 0, "decode": 0}

    def step(self) -> None:
        """Fill, decode, and see who has ended."""
        if self.queue and len(self.running) < SEATS:
            self.policy.calc_priority(self.queue, SimpleNamespace(reqs=self.running), processed_tokens=0)
            room = SEATS - len(self.running)
            for req in self.queue[:room]:
                self.enter(req)
            self.queue = self.queue[room:]
        for req in list(self.running):
            req.output_ids.append(7)
            self.computed["decode"] += 1
            if len(req.output_ids) >= req.sampling_params.max_new_tokens:
                req.finished_reason = FINISH_LENGTH(len(req.output_ids))
                self.running.remove(req)

    def enter(self, req: Req) -> None:
        """What the prefill adder and `prepare_for_extend` do to a request."""
        req.init_next_round_input(self.tree)
        req.extend_end = len(req.full_untruncated_fill_ids)
        self.computed["prefill"] += req.extend_end - req.prefix_len
        req.extend_batch_idx += 1
        if not req.retracted_stain:
            req.cached_tokens += req.prefix_len - req.already_computed
            req.already_computed = req.extend_end
        ids = req.full_untruncated_fill_ids[: req.extend_end]
        value = torch.arange(len(ids), dtype=torch.int64)
        self.tree.insert(InsertParams(key=RadixKey(token_ids=ids, extra_key=None), value=value))
        self.let_in.append(req.rid)
        self.running.append(req)

    def retract(self, req: Req) -> None:
        """Out of the batch and to the end of the queue."""
        self.running.remove(req)
        req.reset_for_retract()
        self.queue.append(req)

    def abort(self, req: Req) -> None:
        """A caller leaves."""
        if req in self.running:
            req.finished_reason = FINISH_ABORT("gone")
            self.running.remove(req)
        else:
            self.queue.remove(req)

    def said(self) -> dict[str, Any]:
        """What happened, and what the hook says of it after a last look."""
        for _ in range(10_000):
            if not self.queue and not self.running:
                break
            self.step()
        self.policy.calc_priority(self.queue, SimpleNamespace(reqs=[]), processed_tokens=0)
        shim = getattr(self.policy, "fairsched", None)
        status = None if shim is None else shim.status.document()
        return {"let_in": self.let_in, "computed": self.computed, "status": status}


def flood(policy: str) -> dict[str, Any]:
    """16 requests of a heavy client, then 4 of a light one, whose prompts share nothing."""
    world = World(policy)
    for i in range(20):
        client = "heavy" if i < 16 else "light"
        world.queue.append(request(f"{client}{i}", client, [1000 * i + j for j in range(40)], 8))
    return world.said()


def trouble(policy: str) -> dict[str, Any]:
    """Shared prefixes, retractions and callers that leave."""
    world = World(policy)
    reqs = [request(f"r{i}", "ab"[i % 2], list(range(30)) + [1000 * i + j for j in range(10)], 6) for i in range(12)]
    world.queue.extend(reqs)
    world.step()
    world.step()
    world.retract(world.running[-1])
    world.abort(reqs[11])
    world.step()
    world.abort(world.running[0])
    return world.said()


def main() -> None:
    """Load plugins as SGLang's processes do, and play a world."""
    context()
    load_plugins()
    name, policy = sys.argv[1:]
    said = {"flood": flood, "trouble": trouble}[name](policy)
    plugins = [point.value for point in importlib.metadata.entry_points(group=GENERAL_PLUGINS_GROUP)]
    print(json.dumps(said | {"plugins": plugins, "hooks": sorted(HookRegistry._patched)}))  # noqa: T201


def context() -> None:
    """The configuration that a scheduler process publishes before it makes its policy."""
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs

    args = ServerArgs(model_path="dummy", device="cpu")
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))


if __name__ == "__main__":
    main()
