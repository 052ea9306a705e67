"""The JSON-lines formats: Mooncake's and our extension of it, read and written, and Qwen-Bailian's.

- Mooncake, FAST'25 release (Apache-2.0 data): `timestamp` in milliseconds, lengths in tokens, and one id for each block
  of 512 prompt tokens, where equal ids mean equal prefixes up to there.  The last id may stand for a block that the
  prompt fills only partly; such a block cannot be reused whole, so its id is dropped.  The optional keys say whatever
  else a workload can say.
- Qwen-Bailian anonymous dataset (Apache-2.0), a production cluster's requests without clients: `timestamp` in seconds,
  one id for each block of 16 prompt tokens (the last is treated alike), and `parent_chat_id`, the request that a chat's
  turn follows (-1: none).  The traces are samples, so a parent may not be there; then the turn begins a chat, and is
  counted.  A turn is sent when its parent has finished and as much time has passed as lies between the two in the
  trace.  The parent's own answer took part of that time, which is not recorded, so chats last a little longer than they
  did.
"""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from fairsched.engines.files import whole_file
from fairsched.engines.workloads.errors import TraceError
from fairsched.engines.workloads.readers.rows import ID_MAX, TraceFormat, TraceRow, number_ns, read_objects
from fairsched.model.request import TOKENS_MAX, Client, Job, Prompt, Slo, Workload

BLOCK_TOKENS = 512
BAILIAN_BLOCK_TOKENS = 16
NO_PARENT = -1
ORPHANED = "turns follow a request that is not among the rows before; each begins a chat"

Tokens = Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)]
Key = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Id = Annotated[int, msgspec.Meta(ge=0, le=ID_MAX)]
Name = Annotated[str, msgspec.Meta(min_length=1)]
Ms = int | Decimal


class MooncakeSlo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Latency targets in milliseconds."""

    ttft_ms: Ms | None = None
    tpot_ms: Ms | None = None
    latency_ms: Ms | None = None


class MooncakeRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A line of a Mooncake file."""

    timestamp: Ms | None = None
    """When the request is sent, in ms; with `parent`, when its program started. It never falls but between sessions."""
    input_length: Tokens
    """Length of the prompt."""
    output_length: Tokens
    """True length of the output."""
    hash_ids: list[Key] = []
    """A key for each block of the prompt: prompts share a prefix as far as their keys agree from the start. At most
    one more than the whole blocks."""
    block_tokens: Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)] = BLOCK_TOKENS
    """Size of a block; 1 for token-exact prefixes."""
    id: Id | None = None
    """Unique; none: the line's number from 0."""
    client: Name | None = None
    """Sender of the request; on every line or on none."""
    weight: Annotated[int, msgspec.Meta(ge=1, le=10**6)] | None = None
    """The client's share, 1 unless given; the same on each line that states it."""
    session: Name | None = None
    """The client's own label; one session is one client where clients are assigned."""
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31)] = 0
    """The client's own label."""
    slo: MooncakeSlo | None = None
    """Latency targets: `ttft_ms`, `tpot_ms`, `latency_ms`."""
    parent: Id | list[Id] | None = None
    """The request is sent when all of these, on earlier lines, have finished."""
    think_ms: Ms = 0
    """How long after its parents it is sent."""
    program: Id | None = None
    """Calls with one number are one program, whose latency ends with its last call; none: the first parent's."""
    max_output_tokens: Tokens | None = None
    """What the client declares, at least `output_length`."""
    predicted_output_tokens: Tokens | None = None
    """A prediction of the output."""
    cancel_after_ms: Ms | None = None
    """How long after it was sent its caller gives up."""
    downstream_levels: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    """How many calls of its program have to follow, one after the other."""
    adapter: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    """The LoRA adapter that it runs with."""
    session_id: str | int | None = None
    """As `session`; sessions may stand one after the other, and begin at 0 without `timestamp`."""
    delay: Ms | None = None
    """How long after the row before of its `session_id` has finished it is sent; 0 if neither this nor `timestamp` is
    there."""


def read_mooncake(path: Path) -> Iterator[TraceRow]:
    """Read the rows of a trace; a row without `id` has its line number less one.  Raises `TraceError`.

    Rows with a `session_id` come after all others, in order of time: their sessions may stand one after the other.
    """
    turns: dict[str | int, TraceRow] = {}
    of_sessions: list[TraceRow] = []
    for row, line in read_objects(path, MooncakeRow):
        before = None if line.session_id is None or line.parent is not None else turns.get(line.session_id)
        if line.timestamp is None and line.session_id is None:
            raise TraceError(path, row, "timestamp", "a key 'timestamp'", "none")
        if line.max_output_tokens is not None and line.max_output_tokens < line.output_length:
            expected = f"at least the output_length {line.output_length}"
            raise TraceError(path, row, "max_output_tokens", expected, line.max_output_tokens)
        if line.weight is not None and line.client is None:
            raise TraceError(path, row, "weight", "a client whose weight it is", "no client")
        parents = line.parent if isinstance(line.parent, list) else [] if line.parent is None else [line.parent]
        if line.think_ms and not parents:
            raise TraceError(path, row, "think_ms", "a parent after which to think", "no parent")
        arrival_ns = number_ns(path, row, "timestamp", line.timestamp or 0)
        think_ns = number_ns(path, row, "think_ms", line.think_ms)
        if before is not None and (line.timestamp is None or line.delay is not None):
            parents, arrival_ns = [before.id], before.arrival_ns
            think_ns = number_ns(path, row, "delay", line.delay or 0)
        cancel_ms = line.cancel_after_ms
        found = TraceRow(
            row=row,
            id=row - 1 if line.id is None else line.id,
            arrival_ns=arrival_ns,
            prompt=prompt_of(path, row, line.input_length, line.hash_ids, line.block_tokens),
            output_tokens=line.output_length,
            client=line.client,
            weight=line.weight,
            session=line.session if line.session is not None or line.session_id is None else f"{line.session_id}",
            priority=line.priority,
            downstream_levels=line.downstream_levels,
            adapter=line.adapter,
            slo=_slo(path, row, line.slo),
            parents=tuple(parents),
            think_ns=think_ns,
            program=line.program,
            max_output_tokens=line.max_output_tokens,
            predicted_output_tokens=line.predicted_output_tokens,
            cancel_after_ns=None if cancel_ms is None else number_ns(path, row, "cancel_after_ms", cancel_ms),
        )
        if line.session_id is None:
            yield found
        else:
            turns[line.session_id] = found
            of_sessions.append(found)
    yield from sorted(of_sessions, key=lambda row: row.arrival_ns)


