"""Which claims there are about what ships: one list of modules, in the order of the report.

**To add proofs**, write a module here in `verify` and put it into `MODULES`.  It has:

- `claims()`: one claim a theorem, of any kind.  `Claim` is about kernels and any sequence of events (`system`);
  `ArithmeticClaim` runs shipped functions on unknown integers (`arithmetic`); `TestedClaim` tries worlds (`tested`).
- `bugs()`, for the second and third kind: each `Bug` is the claim about code that is wrong, and has to be refuted.
- `refutations()`, if statements are false: each `FalseClaim` has a world; `fairsched verify` looks for it again.

The theorem itself stands beside what it is about, in the `theorems` of a gate, a batching rule or a router; a router's
theorem with a `bound` also needs `attained` in its claim.  What is missing is named by `registry.breaches`.
`router_proofs` is an example of all of it.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from fairsched.verify import (
    ageing_proofs,
    aladdin_fit_proofs,
    aladdin_proofs,
    bypass_proofs,
    change_proofs,
    counter_kernel_proofs,
    counter_proofs,
    counter_wait_proofs,
    counter_worker_proofs,
    credit_ledger_proofs,
    d2lpm_proofs,
    deficit_cap_proofs,
    deficit_kernel_proofs,
    deficit_progress_proofs,
    deficit_proofs,
    deficit_rejoin_proofs,
    deficit_sharing_proofs,
    dfs_weight_proofs,
    e2_proofs,
    global_proofs,
    global_worker_proofs,
    hierarchical_family_proofs,
    hierarchical_kernel_proofs,
    hierarchical_proofs,
    int64_proofs,
    larry_proofs,
    llumnix_proofs,
    memory_proofs,
    migrate_proofs,
    predicted_batches_proofs,
    preemption_proofs,
    prefix_group_proofs,
    pricing_proofs,
    router_proofs,
    sal_proofs,
    staggered_proofs,
    swap_proofs,
    threshold_proofs,
    turns_bound,
    turns_proofs,
    wait_proofs,
    window_proofs,
)
from fairsched.verify.arithmetic import ArithmeticClaim
from fairsched.verify.false_claim import Bug, FalseClaim
from fairsched.verify.system import Claim
from fairsched.verify.tested import TestedClaim

AnyClaim = Claim | ArithmeticClaim | TestedClaim

MODULES: tuple[ModuleType, ...] = (
    deficit_proofs,
    deficit_rejoin_proofs,
    deficit_kernel_proofs,
    deficit_progress_proofs,
    deficit_cap_proofs,
    deficit_sharing_proofs,
    hierarchical_proofs,
    hierarchical_kernel_proofs,
    hierarchical_family_proofs,
    counter_proofs,
    counter_kernel_proofs,
    counter_wait_proofs,
    counter_worker_proofs,
    wait_proofs,
    change_proofs,
    migrate_proofs,
    int64_proofs,
    bypass_proofs,
    turns_proofs,
    turns_bound,
    memory_proofs,
    pricing_proofs,
    staggered_proofs,
    router_proofs,
    sal_proofs,
    llumnix_proofs,
    d2lpm_proofs,
    larry_proofs,
    prefix_group_proofs,
    threshold_proofs,
    ageing_proofs,
    dfs_weight_proofs,
    predicted_batches_proofs,
    preemption_proofs,
    swap_proofs,
    e2_proofs,
    global_worker_proofs,
    global_proofs,
    credit_ledger_proofs,
    aladdin_fit_proofs,
    aladdin_proofs,
    window_proofs,
)


def claims() -> tuple[AnyClaim, ...]:
    """Every claim about what ships."""
    return tuple(claim for module in MODULES for claim in module.claims())


def gate_claims() -> tuple[Claim, ...]:
    """Every claim about kernels and any sequence of events."""
    return tuple(claim for claim in claims() if isinstance(claim, Claim))


def arithmetic_claims() -> tuple[ArithmeticClaim, ...]:
    """Every claim about unknown integers: prices, U, the accounting of memory, routers."""
    return tuple(claim for claim in claims() if isinstance(claim, ArithmeticClaim))


def bugs(module: ModuleType) -> tuple[Bug, ...]:
    """The claims of a module that have to be refuted."""
    return _listed(module, "bugs")


def false_claims() -> Iterator[tuple[ModuleType, FalseClaim]]:
    """Every statement that is false, with the module that says so."""
    for module in MODULES:
        for each in _listed(module, "refutations"):
            yield module, each


def _listed(module: ModuleType, name: str) -> tuple[Any, ...]:
    return tuple(getattr(module, name, tuple)())
