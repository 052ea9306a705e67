"""Who pays for a prefix of several clients: the books of the equal split, and what each rule does to small worlds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.policies.catalog import DLPM, LPM
from fairsched.policies.gates import DeficitGate, Sharing
from fairsched.policies.gates.prefix_ledger import asked, proportion
from fairsched.policies.registry import LOCAL_POLICIES, with_parameters
from fairsched.verify.proofs.gates.deficit_sharing import paid, played, riders_shares, victims_charges

AMOUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=6).map(tuple)
SENDS = st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 1), min_size=1, max_size=6)), max_size=25)
RULES: tuple[Sharing, ...] = ("first-toucher", "equal-split", "per-use")


def gate(sharing: Sharing, **changes: Any) -> DeficitGate:
    """A gate that always has enough credit to give."""
    return DeficitGate(**{"quantum": 4_000, "sharing": sharing, **changes})


@given(AMOUNTS)
def test_a_newcomer_asks_for_an_equal_share_of_the_whole(before: tuple[int, ...]) -> None:
    """Whatever was paid: nobody is asked for more than it paid, and all together for the whole over one more client."""
    amounts = asked(before)
    assert all(0 <= amount <= own for amount, own in zip(amounts, before, strict=True))
    assert sum(amounts) == sum(before) // (len(before) + 1)


@given(AMOUNTS, st.integers(1, 20), st.integers(0, 20))
def test_what_is_cut_is_divided_exactly(before: tuple[int, ...], part: int, rest: int) -> None:
    """A part of a piece carries its share of what was paid, rounded down, and of nobody more than it paid."""
    parts = proportion(before, part, part + rest)
    assert sum(parts) == sum(before) * part // (part + rest)
    assert all(0 <= some <= own for some, own in zip(parts, before, strict=True))


@given(SENDS, st.integers(7, 14), st.sampled_from([1, 3, 40]))
def test_an_equal_split_charges_what_is_computed(
    sends: list[tuple[int, list[int]]], capacity: int, quantum: int
) -> None:
    """Whatever is sent, shared, evicted and sent again, and however full of credit a giver is: not a unit more."""
    charges = played(gate("equal-split", quantum=quantum), sends, capacity)
    assert sum(paid(charges).values()) == sum(charge.computed for charge in charges)
    assert all(own >= 0 for own in paid(charges).values())


@given(SENDS, st.integers(7, 14))
def test_no_rule_changes_what_is_computed(sends: list[tuple[int, list[int]]], capacity: int) -> None:
    """One request after the other: who is charged changes nothing else; nobody is charged over its prompt."""
    runs = [played(gate(rule), sends, capacity) for rule in RULES]
    assert len({tuple((charge.client, charge.computed) for charge in run) for run in runs}) == 1
    for run in runs:
        assert all(charge.computed <= charge.charged <= len(keys) for charge, (_, keys) in zip(run, sends, strict=True))


@pytest.mark.parametrize(
    ("rule", "alone", "attacked"),
    [
        ("first-toucher", [1_000, 1, 1], [1_000, 1_000, 1_000]),
        ("equal-split", [1_000, 1, 1], [1_000, 1_000, 1_000]),
        ("per-use", [1_000, 101, 101], [1_000, 1_000, 1_000]),
    ],
)
def test_eviction_attack(rule: Sharing, alone: list[int], attacked: list[int]) -> None:
    """Evicting a client's prefix before each of its requests costs it 1,000 times as much, and per use 9.9 times."""
    assert victims_charges(gate(rule), 1_000, attacked=False) == alone
    assert victims_charges(gate(rule), 1_000, attacked=True) == attacked


@pytest.mark.parametrize(
    ("rule", "shares"),
    [
        ("first-toucher", {0: 1_000, 1: 1, 2: 1, 3: 1}),
        ("equal-split", {0: 251, 1: 251, 2: 251, 3: 250}),
        ("per-use", {0: 1_000, 1: 101, 2: 101, 3: 101}),
    ],
)
def test_free_riders(rule: Sharing, shares: dict[int, int]) -> None:
    """Who waits until another has computed a prefix pays 1 of 1,000, an equal share, or the price of its use."""
    assert riders_shares(gate(rule), 1_000, 4) == shares


def test_a_prefix_used_in_part_is_split_in_part() -> None:
    """The newcomer shares the 5 tokens that it uses, and the rest when it uses that."""
    long = list(range(10))
    sends = [(0, long), (1, [*range(5), 99]), (1, [*long, 98])]
    assert [charge.moves for charge in played(gate("equal-split"), sends, 60)] == [(), ((0, 2),), ((0, 2),)]


def test_whoever_is_full_of_credit_takes_no_more_back() -> None:
    """The refill that lets the second in leaves the first 1 below its quantum: only that moves, of a share of 4."""
    tokens = list(range(10))
    charges = played(gate("equal-split", quantum=11), [(0, tokens), (1, tokens)], 40)
    assert charges[1].moves == ((0, 1),)
    assert paid(charges) == {0: 9, 1: 2}


def test_the_rule_is_set_by_name() -> None:
    """From a command line, and refused by name."""
    policy = with_parameters(LOCAL_POLICIES["dlpm"], {"sharing": "per-use", "cached_percent": "25"})
    assert policy.guarantee.charging is not None
    assert (policy.guarantee.charging.cached_percent, policy.guarantee.charging.splits) == (25, False)
    with pytest.raises(ValueError, match="sharing is one of first-toucher, equal-split, per-use, not 'even'"):
        with_parameters(LOCAL_POLICIES["dlpm"], {"sharing": "even"})
    with pytest.raises(ValueError, match="cached_percent is a whole number from 0 to 100, not 101"):
        with_parameters(LOCAL_POLICIES["dlpm"], {"cached_percent": "101"})


def test_books_are_kept_only_where_they_matter() -> None:
    """An open gate and the default rule keep none."""
    assert not any(policy.gate.charging.splits for policy in (LPM(), DLPM(), *LOCAL_POLICIES.values()))
