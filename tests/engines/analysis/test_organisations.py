"""A run by organisation: shares, waits and gaps of all clients of a group together."""

import json
import re
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest

from fairsched.cli import main
from fairsched.engines.analysis import Run, organisations, share, time
from fairsched.engines.serving import Engine
from fairsched.engines.simulation import Cluster, simulate
from fairsched.engines.workloads import ClientSpec, WorkloadError, generate
from fairsched.engines.workloads.clients import assign
from fairsched.engines.workloads.readers.rows import TraceRow
from fairsched.model.request import Client, Groups, Prompt, Workload
from fairsched.policies.catalog import DLPMHierarchical
from tests.support.engines.fake_executor import FakeExecutor

SPLIT = generate("split", keys=4, others=2, duration_s=6, many_rate=12, rate=8, seed=3)
PLAIN = msgspec.structs.replace(SPLIT, clients=tuple(Client(c.id, c.name) for c in SPLIT.clients))
"""The same without groups."""


def ran(workload: Workload, policy: str) -> Run:
    """The figures of a run on one worker."""
    return simulate(workload, policy, cluster=Cluster("llama-3.2-3b-a10g", kv_capacity_tokens=8_000))


def test_splitting_up_takes_shares_under_the_flat_gate_alone() -> None:
    """Four clients of one organisation beside two alone: four sixths under the deficit gate, a third under ours."""
    flat, tree = (ran(SPLIT, f"fcfs+{gate}").organisations for gate in ("deficit", "hierarchical"))
    assert flat is not None
    assert tree is not None
    assert {name: one.clients for name, one in tree.each.items()} == {"many": 4, "single-1": 1, "single-2": 1}
    shares = [[one.share or 0 for one in found.each.values()] for found in (flat, tree)]
    assert [sum(each) for each in shares] == pytest.approx([1, 1])
    assert shares[0][0] > 0.6
    assert shares[1][0] == pytest.approx(1 / 3, abs=0.02)
    assert flat.bound is None
    assert tree.bound is not None
    assert tree.gap.cost <= tree.bound < flat.gap.cost
    assert tree.to_json()["service_gap_bound"] == tree.bound


def test_an_organisation_of_one_client_is_that_client() -> None:
    """What is measured of both is the same, and without groups nothing is measured of organisations."""
    result = ran(SPLIT, "vtc")
    assert result.organisations is not None
    assert result.organisations.each["single-1"].measures == result.clients["single-1/key"]
    assert result.to_json()["organisations"]["each"]["many"]["clients"] == 4
    alone = ran(PLAIN, "vtc")
    assert alone.organisations is None
    assert "organisations" not in alone.to_json()
    # A gate that shares among clients takes no notice of groups.
    assert attrs.evolve(result, wall_s=0, organisations=None).measures == alone.measures


def test_a_run_without_groups_has_the_log_that_it_had() -> None:
    """Only clients that are told of change the log: with a weight, as ever, or with groups."""
    plain = ran(PLAIN, "vtc").log_sha256
    assert plain != ran(SPLIT, "vtc").log_sha256
    assert plain == ran(msgspec.structs.replace(PLAIN, name="other"), "vtc").log_sha256


def test_organisations_are_outermost_groups_and_who_is_in_none() -> None:
    """With the weights that they have among each other."""
    acme: Groups = (("acme", 3), ("ann", 2))
    clients = (Client(0, "k1", 1, acme), Client(1, "solo", 5), Client(2, "k2", 1, acme[:1]))
    assert organisations(clients) == (Client(0, "acme", 3), Client(1, "solo", 5))
    assert organisations((Client(0, "solo"),)) == ()


def test_a_client_with_a_groups_name_is_beside_the_group() -> None:
    """As the gate has it: each is measured alone, with its own weight, and the bound is for the two."""
    clients = tuple(Client(c.id, "many", 2) if c.name == "single-1/key" else c for c in SPLIT.clients)
    named = [(each.name, each.weight) for each in organisations(clients)]
    assert named == [("many", 1), ("many (in no group)", 2), ("single-2", 1)]
    found = ran(msgspec.structs.replace(SPLIT, clients=clients), "fcfs+hierarchical").organisations
    assert found is not None
    counts = {name: one.clients for name, one in found.each.items()}
    assert counts == {"many": 4, "many (in no group)": 1, "single-2": 1}
    assert found.each["many (in no group)"].share == pytest.approx(1 / 2, abs=0.03)
    assert found.bound is not None
    assert found.gap.cost <= found.bound


def _rows(*names: str | None) -> list[TraceRow]:
    template: dict[str, Any] = {"arrival_ns": 0, "prompt": Prompt(4), "output_tokens": 1}
    return [TraceRow(row=i + 1, id=i, client=name, **template) for i, name in enumerate(names)]


