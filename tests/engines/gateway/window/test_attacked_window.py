"""A window under floods that try to be charged less than they cost, in virtual time: the polite client is answered, and
what is charged and shown is what servers computed and held."""

from functools import cache

import attrs
import pytest

from fairsched.policies.guarantees import SECOND_NS, WindowTerms
from tests.support.adapters.attacked_window import FLOODS, HONEST, POLITE, TERMS, AttackedWindow, Flood, Outcome

SECONDS = 40
ABOUT = 0.95
SHORT = WindowTerms(0, hold_ns=6000 * SECOND_NS, call_ns=60 * SECOND_NS)
"""Holding costs little, so that the bound is small."""


@cache
def outcome(flood: Flood) -> Outcome:
    """What comes of a flood."""
    return AttackedWindow(flood).run(SECONDS)


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.name)
def test_no_flood_takes_more_from_the_polite_than_an_honest_one(flood: Flood) -> None:
    """Beside each flood the polite client has at least nine in ten of the answers that it has beside an honest one."""
    assert outcome(HONEST).polite >= 10
    assert outcome(flood).polite >= 0.9 * outcome(HONEST).polite


@pytest.mark.parametrize("flood", [HONEST, *FLOODS], ids=lambda flood: flood.name)
def test_what_servers_computed_and_held_is_charged(flood: Flood) -> None:
    """No client is charged less than its calls cost, but for those in flight; one that leaves no call unfinished is not
    charged more, either."""
    found = outcome(flood)
    for client, cost in found.computed.items():
        assert found.charged[client] >= ABOUT * cost
        if client == POLITE or flood.leaves_after is None:
            assert found.charged[client] <= cost / ABOUT


@pytest.mark.parametrize("flood", [HONEST, *FLOODS], ids=lambda flood: flood.name)
def test_the_gap_that_is_shown_is_that_of_what_servers_did(flood: Flood) -> None:
    """The monitor's largest gap is no less than that of a monitor which sees every token when it is computed, but for
    what is in flight; both are within the bound, and no assumption is broken by what is charged."""
    found = outcome(flood)
    assert found.report.gap is not None
    assert found.truth.gap is not None
    assert found.report.gap.cost >= 0.9 * found.truth.gap.cost
    assert found.report.bound_violations == found.truth.bound_violations == 0
    assert not found.report.violated()


def test_a_violation_that_matters_is_shown_and_hides_only_where_usage_is_not_asked() -> None:
    """Where the window is not told what was computed, as before usage was asked of every server, the polite client
    falls far behind, beyond the bound, and the window shows nothing; told, it shows what is true, which is within the
    bound.  So the bound, the truth and the polite client's answers are about the same thing."""

    def run(flood: Flood) -> Outcome:
        return AttackedWindow(flood, tokens=2000, slots=8, polite_callers=24, terms=SHORT).run(100)

    withheld = FLOODS[0]
    told, hidden = run(withheld), run(attrs.evolve(withheld, hidden=True))
    assert hidden.polite < told.polite / 2
    assert hidden.truth.bound_violations > 0
    assert hidden.report.bound_violations == 0
    assert told.truth.bound_violations == told.report.bound_violations == 0


VARIED = (20, 60, 31, 5, 80, 44)


@pytest.mark.parametrize("outputs", [(5,), VARIED], ids=["five", "varied"])
def test_a_client_that_declares_much_and_uses_little_is_served_as_fast_as_one_that_declares_what_comes(
    outputs: tuple[int, ...],
) -> None:
    """Of 48 callers that declare 32,000 as many are answered as by a server that has them all at once, but for a tenth,
    in the first eight seconds, in which nothing is known; with all of it reserved, three of them are in flight."""

    def answers(declared: int, terms: WindowTerms = TERMS) -> int:
        flood = Flood("", declares=declared, outputs=outputs, prompt=500)
        run = AttackedWindow(flood, tokens=100_000, slots=48, clients=1, callers=48, polite_callers=0, terms=terms)
        return run.run(8).answers[1]

    direct = answers(max(outputs))
    assert answers(32_000) >= 0.9 * direct
    assert answers(32_000, WindowTerms(0)) <= 0.2 * direct


@pytest.mark.parametrize(
    ("declared", "tokens"),
    [((80, 32_000), 100_000), ((32_000, 32_000), 100_000), ((4_096, 80), 6_000), ((4_096, 4_096), 6_000)],
)
def test_weights_hold_whatever_is_declared(declared: tuple[int, int], tokens: int) -> None:
    """Of two clients with weights 4 and 1 that always wait, the first is charged four times as much, within a tenth,
    where places are short (16 calls at a time) and where tokens are."""
    gold, free = (Flood("", declares=most, outputs=VARIED, prompt=100) for most in declared)
    run = AttackedWindow(
        free, tokens=tokens, clients=1, callers=48, polite=gold, polite_callers=48, requests=16, weights={POLITE: 4}
    )
    found = run.run(60)
    assert found.charged[POLITE] / found.charged[1] == pytest.approx(4, rel=0.1)
    assert found.report.bound_violations == 0
