"""`fairsched verify` and `fairsched certificate`: what they write, what they refuse, and what they load."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairsched.cli import main
from tests.cli.conftest import Refused

REPORT_KEYS = {"fairsched", "solvers", "theorems", "refutations", "mutation", "code", "wall_s"}
THEOREM_KEYS = {
    *("policy", "id", "statement", "verdict", "scope", "bound", "tightness", "assumptions", "cutoff", "solvers", "ms"),
    *("vacuous", "worlds", "level"),
}

FAIR = '''
"""A fair policy: shortest prompt first, among the clients that have credit."""
import attrs
from fairsched.policies.batching import Batching, Chunked
from fairsched.policies.gates.deficit import DeficitGate
from fairsched.policies.gates.base import Gate
from fairsched.policies.local.policy import ComposedPolicy
from fairsched.policies.orders.base import Order
from fairsched.policies.orders.plain import ShortestPrompt


@attrs.frozen
class Mine(ComposedPolicy):
    """Shortest prompt first, fairly."""

    name: str = "mine"
    order: Order = attrs.field(factory=ShortestPrompt)
    gate: Gate = attrs.field(factory=DeficitGate)
    batching: Batching = attrs.field(factory=Chunked)
'''
UNFAIR = '''
"""A gate that charges one unit less than it serves, with claims of its own."""
from fairsched.policies.gates import deficit
from fairsched.verify.logic.patching import variant
from fairsched.verify.proofs.gates import deficit as deficit_proofs


class Discount:
    """Every admission is a unit cheaper."""

    @staticmethod
    def claims():
        """What was true of the gate before the discount."""
        return deficit_proofs.claims(variant(deficit, "admit", "-charge", "1 - charge"))[:2]
'''


def test_progress_is_said_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line on standard error from time to time: how much is decided, and what is next."""
    monkeypatch.setattr("fairsched.cli.output.LINE_EVERY_S", 0)
    assert main(["verify", "--policy", "fcfs", "--quick", "--jobs", "1"]) == 0
    first, *_, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"0 of \d+: theorem KV-\w+", first)
    assert last == "runs that attain bounds"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, with a user's policies in it; their modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fair_policy.py").write_text(FAIR)
    (tmp_path / "unfair_policy.py").write_text(UNFAIR)
    for name in ("fair_policy", "unfair_policy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_json_has_the_documented_keys(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One entry a theorem of the author's composition, each with exactly the documented keys, all proved or tried."""
    (folder / "mine.toml").write_text('kv_capacity_tokens = 4096\n[policies."fair_policy:Mine"]\nquantum = 100\n')
    arguments = ("--config", "mine.toml", "--policy", "fair_policy:Mine", "--quick", "--jobs", "1", "--json", "v.json")
    assert main(["verify", *arguments]) == 0
    document = json.loads((folder / "v.json").read_text())
    assert set(document) == REPORT_KEYS
    assert set(document["solvers"]) == {"z3"}
    assert document["refutations"] == document["mutation"] == []
    for entry in document["theorems"]:
        assert set(entry) == THEOREM_KEYS
        tried = entry["scope"] == "tested"
        assert (entry["verdict"], entry["solvers"]) == (("tested", []) if tried else ("proved", ["z3"]))
        assert not entry["vacuous"]
    by_id = {entry["id"]: entry for entry in document["theorems"]}
    units = 2 * (100 + (2 * 4096 - 1) - 1)
    bound = by_id["D-4.1"]["bound"]
    assert (bound["cost_units"], bound["output_tokens"]) == (units, units // 2)
    assert bound["seconds"] > 0
    assert by_id["D-4.1"]["tightness"]["ratio"] == 1.0
    shown = capsys.readouterr().out
    assert f"{units:,} = {units // 2:,} tok" in shown
    assert "fair_policy:Mine" in shown
    assert not (folder / "out").exists()


def test_a_claim_that_is_false_exits_with_one_and_replays(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The author's broken gate is refuted by a world that is saved, and the replay breaks it again."""
    assert main(["verify", "--policy", "unfair_policy:Discount", "--jobs", "1"]) == 1
    shown = capsys.readouterr().out
    assert "REFUTED" in shown
    *_, command = (line.strip() for line in shown.splitlines() if line.strip().startswith("fairsched verify --replay"))
    assert main([*command.split()[1:]]) == 0
    assert "broken there: |P - W| <= Q + U - 1" in capsys.readouterr().out


def test_an_open_gate_promises_nothing_about_fairness(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That is said, is no failure, and its batching rule's theorems are there all the same."""
    assert main(["verify", "--policy", "fcfs", "--quick", "--jobs", "1"]) == 0
    shown = capsys.readouterr().out
    assert "About fairness there is no theorem for fcfs" in shown
    assert "KV-sum" in shown


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["verify", "--policy", "dlmp"], "did you mean dlpm"),
        (["verify", "--report", "page"], "--report plays what --replay runs"),
        (["verify", "--policy", "no_such_module:Policy"], "cannot be imported"),
        (
            ["verify", "--policy", "fairsched.policies.gates:DeficitGate"],
            "neither a composed policy nor has it `claims`",
        ),
        (["verify", "--config", "no-such.toml"], "no-such.toml"),
        (["verify", "--config", "bad.toml"], "bad.toml: line 1, column 21: no value"),
        (["verify", "--config", "bad.json"], "bad.json: line 1, column 2: expecting"),
        (["verify", "--quick", "--certificate", "c"], "needs both solvers"),
        (["verify", "--policy", "fcfs", "--certificate", "taken"], "no certificate"),
        (["verify", "--json", "no/such/folder.json"], "no folder"),
        (["verify", "--unknown"], "--unknown"),
        (["verify", "--check", "nowhere"], "no certificate"),
        (["verify", "--prove", "nowhere"], "no certificate"),
    ],
)
def test_bad_arguments_get_one_line_and_status_two(
    arguments: list[str], expected: str, folder: Path, refused: Refused
) -> None:
    """What is wrong is said in one line on standard error that names it, with exit status 2."""
    (folder / "bad.toml").write_text("kv_capacity_tokens =")
    (folder / "bad.json").write_text("{")
    (folder / "taken").mkdir()
    (folder / "taken" / "notes.txt").write_text("mine")
    assert expected in refused(*arguments)


def test_without_the_extra_the_command_says_what_to_install() -> None:
    """A missing solver is one line that names the extra.  In a process of its own, since modules are imported once."""
    program = (
        "import sys\nfrom fairsched.cli import main\nsys.modules['cvc5'] = None\n"
        "sys.exit(main(['verify', '--policy', 'dlpm']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2,
        "fairsched verify needs cvc5: pip install '.[verify]' in a clone of fairsched\n",
    )


def test_solvers_are_loaded_by_these_commands_only() -> None:
    """Neither the command line nor another command of it imports a solver, and none imports torch."""
    program = (
        "import sys\nfrom fairsched.cli import main\nmain(['policies'])\n"
        "assert not {'z3', 'cvc5', 'hypothesis', 'torch'} & set(sys.modules), sorted(sys.modules)\n"
        "main(['verify', '--policy', 'fcfs', '--jobs', '1'])\n"
        "assert {'z3', 'cvc5'} <= set(sys.modules) and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
