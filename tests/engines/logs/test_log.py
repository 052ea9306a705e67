"""The canonical log is one sequence of bytes for one run, and a file that breaks its format is named at its place."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.logs import CanonicalLog, LogReader
from fairsched.engines.logs.log_file import LogError
from fairsched.engines.workloads import generate
from fairsched.model.events import Cancelled, Decoded
from fairsched.model.machine import DEFAULT_PRESET, PRESETS
from fairsched.model.request import Workload
from tests.support.logs import RUNS, Case, write


@given(RUNS)
@settings(max_examples=60)
def test_a_run_has_one_log(run: tuple[Workload, Case]) -> None:
    """Run twice, leaping or step by step: the hash is the same, and so is all of the file but the word `leap`."""
    workload, case = run
    with TemporaryDirectory() as folder:
        first, second, other = (
            write(Path(folder) / name, workload, attrs.evolve(case, leap=leap))
            for name, leap in (("a", True), ("b", True), ("c", False))
        )
        assert first.path.read_bytes() == second.path.read_bytes()
        assert first.log_sha256 == other.log_sha256
        assert first.path.read_bytes().splitlines()[1:-1] == other.path.read_bytes().splitlines()[1:-1]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3)), max_size=12), st.data())
def test_decode_runs_are_summed_per_worker(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    """Decode runs in any pieces, with other workers' events in between, leave one line for each worker's run."""
    time_ns = 0
    whole, pieces = CanonicalLog(), CanonicalLog()
    for worker, steps in runs:
        cut = data.draw(st.integers(0, steps - 1))
        for part in filter(None, (cut, steps - cut)):
            time_ns += part
            pieces.record([Decoded(time_ns, worker, part, (0, 3), (part, 2 * part))])
        whole.record([Decoded(time_ns, worker, steps, (0, 3), (steps, 2 * steps))])
        if data.draw(st.booleans()):
            for log in (whole, pieces):
                log.record([Cancelled(time_ns, 1 - worker, 0, 0, False, 0, 0)])
    assert whole.sha256() == pieces.sha256()


# --- bad files ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The lines of a good log."""
    case = Case("dlpm", kv_capacity_tokens=20_000, latency=PRESETS[DEFAULT_PRESET])
    written = write(tmp_path_factory.mktemp("good") / "log", generate("demo", limit=30), case)
    return written.path.read_bytes().splitlines()


def changed(line: bytes, change: Callable[[Any], None]) -> bytes:
    """The line with its value changed in place."""
    value = msgspec.json.decode(line)
    change(value)
    return msgspec.json.encode(value)


def first(lines: list[bytes], kind: str) -> int:
    """Index of the first event of a kind."""
    return next(i for i, line in enumerate(lines) if line.startswith(f'["{kind}"'.encode()))


def put(at: Any, value: Any) -> Callable[[Any], None]:
    """Set an item."""

    def change(row: Any) -> None:
        row[at] = value

    return change


@pytest.mark.parametrize(
    ("kind", "change", "field", "message"),
    [
        ("Admitted", put(1, "soon"), "time_ns", "expected int, got str"),
        ("Admitted", put(1, -5), "time_ns", "expected at least"),
        ("Admitted", put(2, 7), "worker", "expected one of the 1 workers of the header, found 7"),
        ("Admitted", put(3, 999), "request_id", "expected a request that is defined above, found 999"),
        ("Admitted", put(4, 3), "client", "the client of request 0, found 3"),
        ("Admitted", put(5, -1), "extend_tokens", "expected no negative number, found -1"),
        ("Admitted", lambda row: row.pop(), None, "expected array of at least length 8, got 7"),
        ("Admitted", lambda row: row.append(1), None, "expected the canonical form"),
        ("Admitted", put(0, "Admited"), None, "expected an event, a request or the last line"),
        ("Arrived", put(5, 17), "prompt_tokens", "as request 0 is defined, found 17"),
        ("Arrived", put(2, -2), "worker", "expected one of the 1 workers of the header, found -2"),
        ("Cached", put(4, 10**6), "blocks", "expected at most the"),
        ("Cached", put(3, 999), "owner", "expected a request that is defined above"),
        ("Finished", put(1, 5), "time_ns", "expected at least "),
        ("Decoded", put(3, 0), "steps", "expected at least one step, found 0"),
        ("Decoded", put(4, [1, 0]), "clients", "expected ascending clients"),
        ("Decoded", put(5, [0]), "tokens", "expected at least one token a client"),
        ("Decoded", put(4, [44]), "client", "expected one of the 4 clients defined above, found 44"),
        ("request", lambda row: row[1]["request"].pop("client"), "request.request", "missing required field client"),
        ("request", lambda row: row[1].update(output_tokens=0), "request", "output_tokens is 0, outside 1 to"),
        ("request", lambda row: row[1]["request"].update(client=9), "client", "expected one of the 4 clients"),
        ("request", lambda row: row[1]["request"]["prompt"].update(keys="?"), "request.request.prompt.keys", "base64"),
    ],
)
def test_bad_line_is_named(
    kind: str, change: Callable[[Any], None], field: str | None, message: str, lines: list[bytes], tmp_path: Path
) -> None:
    """A line that breaks the format: the error names file, line and field, and says what was expected."""
    at = first(lines, kind)
    bad = [*lines]
    bad[at] = changed(lines[at], change)
    error = error_of(b"\n".join(bad) + b"\n", tmp_path)
    place = f"{tmp_path / 'log'}, line {at + 1}" + (f", field {field}: " if field else ": ")
    assert str(error).startswith(place), error
    assert message in str(error)
    assert (error.line, error.field) == (at + 1, field)


