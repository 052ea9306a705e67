"""Ray on this machine alone: small, without a dashboard, with our code and a token of this process."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TOKEN = secrets.token_hex(32)
"""One for the life of this process: Ray reads its token once, so a second Ray with another one would refuse its own."""


@contextmanager
def ray_here() -> Iterator[None]:
    """Start Ray, and shut it down afterwards, whatever happens."""
    import ray

    root = Path(__file__).parents[2]
    paths = {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 << 20,
            log_to_driver=False,
            runtime_env={"env_vars": paths},
        )
        try:
            yield
        finally:
            ray.shutdown()
