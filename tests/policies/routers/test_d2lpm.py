"""D2LPM against its rule written out over a full table, what its state keeps, and the printed algorithm by hand."""

from collections import Counter
from collections.abc import Iterable
from operator import attrgetter
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from immutables import Map

from fairsched.model.algebra import EXACT, NUMPY, ExactVector
from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.model.events import Cached, Cancelled, ClientConfigured, Evicted, Finished, Rejected, WorkerLeft
from fairsched.model.request import Prompt, Request
from fairsched.policies.routers import D2LPM, D2LPMPrinted
from fairsched.policies.routers import d2lpm as kernel
from fairsched.policies.routers.d2lpm import FEW, SPARSE, D2LPMState, Sparse
from tests.support.clusters import request, view_of

WORKERS = 3
small = st.integers(-4, 4)


class Table:
    """The rule as one says it: a table of deficits, lists of blocks that workers hold, and nothing shared."""

    def __init__(self, router: D2LPM) -> None:
        self.router = router
        self.d: dict[tuple[int, int], int] = {}
        self.cached: list[set[tuple[int, ...]]] = [set() for _ in range(WORKERS)]
        self.sent: dict[int, tuple[int, int, int]] = {}

    def held(self, worker: int, keys: list[int]) -> int:
        """Leading blocks that the worker holds."""
        return max((n for n in range(len(keys) + 1) if n == 0 or tuple(keys[:n]) in self.cached[worker]), default=0)

    def route(self, i: int, client: int, keys: list[int], queues: list[int]) -> int:
        """The worker; the client pays for what is not cached there."""
        row = [self.d.setdefault((client, w), self.router.quantum) for w in range(WORKERS)]
        while max(row) <= 0:
            row = [value + self.router.quantum for value in row]
        held = [self.held(w, keys) for w in range(WORKERS)]
        best = max(held)
        credit = [w for w in range(WORKERS) if row[w] > 0]
        counts = best > 0 and best * 100 >= self.router.match_percent_min * (len(keys) + 1)
        near = [w for w in credit if counts and held[w] == best]
        worker = min(near or credit, key=lambda w: (queues[w], w))
        extend = len(keys) + 1 - held[worker]
        row[worker] -= extend * self.router.input_rate
        self.d |= {(client, w): row[w] for w in range(WORKERS)}
        self.cached[worker] |= {tuple(keys[:n]) for n in range(1, len(keys) + 1)}
        self.sent[i] = (client, worker, extend)
        return worker

    def finish(self, i: int, output_tokens: int) -> None:
        """It pays for the output."""
        client, worker, _ = self.sent.pop(i)
        self.d[client, worker] -= output_tokens * self.router.output_rate

    def cancel(self, i: int, uncomputed: int, output_tokens: int) -> None:
        """It gets back what was not computed, and pays for the output."""
        client, worker, extend = self.sent.pop(i)
        back = min(uncomputed, extend) * self.router.input_rate
        self.d[client, worker] = min(self.d[client, worker] + back, self.router.quantum)
        self.d[client, worker] -= output_tokens * self.router.output_rate

    def evict(self, worker: int, keys: list[int], keep: int) -> None:
        """The worker holds no more than `keep` blocks of what begins like this."""
        gone = tuple(keys[: keep + 1])
        self.cached[worker] = {path for path in self.cached[worker] if path[: keep + 1] != gone}


routers = st.builds(
    D2LPM,
    quantum=st.integers(1, 20),
    input_rate=st.integers(1, 3),
    output_rate=st.integers(1, 3),
    match_percent_min=st.sampled_from((0, 50, 70)),
)


@given(routers, st.sampled_from((0, FEW)), st.data())
def test_it_does_what_its_rule_says(router: D2LPM, few: int, data: st.DataObject) -> None:
    """Whatever comes, ends and is evicted: the same worker, and the same deficits, as the full table has.

    So it is with numpy's vectors, which more workers have, as well.
    """
    with patch("fairsched.policies.routers.d2lpm.FEW", few):
        _does_what_its_rule_says(router, data)


