"""`fairsched.toml`: options of commands, which the command line goes before.

A table is a command (`[compare]`, `[trace.save]`), a key an option without its dashes, a value what one would write on
the command line; `true` gives an option that takes no value, and a list one that may be repeated or that takes names
separated by commas.  The file is looked for in the working directory and in the folders above it.
"""

from argparse import Action, ArgumentError, ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairsched.cli.parsing import given_options, meant

NAME = "fairsched.toml"
_NEVER = ("--help", "--version", "--config")


def settings_file(given: str | None = None) -> Path | None:
    """Return the file that is given, or the nearest one in this folder and those above, if any."""
    if given is not None:
        return Path(given)
    here = Path.cwd()
    return next((folder / NAME for folder in (here, *here.parents) if (folder / NAME).is_file()), None)


def read_settings(path: Path) -> dict[str, Any]:
    """Return the tables of a file; raises `ValueError` where it is no TOML."""
    import tomllib

    try:
        return tomllib.loads(path.read_bytes().decode())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def with_settings(whole: ArgumentParser, words: list[str], place: int) -> list[str]:
    """Return the words of a command, the command at `place`, with the settings' behind its name."""
    before = words[:place]
    path = settings_file(_config_of(before))
    if path is None:
        return words
    found = read_settings(path)
    commands = below(whole)
    for name in found:
        if name not in commands:
            raise ValueError(f"{path}: {meant('command', name, commands)}")
    command, table, end = commands[words[place]], found.get(words[place], {}), place + 1
    while (inner := below(command)) and end < len(words) and words[end] in inner:
        _is_table(path, words[place:end], table)
        _check_names(path, words[place:end], table, inner)
        command, table, end = inner[words[end]], table.get(words[end], {}), end + 1
    if inner:
        return words
    own = words[end:]
    section = words[place:end]
    given = {command._option_string_actions.get(name) for name in given_options(own)}
    for group in command._mutually_exclusive_groups:
        if given.intersection(group._group_actions):
            given.update(group._group_actions)
    more = [
        text for action, texts in option_words(path, section, command, table) if action not in given for text in texts
    ]
    return [*words[:end], *more, *own]


def option_words(
    path: Path, section: Sequence[str], command: ArgumentParser, table: object
) -> Iterator[tuple[Action, list[str]]]:
    """Yield each option that a table sets, with its words on a command line.

    Raises `ValueError` for a key that is no option of the command and for a value that the option does not take.
    """
    options = options_of(command)
    for key, value in _check_names(path, section, _is_table(path, section, table), options).items():
        action = options[key]
        try:
            yield action, list(_words(command, action, key, value))
        except (ArgumentError, ValueError) as error:
            said = error.message if isinstance(error, ArgumentError) else error
            raise ValueError(f"{path}: [{'.'.join(section)}] {key}: {said}") from None


def options_of(command: ArgumentParser) -> dict[str, Action]:
    """Return the options of a command that a file may set, by name."""
    return {
        name.removeprefix("--"): action
        for name, action in command._option_string_actions.items()
        if name.startswith("--") and name not in _NEVER
    }


def below(command: ArgumentParser) -> Mapping[str, ArgumentParser]:
    """Return the commands below a parser."""
    for action in command._actions:
        if action.nargs == "A...":
            choices: Any = action.choices
            return dict(choices)
    return {}


def schema(whole: ArgumentParser) -> dict[str, object]:
    """Return the JSON schema of the file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": NAME,
        "description": "Options of fairsched's commands; the command line goes before.",
        **_table_schema(whole),
    }


def _table_schema(command: ArgumentParser) -> dict[str, object]:
    inner = below(command)
    properties: dict[str, object] = {name: _table_schema(each) for name, each in inner.items()}
    if not inner:
        formatter = command._get_formatter()
        for name, action in options_of(command).items():
            properties[name] = {"description": formatter._expand_help(action), **_value_schema(action)}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _value_schema(action: Action) -> dict[str, object]:
    if action.nargs == 0:
        return {"type": "boolean"}
    if action.choices is not None:
        return {"enum": list(action.choices)}
    one = {"type": ["string", "number"]}
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


def _words(command: ArgumentParser, action: Action, key: str, value: object) -> Iterator[str]:
    """The words that set an option, each checked as on the command line."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError(f"expected true or false, found {value!r}")
        if value:
            yield f"--{key}"
        return
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(each, str | int | float) and not isinstance(each, bool) for each in values):
        raise ValueError(f"expected text, a number or a list of them, found {value!r}")
    texts = [each if isinstance(each, str) else repr(each) for each in values]
    for text in texts if type(action).__name__ == "_AppendAction" else [",".join(texts)]:
        command._check_value(action, command._get_value(action, text))
        yield f"--{key}={text}"


def _is_table(path: Path, section: Sequence[str], table: object) -> dict[str, object]:
    if not isinstance(table, dict):
        raise ValueError(f"{path}: {'.'.join(section)} is a table, [{'.'.join(section)}], not {table!r}")
    return table


def _check_names(
    path: Path, section: Sequence[str], table: dict[str, object], known: Mapping[str, object]
) -> dict[str, object]:
    for name in table:
        if name not in known:
            raise ValueError(f"{path}: [{'.'.join(section)}] {meant('option', name, known)}")
    return table


def _config_of(words: Sequence[str]) -> str | None:
    """The file of `--config`, which goes before the command."""
    for i, word in enumerate(words):
        if word == "--config" and i + 1 < len(words):
            return words[i + 1]
        if word.startswith("--config="):
            return word.partition("=")[2]
    return None
