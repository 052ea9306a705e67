"""Clients: mixes for traces that name no clients, and weights for those that do."""

import re
from collections.abc import Mapping, Sequence

import attrs
import numpy as np
from msgspec.structs import replace

from fairsched.engines.workloads.errors import WorkloadError, unknown
from fairsched.engines.workloads.readers import TraceRow
from fairsched.engines.workloads.sharing import continued
from fairsched.model.request import Client
from fairsched.model.shown import short_repr

CLIENTS_MAX = 1_000_000
GRAMMAR = "N | zipf:N[:S] | weights:NAME=W[,NAME=W...] | paths[:NAME=W,...]"

_COUNT = re.compile(r"[1-9]\d{0,6}", re.ASCII)
_ZIPF = re.compile(r"zipf:([1-9]\d{0,6})(?::(\d{1,3}(?:\.\d{1,6})?))?", re.ASCII)
_WEIGHT = re.compile(r"([^=,\s]+)=([1-9]\d{0,5})", re.ASCII)


@attrs.frozen
class ClientSpec:
    """A declared client mix: names, the share of requests each sends (sums to 1), and the weight each has.

    `text` is how it was written.  `names_trace` says that the names are meant to be the trace's own clients, when it
    has any: then only the weights are taken, and clients not named keep weight 1.  `paths` says that the trace's names
    are paths, ORGANISATION/KEY or ORGANISATION/USER/KEY, and the names here those of clients or groups on them.
    """

    __repr__ = short_repr

    text: str
    names: tuple[str, ...]
    shares: tuple[float, ...]
    weights: tuple[int, ...]
    names_trace: bool = False
    paths: bool = False

    @classmethod
    def parse(cls, text: str) -> "ClientSpec":
        """Return a mix from its text: `N` (equal shares), `zipf:N[:S]` (share of the k-th client as 1/k^S, S = 1 unless
        given), `weights:gold=4,free=1` (equal shares, scheduling weights) or `paths:acme=3,acme/ann=2` (the trace's
        names as paths of groups, and weights of some).  Raises `WorkloadError`.
        """
        zipf = _ZIPF.fullmatch(text)
        if zipf or _COUNT.fullmatch(text):
            clients = int(zipf[1] if zipf else text)
            if clients <= CLIENTS_MAX:
                exponent = float(zipf[2] or 1) if zipf else 0.0
                shares = np.arange(1, clients + 1, dtype=np.float64) ** -exponent
                names = tuple(f"client-{index}" for index in range(clients))
                return cls(text, names, tuple((shares / shares.sum()).tolist()), (1,) * clients)
        if text == "paths":
            return cls(text, (), (), (), names_trace=True, paths=True)
        kind = next((kind for kind in ("weights:", "paths:") if text.startswith(kind)), None)
        if kind is not None:
            pairs = [_WEIGHT.fullmatch(part) for part in text.removeprefix(kind).split(",")]
            found = [(pair[1], int(pair[2])) for pair in pairs if pair]
            if len(found) == len(pairs) == len({name for name, _ in found}):
                names = tuple(name for name, _ in found)
                equal = (1 / len(names),) * len(names)
                weights = tuple(weight for _, weight in found)
                return cls(text, names, equal, weights, names_trace=True, paths=kind == "paths:")
        raise WorkloadError(f"clients {text!r}: expected {GRAMMAR} with at most {CLIENTS_MAX} clients")


def with_floors(clients: Sequence[Client], floors: Mapping[str, int]) -> tuple[Client, ...]:
    """Return the clients with floors of those named; raises `WorkloadError` for a name that none has."""
    names = [client.name for client in clients]
    if missing := sorted(set(floors) - set(names)):
        raise unknown("client", missing[0], names)
    return tuple(
        replace(client, cache_floor_tokens=floors[client.name]) if client.name in floors else client
        for client in clients
    )


DEFAULT_CLIENTS = ClientSpec.parse("zipf:8:1")
"""The mix of a trace that names no clients, unless one is declared."""


