"""The hook in SGLang's own plugin registry, around its own scheduling policy, over its own requests and prefix cache.

SGLang finds the plugin by its entry point and applies it; the engine itself needs CUDA kernels and is not run.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairsched.engines.adapters.sglang.settings import VARIABLE

if importlib.util.find_spec("sglang") is None:
    pytest.skip("SGLang is not installed", allow_module_level=True)

pytestmark = pytest.mark.integration

PARTS = Path(__file__).with_name("sglang_parts.py")
TARGET = "sglang.srt.managers.schedule_policy.SchedulePolicy"


def run(world: str, policy: str, settings: Path | None) -> subprocess.CompletedProcess[str]:
    """A world in a process of its own: what stands in for SGLang's kernels is not for other tests."""
    environ = {key: value for key, value in os.environ.items() if key != VARIABLE}
    if settings is not None:
        environ[VARIABLE] = str(settings)
    command = [sys.executable, "-W", "ignore", str(PARTS), world, policy]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=1200, check=False)


def said(world: str, policy: str, settings: Path | None) -> dict[str, Any]:
    """What a world that went well says."""
    ended = run(world, policy, settings)
    assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return document


def written(folder: Path, text: str) -> Path:
    """Settings in a file."""
    file = folder / "fair.toml"
    file.write_text(text)
    return file


def test_sglang_finds_the_plugin_and_it_does_nothing_unasked() -> None:
    """SGLang runs the entry point, and nothing is hooked: the order is first come, first served."""
    document = said("flood", "fcfs", None)
    assert document["plugins"] == ["fairsched.integrations.sglang:register"]
    assert document["hooks"] == []
    assert document["status"] is None
    assert document["let_in"][-4:] == [f"light{i}" for i in range(16, 20)]


def test_asked_light_clients_do_not_wait_for_a_heavy_one(tmp_path: Path) -> None:
    """The real registry wraps the real `calc_priority`: 4 light requests behind 16 heavy ones are all among the first
    8 let in, service is what was computed, and gap and gate hold."""
    document = said("flood", "fcfs", written(tmp_path, 'policy = "vtc"\noutput_tokens_max = 64\n'))
    assert document["hooks"] == [f"{TARGET}.__init__", f"{TARGET}.calc_priority"]
    assert max(i for i, rid in enumerate(document["let_in"]) if rid.startswith("light")) < 8
    status = document["status"]
    for phase in ("prefill", "decode"):
        assert sum(client[f"{phase}_tokens"] for client in status["clients"].values()) == document["computed"][phase]
    assert status["outcomes"] == {"finished": 20, "cancelled": 0}
    assert not any(status["interventions"].values())
    assert status["promise"]["broken_assumptions"] == {}
    assert 0 < status["promise"]["gap"] <= status["promise"]["gap_bound"]


@pytest.mark.parametrize("own", ["fcfs", "lpm"])
def test_cached_prefixes_retractions_and_aborts_are_seen_as_they_were(own: str, tmp_path: Path) -> None:
    """Real requests are matched by the real prefix cache, reset by the real `reset_for_retract`, and aborted."""
    text = 'policy = "fcfs+deficit"\nwithin_client = "sglang"\noutput_tokens_max = 64\n[parameters]\nquantum = 64\n'
    document = said("trouble", own, written(tmp_path, text))
    status = document["status"]
    for phase in ("prefill", "decode"):
        assert sum(client[f"{phase}_tokens"] for client in status["clients"].values()) == document["computed"][phase]
    assert sum(client["cached_tokens"] for client in status["clients"].values()) > 0
    assert status["outcomes"] == {"finished": 10, "cancelled": 2}
    assert status["preemptions"] == 1
    assert not any(status["interventions"].values())
    assert status["set_aside"] is None
    assert status["promise"]["bound_violations"] == 0


def test_settings_that_cannot_be_used_stop_sglang_with_one_line(tmp_path: Path) -> None:
    """SGLang itself goes on without a plugin that raises; who asked for fairness is not served without."""
    ended = run("flood", "fcfs", written(tmp_path, "polcy = 1\n"))
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.splitlines()[-1].startswith("fairsched: ")
    assert "polcy" in ended.stderr
    assert "Traceback" not in ended.stderr
