"""`fairsched search`: an answer that is true of its runs at any width, and one clear line for what is wrong."""

from pathlib import Path

import pytest

from fairsched.cli import main
from tests.cli.conftest import Figures, Refused

SMALL = ["azure-code:requests=40,arrivals=poisson", "--resolution", "0.2"]
KEPT = ["--target", "P90:ttft=2s,tpot=200ms"]


def test_search_says_which_fleet(figures: Figures, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The best candidate has the most for each GPU, and stands in the sentence, the figures and the picture."""
    said = figures("search", *SMALL, *KEPT, "--gpus", "2", "--report", str(tmp_path))
    values = {row["candidate"]: row["value"] for row in said["candidates"]}
    assert values[said["best"]] == max(values.values()) > 0
    assert said["complete"]
    assert said["simulations"] == sum(len(row["tried"]) for row in said["candidates"])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("Simulated: opt-13b-a100 (1 x a100), not held against measurements.")
    assert said["best"] in shown
    assert "simulations a second" in shown
    page = (tmp_path / "index.html").read_text()
    assert "<svg" in page
    assert all(row["fleet"] in page for row in said["candidates"])


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_table_fits_every_width(
    width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line is longer than the terminal, and no figure is cut; the journal makes the second and third quick."""
    journal = tmp_path.parent / "widths.journal"
    monkeypatch.setenv("COLUMNS", str(width))
    search = ["search", *SMALL, *KEPT, "--gpus", "2", "--batching", "chunked,eager-prefill", "--journal", str(journal)]
    assert main(search) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    assert any("2xopt-13b-a100" in line for line in lines)


def test_a_search_goes_on_from_its_journal(figures: Figures, tmp_path: Path) -> None:
    """A second one runs nothing, and finds the same."""
    asked = [*SMALL, *KEPT, "--gpus", "1", "--journal", str(tmp_path / "j")]
    first, again = (figures("search", *asked) for _ in range(2))
    assert again["resumed"] == len(first["candidates"]) == 1
    assert again["candidates"] == first["candidates"]
    assert again["simulations_per_s"] == 0


def test_what_nothing_keeps_has_the_nearest(figures: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1, and the fleet that comes closest."""
    said = figures("search", *SMALL, "--target", "P50:ttft=1ms", "--gpus", "1", status=1)
    assert said["best"] is None
    shown = " ".join(capsys.readouterr().out.split())
    assert "no fleet of 1 keeps the targets at any rate; the nearest, 1xopt-13b-a100" in shown


def test_replan_says_when_the_fleet_changes(figures: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    """Of bursty arrivals, with what each change costs."""
    said = figures(
        *("search", "azure-chat:requests=600,arrivals=poisson,rate=2", *KEPT, "--replan", "60s"),
        *("--gpus", "1,2", "--routers", "join-shortest-queue"),
    )
    assert said["steps"][0]["changes"]
    assert "the fleet should change" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "a search needs targets: --target P90:ttft=1s,tpot=50ms, nine-slos or delay"),
        (["--target", "P90:ttft=fast"], "delay or Pn:METRIC=LIMIT,..."),
        (["--target", "P90:speed=1s"], "METRIC of ttft, tpot, latency, delay, tbt"),
        (["--target", "P0:ttft=1s"], "a percentile from 1 to 100 and limits above 0, not P0 ttft <= 1 s"),
        (["--target", "P90:ttft=3x"], "multiples are of what a request takes alone on --reference MODEL"),
        (["--target", "P90:ttft=3x,tpot=1s"], "delay or Pn:METRIC=LIMIT,..."),
        (
            ["--target", "nine-slos"],
            "--target nine-slos: the targets are of what a request takes alone on --reference MODEL",
        ),
        ([*KEPT, "--fleet", "two"], "fleet 'two': expected NxMODEL[/STAGES][:ROLE], ROLE prefill or decode, not 'two'"),
        (
            [*KEPT, "--gpus", "1", "--routers", "distserve"],
            "no fleet has at most 1 GPUs; workers have: opt-13b-a100 (1)",
        ),
        ([*KEPT, "--latency-model", "gpt-9"], "gpt-9"),
        ([*KEPT, "--batching", "sometimes"], "sometimes"),
        ([*KEPT, "--routers", "nearest"], "nearest"),
        ([*KEPT, "--policies", "best"], "best"),
        ([*KEPT, "--replan", "1h", "--journal", "x"], "--journal is for a search; --replan keeps none"),
        ([*KEPT, "--replan", "2h"], "ends in its first window of 7200 s: a shorter one may do"),
        ([*KEPT, "--jobs", "ray:127.0.0.1:1"], "refused"),
        ([*KEPT, "--journal", "nowhere/x"], "--journal: there is no folder nowhere"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: list[str], said: str, refused: Refused) -> None:
    """With what was given and what is expected."""
    pytest.importorskip("ray" if "--jobs" in arguments else "attrs")
    assert said in refused("search", "azure-code:requests=30", *arguments)
