"""Bugs that were seeded into the code around the kernels, each with the test that must notice it."""

import tomllib
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_name("bugs.toml")


class Bug(NamedTuple):
    """One change to what ships: in words, a module and a function in it by qualified name, a text that occurs once
    there, the text in its place, and the test (file::function)."""

    what: str
    module: str
    function: str
    old: str
    new: str
    noticed_by: str

    @property
    def name(self) -> str:
        """A name for a test of it."""
        return f"{self.function}: {self.what}".replace(" ", "-")


def _bug(row: dict[str, str]) -> Bug:
    module, function = row["at"].split(":")
    return Bug(row["what"], f"fairsched.{module}", function, row["text"], row["bug"], row["noticed_by"])


BUGS = tuple(_bug(row) for row in tomllib.loads(TABLE.read_text(encoding="utf-8"))["bug"])
