"""U follows from the gateway's window: the functions as they ship, any number of calls, any number of servers."""

from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from fairsched.model.pricing import COMMON, charge_max_reserved
from fairsched.policies.guarantees.window import charge_max_window
from fairsched.verify.logic import ArithmeticClaim, Claim, World
from fairsched.verify.proofs.memory import window as window_proofs
from fairsched.verify.solvers import Proved, Refuted, prove

CLAIMS = {claim.theorem.id: claim for claim in window_proofs.claims()}


def test_the_functions_do_what_the_equations_say() -> None:
    """Proved on every path, and one call reaches U."""
    claim = CLAIMS["U-cost"]
    assert isinstance(claim, ArithmeticClaim)
    assert isinstance(prove(claim), Proved)
    assert claim.attained is not None
    reached, bound = claim.attained()
    assert reached == bound == 119


def test_the_gate_is_given_this_u() -> None:
    """What the policies' limits make of a memory of the window's size is the window's U."""
    assert all(charge_max_window(COMMON, w) == charge_max_reserved(COMMON, w, w - 1) for w in range(2, 50))


def _without(name: str, field: str, value: Any) -> Claim:
    """The claim about calls, where an event leaves a field at another value."""
    claim = CLAIMS["U-window"]
    assert isinstance(claim, Claim)
    events = {event.name: event for event in claim.system.events}
    step = events[name].step

    def wrong(o: Any, w: World) -> Mapping[str, Any]:
        return {**step(o, w), field: value(o, w)}

    changed = tuple(attrs.evolve(e, step=wrong) if e.name == name else e for e in claim.system.events)
    return attrs.evolve(claim, system=attrs.evolve(claim.system, events=changed))


@pytest.mark.parametrize(
    ("event", "field", "value"),
    [
        ("forward", "held", lambda o, w: o.put(w.held, w.r, w.c)),
        ("forward", "may", lambda o, w: o.put(w.may, w.r, w.c + w.x)),
        ("output passes", "B", lambda o, w: w.B + w.x + 1),
        ("the prompt is settled", "may", lambda o, w: w.may),
        ("end", "may", lambda o, w: w.may),
    ],
    ids=["holds half", "may be charged twice", "one token more", "settled twice", "charged after its end"],
)
def test_a_window_that_counts_otherwise_is_refuted(event: str, field: str, value: Any) -> None:
    """A call that holds too little or is charged too much breaks the claim."""
    assert isinstance(prove(_without(event, field, value)), Refuted)
