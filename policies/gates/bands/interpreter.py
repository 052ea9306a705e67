"""The gate of bands read a second time: its kernels, and the deficit gate's in each band, on Python's own integers."""

from collections.abc import Collection, Iterable, Mapping

from fairsched.model.algebra import NO_GROUP, ExactVector
from fairsched.model.pricing import price
from fairsched.model.request import Groups
from fairsched.policies.gates.authoring import Kernel
from fairsched.policies.gates.bands.gate import PERCENT, BandGate, charged, choose, refunded
from fairsched.policies.gates.interpreters import GateInterpreter, interpreter


class Bands(GateInterpreter):
    """A lag a band, the band of each client, which clients wait, and in each band the deficits of its clients."""

    def __init__(self, gate: BandGate) -> None:
        self.gate = gate
        self.names = gate.names
        self.shares = gate.shares.tolist()
        self.rank = ExactVector([-place for place in range(len(self.shares))])
        self.floor = ExactVector([PERCENT * gate.kept for _ in self.shares])
        self.lag = ExactVector([0] * len(self.shares))
        self.band: dict[int, int] = {}
        self.waiting: set[int] = set()
        self.inside = [self._deficits() for _ in self.shares]

    def _deficits(self) -> GateInterpreter:
        found = interpreter(self.gate.inner)
        assert found is not None
        return found

    def of(self, client: int) -> int:
        """The client's band, the lowest unless it was said."""
        return self.band.get(client, len(self.shares) - 1)

    def waits(self) -> ExactVector:
        """How many clients wait in each band."""
        return ExactVector([sum(self.of(client) == band for client in self.waiting) for band in range(len(self.lag))])

    def _seen(self) -> dict[str, ExactVector]:
        """Which bands wait, and which of them have none below that waits."""
        waits = self.waits()
        return {
            "waiting": ExactVector([count > 0 for count in waits]),
            "alone": ExactVector([not sum(waits[place + 1 :]) for place in range(len(waits))]),
        }

    def _count(self, kernel: Kernel, amounts: Mapping[int, int]) -> None:
        """Let a kernel count what bands are charged, or given back."""
        waits, gains, costs = self.waits(), [], []
        for place, share in enumerate(self.shares):
            lower = range(place + 1, len(self.shares))
            theirs = sum(self.shares[band] for band in lower if waits[band])
            own = share if any(waits[:place]) else PERCENT - theirs
            gains.append(theirs * amounts.get(place, 0))
            costs.append(own * sum(amounts.get(band, 0) for band in lower))
        gain, cost = ExactVector(gains), ExactVector(costs)
        self.lag = self.call(kernel, **self._seen(), gain=gain, cost=cost)

    def joined(self, client: int, waiting: Collection[int]) -> None:
        self.inside[self.of(client)].joined(client, waiting)
        self.waiting.add(client)

    def left(self, client: int) -> None:
        self.waiting.discard(client)

    def choose(self, client: int, waiting: Collection[int], skips: bool) -> int:
        own = self.of(client)
        # Where requests may be passed over, those of all other bands may have been.
        ready = ExactVector([not skips or band == own for band in range(len(self.lag))])
        chosen = self.call(choose, **self._seen(), ready=ready)
        there = sorted(each for each in waiting if self.of(each) == chosen)
        if chosen != own:
            return there[0] if there else NO_GROUP
        return self.inside[own].choose(client, there, skips)

    def admitted(self, client: int, tokens: int, waiting: Collection[int], emptied: bool, kv_tokens: int) -> None:
        self.inside[self.of(client)].admitted(client, tokens, waiting, emptied, kv_tokens)
        self._count(charged, {self.of(client): price(tokens, self.gate.rates.input)})
        if emptied:
            self.waiting.discard(client)

    def decoded(self, clients: Iterable[int], tokens: Iterable[int]) -> None:
        amounts: dict[int, int] = {}
        for client, count in zip(clients, tokens, strict=True):
            own = self.of(client)
            self.inside[own].decoded([client], [count])
            amounts[own] = amounts.get(own, 0) + price(count, self.gate.rates.output)
        self._count(charged, amounts)

    def settled(self, client: int, tokens: int, waiting: Collection[int]) -> None:
        own = self.of(client)
        self.inside[own].settled(client, tokens, waiting)
        amounts = {own: price(abs(tokens), self.gate.rates.input)}
        self._count(charged if tokens >= 0 else refunded, amounts)

    def configured(self, client: int, weight: int, groups: Groups) -> None:
        if groups and groups[0][0] in self.names:
            self.band[client] = self.names.index(groups[0][0])
        self.inside[self.of(client)].configured(client, weight, groups)


interpreter.register(BandGate, Bands)
