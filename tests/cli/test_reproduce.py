"""`fairsched reproduce`: how claims are judged, what is written, what bad input gets, and the recorded figures."""

import json
from pathlib import Path
from statistics import fmean, stdev

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from fairsched import reproduce
from fairsched.cli import main
from fairsched.cli.commands.reproduce import MISSED
from fairsched.reproduce import PanelRow, Verdict
from fairsched.reproduce.row import Control, Figures, Interval, Panel, Platform, Printed
from tests.cli.conftest import Refused

RECORDED = Path(__file__).parents[2] / "docs" / "results.json"
FASTER = Printed("faster", "ours over theirs", "1.5 to 2 times", 1.5, 2.0)


def _row(name: str, *values: float, claim: Printed = FASTER, **figures: float) -> PanelRow:
    """A row with a value of `faster` for each seed."""

    def measure(on: Platform, seed: int) -> Figures:
        return {"faster": values[seed], **figures}

    return attrs.evolve(_SOME_ROW, id=name, measure=measure, claims=(claim,), seeds=len(values))


_SOME_ROW = next(iter(reproduce.ROWS.values()))


def _verdict(*values: float, claim: Printed = FASTER, **figures: float) -> Verdict:
    (result,) = reproduce.reproduce([_row("1", *values, claim=claim, **figures)])
    return result.verdict


# --- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((1.7, 1.8, 1.9), Verdict.HELD),
        ((2.4, 2.5, 2.6), Verdict.SIZE_DIFFERS),
        ((1.15, 1.2, 1.25), Verdict.SIZE_DIFFERS),
        ((0.6, 1.8, 2.4), Verdict.MISSED),
        ((0.7, 0.8, 0.9), Verdict.MISSED),
        ((0.99, 1.6, 2.2), Verdict.MISSED),
    ],
)
def test_a_claim_holds_by_sign_and_size(values: tuple[float, ...], verdict: Verdict) -> None:
    """An interval that reaches no effect misses, whatever its mean; a mean outside the range differs in size."""
    assert _verdict(*values) is verdict


@pytest.mark.parametrize(
    ("without", "verdict"), [(1.0, Verdict.HELD), (1.1, Verdict.HELD), (0.5, Verdict.HELD), (1.6, Verdict.CAUSE_OPEN)]
)
def test_a_cause_is_confirmed_by_a_control_that_removes_the_effect(without: float, verdict: Verdict) -> None:
    """An effect that stays without the cause that the paper names is not the paper's result."""
    claim = attrs.evolve(FASTER, control=Control("no prefixes", "without"))
    assert _verdict(1.7, 1.8, 1.9, claim=claim, without=without) is verdict


@pytest.mark.parametrize(
    ("value", "verdict"), [(85.2349, Verdict.HELD), (85.2251, Verdict.HELD), (85.24, Verdict.MISSED)]
)
def test_an_exact_result_must_come_out_to_the_last_printed_digit(value: float, verdict: Verdict) -> None:
    """Rounded to the printed decimals, ours is what is printed, or the claim is missed."""
    claim = Printed("faster", "a saving", "85.23 %", 85.23, 85.23, neutral=None, decimals=2)
    assert _verdict(value, claim=claim) is verdict


@given(st.floats(0.01, 100.0), st.floats(0.01, 100.0))
def test_a_single_printed_number_is_met_within_a_fifth(printed: float, ours: float) -> None:
    """The share is the same for every row and no row can widen it."""
    claim = Printed("faster", "a figure", f"{printed}", printed, printed, neutral=None)
    assert (_verdict(ours, claim=claim) is Verdict.HELD) == (0.8 * printed <= ours <= printed + 0.2 * printed)


def test_a_row_is_as_good_as_its_worst_claim() -> None:
    """One missed claim makes a row missed."""
    good, bad = FASTER, attrs.evolve(FASTER, figure="slower")
    row = attrs.evolve(_row("1", 1.7, 1.8, slower=0.5), claims=(good, bad))
    (result,) = reproduce.reproduce([row])
    assert [str(each.verdict) for each in result.judged] == ["held", "missed"]
    assert result.verdict is Verdict.MISSED


def test_intervals_are_student_s() -> None:
    """The half width is what scipy's Student's t gives, for any number of seeds."""
    for count in (2, 3, 10, 16, 17, 18, 40, 1000):
        values = [float(place % 7) for place in range(count)]
        found = Interval.of(values)
        low, _ = student.interval(0.95, count - 1, fmean(values), stdev(values) / count**0.5)
        assert found.low == pytest.approx(low, rel=2e-3)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Printed("x", "", "", 2.0, 1.0),
        lambda: Printed("x", "", "", 1.0, 2.0, neutral=None, control=Control("none", "y")),
        lambda: attrs.evolve(_SOME_ROW, paper="no paper"),
        lambda: attrs.evolve(_SOME_ROW, claims=()),
        lambda: attrs.evolve(_SOME_ROW, seeds=0),
    ],
)
def test_a_row_that_cannot_be_judged_is_refused(wrong: object) -> None:
    """Empty ranges, controls without a value of no effect, papers that are not there, no claims and no seeds."""
    with pytest.raises(ValueError, match=r"\w"):
        wrong()  # type: ignore[operator]


