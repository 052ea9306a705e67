"""The share of each client in the queue: of a queue that is too long the client that has most of it loses its newest.

A client's load is its calls that wait over its weight.  A queue that is one call too long loses the newest call of the
largest load; that may be the call that just came.  A client whose load is within its share, the queue's capacity over
the weights of the clients in it, is then neither refused nor loses a call: the loads in a queue that is too long are
above that share on average, so the largest is.  With organisations the same holds for them, then for their users, then
for clients.
"""

import heapq

import attrs

from fairsched.model.request import Client

_Name = str | int


@attrs.define
class _Node:
    """A client, or a group of some: its weight, its calls that wait, its members and those that changed since it was
    asked, in order, and the loads of members as they were at some time, the largest first."""

    weight: int = 1
    calls: int = 0
    members: dict[_Name, "_Node"] = attrs.field(factory=dict)
    changed: dict[_Name, None] = attrs.field(factory=dict)
    loads: list[tuple[int, int, _Name]] = attrs.field(factory=list)
    asked: int = 0

    @property
    def load(self) -> int:
        """Calls over weight, in a whole number that orders as they do for weights under 2^32."""
        return (self.calls << 64) // self.weight

    def largest(self) -> _Name:
        """Return the member with the largest load: of equal ones, the one that changed last."""
        for name in self.changed:
            if name in self.members:
                self.asked -= 1
                heapq.heappush(self.loads, (-self.members[name].load, self.asked, name))
        self.changed.clear()
        if len(self.loads) > 64 + 4 * len(self.members):
            self.loads = [(-each.load, 0, name) for name, each in self.members.items()]
            heapq.heapify(self.loads)
        while True:
            load, _, name = self.loads[0]
            member = self.members.get(name)
            if member is not None and -load == member.load:
                return name
            heapq.heappop(self.loads)


class QueueShare:
    """The calls that wait, by client.  O(levels) a change; the loser costs O(log clients) for each change since."""

    def __init__(self) -> None:
        self._root = _Node()
        self._paths: dict[int, tuple[_Name, ...]] = {}
        self._calls: dict[_Name, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._paths)

    def enter(self, client: Client, request_id: int) -> None:
        """Have one more call wait, with its client's weight and groups as they are now."""
        path: tuple[_Name, ...] = (*(name for name, _ in client.place), client.id)
        self._paths[request_id] = path
        self._calls.setdefault(client.id, {})[request_id] = None
        weights: tuple[int, ...] = (*(weight for _, weight in client.place), client.weight)
        self._count(path, 1, weights)

    def leave(self, request_id: int) -> None:
        """Have it wait no more, if it does."""
        path = self._paths.pop(request_id, None)
        if path is None:
            return
        calls = self._calls[path[-1]]
        del calls[request_id]
        if not calls:
            del self._calls[path[-1]]
        self._count(path, -1)

    def loser(self) -> int:
        """Return the call that goes when the queue is too long: of equal loads, that of the one that changed last."""
        node, name = self._root, self._root.largest()
        while (member := node.members[name]).members:
            node, name = member, member.largest()
        return next(reversed(self._calls[name]))

    def crowded(self) -> int | None:
        """Return the call that goes for a newcomer's connection: `loser`, if its client has several that wait."""
        found = self.loser() if self._paths else None
        return None if found is None or len(self._calls[self._paths[found][-1]]) < 2 else found

    def _count(self, path: tuple[_Name, ...], change: int, weights: tuple[int, ...] = ()) -> None:
        node = self._root
        for level, name in enumerate(path):
            member = node.members.setdefault(name, _Node())
            member.calls += change
            if weights:
                member.weight = weights[level]
            node.changed.pop(name, None)
            node.changed[name] = None
            if not member.calls:
                del node.members[name]
                return
            node = member
