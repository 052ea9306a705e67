"""What trace formats share: the row that each is read into, lines of CSV and JSON, and the exact parsing of fields.

Nothing goes through a float: times are read digit by digit into integer nanoseconds (digits below a nanosecond are
dropped), lengths are plain decimal integers.  What does not parse is a `TraceError` that names the row.
"""

import csv
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

import attrs
import msgspec

from fairsched.engines.workloads.errors import TraceError
from fairsched.engines.workloads.readers.sources import Source
from fairsched.model.request import TOKENS_MAX, Prompt, Slo

NS_PER_S = 10**9
TIME_NS_MAX = 2**63 - 1
ID_MAX = 2**63 - 1

_UNITS = {"seconds": (9, "9.2e9"), "milliseconds": (6, "9.2e12")}
"""Digits after the point that a nanosecond has, and the most that fits 63 bits."""
_DECIMAL = re.compile(r"(\d{1,18})(?:\.(\d*))?", re.ASCII)
_Object = TypeVar("_Object", bound=msgspec.Struct)
_AT_FIELD = re.compile(r" - at `\$\.(\w+)")
_NAMED_FIELD = re.compile(r"(missing required|contains unknown) field `([^`]*)`")
_SCIENTIFIC = re.compile(r"\d+(\.\d*)?[eE][+-]?\d{1,3}", re.ASCII)


class TraceRow(msgspec.Struct, frozen=True):
    """One request as a trace file tells it; `row` is its 1-based line, `parents` are ids of earlier rows.

    None stands for what the file does not say.  `remark` says what is odd about the row, as the end of a sentence that
    begins with how many there are; a row without an output token is left out of the workload.
    """

    row: int
    id: int
    arrival_ns: int
    prompt: Prompt
    output_tokens: int
    client: str | None = None
    weight: int | None = None
    session: str | None = None
    priority: int = 0
    downstream_levels: int = 0
    adapter: str | None = None
    slo: Slo | None = None
    parents: tuple[int, ...] = ()
    think_ns: int = 0
    program: int | None = None
    max_output_tokens: int | None = None
    predicted_output_tokens: int | None = None
    cancel_after_ns: int | None = None
    remark: str | None = None


@attrs.frozen
class TraceFormat:
    """How a kind of trace file is read.

    `fields` are its column names or keys; `time_field` and `id_field` are where times and ids stand, for messages
    (a format without ids numbers its rows).
    """

    name: str
    summary: str
    fields: Sequence[str]
    read: Callable[[Path], Iterator[TraceRow]]
    time_field: str
    id_field: str | None


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of each line, without its end.  Raises `TraceError` on unreadable or
    undecodable."""
    with closing(Source(path)) as source:
        for row, text in source.lines():
            if isinstance(text, TraceError):
                raise text
            yield row, text


def csv_rows(path: Path, columns: Sequence[str], optional: Collection[str] = ()) -> Iterator[tuple[int, list[str]]]:
    """Row number and the values of `columns`, in that order, for each data row of a CSV file with a header.

    Of the columns that are `optional` and not there the values are empty.  Raises `TraceError` on a missing, doubled or
    unknown column, a row of another length, and broken quotes.
    """
    reader = csv.reader((text for _, text in lines(path)), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        order = [_column(path, header, name, name in optional) for name in columns]
        for name in header:
            if name not in columns or header.count(name) > 1:
                raise TraceError(path, 1, name, f"the columns {','.join(columns)}, each once", ",".join(header))
        in_order = order == list(range(len(header)))
        for values in reader:
            if len(values) != len(header):
                found = f"{len(values)} values" if values else "an empty line"
                raise TraceError(path, reader.line_num, None, f"{len(header)} values ({','.join(header)})", found)
            yield reader.line_num, values if in_order else ["" if at is None else values[at] for at in order]
    except csv.Error as error:
        raise TraceError(path, reader.line_num, None, "comma-separated values", str(error)) from None


def _column(path: Path, header: Sequence[str], name: str, optional: bool) -> int | None:
    if name not in header:
        if optional:
            return None
        raise TraceError(path, 1, name, f"a column {name}", f"the header {','.join(header)!r}")
    return header.index(name)


def read_objects(path: Path, kind: type[_Object]) -> Iterator[tuple[int, _Object]]:
    """Row number and object for each line of JSON.  Raises `TraceError` with the field that does not fit `kind`."""
    decode = msgspec.json.Decoder(kind).decode
    for row, text in lines(path):
        try:
            yield row, decode(text)
        except msgspec.ValidationError as error:
            raise _misfit(path, row, text, str(error)) from None
        except msgspec.DecodeError as error:
            found = (
                f"{text!r} ({error})" if text.strip() and len(text) < 40 else (str(error) if text else "an empty line")
            )
            raise TraceError(path, row, None, "a JSON object", found) from None


def _misfit(path: Path, row: int, text: str, message: str) -> TraceError:
    """Return the decoder's complaint as a `TraceError`: its field, what it wanted, and the value that stands there."""
    at, named = _AT_FIELD.search(message), _NAMED_FIELD.search(message)
    if named:
        field = f"{at[1]}.{named[2]}" if at else named[2]
        if named[1] == "missing required":
            return TraceError(path, row, field, f"a key {named[2]!r}", "none")
        return TraceError(path, row, field, "only keys that this format knows", f"the key {named[2]!r}")
    expected = message.split(" - at ")[0].removeprefix("Expected ").split(", got")[0].replace("`", "")
    if at is None:
        return TraceError(path, row, None, f"a JSON {expected}", repr(text))
    value = msgspec.json.decode(text)
    return TraceError(path, row, at[1], expected, repr(value[at[1]]))


def count(path: Path, row: int, field: str, text: str, *, low: int = 1, high: int = TOKENS_MAX) -> int:
    """Return a whole number from `low` to `high`, by default a length in tokens."""
    if text.isdigit() and text.isascii() and len(text) <= 19 and low <= (value := int(text)) <= high:
        return value
    what = "number of tokens" if high == TOKENS_MAX else "number"
    raise TraceError(path, row, field, f"a whole {what} from {low} to {high}", repr(text))


def seconds_ns(path: Path, row: int, field: str, text: str) -> int:
    """Return nanoseconds in a decimal number of seconds that is not negative."""
    match = _DECIMAL.fullmatch(text)
    if match:
        value = int(match[1]) * NS_PER_S + int(((match[2] or "") + "000000000")[:9])
    elif _SCIENTIFIC.fullmatch(text):
        value = int(Decimal(text).scaleb(9))
    else:
        value = -1
    if not 0 <= value <= TIME_NS_MAX:
        raise TraceError(path, row, field, "a time in seconds from 0 to 9.2e9", repr(text))
    return value


def number_ns(path: Path, row: int, field: str, value: int | Decimal, unit: str = "milliseconds") -> int:
    """Return nanoseconds in a number of seconds or milliseconds that is not negative."""
    digits, most = _UNITS[unit]
    if isinstance(value, int):
        ns = value * int(10**digits)
    else:
        # The exponent is looked at first: converting 1e999999 would build all of its digits.
        ns = int(value.scaleb(digits)) if value.is_finite() and value >= 0 and value.adjusted() < 14 else -1
    if not 0 <= ns <= TIME_NS_MAX:
        raise TraceError(path, row, field, f"a time in {unit} from 0 to {most}", str(value))
    return ns
