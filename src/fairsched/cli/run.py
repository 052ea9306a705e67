"""How a command is run: options of `fairsched.toml`, and whatever goes wrong is one line and an exit status.

Status 0: done.  1: the command found what it was asked to look for (a difference, a claim that fails, a target that is
not kept).  2: bad arguments or bad input, or an error in a module of yours.  3: standard output or a file could not be
written.  130: interrupted.

In `fairsched.toml`, of the working directory or a folder above, a table is a command and a key an option without its
dashes; the command line goes before.
"""

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from inspect import BoundArguments

    from cyclopts import App

COMMANDS = {
    "compare": ("compare", "run policies over one workload and compare them"),
    "policies": ("policies", "list policies, routers and their parameters, or say what a policy promises"),
    "trace": ("trace", "look at a trace, a log or a generated workload; save it, or order it as an offline batch"),
    "audit": ("audit", "which clients waited, starved and gained, in a log of yours; why a request waited"),
    "advise": ("audit", "what a log of yours says to do: leave it, or put a gate before the server, and how sure"),
    "verify": ("verify", "prove the bounds of policies, for your configuration; check certificates"),
    "tune": ("tune", "choose the quantum and in-flight cap for a longest wait"),
    "plan": ("plan", "how many workers of which size keep the targets"),
    "search": ("search", "which fleet keeps the targets at the highest rate a GPU, dollar or joule"),
    "gateway": ("gateway", "stand before OpenAI-compatible servers, or pick endpoints for Envoy, with a fair queue"),
    "loadtest": ("gateway", "replay a workload or trace against an OpenAI-compatible server"),
    "conform": ("conform", "hold any gateway to fairness, identity, cancellation and streaming, from outside"),
    "serve": ("serve", "serve OpenAI's API with our own engine, to try everything on one machine"),
    "calibrate": ("calibrate", "time the torch engine here and fit a latency model, or fit one to a log"),
    "machine": ("machine", "read a published profile of a GPU as a latency model"),
    "validate": ("calibrate", "hold the simulator against the torch engine"),
    "reproduce": ("reproduce", "run results of papers again"),
}
"""Every command with its module in `commands` and its line in the help."""
BAD_INPUT = 2
NOT_WRITTEN = 3
UNEXPLAINED = 4
"""Exit status where a gap is over its bound and no assumption of the theorem is broken: what was proved is not so."""
MESSAGE_CHARS_MAX = 1_000
"""A message says no more; the middle is left out."""
_PIPE_WIDTH = 110
"""Columns of the list of commands in a pipe."""
_SUMMARY_AT = 13
"""The column where what a command does begins."""
SETTINGS = "fairsched.toml"
TRACEBACK = "FAIRSCHED_TRACEBACK"
"""The environment variable with which an error that was not foreseen is raised instead of said in one line."""

in_force: list[str] = []
"""The words of the command that is being run."""


def _overview() -> int:
    """Print what there is, without loading anything."""
    width = max(get_terminal_size((_PIPE_WIDTH, 0)).columns, 2 * _SUMMARY_AT)
    for line in (
        "Usage: fairsched COMMAND [OPTIONS]; fairsched COMMAND --help has its options.",
        "Scheduling policies for LLM serving with proved bounds: compare them on your traffic.",
    ):
        print(fill(line, width), end="\n\n")
    for name, (_, summary) in COMMANDS.items():
        first = f"  {name:<10} "
        print(fill(summary, width, initial_indent=first, subsequent_indent=" " * _SUMMARY_AT, break_on_hyphens=False))
    last = "--version, and --completion bash|zsh|fish, which prints a script for a shell"
    print(fill(last, width, initial_indent="\n  ", subsequent_indent="  "))
    return 0


def fail(message: str, status: int = BAD_INPUT) -> NoReturn:
    """Print one line on standard error, without control characters, and exit."""
    line = " ".join(message.split())
    if len(line) > MESSAGE_CHARS_MAX:
        half = MESSAGE_CHARS_MAX // 2
        line = f"{line[:half]} ... {line[-half:]}"
    if not line.isprintable():
        # What a log, a file's name or an argument holds may move the cursor.
        from fairsched.engines.analysis import safe_text

        line = safe_text(line, None)
    print(line, file=sys.stderr)
    raise SystemExit(status)


def _version() -> str:
    from fairsched import __version__

    return f"fairsched {__version__}"