def assign(
    rows: Sequence[TraceRow], spec: ClientSpec | None, seed: int
) -> tuple[list[int], tuple[Client, ...], tuple[str, ...]]:
    """Client of each row, the clients, and notes saying how that came about; all rows name a client or none does.

    A trace's own clients are kept, numbered by first appearance, unless a mix without names is asked for.  Otherwise
    each session is given to a client drawn by the mix's shares (pure in `seed`): rows with one session label, a row
    with parents, and a row whose prompt continues an earlier prompt stay with the client of the earlier one.
    """
    own = rows[0].client is not None
    if own and (spec is None or spec.names_trace):
        return _named(rows, spec)
    if spec is not None and spec.paths:
        raise WorkloadError(f"clients {spec.text!r}: the trace names no clients, so there are no paths")
    mix = spec or DEFAULT_CLIENTS
    leaders = _leaders(rows)
    drawn = np.random.default_rng(seed).choice(len(mix.names), size=len(rows), p=mix.shares).tolist()
    assigned: list[int] = []
    for index, leader in enumerate(leaders):
        assigned.append(drawn[index] if leader is None else assigned[leader])
    clients = tuple(
        Client(id=index, name=name, weight=weight)
        for index, (name, weight) in enumerate(zip(mix.names, mix.weights, strict=True))
    )
    followers = sum(leader is not None for leader in leaders)
    why = "The trace names no clients" if not own else "The trace's own clients were replaced"
    default = " (the default mix)" if spec is None else ""
    stayed = f"; {followers:,} that continue an earlier request stayed with its client" if followers else ""
    note = f"{why}: its requests were given to {len(clients):,} clients by {mix.text}{default}, seed {seed}{stayed}."
    return assigned, clients, (note,)


def _leaders(rows: Sequence[TraceRow]) -> list[int | None]:
    """Return for each row the earlier row whose client it must have, by session label, parent or prompt."""
    places: dict[int, int] = {}
    sessions: dict[str, int] = {}
    leaders = continued([row.prompt for row in rows])
    for index, row in enumerate(rows):
        if row.parents:
            leaders[index] = places[row.parents[0]]
        elif row.session is not None:
            leaders[index] = sessions.get(row.session, leaders[index])
        if row.session is not None:
            sessions.setdefault(row.session, index)
        places[row.id] = index
    return leaders


def _named(rows: Sequence[TraceRow], spec: ClientSpec | None) -> tuple[list[int], tuple[Client, ...], tuple[str, ...]]:
    """Return the trace's own clients, with weights from its rows or, where given, from `spec`."""
    ids: dict[str, int] = {}
    weights: dict[str, int] = {}
    for row in rows:
        assert row.client is not None
        ids.setdefault(row.client, len(ids))
        if row.weight is not None:
            weights[row.client] = row.weight
    if spec is not None and spec.paths:
        clients = _placed(ids, weights, spec)
        return [ids[str(row.client)] for row in rows], clients, (f"Clients' names are paths: {spec.text}.",)
    if spec is not None:
        for name in spec.names:
            if name not in ids:
                raise unknown("client", name, ids)
        weights = dict(zip(spec.names, spec.weights, strict=True))
    clients = tuple(Client(id=index, name=name, weight=weights.get(name, 1)) for name, index in ids.items())
    notes = (f"Clients' weights were set by {spec.text}.",) if spec else ()
    return [ids[row.client] for row in rows if row.client is not None], clients, notes


def _placed(ids: dict[str, int], weights: dict[str, int], spec: ClientSpec) -> tuple[Client, ...]:
    """Return clients in the groups that their names say, with the weights of the mix, else of the trace, else 1."""
    weights = weights | dict(zip(spec.names, spec.weights, strict=True))
    inside = {name: [name[:i] for i, mark in enumerate(name) if mark == "/"] for name in ids}
    known = dict.fromkeys([*ids, *(group for groups in inside.values() for group in groups)])
    for name in spec.names:
        if name not in known:
            raise unknown("client or group", name, known)
    try:
        return tuple(
            Client(index, name, weights.get(name, 1), tuple((g.rpartition("/")[2], weights.get(g, 1)) for g in groups))
            for (name, index), groups in zip(ids.items(), inside.values(), strict=True)
        )
    except ValueError as error:
        raise WorkloadError(f"clients {spec.text!r}: {error}") from None
