"""Values as logs write them: nothing in many words, times in many clocks and units, numbers with commas."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.logs.access import UNKNOWN, Ending, When, read_access_log, values
from fairsched.engines.workloads import TraceError
from tests.support.access_logs import GOOD, MS, logged


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        (1700000000.25, "s"),
        (1700000000250, "ms"),
        (1700000000250000, "us"),
        (1700000000250000000, "ns"),
        ("1700000000.25", "s"),
        ("2023-11-14T22:13:20.25Z", "iso"),
        ("2023-11-14 23:13:20.250+01:00", "iso"),
        ("2023-11-14 22:13:20.2500000", "iso"),
    ],
)
def test_a_moments_unit_is_seen(tmp_path: Path, value: object, unit: str) -> None:
    """Seconds, their fractions and dates are told apart, and all of them mean the same moment."""
    log = read_access_log(logged(tmp_path, {"start": value, "latency_s": 1, "prompt_tokens": 1, "output_tokens": 1}))
    assert log.arrival_ns[0] == 1700000000_250_000_000
    assert any(unit.replace("iso", "date and time") in line for line in log.reading if line.startswith("arrival"))


@pytest.mark.parametrize("nothing", [*sorted(values.NULLS), " ", None, float("nan")])
def test_markers_of_nothing_are_no_values(tmp_path: Path, nothing: object) -> None:
    """A row without a first token, a client, a status or its tokens is no error, however it says so; a log is in which
    none has tokens."""
    row = GOOD | dict.fromkeys(("ttft_ms", "client", "cached_tokens", "model", "status", "stream"), nothing)
    log = read_access_log(logged(tmp_path, row, GOOD | {"model": "m", "cached_tokens": 0}))
    assert (log.first_ns[0], log.served_ns[0], log.outcome[0]) == (UNKNOWN, UNKNOWN, Ending.FINISHED)
    assert (log.clients, log.models, log.model.tolist()) == (("(none)", "a"), ("m",), [UNKNOWN, 0])
    bare = GOOD | {"prompt_tokens": nothing, "output_tokens": nothing}
    assert read_access_log(logged(tmp_path, GOOD, bare)).measured.tolist() == [0, 1]
    with pytest.raises(TraceError, match="columns that say prompt_tokens"):
        read_access_log(logged(tmp_path, bare, bare))
    rows = [GOOD | {"status": 500}, *[bare] * 2]
    with pytest.raises(TraceError, match="field prompt_tokens, output_tokens: expected values in some row"):
        read_access_log(logged(tmp_path, *rows))


ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(datetime(1980, 1, 1), datetime(2090, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))


def _clock(form: str, digits: int) -> Any:
    """Writes a moment in a form, with digits of a second."""

    def write(at: datetime) -> str:
        fraction = f"{at.microsecond:06}"[:digits]
        months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
        text = form.replace("%b", months[at.month - 1]).replace("%f", fraction)
        return at.strftime(text)

    return write


@given(
    at=MOMENTS,
    zone=ZONES,
    form=st.sampled_from(
        [
            *(("%Y-%m-%dT%H:%M:%S.%f%z", 6), ("%Y-%m-%d %H:%M:%S.%f %z", 3), ("%Y-%m-%d %H:%M:%S,%f%z", 3)),
            *(("%d/%b/%Y:%H:%M:%S %z", 0), ("[%d/%b/%Y:%H:%M:%S.%f %z]", 3), ("%Y/%m/%d %H:%M:%S%z", 0)),
            *(("Tue, %d %b %Y %H:%M:%S %z", 0), ("%b %d %Y %H:%M:%S.%f %z", 6), ("Tue %b %d %H:%M:%S %z %Y", 0)),
        ]
    ),
)
def test_clocks_of_servers_are_read_to_the_digit(at: datetime, zone: timezone, form: tuple[str, int]) -> None:
    """ISO 8601, nginx, HTTP and syslog, in any zone: the moment is that which was written, to its last digit."""
    text, digits = form
    written = _clock(text, digits)(at.astimezone(zone))
    assert values.unit_of_moment(written) == "iso"
    unit = 10 ** (6 - digits)
    micros = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert values.moment_reader("iso")(written) == micros // unit * unit * 1_000


@pytest.mark.parametrize(
    "text", ["10/Oct/2000:13:55:36 CET", "10/Okt/2000:13:55:36 -0700", "31/Feb/2000:13:55:36", "10/10/2000"]
)
def test_a_clock_that_is_not_known_is_refused(text: str) -> None:
    """A zone by its letters, a month of another language and a day that there is not are no times."""
    assert values.date_of(text) is None
    with pytest.raises(values.ValueFault):
        values.moment_reader("iso")(text)


def test_a_logs_zone_is_kept(tmp_path: Path) -> None:
    """What its clock is ahead of UTC is known from its times, and unknown where they count from nowhere."""
    for start, seconds in (
        ("2026-11-21 18:00:00-03:30", -12_600),
        (1700000000, 0),
        ("2026-11-21 18:00:00", 0),
        (5, None),
    ):
        log = read_access_log(logged(tmp_path, {"start": start} | {k: v for k, v in GOOD.items() if k != "start_ms"}))
        assert log.utc_offset_s == seconds


def test_times_without_a_year_are_told(tmp_path: Path) -> None:
    """Plain syslog times have none: the times between rows are right, and a note says of the year that it is not."""
    rows = [{k: v for k, v in GOOD.items() if k != "start_ms"} | {"start": f"Feb 29 13:55:{s}"} for s in (36, 38)]
    log = read_access_log(logged(tmp_path, *rows))
    assert (log.arrival_ns[1] - log.arrival_ns[0]) == 2_000 * MS
    assert any("without a year (start)" in note for note in log.notes)


@given(ms=st.integers(0, 10**8), unit=st.sampled_from(["s", "ms", "us"]))
def test_a_lengths_own_unit_is_taken(ms: int, unit: str) -> None:
    """Whatever the column's unit is, a value that names one is in that: 323ms, 1.5s, 1m2.5s, 0:01:02.500."""
    read = values.length_reader("s" if unit != "s" else "ms")
    amount = {"s": f"{ms / 1000:.3f}", "ms": f"{ms}", "us": f"{ms}000"}[unit]
    assert read(f"{amount}{unit}") == read(f"{amount} {unit}") == ms * MS
    hours, rest = divmod(ms, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    assert read(f"{hours}h{minutes}m{rest / 1000:.3f}s") == ms * MS
    assert read(f"{hours}:{minutes:02}:{rest / 1000:06.3f}") == ms * MS


@pytest.mark.parametrize(
    "text", ["5 parsecs", "ms", "-3ms", "1,234", "1,234ms", "5ms6", "1:99:00", "inf", "nan ms", "1e400"]
)
def test_a_length_that_may_mean_two_things_or_none_is_refused(text: str) -> None:
    """An unknown unit, a negative length, and a comma that may set thousands or decimals apart."""
    with pytest.raises(values.ValueFault):
        values.length_reader("ms")(text)


def test_a_comma_is_understood_where_it_means_one_thing() -> None:
    """Thousands of tokens, which are whole, and decimals that are no three digits."""
    read = values.length_reader("ms")
    assert [read(text) for text in ("1,5", "0,323", "1234,567", "1.234,5")] == [
        1_500_000,
        323_000,
        1_234_567_000,
        1_234_500_000,
    ]
    assert [read(text) for text in ("1,234,567", "1,234.5")] == [1_234_567 * MS, 1_234_500_000]
    assert [values.tokens(text) for text in ("1,234", "12", "1,234,567")] == [1_234, 12, 1_234_567]
    with pytest.raises(values.ValueFault):
        values.tokens("1,5")


@pytest.mark.parametrize("moment", ["9999-12-31T00:00:00Z", "0001-01-01T00:00:00+05:00", "2026-02-30T00:00:00Z"])
def test_a_date_that_is_none_of_ours_is_named(tmp_path: Path, moment: str) -> None:
    """Dates that 64 bits of nanoseconds do not hold are refused like those that are none."""
    path = logged(tmp_path, *(GOOD | {"start": each, "start_ms": None} for each in ("2026-11-21T18:00:00Z", moment)))
    with pytest.raises(TraceError, match="row 2, field start: expected a date"):
        read_access_log(path)


PIECES = [
    "9999",
    "0",
    "12",
    "31",
    "59",
    "60",
    "Dec",
    "/",
    "-",
    ":",
    " ",
    ",",
    ".",
    "T",
    "Z",
    "+23:59",
    "+9999",
    "ms",
    "h",
]


@given(
    text=st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
    | st.text(max_size=12)
    | st.sampled_from(["31/Dec/9999:23:59:60", "31/Dec/9999:23:59:59 -2359", "9" * 5_000, "1e999", "\u0663"])
)
def test_any_text_is_a_value_or_a_fault(text: str) -> None:
    """Nothing else is raised, whatever stands in a log or behind `--from`."""
    for read in (*map(values.moment_reader, values.UNITS), *map(values.length_reader, values.UNITS[:4]), values.tokens):
        with suppress(values.ValueFault):
            assert isinstance(read(text), int)
    with suppress(ValueError):
        When.parse(text)