def default_text(value: object) -> str | None:
    """Return a default as help shows it, if it is worth a word."""
    if value is None or value is False or value in ((), "", 0):
        return None
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def application() -> "App":
    """Return the command line with all commands, none of which is imported yet."""
    from cyclopts import App, CycloptsError, Parameter
    from cyclopts.config import Toml

    from fairsched.model.serialization import parse

    class Settings(Toml):
        def _load_config(self, path: Path) -> dict[str, Any]:
            try:
                return parse(path.read_bytes(), "TOML")  # type: ignore[no-any-return]
            except ValueError as error:
                raise CycloptsError(msg=f"{path}: {error}") from None

    app = App(
        "fairsched",
        help="Scheduling policies for LLM serving with proved bounds: compare them on your traffic.",
        version=_version,
        config=Settings(SETTINGS, search_parents=True),
        default_parameter=Parameter(negative=(), show_default=default_text),
        help_format="markdown",
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        print_error=False,
        exit_on_error=False,
    )
    for name, (module, _) in COMMANDS.items():
        app.command(f"fairsched.cli.commands.{module}:{name}", name=name)
    return app


def _extra(module: str, words: Sequence[str]) -> str | None:
    """Return the extra that brings a module: that of the command, if it does."""
    if words[0] == "gateway" and module.partition(".")[0] in ("cyclopts", "rich"):
        return "endpoint-picker" if "--picker" in words else "gateway"
    from fairsched.model import extra_of

    return extra_of(module)


def run(words: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    if words in ([], ["--help"], ["-h"]):
        return _overview()
    if words == ["--version"]:
        print(_version())
        return 0
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A name that the terminal cannot show is shown as an escape, and stops nothing.
            stream.reconfigure(errors="backslashreplace")
    # A module of your own, named as module:attribute, lies in the current folder more often than on the path.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    in_force[:] = words
    name = f"fairsched {words[0]}" if words and words[0] in COMMANDS else "fairsched"
    status = 0
    try:
        status = _status_of(words, name)
        if sys.stdout is not None:
            sys.stdout.flush()
    except ModuleNotFoundError as error:
        from fairsched.model import installing

        if (extra := _extra(error.name or "", words)) is not None:
            fail(f"{name} needs {error.name}: {installing(extra)}")
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


def _status_of(words: Sequence[str], name: str) -> int:
    if words[0] == "--completion":
        return _completion(words[1:])
    if words[0] not in COMMANDS and not words[0].startswith("-"):
        from fairsched.policies.validators import meant

        raise ValueError(f"{meant('command', words[0], COMMANDS)} (see fairsched --help)")
    from cyclopts import CycloptsError

    app = application()
    try:
        _check_settings(app)
        command, bound, _ = app.parse_args(words)
    except CycloptsError as error:
        fail(f"{name}: {error} (see {name} --help)")
    try:
        status = command(*bound.args, **bound.kwargs)
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise ValueError(f"{_given_as(bound, error.filename)}{_said(error)}") from None
    except SystemExit as ended:
        # Nothing of ours ends the program below a command; rich does so where the reader of the output is gone.
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        raise ValueError(f"a module of yours ended the program: exit({ended.code!r})") from None
    return status or 0


def _said(error: OSError) -> str:
    """Return the file that cannot be used, and why."""
    return str(error) if error.strerror is None else f"{error.filename}: {error.strerror.lower()}"


def _given_as(bound: "BoundArguments", file: object) -> str:
    """Return the option by which a file was given, with a colon; nothing where it was another file's or a place's."""
    options = {name: value for name, value in bound.arguments.items() if name in bound.kwargs}
    for group in [value for value in options.values() if hasattr(value, "__dataclass_fields__")]:
        options |= vars(group)
    for name, value in options.items():
        values = value if isinstance(value, tuple) else (value,)
        if any(str(each) == str(file) for each in values):
            return f"--{name.replace('_', '-')}: "
    return ""


def _check_settings(app: "App") -> None:
    """Raise `ValueError` for a table of the settings that is no command."""
    from fairsched.policies.validators import meant

    for settings in app.config:
        for table in settings.config:
            if table not in COMMANDS:
                raise ValueError(f"{settings.source}: {meant('command', table, COMMANDS)}")


def _completion(words: Sequence[str]) -> int:
    """Print a script by which a shell completes commands, options, choices and files."""
    shells = ("bash", "zsh", "fish")
    if len(words) != 1 or words[0] not in shells:
        raise ValueError(f"--completion is followed by a shell: {', '.join(shells)}")
    print(application().generate_completion(shell=words[0]))  # type: ignore[arg-type]
    return 0


def _unforeseen(name: str, error: Exception) -> NoReturn:
    """Say in one line what went wrong where, in a module of the user or in ours."""
    if os.environ.get(TRACEBACK):
        raise error
    from fairsched.engines.simulation import raised_at

    fail(f"{name}: {type(error).__name__}: {error} ({raised_at(error)}; {TRACEBACK}=1 shows the way there)")
