"""`fairsched scale` grows a cluster step by step, and says in one line what it cannot do."""

import pytest

from tests.cli.conftest import Figures, Refused


def test_every_size_is_measured_from_small_to_large(figures: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    """Each number of workers meets each number of clients, with requests enough for both, in table and document."""
    sizes = ["--workers", "4,1", "--clients", "9,2", "--requests-per-worker", "5", "--requests-per-client", "3"]
    rows = figures("scale", *sizes, "--router", "sal", "--workload", "video-qa:prompt-tokens=900")
    assert [(row["workers"], row["clients"]) for row in rows] == [(1, 2), (4, 2), (1, 9), (4, 9)]
    assert [row["requests"] for row in rows] == [6, 20, 27, 27]
    assert all(row["router_decisions"] == row["requests"] for row in rows)
    peaks = [row["peak_rss_bytes"] for row in rows]
    assert peaks == sorted(peaks)
    out = capsys.readouterr().out
    assert "dlpm behind sal" in out
    assert out.count("\n") > 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "4,0"], "expected a positive whole number, found '0'"),
        (["--clients", ","], "expected a positive whole number"),
        (["--router", "e3"], "unknown router 'e3'; did you mean e2"),
        (["--policy", "dlmp"], "unknown policy 'dlmp'; did you mean dlpm"),
        (["--workload", "agent"], "known: toolbench, video-qa, loogle"),
        (["--workload", "toolbench:tools=4"], "unknown parameter of workload toolbench 'tools'"),
        (["--json", "nowhere/at/all.json"], "there is no folder nowhere/at"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(arguments: list[str], message: str, refused: Refused) -> None:
    """Exit status 2 and the reason."""
    assert message in refused("scale", "--workers", "1", "--clients", "1", *arguments)
