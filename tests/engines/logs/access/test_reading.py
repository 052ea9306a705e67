"""Logs as they are: any separator, encoding and packing, in one file or several, in a pipe; and what is no log."""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.logs.access import AccessLog, read_access_log
from fairsched.engines.logs.access.access_log import COLUMNS
from fairsched.engines.logs.access.reading import PLACE
from fairsched.engines.workloads import TraceError
from fairsched.engines.workloads.readers import sources
from tests.support.access_logs import GOOD, LINES, Line, logged

NAMES = ["client", "start_ms", "latency_ms", "ttft_ms", "prompt_tokens", "output_tokens", "status", "said"]
Rows = list[dict[str, Any]]


def same(log: AccessLog, other: AccessLog) -> bool:
    """Whether two logs say the same of their requests."""
    arrays = all(np.array_equal(getattr(log, name), getattr(other, name)) for name in COLUMNS if name not in PLACE)
    names = ("clients", "workers", "models", "statuses", "fields")
    return arrays and all(getattr(other, name) == getattr(log, name) for name in names)


def json_lines(rows: Rows, seed: int) -> str:
    """As JSON lines, some with blank lines between them."""
    return "".join(f"{json.dumps(row)}\n" + "\n" * (seed % 3 == 0) for row in rows)


def json_list(rows: Rows, seed: int) -> str:
    """As one JSON list."""
    return json.dumps(rows, indent=2 if seed % 2 else None)


def pretty(rows: Rows, seed: int) -> str:
    """As JSON objects, each over several lines, as `jq` prints them."""
    return "\n".join(json.dumps(row, indent=1 + seed % 4) for row in rows)


def separated(separator: str) -> Callable[[Rows, int], str]:
    """As values below a header, with quotes where these are needed or everywhere."""

    def write(rows: Rows, seed: int) -> str:
        out = io.StringIO()
        end = "\r\n" if seed % 2 else "\n"
        quoting: Literal[0, 1] = csv.QUOTE_ALL if seed % 3 == 0 else csv.QUOTE_MINIMAL
        writer = csv.DictWriter(out, NAMES, delimiter=separator, quoting=quoting, lineterminator=end)
        writer.writeheader()
        writer.writerows(row | ({} if "ttft_ms" in row else {"ttft_ms": "-"}) for row in rows)
        return out.getvalue()

    return write


FORMS = {"json": json_lines, "list": json_list, "pretty": pretty} | {
    name: separated(name) for name in (",", ";", "\t", "|")
}
ENCODINGS: dict[str, Callable[[str], bytes]] = {
    "plain": lambda text: text.encode(),
    "bom": lambda text: codecs.BOM_UTF8 + text.encode(),
    "utf-16": lambda text: text.encode("utf-16"),
}
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
if (zstd := sources._zstd()) is not None:
    PACKED[".zst"] = zstd.compress


def described(lines: list[Line], text: str) -> Rows:
    """The rows of these lines, with a text in each that a bad reader would trip over."""
    return [line.row() | {"said": text} for line in lines]


@given(
    lines=LINES,
    seed=st.integers(0, 2**32),
    form=st.sampled_from(sorted(FORMS)),
    encoding=st.sampled_from(sorted(ENCODINGS)),
    packed=st.sampled_from(sorted(PACKED)),
    parts=st.integers(1, 4),
    text=st.sampled_from(["", "héllo", 'a,b;c\td|e "quoted"', "two\nlines"]),
)
@settings(max_examples=60)
def test_a_log_is_the_same_however_it_is_written(
    lines: list[Line], seed: int, form: str, encoding: str, packed: str, parts: int, text: str
) -> None:
    """In JSON or between any separator, in any encoding and packing, in any order, and split into any files."""
    rows = described(lines, text)
    with TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.jsonl"
        plain.write_text(json_lines(rows, 1))
        random.Random(seed).shuffle(rows)
        for part in range(parts):
            written = FORMS[form](rows[part::parts], seed) if rows[part::parts] else ""
            data = ENCODINGS[encoding](written) if written else b""
            (Path(folder) / f"log.{part}{packed}").write_bytes(PACKED[packed](data))
        assert same(read_access_log(plain), read_access_log(f"{folder}/log.*"))


