"""Claims one of whose constants is larger than it has to be."""

from fairsched.policies.gates.deficit import D_RANGE
from fairsched.verify.logic import Claim, Clause
from fairsched.verify.proofs.gates.deficit import NOTHING_YET, RANGE, deficit_system


def claims() -> tuple[Claim, ...]:
    """A deficit's range, with an upper end that is never reached."""
    lower = Clause("1 - U <= q", lambda o, w: w.q >= 1 - w.U)
    upper = Clause("q <= Q + B + 1", lambda o, w: w.q <= w.Q + w.back + 1)
    return (Claim(D_RANGE, deficit_system(), NOTHING_YET, RANGE, (lower, upper)),)
