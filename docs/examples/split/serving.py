"""One worker that computes prompts and one that computes outputs, as processes of this machine."""

from fairsched.engines.serving import LiveCluster, Processes, Recipe, ServingThread, split_roles
from fairsched.engines.torch import TorchSpec
from fairsched.policies.catalog import DLPM, FCFS
from fairsched.policies.routers.phases import SplitJSQ

spec, capacity = TorchSpec("tiny"), 2048


def make_executor():
    """A function of a module, since the recipe travels to the processes."""
    return spec.executor(spec.load(), capacity)


if __name__ == "__main__":
    recipe = Recipe(DLPM(), make_executor, capacity, fallback=FCFS())
    cluster = LiveCluster(DLPM(), SplitJSQ(), Processes(recipe), kv_capacity_tokens=capacity, roles=split_roles("1:1"))
    with ServingThread(cluster) as serving:
        print(list(serving.ask("gold", [72, 101, 108, 108, 111], 8)))
