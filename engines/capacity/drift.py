"""When a fleet should be planned anew: a workload whose mean lengths or whose rate have changed since the last plan.

Source: Zhong et al., "DistServe" (OSDI'24), section 4.3: a profiler follows mean input and output lengths and the
arrival rate, and a significant shift starts the search again.  The paper gives no window and no threshold; here both
are parameters.

A pure function of the requests in the order of their arrival: configuration is the object, history is the state.  Time
is cut into windows of equal length, beginning with the first request; a window is judged when a request comes after
its end.  Comparisons are exact, on integers.
"""

import attrs
import msgspec

from fairsched.policies.validators import positive


class WindowCounts(msgspec.Struct, frozen=True, gc=False):
    """What came in a window: requests, and the tokens of their prompts and outputs."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class Shift(msgspec.Struct, frozen=True, gc=False):
    """A workload that changed: when this was seen, the window of the last plan, and the window that differs in
    `changed` (rate, prompt, output)."""

    at_ns: int
    changed: tuple[str, ...]
    before: WindowCounts
    after: WindowCounts


class DriftState(msgspec.Struct, frozen=True, gc=False):
    """The window under way, which began at `began_ns`, and the one that the plan is for (None: it is not over)."""

    began_ns: int = 0
    window: WindowCounts = WindowCounts()
    planned: WindowCounts | None = None


@attrs.frozen
class DriftDetector:
    """Finds shifts of more than `change_percent` between two windows; O(1) a request.

    A window of few requests has no mean to speak of: with fewer than `requests_min` lengths are not compared, and the
    rate only if the other window has that many.  Windows without any request are passed over.
    """

    window_us: int = attrs.field(default=300_000_000, validator=positive)
    """Length of a window."""
    change_percent: int = attrs.field(default=30, validator=positive)
    """A mean length or rate that differs by more than this share of the planned one is a shift."""
    requests_min: int = attrs.field(default=100, validator=positive)
    """Requests from which on a window has a mean."""

    def init(self) -> DriftState:
        """Return the state before the first request."""
        return DriftState()

    def observe(
        self, state: DriftState, arrival_ns: int, prompt_tokens: int, output_tokens: int
    ) -> tuple[DriftState, Shift | None]:
        """Return the state after a request, and the shift that ended windows show; the fleet is then planned for it.

        Raises `ValueError` for a request that comes before the window under way.
        """
        if not state.window.requests and state.planned is None:
            state = DriftState(arrival_ns)
        if arrival_ns < state.began_ns:
            raise ValueError(f"a request at {arrival_ns} ns comes before the window from {state.began_ns} ns on")
        window_ns = self.window_us * 1_000
        windows, shift = (arrival_ns - state.began_ns) // window_ns, None
        if windows:
            shift, planned = self._judged(state, state.began_ns + window_ns)
            state = DriftState(state.began_ns + windows * window_ns, WindowCounts(), planned)
        window = WindowCounts(
            state.window.requests + 1,
            state.window.prompt_tokens + prompt_tokens,
            state.window.output_tokens + output_tokens,
        )
        return DriftState(state.began_ns, window, state.planned), shift

    def _judged(self, state: DriftState, at_ns: int) -> tuple[Shift | None, WindowCounts]:
        """Return the shift from the planned window to the one that ended, and what the plan is for from now on."""
        before, after = state.planned, state.window
        if before is None:
            return None, after
        changed = []
        if max(before.requests, after.requests) >= self.requests_min and self._differs(
            before.requests, 1, after.requests, 1
        ):
            changed.append("rate")
        if min(before.requests, after.requests) >= self.requests_min:
            sums = (
                ("prompt", before.prompt_tokens, after.prompt_tokens),
                (
                    "output",
                    before.output_tokens,
                    after.output_tokens,
                ),
            )
            changed += [name for name, old, new in sums if self._differs(old, before.requests, new, after.requests)]
        if not changed:
            return None, before
        return Shift(at_ns, tuple(changed), before, after), after

    def _differs(self, old: int, olds: int, new: int, news: int) -> bool:
        """Return whether new / news differs from old / olds by more than the share, multiplied across."""
        return 100 * abs(new * olds - old * news) > self.change_percent * old * news
