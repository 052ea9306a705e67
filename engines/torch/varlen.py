"""Attention over pages without copies: FlashAttention reads keys and values through a block table.

One call for the whole step, chunks and decoding requests alike (`torch.nn.attention.varlen`, on CUDA in half
precision).  The FlashAttention 2 that torch brings takes pages of a multiple of 256 tokens; FlashAttention 3 and 4 take
any, where they are installed and `torch.nn.attention.activate_flash_attention_impl` was called.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import current_flash_attention_impl
from torch.nn.attention.varlen import varlen_attn

from fairsched.engines.torch.attention import KVCache, on_device
from fairsched.engines.torch.model import Attend
from fairsched.engines.torch.seats import Batch

FA2_PAGE_TOKENS = 256
CAUSAL = (-1, 0)
"""A window without an end to the left and with none to the right: a query sees what stands before it, and itself."""


class Tables(NamedTuple):
    """What the kernel needs to know of S requests, on the device, all int32.

    `starts` [S + 1]: where each one's queries begin in the flat batch; `contexts` [S]: keys that each one sees; `table`
    [S, pages]; `rooms` [S + 1]: multiples of what a row of the table holds (None where the kernel does without).
    """

    starts: Tensor
    contexts: Tensor
    table: Tensor
    rooms: Tensor | None


def reads_pages(device: torch.device, dtype: torch.dtype, page_tokens: int) -> bool:
    """Return whether the kernel runs here: on CUDA, in half precision, with pages of this size."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    return page_tokens % FA2_PAGE_TOKENS == 0 or current_flash_attention_impl() is not None


def varlen(cache: KVCache, batch: Batch, dtype: torch.dtype) -> Attend:
    """Attention of one step through the block table."""
    starts = np.zeros(len(batch.counts) + 1, dtype=np.int32)
    np.cumsum(batch.counts, out=starts[1:])
    tables = Tables(
        on_device(starts, cache.device),
        on_device(batch.contexts.astype(np.int32), cache.device),
        on_device(batch.table, cache.device),
        rooms_of(cache, *batch.table.shape),
    )
    return attend_by(cache, on_device(batch.slots, cache.device), tables, int(batch.counts.max()))


def rooms_of(cache: KVCache, requests: int, columns: int) -> Tensor | None:
    """FlashAttention 2 wants the bounds of every row's room although it reads through the table."""
    if current_flash_attention_impl() is not None:
        return None
    return torch.arange(requests + 1, device=cache.device, dtype=torch.int32) * (columns * cache.page_tokens)


def attend_by(cache: KVCache, slots: Tensor, tables: Tables, queries_max: int) -> Attend:
    """Attention that writes at `slots` and reads through `tables`; no request has more than `queries_max` tokens."""
    keys_max = tables.table.shape[1] * cache.page_tokens

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        cache.write(layer, slots, keys, values)
        seen = varlen_attn(
            queries,
            cache.keys[layer],
            cache.values[layer],
            tables.starts,
            tables.rooms,
            queries_max,
            keys_max,
            window_size=CAUSAL,
            enable_gqa=True,
            seqused_k=tables.contexts,
            block_table=tables.table,
        )
        assert isinstance(seen, Tensor)  # a pair only if more than the output is asked for
        return seen

    return attend
