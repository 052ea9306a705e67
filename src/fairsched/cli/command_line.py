"""The parser of the command line, and how a command is run: whatever goes wrong is one line and an exit status.

Status 0: done.  1: the command found what it was asked to look for (a difference, a claim that fails, a target that is
not kept).  2: bad arguments or bad input, or an error in a module of yours.  3: standard output or a file could not be
written.  130: interrupted.
"""

import errno
import importlib
import os
import sys
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Collection, Sequence
from typing import NoReturn

from fairsched.cli.parsing import BAD_INPUT, Parser, fail, meant
from fairsched.cli.settings import with_settings

COMMANDS = {
    "compare": ("compare", "run policies over a workload and compare them"),
    "policies": ("inputs", "list policies, routers and their parameters"),
    "promise": ("inputs", "what a policy promises on a worker, in cost units and seconds"),
    "trace": ("inputs", "look at a trace or a generated workload, or save one"),
    "replay": ("logs", "rebuild every state of a logged run, or run a counterexample again, and compare"),
    "explain": ("logs", "why a request of a logged run waited"),
    "verify": ("verify", "prove the bounds of policies, for your configuration"),
    "certificate": ("verify", "check a certificate again"),
    "calibrate": ("calibrate", "time the torch engine here and fit a latency model"),
    "validate": ("calibrate", "hold the simulator against the torch engine"),
    "reproduce": ("reproduce", "run results of papers again"),
    "scale": ("compare", "grow workers and clients: decisions a second, memory, fairness"),
    "batch": ("plan", "order a batch of offline jobs so that shared prefixes are computed once"),
    "plan": ("plan", "how many workers of which size keep the targets"),
    "search": ("search", "which fleet keeps the targets at the highest rate a GPU, dollar or watt"),
    "gateway": ("gateway", "stand before OpenAI-compatible servers and share them fairly"),
    "serve": ("serve", "serve OpenAI's API with our own engine, to try everything on one machine"),
    "endpoint-picker": ("gateway", "pick endpoints for Envoy with a fair queue"),
    "loadtest": ("gateway", "replay a workload or trace against an OpenAI-compatible server"),
    "conform": ("conform", "hold any gateway to fairness, identity, cancellation and streaming, from outside"),
    "audit": ("logs", "which clients waited, starved and gained, in a log of yours"),
    "advise": ("advise", "what a log of yours says to do: leave it, or put a gate before the server, and how sure"),
    "tune": ("tune", "choose the quantum and in-flight cap for a longest wait"),
    "config": ("shell", "show what fairsched.toml sets, or its schema"),
    "completion": ("shell", "print a script by which a shell completes commands and options"),
}
"""Every command with its module in `commands` and its line in the help."""
EXTRAS = {
    "cli": ("rich", "matplotlib", "jinja2", "shtab"),
    "verify": ("z3", "cvc5", "hypothesis"),
    "cli,torch": ("torch", "scipy", "safetensors"),
    "gateway": ("aiohttp",),
    "endpoint-picker": ("envoy", "google", "grpc", "grpc_health"),
    "frame": ("pyarrow",),
}
"""The extra that brings a module."""

NOT_WRITTEN = 3
TRACEBACK = "FAIRSCHED_TRACEBACK"
"""The environment variable with which an error that was not foreseen is raised instead of said in one line."""

in_force: list[str] = []
"""The words of the command that is being run, with those of `fairsched.toml`."""


class _Version(Action):
    """Prints the version, which takes time to look up."""

    def __call__(self, parser: ArgumentParser, *_: object, **__: object) -> NoReturn:
        from fairsched import __version__

        print(f"fairsched {__version__}")
        parser.exit()


def whole_parser(declared: Collection[str] = tuple(COMMANDS)) -> Parser:
    """Return the whole parser, with the arguments of the commands `declared` and the names of all."""
    whole = Parser(
        prog="fairsched",
        description="Scheduling policies for LLM serving with proved bounds: compare them on your traffic.",
    )
    whole.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    whole.add_argument(
        "--config",
        dest="settings",
        metavar="FILE",
        help="read options from FILE instead of fairsched.toml here or in a folder above",
    )
    below = whole.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name, (module, summary) in COMMANDS.items():
        command = below.add_parser(name, help=summary)
        if name in declared:
            home = importlib.import_module(f"fairsched.cli.commands.{module}")
            getattr(home, f"add_{name.replace('-', '_')}")(command)
    return whole


def run(argv: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A name that the terminal cannot show is shown as an escape, and stops nothing.
            stream.reconfigure(errors="backslashreplace")
    # A module of your own, named as module:attribute, lies in the current folder more often than on the path.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    name = "fairsched"
    try:
        arguments = _parsed(list(argv))
        name = f"fairsched {arguments.command}"
        status = _status_of(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        for extra, modules in EXTRAS.items():
            if missing in modules:
                fail(f"{name} needs {error.name}: pip install 'fairsched[{extra}]'")
        _unforeseen(name, error)
    except BrokenPipeError:
        # The reader of the output has seen enough; Python must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        # Only here, since it takes time to import and help needs it not.
        from fairsched.engines.files import Unwritable

        # A full disk is met by what is written, standard output too.
        lost = isinstance(error, Unwritable) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        fail(f"{name}: {error}", NOT_WRITTEN if lost else BAD_INPUT)
    except Exception as error:
        _unforeseen(name, error)
    return status


def _status_of(arguments: Namespace) -> int:
    try:
        status: int = arguments.run(arguments)
    except SystemExit as ended:
        # Nothing of ours ends the program below a command; rich does so where the reader of the output is gone.
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        raise ValueError(f"a module of yours ended the program: exit({ended.code!r})") from None
    return status


def _unforeseen(name: str, error: Exception) -> NoReturn:
    """Say in one line what went wrong where, in a module of the user or in ours."""
    if os.environ.get(TRACEBACK):
        raise error
    from fairsched.engines.simulation import raised_at

    fail(f"{name}: {type(error).__name__}: {error} ({raised_at(error)}; {TRACEBACK}=1 shows the way there)")


def _parsed(words: list[str]) -> Namespace:
    """Return the arguments, with those of `fairsched.toml` that the command line does not give."""
    place = next((i for i, word in enumerate(words) if _is_command(words, i)), None)
    if place is None:
        whole_parser(()).parse_args(words)
        raise AssertionError("a command is required")
    if words[place] not in COMMANDS:
        fail(f"fairsched: {meant('command', words[place], COMMANDS)} (see fairsched --help)")
    whole = whole_parser([words[place]])
    words = with_settings(whole, words, place)
    in_force[:] = words
    return whole.parse_args(words)


def _is_command(words: Sequence[str], i: int) -> bool:
    """Whether the word is the command: the first that is no option, and not the file of `--config`."""
    return not words[i].startswith("-") and (i == 0 or words[i - 1] != "--config")
