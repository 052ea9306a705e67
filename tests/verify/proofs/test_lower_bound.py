"""V-4.8, as a world: no policy that neither idles nor preempts can promise a gap much below U.

f comes alone with a request that fills the memory.  A policy that does not idle lets it in; one that does not preempt
then decodes for f while g, who came a moment later, waits as f does.  So the gap is w_q (M - 1), under every policy
that ships and reserves outputs, and a bound of 2U is within a factor of two and a bit of the best there could be.
"""

from collections import Counter

import pytest

from fairsched.model.events import Decoded, Finished
from fairsched.model.pricing import Rates, charge_max_reserved
from fairsched.policies.registry import LOCAL_POLICIES
from tests.support.scenarios import job, policy, run, world

MEMORY = 64


RESERVING = [
    name for name, each in LOCAL_POLICIES.items() if each.batching.reserve == "static" and name != "splitwise-machine"
]
"""Policies that do not preempt what only decodes; where outputs are not reserved, what is let in beside f is preempted
for it, and Splitwise's machine preempts outputs for prompts."""


@pytest.mark.parametrize("name", RESERVING)
def test_the_gap_is_almost_u_under_every_policy(name: str) -> None:
    """Decoded tokens of f while both wait, at the rates of the common cost."""
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
