"""A counterexample is small, is kept as JSON, and runs again without a solver."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fairsched.cli import main
from fairsched.model.theorem import REJOIN_KEEPS_DEBT
from fairsched.policies.gates import deficit as deficit_theorems
from fairsched.verify import logic as v
from fairsched.verify.logic.system import step_named
from fairsched.verify.proofs.gates import deficit as deficit_proofs
from fairsched.verify.solvers import Broken, prove

pytestmark = pytest.mark.kept

PRINTED = frozenset({REJOIN_KEEPS_DEBT})


@pytest.fixture(scope="module")
def saved() -> v.Document:
    """The printed rejoin rule breaks D-4.2."""
    claim = next(claim for claim in deficit_proofs.claims() if claim.theorem is deficit_theorems.D_42)
    verdict = prove(claim, dropped=PRINTED)
    assert isinstance(verdict, Broken)
    return v.counterexample_document(verdict.world, deficit_proofs.__name__)


@pytest.fixture
def path(saved: v.Document, tmp_path: Path) -> Path:
    """It as a file."""
    file = tmp_path / "world.json"
    file.write_bytes(saved.to_json())
    return file


def test_json_keeps_all_of_it(saved: v.Document, path: Path) -> None:
    """What is read is what was written: a small world, and which rule was dropped."""
    assert saved.clients <= 3
    assert saved.without == (REJOIN_KEEPS_DEBT.name,)
    assert v.read_counterexample(path) == saved
    assert saved.to_json() == v.read_counterexample(path).to_json()


def test_the_text_shows_state_event_state_and_clause(saved: v.Document) -> None:
    """A reader sees what was before, what happened, what is then, and what is wrong with it."""
    text = v.replay_counterexample(saved).text()
    event, broken = text.index("-> arrive as printed, at zero: p = 0"), text.index("broken afterwards: W + q = q0 + P")
    assert text.index("client") < event < text.rindex("client") < broken
    assert "without RejoinKeepsDebt" in text


def test_a_replay_needs_no_solver(path: Path) -> None:
    """The command imports numpy and the claim, and neither Z3 nor cvc5 nor Hypothesis."""
    program = (
        "import sys; from fairsched.cli import main; status = main(['verify', '--replay', sys.argv[1]]);"
        "sys.exit(status or len({'z3', 'cvc5', 'hypothesis'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_world_that_breaks_nothing_now_is_said_to(
    saved: v.Document, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bug was mended, say: exit status 1, and the report names what was broken."""
    mended = msgspec.structs.replace(
        saved, obligation="arrive", events=(msgspec.structs.replace(saved.events[0], event="arrive"),)
    )
    path.write_bytes(mended.to_json())
    assert main(["verify", "--replay", str(path)]) == 1
    out = capsys.readouterr().out
    assert "nothing is broken" in out
    assert "saved as breaking: W + q = q0 + P" in out


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"claims": "fairsched.verify.nowhere"}, "no claims in"),
        ({"theorem": "D-0"}, "has no theorem 'D-0'"),
        ({"obligation": "explode"}, "has no event 'explode'"),
        ({"clients": 2}, "over 2 clients"),
        ({"initial": {}}, "differ in"),
        ({"without": ()}, "has no event"),
        ({"fairsched_counterexample": 2}, "schema 2"),
    ],
)
def test_a_document_that_does_not_fit_is_one_clear_line(
    saved: v.Document, change: dict[str, object], problem: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2 and no traceback, whatever is wrong with it."""
    path.write_bytes(msgspec.structs.replace(saved, **change).to_json())
    with pytest.raises(SystemExit) as stopped:
        main(["verify", "--replay", str(path)])
    assert stopped.value.code == 2
    assert problem in capsys.readouterr().err


def test_a_world_outside_the_hypotheses_says_nothing(saved: v.Document) -> None:
    """With more credit than a quantum the first state is none that the claim is about."""
    initial = {**saved.initial, "q": tuple(entry + 1_000 for entry in saved.initial["q"])}  # type: ignore[union-attr]
    with pytest.raises(v.NotPermittedError, match="first state"):
        v.replay_counterexample(msgspec.structs.replace(saved, initial=initial))


def test_shrinking_keeps_what_breaks(saved: v.Document) -> None:
    """A large world that breaks the step shrinks to one client and single digits."""
    claim = next(claim for claim in deficit_proofs.claims() if claim.theorem is deficit_theorems.D_42)
    step = step_named(claim, saved.obligation, PRINTED)
    large: v.Values = {
        "Q": (40, 40, 40), "U": (90, 90, 90), "back": (0, 0, 0), "q0": (0, 0, 0), "f": 0, "g": 0, "q": (-77, 5, 9),
        "queued": (0, 1, 1), "known": (1, 1, 1), "R": (11, 0, 3), "K": (0, 0, 0), "W": (77, 0, 0),
        "P": (0, 5, 9), "p": 0,
    }  # fmt: skip
    assert v.confirmed(step, 3, large)
    small = v.minimised(step, 3, large)
    assert small.clients == 1
    assert all(
        abs(entry) < 10
        for value in small.values.values()
        for entry in (value if isinstance(value, tuple) else (value,))
    )
