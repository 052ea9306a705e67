"""`PrefixIndex` against sets of prefixes with brute-force LRU and counting, and its known examples."""

import json
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairsched.model.prefix_cache import ROOT, PrefixIndex, bits
from fairsched.model.prefix_cache.index import Level
from fairsched.model.request import Prompt
from fairsched.model.serialization import StateError, from_json, to_json
from tests.support.clusters import KEYS, Keys, keys_of, prefixes, prompt_of

WORKERS = 3
WINDOW_NS = 10
workers = st.integers(0, WORKERS - 1)


def path_of(index: PrefixIndex, node: int) -> Keys:
    """The keys that the path from the root to a node spells."""
    known = index.nodes[node]
    return keys_of(known.prompt, known.end)


def document(index: PrefixIndex) -> str:
    """The index as text."""
    return json.dumps(index.to_json())


class Naive:
    """Each worker's prefixes with their latest access, and the hits of the window as a list."""

    def __init__(self) -> None:
        self.latest: dict[tuple[int, Keys], int] = {}
        self.hits: list[tuple[int, int, Keys]] = []

    def advance(self, now_ns: int, at_most: int | None) -> None:
        old = sum(now_ns - hit_ns >= WINDOW_NS for hit_ns, _, _ in self.hits)
        del self.hits[: old if at_most is None else min(old, at_most)]

    def evicted(self, worker: int, keys: Keys, keep: int) -> None:
        if keep < len(keys):
            gone = [(w, p) for w, p in self.latest if w == worker and p[: keep + 1] == keys[: keep + 1]]
            for key in gone:
                del self.latest[key]

    def held(self, worker: int) -> set[Keys]:
        return {p for w, p in self.latest if w == worker}

    def known(self) -> set[Keys]:
        return {p for _, p in self.latest} | {p for _, _, keys in self.hits for p in prefixes(keys)}

    def hit(self, worker: int, prefix: Keys) -> int:
        return sum(w == worker and keys[: len(prefix)] == prefix for _, w, keys in self.hits)

    def victims(self, worker: int, blocks: int, kept: set[Keys]) -> list[Keys]:
        """The prefixes that go, one block at a time: the least recent of those that the worker holds nothing beyond."""
        held, gone = self.held(worker), list[Keys]()
        while len(gone) < blocks and (leaves := held - {p[:-1] for p in held} - kept):
            gone.append(min(leaves, key=lambda p: self.latest[worker, p]))
            held.remove(gone[-1])
        return gone


