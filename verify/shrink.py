"""Makes a counterexample as small as greed can: fewer clients, then integers closer to zero and fewer truths.

No solver is asked: a candidate is run, and kept if every interpretation still says that the step breaks something.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from fairsched.verify.concrete import Values
from fairsched.verify.counterexample import Counterexample
from fairsched.verify.steps import Step, confirmed
from fairsched.verify.system import Kind


def minimised(step: Step, clients: int, values: Values) -> Counterexample:
    """The smallest world that was found by changing one value, or two, at a time; the given one must break the step."""
    found, n = dict(values), clients

    def breaks(candidate: Values, size: int) -> bool:
        return bool(confirmed(step, size, candidate))

    for client in reversed(range(clients)):
        fewer = _without(step, found, client)
        if n > 1 and fewer is not None and breaks(fewer, n - 1):
            found, n = fewer, n - 1
    while smaller := next((world for world in _smaller(step, found) if breaks(world, n)), None):
        found = smaller
    return Counterexample(
        step.claim.system.name,
        step.name,
        confirmed(step, n, found),
        n,
        found,
        step.claim.theorem.id,
        tuple(sorted(assumption.name for assumption in step.dropped)),
    )


def _without(step: Step, values: Values, client: int) -> dict[str, Any] | None:
    """The world without a client; None if somebody is that client."""
    fewer: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, tuple):
            fewer[name] = value[:client] + value[client + 1 :]
        elif step.kinds[name] is Kind.POINT:
            if value == client:
                return None
            fewer[name] = value - (value > client)
        else:
            fewer[name] = value
    return fewer


_Place = tuple[str, int | None]
"""An entry of a vector, or a scalar."""


def _smaller(step: Step, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Worlds with one entry closer to zero, then with two that move by as much (a balance ties them), boldest first."""
    places = [(place, entry) for place, entry in _entries(step, values) if entry]
    for place, entry in places:
        yield from (_moved(values, {place: less}) for less in _closer(entry))
    for (one, left), (two, right) in combinations(places, 2):
        for by in sorted({min(abs(left), abs(right)), 1}, reverse=True):
            yield _moved(values, {one: _toward(left, by), two: _toward(right, by)})


def _entries(step: Step, values: dict[str, Any]) -> Iterator[tuple[_Place, int]]:
    for name, value in values.items():
        if isinstance(value, tuple):
            yield from (((name, i), entry) for i, entry in enumerate(value))
        elif step.kinds[name] is not Kind.POINT:
            yield (name, None), value


def _moved(values: dict[str, Any], to: Mapping[_Place, int]) -> dict[str, Any]:
    moved = dict(values)
    for (name, i), entry in to.items():
        value = moved[name]
        moved[name] = entry if i is None else (*value[:i], entry, *value[i + 1 :])
    return moved


def _closer(entry: int) -> list[int]:
    size = abs(entry)
    nearer = {size, size - size // 2, *(1 << bit for bit in range(size.bit_length()))}
    return [_toward(entry, by) for by in sorted(nearer, reverse=True) if 0 < by <= size]


def _toward(entry: int, by: int) -> int:
    """The entry, closer to zero."""
    return entry - by if entry > 0 else entry + by
