"""What an author writes: one class or one composition, proved or refuted by the same command as what ships."""

import importlib
import json
import re
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import settings

from fairsched.cli import main
from fairsched.model.algebra import Algebra, Mask, Point, Scalar, Vector
from fairsched.model.theorem import NOTHING_REFUNDED
from fairsched.policies.gates import (
    BandGate,
    BoundedGate,
    CounterGate,
    DeficitGate,
    GlobalDeficitGate,
    HierarchicalGate,
    InBatchGate,
    LeasedGate,
    OpenGate,
    authoring,
    deficit,
)
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import Arrival, LongestPrefix, Order, ShortestPrompt
from fairsched.verify.authoring import RETURNS, Clause, FairGate, Promise
from fairsched.verify.conformance.local import check_local_policy
from fairsched.verify.logic import Claim, replay_counterexample
from fairsched.verify.proofs import claims_of
from fairsched.verify.report.scope import subject
from fairsched.verify.solvers import Broken, Proved, Refuted, prove
from fairsched.verify.solvers.bounded_model_checking import judged
from fairsched.verify.solvers.prover import NotInductive, Verdict
from tests.support.authors.allowance import Allowance
from tests.support.authors.least_served import LeastServed

AUTHORS = Path(__file__).parents[1] / "support" / "authors"


class LeastServedMended(LeastServed):
    """The client charged least goes first; one that joins is lifted to the lowest that waits, or to the last that
    left."""

    @staticmethod
    def join(o: Algebra, c: Vector, queued: Mask, p: Point, last: Point) -> Vector:  # type: ignore[override]
        lowest = o.pick(c, o.argmin(c, queued), o.pick(c, last, 0))
        return o.put(c, p, o.maximum(o.pick(c, p, 0), lowest))


@pytest.mark.parametrize("gate", [Allowance, LeastServedMended])
def test_a_fair_gate_is_proved(gate: type[FairGate]) -> None:
    """Whom it lets in, what always holds, that it makes progress and what it promises, for every number of clients."""
    assert {claim.theorem.id for claim in gate.claims()} >= {"gate", "always", "progress", "gap", "return-debt"}
    assert {type(prove(claim)) for claim in gate.claims()} == {Proved}


def _claim(gate: type[FairGate], theorem: str) -> Claim:
    """What the gate claims under that name."""
    return next(claim for claim in gate.claims() if claim.theorem.id == theorem)


def _settled(gate: type[FairGate], theorem: str, **scope: int) -> Verdict:
    """The verdict on a theorem of the gate, with the runs that were searched."""
    claim = _claim(gate, theorem)
    return judged(claim, prove(claim), f"{__name__}:{gate.__name__}", _claim(gate, "always"), **scope)


class NeverRefills(Allowance):
    """An allowance that is used up once and for all: whatever clients are served, they are served alike."""

    refill = None  # type: ignore[assignment]


class RefillsTheOthers(Allowance):
    """Refills clients that do not wait."""

    @staticmethod
    def refill(o: Algebra, q: Vector, queued: Mask, allowance: Scalar) -> Vector:
        return o.where(queued | (q > 0), q, q + allowance)


class GoesRound(Allowance):
    """Gives credit, and takes it back in the next refill, before a client has enough of it."""

    state = ("q",)

    @staticmethod
    def choose(o: Algebra, q: Vector, queued: Mask, score: Vector) -> Point:
        return o.argmax(score, queued & (q > 5))

    @staticmethod
    def refill(o: Algebra, q: Vector, queued: Mask, allowance: Scalar) -> Vector:
        return o.where(q > 0, q - 1, q + 1)


class ServesOnce(FairGate):
    """Lets in each client until it was charged something."""

    state = ("c",)

    @staticmethod
    def choose(o: Algebra, c: Vector, queued: Mask) -> Point:
        return o.argmin(c, queued & (c <= 0))

    @staticmethod
    def admit(o: Algebra, c: Vector, p: Point, charge: Scalar) -> Vector:
        return o.bump(c, p, charge)


