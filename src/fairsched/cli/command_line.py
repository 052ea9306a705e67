"""The parser of the command line, and how a command is run: whatever goes wrong is one line and an exit status.

Status 0: done.  1: the command found what it was asked to look for (a difference, a claim that fails, a target that is
not kept).  2: bad arguments or bad input, or an error in a module of yours.  3: standard output or a file could not be
written.  130: interrupted.
"""

import importlib
import os
import sys
from argparse import Action, ArgumentError, ArgumentParser, Namespace
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn

BAD_INPUT = 2
NOT_WRITTEN = 3
MESSAGE_CHARS_MAX = 1_000
"""A message says no more; the middle is left out."""
TRACEBACK = "FAIRSCHED_TRACEBACK"
"""The environment variable with which an error that was not foreseen is raised instead of said in one line."""


def fail(message: str, status: int = BAD_INPUT) -> NoReturn:
    """Print one line on standard error, without control characters, and exit."""
    line = " ".join(message.split())
    if len(line) > MESSAGE_CHARS_MAX:
        half = MESSAGE_CHARS_MAX // 2
        line = f"{line[:half]} ... {line[-half:]}"
    print("".join(each if each.isprintable() else ascii(each)[1:-1] for each in line), file=sys.stderr)
    raise SystemExit(status)


def meant(what: str, name: str, known: Iterable[str]) -> str:
    """Return what is said of a name that is not known: the nearest ones, or all."""
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(name[:100], names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    said = name if len(name) <= 60 else f"{name[:40]}...{name[-15:]}"
    return f"unknown {what} {said!r}; {hint}"


class Parser(ArgumentParser):
    """An argument parser whose errors are one line, and name what was meant."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        # An option cut short would be another one, or none, as soon as there is a new option.
        super().__init__(*args, allow_abbrev=False, **keywords)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where help is, and exit with status 2."""
        fail(f"{self.prog}: {message} (see {self.prog} --help)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; an option that is not known is an error of the command that has no such option."""
        options = self._option_string_actions
        if self._subparsers is None:
            for name in given_options(args or ()):
                if name not in options:
                    self.error(meant("option", name, [each for each in options if each.startswith("--")]))
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            what = "command" if action.dest in ("command", "action") else "value"
            raise ArgumentError(action if what == "value" else None, meant(what, str(value), map(str, action.choices)))


def given_options(words: Iterable[str]) -> list[str]:
    """Return the names of the long options among the words of a command."""
    found = []
    for word in words:
        if word == "--":
            break
        name = word.partition("=")[0]
        if name.startswith("--") and " " not in name:
            found.append(name)
    return found


class _Version(Action):
    """Prints the version, which takes time to look up."""

    def __call__(self, parser: ArgumentParser, *_: object, **__: object) -> NoReturn:
        from fairsched import __version__

        print(f"fairsched {__version__}")
        parser.exit()


def whole_parser(commands: Mapping[str, tuple[str, str]], declared: Collection[str]) -> Parser:
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
    for name, (module, summary) in commands.items():
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
        from fairsched.cli import EXTRAS

        missing = (error.name or "").partition(".")[0]
        for extra, modules in EXTRAS.items():
            if missing in modules:
                fail(f"{name} needs {error.name}: pip install 'fairsched[{extra}]'")
        _unforeseen(name, error)
    except BrokenPipeError:
        # The reader of the output has seen enough; Python must not complain at exit either.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 0
    except (ValueError, OSError) as error:
        fail(f"{name}: {error}")
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
    import traceback

    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)}, line {place.lineno}, in {place.name}"
    fail(f"{name}: {type(error).__name__}: {error} ({where}; {TRACEBACK}=1 shows the way there)")


def _parsed(words: list[str]) -> Namespace:
    """Return the arguments, with those of `fairsched.toml` that the command line does not give."""
    from fairsched import cli

    place = next((i for i, word in enumerate(words) if _is_command(words, i)), None)
    if place is None:
        whole_parser(cli.COMMANDS, ()).parse_args(words)
        raise AssertionError("a command is required")
    if words[place] in cli.RENAMED:
        old, words[place] = words[place], cli.RENAMED[words[place]]
        print(f"fairsched {old} is now called fairsched {words[place]}", file=sys.stderr)
    if words[place] not in cli.COMMANDS:
        fail(f"fairsched: {meant('command', words[place], cli.COMMANDS)} (see fairsched --help)")
    whole = whole_parser(cli.COMMANDS, [words[place]])
    from fairsched.cli.settings import with_settings

    words = with_settings(whole, words, place)
    cli.in_force[:] = words
    return whole.parse_args(words)


def _is_command(words: Sequence[str], i: int) -> bool:
    """Whether the word is the command: the first that is no option, and not the file of `--config`."""
    return not words[i].startswith("-") and (i == 0 or words[i - 1] != "--config")