@pytest.mark.parametrize(
    ("number", "text", "message"),
    [
        (0, b"", "expected a log of fairsched"),
        (0, b"hello", "line 1: expected a valid line (JSON is malformed"),
        (0, b"[1]", 'line 1: expected the header {"fairsched_log": ...} of a log'),
        (0, b'{"fairsched_log": 2}', "field fairsched_log: expected schema 1, the one this library reads, found 2"),
        (0, b'{"fairsched_log": 1}', "line 1: expected"),
        (3, b"not json", "line 4: expected a valid line (JSON is malformed"),
        (3, b'["Arrived", ', "line 4: expected a valid line (Input data was truncated)"),
        (3, b"\xff\xfe", "line 4: expected"),
        (3, b"", "line 4: expected"),
        (3, b"{}", "line 4: expected a valid line (Object missing required field events)"),
    ],
)
def test_bad_text_is_named(number: int, text: bytes, message: str, lines: list[bytes], tmp_path: Path) -> None:
    """A line that is no JSON, a file that is no log, a log of another version: each has its one-line error."""
    bad = [*lines]
    bad[number] = text
    error = error_of(b"\n".join(bad) + b"\n" if number or text else b"", tmp_path)
    assert message in str(error)
    assert "\n" not in str(error)


def test_definitions_come_once_and_first(lines: list[bytes], tmp_path: Path) -> None:
    """A request defined twice, or used before its definition, is refused."""
    at = first(lines, "request")
    twice = [*lines[: at + 1], lines[at], *lines[at + 1 :]]
    assert "expected a request that is not defined yet" in str(error_of(b"\n".join(twice), tmp_path))
    never = [*lines[:at], *lines[at + 1 :]]
    assert "expected a request that is defined above" in str(error_of(b"\n".join(never), tmp_path))


def test_last_line_is_the_last_and_counts(lines: list[bytes], tmp_path: Path) -> None:
    """Nothing follows the last line, and it knows how many events and workers there were."""
    assert "expected nothing after the last line" in str(error_of(b"\n".join([*lines, lines[-2]]), tmp_path))
    assert "field events: expected" in str(error_of(b"\n".join([*lines[:-2], lines[-1]]), tmp_path))
    for field, value, said in (("states", [], "expected 1 digests"), ("states_schema", 0, "that of this library")):
        bad = changed(lines[-1], put(field, value))
        assert f"field {field}: expected " in (error := str(error_of(b"\n".join([*lines[:-1], bad]), tmp_path)))
        assert said in error


def test_missing_file_is_said(tmp_path: Path) -> None:
    """A path with no file, or a folder, gives one line."""
    with pytest.raises(LogError, match=r"nothing: expected a readable file, found No such file"):
        LogReader(tmp_path / "nothing")
    with pytest.raises(LogError, match=r"expected a readable file, found Is a directory"):
        LogReader(tmp_path)


def error_of(raw: bytes, folder: Path) -> LogError:
    """The error that reading these bytes to the end raises."""
    path = folder / "log"
    path.write_bytes(raw)
    with pytest.raises(LogError) as caught:
        for _ in LogReader(path):
            pass
    return caught.value