def _does_what_its_rule_says(router: D2LPM, data: st.DataObject) -> None:
    table, state = Table(router), router.init()
    for i in range(data.draw(st.integers(1, 12))):
        client = data.draw(st.integers(0, 2))
        keys = data.draw(st.lists(st.integers(0, 1), max_size=4))
        queues = data.draw(st.lists(st.integers(0, 3), min_size=WORKERS, max_size=WORKERS))
        dispatch, state = router.route(state, request(i, keys, client=client), view_of(*queues))
        assert dispatch.worker == table.route(i, client, keys, queues)
        router.check(state)
        if bool(table.sent) and data.draw(st.booleans()):
            state = _ends(router, table, state, data)
        if data.draw(st.booleans()):
            worker, keep = data.draw(st.integers(0, WORKERS - 1)), data.draw(st.integers(0, 2))
            keys = data.draw(st.lists(st.integers(0, 1), min_size=keep + 1, max_size=4))
            table.evict(worker, keys, keep)
            state = router.observe(state, Evicted(0, worker, 0, Prompt.from_keys(keys), keep, 1))
        for (client, worker), value in table.d.items():
            assert state.accounts[client].deficits.get(worker, router.quantum) == value


def _ends(router: D2LPM, table: Table, state: D2LPMState, data: st.DataObject) -> D2LPMState:
    """A request under way finishes, or its caller gives up after its prompt was computed."""
    i = data.draw(st.sampled_from(sorted(table.sent)))
    client, worker, _ = table.sent[i]
    output = data.draw(st.integers(1, 5))
    if data.draw(st.booleans()):
        table.finish(i, output)
        return router.observe(state, Finished(0, worker, i, client, output))
    table.cancel(i, 0, output)
    return router.observe(state, Cancelled(0, worker, i, client, True, 0, output))


def test_a_request_that_waited_in_vain_gets_all_back() -> None:
    """A request that is rejected, or given up before it was served, leaves neither a charge nor a cached prompt."""
    router = D2LPM(quantum=50)
    _, state = router.route(router.init(), request(0, [1, 2, 3]), view_of(0, 0))
    for event in (Rejected(0, 0, 0, 0, "too large"), Cancelled(0, 0, 0, 0, False, 0, 0)):
        after = router.observe(state, event)
        assert not after.accounts[0].deficits
        assert not after.index.held_tokens(0)
        assert not after.sent
    assert router.observe(state, Cancelled(0, 0, 0, 0, True, 3, 0)).accounts[0].deficits == Map({0: 49})


def test_a_report_that_says_more_than_was_thought_is_believed() -> None:
    """What was evicted while a request waited, and is cached with it, is there again."""
    router = D2LPM()
    prompt = Prompt.from_keys([1, 2, 3], tokens=4)
    _, state = router.route(router.init(), Request(0, 0, 0, prompt, 1), view_of(0, 0))
    gone = router.observe(state, Evicted(0, 0, 0, prompt, 1, 2))
    assert gone.index.held_tokens(0) == 1
    back = router.observe(gone, Cached(7, 0, 0, prompt, 3))
    assert back.index.held_tokens(0) == 3
    assert router.observe(back, Cached(7, 0, 0, prompt, 3)) is back
    # A request of the same instant comes after a report that is later.
    dispatch, _ = router.route(back, Request(1, 0, 0, prompt, 1), view_of(1, 0))
    assert dispatch.worker == 0


def test_a_worker_that_left_is_forgotten() -> None:
    """Its cache and all debts there; a request that was there is charged where it goes instead."""
    router = D2LPM(quantum=5)
    _, state = router.route(router.init(), request(0, [1, 2, 3]), view_of(0, 1))
    state = router.observe(state, WorkerLeft(0, 0))
    assert not state.accounts[0].deficits
    dispatch, state = router.route(state, request(0, [1, 2, 3]), ClusterView(0, view_of(0, 0).workers[1:]))
    assert dispatch.worker == 1
    assert state.accounts[0].deficits == Map({1: 1})
    assert state.accounts[0].under_way == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40))
def test_the_memory_of_clients_is_bounded(calls: list[tuple[int, bool]]) -> None:
    """However many clients came, no more are known than have requests under way and `idle_clients_max`."""
    router = D2LPM(quantum=3, idle_clients_max=2)
    state = router.init()
    for i, (client, ends) in enumerate(calls):
        dispatch, state = router.route(state, request(i, client=client), view_of(0, 0))
        if ends:
            state = router.observe(state, Finished(0, dispatch.worker, i, client, 1))
        router.check(state)
        busy = {sent.client for sent in state.sent.values()}
        assert len(state.accounts) <= len(busy) + 2
        assert busy <= set(state.accounts)


