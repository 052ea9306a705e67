"""Engines and a gateway as processes of their own, for attacks in real time."""

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.attacks.table import Attack

ROOT = Path(__file__).parents[3]
ENGINE = Path(__file__).with_name("engine.py")
LISTENING = re.compile(r"serving .*at (https?://\S+) before")
PROGRAM = "import sys; from fairsched.cli import main; sys.exit(main(sys.argv[1:]))"


@contextmanager
def engines(attack: Attack) -> Iterator[list[str]]:
    """Engines: their addresses."""
    command = [sys.executable, str(ENGINE), "--slots", str(attack.slots), "--interval", str(attack.interval)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(attack.engines)
    ]
    try:
        yield [f"http://127.0.0.1:{int(_first_line(each))}" for each in started]
    finally:
        for each in started:
            each.kill()
            each.communicate()


@contextmanager
def gateway(text: str, folder: Path, *, tree: Path = ROOT, descriptors: int = 8192) -> Iterator[tuple[str, int]]:
    """The gateway of a tree with this configuration: its address and its process.

    What it says of errors is in `errors.txt`, whole when it ended.
    """
    path = folder / "gateway.toml"
    path.write_text(text)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    with (folder / "errors.txt").open("wb") as errors:
        started = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "gateway", str(path)],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": str(tree / "src")},
            cwd=folder,
            text=True,
            preexec_fn=limited,  # noqa: PLW1509 - no thread runs here
        )
        try:
            line = _first_line(started)
            found = LISTENING.search(line)
            if found is None:
                raise RuntimeError(f"the gateway did not start: {line}{(folder / 'errors.txt').read_text()}")
            yield found[1], started.pid
        finally:
            started.terminate()
            try:
                started.communicate(timeout=2)
            except subprocess.TimeoutExpired:
                started.kill()
                started.communicate()


def _first_line(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline()


def memory_mib(pid: int) -> float:
    """Memory that a process and its children have in use."""
    found = 0.0
    with suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text()
        found = int(text.partition("VmRSS:")[2].split()[0]) / 1024
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found += sum(memory_mib(int(child)) for child in children)
    return found
