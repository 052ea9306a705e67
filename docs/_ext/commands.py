"""The directive `command`: a command's usage and options, read from its typed function."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from markdown import directive, escaped, sentence, table

from fairsched.cli import application
from fairsched.cli.run import COMMANDS, default_text

_SAID = re.compile(r"\s*\(default: ([^()]*)\)$")
"""A default that a help text names at its end: it has a column of its own."""


def command(words: Sequence[str]) -> str:
    """What a command does, how it is called, and its options; without words, the list of commands."""
    if not words:
        rows = ((f"[`fairsched {name}`](#{name})", escaped(sentence(text))) for name, (_, text) in COMMANDS.items())
        return table(("command", "does"), rows)
    (name,) = words
    if name not in COMMANDS:
        raise ValueError(f"no command {name}")
    return "\n\n".join(_described(application()[name]))


def _described(app: Any) -> Iterator[str]:
    arguments = [each for each in app.assemble_argument_collection(parse_docstring=True) if each.show]
    text = (app.default_command.__doc__ or "").partition("\n\n    Args:")[0]
    yield escaped(sentence(text))
    yield f"```text\nfairsched {app.name[0]} {' '.join(map(_usage, arguments))}\n```"
    yield table(("argument", "default", "meaning"), map(_row, arguments))


def _written(argument: Any) -> str:
    """An option with its value, or what an argument is called."""
    if not argument.name.startswith("--"):
        return str(argument.parameter.metavar or argument.name)
    if argument.hint is bool:
        return str(argument.name)
    choices = argument.get_choices()
    value = "|".join(choices) if choices else argument.parameter.metavar or argument.name[2:].upper()
    return f"{argument.name} {value}"


def _usage(argument: Any) -> str:
    dots = "..." if argument.is_var_positional() else ""
    return f"{_written(argument)}{dots}" if argument.required else f"[{_written(argument)}{dots}]"


def _row(argument: Any) -> tuple[str, str, str]:
    text = " ".join((argument.parameter.help or "").split())
    field = argument.field_info
    show = argument.parameter.show_default
    own = show if callable(show) else default_text
    shown = None if field.default is field.empty else own(field.default)
    default = "" if shown is None else f"`{shown}`"
    if said := _SAID.search(text):
        text, default = text[: said.start()], default or escaped(said[1])
    return f"`{_written(argument)}`".replace("|", "\\|"), default.replace("|", "\\|"), escaped(sentence(text))


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command", directive(command))
    return {"parallel_read_safe": True}
