"""Times of steps from tables and formulas: to the nanosecond, never falling, and a leap is its steps."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model import machine
from fairsched.model.machine import AttentionFormula, AttentionTable, Kernels, LatencyModel, Skew, TimeTable

NS = st.integers(0, 1_000)
STEPS = st.lists(st.tuples(st.integers(1, 40), NS), min_size=1, max_size=5)


def rising(pairs: list[tuple[int, int]], start: int = 0) -> TimeTable:
    """A table whose points and values grow by these pairs."""
    points = tuple(itertools.accumulate((width for width, _ in pairs), initial=start))
    return TimeTable(points, tuple(itertools.accumulate((ns for _, ns in pairs), initial=7)))


TABLES = STEPS.map(rising)


@st.composite
def attention_tables(draw: st.DrawFn, skewed: bool = False) -> AttentionTable:
    """Full grids whose values are a sum of what grows in each number."""
    axes = [(0, *sorted(draw(st.sets(st.integers(1, 60), min_size=1, max_size=3)))) for _ in range(4)]
    rate, apart = draw(st.tuples(*[st.integers(0, 20)] * 4)), draw(st.booleans())

    def made(axes: list[tuple[int, ...]], *at: int) -> TimeTable | int:
        if not axes:
            tokens, before, batch, context = (*at, 0, 0) if apart else at
            total: int = rate[0] * tokens + rate[1] * tokens * before + rate[2] * batch + rate[3] * batch * context
            return total
        return TimeTable(axes[0], tuple(made(axes[1:], *at, point) for point in axes[0]))

    decodes = TimeTable(axes[2], tuple(made([axes[3]], 0, 0, batch) if not apart else FLAT for batch in axes[2]))
    prompts = made(axes[:2] if apart else axes)
    assert isinstance(prompts, TimeTable)
    skew = Skew((2, 8), (300, 1000), (50, 90), tuple(range(0, 320_000, 40_000)))
    return AttentionTable(decodes, prompts, skew if skewed else None, apart)


FLAT = TimeTable((0, 50), (3, 800))
FORMULAS = st.builds(AttentionFormula, st.integers(0, 5_000), st.integers(0, 5_000), st.none() | TABLES)
HOSTS = st.builds(machine.HostTime, st.integers(0, 3_000), st.integers(0, 50), st.booleans())
REDUCES = st.none() | st.builds(machine.AllReduce, st.integers(1, 4), st.integers(1, 9), TABLES)


def kernels(
    attention: "st.SearchStrategy[AttentionTable] | st.SearchStrategy[AttentionFormula]",
) -> "st.SearchStrategy[Kernels]":
    """Kernels with this attention, and anything else."""
    sizes = st.sets(st.integers(1, 40)).map(lambda found: tuple(sorted(found)))
    return st.builds(Kernels, TABLES, attention, TABLES, st.none() | TABLES, REDUCES, HOSTS, sizes)


ANY = kernels(FORMULAS) | kernels(attention_tables())
BATCH, CONTEXT = st.integers(1, 40), st.integers(0, 4_000)
CHUNKS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 200)), max_size=3)


def model_of(of: Kernels) -> LatencyModel:
    """A model of these kernels."""
    return LatencyModel.of_kernels("drawn", "made for tests", of, 1_000)


@given(ANY | kernels(attention_tables(skewed=True)), BATCH, CONTEXT, st.integers(0, 60), st.data())
def test_a_leap_is_its_steps(of: Kernels, batch: int, context: int, steps: int, data: st.DataObject) -> None:
    """A run of decode steps takes what its steps take one by one, and as many fit into a span; so it is with a skew
    correction, whose longest and shortest contexts grow as well."""
    model = model_of(of)
    mean = context // batch
    ends = data.draw(st.just((0, 0)) | st.tuples(st.integers(mean, mean + 90), st.integers(0, mean)))
    grown = [(0, 0)] * steps
    if ends[0]:
        grown = [(ends[0] + i, ends[1] + i) for i in range(steps)]
    each = [model.decode_ns(batch, context + i * batch, *grown[i]) for i in range(steps)]
    assert model.decode_run_ns(batch, context, steps, *ends) == sum(each)
    assert each == [model.step_ns((), batch, context + i * batch, *grown[i]) for i in range(steps)]
    for span in (sum(each), sum(each) - 1):
        if span >= 0:
            fit = model.decode_steps_within(batch, context, span, *ends)
            assert model.decode_run_ns(batch, context, fit, *ends) <= span
            assert span < model.decode_run_ns(batch, context, fit + 1, *ends)


@given(TABLES, st.integers(0, 300), st.integers(0, 30), st.integers(0, 50))
def test_the_sum_of_a_table_is_its_values(table: TimeTable, x: int, growth: int, count: int) -> None:
    """What a table adds up to is what its values add up to, before the first point and beyond the last."""
    assert table.total(x, growth, count) == sum(table.at(x + i * growth) for i in range(count))


@given(st.lists(st.integers(0, 500), min_size=2, max_size=6, unique=True).map(sorted), STEPS)
def test_a_table_goes_through_its_points_and_rises(points: list[int], pairs: list[tuple[int, int]]) -> None:
    """A table has each point's value, rises, is never above its line, and goes on with its last slope."""
    table = rising(pairs, points[0])
    assert all(table.at(point) == ns for point, ns in zip(table.points, table.values, strict=True))
    values = [table.at(x) for x in range(table.points[-1] + 100)]
    assert values == sorted(values)
    constant, slope = table.line
    assert all(1000 * ns <= 1000 * constant + slope * x for x, ns in enumerate(values))
    (width, rise), last = pairs[-1], table.points[-1]
    assert table.at(last + 3 * width) == table.at(last) + 3 * rise


