"""`fairsched reproduce`: which rows there are, what a verdict says, and what bad input gets."""

import json
from pathlib import Path

import attrs
import pytest

from fairsched import reproduce
from fairsched.cli import main
from fairsched.cli.reproduce import MISSED
from fairsched.reproduce.row import Ours, Row, Say
from tests.cli.conftest import Refused

QUICK_S = 5
"""Rows that take at most so long are judged in every run of the tests."""


def _row(name: str, held: bool) -> Row:
    def measure(say: Say) -> Ours:
        say("one thing")
        return Ours("4.2 times", held, {"times": 4.2})

    return attrs.evolve(next(iter(reproduce.ROWS.values())), id=name, measure=measure)


@pytest.fixture
def two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row that lies in its band, and one that does not."""
    monkeypatch.setattr(reproduce, "ROWS", {"1": _row("1", True), "2": _row("2", False)})


@pytest.mark.usefixtures("two_rows")
def test_each_row_is_written_with_its_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON has what the paper says, what came out and whether that lies in the band; a missed row fails."""
    path = tmp_path / "rows.json"
    assert main(["reproduce", "--json", str(path)]) == MISSED
    first, second = json.loads(path.read_bytes())["rows"]
    assert set(first) == {"id", "about", "source", "paper", "ours", "band", "tier", "held", "why", "figures"}
    assert (first["ours"], first["held"], second["held"]) == ("4.2 times", True, False)
    assert "1 of 2 rows" in capsys.readouterr().out


@pytest.mark.usefixtures("two_rows")
def test_rows_are_chosen_by_id(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the rows that were asked for are run, each once."""
    assert main(["reproduce", "1", "1"]) == 0
    assert "1 of 1 rows" in capsys.readouterr().out


def test_rows_are_listed_without_being_run(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list` names every row and about how long it takes."""
    assert main(["reproduce", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == list(reproduce.ROWS)


@pytest.mark.parametrize("given", [["no-row"], ["1", "--json", "no-folder/rows.json"]])
@pytest.mark.usefixtures("two_rows")
def test_bad_input_is_one_line(given: list[str], refused: Refused) -> None:
    """A row that is not there and a folder that is not there end with status 2 and one line."""
    assert given[-1].partition("/")[0] in refused("reproduce", *given)


def _quiet(_: str) -> None:
    pass


@pytest.mark.nightly
@pytest.mark.parametrize("row", reproduce.ROWS.values(), ids=lambda row: f"row {row.id}")
def test_rows_lie_in_their_bands(row: Row, full_budget: bool) -> None:
    """What the paper says comes out within the row's band; with a reduced budget only quick rows are run."""
    if not full_budget and row.seconds > QUICK_S:
        pytest.skip(f"takes about {row.seconds} s")
    ours = row.measure(_quiet)
    assert ours.held, ours.text
