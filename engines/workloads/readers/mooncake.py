"""Mooncake's trace format and our extension of it: JSON lines of time, lengths, block ids, and optional keys.

Format: Mooncake, FAST'25 release (Apache-2.0 data): `timestamp` in milliseconds, lengths in tokens, and one id for each
block of 512 prompt tokens, where equal ids mean equal prefixes up to there.  The last id may stand for a block that
the prompt fills only partly; such a block cannot be reused whole, so its id is dropped.  The optional keys say
whatever else a workload can say; `docs/traces.md` describes each.
"""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from fairsched.engines.workloads.errors import TraceError
from fairsched.engines.workloads.jsonl import read_objects
from fairsched.engines.workloads.rows import ID_MAX, TraceRow, ms_ns
from fairsched.model.request import TOKENS_MAX, Prompt, Slo

BLOCK_TOKENS = 512

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


class MooncakeRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
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
    slo: MooncakeSlo | None = None
    parent: Id | list[Id] | None = None
    think_ms: Ms = 0
    program: Id | None = None
    max_output_tokens: Tokens | None = None
    predicted_output_tokens: Tokens | None = None
    cancel_after_ms: Ms | None = None
    downstream_levels: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0


COLUMNS = MooncakeRow.__struct_fields__


def read(path: Path) -> Iterator[TraceRow]:
    """Rows of a trace; a row without `id` has its line number less one.  Raises `TraceError`."""
    for row, line in read_objects(path, MooncakeRow):
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
            downstream_levels=line.downstream_levels,
            slo=_slo(path, row, line.slo),
            parents=tuple(parents),
            think_ns=ms_ns(path, row, "think_ms", line.think_ms),
            program=line.program,
            max_output_tokens=line.max_output_tokens,
            predicted_output_tokens=line.predicted_output_tokens,
            cancel_after_ns=None if cancel_ms is None else ms_ns(path, row, "cancel_after_ms", cancel_ms),
        )


def prompt_of(path: Path, row: int, tokens: int, hash_ids: list[int], block_tokens: int) -> Prompt:
    """The prompt whose blocks are named by `hash_ids`, of which the last may name a block filled only partly."""
    whole = tokens // block_tokens
    blocks_max = -(-tokens // block_tokens)
    if len(hash_ids) > blocks_max:
        expected = f"at most {blocks_max} ids ({tokens} tokens in blocks of {block_tokens})"
        raise TraceError(path, row, "hash_ids", expected, f"{len(hash_ids)} ids")
    return Prompt.from_keys(np.array(hash_ids[:whole], dtype=np.int64), block_tokens=block_tokens, tokens=tokens)


def _slo(path: Path, row: int, slo: MooncakeSlo | None) -> Slo | None:
    if slo is None:
        return None
    ttft, tpot, latency = (
        None if value is None else ms_ns(path, row, "slo", value)
        for value in (slo.ttft_ms, slo.tpot_ms, slo.latency_ms)
    )
    return Slo(ttft_ns=ttft, tpot_ns=tpot, latency_ns=latency)
