"""Solvers at work: Z3, cvc5, bounded model checking, sampled claims. Read `prover` first."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.verify.solvers.bounded_model_checking import NotReached, judged, reach
    from fairsched.verify.solvers.coq import NotWrittenError, lemma, refused
    from fairsched.verify.solvers.cross_check import (
        Question,
        checked_proof,
        cpc_proof,
        cvc5_answer,
        questions,
        versions,
        z3_answer,
    )
    from fairsched.verify.solvers.decisions import (
        ALWAYS,
        Progress,
        SolverDecision,
        Task,
        decide,
        files,
        followed,
        pool,
        silent,
    )
    from fairsched.verify.solvers.prover import (
        RLIMIT,
        Broken,
        NotInductive,
        Obligation,
        Proved,
        Refuted,
        Unknown,
        audit,
        check,
        counterexample,
        everywhere,
        instances,
        obligation,
        prove,
        solver_of,
    )
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "ALWAYS", "RLIMIT", "Broken", "NotInductive", "NotReached", "NotWrittenError", "Obligation", "Progress",
    "Proved", "Question", "Refuted", "SolverDecision", "Task", "Unknown", "audit", "check", "checked_proof",
    "counterexample", "cpc_proof", "cvc5_answer", "decide", "everywhere", "files", "followed", "instances",
    "judged", "lemma", "obligation", "pool", "prove", "questions", "reach", "refused", "silent", "solver_of",
    "versions", "z3_answer"
]  # fmt: skip
