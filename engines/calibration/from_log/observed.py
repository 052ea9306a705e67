"""What a log shows of a server: requests as columns, how many ran at once, and which stretches of the log are used."""

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.logs.access import UNKNOWN, AccessLog, Ending
from fairsched.engines.workloads import workload_of_columns
from fairsched.model.request import Client, Workload
from fairsched.model.service import Ints

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

STRETCHES = 4
"""A long log is looked at in so many places."""
MOSTLY = 90
"""So many per cent of what is judged in a stretch has ended when no more requests come."""


@attrs.frozen(eq=False)
class Observed:
    """Requests that had an output, in order of arrival; times in nanoseconds, from the first arrival.

    `worker` numbers the servers that the log names.  `prompt` is what had to be computed: what a cache held is left
    out.  `ttft` is `UNKNOWN` where the log has no first token.  `judged` says which requests count: those that
    finished, and began after the stretch's first moments.
    """

    arrival: Ints
    ttft: Ints
    latency: Ints
    prompt: Ints
    output: Ints
    client: Ints
    worker: Ints
    judged: Mask

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def streams(self) -> Mask:
        """Requests whose first token has a time."""
        found: Mask = self.ttft != UNKNOWN
        return found

    def of(self, kept: Mask | Ints) -> "Observed":
        return Observed(*(getattr(self, field.name)[kept] for field in attrs.fields(Observed)))

    def workload(self, weights: Mapping[int, int]) -> Workload:
        """Return the requests as a workload of clients with these weights (else 1): what the server saw."""
        known, client = np.unique(self.client, return_inverse=True)
        clients = tuple(Client(i, str(one), weights.get(one, 1)) for i, one in enumerate(known.tolist()))
        return workload_of_columns("log", clients, (client, self.arrival, self.prompt, self.output, self.output))


def observed(log: AccessLog) -> Observed:
    """Return the requests of a log that a server worked on.

    A request that ended early is load and is not judged.  A first token at the very end of a longer output is a time
    of an answer that did not stream, and is left out.
    """
    kept = np.flatnonzero((log.output > 0) & (log.prompt > 0))
    arrival, end, first, output = (c[kept] for c in (log.arrival_ns, log.end_ns, log.first_ns, log.output))
    told = (first != UNKNOWN) & ((first < end) | (output == 1)) & (log.streamed[kept] != 0)
    origin = int(arrival.min(initial=np.iinfo(np.int64).max)) if len(arrival) else 0
    found = Observed(
        arrival - origin,
        np.where(told, first - arrival, UNKNOWN),
        end - arrival,
        np.maximum(log.prompt[kept] - log.cached[kept], 1),
        output,
        log.client[kept],
        log.worker[kept],
        log.outcome[kept] == Ending.FINISHED,
    )
    return found.of(np.argsort(found.arrival, kind="stable"))


def halves(whole: Observed) -> tuple[Observed, Observed]:
    """Return the first and the second half of the requests, in order of arrival.

    What runs when the second half begins is its load, and what waits then is judged with it.
    """
    middle = len(whole) // 2
    second = stretch_from(whole, middle, len(whole))
    waiting = int(second.judged.sum()) - int(whole.judged[middle:].sum())
    first = whole.of(np.arange(middle))
    late = np.flatnonzero(first.judged & (first.arrival + first.latency > whole.arrival[middle]))
    first.judged[late[len(late) - waiting :]] = False
    return first, second