def test_a_figure_that_a_seed_did_not_give_is_named() -> None:
    """A claim without its figure is an error, and no verdict."""
    with pytest.raises(ValueError, match="'slower'"):
        _verdict(1.0, claim=attrs.evolve(FASTER, figure="slower"))


# --- running ----------------------------------------------------------------------------------------------------------


def test_a_row_that_fails_is_named_with_its_seed() -> None:
    """An error inside a row says which row and which seed."""
    row = attrs.evolve(_row("7", 1.0), seeds=2)
    with pytest.raises(RuntimeError, match="row 7, seed 1: IndexError"):
        list(reproduce.reproduce([row]))


def test_processes_give_what_one_gives() -> None:
    """The figures do not depend on how many processes run."""
    rows = [reproduce.ROWS["25"]]
    assert rows[0].seeds > 1
    by_jobs = [{found.row.id: found.found for found in reproduce.reproduce(rows, jobs=jobs)} for jobs in (1, 2)]
    assert by_jobs[0] == by_jobs[1]


@pytest.mark.nightly
@pytest.mark.integration
def test_a_ray_cluster_gives_what_one_process_gives(by_night: None, ray_started: None) -> None:
    """The figures do not depend on where the seeds run."""
    rows = [row for row in reproduce.ROWS.values() if row.quick][:2]
    by_place = [{found.row.id: found.found for found in reproduce.reproduce(rows, ray=ray)} for ray in (None, "auto")]
    assert by_place[0] == by_place[1]


@given(st.integers(2, 9), st.integers(0, 9))
def test_a_row_runs_the_seeds_that_were_asked_for(seeds: int, first: int) -> None:
    """Any number of seeds from any first one run; a row without chance in it runs one."""
    row = _row("1", *(1.7 + 0.01 * place for place in range(18)))
    (found,) = reproduce.reproduce([row], seeds=seeds, first_seed=first)
    assert found.seeds == tuple(range(first, first + seeds))
    (found,) = reproduce.reproduce([attrs.evolve(row, seeds=1)], seeds=seeds, first_seed=first)
    assert found.seeds == (first,)


@pytest.mark.parametrize("numbers", [{"jobs": 0}, {"seeds": 0}, {"first_seed": -1}])
def test_numbers_below_one_are_refused(numbers: dict[str, int]) -> None:
    """No processes, no seeds and seeds below zero are errors."""
    with pytest.raises(ValueError, match="at least"):
        list(reproduce.reproduce([_SOME_ROW], **numbers))  # type: ignore[arg-type]


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row that holds, and one that does not."""
    monkeypatch.setattr(reproduce, "ROWS", {"1": _row("1", 1.7, 1.8), "2": _row("2", 0.5, 0.6)})
    # Another process would not know them.
    monkeypatch.setattr("fairsched.cli.commands.reproduce.cpus", lambda: 1)


@pytest.mark.usefixtures("two_rows")
def test_each_row_is_written_with_its_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON has each claim with what is printed, ours and the interval; a claim that does not hold fails."""
    path = tmp_path / "rows.json"
    assert main(["reproduce", "--json", str(path)]) == MISSED
    first, second = json.loads(path.read_bytes())["rows"]
    assert (first["verdict"], second["verdict"]) == ("held", "missed")
    (claim,) = first["claims"]
    assert claim["printed"] == "1.5 to 2 times"
    assert claim["mean"] == pytest.approx(1.75)
    assert claim["low"] < claim["mean"] < claim["high"]
    assert [seed["faster"] for seed in second["figures"]] == [0.5, 0.6]
    assert "1 of 2 rows hold" in capsys.readouterr().out


@pytest.mark.usefixtures("two_rows")
def test_rows_of_a_file_that_do_not_run_stay_in_it(tmp_path: Path) -> None:
    """A file of all rows can be brought up to date row by row."""
    path = tmp_path / "rows.json"
    main(["reproduce", "--json", str(path)])
    before = json.loads(path.read_bytes())["rows"]
    assert main(["reproduce", "1", "--seeds", "1", "--json", str(path)]) == 0
    after = json.loads(path.read_bytes())["rows"]
    assert [row["seeds"] for row in after] == [[0], [0, 1]]
    assert after[1] == before[1]


