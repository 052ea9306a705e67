"""Makes a counterexample as small as greed can: fewer clients, then integers closer to zero and fewer truths.

No solver is asked: a candidate is run, and kept if every interpretation still says that the step breaks something.
"""

from collections.abc import Iterator
from typing import Any

from fairsched.verify.concrete import Values
from fairsched.verify.counterexample import Counterexample
from fairsched.verify.steps import Step, confirmed
from fairsched.verify.system import Kind


def minimised(step: Step, clients: int, values: Values) -> Counterexample:
    """The smallest world that was found by changing one value at a time; the given one must break the step."""
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


def _smaller(step: Step, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Worlds with one entry closer to zero, the boldest change first."""
    for name, value in values.items():
        if step.kinds[name] is Kind.POINT:
            continue
        if isinstance(value, tuple):
            for i, entry in enumerate(value):
                yield from ({**values, name: (*value[:i], less, *value[i + 1 :])} for less in _closer(entry))
        else:
            yield from ({**values, name: less} for less in _closer(value))


def _closer(entry: int) -> list[int]:
    size, sign = abs(entry), -1 if entry < 0 else 1
    nearer = {0, size // 2, *(size - (1 << bit) for bit in range(size.bit_length()))}
    return [sign * less for less in sorted(nearer) if 0 <= less < size]
