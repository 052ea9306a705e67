"""Alert rules and dashboard in `deploy/`: their queries ask for what a gateway says, and each alert is seen firing."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml

from fairsched.engines.gateway.config import ClientConfig, QuotaConfig, QuotasConfig, StoreConfig
from tests.engines.serving.test_metrics import samples_of
from tests.support.adapters.gateway_scenarios import ADMIN, Fake, faked
from tests.support.adapters.loops import in_loop

DEPLOY = Path(__file__).parents[4] / "deploy"
RULES, RULES_TEST = DEPLOY / "prometheus/rules.yaml", DEPLOY / "prometheus/rules.test.yaml"
DASHBOARD = DEPLOY / "grafana/gateway.json"
SCRAPED = {"job", "instance"}
"""Labels that the scraper adds."""
NEEDS_PROMTOOL = pytest.mark.skipif(
    which("promtool") is None, reason="promtool is not here: Debian's prometheus has it"
)

_USED = re.compile(r"(fairsched_\w+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_LISTED = re.compile(r"\b(?:by|without|ignoring|on|group_left)\s*\(([^)]*)\)")
_SHOWN = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")
"""`$value` is no label, and has no name of one."""
_OUTCOMES = re.compile(r'outcome(?:=~|!~|=)"([^"]*)"')


def alerts() -> list[dict[str, Any]]:
    """Every alert."""
    document = yaml.safe_load(RULES.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Every panel of the dashboard."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def queries() -> Iterator[tuple[str, str]]:
    """Every query with what is shown of its labels."""
    for rule in alerts():
        yield rule["expr"], " ".join(rule["annotations"].values())
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            inner = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert inner is not None
            yield f"sum by ({inner[2]}) ({inner[1]})", ""


def unknown(query: str, shown: str, live: Mapping[str, set[str]]) -> set[str]:
    """The metrics that a query names and a gateway does not have, and the labels that they do not have."""
    named: set[str] = set()
    lost: set[str] = set()
    for name, matchers in _USED.findall(query):
        if name not in live:
            lost.add(name)
            continue
        named |= live[name]
        lost |= {f"{name}.{label}" for label in _LABEL.findall(matchers) if label not in live[name] | SCRAPED}
    listed = {label.strip() for group in _LISTED.findall(query) for label in group.split(",") if label.strip()}
    return lost | ((listed | set(_SHOWN.findall(shown))) - named - SCRAPED)


async def live_metrics(folder: Path) -> dict[str, set[str]]:
    """Every metric of gateways under quotas that have served, with its labels: of one alone, which sees gaps, and one
    with a store."""
    quota = QuotasConfig(client={"a": QuotaConfig(tokens_per_month=10**6)})
    clients = {"a": ClientConfig(), "b": ClientConfig(weight=2)}
    live: dict[str, set[str]] = {}
    for store in (None, StoreConfig(folder.as_uri())):
        async with faked(Fake(tokens=5), metrics=True, clients=clients, store=store, quota=quota) as (_, here):
            for client in "ab":
                await here.ask(client, stream=True)
            await here.emptied()
            answer = await here.http.get("/metrics", headers={"authorization": f"Bearer {ADMIN}"})
        for name, labels in samples_of(answer.text):
            live.setdefault(name, set()).update(label for label, _ in labels)
    return live


@in_loop
async def test_every_query_names_what_a_gateway_says(tmp_path: Path) -> None:
    """Names and labels of all queries of alerts and dashboard are in a scrape; a name or label that is not is found."""
    live = await live_metrics(tmp_path)
    asked = [*queries()]
    assert len(asked) > 30
    assert {query: lost for query, shown in asked if (lost := unknown(query, shown, live))} == {}
    assert unknown("rate(fairsched_calls_total[5m])", "", live) == {"fairsched_calls_total"}
    assert unknown('sum by (user) (fairsched_server_up{host="a"})', "{{pod}}", live) == {
        "fairsched_server_up.host", "user", "pod"
    }  # fmt: skip


def test_outcomes_that_alerts_name_are_those_of_the_gateway() -> None:
    """Each is a text of the gateway's code."""
    code = "\n".join(path.read_text() for path in (DEPLOY.parent / "engines/gateway").rglob("*.py"))
    named = {each for rule in alerts() for group in _OUTCOMES.findall(rule["expr"]) for each in group.split("|")}
    ends = {"limited", "waited too long", "failed.*", "broken", "timed out", "cut off", "tried again.*"}
    assert named == ends | {"refused", "lost_writes"}
    assert [each for each in named if not re.search(rf'"{each.removesuffix(".*")}', code)] == []


def test_every_alert_is_tested_firing_and_silent() -> None:
    """The rules' own tests have, for each alert, a world in which it fires and one in which it does not."""
    fires: set[str] = set()
    silent: set[str] = set()
    for world in yaml.safe_load(RULES_TEST.read_text())["tests"]:
        for case in world["alert_rule_test"]:
            (fires if case.get("exp_alerts") else silent).add(case["alertname"])
    assert fires == silent == {rule["alert"] for rule in alerts()}


@NEEDS_PROMTOOL
def test_alerts_fire_when_they_should() -> None:
    """Prometheus's own tool runs the rules over those worlds."""
    ran = subprocess.run(["promtool", "test", "rules", str(RULES_TEST)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@NEEDS_PROMTOOL
def test_a_rule_that_does_not_fire_is_found(tmp_path: Path) -> None:
    """With another threshold in one rule the tests fail."""
    text = RULES.read_text()
    assert "fairsched_server_up == 0\n        for: 5m" in text
    (tmp_path / "rules.yaml").write_text(
        text.replace("fairsched_server_up == 0\n        for: 5m", "fairsched_server_up > 1")
    )
    (tmp_path / "rules.test.yaml").write_text(RULES_TEST.read_text())
    ran = subprocess.run(
        ["promtool", "test", "rules", "rules.test.yaml"], cwd=tmp_path, capture_output=True, check=False
    )
    assert ran.returncode == 1


@NEEDS_PROMTOOL
def test_queries_of_the_dashboard_are_promql(tmp_path: Path) -> None:
    """Prometheus parses each, with the dashboard's variables filled in."""
    filled = [
        target["expr"].replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*")
        for panel in panels()
        for target in panel["targets"]
    ]
    rules = [{"record": f"query:{i}", "expr": query} for i, query in enumerate(filled)]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    ran = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_panels_do_not_overlap() -> None:
    """Each has its place in the grid of 24 columns."""
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        x, y, w, h = (panel["gridPos"][side] for side in "xywh")
        cells = {(x + i, y + j) for i in range(w) for j in range(h)}
        assert not cells & taken, panel["title"]
        assert x + w <= 24
        taken |= cells