@pytest.mark.usefixtures("two_rows")
def test_rows_are_chosen_by_id_or_paper(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the rows that were asked for are run, each once."""
    assert main(["reproduce", "1", "1"]) == 0
    assert "1 of 1 rows" in capsys.readouterr().out
    assert main(["reproduce", _SOME_ROW.paper]) == MISSED
    assert "of 2 rows" in capsys.readouterr().out


def test_rows_are_listed_without_being_run(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list rows` names every row and about how long it takes, and `--list panels` what became of each panel."""
    assert main(["reproduce", "--list", "rows"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed if line[:6].strip()] == list(reproduce.ROWS)
    assert main(["reproduce", "--list", "panels"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len([line for line in listed if line[0] != " "]) == sum(map(len, reproduce.PANELS.values()))


@pytest.mark.parametrize(
    "given",
    [
        ["no-row"],
        ["1", "--json", "no-folder/rows.json"],
        ["1", "--jobs", "0"],
        ["1", "--seeds", "0"],
        ["1", "--jobs", "ray:127.0.0.1:1"],
    ],
)
@pytest.mark.usefixtures("two_rows")
def test_bad_input_is_one_line(given: list[str], refused: Refused) -> None:
    """Rows, folders and clusters that are not there, and numbers below one, end with status 2 and one line."""
    assert refused("reproduce", *given)


@pytest.mark.parametrize("content", ["[1, 2]", "nothing", '{"rows": [3]}'])
@pytest.mark.usefixtures("two_rows")
def test_a_file_of_something_else_is_not_overwritten(content: str, tmp_path: Path, refused: Refused) -> None:
    """A JSON file that another command wrote stays as it is."""
    path = tmp_path / "other.json"
    path.write_text(content)
    assert "other.json" in refused("reproduce", "1", "--json", str(path))
    assert path.read_text() == content


# --- the rows that ship -----------------------------------------------------------------------------------------------


def test_panels_name_rows_that_are_there_and_every_row_covers_a_panel() -> None:
    """The list of a paper's panels and the rows of that paper name each other."""
    for paper, panels in reproduce.PANELS.items():
        named = {name for panel in panels for name in panel.rows}
        assert named == {row.id for row in reproduce.ROWS.values() if row.paper == paper}


def test_a_panel_is_covered_impossible_or_open() -> None:
    """A panel says what became of it."""
    assert Panel("Figure 1", "", rows=("1", "2")).status == "rows 1, 2"
    assert "kernels" in Panel("Figure 2", "", impossible="kernels").status
    assert Panel("Figure 3", "").status == "open"


def test_every_row_is_recorded_as_it_stands() -> None:
    """`docs/results.json` has every row with the claims, platform, setting and seeds that the code has."""
    recorded = {entry["id"]: entry for entry in json.loads(RECORDED.read_bytes())["rows"]}
    assert list(recorded) == list(reproduce.ROWS)
    for row in reproduce.ROWS.values():
        entry = recorded[row.id]
        first = entry["seeds"][0]
        assert entry["seeds"] == list(range(first, first + row.seeds))
        assert (entry["platform"], entry["setting"], entry["note"]) == (row.platform.text, row.setting, row.note)
        claims = [(each["about"], each["printed"], each["range"]) for each in entry["claims"]]
        assert claims == [(each.about, each.printed, list(each.range_json)) for each in row.claims]


@pytest.mark.kept("docs/results.json")
@pytest.mark.nightly
@pytest.mark.parametrize("row", reproduce.ROWS.values(), ids=lambda row: f"row {row.id}")
def test_recorded_figures_come_out_again(row: PanelRow, full_budget: bool) -> None:
    """Every seed gives the figures that are recorded; with a reduced budget only quick rows are run."""
    if not (full_budget or row.quick):
        pytest.skip(f"{row.seeds} seeds of about {row.seconds:g} s")
    entries = json.loads(RECORDED.read_bytes())["rows"]
    (entry,) = [entry for entry in entries if entry["id"] == row.id]
    (result,) = reproduce.reproduce([row], first_seed=entry["seeds"][0])
    for ours, recorded in zip(result.to_json()["figures"], entry["figures"], strict=True):  # type: ignore[call-overload]
        assert _flat(ours) == pytest.approx(_flat(recorded), rel=1e-9)
    assert str(result.verdict) == entry["verdict"]


def _flat(figures: Figures) -> dict[str, float]:
    """Figures with the points of curves as figures of their own."""
    found: dict[str, float] = {}
    for name, value in figures.items():
        if isinstance(value, int | float):
            found[name] = float(value)
        else:
            found.update({f"{name} at {float(key):g}": float(each) for key, each in value.items()})
    return found
