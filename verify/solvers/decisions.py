"""Decides many theorems, each by both solvers, on as many processes as there are.

A claim holds functions and cannot travel to another process, so a task names it and the process looks it up.
"""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from itertools import tee
from time import perf_counter
from typing import Any, Literal, ParamSpec, TypeVar

import msgspec
import z3

from fairsched.model.theorem import Assumption, Scope
from fairsched.verify import arithmetic, counterexample, prover, suite, tested, world_file
from fairsched.verify.arithmetic import ArithmeticClaim
from fairsched.verify.prover import Proved, Refuted, Unknown, Verdict
from fairsched.verify.second_opinion import Question, cvc5_version, disagreement, questions
from fairsched.verify.subject import SUITE, claims_of
from fairsched.verify.suite import AnyClaim
from fairsched.verify.system import Claim
from fairsched.verify.tested import TestedClaim

P = ParamSpec("P")
T = TypeVar("T")


Said = Literal["proved", "tested", "refuted", "unknown"]
"""A verdict: what was tried in drawn worlds only, and held in each, is tested."""


class Task(msgspec.Struct, frozen=True):
    """A theorem, where its claim is found, and the names of assumptions that are not made; `quick` asks Z3 alone."""

    source: str
    theorem: str
    dropped: frozenset[str] = frozenset()
    quick: bool = False


class File(msgspec.Struct, frozen=True):
    """One question to a solver: `expected` is its answer if the theorem holds."""

    theorem: str
    obligation: str
    about: str
    expected: str
    text: str


class Decision(msgspec.Struct, frozen=True):
    """What the solvers say of a task.

    `why` explains what is not proved; `cutoff` is the most clients that an obligation names (None for arithmetic about
    no client), `worlds` in how many it was tried (None: it was proved), `solvers` those that agree, `files` what the
    second one was asked, `counterexample` the document of a world that breaks it, which `fairsched replay` reads.
    """

    task: Task
    verdict: Said
    why: str
    vacuous: bool
    cutoff: int | None
    solvers: tuple[str, ...]
    ms: float
    files: tuple[File, ...]
    counterexample: bytes | None = None
    worlds: int | None = None


def versions(quick: bool = False) -> dict[str, str]:
    """The solvers and their versions."""
    found = {"z3": str(z3.get_version_string())}
    return found if quick else {**found, "cvc5": cvc5_version()}


def decide(task: Task) -> Decision:
    """Decides one theorem."""
    begun = perf_counter()
    claim, dropped = _looked_up(task)
    # Both solvers are asked about the same formulas, which take as long to build as to decide.
    for_z3, for_cvc5 = tee(_built(claim, dropped))
    verdict = prove(claim, dropped, for_z3)
    asked = tuple(questions(claim, dropped, for_cvc5)) if isinstance(verdict, Proved) else ()
    clients = max((question.clients for question in asked), default=0)
    said, why, solvers = _tried(claim, verdict) if isinstance(claim, TestedClaim) else _said(verdict, asked, task.quick)
    return Decision(
        task,
        said,
        why,
        isinstance(verdict, Unknown) and verdict.reason.startswith("vacuous"),
        clients or None,
        solvers,
        (perf_counter() - begun) * 1e3,
        tuple(_file(task.theorem, question) for question in asked) if said == "proved" else (),
        _saved(task.source, claim, verdict),
        verdict.obligations if isinstance(claim, TestedClaim) and isinstance(verdict, Proved) else None,
    )


def files(task: Task) -> tuple[File, ...]:
    """The questions about a task, not yet asked."""
    return tuple(_file(task.theorem, question) for question in questions(*_looked_up(task)))


def _looked_up(task: Task) -> tuple[AnyClaim, frozenset[Assumption]]:
    claim = claims_of(task.source)[task.theorem]
    return claim, frozenset(a for a in assumptions_known(claim) if a.name in task.dropped)


def prove(claim: AnyClaim, dropped: frozenset[Assumption] = frozenset(), built: Iterable[Any] | None = None) -> Verdict:
    """The verdict on a claim of any kind: Z3's, or that of its worlds; `built` is what `questions` may know too."""
    match claim:
        case Claim():
            return prover.prove(claim, dropped=dropped, built=built)
        case ArithmeticClaim():
            return arithmetic.prove(claim, dropped=dropped, built=built)
    return tested.prove(claim)


def _built(claim: AnyClaim, dropped: frozenset[Assumption]) -> Iterator[Any]:
    """The obligations or paths of a claim, each when it is asked for."""
    match claim:
        case Claim():
            return prover.obligations(claim, dropped)
        case ArithmeticClaim():
            return arithmetic.paths(claim, dropped)
    return iter(())


def assumptions_known(claim: AnyClaim) -> frozenset[Assumption]:
    """Every assumption that the claim can be decided without."""
    if isinstance(claim, TestedClaim):
        return frozenset()
    if isinstance(claim, ArithmeticClaim):
        return frozenset(condition.assumption for condition in claim.conditions if condition.assumption)
    needs = [*claim.system.laws, *(need for event in claim.system.events for need in event.needs)]
    known = {need.assumption for need in needs} | excluding(claim)
    return frozenset(assumption for assumption in known if assumption)


def excluding(claim: AnyClaim) -> frozenset[Assumption]:
    """The assumptions without which other things happen: those that tell a variant from what ships."""
    if not isinstance(claim, Claim):
        return frozenset()
    return frozenset(event.excluded_by for event in claim.system.events if event.excluded_by)


def _said(verdict: Verdict, asked: tuple[Question, ...], quick: bool) -> tuple[Said, str, tuple[str, ...]]:
    match verdict:
        case Refuted(world=world):
            return "refuted", str(world), ("z3",)
        case Unknown(obligation=obligation, reason=reason):
            return "unknown", f"{obligation}: {reason}", ()
        case Proved() if quick:
            return "proved", "", ("z3",)
    for question in asked:
        if why := disagreement(question):
            return "unknown", why, ("z3",)
    return "proved", "", ("z3", "cvc5")


def _tried(claim: TestedClaim, verdict: Verdict) -> tuple[Said, str, tuple[str, ...]]:
    """Of worlds no solver knows anything; drawn ones prove nothing."""
    if isinstance(verdict, Proved):
        return "tested" if claim.theorem.scope is Scope.TESTED else "proved", "", ()
    return _said(verdict, (), quick=True)


def _saved(source: str, claim: AnyClaim, verdict: Verdict) -> bytes | None:
    if not isinstance(verdict, Refuted):
        return None
    world = verdict.world
    if not isinstance(claim, Claim):
        return world_file.document(claim, source or suite.__name__, world.values, world.without).to_json()
    if source == SUITE:
        return counterexample.document(world, suite.__name__).to_json()
    return counterexample.document(world, source, claim=claim).to_json()


def _file(theorem: str, question: Question) -> File:
    script = question.script
    return File(theorem, question.obligation, question.about, script.expected, script.text)


class Here(Executor):
    """Runs what is submitted at once, in this process."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """The finished future of a call."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def pool(jobs: int) -> Executor:
    """This process for one job; otherwise processes that have nothing of it, since solvers do not survive a fork."""
    return Here() if jobs == 1 else ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
