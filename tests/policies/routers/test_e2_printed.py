"""Algorithms 1 and 2 of Preble, written down by hand over plain dictionaries, against `e2-printed` step by step.

The pseudo-code shares nothing with the router but the latency model.  Sequences of requests, reports and ends are drawn
and both are driven over them; before each request all costs are compared, and after it the decision.
"""

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import attrs
import numpy as np

from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.model.events import Cached, Cancelled, Evicted, Finished
from fairsched.model.machine import DecodePiece, LatencyModel
from fairsched.policies.routers.e2 import E2Printed, E2State
from tests.support.clusters import Keys, request

STATES = 10_000
REQUESTS = 50
"""Of one sequence."""
H_NS, PRIOR, TH, IMBALR = 12_000, 3, Fraction(3, 2), Fraction(7, 10)
WORKERS, CAPACITY = 3, 14
MODEL = LatencyModel("test", "ours", 7, 30, 20_000, (DecodePiece(1, 20, 2, 5),), 1 << 20)


@attrs.define
class Sent:
    """A request as the pseudo-code remembers it."""

    id: int
    worker: int
    at_ns: int
    keys: Keys
    missed: int
    prefill_ns: int
    output: int | None = None
    open: bool = True


@attrs.define
class PseudoCode:
    """The two algorithms.  A prefix is the tuple of its keys, and a worker caches a set of prefixes.

    `used[i][p]` is the number of worker i's last access to p or to anything below, `ended[i]` the same where an access
    ended, as long as none went further.  Nodes of the radix tree are not kept, but cut out of the prefixes when needed.
    """

    now_ns: int = 0
    accesses: int = 0
    requests: list[Sent] = attrs.Factory(list)
    used: list[dict[Keys, int]] = attrs.Factory(lambda: [{} for _ in range(WORKERS)])
    ended: list[dict[Keys, int]] = attrs.Factory(lambda: [{} for _ in range(WORKERS)])

    def window(self) -> list[Sent]:
        """The requests of the last H."""
        return [r for r in self.requests if r.at_ns > self.now_ns - H_NS]

    # --- algorithm 1 ---

    def schedule(self, keys: Keys) -> tuple[int, str]:
        """Where a prompt of these keys and a token of its own goes, and by which line."""
        path = self.path(keys)
        cached = sum(map(len, path))
        missed = len(keys) + 1 - cached
        if missed < cached:
            longest = max(map(len, path))
            end = max(sum(map(len, path[: i + 1])) for i, part in enumerate(path) if len(part) == longest)
            holders = [i for i in range(WORKERS) if keys[:end] in self.used[i]]
            if holders:
                target = min(holders, key=lambda i: (self.cost(i, keys), i))
                # Section 3.3: what the heaviest worker's prefixes bring goes to the lightest.
                loads = [self.load(i) for i in range(WORKERS)]
                if max(loads) > TH * min(loads) and target == loads.index(max(loads)):
                    return loads.index(min(loads)), "rebalance"
                return target, "exploit"
        ratios = [self.decode_ratio(i) for i in range(WORKERS)]
        if max(ratios) > IMBALR:
            return ratios.index(max(ratios)), "decode-heavy"
        return min(range(WORKERS), key=lambda i: (self.cost(i, keys), i)), "explore"

    # --- algorithm 2 ---

    def cost(self, i: int, keys: Keys) -> int:
        return self.load(i) + self.eviction(i, keys) + self.prefill(i, keys)

    def parts(self, i: int) -> tuple[int, int]:
        """What prefill and decoding of the window's requests on a worker cost."""
        there = [r for r in self.window() if r.worker == i]
        outputs = [r.output for r in there if r.output is not None] or [PRIOR]
        average = Fraction(sum(outputs), len(outputs))
        decoding = sum(average * MODEL.decode_ns(1, len(r.keys) + 1) for r in there)
        return sum(r.prefill_ns for r in there), int(decoding)

    def load(self, i: int) -> int:
        return sum(self.parts(i))

    def decode_ratio(self, i: int) -> Fraction:
        prefill, decoding = self.parts(i)
        return Fraction(decoding, prefill + decoding) if decoding else Fraction(0)

    def prefill(self, i: int, keys: Keys) -> int:
        cached = self.resident(i, keys)
        return MODEL.step_ns([(len(keys) + 1 - cached, cached)], 0, 0)

    def eviction(self, i: int, keys: Keys) -> int:
        room = max(CAPACITY - len(self.used[i]), 0)
        resident = self.resident(i, keys)
        needed = len(keys) + 1 - resident - room
        if needed <= 0:
            return 0
        used = self.node_of(i, keys[:resident], self.node_ends()) if resident else ()
        evicted = self.victims(i, needed, spared=used)
        window = self.window()
        total = 0
        for node, lost in evicted.items():
            sharing = sum(r.keys[: len(node)] == node for r in window)
            total += MODEL.step_ns([(lost, len(node) - lost)], 0, 0) * sharing
        return total // max(len(window), 1)

    # --- the tree ---

    def resident(self, i: int, keys: Keys) -> int:
        return max(n for n in range(len(keys) + 1) if not n or keys[:n] in self.used[i])

    def known(self) -> set[Keys]:
        """Prefixes that a worker caches, or that a request of the window had."""
        hit = {r.keys[:n] for r in self.window() for n in range(1, len(r.keys) + 1)}
        return hit.union(*self.used)

    def path(self, keys: Keys) -> list[Keys]:
        """What the tree matches of the keys, cut where nodes end; the last may be a part of a node."""
        known, ends = self.known(), self.node_ends()
        parts, start = [], 0
        for n in range(1, len(keys) + 1):
            if keys[:n] not in known:
                break
            last = n == len(keys) or keys[: n + 1] not in known
            if last or keys[:n] in ends:
                parts.append(keys[start:n])
                start = n
        return parts

    def node_ends(self) -> set[Keys]:
        """Prefixes with which a node ends: something parts there, other workers hold on, or an access ended there."""
        known = self.known()
        children = Counter(p[:-1] for p in known)
        holders = {p: [p in used for used in self.used] for p in known}
        ends = {p for p in known if children[p] != 1}
        ends |= {p[:-1] for p in known if len(p) > 1 and holders[p] != holders[p[:-1]]}
        return ends.union((r.keys for r in self.window() if r.keys), *self.ended)

    def node_of(self, i: int, prefix: Keys, ends: set[Keys]) -> Keys:
        """The node, of those that end so, that has the last block of a prefix that the worker caches."""
        return min((p for p in ends if p[: len(prefix)] == prefix and p in self.used[i]), key=len)

    def victims(self, i: int, tokens: int, spared: Keys = ()) -> dict[Keys, int]:
        """What the worker evicts for so many tokens, the block used longest ago first: tokens lost of each node.

        The node that a request uses stays for it.
        """
        left, lost = dict(self.used[i]), Counter[Keys]()
        if tokens <= 0:
            return lost
        ends = self.node_ends()
        while tokens > 0:
            leaves = left.keys() - {p[:-1] for p in left} - {spared}
            if not leaves:
                break
            leaf = min(leaves, key=left.__getitem__)
            del left[leaf]
            lost[self.node_of(i, leaf, ends)] += 1
            tokens -= 1
        return lost

    def access(self, i: int, keys: Keys) -> None:
        self.accesses += 1
        for n in range(1, len(keys) + 1):
            self.used[i][keys[:n]] = self.accesses
            self.ended[i].pop(keys[:n], None)
        if keys:
            self.ended[i][keys] = self.accesses

    def forget(self, i: int, gone: Keys) -> None:
        """The worker caches nothing any more that begins so; what was last used there, what is left hands on."""
        if gone not in self.used[i]:
            return
        below = [p for p in self.used[i] if p[: len(gone)] == gone]
        handed = [self.ended[i].pop(p) for p in below if p in self.ended[i]]
        for p in below:
            del self.used[i][p]
        if len(gone) > 1:
            self.ended[i][gone[:-1]] = max(handed + [self.ended[i].get(gone[:-1], 0)])

    def sent(self, number: int, worker: int, keys: Keys) -> None:
        """A request goes to a worker, which will cache its prompt and at most what fits beside those on their way."""
        cached = self.resident(worker, keys)
        missed = len(keys) + 1 - cached
        prefill_ns = self.prefill(worker, keys)
        self.access(worker, keys)
        self.requests.append(Sent(number, worker, self.now_ns, keys, missed, prefill_ns))
        on_their_way = sum(r.missed for r in self.requests if r.open and r.worker == worker)
        for node, lost in self.victims(worker, len(self.used[worker]) - CAPACITY - on_their_way).items():
            self.forget(worker, node[: len(node) - lost + 1])


