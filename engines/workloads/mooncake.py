"""Mooncake's trace: JSON lines of time, lengths, and one id for each block of 512 prompt tokens.

Format and data: Mooncake, FAST'25 release (Apache-2.0).  Equal ids mean equal prefixes up to there.  The last id may
stand for a block that the prompt fills only partly; such a block cannot be reused whole, so its id is dropped.
`read_objects` is shared by every format of JSON lines.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from fairsched.engines.workloads.errors import TraceError
from fairsched.engines.workloads.rows import TraceRow, lines, ms_ns
from fairsched.model.request import TOKENS_MAX, Prompt

BLOCK_TOKENS = 512

Tokens = Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)]
Key = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class MooncakeRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the file: `timestamp` in milliseconds, lengths in tokens, a non-negative id a block."""

    timestamp: int | Decimal
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[Key]


COLUMNS = MooncakeRow.__struct_fields__

_Object = TypeVar("_Object", bound=msgspec.Struct)
_AT_FIELD = re.compile(r" - at `\$\.(\w+)")
_NAMED_FIELD = re.compile(r"(missing required|contains unknown) field `(.*)`")


def read(path: Path) -> Iterator[TraceRow]:
    """Rows of a Mooncake trace; ids count from 0.  Raises `TraceError`."""
    for row, line in read_objects(path, MooncakeRow):
        yield TraceRow(
            row=row,
            id=row - 1,
            arrival_ns=ms_ns(path, row, "timestamp", line.timestamp),
            prompt=prompt_of(path, row, line.input_length, line.hash_ids, BLOCK_TOKENS),
            output_tokens=line.output_length,
        )


def prompt_of(path: Path, row: int, tokens: int, hash_ids: list[int], block_tokens: int) -> Prompt:
    """The prompt whose blocks are named by `hash_ids`, of which the last may name a block filled only partly."""
    whole = tokens // block_tokens
    blocks_max = -(-tokens // block_tokens)
    if len(hash_ids) > blocks_max:
        expected = f"at most {blocks_max} ids ({tokens} tokens in blocks of {block_tokens})"
        raise TraceError(path, row, "hash_ids", expected, f"{len(hash_ids)} ids")
    return Prompt.from_keys(np.array(hash_ids[:whole], dtype=np.int64), block_tokens=block_tokens, tokens=tokens)


def read_objects(path: Path, kind: type[_Object]) -> Iterator[tuple[int, _Object]]:
    """Row number and object for each line of JSON.  Raises `TraceError` with the field that does not fit `kind`."""
    decode = msgspec.json.Decoder(kind).decode
    for row, text in lines(path):
        try:
            yield row, decode(text)
        except msgspec.ValidationError as error:
            raise _misfit(path, row, text, str(error)) from None
        except msgspec.DecodeError as error:
            found = (
                f"{text!r} ({error})" if text.strip() and len(text) < 40 else (str(error) if text else "an empty line")
            )
            raise TraceError(path, row, None, "a JSON object", found) from None


def _misfit(path: Path, row: int, text: str, message: str) -> TraceError:
    """The decoder's complaint as a `TraceError`: its field, what it wanted, and the value that stands there."""
    named = _NAMED_FIELD.search(message)
    if named and named[1] == "missing required":
        return TraceError(path, row, named[2], f"a key {named[2]!r}", "none")
    if named:
        return TraceError(path, row, named[2], "only keys that this format knows", f"the key {named[2]!r}")
    at = _AT_FIELD.search(message)
    expected = message.split(" - at ")[0].removeprefix("Expected ").split(", got")[0].replace("`", "")
    if at is None:
        return TraceError(path, row, None, f"a JSON {expected}", repr(text))
    value: Any = msgspec.json.decode(text)
    return TraceError(path, row, at[1], expected, repr(value[at[1]]))
