"""What all tests share: budgets, and whose warnings are errors."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from fairsched.verify.conformance.strategies import FULL, REDUCED
from tests.support.kept.results import KeptResults
from tests.support.ray_here import ray_here

RAY_START_S = 120.0
"""A Ray that has not started by then does not start."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that say how much of the tests is run."""
    parser.addoption("--full-budget", action="store_true", help="run nightly checks and properties at full length")
    parser.addoption("--recompute", action="store_true", help="run tests marked `kept` whose result is known as well")
    parser.addoption("--record", action="store_true", help="write the results of tests marked `kept` down")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the Hypothesis profile before any test module is imported, since `@settings` inherits from it then; let
    no terminal have a width."""
    settings.load_profile(FULL if config.getoption("--full-budget") else REDUCED)
    config.pluginmanager.register(KeptResults(config), "kept-results")
    # Processes of pytest-xdist have one, at which commands would break their lines.
    os.environ.pop("COLUMNS", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let somebody else's engine warn without failing our tests."""
    for item in items:
        if item.get_closest_marker("integration"):
            item.add_marker(pytest.mark.filterwarnings("default"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a CUDA device where torch sees none."""
    if item.get_closest_marker("cuda"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("torch sees no CUDA device")


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over modules, solvers and tests: it has seen them, and they stay."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def full_budget(pytestconfig: pytest.Config) -> bool:
    """Whether a `nightly` check may take its full time, or must do with a reduced number of cases."""
    return bool(pytestconfig.getoption("--full-budget"))


@pytest.fixture(scope="session")
def by_night(full_budget: bool) -> None:
    """Skip what asks for it, unless checks may take their full time."""
    if not full_budget:
        pytest.skip("runs with --full-budget")


@pytest.fixture(scope="module")
def ray_started() -> Iterator[None]:
    """Ray on this machine alone, small, and gone afterwards.

    Where Ray itself does not start (no shared memory, no sockets), nothing can be said about its workers.
    """
    pytest.importorskip("ray")
    begun = "import ray; ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False); ray.shutdown()"
    quiet = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        subprocess.run([sys.executable, "-c", begun], env=quiet, check=True, capture_output=True, timeout=RAY_START_S)
    except subprocess.SubprocessError as error:
        pytest.skip(f"Ray does not start on this machine: {getattr(error, 'stderr', None) or error}")
    with ray_here():
        yield
