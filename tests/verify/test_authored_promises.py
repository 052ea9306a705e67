"""What an author's gate promises reaches reports and the monitor; products and chance are stated, proved and run."""

from collections import Counter
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import settings

import fairsched as fs
from fairsched.cli import main
from fairsched.engines.serving import require_certificate
from fairsched.engines.serving.guard.certificate import NotCertifiedError
from fairsched.model.algebra import Algebra, Vector
from fairsched.model.request import Client
from fairsched.model.theorem import MEM_RESERVE, NOTHING_REFUNDED, OUTPUTS_BOUNDED
from fairsched.policies.batching import Chunked
from fairsched.policies.gates.authoring import lots
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import Arrival
from fairsched.verify.authoring import FairGate
from fairsched.verify.conformance.local import check_local_policy
from fairsched.verify.report import certificate
from fairsched.verify.report.deployment import read
from fairsched.verify.report.scope import subject
from fairsched.verify.report.values import run
from fairsched.verify.solvers import Proved, Refuted, prove
from fairsched.verify.solvers.bounded_model_checking import judged
from fairsched.verify.solvers.cross_check import disagreement, questions
from tests.support.authors.allowance import Allowance
from tests.support.authors.lottery import Lottery
from tests.support.authors.stride import Stride

AUTHORS = Path(__file__).parents[1] / "support" / "authors"
CAPACITY = 4096


def policy(gate: FairGate) -> ComposedPolicy:
    """First come, first served behind the gate."""
    return ComposedPolicy("mine", Arrival(), gate)


def bound(gate: FairGate, *weights: int) -> int | None:
    """What reports say of clients with these weights."""
    guarantee = policy(gate).guarantee
    clients = tuple(Client(i, str(i), weight) for i, weight in enumerate(weights))
    return guarantee.service_gap_bound(clients, guarantee.limits(CAPACITY, 256))


# --- the bound --------------------------------------------------------------------------------------------------------


def test_a_promise_that_no_proof_can_read_is_no_bound() -> None:
    """A gate whose kernels leave the algebra has no bound, and the run says which words; another one's is a claim."""

    class Decays(Allowance):
        @staticmethod
        def decode(o: Algebra, q: Vector, charge: Vector) -> Vector:
            return q // 2 - charge

    run = fs.simulate(fs.generate("demo", limit=40), policy(Decays()))
    assert run.service_gap_bound is None
    assert any("'q // 2' is not written in the algebra's words" in note for note in run.notes)
    claimed = fs.simulate(fs.generate("demo", limit=40), policy(Allowance()))
    assert claimed.service_gap_bound is not None
    assert any("fairsched verify decides it" in note for note in claimed.notes)


def test_a_promise_is_a_number_in_each_configuration() -> None:
    """The same term that is proved: 2 (allowance - 1) + 2 U, with the U of the worker's memory."""
    gate = Allowance()
    charge = gate.charge_max(policy(gate).guarantee.limits(CAPACITY, 256))
    assert bound(gate, 1, 1) == 2 * (4096 - 1) + 2 * charge
    assert bound(gate, 1) is None
    # Tokens are not weighed by this gate, and service by weight is: nothing is promised of that.
    assert bound(gate, 1, 2) is None


def test_a_promise_by_weight_is_one_of_service_by_weight() -> None:
    """stride_f U_f + stride_g U_g in units of stride is U times both multipliers in reports' units."""
    gate = Stride()
    charge = gate.charge_max(policy(gate).guarantee.limits(CAPACITY, 256))
    assert bound(gate, 1, 1) == 2 * charge
    assert bound(gate, 1, 3, 3) == (3 + 1) * charge
    # 2,520 is no multiple of 11: the strides are not in the proportion of the weights.
    assert bound(gate, 1, 11) is None
    with pytest.raises(ValueError, match=r"stride = 2520 is less than a weight of 2521"):
        gate.configured(gate.init(), 0, 2521)


@pytest.mark.parametrize("gate", [Allowance(), Lottery(), Stride()], ids=lambda gate: type(gate).__name__)
def test_the_monitor_holds_a_run_to_the_promise(gate: FairGate) -> None:
    """The bound is the run's and the monitor's; the gate's own theorems are those that assumptions matter to."""
    ran = fs.simulate(fs.generate("demo"), policy(gate))
    assert ran.service_gap_bound is not None
    assert 0 < ran.gap.cost <= ran.service_gap_bound
    guarantee = policy(gate).guarantee
    promise = guarantee.promise((Client(0, "a"), Client(1, "b")), guarantee.limits(CAPACITY, 256))
    assert promise is not None
    assert promise.gap_bound == bound(gate, 1, 1)
    assert promise.gap_theorems == ("gap",)
    assert "gap" in promise.needed_by()[NOTHING_REFUNDED.name]
    assert promise.reweighted is not None
    assert promise.reweighted((1, 1, 1), (1, 1, 1), ((),) * 3).gap_bound is not None
    assert promise.reweighted((1, 2), (1, 1), ((),) * 2).gap_bound is None


def test_outputs_that_are_not_reserved_are_another_assumption() -> None:
    """As of a gate that ships: what the batching rule does not keep is not said to be needed."""
    grows = ComposedPolicy("mine", Arrival(), Allowance(), Chunked(reserve="optimistic"))
    found = subject("mine", grows)
    (gap,) = (theorem for theorem in found.theorems if theorem.id == "gap")
    assert OUTPUTS_BOUNDED in found.assumptions(gap)
    assert MEM_RESERVE not in found.assumptions(gap)