@pytest.mark.parametrize("separator", sorted(FORMS.keys() - {"json", "list", "pretty"}))
def test_a_separator_is_told_from_what_stands_in_values(tmp_path: Path, separator: str) -> None:
    """Other separators in values and in the header's names are no separators, not even where they are more."""
    path = tmp_path / "a.csv"
    others = "".join({",", ";", "\t", "|"} - {separator})
    names = ["start_ms", "latency_ms", "client", "prompt_tokens", "output_tokens", f"a{others}b"]
    rows = [separator.join(names), *(separator.join((f"{i}", "5", f"x{others * i}y", "1", "1", "")) for i in range(9))]
    path.write_text("\n".join(rows) + "\n")
    assert read_access_log(path).clients == tuple(sorted(f"x{others * i}y" for i in range(9)))


def test_headers_that_come_again_and_blank_lines_are_passed_over(tmp_path: Path) -> None:
    """As in files that were joined; spaces around values are none of them."""
    path = tmp_path / "a.csv"
    head = "start_ms, latency_ms, prompt_tokens, output_tokens\n"
    path.write_text(f"{head}1, 2, 3 , 4\n\n{head}2, 3, 4, 5\n")
    log = read_access_log(path)
    assert (log.prompt.tolist(), log.output.tolist()) == ([3, 4], [4, 5])


def _through(feed: Callable[[int], None], read: Callable[[int], AccessLog]) -> AccessLog:
    """What is read from a pipe while it is fed."""
    out, into = os.pipe()
    feeder = threading.Thread(target=feed, args=(into,))
    feeder.start()
    try:
        return read(out)
    finally:
        os.close(out)
        feeder.join()


@pytest.mark.parametrize("packed", sorted(PACKED))
def test_a_pipe_is_read_like_a_file(tmp_path: Path, packed: str) -> None:
    """Process substitution gives a pipe that can be opened and read once, and bytes that come in pieces."""
    rows = described([Line("a", i, 1, 2, 3, 4) for i in range(300)], "x" * 300)
    path = tmp_path / "a"
    path.write_bytes(PACKED[packed](json_lines(rows, 1).encode()))

    def feed(into: int) -> None:
        data = path.read_bytes()
        for start in range(0, 20, 3):
            os.write(into, data[start : start + 3])
        with os.fdopen(into, "wb") as file:
            file.write(data[21:])

    piped = _through(feed, lambda out: read_access_log(f"/dev/fd/{out}"))
    assert same(piped, read_access_log(path))
    assert str(piped.path) == "pipe"


def test_standard_input_is_read(tmp_path: Path) -> None:
    """A minus is standard input, beside files."""
    path = logged(tmp_path, GOOD, GOOD | {"start_ms": 7})
    code = "import sys; from fairsched.engines.logs.access import *; print(len(read_access_log(sys.argv[1:]).client))"
    with path.open("rb") as file:
        command = [sys.executable, "-c", code, "-", str(path)]
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=True)
    assert done.stdout == "4\n"


OTHER = b"start_ms;latency_s;prompt_tokens;output_tokens\n8000;1;2;3\n"


def test_several_logs_are_one(tmp_path: Path) -> None:
    """Rotated files, of another kind too, are in order of time; an empty one is said; a pattern must match."""
    (tmp_path / "access.log").write_text("")
    (tmp_path / "access.log.1").write_text(json.dumps(GOOD | {"start_ms": 9_000}))
    (tmp_path / "access.log.2.gz").write_bytes(
        gzip.compress(b"start_ms;latency_s;prompt_tokens;output_tokens\n8000;1;2;3\n")
    )
    log = read_access_log([tmp_path / "access.log.1", f"{tmp_path}/access.log", f"{tmp_path}/*.gz"])
    assert log.arrival_ns.tolist() == [8_000_000_000, 9_000_000_000]
    assert log.path.name == "access.log.1 and 2 more"
    assert "Empty files: 1 of 3." in log.notes
    assert sum(text.startswith("in ") for text in log.reading) == 2
    with pytest.raises(ValueError, match=r"nothing\*: no file matches"):
        read_access_log(f"{tmp_path}/nothing*")
    with pytest.raises(ValueError, match="named twice, and its requests would count twice"):
        read_access_log([tmp_path / "access.log.1", f"{tmp_path}/access.log.*"])


