"""A window whose gate spends credit on lease from an account of several gateways (`policies.gates.leased`)."""

from collections.abc import Mapping
from typing import Any

import attrs
import msgspec
import numpy as np

from fairsched.engines.gateway.window.flight import Placement
from fairsched.engines.gateway.window.window import Window
from fairsched.engines.serving import Decision
from fairsched.model.plan import Admission
from fairsched.policies.gates import DeficitGate, DeficitState, LeasedGate
from fairsched.policies.local import ComposedPolicy


class LeasedWindow(Window):
    """A window that admits on balances, and leaves it to others to renew them."""

    def __init__(self, policy: ComposedPolicy, *args: Any, **kwargs: Any) -> None:
        """The policy's gate is a `LeasedGate`; all else is a window's."""
        assert isinstance(policy.gate, LeasedGate)
        super().__init__(policy, *args, **kwargs)
        self.starved = False
        """Whether requests wait and none is let in until its client has credit."""
        # The gap is between what all gateways charge, and this window sees its own part.
        self.usage.monitor = None
        self._leased = policy
        self.gate = policy.gate
        gate = {field.name: getattr(policy.gate, field.name) for field in attrs.fields(DeficitGate)}
        self._own = attrs.evolve(policy, gate=DeficitGate(**gate))

    @property
    def alone(self) -> bool:
        """Whether the gate gives its clients credit of its own, as one without an account does."""
        return self.guard.policy is self._own

    @alone.setter
    def alone(self, alone: bool) -> None:
        if alone is not self.alone:
            self.guard.policy = self._own if alone else self._leased

    def admit(self, now_ns: int) -> list[Placement]:
        self.starved = False
        return super().admit(now_ns)

    def _choice(self, now_ns: int) -> tuple[Admission | None, Decision | None]:
        admission, decision = super()._choice(now_ns)
        self.starved = admission is None and not self.alone
        return admission, decision

    @property
    def _stalled(self) -> bool:
        return self.alone and super()._stalled

    def choosable_clients(self) -> list[int]:
        """Return the clients of which a request waits that may be chosen."""
        return self._waiting.choosable_clients

    def balance(self, client: int) -> int:
        """Return what a client has on lease and did not spend, in cost units; negative where it owes."""
        state = self._gate_state()
        return 0 if state is None or client >= len(state.q) else int(state.q[client])

    def balances(self) -> dict[int, int]:
        """Return the balance of each client that has one, with all that was charged so far."""
        state = self._gate_state()
        return {} if state is None else {int(client): int(state.q[client]) for client in np.flatnonzero(state.q)}

    def lend(self, moved: Mapping[int, int]) -> None:
        """Change balances by so many cost units each."""
        state = self._gate_state()
        if state is not None and moved:
            self.guard.state = msgspec.structs.replace(self.guard.state, gate=self.gate.lent(state, moved))

    def _gate_state(self) -> DeficitState | None:
        """None while the policy is set aside: then no gate holds."""
        if self.guard.set_aside is not None:
            return None
        state: DeficitState = self.guard.state.gate
        return state
