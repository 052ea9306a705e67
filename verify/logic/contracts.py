"""Steps known by what they promise, which one theorem shows of shipped functions and another takes for granted.

A theorem about any number of requests cannot run a worker's function for all of them at once.  Each of its events is a
step of one request, known by a *contract*: statements about a few numbers before and after.  Theorems that it rests on
run the shipped functions on unknown integers and show these very statements, so that a function which breaks one of
them takes both theorems down.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import attrs

from fairsched.verify.logic.system import Need, World

Numbers = Callable[[Any, World], Mapping[str, Any]]
"""What the numbers of a contract are in a world."""


@attrs.frozen
class Contract:
    """Statements about numbers of these names: unknown integers of a run, or scalars of an event."""

    names: tuple[str, ...]
    promises: Mapping[str, Callable[[SimpleNamespace], Any]]

    def shown(self, **numbers: Any) -> dict[str, Any]:
        """Return each statement about these numbers, which is to be shown of a shipped function."""
        w = self._world(numbers)
        return {name: holds(w) for name, holds in self.promises.items()}

    def need(self, numbers: Numbers) -> Need:
        """Return the hypothesis that all of it is true of an event's numbers."""

        def holds(o: Any, w: World) -> Any:
            first, *others = self.shown(**numbers(o, w)).values()
            for other in others:
                first = first & other
            return first

        return Need(holds)

    def _world(self, numbers: Mapping[str, Any]) -> SimpleNamespace:
        if set(numbers) != set(self.names):
            raise ValueError(f"the contract is about {', '.join(self.names)}, not {', '.join(numbers)}")
        return SimpleNamespace(**numbers)
