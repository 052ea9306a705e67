"""A run's log as a file of JSON lines: what is in it, and how a run streams it out.

The canonical log has one line an event, the same bytes on every machine, and a hash.  A decode run is one line in it,
however many calls it took: consecutive `decoded` events of a worker with nothing of that worker in between are summed.
So a simulator that leaps over steps and one that takes them one by one write one log.

The first line of a file says what was run.  Then every event stands as the canonical log has it, and before the first
event of a request a line defines it, with its prompt and the truth about its output (where it is
unknown yet, the most that it may be); a client that the first line does not name is defined before its first
request.  Definitions are no events and not in the log's hash.  The last line holds the number of events, their hash,
the digest of every worker's policy state, and the hash of all lines above it; an interrupted run has no such line.

    {"fairsched_log": 1, "fairsched": "0.1.0", "run": {...}, "clients": [...]}
    ["client", {"id": 0, ...}]
    ["request", {"request": {"id": 0, ...}, "output_tokens": 12, ...}]
    ["Arrived", 0, 0, 0, 3, 512, 256]
    {"events": 1, "log_sha256": "...", "states": ["..."], "file_sha256": "..."}
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from itertools import compress, count
from pathlib import Path
from typing import Annotated, Any

import attrs
import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from fairsched.model.events import Arrived, Cached, ClientConfigured, Decoded, Event, Evicted, Migrated, WorkerJoined
from fairsched.model.machine import LatencyModel
from fairsched.model.request import Client, Job, Workload
from fairsched.model.serialization import SCHEMA as STATES_SCHEMA
from fairsched.model.serialization import digest
from fairsched.policies.gates import Terms, on_lease
from fairsched.policies.guarantees import WindowTerms
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import local_policy, with_parameters

_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines
_BATCH = 4096
_BY_REFERENCE = frozenset({Arrived, Cached, Evicted, ClientConfigured, Migrated, WorkerJoined})


def by_reference(event: Event) -> object:
    """Return an event as the log writes it: prompts are named by the request that brought them, and no groups, no host
    memory and no KV that is to be sent are left out."""
    match event:
        case Arrived(request=r):
            line = ("Arrived", event.time_ns, event.worker, r.id, r.client, r.prompt.tokens, r.max_output_tokens)
            if event.kv_tokens:
                return (*line, event.generated_tokens, event.kv_tokens)
            return (*line, event.generated_tokens) if event.generated_tokens else line
        case Cached():
            return ("Cached", event.time_ns, event.worker, event.owner, event.blocks)
        case Evicted():
            return ("Evicted", event.time_ns, event.worker, event.owner, event.keep_blocks, event.blocks)
        case Migrated(kv_tokens=0):
            return ("Migrated", *msgspec.structs.astuple(event)[:-1])
        case ClientConfigured(groups=()):
            return ("ClientConfigured", event.time_ns, event.worker, event.client, event.weight)
        case WorkerJoined(keep_ns=0, adapter_slots=0) if event.host_capacity_tokens:
            return ("WorkerJoined", *msgspec.structs.astuple(event)[:-2])
        case WorkerJoined(keep_ns=0, adapter_slots=0):
            return ("WorkerJoined", event.time_ns, event.worker, event.kv_capacity_tokens)
        case WorkerJoined(adapter_slots=0):
            return ("WorkerJoined", *msgspec.structs.astuple(event)[:-1])
    return event


def line_of(event: Event) -> bytes:
    """Return an event's line: kind, time, worker, and its numbers."""
    return _encode(by_reference(event))


class CanonicalLog:
    """Collects events in the order of a run, coalesces decode runs, and hashes the lines.

    `sink` receives each event as it stands in the log, with its line.
    """

    def __init__(self, sink: Callable[[Event, bytes], None] | None = None) -> None:
        self._hash = hashlib.sha256()
        self._batch: list[Event] = []
        self._decoding: dict[int, Decoded] = {}
        self._sink = sink
        self._batched = 1 if sink is not None else _BATCH

    def record(self, events: Iterable[Event]) -> None:
        """Write the next events of the run, in order."""
        decoding, batch = self._decoding, self._batch
        for event in events:
            worker = event.worker
            if type(event) is Decoded:
                decoding[worker] = merged(decoding[worker], event) if worker in decoding else event
                continue
            if worker in decoding:
                batch.append(decoding.pop(worker))
            batch.append(event)
        if len(batch) >= self._batched:
            self._flush()

    def _flush(self) -> None:
        """Encode and hash what was collected; a sink wants every line at once, since the run may be cut off."""
        batch = self._batch
        rows: list[object] = list(batch)
        for i in compress(count(), map(_BY_REFERENCE.__contains__, map(type, batch))):
            rows[i] = by_reference(batch[i])
        lines = _encode_lines(rows)
        self._hash.update(lines)
        if self._sink is not None:
            for event, line in zip(batch, lines.splitlines(), strict=True):
                self._sink(event, line)
        batch.clear()

    def sha256(self) -> str:
        """Return the hash of all lines; open decode runs are written first, in order of their workers."""
        for worker in sorted(self._decoding):
            self._batch.append(self._decoding[worker])
        self._decoding.clear()
        self._flush()
        return self._hash.hexdigest()


def merged(first: Decoded, second: Decoded) -> Decoded:
    """Return two decode runs of one worker as one."""
    if first.clients == second.clients:
        tokens = tuple([a + b for a, b in zip(first.tokens, second.tokens, strict=True)])
        return Decoded(second.time_ns, second.worker, first.steps + second.steps, first.clients, tokens)
    produced = dict(zip(first.clients, first.tokens, strict=True))
    for client, more in zip(second.clients, second.tokens, strict=True):
        produced[client] = produced.get(client, 0) + more
    clients = tuple(sorted(produced))
    tokens = tuple(produced[client] for client in clients)
    return Decoded(second.time_ns, second.worker, first.steps + second.steps, clients, tokens)


