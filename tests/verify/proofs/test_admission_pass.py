"""The shipped admission pass beside its gate's kernels: what the suite proves of two requests holds of three."""

import pytest

from fairsched.verify.proofs.gates.refinements import admission
from fairsched.verify.solvers import Proved, prove


@pytest.mark.nightly
@pytest.mark.usefixtures("by_night")
def test_a_decision_of_three_requests_is_steps_of_the_kernel() -> None:
    """Under the deficit gate with a cap, in all eight orders of arrival."""
    assert isinstance(prove(admission.deficits(requests=3)), Proved)
