"""D2-impossible: with immediate dispatch, no migration and no idling, clients backlogged somewhere drift apart.

Three workers serve one unit a step, one request at a time.  The policy draws where a request goes (an idle worker, if
there is one) and whom a worker serves next; the adversary chooses lengths after the dispatch.
"""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

LONG = 20
F, G = "f", "g"


class Cluster:
    """Three workers: the queue of each, its request under way, and who was served how much."""

    def __init__(self, draw: random.Random, prefer: str | None) -> None:
        self.draw, self.prefer = draw, prefer
        self.queues: list[list[tuple[str, int]]] = [[], [], []]
        self.running: list[tuple[str, int] | None] = [None] * 3
        self.served: Counter[str] = Counter()

    def idle(self) -> list[int]:
        """Workers with nothing to do."""
        return [w for w in range(3) if self.running[w] is None and not self.queues[w]]

    def send(self, client: str, length: int) -> int:
        """Dispatch at once: to an idle worker if there is one, else anywhere."""
        worker = self.draw.choice(self.idle() or [0, 1, 2])
        self.queues[worker].append((client, length))
        return worker

    def waits(self, client: str) -> bool:
        """Whether a request of the client is queued somewhere."""
        return any(client == who for queue in self.queues for who, _ in queue)

    def step(self) -> None:
        """Every worker with something to do serves one unit; a policy may always prefer one client."""
        for worker, queue in enumerate(self.queues):
            current = self.running[worker]
            if current is None and queue:
                wanted = [each for each in queue if each[0] == self.prefer] or queue
                current = self.draw.choice(wanted)
                queue.remove(current)
            if current is not None:
                client, left = current
                self.served[client] += 1
                self.running[worker] = (client, left - 1) if left > 1 else None


@given(st.integers(0, 10_000), st.sampled_from([None, F, G]), st.integers(200, 600))
def test_the_gap_grows_without_bound(seed: int, prefer: str | None, steps: int) -> None:
    """Whatever the policy draws, even always serving f first: g gains about one worker's service on f, for ever, while
    both wait somewhere."""
    cluster = Cluster(random.Random(seed), prefer)
    placed = [(cluster.send(F, 0), i) for i in range(3 * steps)]
    home = Counter(worker for worker, _ in placed).most_common(1)[0][0]
    # Lengths are chosen now: long where f has most, one unit elsewhere.
    cluster.queues = [
        [(who, LONG if worker == home else 1) for who, _ in queue] for worker, queue in enumerate(cluster.queues)
    ]
    while any(who == F for worker in range(3) if worker != home for who, _ in cluster.queues[worker]):
        cluster.step()
    before = Counter(cluster.served)
    for _ in range(steps):
        while cluster.idle():
            cluster.send(G, LONG)
        if not cluster.waits(G):
            cluster.send(G, LONG)
        assert cluster.waits(F)
        assert cluster.waits(G)
        cluster.step()
    gained = cluster.served - before
    assert gained[G] - gained[F] >= steps - 2 * LONG
