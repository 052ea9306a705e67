"""What Ray's processes import for tests: executors that they make for themselves."""

from fairsched.engines.torch import TorchSpec
from fairsched.engines.torch.executor import TorchExecutor

SPEC = TorchSpec("tiny")
CAPACITY = 512


def make_torch() -> TorchExecutor:
    """A tiny model on the CPU, the same weights in every process."""
    return SPEC.executor(SPEC.load(), CAPACITY)
