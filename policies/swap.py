"""How much an order swaps: what it keeps free on the device, and what moves in a step."""

import attrs

from fairsched.model.view import WorkerView


@attrs.frozen
class Swap:
    """`free_percent` of the KV capacity is kept free for those who are new, and of what goes to the host, or comes
    back, at most `step_tokens` do so in a step, or one request."""

    free_percent: int
    step_tokens: int

    def reserve(self, view: WorkerView) -> int:
        """KV tokens that are kept free."""
        return view.kv_capacity_tokens * self.free_percent // 100
