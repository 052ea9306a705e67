"""Nothing is written without an obligation, and the registry sees it when something is."""

import inspect

import attrs
import pytest

from fairsched.policies.gates import deficit
from fairsched.verify.logic import Claim
from fairsched.verify.proofs import SUITE, claims_of
from fairsched.verify.report import registry
from fairsched.verify.report.registry import REGISTRATIONS, Registration

pytestmark = pytest.mark.kept

CLAIMS = [claim for claim in claims_of(SUITE).values() if isinstance(claim, Claim)]
DEFICIT = next(registration for registration in REGISTRATIONS if registration.module is deficit)


def test_every_write_of_what_ships_has_an_obligation() -> None:
    """All shipped gates and all events of all claims."""
    assert list(registry.breaches([SUITE])) == []


@pytest.mark.parametrize("registration", REGISTRATIONS, ids=lambda each: each.gate.name)
def test_every_field_of_a_gates_state_is_accounted_for(registration: Registration) -> None:
    """What the functions of the gate's file write is fields of its state, among it all that this file adds."""
    written, state = set().union(*registry.state_writes(registration).values()), registration.gate.state_type
    assert written <= set(state.__struct_fields__)
    own = {*state.__struct_fields__} - {*getattr(state.__base__, "__struct_fields__", ())}
    assert written >= own or state.__module__ != registration.module.__name__


def test_a_function_without_an_event_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new method of the gate that changes deficits, and a field that its event does not write, are breaches."""
    source = inspect.getsource(deficit)
    added = source.replace(
        "    def refuses(",
        "    def left(self, state: DeficitState, client: int) -> DeficitState:\n"
        "        return msgspec.structs.replace(state, q=state.q + 1)\n\n    def refuses(",
    )
    assert added != source
    monkeypatch.setattr(inspect, "getsource", lambda module: added)
    (breach,) = registry.unregistered_writes(DEFICIT, CLAIMS)
    assert breach == "DeficitGate: left writes q, and no event stands for it"


def test_an_event_that_does_not_write_the_field_is_named() -> None:
    """`released` changes what is in flight, which decoding does not."""
    wrong = attrs.evolve(DEFICIT, events={**DEFICIT.events, "released": ("choose",), "decode": ("no such event",)})
    found = list(registry.unregistered_writes(wrong, CLAIMS))
    assert any("released writes in_flight" in breach for breach in found)
    assert any("'no such event', which is no event" in breach for breach in found)


def test_a_field_that_no_invariant_reads_is_named() -> None:
    """A claim that forgets what an event writes leaves it without an obligation."""
    claim = next(claim for claim in CLAIMS if claim.theorem.id == "D-A.1")
    only_range = tuple(clause for clause in claim.invariants if "W" not in clause.name)
    forgetful = attrs.evolve(claim, invariants=only_range, conclusions=only_range)
    found = dict(breach.split(" is written by ") for breach in registry.unread_fields([forgetful]))
    assert set(found) == {"deficit gate: P", "deficit gate: W"}
    assert "decode" in found["deficit gate: W"]
    assert list(registry.unread_fields([claim])) == []
