"""The registry of client names: each client is a dense number inside, and a name, a weight and groups at the edge.

Names come from callers, so only so many unknown ones (without a weight in the configuration) have a number of their
own.  The others share the name `overflow`.

Programs come and go, and clients stay: so a client has seats, which its programs take and leave (`ProgramSeats`).
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping

import attrs

from fairsched.model.request import Client, Groups

OTHERS = "others"
"""The usual name that unknown clients share."""
NAME_MAX = 256


SEAT = "/#"
"""Between the name of a client and the number of a seat, in the name of that seat."""


def client_name(said: object) -> str:
    """Return the name of a client in what a request says; empty for what is no name.

    >>> client_name(7), client_name(None)
    ('7', '')
    """
    # Half a surrogate pair, which JSON can say, could be written neither to a log nor to a scrape.
    return str(said)[:NAME_MAX].encode("utf-8", "replace").decode() if isinstance(said, str | int) else ""


class ClientRegistry:
    """Clients by name and by number.

    `weights` are those of configured clients, `known` are clients that have numbers already, and at most
    `unknown_max` others get one (None: any number).
    """

    def __init__(
        self,
        weights: Mapping[str, int] | None = None,
        *,
        known: Iterable[Client] = (),
        unknown_max: int | None = None,
        overflow: str = OTHERS,
    ) -> None:
        self.all: list[Client] = []
        self.unknown_max = unknown_max
        self._overflow = overflow
        self._ids: dict[str, int] = {}
        self._weights: dict[str, int] = {}
        self._unknown = 0
        for client in known:
            self.put(client)
        if weights is not None:
            self.configure(weights)

    def __contains__(self, name: object) -> bool:
        return name in self._ids

    def __getitem__(self, name: str) -> Client:
        return self.all[self._ids[name]]

    def put(self, client: Client) -> None:
        """Add the client with the next number, or change one; raises `ValueError` for any other number or name."""
        known = self._ids.get(client.name, len(self.all))
        if client.id != known:
            raise ValueError(f"client {client.name!r} has number {known}, not {client.id}")
        self._unknown += client.name not in self._ids and self._is_unknown(client.name)
        self._ids[client.name] = client.id
        self.all[client.id : client.id + 1] = [client]

    def changed(self, name: str, weight: int, groups: Groups = ()) -> Client:
        """Return the client of that name as it will be; a new one has the next number."""
        if name in self._ids:
            return self[name].changed(weight, groups)
        return Client(len(self.all), name, weight, groups)

    def resolve(self, name: str) -> tuple[Client, bool]:
        """Return the client of that name, or the one of `overflow`, and whether it is new."""
        if name in self._ids:
            return self[name], False
        full = self.unknown_max is not None and self._unknown >= self.unknown_max
        if not name or (full and self._is_unknown(name)):
            return self.resolve(self._overflow)
        client = Client(len(self.all), name, self._weights.get(name, 1))
        self.put(client)
        return client, True

    def configure(self, weights: Mapping[str, int]) -> list[Client]:
        """Set the weights; a client without one has 1.  Returns the clients that changed, or came with a weight."""
        self._weights = dict(weights)
        self._unknown = sum(map(self._is_unknown, self._ids))
        changed = []
        for client in self.all:
            weight = weights.get(client.name, 1)
            if client.weight != weight:
                changed.append(client.changed(weight))
                self.put(changed[-1])
        fresh = [self.resolve(name)[0] for name in weights if name not in self._ids]
        return changed + [client for client in fresh if client.weight != 1]

    def _is_unknown(self, name: str) -> bool:
        return name not in self._weights and name != self._overflow


# --- programs ---------------------------------------------------------------------------------------------------------


@attrs.define
class _Seats:
    """A client's seats: how many programs have each, which are free (the longest free first), and what programs have:
    a seat, calls under way, and since when there are none."""

    programs: list[int] = attrs.field(factory=list)
    free: deque[int] = attrs.field(factory=deque)
    seat: dict[str, int] = attrs.field(factory=dict)
    calls: dict[str, int] = attrs.field(factory=dict)
    idle: OrderedDict[str, int] = attrs.field(factory=OrderedDict)

    def leave(self, program: str) -> None:
        """End the program."""
        seat = self.seat.pop(program)
        del self.calls[program]
        self.programs[seat] -= 1
        if not self.programs[seat]:
            self.free.append(seat)


class ProgramSeats:
    """Which seat below its client each program has.

    A seat is an account: a client of the gate, in the group of the client whose programs take it.  A program takes the
    seat that has been free for longest, a new one if none is, and shares the one with the fewest programs once the
    client has `seats_max`.  It leaves the seat when no call of it was under way for `idle_ns`, or for longest of more
    than `seats_max` programs without one.  What was charged to a seat stays with it: the next program of the client
    pays what the last one owes, at most U - 1, so programs one after the other gain no more than one, and a gate's
    state is as large as the most programs that a client ever had at once.
    """

    def __init__(self, seats_max: int, idle_ns: int) -> None:
        if seats_max < 1 or idle_ns < 0:
            raise ValueError(f"a client has at least 1 seat, idle for at least 0 ns, not {seats_max} and {idle_ns}")
        self.seats_max = seats_max
        self.idle_ns = idle_ns
        self._clients: dict[str, _Seats] = {}

    def begin(self, client: str, program: str, now_ns: int) -> int:
        """Return the number of the seat for a call that begins now; numbers of a client are 0, 1, 2, ...  O(1), and
        O(seats) where seats are shared."""
        seats = self._clients.setdefault(client, _Seats())
        while seats.idle and (
            next(iter(seats.idle.values())) + self.idle_ns <= now_ns or len(seats.idle) > self.seats_max
        ):
            over, _ = seats.idle.popitem(last=False)
            seats.leave(over)
        seats.idle.pop(program, None)
        if program not in seats.seat:
            seats.seat[program] = self._taken(seats)
            seats.calls[program] = 0
            seats.programs[seats.seat[program]] += 1
        seats.calls[program] += 1
        return seats.seat[program]

    def _taken(self, seats: _Seats) -> int:
        if seats.free:
            return seats.free.popleft()
        if len(seats.programs) < self.seats_max:
            seats.programs.append(0)
            return len(seats.programs) - 1
        return min(range(len(seats.programs)), key=seats.programs.__getitem__)

    def made(self, client: str) -> int:
        """Return how many seats a client has."""
        return len(self._clients[client].programs) if client in self._clients else 0

    def end(self, client: str, program: str, now_ns: int) -> None:
        """End a call that has begun; times do not run backwards."""
        seats = self._clients[client]
        seats.calls[program] -= 1
        if not seats.calls[program]:
            seats.idle[program] = now_ns

    def check(self) -> None:
        """Raise `AssertionError` unless every representation invariant holds."""
        for seats in self._clients.values():
            counts = [0] * len(seats.programs)
            for seat in seats.seat.values():
                counts[seat] += 1
            # Every program has a seat; a seat is free if no program has it.
            assert counts == seats.programs
            assert sorted(seats.free) == [seat for seat, count in enumerate(counts) if not count]
            # A program without a call under way is idle, the longest idle first.
            assert set(seats.idle) == {program for program, calls in seats.calls.items() if not calls}
            assert list(seats.idle.values()) == sorted(seats.idle.values())
            assert set(seats.calls) == set(seats.seat)
            assert len(seats.programs) <= self.seats_max
