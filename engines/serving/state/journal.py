"""A journal: what happened since the last snapshot of a state, written before a caller hears of it.

Snapshots cost as much as the state is large, and are taken now and then; a journal costs a line a transition.  It has
what a restart needs beside a snapshot: clients, requests with their tokens, every event as it was told (not summed, as
in the log of `engines.serving.log`), and the tokens of every step.  Each line is one write to the file: a process that
is killed leaves at most its last line torn, which is then left out.  With `sync` a line is on the disk before the
engine goes on, and survives the machine too.

    {"fairsched_journal": 1, "after": "<SHA-256 of the snapshot>"}
    ["client", {...}]   ["request", {...}]   ["prompt", 7, "<tokens>", {...}]
    ["events", [["Arrived", ...], ...]]
    ["tokens", [[7, 1234], ...]]
"""

import logging
import os
from collections.abc import Iterator
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self

import attrs
import msgspec

from fairsched.engines.files import write_whole
from fairsched.engines.serving.executor import Sampling
from fairsched.engines.serving.state.snapshot import Open
from fairsched.model.events import Decoded, Event
from fairsched.model.request import Client, Job

SCHEMA = 1
"""Version of the file."""

_encode = msgspec.json.Encoder().encode


class _Header(msgspec.Struct, frozen=True):
    fairsched_journal: int
    after: str


class StateStore:
    """A state on the disk: its last snapshot, and a journal of what happened since, which names that snapshot.

    When a line cannot be written nothing more is: `failure` says why, and a restart goes back to the line before, until
    the next snapshot.  A context manager.
    """

    def __init__(self, log: logging.Logger, *, sync: bool = False) -> None:
        self.failure: OSError | None = None
        self._log = log
        self._sync = sync
        self._file: FileIO | None = None
        self._path: Path | None = None

    def save(self, snapshot: Path, data: bytes, journal: Path, sha256: str) -> None:
        """Write a snapshot whole, and begin its journal.  Raises `OSError`; the last two then stay, and go on."""
        write_whole(snapshot, data, sync=True)
        self.close()
        self.failure, self._path = None, journal
        file = journal.open("wb", buffering=0)
        try:
            self._write(file, _Header(SCHEMA, sha256))
        except OSError:
            file.close()
            raise
        self._file = file

    def append(self, kind: str, *values: object) -> None:
        if self._file is not None:
            try:
                self._write(self._file, (kind, *values))
            except OSError as error:
                self.failed(error)

    def failed(self, error: OSError) -> None:
        """Write no more, since the disk takes no more."""
        self._log.error("the journal %s cannot be written any more: %s", self._path, error)
        self.failure = error
        self.close()

    def _write(self, file: FileIO, line: object) -> None:
        rest = memoryview(_encode(line) + b"\n")
        while rest:  # A disk that fills up takes a part, and raises at the next.
            rest = rest[file.write(rest) :]
        if self._sync:
            os.fsync(file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@attrs.define
class Tail:
    """What a journal holds, in order of each kind; `after` is the hash of the snapshot that it goes on from.

    `prompts` are the requests that came, `transitions` the events of each, and `tokens[request_id]` those that the
    request produced.
    """

    after: str = ""
    clients: list[Client] = attrs.field(factory=list)
    jobs: list[Job] = attrs.field(factory=list)
    prompts: dict[int, Open] = attrs.field(factory=dict)
    transitions: list[list[Event]] = attrs.field(factory=list)
    tokens: dict[int, list[int]] = attrs.field(factory=dict)
    _produced: list[tuple[int, int]] = attrs.field(factory=list)

    @property
    def events(self) -> Iterator[Event]:
        return chain.from_iterable(self.transitions)

    def take(self, kind: str, *values: Any) -> None:
        match kind:
            case "client":
                self.clients += values
            case "request":
                self.jobs += values
            case "prompt":
                self.prompts[values[0]] = Open(*values)
            case "events":
                self.transitions += values
                # The tokens of a step count when it is over; an executor that failed over them did not produce any.
                if any(isinstance(event, Decoded) for event in values[0]):
                    for request_id, token in self._produced:
                        self.tokens.setdefault(request_id, []).append(token)
                self._produced = []
            case _:
                self._produced = values[0]


_LINES: dict[bytes, Any] = {
    b'["client"': tuple[Literal["client"], Client],
    b'["request"': tuple[Literal["request"], Job],
    b'["prompt"': tuple[Literal["prompt"], int, bytes, Sampling],
    b'["events"': tuple[Literal["events"], list[Event]],
    b'["tokens"': tuple[Literal["tokens"], list[tuple[int, int]]],
}
_DECODERS = {start: msgspec.json.Decoder(kind).decode for start, kind in _LINES.items()}


def read_journal(path: Path) -> Tail:
    """Return what a journal holds, nothing if there is none.

    A torn last line is left out; any other that breaks the format is a `ValueError`.
    """
    if not path.exists():
        return Tail()
    lines = path.read_bytes().split(b"\n")
    whole = lines[:-1]  # The last one has no end.
    if not whole:
        return Tail()
    tail = Tail(_after(path, whole[0]))
    for number, line in enumerate(whole[1:], 2):
        _take(tail, path, number, line)
    return tail


def _after(path: Path, line: bytes) -> str:
    try:
        header = msgspec.json.decode(line, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}, line 1: this is no journal of fairsched: {error}") from error
    if header.fairsched_journal != SCHEMA:
        raise ValueError(f"{path}, line 1: this library reads schema {SCHEMA}, and this is {header.fairsched_journal}")
    return header.after


def _take(tail: Tail, path: Path, number: int, line: bytes) -> None:
    decode = _DECODERS.get(line.partition(b",")[0])
    try:
        if decode is None:
            raise msgspec.DecodeError(f"no line begins so: {line[:20].decode(errors='replace')}")
        tail.take(*decode(line))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}, line {number}: {error}") from error