BYTES = json_lines([GOOD | {"start_ms": i, "said": str(random.Random(i).random())} for i in range(2_000)], 1).encode()


@pytest.mark.parametrize("packed", sorted(PACKED.keys() - {""}))
def test_a_packed_file_that_is_cut_off_or_broken_is_named(tmp_path: Path, packed: str) -> None:
    """In one line; what came before it is read, if rows that cannot be read are to be left out."""
    path, data = tmp_path / f"a{packed}", PACKED[packed](BYTES)
    path.write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(TraceError, match="a whole file, found one that is cut off"):
        read_access_log(path)
    if packed == ".gz":
        log = read_access_log(path, skip=True)
        assert 100 < len(log.client) < 2_000
        assert "are left out: 1; the first:" in log.notes[-1]
    path.write_bytes(data[:9] + b"\xff" * 40 + data[49:])
    with pytest.raises(TraceError, match="expected"):
        read_access_log(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "at least one request, found an empty file"),
        (b"\n\n  \n", "at least one request, found an empty file"),
        (gzip.compress(b"", mtime=0), "at least one request, found an empty file"),
        (bytes(range(256)) * 9, "a log in text, found binary data"),
        (b"PK\x03\x04rest", "a log in text, found a zip archive"),
        (b"\x80\xff\x80\xff", "row 1: expected UTF-8 text"),
        (b"[1]", "a JSON object a line, or columns between commas, semicolons, tabs or bars below a header, found [1]"),
        (b"[{]", "one JSON list, or a JSON object a line"),
        (b"GET / 200\n", "a log of a known server"),
        (b"1,2,3\n4,5,6\n", "below a header, found 1,2,3"),
        (b'{"fairsched_log": 1}\n', "an access log, found an event log, which is read from a file of its own"),
        (b"start,latency_s,prompt_tokens,output_tokens\n1,1,1\n", "expected 4 values"),
        (b"start,latency_s,prompt_tokens,output_tokens\n", "at least one request, found none"),
        (b"start,start,prompt_tokens,output_tokens\n1,1,1,1\n", "each column once"),
    ],
)
def test_a_file_that_is_no_access_log_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    """In one line that says what is there."""
    path = tmp_path / "a.log"
    path.write_bytes(data)
    with pytest.raises(TraceError) as caught:
        read_access_log(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file, a folder, a closed standard input, and a packing for which a module is missing."""
    with pytest.raises(TraceError, match="a readable file, found no such file"):
        read_access_log(tmp_path / "a")
    with pytest.raises(TraceError, match="a readable file, found is a directory"):
        read_access_log(tmp_path)
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(TraceError, match="standard input is closed"):
        read_access_log("-")
    monkeypatch.setattr(sources, "_zstd", lambda: None)
    (tmp_path / "a.zst").write_bytes(b"\x28\xb5\x2f\xfd0000")
    with pytest.raises(TraceError, match=r"pip install backports\.zstd"):
        read_access_log(tmp_path / "a.zst")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{nonsense", "row 2: expected a JSON object"),
        ("[]", "row 2: expected a JSON object, found []"),
        (GOOD | {"start_ms": "soon"}, "row 2, field start_ms: expected a time in ms since 1970, found soon"),
        (GOOD | {"prompt_tokens": -1}, "row 2, field prompt_tokens: expected a whole number of tokens"),
        (GOOD | {"prompt_tokens": 1.5}, "row 2, field prompt_tokens"),
        (
            GOOD | {"latency_ms": None, "start_ms": "-"},
            "row 2, field start_ms, latency_ms: expected values, found nothing",
        ),
        (GOOD | {"latency_ms": -3}, "row 2, field latency_ms: expected a length of time in ms, not negative"),
        (GOOD | {"ttft_ms": 50}, "row 2, field ttft_ms: expected times in order"),
        (GOOD | {"latency_ms": None}, "row 2, field latency_ms: expected a value"),
        (GOOD | {"latency_ms": float("inf")}, "row 2, field latency_ms: expected a length of time"),
        (GOOD | {"start_ms": 1e300}, "row 2, field start_ms: expected a time in ms since 1970"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, row: Any, said: str) -> None:
    """File, row and field, what was expected and found; or, if asked for, left out and counted."""
    path = tmp_path / "a.jsonl"
    text = row if isinstance(row, str) else json.dumps(row)
    path.write_text(f"{json.dumps(GOOD)}\n{text}\n{json.dumps(GOOD)}\n")
    with pytest.raises(TraceError) as caught:
        read_access_log(path)
    assert f"{path}, {said}" in str(caught.value)
    log = read_access_log(path, skip=True)
    assert len(log.client) == 2
    assert log.notes[-1].startswith("Rows that could not be read and are left out: 1;")
    assert said in log.notes[-1]


@pytest.mark.parametrize("row", ['1,"2,3,4', "1,2,3", '1,"2"x,3,4', "1,2,\xff,4"])
def test_rows_of_csv_that_cannot_be_read_are_left_out_alone(tmp_path: Path, row: str) -> None:
    """A quote that is never closed takes what follows with it; anything else is one row."""
    path = tmp_path / "a.csv"
    good = "start_ms,latency_ms,prompt_tokens,output_tokens\n1,2,3,4\n"
    path.write_bytes(f"{good}{row}\n5,6,7,8\n".encode("latin-1"))
    with pytest.raises(TraceError, match=r"row [34]"):
        read_access_log(path)
    log = read_access_log(path, skip=True)
    assert log.prompt.tolist() == ([3] if row.endswith('"2,3,4') else [3, 7])
    assert "left out: 1;" in log.notes[-1]


def test_times_without_a_zone_and_rows_that_come_twice_are_told(tmp_path: Path) -> None:
    """Local times may be off by an hour, and a log that was copied while it was turned over counts requests twice."""
    path = tmp_path / "a.csv"
    head = "start,latency_s,client,prompt_tokens,output_tokens\n"
    row, other = "2026-10-25T02:30:00,5,a,1,1\n", "2026-10-25T02:30:00,5,b,1,1\n"
    path.write_text(head + row + other)
    assert any(note.startswith("Times without a zone (start) are read as UTC") for note in read_access_log(path).notes)
    path.write_text((head + row + other + row + row).replace("00,5", "00Z,5"))
    notes = read_access_log(path).notes
    assert notes[-1] == "Rows that say the same as another, which count like any: 2."
    assert not any("zone" in note for note in notes)


def test_reading_tells_how_far_it_is(tmp_path: Path) -> None:
    """In bytes of the files as they are, packed or not; a total of 0 where a pipe does not say it."""
    told: list[tuple[int, int]] = []
    path, packed = tmp_path / "a.jsonl", tmp_path / "a.gz"
    path.write_bytes(BYTES)
    packed.write_bytes(gzip.compress(BYTES))
    read_access_log([path, packed], progress=lambda done, total: told.append((done, total)))
    total = path.stat().st_size + packed.stat().st_size
    assert told[-1] == (total, total)


@given(
    lines=LINES,
    form=st.sampled_from(sorted(FORMS)),
    packed=st.sampled_from(sorted(PACKED)),
    cuts=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 30), st.binary(max_size=8) | st.text(max_size=8))),
    skip=st.booleans(),
)
def test_whatever_a_file_holds_is_read_or_refused_in_a_line(
    lines: list[Line], form: str, packed: str, cuts: list[tuple[int, int, bytes | str]], skip: bool
) -> None:
    """Bytes that are changed, lost or added anywhere, before packing or after, raise nothing but a `ValueError`."""
    data = FORMS[form](described(lines, "a"), 1).encode()
    for i, (at, length, put) in enumerate(cuts):
        if i == len(cuts) // 2:
            data = PACKED[packed](data)
        at %= len(data) + 1
        data = data[:at] + (put if isinstance(put, bytes) else put.encode()) + data[at + length :]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(data)
        said = ""
        try:
            read_access_log(path, skip=skip)
        except ValueError as error:
            said = str(error)
        assert len(said.splitlines()) <= 1