@given(ANY, BATCH, CONTEXT, CHUNKS, st.integers(0, 50))
def test_more_work_takes_no_less(
    of: Kernels, batch: int, context: int, chunks: list[tuple[int, int]], more: int
) -> None:
    """A step with more context, and one with a longer chunk, takes no less time."""
    model = model_of(of)
    assert model.step_ns(chunks, batch, context) <= model.step_ns(chunks, batch, context + more)
    if isinstance(of.attention, AttentionFormula):
        assert model.step_ns(chunks, batch, context) <= model.step_ns([(1 + more, 0), *chunks], batch, context)
        assert model.step_ns(chunks, batch, context) <= model.step_ns(chunks, batch + more, context)


@given(kernels(FORMULAS), st.integers(0, 40), CHUNKS, st.integers(0, 100))
def test_no_step_is_above_the_lines(of: Kernels, batch: int, chunks: list[tuple[int, int]], each: int) -> None:
    """Lines of a machine by formula are above every step, on which promises in seconds rest; a table has none."""
    model, longest = model_of(of), max((n + before for n, before in chunks), default=1)
    lines = machine.Performance.of(model, longest)
    constant = max(lines.prefill_constant_ns, lines.decode_constant_ns)
    above = constant + lines.prefill_token_ns * sum(n for n, _ in chunks)
    above += lines.request_ns * batch + lines.context_token_ns * batch * each
    assert model.step_ns(chunks, batch, batch * each) <= above


def test_each_part_by_hand() -> None:
    """A step of two chunks (3 behind 4, 2 behind nothing) beside three requests over 30 tokens of context, padded to
    10 tokens: every part adds what it says."""
    dense, head = TimeTable((1, 11), (100, 200)), TimeTable((1, 5), (10, 50))
    reduce = machine.AllReduce(2, 8, TimeTable((0, 100), (7, 57)))
    host = machine.HostTime(1_000, 3, asynchronous=False)
    of = Kernels(dense, AttentionFormula(500, 2_000), head, TimeTable((0, 10), (0, 30)), reduce, host, (4, 10))
    by_tokens = (100 + 9 * 10) + 30 + 2 * (7 + 40)
    attention = 500 * (3 * 11 + 2 * 2) // 1000 + 2 * 30
    assert model_of(of).step_ns([(3, 4), (2, 0)], 3, 30) == by_tokens + 50 + attention + 1_000 + 3 * 5
    hidden = msgspec.structs.replace(of, host=machine.HostTime(1_000, 3))
    assert model_of(hidden).step_ns([(3, 4), (2, 0)], 3, 30) == 1_015
    # More tokens than the largest graph are not padded.
    assert of.by_tokens_ns(11) == 200 + 33 + 2 * (7 + 44)