@pytest.mark.parametrize("gate", [NeverRefills, RefillsTheOthers, GoesRound, ServesOnce])
def test_a_gate_that_serves_no_client_is_refuted(gate: type[FairGate]) -> None:
    """Each client is served as little as every other, and that proves nothing: a run ends with a client that waits."""
    verdict = _settled(gate, "progress")
    assert isinstance(verdict, Refuted), verdict
    assert verdict.run is None or replay_counterexample(verdict.run, _claim(gate, "progress")).confirmed
    assert any("a client that waits is let in" in clause for clause in verdict.world.broken)


def test_a_gate_that_only_seems_fair_is_not_proved() -> None:
    """All but progress is proved of a gate that never refills; the report names it, and so the gate fails."""
    verdicts = {claim.theorem.id: type(prove(claim)) for claim in NeverRefills.claims()}
    assert verdicts.pop("progress") is not Proved
    assert set(verdicts.values()) == {Proved}


def test_a_gate_that_goes_round_ends_in_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is proved a decision ends all the same, and says why."""
    monkeypatch.setattr(authoring, "REFILLS_MAX", 100)
    gate, heads = GoesRound(), np.zeros(1, np.int64)
    state = gate.joined(gate.init(), 0, heads, waited=False)
    with pytest.raises(ValueError, match=r"gate GoesRound refilled .* no progress"):
        gate.begin(state, heads).choose(heads)


@pytest.mark.parametrize(
    "gate", [DeficitGate, InBatchGate, CounterGate, BandGate, HierarchicalGate, GlobalDeficitGate, LeasedGate]
)
def test_every_shipped_gate_states_progress_and_what_returning_costs(gate: type[BoundedGate[Any]]) -> None:
    """Each names its theorems of progress and of a client that leaves and returns, which are among those that are
    decided, or says in a sentence what it does not promise."""
    assert gate.progress
    assert set(gate.returns) == set(RETURNS)
    named = {*gate.progress, *(each for by in gate.returns.values() if not isinstance(by, str) for each in by)}
    assert named <= {theorem.id for theorem in gate.theorems} & set(claims_of(""))


class ForgivesReturns(Allowance):
    """A client that returns owes nothing; the promise is of the time in which both wait."""

    promises = (attrs.evolve(Allowance.gap, backlogged="fg"),)

    @staticmethod
    def join(o: Algebra, q: Vector, p: Point) -> Vector:
        return o.put(q, p, o.maximum(o.pick(q, p, 0), 0))


class ForgivesThoseAway(Allowance):
    """A refill forgives what clients owe that do not wait."""

    promises = ForgivesReturns.promises

    @staticmethod
    def refill(o: Algebra, q: Vector, queued: Mask, allowance: Scalar) -> Vector:
        return o.where(o.none(queued & (q > 0)) & (q <= 0) & queued, q + allowance, o.maximum(q, 0))


class ForgivesOutputs(Allowance):
    """Outputs of a client that does not wait cost nothing."""

    promises = ForgivesReturns.promises

    @staticmethod
    def decode(o: Algebra, q: Vector, queued: Mask, charge: Vector) -> Vector:  # type: ignore[override]
        return o.where(queued, q - charge, q)


class TakesCredit(Allowance):
    """A client that returns has no more credit than one token."""

    @staticmethod
    def join(o: Algebra, q: Vector, p: Point) -> Vector:
        return o.put(q, p, o.minimum(o.pick(q, p, 0), 1))


@pytest.mark.parametrize(
    ("gate", "obligation", "broken"),
    [
        (ForgivesReturns, "return-debt", "no return forgives"),
        (ForgivesThoseAway, "return-debt", "no refill gives one that is away more than one that waits"),
        (ForgivesOutputs, "return-debt", "equal charges count alike, and all one way"),
        (TakesCredit, "return-credit", "no return takes"),
    ],
)
def test_a_gate_that_forgives_is_refused_by_the_name_of_what_it_owes(
    gate: type[FairGate], obligation: str, broken: str
) -> None:
    """The obligation about a client that leaves and returns is refuted, by a world or a run that ends in one."""
    verdict = _settled(gate, obligation)
    assert isinstance(verdict, Refuted)
    assert verdict.world.broken == (broken,)
    assert verdict.run is None or replay_counterexample(verdict.run, _claim(gate, obligation)).confirmed


def test_what_is_not_promised_is_named() -> None:
    """By the author, and then in the report; a name that is no obligation is refused."""

    class Owing(ForgivesReturns):
        not_promised = ("return-debt",)

    class Odd(Allowance):
        not_promised = ("return-money",)

    assert all(isinstance(prove(claim), Proved) for claim in Owing.claims())
    lines = subject("mine", ComposedPolicy("mine", Arrival(), Owing())).returns()
    assert [line.partition(":")[2] for line in lines] == [
        " not promised, its author does not",
        " return-credit",
        " not promised, it promises only while both clients wait",
    ]
    with pytest.raises(ValueError, match=r"not_promised return-money: it is of return-debt, return-credit"):
        Odd.claims()


class ToppedUp(Allowance):
    """An allowance for every client, and none has more than one."""

    @staticmethod
    def refill(o: Algebra, q: Vector, queued: Mask, allowance: Scalar) -> Vector:
        return o.where(o.none(queued & (q > 0)) & (q < allowance), o.minimum(q + allowance, allowance), q)


def _gap(*during: Clause) -> tuple[Promise, ...]:
    return (attrs.evolve(Allowance.gap, during=during),)


class SaysTooLittle(ToppedUp):
    """Fair, and what is said of the interval leaves open with how much credit it began."""

    promises = _gap(Allowance.paid)  # type: ignore[assignment]


class SaysNothingAlways(ToppedUp):
    """Fair, and nothing is said of what credit a client may ever have."""

    always = ()  # type: ignore[assignment]
    promises = _gap(Allowance.paid)  # type: ignore[assignment]


class ForgivesDebt(Allowance):
    """Not fair: a client that has overdrawn starts afresh."""

    @staticmethod
    def refill(o: Algebra, q: Vector, queued: Mask, allowance: Scalar) -> Vector:
        return o.where(o.none(queued & (q > 0)) & (q <= 0), allowance, q)


def test_a_true_promise_with_weak_clauses_is_not_inductive() -> None:
    """The state before the step that breaks, the runs that were tried, and which vector the clauses leave open."""
    verdict = _settled(SaysTooLittle, "gap", clients=2, events=2)
    assert isinstance(verdict, NotInductive)
    assert verdict.searched == "what is claimed is not reachable in at most 2 events with at most 2 clients"
    assert verdict.hint.startswith("add a clause about q0")
    assert "q0 = " in verdict.hint
    assert "q0=" in str(verdict)


def test_an_interval_that_no_run_begins_refutes_nothing() -> None:
    """A run that breaks the promise from a state that only `always` allows: the state is what has to be excluded."""
    verdict = _settled(SaysNothingAlways, "gap", clients=2, events=2, prefix=2)
    assert isinstance(verdict, NotInductive)
    assert "from a state that `always` allows" in verdict.searched
    assert verdict.hint.startswith("say more in `always`")


def test_a_false_promise_is_refuted_by_a_run() -> None:
    """From the empty gate an interval begins in which the promise is broken."""
    verdict = _settled(ForgivesDebt, "gap")
    assert isinstance(verdict, Refuted)
    assert verdict.run is not None
    replayed = replay_counterexample(verdict.run, _claim(ForgivesDebt, "gap"))
    assert replayed.confirmed
    assert replayed.broken == (Allowance.gap.statement,)


def test_a_subtly_unfair_gate_is_refuted_by_a_run() -> None:
    """It forgets where the last who left stood: a shortest run from the empty gate shows it."""
    always = _claim(LeastServed, "always")
    verdict = prove(always)
    assert isinstance(verdict, NotInductive)
    assert verdict.world.clients <= 3
    settled = judged(always, verdict, f"{LeastServed.__module__}:LeastServed")
    assert isinstance(settled, Refuted)
    assert settled.run is not None
    assert replay_counterexample(settled.run, always).confirmed
    assert settled.run.from_start


@pytest.mark.parametrize("name", ["allowance", "least_served"])
def test_an_authors_file_is_short_and_has_no_solver_word_in_it(name: str) -> None:
    """Forty lines or fewer: state, kernels, what always holds, what is promised."""
    text = (AUTHORS / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 40
    assert not [word for word in ("z3", "cvc5", "smt", "sat", "forall", "solver") if word in text.lower().split()]


@pytest.mark.parametrize(("name", "status"), [("allowance:Allowance", 0), ("least_served:LeastServed", 1)])
def test_the_command_proves_and_refutes_it(
    name: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`fairsched verify --policy module:Class`, both solvers; what it saves replays."""
    monkeypatch.syspath_prepend(str(AUTHORS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(AUTHORS))
    assert main(["verify", "--policy", name, "--json", "found.json"]) == status
    capsys.readouterr()
    verdicts = {row["id"]: row["verdict"] for row in json.loads(Path("found.json").read_text())["theorems"]}
    assert set(verdicts) >= {"gate", "always", "progress", "gap"}
    assert verdicts["always"] == ("refuted" if status else "proved")
    for path in tmp_path.rglob("counterexamples/*.json"):
        assert main(["verify", "--replay", str(path)]) == 0
        assert "broken there" in capsys.readouterr().out
    sys.modules.pop(name.partition(":")[0], None)


@pytest.mark.parametrize(
    "gate", [Allowance(), LeastServed(), LeastServedMended()], ids=lambda gate: type(gate).__name__
)
def test_what_is_proved_about_runs(gate: FairGate) -> None:
    """The class is a gate: composed with an order it passes the battery that every policy passes."""
    policy = ComposedPolicy("mine", LongestPrefix(), gate)
    check_local_policy(policy, settings=settings(max_examples=10, stateful_step_count=20, deadline=None))


@pytest.mark.parametrize("order", [Arrival(), ShortestPrompt(), LongestPrefix()], ids=lambda order: order.name)
def test_every_order_inherits_the_theorems_of_an_authors_gate(order: Order) -> None:
    """A composition lists what the gate promises, and each of that is a claim that can be decided."""
    found = subject("mine", ComposedPolicy("mine", order, Allowance()))
    assert {"gate", "always", "gap"} <= {theorem.id for theorem in found.theorems} <= set(claims_of(found.source))


def test_no_gate_promises_nothing() -> None:
    """An order alone inherits what its batching rule promises about memory, and nothing about clients."""
    policy = ComposedPolicy("mine", LongestPrefix(), OpenGate())
    assert subject("mine", policy).theorems == policy.batching.theorems


def _let_in(gate: FairGate, state: Any) -> Any:
    """The state after client 0, who alone waits, was let in with a request of 10 tokens."""
    turn = gate.begin(state, np.zeros(1, np.int64))
    assert turn.choose(np.zeros(1, np.int64)) == 0
    turn.admit(0, 10, 20, emptied=True)
    return gate.after(state, turn)


def test_cancelled_work_stays_charged() -> None:
    """An author's gate gives nothing back, and promises are about what was charged: where service that was given back
    is not counted any more, NothingRefunded is broken, which they need."""
    gate, heads = Allowance(), np.zeros(1, np.int64)
    state = _let_in(gate, gate.joined(gate.init(), 0, heads, waited=False))
    assert gate.settled(state, 0, -5, heads) is state
    gap = _claim(Allowance, "gap")
    assert NOTHING_REFUNDED in gap.theorem.assumptions
    assert isinstance(prove(gap, dropped=frozenset({NOTHING_REFUNDED})), Broken)


class AllowanceByWeight(Allowance):
    """An allowance as large as the client's weight says."""

    constants = ()  # type: ignore[assignment]
    per_weight = ("allowance",)
    promises = ()  # type: ignore[assignment]

    @staticmethod
    def refill(o: Algebra, q: Vector, queued: Mask, allowance: Vector) -> Vector:
        return o.where(o.none(queued & (q > 0)) & (q <= 0), q + allowance, q)


def test_a_weight_that_changes_is_outside_the_proof() -> None:
    """What always holds is proved for any weights; a client whose weight falls while it has credit has too much."""
    gate, heads = AllowanceByWeight(), np.zeros(1, np.int64)
    assert all(isinstance(prove(claim), Proved) for claim in gate.claims())
    state = gate.joined(gate.configured(gate.init(), 0, 3), 0, heads, waited=False)
    state = _let_in(gate, state)
    assert bool((state.q <= state.allowance).all())
    state = gate.configured(state, 0, 1)
    assert (state.q > state.allowance).all()
    events = {event.name for claim in gate.claims() for event in claim.system.events}
    assert not {name for name in events if "configured" in name}


class ChoosesAnybody(FairGate):
    """Lets in the client that has the least, waiting or not."""

    state = ("c",)

    @staticmethod
    def choose(o: Algebra, c: Vector, queued: Mask) -> Point:
        return o.argmin(c, queued | (c >= c))


def test_a_gate_that_lets_in_who_does_not_wait_is_refuted() -> None:
    """There is nothing to admit then."""
    verdict = prove(ChoosesAnybody.claims()[0])
    assert isinstance(verdict, Refuted)
    assert verdict.world.broken == ("who is let in waits",)


class NameTaken(FairGate):
    """A vector that is called like one of the proof's own."""

    state = ("W",)

    @staticmethod
    def choose(o: Algebra, W: Vector, queued: Mask) -> Point:
        return o.argmin(W, queued)


class NoKernel(FairGate):
    """Chooses none, and says nothing of it."""

    state = ("c",)
    always = (Clause("c = 0", lambda o, w: w.c <= 0),)


class GivesBack(Allowance):
    """Gives back what was not computed: the derived events know no refund."""

    @staticmethod
    def refund(o: Algebra, q: Vector, p: Point, amount: Scalar) -> Vector:
        return o.bump(q, p, amount)


class TakesAShortcut(Allowance):
    """Declares a fast path, of which nothing is proved."""

    fast = MappingProxyType({"due": deficit.refill_due})


@pytest.mark.parametrize(
    ("gate", "problem"),
    [
        (GivesBack, "about refund"),
        (TakesAShortcut, "about due"),
        (NameTaken, "'W' has a meaning"),
        (NoKernel, "a kernel `choose`"),
    ],
)
def test_a_mistake_is_named(gate: type[FairGate], problem: str) -> None:
    """Which class, and what about it."""
    with pytest.raises(ValueError, match=problem) as error:
        [prove(claim) for claim in gate.claims()]
    assert gate.__name__ in str(error.value)


DECODE = "@staticmethod\n    def decode(o, q, charge):\n        "
MISTAKES = {
    DECODE + "return q - charge / 2": "multiply the other side of the comparison instead",
    DECODE + "return q // 2 - charge": "let a number fade by a fixed part at each refill",
    DECODE + "if charge > 0:\n            q = q - charge\n        return q": "write o.where(m, a, b)",
    DECODE + "return q - charge - 1.5": "count in a smaller unit",
    DECODE + "q - charge": "begin the line with return",
    DECODE + "return q > charge": "does not return the vector q, a number for each client",
    DECODE.replace("charge", "cost") + "return q - cost": "it knows allowance, charge",
    DECODE.replace("charge", "charge, R") + "return q - R": "asks for R",
    DECODE.replace("charge", "charge, seen=[]") + "return q - charge": "has no defaults",
    DECODE.replace("@staticmethod\n    ", "") + "return q - charge": "write @staticmethod before it",
    DECODE.replace("decode", "finish") + "return q": "kernels are choose, join, admit, decode and refill",
    "sparse = True\n    " + DECODE.replace("q,", "q, queued,") + "return q - charge": "leave out `sparse`",
    "always = (Clause('in order', lambda o, w, i: w.q <= o.pick(w.q, i, 0)),)": "Clause(..., points=2)",
    "promises = (gap_within('gap', lambda o, w: w.allowance / 2),)": "multiply the other side of the comparison",
    "always = (Clause('q', lambda o, w: w.q),)": "clause 'q' is a number: compare it with another",
    "promises = (gap_within('gap', lambda o, w: w.R),)": "a bound is made of constants and U, not of R",
}


@pytest.mark.parametrize(("mistake", "instead"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_a_mistake_is_told_by_the_authors_line_and_what_to_write_instead(
    mistake: str, instead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by a line of this library, in which the mistake was met."""
    head = "from tests.support.authors.allowance import *\n\n\nclass Mine(Allowance):\n    "
    (tmp_path / "wrong_gate.py").write_text(head + mistake + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        gate = importlib.import_module("wrong_gate").Mine
        said = " ".join(str(getattr(prove(claim), "reason", "")) for claim in gate.claims())
    except ValueError as error:
        said = str(error)
    sys.modules.pop("wrong_gate")
    assert re.search(r"wrong_gate\.py:\d", said), said
    assert instead in said
