"""The directive `command`: a command's usage and options, read from its argument parser."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markdown import directive, escaped, sentence, table

from fairsched.cli import parser

_SAID = re.compile(r"\s*\(default: ([^()]*)\)$")
"""A default that a help text names at its end: it has a column of its own."""


def subcommands(of: argparse.ArgumentParser) -> Mapping[str, tuple[argparse.ArgumentParser, str]]:
    """The commands below a parser and what each does, without hidden ones."""
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            return {name: (each, helps[name]) for name, each in action.choices.items() if name in helps}
    return {}


def command(words: Sequence[str]) -> str:
    """What a command does, how it is called, and its options; without words, the list of commands."""
    if not words:
        return table(("command", "does"), _overview())
    found = parser()
    for word in words:
        below: Any = subcommands(found)
        if word not in below:
            raise ValueError(f"no command {' '.join(words)}")
        found = below[word][0]
    return "\n\n".join(_described(found, below[word][1]))


def _overview() -> Iterator[tuple[str, str]]:
    for name, (each, text) in subcommands(parser()).items():
        own = subcommands(each)
        if not own:
            yield f"[`fairsched {name}`](#{name})", escaped(sentence(text))
        for below, (_, said) in own.items():
            yield f"[`fairsched {name} {below}`](#{name}-{below})", escaped(sentence(said))


def _described(of: argparse.ArgumentParser, text: str) -> Iterator[str]:
    yield escaped(sentence(of.description or text))
    usage = " ".join(of.format_usage().removeprefix("usage:").split())
    yield f"```text\n{usage}\n```"
    formatter = of._get_formatter()
    for group in of._action_groups:
        rows = [_row(action, formatter) for action in group._group_actions if _shown(action)]
        if rows:
            if group.title not in ("options", "positional arguments"):
                yield f"**{sentence(group.title or '').rstrip('.')}**"
            yield table(("argument", "default", "meaning"), rows)


def _shown(action: argparse.Action) -> bool:
    return action.help is not argparse.SUPPRESS and not isinstance(
        action, argparse._HelpAction | argparse._SubParsersAction
    )


def _row(action: argparse.Action, formatter: argparse.HelpFormatter) -> tuple[str, str, str]:
    shown = action.metavar if isinstance(action.metavar, str) else (action.dest or "").upper()
    if action.choices is not None and action.metavar is None:
        shown = "|".join(map(str, action.choices))
    if action.option_strings:
        name = ", ".join(action.option_strings) + ("" if action.nargs == 0 else f" {shown}")
    else:
        name = shown if action.metavar else action.dest
    text = formatter._expand_help(action) if action.help else ""
    default = _default(action)
    if said := _SAID.search(text):
        text, default = text[: said.start()], default or escaped(said[1])
    return f"`{name}`".replace("|", "\\|"), default, escaped(sentence(text))


def _default(action: argparse.Action) -> str:
    value = action.default
    if value is None or value is False or value is argparse.SUPPRESS or value in ([], (), {}):
        return ""
    said = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f"`{said}`"


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command", directive(command))
    return {"parallel_read_safe": True}
