"""`fairsched config` and `fairsched completion`: the command line about itself."""

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import join

from fairsched.cli.output import as_json

SHELLS = ("bash", "zsh", "fish")


def add_config(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Print the fairsched.toml that is in force, and each command with the options that it sets; every table of it "
        "is checked."
    )
    command.add_argument("--schema", action="store_true", help="print the JSON schema of the file instead")
    command.set_defaults(run=run_config)


def add_completion(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = "Print a script by which a shell completes commands, options, choices and files."
    command.add_argument("shell", choices=SHELLS, help="the shell")
    command.set_defaults(run=run_completion)


def run_config(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    from fairsched.cli.command_line import whole_parser
    from fairsched.cli.settings import read_settings, schema, settings_file

    if arguments.schema:
        print(as_json(schema(whole_parser())))
        return 0
    path = settings_file(arguments.settings)
    if path is None:
        print("There is no fairsched.toml in this folder or above.")
        return 0
    print(path)
    for words in _in_force(path, [], whole_parser(read_settings(path)), read_settings(path)):
        print(join(["fairsched", *words]))
    return 0


def _in_force(path: Path, section: Sequence[str], command: ArgumentParser, table: object) -> Iterator[list[str]]:
    """Each command with the words that its table sets."""
    from fairsched.cli.settings import below, option_words

    commands = below(command)
    if not commands:
        yield [*section, *(text for _, texts in option_words(path, section, command, table) for text in texts)]
    elif isinstance(table, dict):
        for name, inner in table.items():
            yield from _in_force(path, [*section, name], commands[name], inner)


def run_completion(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    import shtab

    from fairsched.cli.command_line import whole_parser

    whole = whole_parser()
    for action in _actions(whole):
        if action.type is Path:
            folder = "DIR" in str(action.metavar)
            action.complete = shtab.DIRECTORY if folder else shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(whole, arguments.shell))
    return 0


def _actions(command: ArgumentParser) -> Iterator[Action]:
    from fairsched.cli.settings import below

    yield from command._actions
    for each in below(command).values():
        yield from _actions(each)