def stretch_from(whole: Observed, start: int, size: int) -> Observed:
    """Return so many requests in order of arrival, those that wait when the one at a place comes and those after it,
    beside all that run then.

    What runs has the rest of its output left and is not judged; what waits has its times from then.  Where no first
    token is known, one runs that came before another that does.  Later requests whose prompts were computed beside
    these are there, and not judged.
    """
    begin, end, places = whole.arrival[start], whole.arrival + whole.latency, np.arange(len(whole))
    found = whole.of(np.flatnonzero((end > begin) | (places >= start)))
    started = found.streams & (found.arrival + found.ttft <= begin) & (found.arrival < begin)
    order = np.arange(len(found))  # requests that waited at the middle of a log have come at one time
    before = (order <= order[started].max(initial=-1)) & (found.arrival < begin)
    running = np.where(found.streams, started, before)
    judged = ~running & (np.cumsum(~running) <= size)
    first = np.where(found.streams, found.arrival + found.ttft, np.iinfo(np.int64).max)
    # One long answer among them does not make the stretch as long.
    until = np.percentile((found.arrival + found.latency)[judged], MOSTLY) if judged.any() else 0
    kept = judged | running | (order <= order[first < until].max(initial=-1))
    found, running, judged = found.of(kept), running[kept], judged[kept]
    past = np.maximum(begin - found.arrival, 0)
    wait = np.where(found.streams, found.ttft, found.latency // 2)
    part = (found.latency - past) / np.maximum(found.latency - wait, 1)
    left = np.clip(np.ceil(found.output * part), 1, found.output).astype(np.int64)
    return attrs.evolve(
        found,
        arrival=found.arrival + past,
        ttft=np.where(found.streams, np.maximum(found.ttft - past, 1), UNKNOWN),
        latency=found.latency - past,
        prompt=np.where(running, 1, found.prompt),
        output=np.where(running, left, found.output),
        judged=found.judged & judged,
    )


def thinned(parts: Sequence[Observed], most: int) -> Observed:
    """Return at most about so many requests of these parts: stretches from quiet to busy, one after the other."""
    if sum(map(len, parts)) <= most:
        return joined(parts)
    size = most // STRETCHES
    places = [(part, at) for part in parts for at in range(0, max(len(part) - size, 1), max(size // 2, 1))]
    order = np.argsort([_busy(part, at, min(at + size, len(part))) for part, at in places], kind="stable").tolist()
    chosen: list[int] = []
    for share in np.linspace(0, 1, STRETCHES):
        middle = round(share * (len(order) - 1))
        for i in sorted(range(len(order)), key=lambda i: (abs(i - middle), i)):
            part, at = places[order[i]]
            if all(part is not places[each][0] or abs(at - places[each][1]) >= size for each in chosen):
                chosen.append(order[i])
                break
    return joined([stretch_from(*places[each], size) for each in sorted(chosen)])


def lanes(whole: Observed) -> list[Observed]:
    """Return what each worker had, where the log says which had a request, so that nothing has to be supposed of how
    requests were placed; all as one where a worker had but one."""
    found = [whole.of(whole.worker == worker) for worker in np.unique(whole.worker).tolist()]
    return found if min(map(len, found)) > 1 else [whole]


def _busy(half: Observed, start: int, stop: int) -> float:
    """Return how many requests are there at once, on average, in a range."""
    span = half.arrival[stop - 1] - half.arrival[start]
    return float(half.latency[start:stop].sum()) / max(float(span), 1.0)


def joined(pieces: Sequence[Observed]) -> Observed:
    """Return pieces as one, each after all of the one before it has ended: as if one worker had had all of it."""
    moved, now = [], 0
    for piece in pieces:
        moved.append(attrs.evolve(piece, arrival=piece.arrival - piece.arrival[0] + now))
        now = 2 * int((moved[-1].arrival + piece.latency).max()) - now
    return Observed(*(np.concatenate([getattr(m, f.name) for m in moved]) for f in attrs.fields(Observed)))


# --- what was there at once ---------------------------------------------------------------------------------------


@attrs.frozen
class Peaks:
    """The most that was there at once: requests with a first token and no end yet, and their KV in tokens.

    Where no first token is known these are all requests that had come: more than ran.
    """

    running: int
    kv_tokens: int


def peaks(seen: Observed) -> Peaks:
    """Return what the server had in hand at its busiest, of requests that stream."""
    some = seen.of(seen.streams)
    if not len(some):
        some = attrs.evolve(seen, ttft=np.zeros(len(seen), dtype=np.int64))
    first, end = some.arrival + some.ttft, some.arrival + some.latency
    # An end and a first token at one moment: the end comes first.
    times = np.concatenate([end, first])
    deltas = np.concatenate([-np.ones(len(end), dtype=np.int64), np.ones(len(first), dtype=np.int64)])
    order = np.lexsort([deltas, times])
    running = int(np.cumsum(deltas[order]).max())
    instants = np.unique(first)
    held = Amounts(some, some.prompt.astype(np.float64)).present(instants) + Amounts.growth(some, instants)
    largest = int((seen.prompt + seen.output).max())
    return Peaks(max(running, 1), max(int(held.max()), largest))


class Amounts:
    """An amount for each request that streams, which it has from its first token to its end."""

    def __init__(self, some: Observed, amounts: Floats) -> None:
        self._first, self._end = some.arrival + some.ttft, some.arrival + some.latency
        self._starts, self._ends = np.argsort(self._first), np.argsort(self._end)
        self._up = np.concatenate([[0.0], np.cumsum(amounts[self._starts])])
        self._down = np.concatenate([[0.0], np.cumsum(amounts[self._ends])])

    def present(self, at: Ints) -> Floats:
        """Return the sum of those that are there at each time."""
        ended: Floats = self._down[np.searchsorted(self._end[self._ends], at, side="right")]
        return self.started(at) - ended

    def started(self, at: Ints) -> Floats:
        """Return the sum of those whose first token was out by each time."""
        found: Floats = self._up[np.searchsorted(self._first[self._starts], at, side="right")]
        return found

    @staticmethod
    def growth(some: Observed, at: Ints) -> Floats:
        """Return the output tokens so far of those that are there at each time, as if they came evenly."""
        first = (some.arrival + some.ttft).astype(np.float64)
        rate = (some.output - 1) / np.maximum(some.latency - some.ttft, 1)
        speed = Amounts(some, rate).present(at)
        return Amounts(some, np.ones(len(some))).present(at) + speed * at - Amounts(some, rate * first).present(at)


def produced(some: Observed, weights: Floats, at: Ints) -> Floats:
    """Return the weighted output tokens, beyond first ones, that came until each time, as if each came evenly."""
    first, end = (some.arrival + some.ttft).astype(np.float64), (some.arrival + some.latency).astype(np.float64)
    total = weights * (some.output - 1)
    rate = total / np.maximum(end - first, 1)
    going = Amounts(some, rate)
    so_far = going.present(at) * at - Amounts(some, rate * first).present(at)
    done = Amounts(some, total)
    return so_far + done.started(at) - done.present(at)
