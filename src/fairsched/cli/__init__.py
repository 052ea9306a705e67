"""The command line `fairsched`: a command parses its arguments, calls the library, and prints.

A command is a typed function, whose parameters are its options; cyclopts reads them.  Read `commands/compare.py` first.
`options.py` has the groups of options that several commands share, `values.py` how values are written, `output.py` how
commands show progress and write files, `run.py` how one is run and what its errors say.

A command's module is imported when the command is run, so that help and errors come at once.  This module imports
nothing that takes time, so that an interrupt while something is imported finds `main` waiting for it.
"""

import sys

TYPE_CHECKING = False  # As `typing` has it, which takes time to import.
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import App

__all__ = ["application", "main"]

INTERRUPTED = 130
"""Exit status after an interrupt from the keyboard."""


def application() -> "App":
    """Return the command line with all commands, none of which is imported yet."""
    from fairsched.cli.run import application

    return application()


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command; returns the exit status, or raises `SystemExit` with it where an argument is wrong."""
    try:
        from fairsched.cli.run import run

        return run(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt:
        return INTERRUPTED