class PrefixIndexMachine(RuleBasedStateMachine):
    """The index and the naive model say the same after every step, and no old index ever changes."""

    @initialize(block_tokens=st.sampled_from((1, 3)))
    def start(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.index = PrefixIndex.empty(WINDOW_NS)
        self.naive = Naive()
        self.now_ns = 0
        self.accesses = 0
        self.old: list[tuple[PrefixIndex, str]] = []
        self.prompts: dict[Keys, Prompt] = {}
        self.ends: dict[Keys, int] = {}
        """Where each prompt ended when it was inserted: what a router remembers, and what may be true no longer."""

    def prompt(self, keys: Keys) -> Prompt:
        """The same object for the same keys, as events of one process have it."""
        return self.prompts.setdefault(keys, prompt_of(keys, self.block_tokens))

    @rule(keys=KEYS, worker=workers, later_ns=st.integers(0, 3), hit=st.booleans(), data=st.data())
    def insert(self, keys: Keys, worker: int, later_ns: int, hit: bool, data: st.DataObject) -> None:
        blocks = data.draw(st.one_of(st.just(len(keys)), st.integers(0, len(keys))))
        self.now_ns += later_ns
        self.accesses += 1
        match = self.index.match(self.prompt(keys)) if data.draw(st.booleans()) else None
        self.index, node = self.index.insert(self.prompt(keys), blocks, worker, self.now_ns, hit, match)
        assert path_of(self.index, node) == keys[:blocks]
        self.ends[keys] = node
        for p in prefixes(keys[:blocks]):
            self.naive.latest[worker, p] = self.accesses
        if hit:
            self.naive.hits.append((self.now_ns, worker, keys[:blocks]))

    @rule(later_ns=st.integers(0, 8), at_most=st.sampled_from((None, 0, 1, 2)))
    def advance(self, later_ns: int, at_most: int | None) -> None:
        self.now_ns += later_ns
        self.index = self.index.advance(self.now_ns, at_most)
        self.naive.advance(self.now_ns, at_most)

    @rule(keys=KEYS, worker=workers, data=st.data())
    def evicted(self, keys: Keys, worker: int, data: st.DataObject) -> None:
        keep = data.draw(st.integers(0, len(keys)))
        before = self.index
        self.index = before.evicted(self.prompt(keys), keep, worker, self.ends.get(keys, ROOT))
        if self.naive.held(worker).isdisjoint(prefixes(keys)[keep:]):
            assert self.index is before
        self.naive.evicted(worker, keys, keep)

    @rule(worker=workers, blocks=st.sampled_from((-1, 0, 1, 2, 3, 5, 8, 100)), report=st.booleans(), data=st.data())
    def evict(self, worker: int, blocks: int, report: bool, data: st.DataObject) -> None:
        before = self.index
        held_nodes = sorted(i for i, node in before.nodes.items() if node.held >> worker & 1)
        spared = data.draw(st.sets(st.sampled_from(held_nodes), max_size=2))
        kept = {p for node in spared for p in prefixes(path_of(before, node))}
        expected = self.naive.victims(worker, blocks, kept)
        # One token more than whole blocks rounds up; asking for less than nothing asks for nothing.
        victims = before.victims(worker, (blocks - 1) * self.block_tokens + 1, spared)
        gone = list[Keys]()
        for v in victims:
            path = path_of(before, v.node)
            end, context = (v.context_tokens + v.tokens) // self.block_tokens, v.context_tokens // self.block_tokens
            gone.extend(reversed(prefixes(path[:end])[context:]))
            assert v.hits == self.naive.hit(worker, path)
            if report:
                held = self.index.held_tokens(worker)
                self.index = self.index.evicted(self.prompt(path), context, worker)
                self.naive.evicted(worker, path, context)
                assert held - self.index.held_tokens(worker) == v.tokens
        assert gone == expected

    @precondition(lambda self: self.accesses % 4 == 3)
    @rule(worker=workers)
    def without(self, worker: int) -> None:
        self.index = self.index.without(worker)
        self.naive.latest = {key: stamp for key, stamp in self.naive.latest.items() if key[0] != worker}

    @rule(keys=KEYS)
    def match(self, keys: Keys) -> None:
        match = self.index.match(self.prompt(keys))
        known = self.naive.known()
        assert match.blocks == sum(p in known for p in prefixes(keys))
        held = [sum((w, p) in self.naive.latest for p in prefixes(keys)) for w in range(WORKERS)]
        assert match.blocks_by_worker(WORKERS) == held
        assert [level.blocks for level in match.levels] == sorted({*held} - {0}, reverse=True)
        for level in match.levels:
            node = self.index.nodes[level.node]
            assert node.start < level.blocks <= node.end

    @rule()
    def reload(self) -> None:
        text = document(self.index)
        # What follows runs on the loaded index, so it must behave as the first one.
        self.index = PrefixIndex.from_json(json.loads(text))
        assert document(self.index) == text

    @rule()
    def remember(self) -> None:
        self.old.append((self.index, document(self.index)))

    @invariant()
    def same_as_naive(self) -> None:
        self.index.check()
        paths = {i: path_of(self.index, i) for i in self.index.nodes}
        assert {p for path in paths.values() for p in prefixes(path)} == self.naive.known()
        for worker in range(WORKERS):
            assert self.index.held_tokens(worker) == len(self.naive.held(worker)) * self.block_tokens
            assert all(self.index.hits(worker, i) == self.naive.hit(worker, path) for i, path in paths.items())

    def teardown(self) -> None:
        for index, text in getattr(self, "old", []):
            index.check()
            assert document(index) == text


TestPrefixIndexMachine = PrefixIndexMachine.TestCase
TestPrefixIndexMachine.settings = settings(stateful_step_count=60)


sparse = st.sets(st.integers(0, 300), max_size=20).map(lambda workers: sum(1 << w for w in workers))


@given(st.one_of(st.integers(0, 1 << 300), sparse))
def test_bits_are_the_workers_of_a_mask(mask: int) -> None:
    """Few or many, in ascending order."""
    assert bits(mask) == [w for w in range(mask.bit_length()) if mask >> w & 1]


def told(*requests: tuple[int, Keys], window_ns: int = 1_000) -> PrefixIndex:
    """An index of requests (worker, keys), one each nanosecond from 1 on."""
    index = PrefixIndex.empty(window_ns)
    for now_ns, (worker, keys) in enumerate(requests, start=1):
        index, _ = index.insert(prompt_of(keys), len(keys), worker, now_ns)
    return index


def test_a_late_report_changes_nothing_else() -> None:
    """A report about what is gone, of a worker that is gone or never was, or in other blocks changes nothing."""
    index = told((0, (1, 2)), (1, (1, 2)))
    gone = index.without(1)
    assert gone.evicted(prompt_of((1, 2)), 0, 1) is gone
    assert gone.without(1) is gone
    assert index.evicted(prompt_of((1, 2)), 2, 0) is index
    assert index.evicted(prompt_of((1, 2), block_tokens=2), 0, 0) is index
    assert index.evicted(prompt_of((4,)), 0, 0) is index
    assert index.evicted(prompt_of((1, 2)), 0, 9) is index
    # The worker that is gone keeps its hits, and nothing else; the other keeps all.
    assert [gone.hits(w) for w in (0, 1)] == [1, 1]
    assert [gone.held_tokens(w) for w in (0, 1)] == [2, 0]


def test_boundaries_go_when_nothing_needs_them() -> None:
    """A hot prefix cut at every place by partial evictions is one node again once it is used whole."""
    keys = tuple(range(1, 200))
    index = PrefixIndex.empty(1)
    for worker in range(4):
        index, _ = index.insert(prompt_of(keys), len(keys), worker, 0, hit=False)
    for keep in range(1, 199):
        index = index.evicted(prompt_of(keys), keep, keep % 4)
    for worker in range(4):
        index, _ = index.insert(prompt_of(keys), len(keys), worker, 0, hit=False)
    index.check()
    assert len(index.nodes) == 2
    assert index.match(prompt_of(keys)).levels == (Level(0b1111, 199, max(index.nodes)),)


def test_a_thousand_workers() -> None:
    """Masks may be as long as there are workers, in the index and in its document."""
    index = told(*((w, (1, 2, w % 10)) for w in range(1_000)))
    match = index.match(prompt_of((1, 2, 7)))
    assert Counter(match.blocks_by_worker(1_000)) == {2: 900, 3: 100}
    index.check()
    assert document(from_json(PrefixIndex, json.loads(json.dumps(to_json(index))))) == document(index)


def test_bad_input_is_refused() -> None:
    """More blocks than the prompt has, other blocks, a worker below 0, time that goes back: each says by how much."""
    index = told((0, (1, 2, 3)))
    refused: dict[str, Callable[[], object]] = {
        "worker 2: the prompt has 1 whole blocks, not 5": lambda: index.insert(prompt_of((1,)), 5, 2, 1),
        "blocks of 4 tokens do not fit an index of 1": lambda: index.insert(prompt_of((1,), block_tokens=4), 1, 0, 1),
        r"worker ids are not negative \(-1\)": lambda: index.insert(prompt_of((1,)), 1, -1, 1),
        "worker 0: 0 ns comes after 1 ns": lambda: index.insert(prompt_of((1,)), 1, 0, 0),
        "^0 ns comes after 1 ns": lambda: index.advance(0),
        "keep_blocks is not negative": lambda: index.evicted(prompt_of((1,)), -1, 0),
        "at least 1 ns": lambda: PrefixIndex.empty(0),
        "schema 9": lambda: PrefixIndex.from_json({"schema": 9}),
    }
    for said, refuse in refused.items():
        with pytest.raises(ValueError, match=said):
            refuse()
    with pytest.raises(StateError, match=r"not a prefix index \(KeyError"):
        from_json(PrefixIndex, {"schema": 2, "type": "PrefixIndex", "state": {"schema": 1}})
    assert index.match(prompt_of((1, 2), block_tokens=2)).blocks == 0
