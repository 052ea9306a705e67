"""What is proved, a gate or a rule a file, in the order of the report.  Read `gates.deficit` first: it proves D-4.1.

**To add proofs**, write a module in the folder that it belongs to, and list it in that folder's `modules`.  It has:

- `claims()`: one claim a theorem, of any kind.  `Claim` is about kernels and any sequence of events (`logic.system`);
  `ArithmeticClaim` runs shipped functions on unknown integers, and `SampledClaim` tries worlds (`logic.claims`):
  `arithmetic` and `sampled` make them of a function from a world to the statements that must be true of it.
- `bugs()`, for the second and third kind: each `Bug` is the claim about code that is wrong, and has to be refuted.
- `refutations()`, if statements are false: each `RefutedClaim` has a world; `fairsched verify` looks for it again.
- `witnesses()`, if runs attain the bounds of its theorems.

The theorem itself stands beside what it is about, in the `theorems` of a gate, a batching rule or a router; a router's
theorem with a `bound` also needs `attained` in its claim.  What is missing is named by `registry.breaches`.
`routers.load_based` is an example of all of it.
"""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.verify.proofs.suite import (
        MODULES,
        SUITE,
        AnyClaim,
        bugs,
        claims,
        claims_in,
        claims_of,
        holder_of,
        price_claims,
        refuted_claims,
        witnesses,
    )
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "MODULES", "SUITE", "AnyClaim", "bugs", "claims", "claims_in", "claims_of", "holder_of", "price_claims",
    "refuted_claims", "witnesses"
]  # fmt: skip
