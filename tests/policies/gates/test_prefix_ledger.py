"""Who pays for a prefix of several clients: the books of the equal split, and what each rule does to small worlds."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairsched.model.prefix_cache import NO_NODE, PrefixCache
from fairsched.model.request import Prompt
from fairsched.policies.catalog import DLPM, LPM
from fairsched.policies.gates import DeficitGate, Sharing
from fairsched.policies.gates.prefix_ledger import (
    NO_LEDGER,
    Piece,
    asked,
    check_ledger,
    computed,
    entered,
    evicted,
    proportion,
)
from fairsched.policies.gates.prefix_ledger import cut as books_cut
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
    # The first ones keep a unit more where it does not divide.
    assert [asked((4, 3)), asked((10, 0)), asked((7, 7, 7))] == [(1, 1), (3, 0), (1, 2, 2)]


@given(AMOUNTS, st.integers(1, 20), st.integers(0, 20))
def test_what_is_cut_is_divided_exactly(before: tuple[int, ...], part: int, rest: int) -> None:
    """A part of a piece carries its share of what was paid, rounded down, and of nobody more than it paid."""
    parts = proportion(before, part, part + rest)
    assert sum(parts) == sum(before) * part // (part + rest)
    assert all(0 <= some <= own for some, own in zip(parts, before, strict=True))


USES = st.lists(
    st.tuples(
        *(st.sampled_from([None, 0, 1, 2]), st.lists(st.integers(0, 1), min_size=1, max_size=6)),
        *(st.sampled_from([0, 0, 1, 2]), st.sampled_from([0, 0, 1, 3])),
    ),
    max_size=25,
)
"""Who computes a prompt (None: a client that is not known), its blocks, after how many more requests it is computed,
and how much is evicted then."""


@given(USES)
@example([(0, [0, 0, 1, 1], 1, 0), (0, [0, 0], 0, 0), (1, [0, 0, 1, 0], 0, 0)])
@example([(0, [0, 0, 1, 1], 1, 0), (1, [0, 0], 0, 0), (2, [0, 0, 1, 0], 0, 1)])
@example([(0, [0, 0, 1, 1], 1, 0), (None, [0, 0], 0, 0), (2, [0, 0, 1, 0], 0, 3)])
@example([(0, [0, 0, 1, 1, 1], 1, 0), (1, [0, 0], 0, 1), (2, [0, 0, 1], 0, 3)])
def test_books_cover_what_is_cached(uses: list[tuple[int | None, list[int], int, int]]) -> None:
    """Whatever is computed, late or at once, used in part, lengthened and evicted: what was paid for a piece is the
    price of its tokens, a client that uses a piece is among those that paid, and no two neighbours have the same
    payers."""
    cache, ledger, due = PrefixCache(), NO_LEDGER, dict[int, list[int]]()
    for i, (client, keys, later, freed) in enumerate(uses):
        cache, _, cut = cache.admit(i, Prompt.from_keys(keys), i)
        if client is not None:
            ledger = entered(ledger, cache, cut, i, client, lambda _, __, units: units)
        elif cut is not None:
            ledger = books_cut(ledger, cache.tree, cut)
        node = cache.pins.get(i, NO_NODE)
        while node != NO_NODE:
            pieces = ledger.get(node, ())
            assert client is None or all(not piece.clients or client in piece.clients for piece in pieces)
            node = cache.tree.nodes[node].parent
        due.setdefault(i + later, []).append(i)
        for done in reversed(due.pop(i, ())):
            owner, blocks, _, _ = uses[done]
            prompt = Prompt.from_keys(blocks)
            cache, insertion = cache.complete(done, prompt, prompt.blocks, i)
            ledger = computed(ledger, cache.tree, insertion, owner, 3)
            check_ledger(ledger, cache.tree, 3)
            cache = cache.release(done)
        cache, evictions = cache.evict(freed)
        ledger = evicted(ledger, cache.tree, evictions)
        check_ledger(ledger, cache.tree, 3)
        for pieces in ledger.values():
            assert all(a.clients != b.clients for a, b in pairwise(pieces))


def test_what_was_cached_before_books_were_kept_is_paid_for_by_no_client() -> None:
    """A state of before has no books: what lengthens a prefix then is a piece of its own."""
    cache, _ = PrefixCache().complete(0, Prompt.from_keys([0, 0]), 2, 0)
    cache, insertion = cache.release(0).complete(1, Prompt.from_keys([0, 0, 1]), 3, 1)
    assert insertion.leaf is None
    ledger = computed(NO_LEDGER, cache.tree, insertion, 4, 3)
    assert ledger[insertion.node] == (Piece(2), Piece(3, (4,), (3,)))


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
