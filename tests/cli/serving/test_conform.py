"""`fairsched conform`: against a gateway as a process, what it prints and writes, and what bad arguments get."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fairsched.cli import main
from fairsched.engines import conformance
from fairsched.engines.conformance import SCENARIOS, CheckedScenario, ScenarioLimits, read_failure
from fairsched.engines.conformance.script import Record, ScenarioVerdict
from tests.cli.conftest import Figures, Refused
from tests.support.adapters.http import free_pair
from tests.support.attacks.processes import gateway
from tests.support.engines.pages import parsed

PAGE = Path(__file__).parents[3] / "docs/how-to/integrate/conform.md"
URL = "http://127.0.0.1:9"


FIRST, *OTHERS = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where failures are written."""
    monkeypatch.chdir(tmp_path)


def run(text: str, *options: str, chosen: tuple[str, ...], folder: Path, figures: Figures) -> dict[str, str]:
    """Results of scenarios against a gateway with a configuration of the page."""
    port = free_pair()
    for was, now in (("127.0.0.1:8080", "127.0.0.1:0"), ("18001", str(port)), ("18002", str(port + 1))):
        assert text.count(was) == 1
        text = text.replace(was, now)
    with gateway(text, folder) as (url, _):
        names = [word for name in chosen for word in ("--scenario", name)]
        where = ["--servers", "2", "--listen", f"127.0.0.1:{port}"]
        said = figures("conform", url, *where, *options, *names)
    assert (said["gateways"], said["limits"]["at_once"]) == ([url], 8)
    assert list(Path("out", "conform").iterdir()) == []
    return {each["name"]: each["result"] for each in said["scenarios"]}


def test_a_gateway_as_a_process_is_held_to_scenarios(tmp_path: Path, figures: Figures) -> None:
    """With the page's configuration mock servers stand where the gateway looks for them; what passes and what does not
    apply is told in figures, and nothing is written of what did not fail."""
    found = run(FIRST, chosen=("starvation", "keys", "two-instances"), folder=tmp_path, figures=figures)
    assert found == {"starvation": "passes", "two-instances": "not applicable", "keys": "passes"}


@pytest.mark.parametrize(("way", "text"), [*zip(("tokens", "certificates"), OTHERS, strict=True)])
def test_the_same_by_tokens_and_by_certificates(
    way: str, text: str, tmp_path: Path, figures: Figures, refused: Refused
) -> None:
    """With the page's other configurations, and a folder that the command makes."""
    folder = tmp_path / "credentials"
    early = ("--wait", "1ms")
    assert "does not answer" in refused("conform", "https://127.0.0.1:9", f"--{way}", str(folder), *early)
    servers = FIRST.partition("[client")[0]
    top, _, rest = text.partition("\n")
    made = f"{top}\n{servers}{rest.replace('out/credentials', str(folder))}"
    found = run(made, f"--{way}", str(folder), chosen=("starvation", "keys", way), folder=tmp_path, figures=figures)
    assert found == {"starvation": "passes", "keys": "not applicable", way: "passes"}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenarios that end as they are told, without a gateway."""

    async def conform(_: Any, limits: ScenarioLimits, **how: Any) -> list[CheckedScenario]:
        results = ("passes", "fails", "not applicable")
        found = []
        for i, scenario in enumerate(SCENARIOS.values()):
            script = scenario.script(0, limits)
            why = "because \x1b[2J of that" * (i % 2)
            verdict = ScenarioVerdict(results[i % 3], f"{i} of 50 calls", "0 calls", why)  # type: ignore[arg-type]
            found.append(CheckedScenario(scenario, verdict, script, Record(script, [("sent", 1)], {}, True)))
        return found if how["script"] is None else found[1:2]

    monkeypatch.setattr(conformance, "conform", conform)


@pytest.mark.parametrize("columns", [60, 80, 160])
def test_the_table_fits_and_failures_are_files(
    columns: int, failing: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line is longer than the terminal; each failure is a file of its calls; the status is 1, also of a replay,
    and the report plays what was tried, failures first."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.chdir(tmp_path)
    assert main(["conform", URL, "--servers", "2", "--report", "page"]) == 1
    titles = [each.text or "" for each in parsed(Path("page/index.html").read_text()).iter("h2")]
    assert [title.split(": ")[-1] for title in titles[:6]] == ["fails"] * 5 + ["passes"]
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= columns
    assert "\x1b[2J" not in said
    assert "5 pass, 5 fail, 5 not applicable" in " ".join(said.split())
    written = sorted(Path("out/conform").iterdir())
    assert len(written) == 5
    script, limits = read_failure(written[0])
    assert (script.scenario, limits) == (written[0].stem, ScenarioLimits())
    assert main(["conform", URL, "--replay", str(written[0]), "--json", "-"]) == 1
    assert len(json.loads(capsys.readouterr().out)["scenarios"]) == 1


def test_bad_input_is_one_line(refused: Refused, tmp_path: Path) -> None:
    """Addresses, keys, scenarios and files that are none; a gateway that is not there is named."""
    assert "starts with http://" in refused("conform", "localhost:8080")
    assert "two instances" in refused("conform", URL, URL, URL)
    assert "gold, bronze, polite" in refused("conform", URL, "--key", "silver=x")
    assert "starvation" in refused("conform", URL, "--scenario", "starve")
    assert "at an https:// address" in refused("conform", URL, "--certificates", str(tmp_path))
    assert "nothing.json" in refused("conform", URL, "--replay", str(tmp_path / "nothing.json"))
    assert "cannot be divided" in refused("conform", URL, "--servers", "3")
    assert f"{URL} does not answer gold" in refused("conform", URL, "--wait", "1ms")
    assert f"nothing listens at {URL}: " in refused("conform", URL)
