"""Belief without solvers: a proof of a question is read step by step, by four files that anyone can read.

`proof` is the first of them, then come `rules`, `cases` and `terms`.  They import the standard library and each other,
and a certificate has a copy of them, so that they can be run where there is neither a solver nor this library.
"""

from fairsched.verify.checker.proof import PROOF, check, check_files, question_of
from fairsched.verify.checker.terms import expressions

__all__ = ["PROOF", "check", "check_files", "expressions", "question_of"]
