"""DLPM's algorithm 1, written down by hand over lists, against `dlpm-printed` step by step."""

from collections import Counter
from random import Random

import attrs

from fairsched.model.pricing import Rates
from fairsched.model.request import Request
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPMPrinted
from fairsched.policies.gates import PrintedDeficitGate
from fairsched.verify.conformance import WorkerPlay, admitted
from tests.support.clusters import Keys, prompt_of

STEPS, A_WORLD, CLIENTS = 10_000, 40, 3


@attrs.define
class Sent:
    """A request: its number, client, prompt (these keys and a token of its own) and output."""

    id: int
    client: int
    keys: Keys
    left: int


@attrs.define
class PseudoCode:
    """The algorithm (reconstructed from the paper's prose and from the lines that its proofs name), while memory holds
    all prefixes; the batch has room for so many requests."""

    quantum: int
    extend_cost: int
    output_cost: int
    room: int
    credit: list[int] = attrs.Factory(lambda: [0] * CLIENTS)
    queue: list[Sent] = attrs.Factory(list)
    batch: list[Sent] = attrs.Factory(list)
    tree: set[Keys] = attrs.Factory(set)
    lines: Counter[str] = attrs.Factory(Counter)

    def arrives(self, sent: Sent) -> None:
        if sent.client not in {other.client for other in self.queue}:
            self.lines["forgiven"] += self.credit[sent.client] < 0
            self.credit[sent.client] = 0
        self.queue.append(sent)

    def matched(self, keys: Keys) -> int:
        return max(n for n in range(len(keys) + 1) if not n or keys[:n] in self.tree)

    def refill(self) -> bool:
        """One round, if no client that waits or runs has credit; whether there was one."""
        active = {sent.client for sent in self.queue + self.batch}
        if not self.queue or any(self.credit[client] > 0 for client in active):
            return False
        for client in active:
            self.credit[client] += self.quantum
        return True

    def step(self) -> list[int]:
        """Return what is let in, in order."""
        while not self.batch and self.refill():
            # Nothing runs: the loop turns, and takes no time.
            self.lines["idle round"] += 1
        new = list[Sent]()
        while self.queue and len(self.batch) < self.room:
            in_order = sorted(self.queue, key=lambda sent: (-self.matched(sent.keys), sent.id))
            eligible = [sent for sent in in_order if self.credit[sent.client] > 0]
            if not eligible:
                break
            sent = eligible[0]
            self.lines["skips"] += sent is not in_order[0]
            self.queue.remove(sent)
            self.batch.append(sent)
            new.append(sent)
            self.credit[sent.client] -= self.extend_cost * (len(sent.keys) + 1 - self.matched(sent.keys))
        self.tree |= {sent.keys[:n] for sent in new for n in range(1, len(sent.keys) + 1)}
        for sent in self.batch:
            sent.left -= 1
            self.credit[sent.client] -= self.output_cost
        if self.refill():
            self.lines["round"] += 1
            self.lines["too little"] += not any(self.credit[sent.client] > 0 for sent in self.queue)
        elif self.queue and not any(self.credit[sent.client] > 0 for sent in self.queue):
            self.lines["held back"] += 1
        self.batch = [sent for sent in self.batch if sent.left]
        return [sent.id for sent in new]


def test_the_printed_algorithm_step_by_step() -> None:
    """In 10,000 steps of drawn worlds `dlpm-printed` and the pseudo-code by hand let in the same requests in the same
    order, and agree on every deficit.  Every line is taken many times."""
    random, lines = Random(7), Counter[str]()
    for _ in range(STEPS // A_WORLD):
        paper = PseudoCode(random.randint(1, 12), random.randint(1, 2), random.randint(1, 3), random.randint(1, 5))
        rates = Rates(paper.extend_cost, paper.output_cost)
        rule = Chunked(max_batched_tokens=1_000, max_running=paper.room, reserve="optimistic")
        policy = DLPMPrinted(gate=PrintedDeficitGate(rates, paper.quantum), batching=rule)
        play, came = WorkerPlay(policy, WorkerState(0, 10_000)), 0
        for now_ns in range(A_WORLD):
            for _ in range(random.choice((0, 0, 0, 1, 2))):
                keys = tuple(random.choices((0, 1), k=random.randrange(7)))
                sent = Sent(came, random.randrange(CLIENTS), keys, random.randint(1, 9))
                play.arrive(Request(came, sent.client, now_ns, prompt_of(keys), 9), sent.left, now_ns)
                paper.arrives(sent)
                came += 1
            assert admitted(play.step(now_ns)) == paper.step()
            kept = play.state.gate.q.tolist()
            assert kept == paper.credit[: len(kept)]
        lines += paper.lines
    assert min(lines[line] for line in ("forgiven", "idle round", "held back", "round", "too little", "skips")) > 100, (
        lines
    )
