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
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from fairsched.engines.serving.executor import Sampling
from fairsched.engines.serving.state.snapshot import packed, write_whole
from fairsched.model.events import Decoded, Event
from fairsched.model.request import Client, Job

SCHEMA = 1
"""Version of the file."""

_encode = msgspec.json.Encoder().encode


class JournalError(ValueError):
    """A journal that breaks its format; the message names file and line."""


class _Header(msgspec.Struct, frozen=True):
    fairsched_journal: int
    after: str


class Journal:
    """A journal being written, after the snapshot of that hash.  Raises `OSError` where the file cannot be written."""

    def __init__(self, path: Path, after: str, *, sync: bool = False) -> None:
        self.path = path
        self._sync = sync
        self._file = path.open("wb", buffering=0)
        self._write(_Header(SCHEMA, after))

    def client(self, client: Client) -> None:
        """A new client."""
        self._write(("client", client))

    def request(self, job: Job) -> None:
        """A new request."""
        self._write(("request", job))

    def events(self, events: Sequence[Event]) -> None:
        """The events of one transition."""
        if events:
            self._write(("events", events))

    def prompt(self, request_id: int, prompt_ids: Sequence[int], sampling: Sampling) -> None:
        """The tokens of a request."""
        self._write(("prompt", request_id, packed(prompt_ids), sampling))

    def tokens(self, produced: Mapping[int, int]) -> None:
        """The tokens of a step, by request."""
        if produced:
            self._write(("tokens", list(produced.items())))

    def close(self) -> None:
        """Nothing more is written."""
        self._file.close()

    def _write(self, line: object) -> None:
        rest = memoryview(_encode(line) + b"\n")
        while rest:  # A disk that fills up takes a part, and raises at the next.
            rest = rest[self._file.write(rest) :]
        if self._sync:
            os.fsync(self._file.fileno())


class StateStore:
    """A state on the disk: its last snapshot, and a journal of what happened since, which names that snapshot.

    When a line cannot be written nothing more is: `failure` says why, and a restart goes back to the line before, until
    the next snapshot.  A context manager.
    """

    def __init__(self, log: logging.Logger, *, sync: bool = False) -> None:
        self.failure: OSError | None = None
        self._log = log
        self._sync = sync
        self._journal: Journal | None = None

    @property
    def is_open(self) -> bool:
        """Whether what happens is written."""
        return self._journal is not None

    def save(self, snapshot: Path, data: bytes, journal: Path, sha256: str) -> None:
        """Write a snapshot whole, and begin its journal.  Raises `OSError`; the last two then stay, and go on."""
        write_whole(snapshot, data)
        self.close()
        self.failure = None
        self._journal = Journal(journal, sha256, sync=self._sync)

    def append(self, write: Callable[[Journal], None]) -> None:
        """Write what happened."""
        if self._journal is not None:
            try:
                write(self._journal)
            except OSError as error:
                self._log.error("the journal %s cannot be written any more: %s", self._journal.path, error)
                self.failure = error
                self.close()

    def close(self) -> None:
        """Write nothing more; what is there stays."""
        if self._journal is not None:
            self._journal.close()
        self._journal = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Prompt(msgspec.Struct, frozen=True):
    """A request's tokens and how it samples."""

    request_id: int
    prompt_ids: bytes
    sampling: Sampling


class Tail(msgspec.Struct, frozen=True):
    """What a journal holds, in order of each kind; `after` is the hash of the snapshot that it goes on from.

    `transitions` are the events of each, `tokens[request_id]` those that the request produced.
    """

    after: str
    clients: tuple[Client, ...] = ()
    jobs: tuple[Job, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    transitions: tuple[tuple[Event, ...], ...] = ()
    tokens: dict[int, list[int]] = {}

    @property
    def events(self) -> Iterator[Event]:
        """All events, in order."""
        return chain.from_iterable(self.transitions)


NOTHING = Tail("")
"""The tail when nothing happened."""

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

    A torn last line is left out; any other that breaks the format is a `JournalError`.
    """
    if not path.exists():
        return NOTHING
    lines = path.read_bytes().split(b"\n")
    whole = lines[:-1]  # The last one has no end.
    if not whole:
        return NOTHING
    try:
        header = msgspec.json.decode(whole[0], type=_Header)
    except msgspec.DecodeError as error:
        raise JournalError(f"{path}, line 1: this is no journal of fairsched: {error}") from error
    if header.fairsched_journal != SCHEMA:
        raise JournalError(
            f"{path}, line 1: this library reads schema {SCHEMA}, and this is {header.fairsched_journal}"
        )
    reader = _Reader()
    for number, line in enumerate(whole[1:], 2):
        decode = _DECODERS.get(line.partition(b",")[0])
        try:
            if decode is None:
                raise msgspec.DecodeError(f"no line begins so: {line[:20].decode(errors='replace')}")
            reader.take(*decode(line))
        except msgspec.DecodeError as error:
            raise JournalError(f"{path}, line {number}: {error}") from error
    return Tail(
        header.after,
        tuple(reader.clients),
        tuple(reader.jobs),
        tuple(reader.prompts.values()),
        tuple(reader.transitions),
        reader.tokens,
    )


class _Reader:
    """What was read so far."""

    def __init__(self) -> None:
        self.clients: list[Client] = []
        self.jobs: list[Job] = []
        self.prompts: dict[int, Prompt] = {}
        self.transitions: list[tuple[Event, ...]] = []
        self.tokens: dict[int, list[int]] = {}
        self._produced: list[tuple[int, int]] = []

    def take(self, kind: str, *values: Any) -> None:
        """One line."""
        match kind:
            case "client":
                self.clients += values
            case "request":
                self.jobs += values
            case "prompt":
                self.prompts[values[0]] = Prompt(*values)
            case "events":
                self._happened(tuple(values[0]))
            case _:
                self._produced = values[0]

    def _happened(self, events: tuple[Event, ...]) -> None:
        """The tokens of a step count when it is over; an executor that failed over them did not produce any."""
        self.transitions.append(events)
        if any(isinstance(event, Decoded) for event in events):
            for request_id, token in self._produced:
                self.tokens.setdefault(request_id, []).append(token)
        self._produced = []
