"""Mean lengths of the requests seen lately, as an exact ratio, in constant memory.

Two windows of equal length are kept, the one under way and the one before it, so that a mean covers between one and
two windows of the past.
"""

import msgspec


class Sums(msgspec.Struct, frozen=True):
    """How many inputs and outputs there were in one window, and their tokens."""

    inputs: int = 0
    input_tokens: int = 0
    outputs: int = 0
    output_tokens: int = 0


class WindowMeans(msgspec.Struct, frozen=True):
    """Sums of the window of this number and of the one before it."""

    window: int = 0
    now: Sums = Sums()
    before: Sums = Sums()

    def at(self, window: int) -> "WindowMeans":
        """The same in a later window.  O(1)."""
        if window <= self.window:
            return self
        return WindowMeans(window, Sums(), self.now if window == self.window + 1 else Sums())

    def with_input(self, window: int, tokens: int) -> "WindowMeans":
        """With an input seen in this window.  O(1)."""
        means = self.at(window)
        now = means.now
        grown = Sums(now.inputs + 1, now.input_tokens + tokens, now.outputs, now.output_tokens)
        return WindowMeans(means.window, grown, means.before)

    def with_output(self, window: int, tokens: int) -> "WindowMeans":
        """With an output seen in this window.  O(1)."""
        means = self.at(window)
        now = means.now
        grown = Sums(now.inputs, now.input_tokens, now.outputs + 1, now.output_tokens + tokens)
        return WindowMeans(means.window, grown, means.before)

    def ratio(self, window: int, prior_input_tokens: int, prior_output_tokens: int) -> tuple[int, int]:
        """Mean input over mean output at this window, as numerator and denominator, both positive.

        The priors are positive and count as one input and one output, so that there is a mean from the start.  O(1).
        """
        means = self.at(window)
        now, before = means.now, means.before
        input_tokens = prior_input_tokens + now.input_tokens + before.input_tokens
        output_tokens = prior_output_tokens + now.output_tokens + before.output_tokens
        outputs, inputs = 1 + now.outputs + before.outputs, 1 + now.inputs + before.inputs
        return input_tokens * outputs, output_tokens * inputs
