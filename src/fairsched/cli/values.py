"""Values of options, written alike in every command: each type says how its text is read and what help calls it.

A whole number may have a suffix: 8k is 8,000 and 32Ki is 32,768 (k, M, G, T; Ki, Mi, Gi, Ti).  A length of time is 5s,
500ms, 20us, 2min or 1h; a number without a unit is seconds.  Each value has a largest one, so that what could never be
computed is refused at once.  A list in `fairsched.toml` is the same as its parts with commas between them.
"""

import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fairsched.policies.validators import WHOLE_MAX, found, whole_number

WORKERS_MAX = 10_000
"""Workers, GPUs or processes of one run; a simulated worker takes memory from the start."""
JOBS_MAX = 1024
"""Processes, or threads of one."""
NS_MAX = 2**62

_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s|min|h)?")
_NS = {"us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}


def read(reader: Callable[[str], object], metavar: str, **more: Any) -> Parameter:
    """Return how an option is read from one text."""

    def convert(_: object, tokens: Iterable[Any]) -> object:
        return reader(",".join(token.value for token in tokens))

    options: dict[str, Any] = {"converter": convert, "metavar": metavar, "n_tokens": 1, "allow_leading_hyphen": True}
    return Parameter(**options | more)


def each(reader: Callable[[str], object], metavar: str) -> Parameter:
    """Return how an option is read that may be repeated: a tuple of its values."""

    def convert(_: object, tokens: Iterable[Any]) -> object:
        return tuple(reader(token.value) for token in tokens)

    return read(reader, metavar, converter=convert, allow_repeating=True)


def joined(sign: str) -> Callable[[Iterable[object]], str]:
    """Return how the default of a value with parts is shown."""
    return lambda value: sign.join(map(str, value))


def number(text: str, expected: str, fits: Callable[[float], bool]) -> float:
    """Return the number in a text; the error says what was expected if there is none, or it does not fit."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not fits(value):
        raise ValueError(f"expected {expected}, found {found(text)}")
    return value


def whole(expected: str, least: int = 0, most: int = WHOLE_MAX) -> Callable[[str], int]:
    """Return what reads a whole number from `least` to `most`, with or without a suffix."""

    def reader(text: str) -> int:
        value = whole_number(text)
        if value is None or not least <= value <= most:
            limit = f" of at most {most:,}" if value is not None and value > most else ""
            raise ValueError(f"expected {expected}{limit}, found {found(text)}")
        return value

    return reader


positive_int = whole("a positive whole number", 1)
worker_count = whole("a positive whole number", 1, WORKERS_MAX)
job_count = whole("a positive whole number", 1, JOBS_MAX)


def positive_number(text: str) -> float:
    """Return a positive number."""
    return number(text, "a positive number, from 1e-9 to 1e12", lambda value: 1e-9 <= value <= 1e12)


def share(text: str) -> float:
    """Return a share from 0 to 1."""
    return number(text, "a share from 0 to 1", lambda value: 0 <= value <= 1)


def names(text: str) -> tuple[str, ...]:
    """Return names separated by commas."""
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts:
        raise ValueError("expected names separated by commas")
    if len(set(parts)) < len(parts):
        raise ValueError(f"a name is given twice in {found(text)}")
    return parts


def counts(text: str) -> tuple[int, ...]:
    """Return positive whole numbers separated by commas."""
    return tuple(worker_count(part) for part in names(text))


def time_ns(text: str) -> int | None:
    """Return a length of time in nanoseconds, in seconds unless it names a unit; None if it is none."""
    matched = _TIME.fullmatch(text.strip())
    value = float(matched[1]) * _NS[matched[2] or "s"] if matched else math.inf
    return round(value) if value <= NS_MAX else None


def span(text: str, least_ns: int = 1) -> int:
    """Return a length of time of at least `least_ns`, in nanoseconds."""
    value = time_ns(text)
    if value is None or value < least_ns:
        raise ValueError(f"expected a length of time as 5s, 500ms or 2min, or a number of seconds, found {found(text)}")
    return value


def in_seconds(span_ns: int | None) -> str | None:
    """Return a length of time as help shows it."""
    return None if span_ns is None else f"{span_ns / 1e9:g}s"


def assignment(text: str, form: str = "PARAM=VALUE") -> tuple[str, str]:
    """Return the parameter and the value of `PARAM=VALUE`; `form` is what an error asks for."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise ValueError(f"expected {form}, found {found(text)}")
    return name, value


def pairs(text: str) -> dict[str, str]:
    """Return the parameters behind a name, `PARAM=VALUE,...`."""
    values: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or key in values:
            raise ValueError(f"expected PARAM=VALUE once each after the name, found {found(part)}")
        of, dot, param = key.rpartition(".")
        values[of + dot + param.replace("-", "_")] = value
    return values


def document(text: str) -> Path:
    """Return the file of a document; `-` is standard output."""
    if not text or (text.startswith("-") and text != "-"):
        raise ValueError(f"expected a file, or - for standard output, found {found(text)}")
    return Path(text)


def folder(text: str) -> Path:
    """Return a folder or a file."""
    if not text or text.startswith("-"):
        raise ValueError(f"expected a path, found {found(text)}")
    return Path(text)


def address(text: str) -> tuple[str, int]:
    """Return the host and the port of `HOST:PORT`."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError(f"expected HOST:PORT with a port from 0 to 65535, found {found(text)}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def torch_device(text: str) -> tuple[str, int]:
    """Return where torch computes, and its threads."""
    name, colon, threads = text.partition(":")
    if name not in ("cpu", "cuda") or (colon and name == "cuda"):
        raise ValueError(f"expected cpu, cpu:THREADS or cuda, found {found(text)}")
    return name, job_count(threads) if colon else 1


PositiveInt = Annotated[int, read(positive_int, "N")]
Natural = Annotated[int, read(whole("a whole number"), "N")]
WorkerCount = Annotated[int, read(worker_count, "N")]
Count = Annotated[int, read(job_count, "N")]
Counts = Annotated[tuple[int, ...], read(counts, "N,...")]
PositiveNumber = Annotated[float, read(positive_number, "X")]
Names = Annotated[tuple[str, ...], read(names, "A,B,...")]
Time = Annotated[int, read(span, "TIME", show_default=in_seconds)]
Assignments = Annotated[tuple[tuple[str, str], ...], each(assignment, "PARAM=VALUE")]
Texts = Annotated[tuple[str, ...], each(str, "TEXT")]
File = Annotated[Path, read(folder, "FILE")]
Folder = Annotated[Path, read(folder, "DIR")]
Seed = Annotated[int, read(whole("a whole number"), "S", help="seed of all random draws")]
Json = Annotated[Path | None, read(document, "FILE", help="write every figure; - is standard output")]
Report = Annotated[Path | None, read(folder, "DIR", help="write an HTML report with plots")]
Events = Annotated[Path | None, read(folder, "FILE", help="write every event, for `fairsched audit`")]


def settings_by_name(texts: tuple[str, ...], form: str) -> dict[str, dict[str, str]]:
    """Return the parameters of `--set` in this form, by whose they are, each given once."""
    given: dict[str, dict[str, str]] = {}
    for text in texts:
        target, equals, value = text.partition("=")
        name, _, param = target.rpartition(".")
        if not equals or not name or not param:
            raise ValueError(f"--set {text!r}: expected {form}")
        if param in given.setdefault(name, {}):
            raise ValueError(f"--set {text!r}: {target} is set twice")
        given[name][param] = value
    return given


def settings(given: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return the parameters of `--set`, each given once."""
    found = dict(given)
    if len(found) < len(given):
        raise ValueError("--set: a parameter is set twice")
    return found
