"""The command line `fairsched`: a command parses its arguments, calls the library, and prints.

Read `commands/compare.py` first.  `arguments/` has what several commands take, `output.py` how they show progress and
write files, `command_line.py` which commands there are and how one is run, `parsing.py` the parser and its errors,
`settings.py` what `fairsched.toml` says.

A command's module is imported when the command is run, so that help and errors come at once.  This module imports
nothing that takes time, so that an interrupt while something is imported finds `main` waiting for it.
"""

import sys

TYPE_CHECKING = False  # As `typing` has it, which takes time to import.
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fairsched.cli.parsing import Parser

__all__ = ["main", "parser"]

INTERRUPTED = 130
"""Exit status after an interrupt from the keyboard."""


def parser(declared: "Collection[str] | None" = None) -> "Parser":
    """Return the command line, with the arguments of the commands `declared` (None: of all) and the names of all."""
    from fairsched.cli.command_line import COMMANDS, whole_parser

    return whole_parser(COMMANDS if declared is None else declared)


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command; returns the exit status, or raises `SystemExit` with it where an argument is wrong."""
    try:
        from fairsched.cli.command_line import run

        return run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return INTERRUPTED