class Forgetful(Allowance):
    """Charges nothing for decoding, and says that it does."""

    @staticmethod
    def decode(o: Algebra, q: Vector, charge: Vector) -> Vector:
        return q


def test_a_gate_that_breaks_its_promise_is_refuted() -> None:
    """Service is counted from what happened, so a kernel that forgets a charge breaks what the bound rests on."""
    verdicts = {claim.theorem.id: prove(claim) for claim in Forgetful.claims()}
    assert not isinstance(verdicts["gap"], Proved)


def test_reports_show_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`compare` prints it for an author's composition, as for one that ships."""
    monkeypatch.syspath_prepend(str(AUTHORS))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from allowance import Allowance\nfrom fairsched.policies.local import ComposedPolicy\n"
        "from fairsched.policies.orders import Arrival\nfair = ComposedPolicy('fair', Arrival(), Allowance())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["compare", "--policies", "mine:fair", "--json", "found.json"]) == 0
    shown = capsys.readouterr().out
    text = (tmp_path / "found.json").read_text()
    assert "bound" in shown
    assert "service_gap_bound" in text
    assert '"service_gap_bound": null' not in text


# --- the certificate --------------------------------------------------------------------------------------------------


def test_an_authors_certificate_binds_the_authors_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `decode` that returns q makes every client debt-free: the certificate names it, and the engine refuses."""
    deployment = read({"kv_capacity_tokens": CAPACITY})
    own = policy(Allowance())
    found = subject("mine", own)
    few = attrs.evolve(found, theorems=tuple(each for each in found.theorems if each.id in ("gate", "always", "gap")))
    outcome = run("0", [few], deployment, self_checks=False, quick=True)
    assert {row.decision.verdict for row in outcome.rows} == {"proved"}
    certificate.write_certificate(tmp_path / "certificate", outcome, deployment)
    (made,) = certificate.read(tmp_path / "certificate").certificates
    name = f"{Allowance.__module__}.Allowance"
    assert {f"{name}.{kernel}" for kernel in ("choose", "admit", "decode", "refill")} <= set(made.code)
    assert {theorem.id: theorem.bound_cost for theorem in made.theorems}["gap"] == bound(Allowance(), 1, 1)
    assert require_certificate(own, tmp_path / "certificate", CAPACITY).certificate == made
    monkeypatch.setattr(Allowance, "decode", staticmethod(lambda o, q, charge: q))
    with pytest.raises(NotCertifiedError) as refused:
        require_certificate(own, tmp_path / "certificate", CAPACITY)
    assert str(refused.value).splitlines()[1:] == [f"  {name}.decode: changed since it was proved about"]


# --- products and chance ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", [Stride, Lottery])
def test_products_and_chance_are_proved(gate: type[FairGate]) -> None:
    """For every number of clients, every weight and whatever is drawn."""
    assert {claim.theorem.id: type(prove(claim)) for claim in gate.claims()} == dict.fromkeys(
        ("gate", "always", "progress", "gap", "return-debt"), Proved
    )


@pytest.mark.usefixtures("by_night")
@pytest.mark.parametrize("gate", [Stride, Lottery])
def test_the_second_solver_agrees(gate: type[FairGate]) -> None:
    """Products of unknowns take cvc5 about a minute."""
    assert not [why for claim in gate.claims() for why in map(disagreement, questions(claim)) if why]


class ChargesTheWeight(Stride):
    """Multiplies by the wrong client's stride."""

    @staticmethod
    def decode(o: Algebra, c: Vector, charge: Vector, stride: Vector) -> Vector:
        return c + charge


class LotteryForAll(Lottery):
    """Lets chance decide among all that wait."""

    @staticmethod
    def choose(o: Algebra, c: Vector, queued: Vector, lot: Vector) -> Vector:  # type: ignore[override]
        return o.argmax(lot, queued)


@pytest.mark.parametrize(("gate", "theorem"), [(ChargesTheWeight, "gap"), (LotteryForAll, "always")])
def test_a_wrong_product_and_chance_without_limits_are_found(gate: type[FairGate], theorem: str) -> None:
    """A token that costs all the same breaks the weighted promise, and pure chance keeps none for every draw."""
    claims = {claim.theorem.id: claim for claim in gate.claims()}
    verdict = prove(claims[theorem])
    assert not isinstance(verdict, Proved)
    if theorem == "always":
        assert isinstance(judged(claims[theorem], verdict, "mine:x", clients=2), Refuted)


@pytest.mark.parametrize("gate", [Stride(), Lottery()], ids=lambda gate: type(gate).__name__)
def test_they_run_as_any_gate_does(gate: FairGate) -> None:
    """Composed with an order they pass the battery of every policy: chance is part of the state."""
    check_local_policy(policy(gate), settings=settings(max_examples=5, stateful_step_count=15, deadline=None))


def test_a_ticket_wins_as_often_as_any_other() -> None:
    """Over 3,000 draws a client with three tickets of five wins about 60 % of them; the same draw is the same again."""
    won = Counter(int(np.argmax(lots(7, number, [1, 3, 1]))) for number in range(3000))
    assert 0.57 < won[1] / 3000 < 0.63
    assert abs(won[0] - won[2]) < 200
    assert lots(7, 5, [1, 3]) == lots(7, 5, [1, 3])
