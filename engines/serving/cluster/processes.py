"""Workers as child processes of this one, on this machine: what a crash or a kill takes along is one worker.

A process is started anew, not forked, so the recipe travels by pickle: its `make_executor` is a function that a module
has.  A script that starts workers does so under `if __name__ == "__main__":`.  A worker whose parent is gone ends.
"""

import multiprocessing
import pickle
import signal
from collections.abc import Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection

import attrs

from fairsched.engines.serving.calls import CallThread
from fairsched.engines.serving.cluster import worker as wire
from fairsched.engines.serving.cluster.worker import Cadence, ServingReport

_GRACE_S = 5.0
"""For how long a thread may take to see that its process is gone."""
_REPORT, _ERROR = b"r", b"e"


class WorkerProcessError(RuntimeError):
    """What a call of a worker comes to whose process failed, was killed, or cannot be started."""


@attrs.frozen
class Processes:
    """Starts workers as processes.  Raises `ValueError` for a recipe that cannot travel to them."""

    recipe: wire.Recipe

    def __call__(self, config: wire.WorkerConfig) -> wire.Worker:
        return _ProcessWorker(self.recipe, config)


class _ProcessWorker:
    """A worker in a process of its own, and the thread that talks to it."""

    def __init__(self, recipe: wire.Recipe, config: wire.WorkerConfig) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._name = f"fairsched-worker-{config.worker}"
        self._process = context.Process(target=_work, args=(theirs, recipe, config), name=self._name, daemon=True)
        try:
            self._process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(f"the recipe cannot be sent to a process: {error}") from error
        finally:
            theirs.close()
        self._thread = CallThread(self._name)

    def serve(self, commands: Sequence[wire.Command], pace: Cadence) -> "Future[ServingReport]":
        return self._thread.later(lambda: self._exchange(wire.encode(commands), pace))

    def _exchange(self, commands: bytes, pace: Cadence) -> ServingReport:
        try:
            self._ours.send((commands, pace))
            answer = self._ours.recv_bytes()
        except (EOFError, OSError) as error:
            self._process.join(_GRACE_S)
            raise WorkerProcessError(f"process {self._process.pid} {_end_of(self._process.exitcode)}") from error
        if answer[:1] == _ERROR:
            raise WorkerProcessError(answer[1:].decode())
        return wire.report_from(answer[1:])

    def stop(self) -> None:
        self._process.kill()
        self._process.join(_GRACE_S)
        self._thread.stop(_GRACE_S)
        self._ours.close()


def _end_of(exit_code: int | None) -> str:
    if exit_code is None:
        return "closed its end"
    return f"was ended by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with status {exit_code}"


def _work(pipe: "Connection[bytes, tuple[bytes, Cadence]]", recipe: wire.Recipe, config: wire.WorkerConfig) -> None:
    """Run in the process: serve until the other end is closed."""
    # An interrupt from the keyboard reaches all processes; it is the parent's to decide what then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        host = wire.WorkerHost(recipe, config)
        while True:
            try:
                commands, pace = pipe.recv()
            except (EOFError, OSError):
                return
            pipe.send_bytes(_REPORT + wire.encode(host.serve(wire.commands_from(commands), pace)))
    except Exception as error:
        pipe.send_bytes(_ERROR + f"{type(error).__name__}: {error}".encode())
