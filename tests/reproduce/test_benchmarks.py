"""Benchmarks take turns as they should, and records fail the build when a figure has fallen for good, and only then."""

import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.suite import page
from benchmarks.suite.history import OURS, Record, append, fallen, has_fallen, read
from benchmarks.suite.sides import MODULES, ROOT, Figures, figures_of, measured, paths

TWIN = "twin 0123abcd"
ratios = st.floats(0.01, 100)
text = st.text(max_size=20)
times = st.lists(st.floats(0.001, 1e9), min_size=7, max_size=7).map(tuple)


def recorded(figure: str, *found: float, twin: str = TWIN) -> list[Record]:
    """Records with these ratios."""
    return [
        Record(figure, "c", "2026-01-01", "m", (0.0, 1.0), {OURS: (1.0,) * 7, twin: (ratio,) * 7}) for ratio in found
    ]


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Any record."""
    sides = draw(st.lists(text, max_size=3, unique=True))
    us = {side: draw(times) for side in [OURS, *sides]}
    load = draw(st.tuples(st.floats(0, 100), st.floats(0, 100)))
    return Record(draw(text), draw(text), draw(text), draw(text), load, us, dict.fromkeys(sides, draw(text)))


# --- the rule ---------------------------------------------------------------------------------------------------------


@given(st.lists(ratios, max_size=12))
def test_a_figure_has_fallen_when_three_in_a_row_are_below_three_in_a_row(found: list[float]) -> None:
    """The rule is what the page says, counted another way: by every pair of a former triple and the last one."""
    former, last = found[:-3], found[-3:]
    triples = [former[i : i + 3] for i in range(len(former)) if len(former[i : i + 3]) == 3] + [[1.0]]
    assert has_fallen(found) == (
        len(last) == 3 and any(all(now < 0.8 * then for now in last for then in triple) for triple in triples)
    )


@given(st.lists(ratios, max_size=8), st.lists(ratios, max_size=8), st.randoms())
def test_figures_and_twins_are_judged_apart(one: list[float], other: list[float], random: Random) -> None:
    """Another figure's records, or those of a former twin, wherever they stand between, change nothing."""
    mixed = [recorded("one", *one), recorded("other", *other), recorded("one", *other, twin="twin before")]
    merged: list[Record] = []
    while any(mixed):
        merged.append(random.choice([each for each in mixed if each]).pop(0))
    expected = {name for name, found in (("one", one), ("other", other)) if has_fallen(found)}
    assert fallen(merged, TWIN).keys() == expected


# --- records and the page ---------------------------------------------------------------------------------------------


@given(st.lists(records(), max_size=4))
def test_records_are_read_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, made: list[Record]) -> None:
    """A history is the records that were appended, in their order."""
    path = tmp_path_factory.mktemp("history") / "history.jsonl"
    for record in made:
        append(path, record)
    assert read(path) == made


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    """The error has the file and the line."""
    path = tmp_path / "history.jsonl"
    append(path, recorded("one", 1.0)[0])
    path.write_bytes(path.read_bytes() + b'{"figure": 3}\n')
    with pytest.raises(ValueError, match=r"history\.jsonl, line 2"):
        read(path)


def test_the_last_record_of_each_side_is_shown() -> None:
    """A peer that was not installed later keeps its row, with the commit at which it was measured."""
    first, second = recorded("one", 2.0)[0], recorded("one", 3.0, twin="peer")[0]
    rows = page.table([first, second, *recorded("two", 4.0)]).splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == ["one", "", "two"]
    assert ["peer: 3 us" in rows[0], f"{TWIN}: 2 us" in rows[1], f"{TWIN}: 4 us" in rows[2]] == [True] * 3


def test_the_plot_can_be_drawn(tmp_path: Path) -> None:
    """Figures with peers and without, and any number of records, have their place."""
    history = [*recorded("one", 2.0, 1.0), *recorded("one", 3.0, twin="peer"), *recorded("two", 0.5)]
    page.draw(tmp_path / "speed.svg", history, TWIN)
    assert "<svg" in (tmp_path / "speed.svg").read_text()


# --- taking turns -----------------------------------------------------------------------------------------------------

BENCHMARK = """
from pathlib import Path
import fairsched

def side(name):
    def prepare():
        def work():
            with Path(__file__).with_name("turns").open("a") as file:
                file.write(name + " ")
            print("peers may print")
            return len(name)
        return work
    return prepare

def broken():
    raise SystemExit("no such file")

FIGURES = {
    "turns": {"ours": side("ours"), "peer": side("peer"), "absent": lambda: None, "broken": broken},
    "ours is broken": {"ours": broken},
    "ours is absent": {"ours": lambda: None, "peer": side("peer")},
}
"""


@pytest.fixture
def benchmark_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A benchmark that writes down whose turn it is."""
    (tmp_path / "made_up_benchmark.py").write_text(BENCHMARK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_sides_take_turns(benchmark_here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """After a turn that does not count, each round begins with another side; what is not here or fails is left out."""
    us = measured("made_up_benchmark", "turns", ["ours", "peer", "absent", "broken"], ROOT, rounds=2)
    assert us == {"ours": [4.0, 4.0], "peer": [4.0, 4.0]}
    assert (benchmark_here / "turns").read_text().split() == ["ours", "peer", "ours", "peer", "peer", "ours"]
    assert "broken is left out" in capfd.readouterr().err


def test_our_own_failure_is_an_error(benchmark_here: Path) -> None:
    """A figure of ours that cannot be measured is not left out; one whose file is not here is."""
    with pytest.raises(RuntimeError, match="status 1"):
        measured("made_up_benchmark", "ours is broken", ["ours"], ROOT, rounds=1)
    assert measured("made_up_benchmark", "ours is absent", ["ours", "peer"], ROOT, rounds=1) == {}


def test_another_package_is_not_measured(benchmark_here: Path, tmp_path: Path) -> None:
    """A tree without the package is an error, even where the package is installed."""
    with pytest.raises(RuntimeError, match="instead of the package"):
        measured("made_up_benchmark", "turns", ["ours"], tmp_path / "elsewhere", rounds=1)


def test_a_benchmark_runs() -> None:
    """Grouping of 8,000 prompts is measured."""
    (figure,) = _figures("batch")
    assert measured("batch", figure, [OURS], ROOT, rounds=1)[OURS][0] > 0


def test_figures_have_one_name_and_our_side() -> None:
    """No two benchmarks record under one name, and ours is measured in each figure."""
    found = [(name, sides) for module in MODULES for name, sides in _figures(module).items()]
    assert len(found) == len(dict(found))
    assert all(next(iter(sides)) == OURS for _, sides in found)


def _figures(module: str) -> Figures:
    with pytest.MonkeyPatch.context() as patch:
        for folder in paths():
            patch.syspath_prepend(folder)
        found = dict(figures_of(module))
        for name in [name for name, each in sys.modules.items() if _is_benchmark(each)]:
            del sys.modules[name]
    return found


def _is_benchmark(module: object) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).parent in paths()
