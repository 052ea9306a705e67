"""Keys and values of every request in one pool of pages, and attention that gathers what a step needs from them.

It runs everywhere: decoding requests of like length are gathered and computed together, each chunk by itself, by
`scaled_dot_product_attention`.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fairsched.engines.torch_model import Attend, LlamaConfig
from fairsched.engines.torch_seats import Batch

GATHER_TOKENS_MIN = 256
"""Contexts up to this length are gathered as if they had it: below it padding costs less than another call."""


class KVCache:
    """Keys and values, [pages, page_tokens, kv_heads, head_dim] for each layer."""

    def __init__(
        self, config: LlamaConfig, pages: int, page_tokens: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (pages, page_tokens, config.kv_heads, config.head_dim)
        self.page_tokens = page_tokens
        self.device = device
        # Zeros, since what masks hide is read all the same, and must be finite.
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.layers)]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put the keys and values [T, kv_heads, head_dim] of a step at `slots` [T]."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, keys)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, values)


def on_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor there; to CUDA without waiting for it."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def gather(cache: KVCache, batch: Batch, dtype: torch.dtype) -> Attend:
    """Attention of one step by gathering.  Expects decoding requests in ascending order of their contexts.

    Memory for copies: keys and values of one layer and one group of decoding requests, less than twice their contexts,
    or of one chunk's context.
    """
    slots = on_device(batch.slots, cache.device)
    parts: list[_Group | _Chunk] = [_Group(cache, batch, start, stop, dtype) for start, stop in _like_lengths(batch)]
    firsts = np.cumsum(batch.counts) - batch.counts
    parts += [_Chunk(cache, batch, row, int(firsts[row])) for row in range(batch.decoding, len(batch.counts))]

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        cache.write(layer, slots, keys, values)
        seen = [part.attend(cache.keys[layer], cache.values[layer], queries) for part in parts]
        return seen[0] if len(seen) == 1 else torch.cat(seen)

    return attend


def _like_lengths(batch: Batch) -> list[tuple[int, int]]:
    """Runs of decoding requests whose contexts differ by less than a factor of two."""
    if not batch.decoding:
        return []
    contexts = batch.contexts[: batch.decoding]
    octaves = np.frexp(np.maximum(contexts, GATHER_TOKENS_MIN) - 1)[1]
    cuts = [0, *(np.flatnonzero(np.diff(octaves)) + 1).tolist(), batch.decoding]
    return list(pairwise(cuts))


class _Group:
    """Decoding requests of like length, `start` to `stop` of the batch, padded to the longest."""

    def __init__(self, cache: KVCache, batch: Batch, start: int, stop: int, dtype: torch.dtype) -> None:
        self.start, self.stop = start, stop
        contexts = batch.contexts[start:stop]
        width = int(-(-contexts[-1] // cache.page_tokens))
        table = batch.table[start:stop, :width].astype(np.int64)
        self.tokens = int(contexts[-1])
        self.pages = on_device(table.reshape(-1), cache.device)
        self.mask: Tensor | None = None
        if contexts[0] != contexts[-1]:
            hidden = on_device(np.arange(self.tokens) >= contexts[:, None], cache.device)
            mask = torch.zeros(hidden.shape, device=cache.device, dtype=dtype).masked_fill_(hidden, -torch.inf)
            self.mask = mask[:, None, None, :]

    def attend(self, keys: Tensor, values: Tensor, queries: Tensor) -> Tensor:
        count = self.stop - self.start
        kv_heads, dim = keys.shape[2:]
        # The query heads of a KV head are the query's rows, so that keys are not repeated.
        grouped = queries[self.start : self.stop].reshape(count, kv_heads, -1, dim)
        k, v = (x.index_select(0, self.pages).view(count, -1, kv_heads, dim)[:, : self.tokens] for x in (keys, values))
        seen = F.scaled_dot_product_attention(grouped, k.transpose(1, 2), v.transpose(1, 2), attn_mask=self.mask)
        return seen.reshape(count, -1, dim)


class _Chunk:
    """One request's chunk, behind what it computed before."""

    def __init__(self, cache: KVCache, batch: Batch, row: int, first: int) -> None:
        tokens, self.context = int(batch.counts[row]), int(batch.contexts[row])
        self.first, self.last = first, first + tokens
        width = -(-self.context // cache.page_tokens)
        self.pages = on_device(batch.table[row, :width].astype(np.int64), cache.device)
        self.mask: Tensor | None = None
        before = self.context - tokens
        if before and tokens > 1:
            self.mask = torch.ones(tokens, self.context, dtype=torch.bool, device=cache.device).tril_(before)
        self.causal = not before

    def attend(self, keys: Tensor, values: Tensor, queries: Tensor) -> Tensor:
        kv_heads, dim = keys.shape[2:]
        tokens = self.last - self.first
        q = queries[self.first : self.last].reshape(tokens, kv_heads, -1, dim).permute(1, 2, 0, 3)
        k, v = (x.index_select(0, self.pages).flatten(0, 1)[: self.context] for x in (keys, values))
        # The query heads of a KV head see it through a stride of zero.
        shape = (kv_heads, q.shape[1], self.context, dim)
        k, v = (x.transpose(0, 1)[:, None].expand(shape) for x in (k, v))
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, is_causal=self.causal)
        return seen.permute(2, 0, 1, 3).flatten(1, 2)