SCHEMA = 1
"""Version of the file; it grows when a line's meaning changes."""

_FOUND_CHARS_MAX = 80


class LogError(ValueError):
    """A log file that breaks its format; the message is one line: file, line, field, what was expected and found.

    `line` is 1-based (None: the file as a whole), `field` the name of the field (None: the whole line).
    """

    def __init__(self, path: Path, line: int | None, field: str | None, expected: str, found: object = None) -> None:
        self.path = path
        self.line = line
        self.field = field
        place = str(path) + (f", line {line}" if line is not None else "") + (f", field {field}" if field else "")
        text = found if isinstance(found, str) else repr(found)
        text = text if len(text) <= _FOUND_CHARS_MAX else text[: _FOUND_CHARS_MAX - 3] + "..."
        super().__init__(f"{place}: expected {expected}" + ("" if found is None else f", found {text}"))


class RunInfo(Struct, frozen=True):
    """What was run: the policy by name with all its parameters as text, router, cluster and workload.

    `workers` is how many there ever were, `latencies` the model of each where they differ, `kv_capacity_tokens` what
    the largest holds.  `windows` are the tokens of a gateway's servers, whose one worker is its window, and `terms`
    what it reserves and what holding costs there; `state` is the policy's state that a run went on from, `lease` says
    on which terms its clients' credit is on lease from an account of several gateways.  `begun_ns` is when the
    gateway's log has its time 0, in nanoseconds since 1970 by the clock of its machine.
    """

    policy: str
    params: dict[str, str]
    router: str
    workers: Annotated[int, Meta(ge=1)]
    kv_capacity_tokens: Annotated[int, Meta(ge=1)]
    latency: LatencyModel
    workload: str
    leap: bool = True
    seed: int | None = None
    latencies: tuple[LatencyModel, ...] = ()
    windows: tuple[int, ...] = ()
    terms: WindowTerms | None = None
    state: dict[str, Any] | None = None
    lease: Terms | None = None
    begun_ns: int | None = None

    def latency_of(self, worker: int) -> LatencyModel:
        """Return how long the steps of a worker take."""
        return self.latencies[worker] if self.latencies else self.latency


class LogHeader(Struct, frozen=True):
    """The first line: schema, the library's version, the run, and the clients by id."""

    fairsched_log: int
    fairsched: str
    run: RunInfo
    clients: tuple[Client, ...]


def logged_policy(header: LogHeader) -> ComposedPolicy:
    """Return the policy that a log names, with its parameters.

    Raises `ValueError` where it is neither shipped nor can be imported.
    """
    policy, lease = with_parameters(local_policy(header.run.policy), header.run.params), header.run.lease
    return policy if lease is None else attrs.evolve(policy, gate=on_lease(policy.gate, lease.lease, lease.holders))


class LogFooter(Struct, frozen=True):
    """The last line: how many events there are, their hash, the digest of each worker's policy state, and the hash of
    all lines above, definitions included.

    `states_schema` is the version of the documents of states whose digests these are.
    """

    events: int
    log_sha256: str
    states: tuple[str, ...]
    file_sha256: str
    states_schema: int


class LogWriter:
    """Writes a log while the run goes on: a context manager, and the `sink` of a `CanonicalLog`.

    Leaving the context without `complete` leaves the log of an interrupted run.
    """

    def __init__(self, path: Path, version: str, run: RunInfo, workload: Workload) -> None:
        self._file = path.open("wb")
        self._undefined = {job.request.id: job for job in workload.jobs}
        self._events = 0
        self._hash = hashlib.sha256()
        self._put(LogHeader(SCHEMA, version, run, workload.clients))

    def define_client(self, client: Client) -> None:
        """Define a client that the first line does not name: the next number."""
        self._put(("client", client))

    def define_request(self, job: Job) -> None:
        """Define a request that is not in the workload; its line comes with its first event."""
        self._undefined[job.request.id] = job

    def __call__(self, event: Event, line: bytes) -> None:
        """Write an event's line, after the definition of its request when it is the first."""
        request_id = event.request.id if isinstance(event, Arrived) else getattr(event, "request_id", None)
        job = None if request_id is None else self._undefined.pop(request_id, None)
        if job is not None:
            if isinstance(event, Arrived):
                # What was predicted is known only now.
                predicted = event.request.predicted_output_tokens
                job = replace(job, request=replace(job.request, predicted_output_tokens=predicted))
            self._put(("request", job))
        self._write(line)
        self._events += 1

    def complete(self, log_sha256: str, policy_states: Iterable[object]) -> None:
        """Write the last line: the hash of the canonical log, and the digests of the workers' policy states."""
        states = tuple(map(digest, policy_states))
        self._put(LogFooter(self._events, log_sha256, states, self._hash.hexdigest(), STATES_SCHEMA))

    def _put(self, value: object) -> None:
        self._write(msgspec.json.encode(value))

    def _write(self, line: bytes) -> None:
        self._file.write(line + b"\n")
        self._hash.update(line + b"\n")

    def close(self) -> None:
        """Close the file; a log without its last line is that of an interrupted run."""
        self._file.close()

    def __enter__(self) -> "LogWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def params_of(parameters: Mapping[str, object]) -> dict[str, str]:
    """Return a policy's parameters as the text that a header holds and a command line takes."""
    return {name: "none" if value is None else str(value) for name, value in parameters.items()}
