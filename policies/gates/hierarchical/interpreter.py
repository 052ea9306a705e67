"""The hierarchical gate read a second time: the deficit gate's kernels among the children of every node, on Python's
own integers."""

from collections.abc import Collection, Iterable

from fairsched.model.algebra import NO_GROUP, ExactVector
from fairsched.model.pricing import price
from fairsched.model.request import Groups
from fairsched.policies.gates.authoring import Kernel
from fairsched.policies.gates.deficit import decode, reconfigure
from fairsched.policies.gates.hierarchical.gate import HierarchicalGate, admit, choose, refund
from fairsched.policies.gates.interpreters import GateInterpreter, interpreter, refilled

_Node = int | tuple[str, ...]
"""A client, or the names on the path to a group; () is the root."""


class TreeOfDeficits(GateInterpreter):
    """The hierarchical gate: the deficit gate's rules among the children of every node, one family after the other.

    `above` names the node over each, `q` its deficit, `below` how many clients wait there or below.
    """

    def __init__(self, gate: HierarchicalGate) -> None:
        self.gate = gate
        self.above: dict[_Node, _Node] = {}
        self.q: dict[_Node, int] = {}
        self.quantum: dict[_Node, int] = {}
        self.below: dict[_Node, int] = {}
        self.known: set[_Node] = set()

    def _meet(self, node: _Node, above: _Node) -> None:
        if node not in self.above:
            self.above[node] = above
            self.q[node], self.quantum[node], self.below[node] = 0, self.gate.quantum, 0

    def _path(self, client: int) -> list[_Node]:
        """The client and its groups, the innermost first."""
        self._meet(client, ())
        path: list[_Node] = [client]
        while self.above[path[-1]]:
            path.append(self.above[path[-1]])
        return path

    def _add(self, client: int, change: int) -> None:
        for node in self._path(client):
            self.below[node] += change

    def joined(self, client: int, waiting: Collection[int]) -> None:
        if client not in waiting:
            self._add(client, 1)
            self.known.update(self._path(client))

    def left(self, client: int) -> None:
        self._add(client, -1)

    def choose(self, client: int, waiting: Collection[int], skips: bool) -> int:
        families: dict[_Node, list[_Node]] = {}
        for node, above in self.above.items():
            if above or self.gate.refills_top:
                families.setdefault(above, []).append(node)
        for family in families.values():
            queued = ExactVector([self.below[node] > 0 for node in family])
            known = ExactVector([node in self.known for node in family])
            quantum = ExactVector([self.quantum[node] for node in family])
            q = refilled(ExactVector([self.q[node] for node in family]), queued, known, quantum)
            self.q.update(zip(family, q, strict=True))
        clients = sorted(waiting)
        owned = [[self.q[node] for node in self._path(each)] + [1, 1] for each in clients]
        own, inner, outer = (ExactVector([credit[depth] for credit in owned]) for depth in range(3))
        queued = ExactVector([True] * len(clients))
        score = ExactVector([each == client for each in clients])
        seen = {"q": own, "inner": inner, "outer": outer, "queued": queued, "ready": queued, "score": score}
        chosen = self.call(choose, **seen)
        return clients[chosen] if chosen != NO_GROUP else NO_GROUP

    def _on_path(self, kernel: Kernel, client: int, **seen: int) -> None:
        """Let a kernel change the deficits of a client and its groups."""
        path = self._path(client)
        inner, outer = (place if place < len(path) else NO_GROUP for place in (1, 2))
        q, quantum = (ExactVector([kept[node] for node in path]) for kept in (self.q, self.quantum))
        q = self.call(kernel, q=q, p=0, inner=inner, outer=outer, quantum=quantum, **seen)
        self.q.update(zip(path, q, strict=True))

    def admitted(self, client: int, tokens: int, waiting: Collection[int], emptied: bool, kv_tokens: int) -> None:
        self._on_path(admit, client, charge=price(tokens, self.gate.rates.input))
        if emptied:
            self._add(client, -1)

    def decoded(self, clients: Iterable[int], tokens: Iterable[int]) -> None:
        amounts: dict[_Node, int] = {}
        for client, count in zip(clients, tokens, strict=True):
            for node in self._path(client):
                amounts[node] = amounts.get(node, 0) + price(count, self.gate.rates.output)
        charge = ExactVector(amounts.values())
        q = self.call(decode, q=ExactVector([self.q[node] for node in amounts]), charge=charge)
        self.q.update(zip(amounts, q, strict=True))

    def settled(self, client: int, tokens: int, waiting: Collection[int]) -> None:
        amount = price(abs(tokens), self.gate.rates.input)
        if tokens > 0:
            self._on_path(admit, client, charge=amount)
        else:
            self._on_path(refund, client, amount=amount)

    def configured(self, client: int, weight: int, groups: Groups) -> None:
        self._meet(client, ())
        names: tuple[str, ...] = ()
        for name, share in groups:
            group = (*names, name)
            self._meet(group, names)
            self._weigh(group, share)
            names = group
        if groups:
            self.above[client] = names
        self._weigh(client, weight)

    def _weigh(self, node: _Node, weight: int) -> None:
        self.quantum[node] = quantum = weight * self.gate.quantum
        [self.q[node]] = self.call(reconfigure, q=ExactVector([self.q[node]]), quantum=ExactVector([quantum]))


interpreter.register(HierarchicalGate, TreeOfDeficits)
