"""Solvers at work: Z3, cvc5, bounded model checking, sampled claims. Read `prover` first."""

from typing import TYPE_CHECKING

from fairsched.model.lazy import lazy_exports

if TYPE_CHECKING:
    from fairsched.verify.solvers.bounded_model_checking import NotReached, Reached, reach
    from fairsched.verify.solvers.cross_check import cvc5_answer, z3_answer
    from fairsched.verify.solvers.decisions import Decision, File, Task, decide, files, pool, versions
    from fairsched.verify.solvers.prover import (
        RLIMIT,
        Obligation,
        Proved,
        Refuted,
        Unknown,
        audit,
        check,
        counterexample,
        everywhere,
        obligation,
        prove,
        symbol,
    )
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "RLIMIT", "Decision", "File", "NotReached", "Obligation", "Proved", "Reached", "Refuted", "Task", "Unknown",
    "audit", "check", "counterexample", "cvc5_answer", "decide", "everywhere", "files", "obligation", "pool",
    "prove", "reach", "symbol", "versions", "z3_answer"
]  # fmt: skip