def test_weights_are_quanta() -> None:
    """A client of weight 3 stays three times as long; credit above a smaller quantum is cut."""
    router = D2LPM(quantum=4)
    state = router.observe(router.init(), ClientConfigured(0, 0, 0, 3))
    _, state = router.route(state, request(0, [1, 2, 3]), view_of(0, 0))
    assert state.accounts[0].deficits == Map({0: 8})
    state = router.observe(state, ClientConfigured(0, 0, 0, 1))
    assert state.accounts[0].deficits == Map()
    router.check(state)


vectors = st.lists(st.tuples(small, st.booleans(), st.integers(1, 5)), min_size=1, max_size=5)


@given(vectors)
def test_the_closed_form_is_the_round_repeated(drawn: list[tuple[int, bool, int]]) -> None:
    """On exact integers and on arrays, when one is due."""
    d, here, quantum = (ExactVector(column) for column in zip(*drawn, strict=True))
    assume(kernel.refill_due(EXACT, d, here))
    once: Any = d
    while kernel.refill_due(EXACT, once, here):
        once = kernel.refill(EXACT, once, here, quantum)
    assert kernel.refill_rounds(EXACT, d, here, quantum) == once
    arrays = [np.array(v) for v in (d, here, quantum)]
    assert kernel.refill_rounds(NUMPY, *arrays).tolist() == list(once)


@given(st.lists(small, min_size=1, max_size=5), st.integers(0, 4), small, small)
def test_sparse_vectors_are_vectors(entries: list[int], p: int, x: int, default: int) -> None:
    """The words for points do on sparse vectors what they do on full ones, and write down no default."""
    p %= len(entries)
    full, sparse = ExactVector(entries), Sparse(Map(), default).with_entries(enumerate(entries))
    for word in ("bump", "put"):
        changed = getattr(SPARSE, word)(sparse, p, x)
        assert [changed[i] for i in range(len(entries))] == list(getattr(EXACT, word)(full, p, x))
        assert default not in changed.entries.values()
    assert SPARSE.pick(sparse, p, 0) == entries[p]


@given(vectors, st.data())
def test_a_choice_by_bits_is_the_choice_by_vectors(drawn: list[tuple[int, bool, int]], data: st.DataObject) -> None:
    """The words for a choice find on a sparse vector and bits of workers what they find on full vectors and masks."""
    entries, here, queue = zip(*drawn, strict=True)
    loads = [WorkerLoad(worker, waiting, 0, 0, 0, 0) for worker, waiting in enumerate(queue)]
    holds = data.draw(st.lists(st.booleans(), min_size=len(drawn), max_size=len(drawn)))
    sparse = Sparse(Map(), data.draw(small)).with_entries(enumerate(entries))
    full, there = ExactVector(entries), mask_of(here)
    credit = kernel.SparseCredit(sparse, there)
    due = kernel.refill_due(SPARSE, credit, there)
    assert bool(due) == kernel.refill_due(EXACT, full, ExactVector(here))
    expected = kernel.choose(EXACT, full, ExactVector(here), ExactVector(holds), ExactVector(queue))
    waiting = kernel.QueueLengths(loads, attrgetter("waiting_requests"))
    assert kernel.choose(SPARSE, credit, there, mask_of(holds), waiting) == expected


def mask_of(truths: Iterable[bool]) -> int:
    """The bits of what is true."""
    return sum(1 << i for i, true in enumerate(truths) if true)


# --- as printed -------------------------------------------------------------------------------------------------------


