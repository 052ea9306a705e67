"""Solvers at work: Z3, cvc5, bounded model checking, sampled claims. Read `prover` first."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.verify.solvers.bounded_model_checking import judged
    from fairsched.verify.solvers.coq import refused
    from fairsched.verify.solvers.cross_check import Question, checked_proof, cvc5_answer, versions, z3_answer
    from fairsched.verify.solvers.decisions import Progress, SolverDecision, Task, decide, files, followed, pool, silent
    from fairsched.verify.solvers.prover import (
        RLIMIT,
        Broken,
        NotInductive,
        Obligation,
        Proved,
        Refuted,
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
    "RLIMIT", "Broken", "NotInductive", "Obligation", "Progress", "Proved", "Question", "Refuted", "SolverDecision",
    "Task", "audit", "check", "checked_proof", "counterexample", "cvc5_answer", "decide", "everywhere", "files",
    "followed", "instances", "judged", "obligation", "pool", "prove", "refused", "silent", "solver_of", "versions",
    "z3_answer"
]  # fmt: skip
