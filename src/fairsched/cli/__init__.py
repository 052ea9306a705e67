"""The command line `fairsched`: a command parses its arguments, calls the library, and prints.

Read `compare.py` first.  `arguments.py` has what several commands take, `output.py` how they show progress and write
files.  A command's module is imported when the command is run, so that help and errors come at once.

Bad arguments or input give exit status 2 and one clear line on standard error, never a traceback.  An interrupted
comparison keeps what was computed and exits with 130.
"""

import importlib
import os
import sys
from argparse import ArgumentParser
from collections.abc import Collection, Sequence
from typing import NoReturn

from fairsched import __version__
from fairsched.engines.files import Unwritable

__all__ = ["main", "parser"]

UNWRITABLE = 3
"""Exit status where a run was made, and what came out could not be written."""
INTERRUPTED = 130
"""Exit status after an interrupt from the keyboard."""
COMMANDS = {
    "compare": ("compare", "run policies over a workload and compare them"),
    "policies": ("inputs", "list policies, routers and their parameters"),
    "trace": ("inputs", "look at a trace or a generated workload, or save one"),
    "replay": ("logs", "rebuild every state of a logged run, or run a counterexample again, and compare"),
    "explain": ("logs", "why a request of a logged run waited"),
    "verify": ("verify", "prove the bounds of policies, for your configuration"),
    "certificate": ("verify", "check a certificate again"),
    "calibrate": ("calibrate", "time the torch engine here and fit a latency model"),
    "validate": ("calibrate", "hold the simulator against the torch engine"),
    "reproduce": ("reproduce", "run results of papers again"),
    "scale": ("plan", "grow workers and clients: decisions a second, memory, fairness"),
    "batch": ("plan", "order a batch of offline jobs so that shared prefixes are computed once"),
    "plan": ("plan", "how many workers of which size keep the targets"),
    "search": ("search", "which fleet keeps the targets at the highest rate a GPU, dollar or watt"),
    "gateway": ("gateway", "stand before OpenAI-compatible servers and share them fairly"),
    "serve": ("serve", "serve OpenAI's API with our own engine, to try everything on one machine"),
    "endpoint-picker": ("gateway", "pick endpoints for Envoy with a fair queue"),
    "loadtest": ("gateway", "replay a workload or trace against an OpenAI-compatible server"),
    "audit": ("logs", "which clients waited, starved and gained, in a log of yours"),
    "advise": ("compare", "what a log of yours says to do: leave it, or put a gate before the server, and how sure"),
    "tune": ("tune", "choose the quantum and in-flight cap for a longest wait"),
}
"""Every command with its module and its line in the help."""
RENAMED = {"fidelity": "validate", "load": "loadtest"}
"""Old names of commands, which work for one release more."""
EXTRAS = {
    "cli": ("rich", "matplotlib", "jinja2"),
    "verify": ("z3", "cvc5", "hypothesis"),
    "cli,torch": ("torch", "scipy", "safetensors"),
    "gateway": ("aiohttp",),
    "endpoint-picker": ("envoy", "google", "grpc", "grpc_health"),
    "frame": ("pyarrow",),
}
"""The extra that brings a module."""


class Parser(ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where help is, and exit with status 2."""
        _fail(f"{self.prog}: {message} (see {self.prog} --help)")


def _fail(message: str, status: int = 2) -> NoReturn:
    line = " ".join(message.split())
    if not line.isprintable():
        # What a log or a file name holds may move the cursor.
        from fairsched.engines.analysis import safe_text

        line = safe_text(line, None)
    print(line, file=sys.stderr)
    raise SystemExit(status)


def parser(declared: Collection[str] = tuple(COMMANDS)) -> Parser:
    """Return the command line, with the arguments of the commands `declared` and the names of all."""
    whole = Parser(
        prog="fairsched",
        description="Scheduling policies for LLM serving with proved bounds: compare them on your traffic.",
    )
    whole.add_argument("--version", action="version", version=f"fairsched {__version__}")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name in declared:
            add = getattr(importlib.import_module(f"fairsched.cli.{module}"), f"add_{name.replace('-', '_')}")
            add(command)
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    # A module of your own, named as module:attribute, lies in the current folder more often than on the path.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    words = list(sys.argv[1:] if argv is None else argv)
    place = next((i for i, word in enumerate(words) if not word.startswith("-")), None)
    if place is not None and words[place] in RENAMED:
        old, words[place] = words[place], RENAMED[words[place]]
        print(f"fairsched {old} is now called fairsched {words[place]}", file=sys.stderr)
    arguments = parser([] if place is None else [words[place]]).parse_args(words)
    try:
        status: int = arguments.run(arguments)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        for extra, modules in EXTRAS.items():
            if missing in modules:
                _fail(f"fairsched {arguments.command} needs {error.name}: pip install 'fairsched[{extra}]'")
        raise
    except BrokenPipeError:
        # The reader of the output has seen enough; Python must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Unwritable as error:
        _fail(f"fairsched {arguments.command}: {error}", UNWRITABLE)
    except (ValueError, OSError) as error:
        _fail(f"fairsched {arguments.command}: {error}")
    except KeyboardInterrupt:
        return INTERRUPTED
    return status
