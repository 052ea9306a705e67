"""A window whose gate spends credit on lease from an account of several gateways (`policies.gates.leased`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from fairsched.engines.gateway.window.flight import WINDOW, Placement
from fairsched.engines.gateway.window.window import Window
from fairsched.engines.serving import AdmissionChoice
from fairsched.model.decision import Admission
from fairsched.model.events import Lent
from fairsched.policies.gates import AnyLeasedGate
from fairsched.policies.local import ComposedPolicy


class LeasedWindow(Window):
    """A window that admits on balances, and leaves it to others to renew them."""

    def __init__(self, policy: ComposedPolicy, *args: Any, **kwargs: Any) -> None:
        """Hold the policy, whose gate is an `AnyLeasedGate`; all else is a window's."""
        assert isinstance(policy.gate, AnyLeasedGate)
        super().__init__(policy, *args, **kwargs)
        self.starved = False
        """Whether requests wait and none is let in until its client has credit."""
        self.alone = False
        """Whether its clients get rounds of credit here, as without an account."""
        # The gap is between what all gateways charge, and this window sees its own part.
        self.usage.monitor = None
        self.gate = policy.gate

    def admit(self, now_ns: int) -> list[Placement]:
        self.starved = False
        return super().admit(now_ns)

    def _choice(self, now_ns: int, past: Sequence[int]) -> tuple[Admission | None, AdmissionChoice | None]:
        if self.alone:
            self._give_rounds(now_ns)
        admission, decision = super()._choice(now_ns, past)
        self.starved = admission is None and not (past or self.alone)
        return admission, decision

    def _give_rounds(self, now_ns: int) -> None:
        """Give clients the rounds that are due, of which the account will not know."""
        state = self._gate_state()
        if state is not None:
            self.lend(self.gate.rounds(state, self.choosable_clients()), now_ns)

    @property
    def _stalled(self) -> bool:
        return self.alone and super()._stalled

    def choosable_clients(self) -> list[int]:
        """Return the clients of which a request waits that may be chosen."""
        return self._waiting.choosable_clients

    def balance(self, client: int) -> int:
        """Return what a client, or the outermost group that it is in, has on lease and did not spend, in cost units;
        negative where it owes."""
        state = self._gate_state()
        return 0 if state is None else self.gate.balance(state, client)

    def balances(self) -> dict[int, int]:
        """Return the balances of those that have one, with all that was charged so far; that of a group by the first
        client in it."""
        state = self._gate_state()
        return {} if state is None else self.gate.balances(state)

    def lend(self, moved: Mapping[int, int], now_ns: int) -> None:
        if self.guard.set_aside is None and moved:
            self._tell(Lent(now_ns, WINDOW, *zip(*sorted(moved.items()), strict=True)))

    def _gate_state(self) -> Any:
        """Return None while the policy is set aside: then no gate holds."""
        return None if self.guard.set_aside is not None else self.guard.state.gate
