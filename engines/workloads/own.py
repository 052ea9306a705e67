"""Our own trace format: Mooncake's JSON lines with optional keys for all that a workload can say, read and written.

`docs/traces.md` describes each key.  A file that uses only Mooncake's keys means the same in both formats.
`save_workload` writes any workload; reading it back gives the same jobs, with clients numbered by first appearance.
"""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from fairsched.engines.workloads.errors import TraceError
from fairsched.engines.workloads.mooncake import BLOCK_TOKENS, Key, Tokens, prompt_of, read_objects
from fairsched.engines.workloads.rows import ID_MAX, TraceRow, ms_ns
from fairsched.model.request import TOKENS_MAX, Client, Slo
from fairsched.model.workload import Job, Workload

Id = Annotated[int, msgspec.Meta(ge=0, le=ID_MAX)]
Name = Annotated[str, msgspec.Meta(min_length=1)]
Ms = int | Decimal


class OwnSlo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Latency targets in milliseconds."""

    ttft_ms: Ms | None = None
    tpot_ms: Ms | None = None
    latency_ms: Ms | None = None


class OwnRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A line of the file; `docs/traces.md` says what each key means."""

    timestamp: Ms
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[Key] = []
    block_tokens: Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)] = BLOCK_TOKENS
    id: Id | None = None
    client: Name | None = None
    weight: Annotated[int, msgspec.Meta(ge=1, le=10**6)] | None = None
    session: Name | None = None
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31)] = 0
    slo: OwnSlo | None = None
    parent: Id | list[Id] | None = None
    think_ms: Ms = 0
    program: Id | None = None
    max_output_tokens: Tokens | None = None
    predicted_output_tokens: Tokens | None = None
    cancel_after_ms: Ms | None = None


COLUMNS = OwnRow.__struct_fields__


def read(path: Path) -> Iterator[TraceRow]:
    """Rows of a trace in our own format; a row without `id` has its line number less one.  Raises `TraceError`."""
    for row, line in read_objects(path, OwnRow):
        if line.max_output_tokens is not None and line.max_output_tokens < line.output_length:
            expected = f"at least the output_length {line.output_length}"
            raise TraceError(path, row, "max_output_tokens", expected, line.max_output_tokens)
        if line.weight is not None and line.client is None:
            raise TraceError(path, row, "weight", "a client whose weight it is", "no client")
        parents = line.parent if isinstance(line.parent, list) else [] if line.parent is None else [line.parent]
        if line.think_ms and not parents:
            raise TraceError(path, row, "think_ms", "a parent after which to think", "no parent")
        cancel_ms = line.cancel_after_ms
        yield TraceRow(
            row=row,
            id=row - 1 if line.id is None else line.id,
            arrival_ns=ms_ns(path, row, "timestamp", line.timestamp),
            prompt=prompt_of(path, row, line.input_length, line.hash_ids, line.block_tokens),
            output_tokens=line.output_length,
            client=line.client,
            weight=line.weight,
            session=line.session,
            priority=line.priority,
            slo=_slo(path, row, line.slo),
            parents=tuple(parents),
            think_ns=ms_ns(path, row, "think_ms", line.think_ms),
            program=line.program,
            max_output_tokens=line.max_output_tokens,
            predicted_output_tokens=line.predicted_output_tokens,
            cancel_after_ns=None if cancel_ms is None else ms_ns(path, row, "cancel_after_ms", cancel_ms),
        )


def _slo(path: Path, row: int, slo: OwnSlo | None) -> Slo | None:
    if slo is None:
        return None
    ttft, tpot, latency = (
        None if value is None else ms_ns(path, row, "slo", value)
        for value in (slo.ttft_ms, slo.tpot_ms, slo.latency_ms)
    )
    return Slo(ttft_ns=ttft, tpot_ns=tpot, latency_ns=latency)


def save_workload(workload: Workload, path: Path) -> None:
    """Write `workload` as a trace in our own format, one line a job, in the jobs' order.

    Raises `OSError` where the file cannot be written.
    """
    encoder = msgspec.json.Encoder(decimal_format="number")
    with path.open("wb") as file:
        for job in workload.jobs:
            file.write(encoder.encode(_row(job, workload.clients[job.request.client])) + b"\n")


def _row(job: Job, client: Client) -> OwnRow:
    request, slo = job.request, job.request.slo
    return OwnRow(
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
        slo=None if slo is None else _own_slo(slo),
        parent=list(job.after) or None,
        think_ms=_ms(job.think_ns),
        program=job.program,
        max_output_tokens=request.max_output_tokens,
        predicted_output_tokens=request.predicted_output_tokens,
        cancel_after_ms=None if job.cancel_after_ns is None else _ms(job.cancel_after_ns),
    )


def _own_slo(slo: Slo) -> OwnSlo:
    times_ns = (slo.ttft_ns, slo.tpot_ns, slo.latency_ns)
    ttft, tpot, latency = (None if time is None else _ms(time) for time in times_ns)
    return OwnSlo(ttft_ms=ttft, tpot_ms=tpot, latency_ms=latency)


def _ms(ns: int) -> Ms:
    """Milliseconds, exactly: a whole number where it is one."""
    return ns // 10**6 if ns % 10**6 == 0 else Decimal(ns).scaleb(-6)
