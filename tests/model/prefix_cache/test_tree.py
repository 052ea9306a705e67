"""`PrefixTree` against a set of prefixes with brute-force LRU, and its known examples."""

import json
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairsched.model.prefix_cache import ROOT, Insertion, PrefixCache, PrefixTree
from fairsched.model.prefix_cache.tree import VIEW_BYTES, Match
from fairsched.model.request import KEY_BYTES, Prompt
from tests.support.clusters import KEYS, Keys, keys_of, prefixes, prompt_of


def cached(tree: PrefixTree) -> set[Keys]:
    """Every nonempty prefix that the tree holds."""
    return {p for i in tree.nodes for p in prefixes(keys_of(*tree.prefix(i)))}


class Naive:
    """Every cached prefix with its latest access; the victim is the least recent of those nothing extends or pins."""

    def __init__(self) -> None:
        self.latest: dict[Keys, int] = {}
        self.pins: Counter[Keys] = Counter()

    def match(self, keys: Keys) -> int:
        return sum(p in self.latest for p in prefixes(keys))

    def touch(self, keys: Keys, stamp: int) -> None:
        for p in prefixes(keys):
            self.latest[p] = max(stamp, self.latest.get(p, stamp))

    def protected(self) -> set[Keys]:
        return {p for pinned in +self.pins for p in prefixes(pinned)}

    def evict(self, blocks: int) -> None:
        kept = self.protected()
        for _ in range(blocks):
            inner = {p[:-1] for p in self.latest}
            victims = [p for p in self.latest if p not in inner and p not in kept]
            if not victims:
                return
            del self.latest[min(victims, key=lambda p: self.latest[p])]

    def drop(self, keys: Keys, keep: int) -> None:
        if len(keys) > keep:
            self.latest = {p: s for p, s in self.latest.items() if p[: keep + 1] != keys[: keep + 1]}


