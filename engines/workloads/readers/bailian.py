"""Qwen-Bailian: JSON lines of a production cluster's requests with block ids and chats, without clients.

Format and data: Qwen-Bailian anonymous dataset (Apache-2.0): `timestamp` in seconds, one id for each block of 16 prompt
tokens (the last may be filled only partly, and is then dropped), and `parent_chat_id`, the request that a chat's turn
follows (-1: none).  The traces are samples, so a parent may not be there; then the turn begins a chat, and is counted.

A turn is sent when its parent has finished and as much time has passed as lies between the two in the trace.  The
parent's own answer took part of that time, which is not recorded, so chats last a little longer than they did.
"""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import msgspec

from fairsched.engines.workloads.errors import TraceError
from fairsched.engines.workloads.readers.mooncake import Id, Key, Tokens, prompt_of
from fairsched.engines.workloads.readers.rows import ID_MAX, TIME_NS_MAX, TraceFormat, TraceRow, read_objects

BLOCK_TOKENS = 16
NO_PARENT = -1
ORPHANED = "turns follow a request that is not among the rows before; each begins a chat"


class BailianRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the file; `type` and `turn` are labels of the trace that decide nothing here."""

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
        time_ns = _time_ns(path, row, line.timestamp)
        parent = seen.get(line.parent_chat_id)
        chat = line.chat_id if parent is None else parent[1]
        seen[line.chat_id] = time_ns, chat
        yield TraceRow(
            row=row,
            id=line.chat_id,
            arrival_ns=time_ns,
            prompt=prompt_of(path, row, line.input_length, line.hash_ids, BLOCK_TOKENS),
            output_tokens=line.output_length,
            session=f"chat-{chat}",
            parents=() if parent is None else (line.parent_chat_id,),
            think_ns=0 if parent is None else max(time_ns - parent[0], 0),
            remark=ORPHANED if parent is None and line.parent_chat_id != NO_PARENT else None,
        )


def _time_ns(path: Path, row: int, seconds: int | Decimal) -> int:
    """Nanoseconds in a number of seconds that is not negative."""
    value = Decimal(seconds)
    # The exponent is looked at first: converting 1e999999 would build all of its digits.
    if not (value.is_finite() and value >= 0 and value.adjusted() < 10 and (ns := int(value.scaleb(9))) <= TIME_NS_MAX):
        raise TraceError(path, row, "timestamp", "a time in seconds from 0 to 9.2e9", str(seconds))
    return ns


BAILIAN = TraceFormat(
    "bailian",
    "Qwen-Bailian usage trace, JSON lines",
    BailianRow.__struct_fields__,
    read_bailian,
    "timestamp",
    "chat_id",
)
