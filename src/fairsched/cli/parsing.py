"""A parser whose errors are one line on standard error, and say what was probably meant."""

import sys
from argparse import Action, ArgumentError, ArgumentParser
from collections.abc import Iterable
from typing import Any, NoReturn

BAD_INPUT = 2
UNEXPLAINED = 4
"""Exit status where a gap is over its bound and no assumption of the theorem is broken: what was proved is not so."""
MESSAGE_CHARS_MAX = 1_000
"""A message says no more; the middle is left out."""


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
        super().__init__(*args, **{**keywords, "allow_abbrev": False})

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