class PrefixTreeMachine(RuleBasedStateMachine):
    """The tree, its unpinned copy fed by events, and the naive model hold the same after every step."""

    @initialize(block_tokens=st.sampled_from((1, 3)))
    def start(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.tree = PrefixTree.empty(block_tokens)
        self.copy = PrefixTree.empty()
        self.naive = Naive()
        self.stamp = 0
        self.held: list[int] = []
        self.prompts: list[Prompt] = []
        self.old: list[tuple[PrefixTree, str]] = []

    def tick(self) -> int:
        self.stamp += 1
        return self.stamp

    @rule(keys=KEYS, data=st.data())
    def insert(self, keys: Keys, data: st.DataObject) -> None:
        blocks = data.draw(st.one_of(st.just(len(keys)), st.integers(0, len(keys))))
        prompt, stamp = prompt_of(keys, self.block_tokens), self.tick()
        owner = len(self.prompts)
        self.prompts.append(prompt)
        matched = min(self.naive.match(keys), blocks)
        before = self.tree
        self.tree, done = before.insert(prompt, blocks, owner, stamp)
        self.copy, _ = self.copy.insert(prompt, blocks, owner, stamp)
        self.naive.touch(keys[:blocks], stamp)
        end_prompt, end = self.tree.prefix(done.node)
        assert keys_of(end_prompt, end) == keys[:blocks]
        assert (done.matched_blocks, done.new_blocks) == (matched, blocks - matched)
        assert done.leaf is None or (done.leaf == done.node and self.tree.nodes[done.leaf].owner == owner)
        self.only_matches_at_base_grew(before, done, data.draw(st.lists(KEYS, max_size=5)))

    def only_matches_at_base_grew(self, before: PrefixTree, done: Insertion, others: list[Keys]) -> None:
        for keys in others:
            prompt = prompt_of(keys, self.block_tokens)
            old, new = before.match(prompt), self.tree.match(prompt)
            if new.blocks > old.blocks:
                assert old == Match(done.split[1] if done.split else done.base, done.matched_blocks)

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.tree.nodes)))
        stamp = self.tick()
        keys = keys_of(*self.tree.prefix(node))
        self.tree = self.tree.pin(node, stamp)
        # The engine tells nobody of pins; a copy learns of the access when the prefix is cached again.
        self.copy, _ = self.copy.insert(prompt_of(keys, self.block_tokens), len(keys), 0, stamp)
        self.naive.touch(keys, stamp)
        self.naive.pins[keys] += 1
        self.held.append(node)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        node = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.naive.pins[keys_of(*self.tree.prefix(node))] -= 1
        self.tree = self.tree.unpin(node)

    @rule(tokens=st.sampled_from((-1, 0, 1, 2, 3, 4, 7)))
    def evict(self, tokens: int) -> None:
        before = self.tree
        self.tree, evictions = before.evict(tokens)
        self.naive.evict(max(-(-tokens // self.block_tokens), 0))
        free = before.cached_tokens - before.protected_tokens
        freed = sum(e.blocks for e in evictions) * self.block_tokens
        assert freed == before.cached_tokens - self.tree.cached_tokens
        assert freed >= min(tokens, free)
        assert freed < max(tokens, 0) + self.block_tokens
        for e in evictions:
            assert e.removed == (e.node not in self.tree.nodes)
            assert e.prompt == self.prompts[e.owner]
            self.copy, dropped = self.copy.drop(e.prompt, e.keep_blocks)
            assert sum(d.blocks for d in dropped) == e.blocks

    @rule(keys=KEYS, data=st.data())
    def drop(self, keys: Keys, data: st.DataObject) -> None:
        keep = data.draw(st.integers(max(len(keys) - 2, 0), len(keys)))
        prompt, before = prompt_of(keys, self.block_tokens), self.tree
        gone = {p for p in self.naive.latest if len(keys) > keep and p[: keep + 1] == keys[: keep + 1]}
        if gone & self.naive.protected():
            with pytest.raises(ValueError, match="pinned"):
                before.drop(prompt, keep)
            return
        self.tree, dropped = before.drop(prompt, keep)
        self.copy, _ = self.copy.drop(prompt, keep)
        self.naive.drop(keys, keep)
        assert sum(d.blocks for d in dropped) == len(gone)
        assert all(d.removed == (d.node not in self.tree.nodes) for d in dropped)

    @rule(keys=KEYS)
    def match(self, keys: Keys) -> None:
        match = self.tree.match(prompt_of(keys, self.block_tokens))
        assert match.blocks == self.naive.match(keys) == self.copy.match(prompt_of(keys, self.block_tokens)).blocks
        node = self.tree.nodes[match.node]
        assert node.start < match.blocks <= node.end or match == Match(ROOT, 0)

    @rule()
    def reload(self) -> None:
        document = json.dumps(self.tree.to_json())
        loaded = PrefixTree.from_json(json.loads(document))
        assert loaded == self.tree
        assert json.dumps(loaded.to_json()) == document
        # What follows runs on the loaded tree, so it must behave as the first one.
        self.tree = loaded

    @rule()
    def remember(self) -> None:
        self.old.append((self.tree, json.dumps(self.tree.to_json())))

    @invariant()
    def same_as_naive(self) -> None:
        for tree in (self.tree, self.copy):
            tree.check()
            assert cached(tree) == set(self.naive.latest)
        assert self.tree.cached_tokens == len(self.naive.latest) * self.block_tokens
        assert self.tree.protected_tokens == len(self.naive.protected()) * self.block_tokens

    def teardown(self) -> None:
        for tree, document in getattr(self, "old", []):
            tree.check()
            assert json.dumps(tree.to_json()) == document


TestPrefixTreeMachine = PrefixTreeMachine.TestCase
TestPrefixTreeMachine.settings = settings(stateful_step_count=100)


def grown(*lists: Keys) -> PrefixTree:
    """A tree of the given prompts, request n inserted at time n (from 1)."""
    tree = PrefixTree.empty()
    for n, keys in enumerate(lists, start=1):
        tree, _ = tree.insert(prompt_of(keys), len(keys), owner=n, stamp=n)
    return tree


def test_a_node_without_a_pin_cannot_be_unpinned() -> None:
    """Nor can one that is not there be pinned."""
    tree = grown((1, 1), (1, 1, 5))
    with pytest.raises(ValueError, match=r"node 1 .* no pin"):
        tree.unpin(1)
    with pytest.raises(KeyError):
        tree.pin(99, 1)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(1, 4))
def test_a_conversation_stays_one_node_unless_its_turns_are_pinned(turns: list[int], block_tokens: int) -> None:
    """A turn lengthens the leaf it continues, also while it runs and pins that, so what a turn costs does not grow with
    the number of turns before it; turns that others pin are nodes of their own."""
    cache, pinned, blocks = PrefixCache(), PrefixTree.empty(block_tokens), 0
    for turn, more in enumerate(turns, 1):
        before, blocks = blocks, blocks + more
        prompt = prompt_of(tuple(range(blocks)), block_tokens)
        cache, cached_tokens, cut = cache.admit(turn, prompt, turn)
        assert (cached_tokens, cut) == (before * block_tokens, None)
        cache, done = cache.complete(turn, prompt, blocks, turn)
        assert (done.matched_blocks, done.new_blocks, len(cache.tree.nodes)) == (before, more, 2)
        cache = cache.release(turn)
        pinned, kept = pinned.insert(prompt, blocks, owner=turn, stamp=turn)
        pinned = pinned.pin(kept.node, turn)
    cache.tree.check()
    assert (len(pinned.nodes), pinned.protected_tokens) == (len(turns) + 1, blocks * block_tokens)
    pinned.check()


def test_an_older_stamp_makes_nothing_newer() -> None:
    """A tail cached with an older stamp than the leaf it continues is a node of its own, and goes first."""
    tree = grown((1, 1), (2,), (3,)).insert(prompt_of((3, 3)), 2, owner=4, stamp=1)[0]
    tree.check()
    assert [(e.owner, e.blocks) for e in tree.evict(4)[1]] == [(1, 2), (4, 1), (2, 1)]


def test_block_sizes_do_not_mix() -> None:
    """An empty tree takes any block size, a tree that holds something only its own; another one matches nothing."""
    tree, _ = PrefixTree.empty(1).insert(prompt_of((1, 2), block_tokens=16), 2, owner=1, stamp=1)
    assert (tree.block_tokens, tree.cached_tokens) == (16, 32)
    assert tree.match(prompt_of((1, 2))) == Match(ROOT, 0)
    with pytest.raises(ValueError, match="request 2: blocks of 1 tokens do not fit a tree of 16"):
        tree.insert(prompt_of((1, 2)), 1, owner=2, stamp=2)
    # A prompt of which nothing is shared (a trace of lengths only) fits every tree.
    assert tree.insert(Prompt(tokens=500), 0, owner=2, stamp=2)[1].new_blocks == 0
    emptied, _ = tree.evict(32)
    assert emptied.insert(prompt_of((1, 2), block_tokens=3), 2, owner=3, stamp=3)[0].cached_tokens == 6


@pytest.mark.parametrize("blocks", [-1, 3])
def test_insert_wants_blocks_that_the_prompt_has(blocks: int) -> None:
    """More blocks than the prompt has, or fewer than none, are refused with the owner's name."""
    with pytest.raises(ValueError, match=f"request 5: its prompt has 2 whole blocks, not {blocks}"):
        PrefixTree.empty().insert(prompt_of((1, 2)), blocks, owner=5, stamp=1)


@given(st.integers(1, 300), st.integers(0, 299), st.integers(-(2**63), 2**63 - 1))
def test_first_mismatch_anywhere(length: int, at: int, key: int) -> None:
    """Two long prompts share exactly the blocks before the first key in which they differ, if any."""
    keys = list(range(1000, 1000 + length))
    other = keys[: at % length] + [key] + keys[at % length + 1 :]
    tree, _ = PrefixTree.empty().insert(Prompt.from_keys(keys), length, owner=1, stamp=1)
    expected = length if other == keys else at % length
    assert tree.match(Prompt.from_keys(other)).blocks == expected
    longer = tree.match(Prompt.from_keys([*keys, key]))
    assert (longer.blocks, tree.match(Prompt.from_keys(keys[: at % length + 1])).blocks) == (length, at % length + 1)


@pytest.mark.parametrize("at", [0, 1, 4_500, 4_999])
def test_a_long_edge_is_compared_whole(at: int) -> None:
    """Prompts share what is before the first key in which they differ also where an edge is longer than is copied."""
    keys = list(range(5_000))
    assert len(keys) * KEY_BYTES > VIEW_BYTES
    tree, _ = PrefixTree.empty().insert(Prompt.from_keys(keys), len(keys), owner=1, stamp=1)
    assert tree.match(Prompt.from_keys(keys)).blocks == len(keys)
    assert tree.match(Prompt.from_keys([*keys[:at], -1, *keys[at + 1 :]])).blocks == at


def test_json_says_its_version() -> None:
    """A document of another schema is refused."""
    with pytest.raises(ValueError, match="schema 99"):
        PrefixTree.from_json({**grown((1, 2)).to_json(), "schema": 99})


def test_json_writes_shared_keys_once() -> None:
    """A thousand prompts that share 1,000 keys take far less room than a thousand copies of them."""
    tree = grown(*(tuple(range(1000)) + (k,) for k in range(2000, 3000)))
    assert len(json.dumps(tree.to_json())) < 200_000


def test_check_finds_what_is_wrong() -> None:
    """`check` is not empty: a counter off by one, a victim left out, a reference too many, a key changed or an id from
    nowhere does not pass."""
    tree = grown((1, 2, 3), (1, 2, 4)).pin(1, 3)
    tree.check()
    node, change = tree.nodes[1], msgspec.structs.replace
    counters = ("cached_tokens", "protected_tokens", "block_tokens")
    broken = [
        *(change(tree, **{field: getattr(tree, field) + 1}) for field in counters),
        change(tree, evictable=tree.evictable.remove(tree.evictable.first())),
        change(tree, nodes=tree.nodes.set(1, change(node, refs=node.refs + 1))),
        change(tree, nodes=tree.nodes.set(1, change(node, prompt=prompt_of((1, 9, 3))))),
        change(tree, next_id=2),
    ]
    for one in broken:
        with pytest.raises(AssertionError):
            one.check()
