"""A bug in a kernel's text is refuted by a small world that replays, and never passes for proved or stays undecided."""

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import z3

from fairsched.cli import main
from fairsched.model import pricing
from fairsched.policies.gates import counter, deficit
from fairsched.policies.gates import deficit as deficit_theorems
from fairsched.policies.gates.hierarchical import gate as hierarchical
from fairsched.verify.logic import counterexample_document, read_counterexample, replay_counterexample
from fairsched.verify.logic.counterexample import ChangedKernel
from fairsched.verify.logic.patching import variant
from fairsched.verify.proofs.gates import counter as counter_proofs
from fairsched.verify.proofs.gates import deficit as deficit_proofs
from fairsched.verify.proofs.gates import deficit_progress as deficit_progress_proofs
from fairsched.verify.proofs.gates import deficit_steps as deficit_kernel_proofs
from fairsched.verify.proofs.gates import hierarchical as hierarchical_proofs
from fairsched.verify.proofs.memory import pricing as pricing_proofs
from fairsched.verify.solvers import Broken, Proved, check, prove
from fairsched.verify.solvers.prover import obligations

pytestmark = pytest.mark.kept

PROOFS: dict[ModuleType, tuple[Any, ...]] = {
    deficit: (deficit_proofs, deficit_kernel_proofs, deficit_progress_proofs),
    hierarchical: (hierarchical_proofs,),
    counter: (counter_proofs,),
}
LIFTED = "o.maximum(o.pick(c, p, 0), level(o, c, queued, last))"
REFUNDED = "o.maximum(o.pick(c, p, 0) - amount, o.pick(floor, p, 0))"
BUGS = {
    "charge one unit less": (deficit, "admit", "-charge", "1 - charge"),
    "charge one unit less, counter": (counter, "admit", "charge)", "charge - 1)"),
    "decode for nothing": (deficit, "decode", "q - charge", "q"),
    "decode for nothing, counter": (counter, "decode", "c + charge", "c"),
    ">= for >": (deficit, "in_credit", "q > 0", "q >= 0"),
    "let in whose prefix is being computed": (deficit, "choose", " & ready", ""),
    "worst score first": (deficit, "choose", "argmax", "argmin"),
    "highest counter first": (counter, "choose", "argmin", "argmax"),
    "refill although a client has credit": (deficit, "refill", " & due", ""),
    "refill although a waiting client has credit": (deficit, "refill_due", " & o.none(in_credit(o, q, queued))", ""),
    "refill who was never seen": (deficit, "refill", "known & ", ""),
    "no refill at zero": (deficit, "refill", "(q <= 0)", "(q < 0)"),
    "refill forgives debt": (deficit, "refill", "q + quantum", "quantum"),
    "refill twice": (deficit, "refill", "q + quantum", "q + quantum + quantum"),
    "refund too much": (deficit, "refund", "o.bump(q, p, amount)", "o.bump(q, p, amount + 1)"),
    "refund nothing": (deficit, "refund", "o.bump(q, p, amount)", "q"),
    "one round too few": (deficit, "refill_rounds", "-q // quantum + 1", "-q // quantum"),
    "skip the cap": (deficit, "under_cap", "o.pick(in_flight, p, 0) + kv_tokens", "kv_tokens"),
    "promise nothing under the cap": (deficit, "reserve", "o.bump(in_flight, p, kv_tokens)", "in_flight"),
    "let the first in line in without credit": (deficit, "goes_first", " & (o.pick(q, p, 0) > 0)", ""),
    "let the first in line in before it is ready": (deficit, "goes_first", "o.pick(ready, p, False) & ", ""),
    "ask others although the first in line may go": (deficit, "goes_first", "> 0", "> 1"),
    "let the first in line in without its group's credit": (hierarchical, "goes_first", " & (inner > 0)", ""),
    "let the first in line in without its organisation's": (hierarchical, "goes_first", " & (outer > 0)", ""),
    "let in whose group has no credit": (hierarchical, "choose", " & (inner > 0)", ""),
    "let in whose organisation has no credit": (hierarchical, "choose", " & (outer > 0)", ""),
    "charge the client alone": (hierarchical, "along", "v = o.bump(v, inner, amount)", "v = o.bump(v, inner, 0)"),
    "charge no organisation": (hierarchical, "along", "o.bump(v, outer, amount)", "v"),
    "charge groups one unit less": (hierarchical, "admit", "-charge", "1 - charge"),
    "give nothing back to groups": (
        hierarchical,
        "refund",
        "along(o, q, p, inner, outer, amount)",
        "o.bump(q, p, amount)",
    ),
    "lift to the maximum": (counter, "level", "argmin", "argmax"),
    "skip the last-leaver branch": (counter, "level", "o.pick(c, last, 0)", "0"),
    "forgive what the counter says on rejoin": (counter, "lift", LIFTED, "level(o, c, queued, last)"),
    "no lift": (counter, "lift", LIFTED, "o.pick(c, p, 0)"),
    "lift and leave no floor": (counter, "lifted_to", "o.put(floor, p, level(o, c, queued, last))", "floor"),
    "refund below the last lift": (counter, "refund", REFUNDED, "o.pick(c, p, 0) - amount"),
    "refund nothing, counter": (counter, "refund", " - amount", ""),
    "refund one unit more": (counter, "refund", " - amount", " - amount - 1"),
}


