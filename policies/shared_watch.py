"""Who passed a gate by whose state several workers share: a watch a worker, with one state for all of them."""

from typing import Any

from fairsched.policies.gate import Gate
from fairsched.policies.gate_watch import GateWatch


class SharedState:
    """The gate's state as all watches of a cluster have it."""

    def __init__(self, gate: Gate[Any]) -> None:
        self.state = gate.init()


class SharedGateWatch(GateWatch):
    """A watch of one worker; the cluster's events must come in their order, whichever worker's they are."""

    def __init__(self, gate: Gate[Any], skips: bool, shared: SharedState) -> None:
        self._shared = SharedState(gate)
        super().__init__(gate, skips)
        self._shared = shared

    @property
    def _state(self) -> Any:
        return self._shared.state

    @_state.setter
    def _state(self, state: Any) -> None:
        self._shared.state = state
