"""Reading a log back without trusting it: every line is checked by itself and against what was defined before.

What one line cannot show (that a request is admitted which does not wait, say) is found by replaying the log.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from fairsched.engines.logs.log_file import SCHEMA, LogError, LogFooter, LogHeader, line_of
from fairsched.model import events as ev
from fairsched.model.request import GROUPS_MAX, Client, Job, Prompt
from fairsched.model.serialization import SCHEMA as STATES_SCHEMA

# Lines that name a prompt by its request; all other lines are the events themselves.

_Count = Annotated[int, Meta(ge=0)]


class _ArrivedLine(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="Arrived"):
    time_ns: _Count
    worker: int
    request_id: int
    client: int
    prompt_tokens: int
    max_output_tokens: int
    generated_tokens: _Count = 0
    kv_tokens: _Count = 0


class _CachedLine(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="Cached"):
    time_ns: _Count
    worker: _Count
    owner: int
    blocks: _Count


class _EvictedLine(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="Evicted"):
    time_ns: _Count
    worker: _Count
    owner: int
    keep_blocks: _Count
    blocks: _Count


_LINES: dict[bytes, Any] = {kind.__name__.encode(): kind for kind in get_args(ev.Event)} | {
    b"Arrived": _ArrivedLine,
    b"Cached": _CachedLine,
    b"Evicted": _EvictedLine,
}
_COUNTED = frozenset(kind for kind in get_args(ev.Event) if {*kind.__annotations__.values()} <= {int, bool})
"""Events of numbers alone."""
_NOWHERE = (ev.Arrived, ev.Cancelled, ev.Rejected)
"""What can happen to a request that is at no worker."""
_DECODERS: dict[bytes, Any] = {name: msgspec.json.Decoder(kind).decode for name, kind in _LINES.items()}
_decode_client = msgspec.json.Decoder(tuple[Literal["client"], Client]).decode
_decode_request = msgspec.json.Decoder(tuple[Literal["request"], Job]).decode


class LogReader:
    """A log being read: iterate over it, once or again, for (line number, event) pairs in order.

    `header` is there at once, `clients` and `jobs` hold the clients and requests defined so far, `footer` the last
    line once it was read (None in the end: the run was interrupted), `sha256` hashes the events read, and `changed`
    says whether the last line's hashes are others (None: they are not, or there are none).  `capacity_tokens` is the
    most that a worker had so far: a gateway's servers come and go.  Every line is checked by itself and against the
    definitions; `LogError` says what is wrong.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        first = next(self._raw_lines(), None)
        if first is None:
            raise LogError(path, None, None, "a log of fairsched", "an empty file")
        self.header = self._header(first[1])
        self.jobs: dict[int, Job] = {}
        self._reset()

    def _reset(self) -> None:
        self.clients = list(self.header.clients)
        self.jobs.clear()
        self.footer: LogFooter | None = None
        self.events = 0
        self.line = 1
        self.changed: str | None = None
        self.capacity_tokens = self.header.run.kv_capacity_tokens
        self._hash = hashlib.sha256()
        self._file_hash = hashlib.sha256()
        self._times = [0] * self.header.run.workers

    def sha256(self) -> str:
        """Hash of the events read so far."""
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[tuple[int, ev.Event]]:
        self._reset()
        lines = self._raw_lines()
        self._file_hash.update(next(lines)[1])
        for number, raw in lines:
            self.line, line = number, raw.removesuffix(b"\n")
            if self.footer is not None:
                raise self._error(None, "nothing after the last line of a run", line.decode(errors="replace"))
            if not raw.endswith(b"\n") and not _is_json(line):
                return  # Cut off in the middle of a line, as the file of a killed run is.
            if line.startswith(b"{"):
                self._close(line)
                continue
            self._file_hash.update(raw)
            if line.startswith(b'["request"'):
                self._define(line)
            elif line.startswith(b'["client"'):
                self._define_client(line)
            else:
                event = self._event(line)
                self._check(event)
                if isinstance(event, ev.WorkerJoined):
                    self.capacity_tokens = max(self.capacity_tokens, event.kv_capacity_tokens)
                if line_of(event) != line:
                    raise self._error(None, "the canonical form " + line_of(event).decode(), line.decode())
                self._hash.update(line + b"\n")
                self.events += 1
                yield self.line, event

    def _raw_lines(self) -> Iterator[tuple[int, bytes]]:
        try:
            with self.path.open("rb") as file:
                yield from enumerate(file, 1)
        except OSError as error:
            raise LogError(self.path, None, None, "a readable file", error.strerror or str(error)) from None

    def _error(self, field: str | None, expected: str, found: object) -> LogError:
        return LogError(self.path, self.line, field, expected, found)

    def _converted(self, decode: Any, line: bytes, names: tuple[str, ...] | None = None) -> Any:
        """Return the value of a line; errors name its field by `names`, or by its place in the line."""
        try:
            return decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            text, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").lstrip(".") or None
        index = re.fullmatch(r"\[(\d+)\](.*)", field or "")
        if index and names:
            field = names[int(index[1])] + index[2] if int(index[1]) < len(names) else None
        text = text.replace("`", "")
        expected = text[9:] if text.startswith("Expected ") else f"a valid line ({text})"
        raise self._error(field, expected, line.decode(errors="replace"))

    def _header(self, raw: bytes) -> LogHeader:
        self.line = 1
        line = raw.removesuffix(b"\n")
        found = self._converted(msgspec.json.decode, line)
        if not isinstance(found, dict) or "fairsched_log" not in found:
            raise self._error(None, 'the header {"fairsched_log": ...} of a log', line.decode(errors="replace"))
        if found["fairsched_log"] != SCHEMA:
            raise self._error("fairsched_log", f"schema {SCHEMA}, the one this library reads", found["fairsched_log"])
        header: LogHeader = self._converted(msgspec.json.Decoder(LogHeader).decode, line)
        if [client.id for client in header.clients] != list(range(len(header.clients))):
            raise self._error("clients", "ids 0, 1, 2, ... in order", [client.id for client in header.clients])
        return header

    def _close(self, line: bytes) -> None:
        self.footer = self._converted(msgspec.json.Decoder(LogFooter).decode, line)
        assert self.footer is not None
        if self.footer.events != self.events:
            raise self._error("events", f"{self.events}, the number of events above", self.footer.events)
        if len(self.footer.states) != self.header.run.workers:
            raise self._error("states", f"{self.header.run.workers} digests, one a worker", len(self.footer.states))
        if self.footer.states_schema != STATES_SCHEMA:
            raise self._error("states_schema", f"{STATES_SCHEMA}, that of this library", self.footer.states_schema)
        for name, mine, what in (
            ("log_sha256", self._hash.hexdigest(), "events"),
            ("file_sha256", self._file_hash.hexdigest(), "lines"),
        ):
            said = getattr(self.footer, name)
            if said != mine and self.changed is None:
                self.changed = f"{name} is {said}, and the {what} above hash to {mine}: the log was changed"

    def _define_client(self, line: bytes) -> None:
        _, client = self._converted(_decode_client, line, ("kind", "client"))
        if client.id != len(self.clients):
            raise self._error("id", f"{len(self.clients)}, the next client", client.id)
        self.clients.append(client)

    def _define(self, line: bytes) -> None:
        _, job = self._converted(_decode_request, line, ("kind", "request"))
        if job.request.id in self.jobs:
            raise self._error("id", "a request that is not defined yet", job.request.id)
        self._client(job.request.client)
        self.jobs[job.request.id] = job

    def _event(self, line: bytes) -> ev.Event:
        name = line[2 : line.find(b'"', 2)] if line.startswith(b'["') else None
        if name is None or name not in _DECODERS:
            self._converted(msgspec.json.decode, line)
            raise self._error(None, "an event, a request or the last line", line.decode(errors="replace"))
        row = self._converted(_DECODERS[name], line, ("kind", *_LINES[name].__struct_fields__))
        if isinstance(row, _ArrivedLine):
            return self._arrived(row)
        if isinstance(row, _CachedLine):
            prompt = self._prompt(row.owner, row.blocks)
            return ev.Cached(row.time_ns, row.worker, row.owner, prompt, row.blocks)
        if isinstance(row, _EvictedLine):
            prompt = self._prompt(row.owner, row.keep_blocks + row.blocks)
            return ev.Evicted(row.time_ns, row.worker, row.owner, prompt, row.keep_blocks, row.blocks)
        event: ev.Event = row
        return event

    def _arrived(self, row: _ArrivedLine) -> ev.Arrived:
        request = self._job(row.request_id).request
        for name, known in (("prompt_tokens", request.prompt.tokens), ("max_output_tokens", request.max_output_tokens)):
            if getattr(row, name) != known:
                raise self._error(name, f"{known}, as request {request.id} is defined", getattr(row, name))
        self._owned(request.id, row.client)
        if row.generated_tokens >= request.max_output_tokens:
            raise self._error("generated_tokens", f"less than {request.max_output_tokens}", row.generated_tokens)
        context = request.prompt.tokens + row.generated_tokens
        if row.kv_tokens >= context:
            raise self._error("kv_tokens", f"less than {context}", row.kv_tokens)
        request = msgspec.structs.replace(request, arrival_ns=row.time_ns)
        return ev.Arrived(row.time_ns, row.worker, request, row.generated_tokens, row.kv_tokens)

    def _job(self, request_id: int, field: str = "request_id") -> Job:
        if request_id not in self.jobs:
            raise self._error(field, "a request that is defined above", request_id)
        return self.jobs[request_id]

    def _prompt(self, owner: int, blocks: int) -> Prompt:
        prompt = self._job(owner, "owner").request.prompt
        if blocks > prompt.blocks:
            raise self._error("blocks", f"at most the {prompt.blocks} blocks of request {owner}", blocks)
        return prompt

    def _owned(self, request_id: int, client: int) -> None:
        known = self._job(request_id).request.client
        if client != known:
            raise self._error("client", f"{known}, the client of request {request_id}", client)

    def _client(self, client: int) -> None:
        if not 0 <= client < len(self.clients):
            raise self._error("client", f"one of the {len(self.clients)} clients defined above", client)

    def _worker(self, field: str, worker: int) -> None:
        if not 0 <= worker < len(self._times):
            raise self._error(field, f"one of the {len(self._times)} workers of the header", worker)

    def _check(self, event: ev.Event) -> None:
        """Check what no single field shows: worker, client and numbers can be, and a worker's time does not run
        back."""
        worker, time_ns = event.worker, event.time_ns
        request_id: int | None = getattr(event, "request_id", None)
        if request_id is not None:
            self._owned(request_id, event.client)  # type: ignore[union-attr]
        if isinstance(event, _NOWHERE) and worker == ev.NOWHERE:
            return
        self._worker("worker", worker)
        if time_ns < self._times[worker]:
            raise self._error(
                "time_ns", f"at least {self._times[worker]}, the time of the worker's last event", time_ns
            )
        self._times[worker] = time_ns
        if isinstance(event, ev.Decoded | ev.Held | ev.Lent):
            self._check_amounts(event)
        elif type(event) in _COUNTED:
            if isinstance(event, ev.TransferStarted | ev.TransferFailed):
                self._worker("target", event.target)
            for name in event.__struct_fields__:
                if getattr(event, name) < 0:
                    raise self._error(name, "no negative number", getattr(event, name))
        elif isinstance(event, ev.ClientConfigured):
            self._client(event.client)
            if event.weight < 1:
                raise self._error("weight", "a positive integer", event.weight)
            if len(event.groups) > GROUPS_MAX or any(not name or weight < 1 for name, weight in event.groups):
                raise self._error("groups", f"at most {GROUPS_MAX} names with positive weights", event.groups)

    def _check_amounts(self, event: ev.Decoded | ev.Held | ev.Lent) -> None:
        if isinstance(event, ev.Decoded) and event.steps < 1:
            raise self._error("steps", "at least one step", event.steps)
        amounts = event.units if isinstance(event, ev.Lent) else event.tokens
        if len(event.clients) != len(amounts) or list(event.clients) != sorted(set(event.clients)):
            raise self._error("clients", "ascending clients, one for each amount", event.clients)
        for client, amount in zip(event.clients, amounts, strict=True):
            self._client(client)
            if amount < 1 and not isinstance(event, ev.Lent):
                raise self._error("tokens", "at least one token a client", amount)


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
