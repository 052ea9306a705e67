"""The command line `fairsched`: a command parses its arguments, calls the library, and prints.

Read `commands/compare.py` first.  `arguments/` has what several commands take, `output.py` how they show progress and
write files, `command_line.py` the parser and its errors, `settings.py` what `fairsched.toml` says.

A command's module is imported when the command is run, so that help and errors come at once.  This module imports
nothing that takes time, so that an interrupt while something is imported finds `main` waiting for it.
"""

import sys

TYPE_CHECKING = False  # As `typing` has it, which takes time to import.
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fairsched.cli.command_line import Parser

__all__ = ["main", "parser"]

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
    "tune": ("tune", "choose the quantum and in-flight cap for a longest wait"),
    "config": ("shell", "show what fairsched.toml sets, or its schema"),
    "completion": ("shell", "print a script by which a shell completes commands and options"),
}
"""Every command with its module in `commands` and its line in the help."""
RENAMED = {"fidelity": "validate", "load": "loadtest"}
"""Old names of commands, which work for one release more."""
EXTRAS = {
    "cli": ("rich", "matplotlib", "jinja2", "shtab"),
    "verify": ("z3", "cvc5", "hypothesis"),
    "cli,torch": ("torch", "scipy", "safetensors"),
    "gateway": ("aiohttp",),
    "endpoint-picker": ("envoy", "google", "grpc", "grpc_health"),
}
"""The extra that brings a module."""

in_force: list[str] = []
"""The words of the command that is being run, with those of `fairsched.toml`."""


def parser(declared: "Collection[str]" = tuple(COMMANDS)) -> "Parser":
    """Return the command line, with the arguments of the commands `declared` and the names of all."""
    from fairsched.cli.command_line import whole_parser

    return whole_parser(COMMANDS, declared)


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command; returns the exit status, or raises `SystemExit` with it where an argument is wrong."""
    try:
        from fairsched.cli.command_line import run

        return run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return INTERRUPTED
