"""What the workers' policies share, in the hands of whoever runs the workers.

The value is lent to one worker's policy at a time (`LocalPolicy.credit` says how), so that policies stay pure although
what one worker is charged decides what another may do.
"""

from typing import Any

from fairsched.policies.base import LocalPolicy


class Credit:
    """The shared `value` of a run; `shared` says whether there is any."""

    def __init__(self, policy: LocalPolicy[Any]) -> None:
        self._policy = policy
        self.value = policy.credit()
        self.shared = self.value is not None

    @property
    def known(self) -> Any:
        """What everybody may know of it; None if nothing is shared."""
        return self._policy.told(self.value) if self.shared else None

    def lend(self, state: Any, worker: int) -> Any:
        """The worker's state with what it sees of the value."""
        return self._policy.lent(state, self.value, worker) if self.shared else state

    def repay(self, state: Any, worker: int) -> bool:
        """The worker's policy made `state` of what it was lent; whether others may see another value now."""
        if not self.shared:
            return False
        before, self.value = self.value, self._policy.repaid(self.value, state, worker)
        return self.value is not before

    def rest(self, worker: int) -> bool:
        """The worker found nothing to do; whether others may see another value now."""
        if not self.shared:
            return False
        before, self.value = self.value, self._policy.rested(self.value, worker)
        return self.value is not before