def test_names_of_clients_may_be_paths() -> None:
    """Groups come from the names; weights of groups and clients from the specification."""
    rows = _rows("acme/ann/key-1", "solo", "acme/key-2")
    _, clients, (note,) = assign(rows, ClientSpec.parse("paths:acme=3,acme/ann=2,acme/key-2=4"), 0)
    assert clients == (
        Client(0, "acme/ann/key-1", 1, (("acme", 3), ("ann", 2))),
        Client(1, "solo"),
        Client(2, "acme/key-2", 4, (("acme", 3),)),
    )
    assert "paths" in note
    _, bare, _ = assign(rows, ClientSpec.parse("paths"), 0)
    assert [client.place for client in bare] == [(("acme", 1), ("ann", 1)), (), (("acme", 1),)]


@pytest.mark.parametrize(
    ("names", "spec", "problem"),
    [
        (("a/b/c/d",), "paths", "at most 2 groups"),
        (("a//b",), "paths", "has a name"),
        (("acme/k",), "paths:acne=2", "unknown client or group 'acne'; did you mean acme"),
        ((None,), "paths", "names no clients"),
        (("a",), "paths:", "expected N"),
        (("a",), "paths:a=0", "expected N"),
    ],
)
def test_paths_that_cannot_be_are_refused(names: tuple[str | None, ...], spec: str, problem: str) -> None:
    """Too deep, without a name, of groups without clients, of a trace without clients."""
    with pytest.raises(WorkloadError, match=problem):
        assign(_rows(*names), ClientSpec.parse(spec), 0)


def test_a_serving_engine_tells_its_policy_of_groups() -> None:
    """With a client's weight, before its first request; weights of groups change with it, and groups do not."""
    engine = Engine(DLPMHierarchical(), FakeExecutor(), kv_capacity_tokens=100)
    engine.configure_client("key", 1, (("acme", 2),))
    quantum = engine.policy_state.gate.quantum
    assert quantum[engine.policy_state.gate.groups[("acme",)]] == 2 * 4096
    engine.ask("key", [1, 2], 2)
    engine.run_until_idle()
    engine.configure_client("key", 3, (("acme", 5),))
    gate = engine.policy_state.gate
    assert gate.quantum[list(gate.path(0)[:2])].tolist() == [3 * 4096, 5 * 4096]
    with pytest.raises(ValueError, match="client 'key' is in acme and stays there, not in other"):
        engine.configure_client("key", 1, (("other", 1),))
    engine.configure_client("key", 1)
    assert engine.clients.all[0] == Client(0, "key", 1, (("acme", 5),))
    assert gate.groups == engine.policy_state.gate.groups


def test_the_report_shows_organisations_and_swaps_as_the_terminal_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shares and gaps of all of them, and how many of those taken out went to host memory; else no word of either."""
    flags = ["--policies", "fastserve", "--kv-capacity-tokens", "6000", "--report", str(tmp_path)]
    split = ["compare", "split:keys=2,others=1,duration_s=3,many_rate=8", *flags]
    assert main([*split, "--host-capacity-tokens", "100000", "--json", str(tmp_path / "run.json")]) == 0
    shown, page = capsys.readouterr().out, (tmp_path / "index.html").read_text()
    (run,) = json.loads((tmp_path / "run.json").read_text())["runs"]
    each, swaps = run["organisations"]["each"], run["swaps"]
    assert swaps > 0
    assert f"{swaps:,} swapped" in page
    assert f" {swaps:,}" in shown
    assert "swapped" in shown
    assert "<h2>Organisations</h2>" in page
    for name, one in each.items():
        cell = f"{share(one['share'])}  {time(one['measures']['ttft_us']['p99'])}"
        assert re.search(rf"<td[^>]*>{name}</td>\s*<td>{one['clients']}</td>\s*<td>{re.escape(cell)}</td>", page)
        assert cell in shown
    assert main(["compare", "demo", "--limit", "20", *flags]) == 0
    page = capsys.readouterr().out + (tmp_path / "index.html").read_text()
    assert "Organisations" not in page
    assert "swapped" not in page


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ('[["many",0]]', "weight of group 'many' is a whole number from 1"),
        ('[["",1]]', "names with positive weights"),
        ('[["a",1],["b",1],["c",1]]', "expected at most 2 names with positive weights"),
    ],
)
def test_groups_of_a_log_are_checked_as_those_of_a_client_are(
    groups: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log whose groups have no name, no weight or too many levels is refused with its line, without a traceback."""
    compared = ["compare", "split:keys=2,others=1,duration_s=1", "--policies", "fcfs+hierarchical"]
    assert main([*compared, "--log", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*.jsonl")
    told = '["ClientConfigured",0,0,0,1,[["many",1]]]'
    text = path.read_text()
    assert text.count(told) == 1
    assert main(["audit", str(path), "--replay"]) == 0
    path.write_text(text.replace(told, f'["ClientConfigured",0,0,0,1,{groups}]'))
    with pytest.raises(SystemExit, match="2"):
        main(["audit", str(path), "--replay"])
    assert why in capsys.readouterr().err
