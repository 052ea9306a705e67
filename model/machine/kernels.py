"""A step's time as the sum of its kernels: tables of what was measured, or formulas of what a GPU can do.

A step holds chunks of prompts, each behind a context, and requests that decode over contexts of their own.  Its time on
the GPU is that of the dense layers, the experts and the all-reduces by tokens, of attention, and of head and sampler by
sequences.  The CPU's time for a step comes before it, or beside the step before where scheduling is asynchronous.

All times are integer nanoseconds of all layers together.  A table is linear between its points and goes on with its
last slope beyond them; below the first point it has the first value.  Interpolation rounds down, so that a table whose
values rise never falls.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from math import isqrt

from msgspec import Struct


def floor_sum(count: int, divisor: int, slope: int, constant: int) -> int:
    """Return the sum of `(slope * i + constant) // divisor` for i from 0 to `count` - 1, for slopes of 0 or more.

    O(log): the points under the line are counted by rows instead of columns, as in Euclid's algorithm.
    """
    total = 0
    while count > 0:
        total += count * (count - 1) // 2 * (slope // divisor) + count * (constant // divisor)
        slope, constant = slope % divisor, constant % divisor
        most = slope * count + constant
        if most < divisor:
            break
        count, constant = divmod(most, divisor)
        slope, divisor = divisor, slope
    return total


class TimeTable(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A piecewise linear function of one whole number, or of several: its values are then tables of the others.

    Raises `ValueError` for no points, points that do not rise, and times below zero or that fall.
    """

    points: tuple[int, ...]
    values: "tuple[int | TimeTable, ...]"

    def __post_init__(self) -> None:
        if not self.points or len(self.points) != len(self.values):
            raise ValueError(f"a table has a value for each of its points, not {len(self.values)} for {self.points}")
        for (before, at), (low, high) in zip(pairwise(self.points), pairwise(self.values), strict=True):
            if before >= at:
                raise ValueError(f"points of a table rise, but {at} comes after {before}")
            if isinstance(low, int) and isinstance(high, int) and low > high:
                raise ValueError(f"times of a table do not fall, but {high} ns at {at} come after {low} ns at {before}")
        if isinstance(self.values[0], int) and self.values[0] < 0:
            raise ValueError(f"times of a table are not negative, but at {self.points[0]} it is {self.values[0]} ns")

    def at(self, x: int, *others: int) -> int:
        """Return the value: O(log points), for each number."""
        points, values = self.points, self.values
        i = min(bisect_right(points, x), len(points) - 1)
        if not i or x <= points[0]:
            low = values[0]
            return low if isinstance(low, int) else low.at(*others)
        low, high = values[i - 1], values[i]
        if not isinstance(low, int):
            low = low.at(*others)
        before = points[i - 1]
        if x == before:
            return low
        if not isinstance(high, int):
            high = high.at(*others)
        if x > points[i]:
            high = max(low, high)
        return low + (x - before) * (high - low) // (points[i] - before)

    def total(self, x: int, growth: int, count: int) -> int:
        """Return the sum of the values at x, x + growth, ..., `count` of them, as one by one: O(points).

        Only of a function of one number.
        """
        points, values, total = self.points, self.values, 0
        while count:
            i = min(bisect_right(points, x), len(points) - 1)
            low, high = values[max(i - 1, 0)], values[i]
            assert isinstance(low, int)
            assert isinstance(high, int)
            if not i or x < points[0]:
                # What comes before the first point has its value; a single point has it everywhere.
                ends, before, width, rise = points[0], x, 1, 0
            else:
                ends, before, width, rise = points[i], points[i - 1], points[i] - points[i - 1], high - low
            inside = count
            if growth and ends > x and (i < len(points) - 1 or x < points[0]):
                inside = min(-(-(ends - x) // growth), count)
            total += inside * low + floor_sum(inside, width, growth * rise, (x - before) * rise)
            x, count = x + inside * growth, count - inside
        return total

    @cached_property
    def line(self) -> tuple[int, int]:
        """The value at 0, and the steepest slope in thousandths, rounded up: no value is above that line."""
        slopes = [0]
        for (before, at), (low, high) in zip(pairwise(self.points), pairwise(self.values), strict=True):
            assert isinstance(low, int)
            assert isinstance(high, int)
            slopes.append(-(1000 * (low - high) // (at - before)))
        return self.at(0), max(slopes)


class Skew(Struct, frozen=True, forbid_unknown_fields=True):
    """What decoding requests of unequal context cost beyond requests of their mean context.

    Attention takes the time at the mean, and a share of what the time at the longest context is more.  The share is in
    millionths, by three classes: the first bound that is not below the requests, the position of the mean between
    shortest and longest context (in thousandths), and the longest context.  Numbers above all bounds are of the last
    class.  A share may be smaller for a longer context, so that time with this correction does not always rise.

    Source of the form: LLMServingSim's skew correction.
    """

    batches: tuple[int, ...]
    positions: tuple[int, ...]
    longest: tuple[int, ...]
    shares: tuple[int, ...]

    def share(self, batch: int, position: int, longest: int) -> int:
        """Return the share of a step."""
        at = 0
        for bounds, value in ((self.batches, batch), (self.positions, position), (self.longest, longest)):
            at = at * len(bounds) + min(bisect_left(bounds, value), len(bounds) - 1)
        return self.shares[at]


class AttentionTable(Struct, frozen=True, forbid_unknown_fields=True, dict=True, tag="table"):
    """Attention as it was measured: of decodes by requests and their mean context, and of prompts beside them by
    tokens, context before them, requests that decode and their mean context.

    Several chunks of prompts are one with as many pairs of a token and what it attends to.  With `apart` decodes beside
    prompts are a kernel of their own, and `prompts` is a table of tokens and context alone.
    """

    decodes: TimeTable
    prompts: TimeTable
    skew: Skew | None = None
    apart: bool = False

    def decoding(self, batch: int) -> TimeTable:
        """Return the time of a step that only decodes, by tokens of context in all."""
        known: dict[int, TimeTable] = self.__dict__.setdefault("known", {})
        found = known.get(batch)
        if found is None:
            found = known[batch] = self._decoding(batch)
        return found

    def _decoding(self, batch: int) -> TimeTable:
        sizes, points = self.decodes, set[int]()
        i = min(bisect_right(sizes.points, batch), len(sizes.points) - 1)
        for of_size in sizes.values[max(i - 1, 0) : i + 1]:
            assert isinstance(of_size, TimeTable)
            points.update(of_size.points)
        rising, most = sorted(points), 0
        values = [most := max(most, sizes.at(batch, point)) for point in rising]
        return TimeTable(tuple(batch * point for point in rising), tuple(values))

    def ns(self, tokens: int, pairs: int, batch: int, context: int, longest: int, shortest: int) -> int:
        """Return the time of a step, of `pairs` half pairs of a prompt's token and what it attends to."""
        decoding = self.decoding(batch) if batch else None
        alone = 0 if decoding is None else decoding.at(context)
        mean = context // batch if batch else 0
        if tokens:
            before = (pairs // tokens - tokens) // 2
            if before < 0:
                # Short prompts have fewer pairs than one long prompt.
                tokens, before = isqrt(pairs), 0
            ns = self.prompts.at(tokens, before, batch, mean)
            return ns + alone if self.apart else ns
        if self.skew is None or decoding is None or batch < 2 or longest <= max(mean, shortest):
            return alone
        # What came with its KV decodes beside the others, and may be shorter than the shortest.
        share = self.skew.share(batch, 1000 * max(mean - shortest, 0) // (longest - shortest), longest)
        return max(alone + share * (decoding.at(batch * longest) - alone) // 1_000_000, 0)


class AttentionFormula(Struct, frozen=True, forbid_unknown_fields=True, tag="formula"):
    """Attention as what it computes and reads: picoseconds for half a pair of a prompt's token and what it attends to
    (compute), and for a token of context of requests that decode (memory).

    Where whole prompts were timed, `prompts` says by tokens what those of a step add to the rest, all layers included.
    """

    half_pair_ps: int
    context_ps: int
    prompts: TimeTable | None = None

    @property
    def skew(self) -> None:
        return None

    def decoding(self, batch: int) -> TimeTable:
        """Return the time of a step that only decodes, by tokens of context in all."""
        return TimeTable((0, 1000), (0, self.context_ps))

    def ns(self, tokens: int, pairs: int, batch: int, context: int, longest: int, shortest: int) -> int:
        """Return the time of a step, of `pairs` half pairs of a prompt's token and what it attends to."""
        ns = self.half_pair_ps * pairs // 1000 + self.context_ps * context // 1000
        return ns if self.prompts is None or not tokens else ns + self.prompts.at(tokens)


class AllReduce(Struct, frozen=True, forbid_unknown_fields=True):
    """The all-reduces of a step: `count` of them, of `token_bytes` a token, each by the bytes of its message."""

    count: int
    token_bytes: int
    message: TimeTable

    def ns(self, tokens: int) -> int:
        return self.count * self.message.at(self.token_bytes * tokens)


class HostTime(Struct, frozen=True, forbid_unknown_fields=True):
    """The CPU's time for a step: a constant, and for a sequence.

    Where scheduling is asynchronous the GPU waits for it only if the step before was shorter.
    """

    constant_ns: int = 0
    sequence_ns: int = 0
    asynchronous: bool = True

    def ns(self, sequences: int) -> int:
        return self.constant_ns + self.sequence_ns * sequences


NO_HOST_TIME = HostTime()


class Kernels(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The kernels of a step.  `graph_sizes` are numbers of tokens for which CUDA graphs were captured: a step of no
    more tokens than the largest is padded to the next of them."""

    dense: TimeTable
    attention: AttentionTable | AttentionFormula
    sequences: TimeTable
    experts: TimeTable | None = None
    reduce: AllReduce | None = None
    host: HostTime = NO_HOST_TIME
    graph_sizes: tuple[int, ...] = ()

    def by_tokens_ns(self, tokens: int) -> int:
        """Return what depends on the tokens of a step alone: dense layers, experts and all-reduces, padded."""
        known: dict[int, int] = self.__dict__.setdefault("known", {})
        found = known.get(tokens)
        if found is None:
            sizes, padded = self.graph_sizes, tokens
            if sizes and tokens <= sizes[-1]:
                padded = sizes[bisect_left(sizes, tokens)]
            found = self.dense.at(padded)
            if self.experts is not None:
                found += self.experts.at(padded)
            if self.reduce is not None:
                found += self.reduce.ns(padded)
            known[tokens] = found
        return found

    def gpu_ns(
        self, chunks: Iterable[tuple[int, int]], batch: int, context: int, longest: int = 0, shortest: int = 0
    ) -> int:
        """Return the GPU's time for a step; arguments as of `LatencyModel.step_ns`."""
        tokens, pairs, prompts, measured = 0, 0, 0, isinstance(self.attention, AttentionTable)
        for count, before in chunks:
            if count == 1 and measured:
                # The last token of a prompt is computed by the kernel of decodes.
                batch, context = batch + 1, context + before + 1
            else:
                tokens += count
                pairs += count * (2 * before + count)
                prompts += 1
        return (
            self.by_tokens_ns(tokens + batch)
            + self.sequences.at(prompts + batch)
            + self.attention.ns(tokens, pairs, batch, context, longest, shortest)
        )

    def step_ns(
        self, chunks: Iterable[tuple[int, int]], batch: int, context: int, longest: int = 0, shortest: int = 0
    ) -> int:
        """Return the time of a step, with the CPU's."""
        chunks = tuple(chunks)
        gpu_ns, host_ns = self.gpu_ns(chunks, batch, context, longest, shortest), self.host.ns(batch + len(chunks))
        return max(gpu_ns, host_ns) if self.host.asynchronous else gpu_ns + host_ns

    def decode_run_ns(self, batch: int, context: int, steps: int, longest: int, shortest: int) -> int:
        """Return the time of so many steps that only decode: the sum of them one by one.  O(points of the table), and
        O(steps) with a skew correction."""
        if self.attention.skew is not None and longest:
            each = ((context + i * batch, longest + i, shortest + i) for i in range(steps))
            return sum(self.step_ns((), batch, *grown) for grown in each)
        fixed_ns, host_ns = self.by_tokens_ns(batch) + self.sequences.at(batch), self.host.ns(batch)
        line = self.attention.decoding(batch)
        if not self.host.asynchronous:
            return steps * (fixed_ns + host_ns) + line.total(context, batch, steps)
        waiting = bisect_left(range(steps), host_ns, key=lambda i: fixed_ns + line.at(context + i * batch))
        grown, rest = context + waiting * batch, steps - waiting
        return waiting * host_ns + rest * fixed_ns + line.total(grown, batch, rest)

    def lines(self, prompt_tokens: int) -> tuple[int, int, int, int, int]:
        """Return what no step is above, for prompts of at most so many tokens: nanoseconds for a token of a prompt, a
        step of prompts, a token of context, a request that decodes, and a step of decodes.

        Raises `ValueError` for a table of attention.
        """
        if not isinstance(self.attention, AttentionFormula):
            raise ValueError("attention is a table, of which no lines are known that no step is above")
        constant, token = self.dense.line
        if self.experts is not None:
            constant, token = constant + self.experts.line[0], token + self.experts.line[1]
        if self.reduce is not None:
            message, slope = self.reduce.message.line
            constant += self.reduce.count * message
            token += self.reduce.count * self.reduce.token_bytes * slope
        # A step is padded by less than the widest gap between sizes of graphs.
        constant += token * max((b - a for a, b in pairwise((0, *self.graph_sizes))), default=0) // 1000 + 1
        first, prompt = (0, 0) if self.attention.prompts is None else self.attention.prompts.line
        prompt += 2 * self.attention.half_pair_ps * prompt_tokens
        head, sequence = self.sequences.line
        constant, sequence, host = constant + head, sequence + token, self.host
        if host.asynchronous:
            constant, sequence = max(constant, host.constant_ns), max(sequence, 1000 * host.sequence_ns)
        else:
            constant, sequence = constant + host.constant_ns, sequence + 1000 * host.sequence_ns
        # Each chunk is a sequence, and has a token or more.
        prefill = -(-(sequence + prompt) // 1000)
        return prefill, constant + first, -(-self.attention.context_ps // 1000), -(-sequence // 1000), constant