def test_attention_of_a_table_by_hand() -> None:
    """Attention is interpolated in all four numbers; several short prompts have fewer pairs than one; and decodes of
    unequal context take a share of what the longest would."""

    def beside(ns: int) -> TimeTable:
        return TimeTable((0, 4), (TimeTable((0, 100), (ns, ns)), TimeTable((0, 100), (ns + 4, ns + 204))))

    prompts = TimeTable(
        (2, 10), (TimeTable((0, 8), (beside(20), beside(60))), TimeTable((0, 8), (beside(100), beside(900))))
    )
    decodes = TimeTable((0, 4), (TimeTable((0, 100), (0, 0)), TimeTable((0, 100), (4, 104))))
    attention = AttentionTable(decodes, prompts)
    # 10 tokens behind 4, halfway; 2 decodes at 50: half of what 4 take there.
    assert attention.ns(10, 10 * (2 * 4 + 10), 2, 100, 50, 50) == 500 + (4 + 100) // 2
    # Chunks of 6 and 4 have 52 half pairs, and so has one prompt of 7 tokens, nearly.
    assert attention.ns(10, 36 + 16, 0, 0, 0, 0) == 20 + 5 * 10
    # A chunk below the first point of the table is one of the first.
    assert attention.ns(1, 1, 0, 0, 0, 0) == 20
    # Two of four decode at 100 and two at 20: the mean, and a tenth of what all at 100 would take more; not beside
    # prompts.
    shared = AttentionTable(decodes, prompts, Skew((4,), (1000,), (1000,), (100_000,)))
    assert attention.ns(0, 0, 4, 240, 100, 20) == 4 + 60
    assert shared.ns(0, 0, 4, 240, 100, 20) == 4 + 60 + (100 - 60) // 10
    assert shared.ns(2, 4, 4, 240, 100, 20) == attention.ns(2, 4, 4, 240, 60, 60)
    # Kernels apart: their sum.
    apart = AttentionTable(
        decodes, TimeTable((2, 10), (TimeTable((0, 8), (20, 60)), TimeTable((0, 8), (100, 900)))), apart=True
    )
    assert apart.ns(10, 100, 4, 240, 60, 60) == 100 + 4 + 60
    # One token of a prompt is a decode over what is before it and itself.
    of = Kernels(TimeTable((0,), (0,)), attention, TimeTable((0,), (0,)))
    assert of.step_ns([(1, 99)], 3, 300) == of.step_ns((), 4, 400) == 104


@pytest.mark.parametrize(
    ("points", "values", "said"),
    [
        ((), (), "has a value for each of its points"),
        ((1, 2), (1,), "has a value for each of its points"),
        ((1, 1), (1, 2), "points of a table rise, but 1 comes after 1"),
        ((1, 2), (5, 4), "times of a table do not fall, but 4 ns at 2 come after 5 ns at 1"),
        ((1, 2), (-5, 4), "times of a table are not negative, but at 1 it is -5 ns"),
    ],
)
def test_no_table_falls(points: tuple[int, ...], values: tuple[int, ...], said: str) -> None:
    """A table without points, out of order, with a time that falls or is negative is refused by its figures."""
    with pytest.raises(ValueError, match=said):
        TimeTable(points, values)


@given(ANY | kernels(attention_tables(skewed=True)))
def test_a_model_of_kernels_is_its_document(of: Kernels) -> None:
    """Kernels go through JSON unchanged; no stages are made of them."""
    model = model_of(of)
    assert machine.decoded(machine.encoded(machine.preset_document(model))).latency == model
    with pytest.raises(ValueError, match="drawn is made of kernels, of which no stages are made"):
        machine.pipelined(model, 2)
