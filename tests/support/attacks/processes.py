"""Engines and a gateway as processes of their own, for attacks in real time."""

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.support.adapters.gateway_processes import COMMAND, LISTENING, ROOT, process
from tests.support.attacks.table import Attack

ENGINE = Path(__file__).with_name("engine.py")


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree / "src")}


@contextmanager
def engines(attack: Attack) -> Iterator[list[str]]:
    """Engines: their addresses."""
    command = [sys.executable, str(ENGINE), "--slots", str(attack.slots), "--interval", str(attack.interval)]
    with ExitStack() as stack:
        started = [stack.enter_context(process(command, env=_environment(ROOT))) for _ in range(attack.engines)]
        yield [f"http://127.0.0.1:{int(line)}" for _, line in started]


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
        how = {"stderr": errors, "env": _environment(tree), "preexec_fn": limited}
        with process([*COMMAND, str(path)], folder, 2.0, **how) as (started, line):
            found = LISTENING.search(line)
            assert found is not None, f"the gateway did not start: {line}{(folder / 'errors.txt').read_text()}"
            yield found[1], started.pid


def memory_mib(pid: int) -> float:
    """Memory that a process and its children have in use."""
    found = 0.0
    with suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text()
        found = int(text.partition("VmRSS:")[2].split()[0]) / 1024
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found += sum(memory_mib(int(child)) for child in children)
    return found
