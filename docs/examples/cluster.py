"""A cluster of two workers in this process, one more and one that leaves."""

import tempfile
from pathlib import Path

from fairsched.engines.serving import InProcess, LiveCluster, Recipe, ServingLog, ServingThread
from fairsched.engines.torch import TorchSpec
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM, FCFS
from fairsched.policies.registry import parameters
from fairsched.policies.routers import JoinShortestQueue

spec, capacity = TorchSpec("tiny", batch_max=32), 2048
policy, router = DLPM(batching=Chunked(max_running=spec.batch_max)), JoinShortestQueue()


def make_executor():
    """Called where the worker runs, and again if its executor fails."""
    return spec.executor(spec.load(), capacity)


recipe = Recipe(policy, make_executor, capacity, fallback=FCFS())
path = Path(tempfile.mkdtemp()) / "cluster.jsonl"
log = ServingLog(path, policy.name, parameters(policy), kv_capacity_tokens=capacity, router=router.name, workers=4)
cluster = LiveCluster(policy, router, InProcess(recipe), kv_capacity_tokens=capacity, workers=2, workers_max=4, log=log)

with ServingThread(cluster) as serving:
    streams = [serving.ask(client, [72, 101, 108, 108, 111], 8) for client in ("gold", "free", "gold")]
    serving.call(lambda cluster: cluster.add_worker())  # takes requests from its first report on
    serving.call(lambda cluster: cluster.drain_worker(0))  # finishes what it has, and leaves
    assert [len(list(stream)) for stream in streams] == [8, 8, 8]
log.complete(*cluster.policy_states)