class PseudoCode:
    """D2LPM as the paper has it (reconstructed), by hand: lists and dicts, nothing of the library.

    A node of the tree is `{"workers": set, "children": {token: node}}`; `credit[client][worker]` begins at 0.
    """

    def __init__(self, workers: int, quantum: int, extend_cost: int, output_cost: int) -> None:
        self.workers, self.quantum = workers, quantum
        self.extend_cost, self.output_cost = extend_cost, output_cost
        self.tree: dict[str, Any] = {"workers": set(), "children": {}}
        self.credit: dict[int, list[int]] = {}

    def arrives(self, client: int, tokens: list[int], queues: list[int]) -> int:
        """Dispatch a request of which the last token is shared with no other."""
        path = self._path(tokens)
        matched = [sum(worker in node["workers"] for node in path) for worker in range(self.workers)]
        credit = self.credit.setdefault(client, [0] * self.workers)
        if all(each <= 0 for each in credit):
            for worker in range(self.workers):
                credit[worker] += self.quantum
        candidates = [w for w in range(self.workers) if matched[w] == max(matched) and credit[w] > 0]
        if not candidates:
            candidates = [w for w in range(self.workers) if credit[w] > 0]
        if not candidates:  # the paper does not say
            candidates = list(range(self.workers))
        chosen = candidates[0]
        for worker in candidates:
            if queues[worker] < queues[chosen]:
                chosen = worker
        credit[chosen] -= self.extend_cost * (len(tokens) + 1 - matched[chosen])
        node = self.tree
        for token in tokens:
            node = node["children"].setdefault(token, {"workers": set(), "children": {}})
            node["workers"].add(chosen)
        return chosen

    def finishes(self, client: int, worker: int, output_tokens: int) -> None:
        self.credit[client][worker] -= self.output_cost * output_tokens

    def evicts(self, worker: int, tokens: list[int], keep: int) -> None:
        """The worker has dropped what follows the first `keep` of these tokens."""
        path = self._path(tokens[: keep + 1])
        below = path[keep:]
        while below:
            node = below.pop()
            node["workers"].discard(worker)
            below += node["children"].values()

    def _path(self, tokens: list[int]) -> list[dict[str, Any]]:
        found, node = [], self.tree
        for token in tokens:
            if token not in node["children"]:
                break
            node = node["children"][token]
            found.append(node)
        return found


STATES, A_WORLD = 10_000, 40


def test_the_printed_algorithm_step_by_step() -> None:
    """In 10,000 drawn states `d2lpm-printed` and the paper's pseudo-code by hand choose the same worker, and agree on
    every deficit after each arrival, end and eviction.  Every branch is taken many times."""
    random, branches = Random(14), Counter[str]()
    for _ in range(STATES // A_WORLD):
        workers, quantum = random.randint(1, 5), random.randint(1, 25)
        input_rate, output_rate = random.randint(1, 2), random.randint(1, 3)
        router = D2LPMPrinted(quantum=quantum, input_rate=input_rate, output_rate=output_rate)
        paper = PseudoCode(workers, quantum, input_rate, output_rate)
        state, under_way = router.init(), list[tuple[int, int, int]]()
        for i in range(A_WORLD):
            client, tokens = random.randrange(3), random.choices((0, 1), k=random.randrange(6))
            queues = [random.randrange(4) for _ in range(workers)]
            before = list(paper.credit.get(client, [0] * workers))
            dispatch, state = router.route(state, request(i, tokens, client=client), view_of(*queues))
            assert dispatch.worker == paper.arrives(client, tokens, queues)
            under_way.append((i, client, dispatch.worker))
            branches["no refill" if max(before) > 0 else "enough" if max(before) + quantum > 0 else "too little"] += 1
            branches["with credit" if before[dispatch.worker] > 0 else "without"] += 1
            if random.random() < 0.6:
                ended, owner, worker = under_way.pop(random.randrange(len(under_way)))
                output = random.randint(1, 12)
                paper.finishes(owner, worker, output)
                state = router.observe(state, Finished(0, worker, ended, owner, output))
            if random.random() < 0.3:
                worker, gone = random.randrange(workers), random.choices((0, 1), k=random.randint(1, 4))
                keep = random.randrange(len(gone))
                paper.evicts(worker, gone, keep)
                state = router.observe(state, Evicted(0, worker, 0, Prompt.from_keys(gone), keep, 1))
            for one, credit in paper.credit.items():
                assert [state.accounts[one].deficits.get(w, quantum) for w in range(workers)] == credit
    assert sum(branches[each] for each in ("no refill", "enough", "too little")) == STATES
    assert min(branches.values()) > 100
