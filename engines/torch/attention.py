"""Keys and values of every request in one pool of pages, and attention that gathers what a step needs from them.

It runs everywhere: decoding requests of like length are gathered and computed together, each chunk by itself, by
`scaled_dot_product_attention`.
"""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fairsched.engines.torch.model import Attend, LlamaConfig
from fairsched.engines.torch.pages import FlatBatch, Ints, Pages

GATHER_TOKENS_MIN = 64
"""Contexts up to this length are gathered as if they had it: below it padding costs less than another call."""

GATHER_RATIO = 1.2
"""Contexts gathered together differ by less than this factor.  On a CPU, 32 contexts of 59 to 351 tokens took 26 ms so
and 28 ms at a factor of 2, and what a step costs follows the sum of its contexts more closely."""


class KVCache:
    """Keys and values, [pages, page_tokens, kv_heads, head_dim] for each layer.

    In memory a page lies together, as kernels that read in place expect it; with `by_head` all of a head does, so that
    what is gathered from pages is contiguous for each head (on the CPU attention is twice as fast on that).
    """

    def __init__(
        self,
        config: LlamaConfig,
        pages: int,
        page_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        by_head: bool,
    ) -> None:
        heads, dim = config.kv_heads, config.head_dim
        self.page_tokens, self.pages, self.heads, self.dim = page_tokens, pages, heads, dim
        self.device = device
        shape = (heads, pages, page_tokens, dim) if by_head else (pages, page_tokens, heads, dim)
        # Zeros, since what masks hide is read all the same, and must be finite.
        stored = [[torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.layers)] for _ in range(2)]
        self.keys, self.values = ([x.permute(1, 2, 0, 3) if by_head else x for x in part] for part in stored)
        if by_head:
            self._rows = [[x.view(heads * pages, page_tokens * dim) for x in part] for part in stored]
            self._room = [torch.empty(0, device=device, dtype=dtype) for _ in range(2)]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put the keys and values [T, kv_heads, head_dim] of a step at `slots` [T]."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, keys)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, values)

    def export(self, slots: Ints) -> bytes:
        """Return keys and values at `slots`, [layers, 2, tokens, kv_heads, head_dim] in the cache's own numbers."""
        at = on_device(slots, self.device)
        parts = [x.flatten(0, 1)[at] for layer in zip(self.keys, self.values, strict=True) for x in layer]
        raw: bytes = torch.stack(parts).cpu().view(torch.uint8).numpy().tobytes()
        return raw

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's keys and values."""
        return 2 * len(self.keys) * self.heads * self.dim * self.keys[0].element_size()

    def restore(self, slots: Ints, raw: bytes, skip: int) -> None:
        """Put at `slots` what another cache of this model exported, without its first `skip` tokens."""
        # A copy, since bytes are read-only.
        numbers = torch.from_numpy(np.frombuffer(raw, np.uint8).copy()).view(self.keys[0].dtype)
        parts = numbers.view(2 * len(self.keys), -1, self.heads, self.dim)[:, skip : skip + len(slots)]
        at = on_device(slots, self.device)
        for layer, (keys, values) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
            self.write(layer, at, keys.to(self.device), values.to(self.device))

    def rows(self, table: Pages) -> Tensor:
        """Return what `read` needs to gather the pages of a table [requests, width]."""
        heads = np.arange(self.heads)[:, None, None] * self.pages
        return on_device((heads + table).reshape(-1), self.device)

    def read(self, layer: int, rows: Tensor, requests: int) -> tuple[Tensor, Tensor]:
        """Return keys and values [requests, kv_heads, tokens, head_dim], gathered; they stand until the next call."""
        size = len(rows) * self.page_tokens * self.dim
        if len(self._room[0]) < size:
            # Kept from call to call: fresh memory costs more than the copy into it.
            self._room = [torch.empty(2 * size, device=self.device, dtype=x.dtype) for x in self._room]
        keys, values = (
            torch.index_select(part[layer], 0, rows, out=room[:size].view(len(rows), -1))
            .view(self.heads, requests, -1, self.dim)
            .transpose(0, 1)
            for part, room in zip(self._rows, self._room, strict=True)
        )
        return keys, values


def on_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Return the array as a tensor there; to CUDA without waiting for it."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def gather(cache: KVCache, batch: FlatBatch, dtype: torch.dtype) -> Attend:
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
        seen = [part.attend(layer, queries) for part in parts]
        return seen[0] if len(seen) == 1 else torch.cat(seen)

    return attend


def _like_lengths(batch: FlatBatch) -> list[tuple[int, int]]:
    """Return runs of decoding requests of like contexts."""
    if not batch.decoding:
        return []
    contexts = batch.contexts[: batch.decoding]
    classes = np.ceil(np.log(np.maximum(contexts / GATHER_TOKENS_MIN, 1.0)) / math.log(GATHER_RATIO))
    cuts = [0, *(np.flatnonzero(np.diff(classes)) + 1).tolist(), batch.decoding]
    return list(pairwise(cuts))


class _Group:
    """Decoding requests of like length, `start` to `stop` of the batch, padded to the longest."""

    def __init__(self, cache: KVCache, batch: FlatBatch, start: int, stop: int, dtype: torch.dtype) -> None:
        self.start, self.stop = start, stop
        contexts = batch.contexts[start:stop]
        width = int(-(-contexts[-1] // cache.page_tokens))
        self.cache = cache
        self.tokens = int(contexts[-1])
        self.rows = cache.rows(batch.table[start:stop, :width])
        self.mask: Tensor | None = None
        if contexts[0] != contexts[-1]:
            hidden = on_device(np.arange(self.tokens) >= contexts[:, None], cache.device)
            mask = torch.zeros(hidden.shape, device=cache.device, dtype=dtype).masked_fill_(hidden, -torch.inf)
            self.mask = mask[:, None, None, :]

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        count = self.stop - self.start
        keys, values = self.cache.read(layer, self.rows, count)
        keys, values = keys[:, :, : self.tokens], values[:, :, : self.tokens]
        # The query heads of a KV head are the query's rows, so that keys are not repeated.
        grouped = queries[self.start : self.stop].reshape(count, self.cache.heads, -1, self.cache.dim)
        seen = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=self.mask)
        return seen.reshape(count, -1, self.cache.dim)


class _Chunk:
    """One request's chunk, behind what it computed before."""

    def __init__(self, cache: KVCache, batch: FlatBatch, row: int, first: int) -> None:
        tokens, self.context = int(batch.counts[row]), int(batch.contexts[row])
        self.first, self.last = first, first + tokens
        self.cache = cache
        self.rows = cache.rows(batch.table[row : row + 1, : -(-self.context // cache.page_tokens)])
        self.mask: Tensor | None = None
        before = self.context - tokens
        if before and tokens > 1:
            self.mask = torch.ones(tokens, self.context, dtype=torch.bool, device=cache.device).tril_(before)
        self.causal = not before

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        heads, dim = self.cache.heads, self.cache.dim
        tokens = self.last - self.first
        q = queries[self.first : self.last].reshape(tokens, heads, -1, dim).permute(1, 2, 0, 3)
        # The query heads of a KV head see it through a stride of zero.
        shape = (heads, q.shape[1], self.context, dim)
        k, v = (x[0, :, None, : self.context].expand(shape) for x in self.cache.read(layer, self.rows, 1))
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, is_causal=self.causal)
        return seen.permute(2, 0, 1, 3).flatten(1, 2)