def _refuted(kernel: ModuleType, module: ModuleType) -> tuple[str, Broken]:
    """The first theorem that is not proved, and where its claim is."""
    for proofs in PROOFS[module]:
        for claim in proofs.claims(kernel):
            verdict = prove(claim)
            if not isinstance(verdict, Proved):
                assert isinstance(verdict, Broken), verdict
                return proofs.__name__, verdict
    raise AssertionError("every theorem is proved of a bug")


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_refuted_and_the_world_replays(
    bug: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One change to the shipped text breaks a theorem in a world of at most 3 clients; the command line shows it again,
    and on the shipped text the same world breaks nothing.
    """
    module, function, old, new = BUGS[bug]
    kernel = variant(module, function, old, new)
    where, verdict = _refuted(kernel, module)
    assert 1 <= verdict.world.clients <= 3
    changed = ChangedKernel(module.__name__, function, inspect.getsource(getattr(kernel, function)))
    path = tmp_path / "world.json"
    path.write_bytes(counterexample_document(verdict.world, where, changed).to_json())
    assert main(["verify", "--replay", str(path)]) == 0
    saved = read_counterexample(path)
    where = "afterwards" if saved.events else "there"
    assert f"broken {where}: {verdict.world.broken[0]}" in capsys.readouterr().out
    assert replay_counterexample(saved).confirmed


def test_a_question_that_is_too_hard_may_still_have_a_small_world() -> None:
    """Where the budget runs out on products and quotients, numbers for the parameters show the world all the same."""
    kernel = variant(*BUGS["one round too few"])
    claim = next(claim for claim in deficit_kernel_proofs.claims(kernel) if claim.theorem.id == "D-refill")
    last = list(obligations(claim))[2]
    # What a question takes is not quite the same in each process: it depends on what the solver was asked before.
    too_small = (n for n in range(20_000, 60_000, 5_000) if check(last, n, z3.Not(last.goal)) == z3.unknown)
    assert any(isinstance(prove(claim, rlimit=budget), Broken) for budget in too_small)


def test_charging_less_is_refuted_although_all_books_of_the_kernel_agree() -> None:
    """Service is priced by the model, not reported by the gate, so q alone gives the missing unit away."""
    kernel = variant(deficit, "admit", "-charge", "1 - charge")
    balance = next(claim for claim in deficit_proofs.claims(kernel) if claim.theorem is deficit_theorems.D_A1)
    verdict = prove(balance)
    assert isinstance(verdict, Broken)
    assert "W + q = q0 + P" in verdict.world.broken


def test_a_change_that_changes_nothing_is_no_variant() -> None:
    """A variant whose text is not found, or found twice, is an error."""
    with pytest.raises(ValueError, match="0 times"):
        variant(deficit, "admit", "nothing of the kind", "")


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        ("__import__('os').system('true')", "calls"),
        ("o.__class__", "calls"),
        ("[q for q in charge]", "has"),
        ("(lambda: charge)()", "calls"),
    ],
)
def test_a_variant_computes_and_does_nothing_else(new: str, problem: str) -> None:
    """A saved counterexample may hold foreign text; what is no arithmetic of the algebra is not compiled."""
    with pytest.raises(ValueError, match=problem):
        variant(deficit, "admit", "-charge", new)


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        ("charge_max_reserved", lambda rates, memory, longest: rates.output * memory),
        ("charge_max_optimistic", lambda rates, longest, out, k: rates.input * longest + rates.output * k * out + 1),
        ("price", lambda tokens, rate, multiplier=1: tokens * rate * multiplier - 1),
        ("multipliers", lambda weights: tuple(weights)),  # noqa: PLW0108  (its code is read)
    ],
)
def test_a_wrong_price_is_refuted(function: str, wrong: object) -> None:
    """A constant that is too small fails to bound, one that is too large is not attained."""
    functions = ModuleType("pricing")
    vars(functions).update({**vars(pricing), function: wrong})
    verdicts = [prove(claim) for claim in pricing_proofs.price_claims(functions)]
    assert any(isinstance(verdict, Broken) for verdict in verdicts)
    assert all(isinstance(verdict, Broken | Proved) for verdict in verdicts)
