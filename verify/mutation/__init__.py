"""Bugs on purpose: mutants of kernels, prices and claims, each killed by a counterexample or proved equivalent; of the
code around the kernels, what a run of tests noticed. Read `kernels` first.
"""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.verify.mutation.kernels import mutation_rows, mutation_tasks
    from fairsched.verify.mutation.mutants import CodeEntry, MutationEntry, recorded
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["CodeEntry", "MutationEntry", "mutation_rows", "mutation_tasks", "recorded"]
