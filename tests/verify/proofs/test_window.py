"""U follows from the gateway's window: the functions as they ship, any number of calls, any number of servers."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from fairsched.engines.gateway import window_policy
from fairsched.model.pricing import COMMON, charge_max_reserved
from fairsched.policies.guarantees import window
from fairsched.verify.logic import Claim, World, claim_named, total
from fairsched.verify.proofs.gates import deficit as deficit_proofs
from fairsched.verify.proofs.kernels import deficit as gate_kernels
from fairsched.verify.proofs.memory import window as window_proofs
from fairsched.verify.solvers import Broken, Proved, prove

pytestmark = pytest.mark.kept

CLAIMS = {claim.theorem.id: claim for claim in window_proofs.claims()}


@pytest.mark.parametrize("overrun", [0, 7])
@pytest.mark.parametrize("name", ["fcfs+deficit", "vtc", "fcfs+hierarchical"])
def test_the_gate_is_given_this_u(name: str, overrun: int) -> None:
    """What a gate promises under a window's limits is made of the window's U."""
    policy: Any = window_policy(name, 20)
    for tokens in range(2, 50):
        terms = window.WindowTerms(hold_ns=7, call_ns=30)
        limits = window.window_limits(policy.guarantee, tokens, terms, overrun)
        hold = window.hold_units_max(tokens + overrun, 30, 7)
        most = window.charge_max_window(COMMON, tokens, overrun, hold)
        assert policy.gate.charge_max(limits) == most
        if not overrun:
            assert most == charge_max_reserved(COMMON, tokens, tokens - 1) + COMMON.output * hold


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
        ("forward", "may", lambda o, w: o.put(w.may, w.r, w.c + w.x + w.y)),
        ("forward", "over", lambda o, w: 0),
        ("more output than is reserved passes", "over", lambda o, w: w.over),
        ("the prompt is settled for more than its estimate", "over", lambda o, w: w.over),
        ("output passes", "B", lambda o, w: w.B + w.x + 1),
        ("the prompt is settled", "may", lambda o, w: w.may),
        ("end", "may", lambda o, w: w.may),
    ],
    ids=[
        "holds half",
        "may be charged twice",
        "beyond the window",
        "outputs beyond",
        "prompts beyond",
        "one token more",
        "settled twice",
        "charged after its end",
    ],
)
def test_a_window_that_counts_otherwise_is_refuted(event: str, field: str, value: Any) -> None:
    """A call that holds too little or is charged too much breaks the claim."""
    assert isinstance(prove(_without(event, field, value)), Broken)


def test_servers_that_hold_too_much_take_room_elsewhere() -> None:
    """Room that forgets what some servers hold beyond their windows breaks the claim: U-windows can fail."""
    claim = CLAIMS["U-windows"]
    assert isinstance(claim, Claim)

    def room(o: Any, w: World) -> Any:
        return total(o, o.where(w.up, w.left, 0))

    system = attrs.evolve(claim.system, derived={**claim.system.derived, "room": room})
    assert isinstance(prove(attrs.evolve(claim, system=system, invariants=claim.conclusions)), Broken)


def test_credit_that_is_given_while_a_request_is_passed_is_refuted() -> None:
    """D-pass fails where a refill is due although the client whose request waits for room has credit."""

    def topped(o: Any, q: Any, queued: Any, known: Any, quantum: Any) -> Any:
        return o.where(known & (q <= 0) & o.any(queued), q + quantum, q)

    kernel = SimpleNamespace(**{**vars(gate_kernels), "refill": topped, "refill_due": lambda o, q, w: o.any(w)})
    for functions, verdict in ((gate_kernels, Proved), (kernel, Broken)):
        assert isinstance(prove(claim_named("D-pass", deficit_proofs.claims(functions))), verdict)
