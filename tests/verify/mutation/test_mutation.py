"""Every small change to a kernel, to a price or to a claim is found out, or proved to change nothing."""

from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from fairsched.model import pricing
from fairsched.model.algebra import Algebra, Scalar, Vector
from fairsched.policies.gates import counter, deficit
from fairsched.verify.logic import Claim
from fairsched.verify.logic.patching import variant
from fairsched.verify.mutation import claims as claim_mutation
from fairsched.verify.mutation import kernels as mutation
from fairsched.verify.mutation import mutants as mutants_module
from fairsched.verify.mutation import pricing as pricing_mutation
from fairsched.verify.mutation.equivalence import equal
from fairsched.verify.mutation.kernels import MutationTarget, targets
from fairsched.verify.mutation.mutants import Fate, KeptRows, MutationEntry, kept_rows, mutants, row
from fairsched.verify.proofs.gates import counter as counter_proofs
from fairsched.verify.proofs.gates import deficit as deficit_proofs
from tests.support.authors import loose_claims

pytestmark = pytest.mark.kept

QUICK = [
    (deficit, "in_credit"),
    (deficit, "choose"),
    (deficit, "under_cap"),
    (counter, "admit"),
    (counter, "decode"),
]


def _target(module: ModuleType) -> MutationTarget:
    return next(target for target in targets() if target.module is module)


@pytest.mark.parametrize(("module", "function"), QUICK, ids=lambda value: getattr(value, "__name__", value))
def test_every_mutant_of_a_kernel_is_killed(module: ModuleType, function: str) -> None:
    """Each by a theorem that it breaks, in a world that both running interpretations confirm."""
    found = list(mutation.outcomes(_target(module), [function]))
    assert found
    for outcome in found:
        assert outcome.fate is Fate.KILLED, outcome
        assert outcome.world is not None
        assert outcome.world.clients <= 3
        assert outcome.world.theorem == outcome.by


@pytest.mark.nightly
def test_no_mutant_of_anything_is_unknown(full_budget: bool) -> None:
    """All of the report: kernels, prices and claims (without the full budget claims of two modules); those that were
    kept are the same."""
    tasks = mutation.mutation_tasks()
    if not full_budget:
        tasks = [task for task in tasks if task[0] == "claims"][-2:]
    found = {" ".join(task): mutation.fresh_rows(task) for task in tasks}
    assert not [name for name, rows in kept_rows().items() if found.get(name, rows) != rows]
    rows = [row for rows in found.values() for row in rows]
    assert not [row for row in rows if row.unknown]
    assert all(row.mutants == row.killed + row.equivalent > 0 for row in rows)


def test_rows_are_kept_for_as_long_as_all_is_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kept row says so; with another text or solver it is found anew."""
    task, row = ("kernels", counter.__name__, "admit"), MutationEntry("admit", 9, 9, 0, 0)
    for text, kept in ((mutants_module.rested_on(), True), ("another", False)):
        path = tmp_path / f"{kept}.json"
        path.write_bytes(msgspec.json.encode(KeptRows(text, {" ".join(task): [row]})))
        monkeypatch.setattr(mutants_module, "KEPT", path)
        kept_rows.cache_clear()
        (found,) = mutation.mutation_rows(task)
        assert (found == msgspec.structs.replace(row, kept=True)) is kept
        assert found.kept is kept
    kept_rows.cache_clear()


def test_every_kernel_and_price_has_mutants() -> None:
    """The tasks name each kernel function of both gates, and each public function of pricing that is no check."""
    named = {name for task in mutation.mutation_tasks() if task[0] == "kernels" for name in task[2:]}
    assert named == {kernel.__name__ for target in targets() for kernel in target.kernels()}
    public = {name for name, value in vars(pricing).items() if name[0] != "_" and hasattr(value, "__code__")}
    assert {function.__name__ for function in pricing_mutation.FUNCTIONS} == public - {
        "lcm",
        "Rates",
        "accepted",
        "unit_fits",
    }


def test_a_mutant_that_changes_nothing_is_proved_equal() -> None:
    """A refund's default for no client cannot matter, nor `>` for `>=` of rates where both agree."""
    found = list(mutation.outcomes(_target(counter), ["refund"]))
    equivalent = [outcome for outcome in found if outcome.fate is Fate.EQUIVALENT]
    assert {outcome.mutant.change for outcome in equivalent} == {"0 -> 1", "0 -> -1"}
    prices = list(pricing_mutation.outcomes())
    assert {outcome.fate for outcome in prices} == {Fate.KILLED, Fate.EQUIVALENT}
    assert [outcome.mutant.change for outcome in prices if outcome.fate is Fate.EQUIVALENT] == [
        "rates.input >= rates.output -> rates.input > rates.output"
    ]


def _without_refund(kernel: ModuleType = counter) -> tuple[Claim, ...]:
    return tuple(claim for claim in counter_proofs.claims(kernel) if claim.theorem.id != "V-refund")


@pytest.mark.nightly
@pytest.mark.usefixtures("by_night")
def test_service_that_counts_refunds_kills_every_mutant_of_a_refund() -> None:
    """Without V-refund, which a mutant once showed to be missing, the other theorems kill what it kills: their service
    counts all that is given back."""
    target = _target(counter)
    proofs = ModuleType("without V-refund")
    vars(proofs)["claims"] = _without_refund
    without = MutationTarget(counter, (proofs, *(each for each in target.proofs if each is not counter_proofs)))
    fates = {outcome.fate for outcome in mutation.outcomes(without, ["refund"])}
    assert fates == {Fate.KILLED, Fate.EQUIVALENT}
    assert row("refund", []).mutants == 0


def test_a_smaller_constant_cannot_be_proved() -> None:
    """Every comparison of a clause of the deficit gate made strict, each bound less one: all of them fail."""
    found = list(claim_mutation.outcomes(deficit_proofs))
    assert len(found) >= 10
    assert {outcome.fate for outcome in found} == {Fate.KILLED}


def test_a_constant_that_is_not_the_smallest_is_seen() -> None:
    """2(Q + U) for 2(Q + U - 1): the looser claim is proved, and so is the one with its bound less one."""
    found = {outcome.mutant.change.split(": ")[1]: outcome.fate for outcome in claim_mutation.outcomes(loose_claims)}
    assert found == {
        "w.q <= w.Q + w.back + 1 -> w.q < w.Q + w.back + 1": Fate.UNKNOWN,
        "w.q >= 1 - w.U -> w.q > 1 - w.U": Fate.KILLED,
    }


def _twice(o: Algebra, q: Vector, x: Scalar) -> Vector:
    return q + x + x


def _otherwise(o: Algebra, q: Vector, x: Scalar) -> Vector:
    return x + q + x


def _maximum(o: Algebra, q: Vector, x: Scalar) -> Vector:
    return o.maximum(q, x)


def _by_where(o: Algebra, q: Vector, x: Scalar) -> Vector:
    return o.where(q > x, q, x)


def test_equality_of_texts_is_decided() -> None:
    """Two texts of one function are equal for all inputs, two functions are not."""
    assert equal(_twice, _otherwise)
    assert equal(_maximum, _by_where)
    assert not equal(_twice, _maximum)
    assert equal(
        deficit.choose, variant(deficit, "choose", "in_credit(o, q, queued) & ready", "ready & queued & (q > 0)").choose
    )


def test_mutants_are_other_texts() -> None:
    """Each is made once, and none is the original."""
    texts = [mutant.text for mutant in mutants(counter.lift)]
    assert len(texts) == len(set(texts)) > 20
    assert all("def lift(" in text for text in texts)