def driven(seed: int) -> Iterator[tuple[str, Any, Any]]:
    """A drawn sequence: what the router and the pseudo-code say of each request, by what is compared."""
    rng = np.random.default_rng(seed)
    router = E2Printed(window_us=H_NS // 1_000, latency=MODEL, prior_output_tokens=PRIOR, scaling="off")
    state, pseudo = router.init(), PseudoCode()
    view = tuple(WorkerLoad(i, 0, 0, 0, CAPACITY, CAPACITY) for i in range(WORKERS))
    output = int(rng.choice([2, 9, 40]))
    for number in range(REQUESTS):
        pseudo.now_ns += int(rng.integers(H_NS // 12, H_NS // 3))
        keys = tuple(rng.choice([0, 0, 0, 1], size=rng.integers(0, 9)).tolist())
        asked = request(number, keys, pseudo.now_ns)
        # The costs of the moment: without what the router takes out of the window before it decides.
        index, history = state.index.advance(pseudo.now_ns), state.history.expired(pseudo.now_ns - H_NS)[0]
        now, match = E2State(index, history), index.match(asked.prompt)
        case = router.case(now, asked.prompt, match, view)
        for i in range(WORKERS):
            found = case.loads[i], case.eviction(i), case.prefill(i)
            yield "costs", found, (pseudo.load(i), pseudo.eviction(i, keys), pseudo.prefill(i, keys))
        choice = router.choose(now, asked.prompt, match, view)
        yield "decision", (choice.worker, choice.why), pseudo.schedule(keys)
        dispatch, state = router.route(state, asked, ClusterView(pseudo.now_ns, view))
        yield "dispatch", dispatch.worker, choice.worker
        pseudo.sent(number, choice.worker, keys)
        for sent in pseudo.requests:
            if sent.open and rng.random() < 0.3:
                sent.open = False
                worker, prompt = sent.worker, request(sent.id, sent.keys).prompt
                if rng.random() < 0.2:
                    state = router.observe(state, Cancelled(pseudo.now_ns, worker, sent.id, 0, False, 0, 0))
                    continue
                sent.output = int(rng.integers(1, output + 1))
                state = router.observe(state, Finished(pseudo.now_ns, worker, sent.id, 0, sent.output))
                if rng.random() < 0.3:
                    state = router.observe(state, Cached(pseudo.now_ns, worker, sent.id, prompt, prompt.blocks))
                    if sent.keys and sent.keys not in pseudo.used[worker]:
                        pseudo.access(worker, sent.keys)
        if rng.random() < 0.5:
            lost, worker = pseudo.requests[rng.integers(len(pseudo.requests))], int(rng.integers(WORKERS))
            keep, prompt = int(rng.integers(0, len(lost.keys) + 1)), request(lost.id, lost.keys).prompt
            state = router.observe(state, Evicted(pseudo.now_ns, worker, lost.id, prompt, keep, 0))
            if keep < len(lost.keys):
                pseudo.forget(worker, lost.keys[: keep + 1])
    router.check(state)


def test_e2_printed_is_as_printed() -> None:
    """In 10,000 drawn states every cost and every decision is that of the algorithms as printed."""
    lines = Counter[str]()
    priced = 0
    for seed in range(STATES // REQUESTS):
        for what, found, printed in driven(seed):
            assert found == printed, (seed, what, lines)
            if what == "costs":
                priced += found[1] > 0
            elif what == "decision":
                lines[found[1]] += 1
    # No line of the algorithms is there for nothing.
    assert sum(lines.values()) == STATES
    assert min(lines[line] for line in ("exploit", "explore", "rebalance", "decode-heavy")) > STATES // 50, lines
    assert priced > STATES // 5
