"""Decides many theorems, each by both solvers, on as many processes as there are.

A claim holds functions and cannot travel to another process, so a task names it and the process looks it up.
"""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from itertools import tee
from time import process_time
from typing import Any, Literal, ParamSpec, TypeVar

import msgspec

from fairsched.model.theorem import Assumption, Scope
from fairsched.verify import proofs
from fairsched.verify.logic import Claim, SampledClaim, counterexample_document, world_document
from fairsched.verify.proofs import SUITE, AnyClaim, claims_of
from fairsched.verify.solvers.bounded_model_checking import judged
from fairsched.verify.solvers.cross_check import Question, disagreement, questions
from fairsched.verify.solvers.prover import Broken, NotInductive, Proved, Refuted, Unknown, Verdict, prove, to_show

P = ParamSpec("P")
T = TypeVar("T")


Said = Literal["proved", "tested", "refuted", "not inductive", "unknown"]
"""A verdict: what was tried in drawn worlds only, and held in each, is tested; what a step breaks and no run that was
tried is not inductive."""


ALWAYS = "always"
"""The theorem that says which states an author's gate reaches; intervals begin in such a state."""


class Task(msgspec.Struct, frozen=True):
    """A theorem, where its claim is found, and the names of assumptions that are not made; `quick` asks Z3 alone."""

    source: str
    theorem: str
    dropped: frozenset[str] = frozenset()
    quick: bool = False


class SolverDecision(msgspec.Struct, frozen=True):
    """What the solvers say of a task.

    `why` explains what is not proved; `cutoff` is the most clients that an obligation names (None for arithmetic about
    no client), `worlds` in how many it was tried (None: it was proved), `solvers` those that agree, `ms` CPU time,
    `files` what the second one was asked, `counterexample` the document of a world that breaks it, for `fairsched
    verify --replay`.
    """

    task: Task
    verdict: Said
    why: str
    vacuous: bool
    cutoff: int | None
    solvers: tuple[str, ...]
    ms: float
    files: tuple[Question, ...]
    counterexample: bytes | None = None
    worlds: int | None = None


def decide(task: Task) -> SolverDecision:
    """Decide one theorem."""
    begun = process_time()
    claim, dropped = _looked_up(task)
    # Both solvers are asked about the same formulas, which take as long to build as to decide.
    for_z3, for_cvc5 = tee(to_show(claim, dropped))
    verdict = prove(claim, dropped=dropped, built=for_z3)
    if not dropped and isinstance(claim, Claim):
        verdict = judged(claim, verdict, task.source or proofs.__name__, claims_of(task.source).get(ALWAYS))
    asked = tuple(questions(claim, dropped, for_cvc5)) if isinstance(verdict, Proved) else ()
    clients = max((question.clients for question in asked), default=0)
    said, why, solvers = _said(claim, verdict, asked, task.quick)
    return SolverDecision(
        task,
        said,
        why,
        isinstance(verdict, Unknown) and verdict.reason.startswith("vacuous"),
        clients or None,
        solvers,
        (process_time() - begun) * 1e3,
        asked if said == "proved" else (),
        _saved(task.source, claim, verdict),
        verdict.obligations if isinstance(claim, SampledClaim) and isinstance(verdict, Proved) else None,
    )


def files(task: Task) -> tuple[Question, ...]:
    """Return the questions about a task, not yet asked."""
    return tuple(questions(*_looked_up(task)))


def _looked_up(task: Task) -> tuple[AnyClaim, frozenset[Assumption]]:
    claim = claims_of(task.source)[task.theorem]
    return claim, frozenset(a for a in claim.droppable if a.name in task.dropped)


def _said(
    claim: AnyClaim, verdict: Verdict, asked: tuple[Question, ...], quick: bool
) -> tuple[Said, str, tuple[str, ...]]:
    match verdict:
        case Refuted(world=world):
            return "refuted", str(world), ("z3",)
        case NotInductive():
            return "not inductive", str(verdict), ("z3",)
        case Unknown(obligation=obligation, reason=reason):
            return "unknown", f"{obligation}: {reason}", ()
        case Proved() if isinstance(claim, SampledClaim):
            # Of worlds no solver knows anything; drawn ones prove nothing.
            return "tested" if claim.theorem.scope is Scope.TESTED else "proved", "", ()
        case Proved() if quick:
            return "proved", "", ("z3",)
    for question in asked:
        if why := disagreement(question):
            return "unknown", why, ("z3",)
    return "proved", "", ("z3", "cvc5")


def _saved(source: str, claim: AnyClaim, verdict: Verdict) -> bytes | None:
    if not isinstance(verdict, Broken):
        return None
    if isinstance(verdict, Refuted) and verdict.run is not None:
        return verdict.run.to_json()
    world = verdict.world
    if not isinstance(claim, Claim):
        return world_document(claim, source or proofs.__name__, world.values, world.without).to_json()
    if source == SUITE:
        return counterexample_document(world, proofs.__name__).to_json()
    return counterexample_document(world, source, claim=claim).to_json()


class Here(Executor):
    """Runs what is submitted at once, in this process, and what is mapped when its result is asked for."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[T]:
        """Yield the results of calls, one after the other."""
        return map(fn, *iterables)


Progress = Callable[[str, int, int], None]
"""Told what is under way, how much was done before it, and of how much; a total of 0 is not known."""


def silent(_what: str, _done: int, _total: int) -> None:
    """Show nothing."""


def followed(names: Sequence[str], results: Iterable[T], progress: Progress) -> Iterator[T]:
    """Yield results that come one after the other, and say whose is waited for."""
    each = iter(results)
    for done, name in enumerate(names):
        progress(name, done, len(names))
        yield next(each)


def pool(jobs: int) -> Executor:
    """Return this process for one job; otherwise processes that have nothing of it, since solvers do not survive a
    fork."""
    return Here() if jobs == 1 else ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
