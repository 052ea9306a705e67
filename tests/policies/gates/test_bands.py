"""Priority bands: the higher goes first, and each lower one has its share."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.algebra import NO_GROUP, NO_SCORE
from fairsched.model.pricing import Rates, price
from fairsched.model.serialization import to_json
from fairsched.policies.base import Limits
from fairsched.policies.gates import BandGate
from fairsched.policies.gates.bands import PERCENT

RATES = Rates(1, 2)
BANDS = "high:60,middle:30,low:10"


class World:
    """A gate in a world in which admissions are free of memory: what each band is charged, and which clients wait."""

    def __init__(self, gate: BandGate, bands: list[str]) -> None:
        self.gate = gate
        self.state = gate.init()
        self.waiting: dict[int, int] = {}
        self.charged = [0] * len(gate.shares)
        for client, band in enumerate(bands):
            groups = ((band, 1),) if band else ()
            self.state = gate.configured(self.state, client, 1, groups)

    @property
    def heads(self) -> Any:
        """The best score of each client: the older one goes first."""
        scores = np.full(len(self.state.band), NO_SCORE, np.int64)
        for client in self.waiting:
            scores[client] = -client
        return scores

    def arrive(self, client: int) -> None:
        """A request of the client comes."""
        self.state = self.gate.joined(self.state, client, self.heads, client in self.waiting)
        self.waiting[client] = self.waiting.get(client, 0) + 1
        self.gate.check(self.state)

    def _less(self, client: int) -> bool:
        self.waiting[client] -= 1
        if self.waiting[client]:
            return False
        del self.waiting[client]
        return True

    def admit(self, tokens: int) -> int:
        """The client that the gate lets in, which is the one that its kernels let in; NO_GROUP if none may go."""
        heads = self.heads
        turn = self.gate.begin(self.state, heads)
        client = turn.choose(heads)
        if client == NO_GROUP:
            assert not self.waiting
            return client
        emptied = self._less(client)
        turn.admit(client, tokens, tokens, emptied)
        self.state = self.gate.after(self.state, turn)
        self._count(client, price(tokens, RATES.input))
        self.gate.check(self.state)
        return client

    def decode(self, counts: dict[int, int]) -> None:
        """So many output tokens of each client."""
        self.state = self.gate.decoded(self.state, tuple(counts), tuple(counts.values()))
        for client, count in counts.items():
            self._count(client, price(count, RATES.output))
        self.gate.check(self.state)

    def _count(self, client: int, amount: int) -> None:
        self.charged[int(self.state.band[client])] += amount


def test_while_all_wait_each_band_has_its_share() -> None:
    """Of 3,000 units that three bands are charged, each of them always waiting, each has its share to within 30."""
    world = World(BandGate(RATES, 10, BANDS, 15), ["high", "middle", "low", "low"])
    while sum(world.charged) < 3_000:
        for client in range(4):
            while world.waiting.get(client, 0) < 2:
                world.arrive(client)
        client = world.admit(7)
        world.decode({client: 4})
    assert world.charged == pytest.approx([1_800, 900, 300], abs=30)


@pytest.mark.parametrize(
    ("waiting", "shares"), [((1, 2), [0, 90, 10]), ((0, 2), [90, 0, 10]), ((0, 1), [70, 30, 0]), ((2,), [0, 0, 100])]
)
def test_the_highest_that_waits_has_what_others_do_not_want(waiting: tuple[int, ...], shares: list[int]) -> None:
    """Per cent of the charge, by which bands wait: nothing is kept free for one that does not."""
    world = World(BandGate(RATES, 10, BANDS, 15), ["high", "middle", "low"])
    while sum(world.charged) < 2_000:
        for client in waiting:
            while world.waiting.get(client, 0) < 2:
                world.arrive(client)
        world.admit(7)
    assert [round(100 * charge / sum(world.charged)) for charge in world.charged] == shares


@given(st.lists(st.integers(0, 1), min_size=3, max_size=3), st.integers(0, 2))
def test_charges_count_as_the_band_that_waits_is_promised(waiting: list[int], band: int) -> None:
    """What BAND-late says of shares: those below a band that waits count at least its share, and it at most theirs; and
    a band above one that waits counts at least that one's share, and those below it at most the rest."""
    gate = BandGate(bands=BANDS)
    waiting[band] = 1
    parts, shares = gate.parts(np.array(waiting)), gate.shares.tolist()
    assert parts.of_own[band] >= shares[band]
    assert parts.of_lower[band] <= sum(shares[band + 1 :])
    for above in range(band):
        assert parts.of_lower[above] >= shares[band]
        assert parts.of_own[above] <= PERCENT - shares[band]


def test_a_request_waits_for_half_of_what_is_said_of_lower_bands() -> None:
    """On a worker of 5 tokens (U = 9) the lower of two equal bands is charged 17 while the higher one, of which 8 were
    in flight, waits with a request; BAND-late says 34."""
    gate = BandGate(RATES, 4, "high:50,low:50", kept=9)
    world = World(gate, ["high", "low"])
    for client in (0, 0, 1, 1, 1):
        world.arrive(client)
    assert world.admit(1) == 0
    world.decode({0: 4})
    for prompt, output in ((2, 3), (1, 4)):
        assert world.admit(prompt) == 1
        world.decode({1: output})
    assert world.admit(1) == 0
    assert (world.charged[1], gate.late_cost(0, 8, Limits(5, 4, 4, 5, True))) == (17, 34)


def test_the_higher_band_goes_first() -> None:
    """A request of a higher band that comes later goes before all of a lower one that is not behind."""
    world = World(BandGate(RATES, 10, BANDS, 0), ["low", "high"])
    for _ in range(3):
        world.arrive(0)
    world.arrive(1)
    assert [world.admit(5) for _ in range(5)] == [1, 0, 0, 0, NO_GROUP]


def test_a_client_let_in_past_others_is_asked_in_its_band() -> None:
    """Who learns of an admission, and not of those that were passed over, comes to the same state."""
    world = World(BandGate(RATES, 10, BANDS), ["high", "low"])
    for client in (0, 1):
        world.arrive(client)
    turn, told = (world.gate.begin(world.state, world.heads) for _ in range(2))
    assert turn.choose(world.heads) == told.choose(world.heads) == 0
    turn.skip(0)
    assert turn.choose(world.heads) == 1
    after = []
    for each in (turn, told):
        each.admit(1, 5, 5, True)
        after.append(to_json(world.gate.after(world.state, each)))
    assert after[0] == after[1]


def test_a_client_without_a_band_is_in_the_lowest() -> None:
    """So is one whose group is no band; and no client changes its band once it came."""
    world = World(BandGate(RATES, 10, BANDS), ["", "elsewhere", "middle"])
    assert world.state.band.tolist() == [2, 2, 1]
    world.arrive(0)
    with pytest.raises(ValueError, match="client 0 was served in band low before it was in high"):
        world.gate.configured(world.state, 0, 1, (("high", 1),))


@pytest.mark.parametrize("text", ["", "a", "a:50", "a:50,a:50", "a:0,b:100", "a:50,b:49", "a:-1,b:101", ":100"])
def test_bands_that_are_none_are_refused(text: str) -> None:
    """The error names the text."""
    with pytest.raises(ValueError, match="bands '"):
        BandGate(bands=text)
