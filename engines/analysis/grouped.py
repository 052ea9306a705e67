"""A run seen by organisation: what all clients of an outermost group received together, and how far groups were apart;
and by program.

The run's figures are computed once more with every client renamed to its organisation, which waits whenever one of them
does; a client in no group is its own organisation.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import msgspec
import numpy as np

from fairsched.engines.analysis.outcomes import Measures, Outcomes
from fairsched.model.events import Admitted
from fairsched.model.latency import LatencyModel
from fairsched.model.pricing import COMMON, multipliers
from fairsched.model.request import Client, Workload
from fairsched.model.service import Charging, Gap, Ints, Table, Tables, backlogs, busiest, charges, service, service_gap


@attrs.frozen
class Organisation:
    """One of them: how many clients it is, its `share` of all service (1 a computed input token, 2 an output token) of
    the times at which every organisation waited (None if there were none), and what is measured of its requests."""

    clients: int
    share: float | None
    measures: Measures


@attrs.frozen
class ByOrganisation:
    """All of them by name, the largest service gap between two, and its bound where the policy promises one."""

    each: Mapping[str, Organisation]
    gap: Gap
    bound: int | None

    def to_json(self) -> dict[str, Any]:
        """The entry in a run's JSON document."""
        each = {name: attrs.asdict(organisation) for name, organisation in self.each.items()}
        return {"service_gap_max": self.gap.cost, "service_gap_bound": self.bound, "each": each}


def organisations(clients: tuple[Client, ...]) -> tuple[Client, ...]:
    """Return the outermost groups and the clients in none, as clients with weights; nothing without groups."""
    if not any(client.place for client in clients):
        return ()
    weights = dict(map(_outermost, clients))
    groups = {name for name, grouped in weights if grouped}
    # A client in no group may have the name of a group, and is beside it nevertheless.
    names = [name if grouped or name not in groups else f"{name} (in no group)" for name, grouped in weights]
    return tuple(Client(i, name, weight) for i, (name, weight) in enumerate(zip(names, weights.values(), strict=True)))


def _outermost(client: Client) -> tuple[tuple[str, bool], int]:
    """Its outermost group, or itself: the name and whether that is a group's, and the weight."""
    (name, weight), grouped = client.place[0] if client.place else (client.name, client.weight), bool(client.place)
    return (name, grouped), weight


def by_organisation(
    workload: Workload,
    trace: Tables,
    charging: Charging,
    bound: int | None,
    latencies: Sequence[LatencyModel] = (),
) -> ByOrganisation | None:
    """The run by organisation; None if no client is in a group."""
    found = organisations(workload.clients)
    if not found:
        return None
    number = {key: i for i, key in enumerate(dict(map(_outermost, workload.clients)))}
    of = np.array([number[_outermost(client)[0]] for client in workload.clients], dtype=np.int64)
    renamed = {
        kind: {name: of[column] if name == "client" else column for name, column in table.items()}
        for kind, table in trace.items()
    }
    outcomes = Outcomes(_of(workload, found, of), renamed, latencies)
    charged = charges(renamed, attrs.evolve(charging, multipliers=multipliers([each.weight for each in found])))
    waited = backlogs(renamed)
    gap = service_gap(charged, waited, busiest(charged, len(found)))
    shares = _shares(charges(renamed, Charging(COMMON, "extend", (1,) * len(found))), waited, len(found))
    sizes = np.bincount(of, minlength=len(found)).tolist()
    each = {one.name: Organisation(sizes[one.id], shares.get(one.id), outcomes.measures(one.id)) for one in found}
    return ByOrganisation(each, gap, bound)


def _of(workload: Workload, found: tuple[Client, ...], of: Ints) -> Workload:
    jobs = tuple(
        msgspec.structs.replace(job, request=msgspec.structs.replace(job.request, client=int(of[job.request.client])))
        for job in workload.jobs
    )
    return msgspec.structs.replace(workload, jobs=jobs, clients=found)


def _shares(charged: Table, waited: Table, size: int) -> dict[int, float]:
    """Each one's part of all service of the times at which every one waits; nothing if they never all do."""
    received = np.zeros(size, dtype=np.int64)
    for start, stop in _together(waited, size):
        received += service(charged, size, start, stop)
    total = int(received.sum())
    return {number: amount / total for number, amount in enumerate(received.tolist())} if total else {}


def _together(waited: Table, size: int) -> Iterator[tuple[int, int]]:
    """The times at which every one of so many waits somewhere, as half-open intervals."""
    columns = ("start_ns", "stop_ns", "client")
    edges = []
    for start, stop, one in zip(*(waited[name].tolist() for name in columns), strict=True):
        edges += [(start, 1, one), (stop, -1, one)]
    places, waiting, since = Counter[int](), 0, 0
    for time_ns, change, one in sorted(edges):
        before = places[one] > 0
        places[one] += change
        waiting += (places[one] > 0) - before
        if waiting == size and change > 0 and not before:
            since = time_ns
        elif before and not places[one] and waiting == size - 1 and since < time_ns:
            yield since, time_ns


# --- programs ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class ProgramFigures:
    """One of them: its latency, None unless every call finished, what its calls `received` that finished while all
    programs were under way, in cost units, and its `share` of that, None if none did."""

    latency_ns: int | None
    received: int
    share: float | None


def by_program(outcomes: Outcomes) -> dict[int, ProgramFigures]:
    """Return the programs of a run by their numbers.

    Decode steps say which clients they served, and a client may run several programs, so a call counts as served when
    it has finished: its output and what was computed of its prompt, each time that it was let in.
    """
    called = np.flatnonzero(outcomes.program >= 0)
    spans = outcomes.program_spans(called)
    numbers, of, first, last, whole = spans.numbers, spans.of, spans.first, spans.last, spans.whole
    cost = COMMON.output * outcomes.output
    admitted = outcomes.trace[Admitted]
    np.add.at(cost, outcomes.row(admitted["request_id"]), COMMON.input * admitted["extend_tokens"])
    ended = outcomes.finish[called]
    # A program that did not end is under way to the last.
    last[~whole] = outcomes.last_ns + 1
    begun, over = (first.max(), last.min()) if len(numbers) else (0, 0)
    together = outcomes.finished[called] & (ended >= begun) & (ended < over)
    received = np.zeros(len(numbers), np.int64)
    np.add.at(received, of[together], cost[called][together])
    total = int(received.sum())
    return {
        number: ProgramFigures(end - start if done else None, mine, mine / total if total else None)
        for number, start, end, done, mine in zip(
            *(each.tolist() for each in (numbers, first, last, whole, received)), strict=True
        )
    }
