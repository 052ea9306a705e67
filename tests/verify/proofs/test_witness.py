"""Bounds are attained by runs of real admissions, a run that cheats is none, and no policy could promise much less."""

from collections import Counter

import attrs
import pytest

from fairsched.model.events import Decoded, Finished
from fairsched.model.pricing import Rates, charge_max_reserved
from fairsched.policies.registry import LOCAL_POLICIES
from fairsched.verify.logic import NotAWitness, Witness, attained
from fairsched.verify.proofs import witnesses
from fairsched.verify.proofs.gates import deficit_witness
from fairsched.verify.proofs.suite import gate_claims
from tests.support.scenarios import job, policy, run, world

pytestmark = pytest.mark.kept


@pytest.mark.parametrize("witness", witnesses(), ids=lambda witness: witness.theorem.id)
def test_the_bound_is_attained_exactly(witness: Witness) -> None:
    """What the run reaches is the proved constant, in the numpy and in the exact interpretation of the kernel."""
    assert attained(witness) == witness.bound_cost


def test_a_run_that_charges_more_than_it_reserved_is_no_witness() -> None:
    """Every hypothesis of every event is checked."""
    honest = deficit_witness()
    greedy = attrs.evolve(honest, steps=(*honest.steps, ("decode", {"d": (1, 0)})))
    with pytest.raises(NotAWitness, match="not permitted"):
        attained(greedy)


def test_every_bound_of_a_client_has_a_witness() -> None:
    """Whatever has a constant in cost units is attained; counts of admissions rest on those."""
    bounded = {claim.theorem.id for claim in gate_claims() if claim.theorem.bound_cost is not None}
    assert bounded - {"D-starvation"} <= {witness.theorem.id for witness in witnesses()}


def test_a_run_that_begins_its_interval_elsewhere_is_no_witness() -> None:
    """The claim's start is checked where the interval begins."""
    honest = deficit_witness()
    with pytest.raises(NotAWitness, match="starts without"):
        attained(attrs.evolve(honest, snapshots={}))


MEMORY = 64


RESERVING = [
    name for name, each in LOCAL_POLICIES.items() if each.batching.reserve == "static" and name != "splitwise-machine"
]
"""Policies that do not preempt what only decodes; where outputs are not reserved, what is let in beside f is preempted
for it, and Splitwise's machine preempts outputs for prompts."""


@pytest.mark.parametrize("name", RESERVING)
def test_the_gap_is_almost_u_under_every_policy(name: str) -> None:
    """V-4.8, as a world: no policy that neither idles nor preempts can promise a gap much below U.

    f comes alone with a request that fills the memory.  A policy that does not idle lets it in; one that does not
    preempt then decodes for f while g, who came a moment later, waits as f does.  So the gap is w_q (M - 1).
    """
    rates = Rates()
    fills = job(0, 0, 0, 1, MEMORY - 1)
    both_wait = [job(1, 0, 1, 1, MEMORY - 1), job(2, 1, 1, 1, 1)]
    events = run(world([fills, *both_wait], "fg"), policy(name), MEMORY)
    (over,) = [event.time_ns for event in events if isinstance(event, Finished) and event.request_id == 0]
    decoded = Counter[int]()
    for event in events:
        if isinstance(event, Decoded) and event.time_ns <= over:
            decoded.update(dict(zip(event.clients, event.tokens, strict=True)))
    assert decoded == {0: MEMORY - 1}
    assert rates.output * decoded[0] == charge_max_reserved(rates, MEMORY, MEMORY - 1) - rates.input