def prompt_of(path: Path, row: int, tokens: int, hash_ids: list[int], block_tokens: int) -> Prompt:
    """Return the prompt whose blocks are named by `hash_ids`, of which the last may name a block filled only partly."""
    whole = tokens // block_tokens
    blocks_max = -(-tokens // block_tokens)
    if len(hash_ids) > blocks_max:
        expected = f"at most {blocks_max} ids ({tokens} tokens in blocks of {block_tokens})"
        raise TraceError(path, row, "hash_ids", expected, f"{len(hash_ids)} ids")
    return Prompt.from_keys(np.array(hash_ids[:whole], dtype=np.int64), block_tokens=block_tokens, tokens=tokens)


def _slo(path: Path, row: int, slo: MooncakeSlo | None) -> Slo | None:
    if slo is None:
        return None
    times_ms = msgspec.structs.astuple(slo)
    return Slo(*(None if time is None else number_ns(path, row, "slo", time) for time in times_ms))


MOONCAKE = TraceFormat(
    "mooncake",
    "JSON lines, Mooncake's keys and our optional ones",
    MooncakeRow.__struct_fields__,
    read_mooncake,
    "timestamp",
    "id",
)


class BailianRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a Qwen-Bailian file; `type` and `turn` are labels of the trace that decide nothing here."""

    chat_id: Id
    parent_chat_id: Annotated[int, msgspec.Meta(ge=NO_PARENT, le=ID_MAX)]
    timestamp: int | Decimal
    input_length: Tokens
    output_length: Tokens
    type: str = ""
    turn: int = 1
    hash_ids: list[Key] = []


def read_bailian(path: Path) -> Iterator[TraceRow]:
    """Read the rows of a trace, with the ids of its `chat_id`.  Raises `TraceError`."""
    # Of each request so far: when it was sent, and the first request of its chat.
    seen: dict[int, tuple[int, int]] = {}
    for row, line in read_objects(path, BailianRow):
        time_ns = number_ns(path, row, "timestamp", line.timestamp, "seconds")
        parent = seen.get(line.parent_chat_id)
        chat = line.chat_id if parent is None else parent[1]
        seen[line.chat_id] = time_ns, chat
        yield TraceRow(
            row=row,
            id=line.chat_id,
            arrival_ns=time_ns,
            prompt=prompt_of(path, row, line.input_length, line.hash_ids, BAILIAN_BLOCK_TOKENS),
            output_tokens=line.output_length,
            session=f"chat-{chat}",
            parents=() if parent is None else (line.parent_chat_id,),
            think_ns=0 if parent is None else max(time_ns - parent[0], 0),
            remark=ORPHANED if parent is None and line.parent_chat_id != NO_PARENT else None,
        )


BAILIAN = TraceFormat(
    "bailian",
    "Qwen-Bailian usage trace, JSON lines",
    BailianRow.__struct_fields__,
    read_bailian,
    "timestamp",
    "chat_id",
)


# --- writing ---------------------------------------------------------------------------------------------------------


def save_workload(workload: Workload, path: Path) -> None:
    """Write a workload as a trace, one line a job, in the jobs' order.

    Reading the file back gives the same jobs and clients, with clients numbered by first appearance.
    Raises `OSError` where the file cannot be written.
    """
    encoder = msgspec.json.Encoder(decimal_format="number")
    with whole_file(path) as file:
        for job in workload.jobs:
            file.write(encoder.encode(_row(job, workload.clients[job.request.client])) + b"\n")


def _row(job: Job, client: Client) -> MooncakeRow:
    request, slo = job.request, None
    if request.slo is not None:
        slo = MooncakeSlo(*(None if time is None else _ms(time) for time in msgspec.structs.astuple(request.slo)))
    return MooncakeRow(
        timestamp=_ms(request.arrival_ns),
        input_length=request.prompt.tokens,
        output_length=job.output_tokens,
        hash_ids=np.frombuffer(request.prompt.keys, dtype="<i8").tolist(),
        block_tokens=request.prompt.block_tokens,
        id=request.id,
        client=client.name,
        weight=client.weight if client.weight != 1 else None,
        session=request.session,
        priority=request.priority,
        downstream_levels=request.downstream_levels,
        adapter=request.adapter or None,
        slo=slo,
        parent=list(job.after) or None,
        think_ms=_ms(job.think_ns),
        program=job.program,
        max_output_tokens=request.max_output_tokens,
        predicted_output_tokens=request.predicted_output_tokens,
        cancel_after_ms=None if job.cancel_after_ns is None else _ms(job.cancel_after_ns),
    )


def _ms(ns: int) -> Ms:
    """Return milliseconds, exactly: a whole number where it is one."""
    return ns // 10**6 if ns % 10**6 == 0 else Decimal(ns).scaleb(-6)
