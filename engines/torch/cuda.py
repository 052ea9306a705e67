"""What CUDA does otherwise: attention that reads pages in place, and pure decode steps as graphs.

**Attention** without copies: FlashAttention reads keys and values through a block table.  One call for the whole step,
chunks and decoding requests alike (`torch.nn.attention.varlen`, on CUDA in half precision).  The FlashAttention 2 that
torch brings takes pages of a multiple of 256 tokens; FlashAttention 3 and 4 take any, where they are installed and
`torch.nn.attention.activate_flash_attention_impl` was called.  A torch before 2.12, whose kernel takes no block table,
gathers copies instead.

**Graphs**: one launch instead of hundreds, for a few batch sizes captured once.  A graph reads and writes fixed memory,
so a step is copied into static inputs, padded to the next captured size with requests that do not exist: they read and
write a scratch page that belongs to no request.
"""

import inspect
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from fairsched.engines.torch.attention import KVCache, on_device
from fairsched.engines.torch.model import Attend, Llama
from fairsched.engines.torch.pages import FlatBatch

TAKES_TABLES = "block_table" in inspect.signature(varlen_attn).parameters
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
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16) or not TAKES_TABLES:
        return False
    return page_tokens % FA2_PAGE_TOKENS == 0 or _activated()


def _activated() -> bool:
    """Return whether FlashAttention 3 or 4 is activated."""
    current = getattr(torch.nn.attention, "current_flash_attention_impl", None)
    return current is not None and current() is not None


def varlen(cache: KVCache, batch: FlatBatch, dtype: torch.dtype) -> Attend:
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
    if _activated():
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


def capture(compute: Callable[[], Tensor], pool: Any) -> tuple[Callable[[], Tensor], Any]:
    """`compute` as a graph on the current device, with memory from `pool` (None: a new one).

    What is returned replays it and gives the same output tensor each time; beside it, the pool.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        compute()  # libraries allocate and choose kernels the first time, which a capture may not see
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        output = compute()

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay, graph.pool()


class DecodeGraphs:
    """Decode steps of up to `running_max` requests with contexts of up to `context_tokens_max`.

    `scratch_page` is a page of the cache that holds nothing.  Captures when it is made, the largest size first: all
    share its memory, since no two steps run at once.
    """

    def __init__(
        self, model: Llama, cache: KVCache, *, running_max: int, context_tokens_max: int, scratch_page: int
    ) -> None:
        self.device = cache.device
        self.scratch_page = scratch_page
        self.scratch_slot = scratch_page * cache.page_tokens
        self.columns = -(-context_tokens_max // cache.page_tokens)
        # Powers of two below the largest batch, and the largest batch.
        self.sizes = [*(1 << i for i in range((running_max - 1).bit_length())), running_max]
        self.ids = torch.zeros(running_max, dtype=torch.int64, device=self.device)
        self.positions = torch.zeros_like(self.ids)
        self.slots = torch.full_like(self.ids, self.scratch_slot)
        self.contexts = torch.ones(running_max, dtype=torch.int32, device=self.device)
        self.table = torch.full((running_max, self.columns), scratch_page, dtype=torch.int32, device=self.device)
        self._replays: dict[int, Callable[[], Tensor]] = {}
        pool = None
        for size in reversed(self.sizes):
            self._replays[size], pool = capture(self._step(model, cache, size), pool)

    def _step(self, model: Llama, cache: KVCache, size: int) -> Callable[[], Tensor]:
        """Return a step of so many requests on the static inputs."""
        starts = torch.arange(size + 1, dtype=torch.int32, device=self.device)
        tables = Tables(starts, self.contexts[:size], self.table[:size], rooms_of(cache, size, self.columns))
        attend = attend_by(cache, self.slots[:size], tables, 1)
        return lambda: model.forward(self.ids[:size], self.positions[:size], attend)

    def forward(self, batch: FlatBatch) -> Tensor:
        """Return logits [requests, vocab] of a step without chunks; valid until the next step."""
        requests, width = batch.table.shape
        size = self.sizes[bisect_left(self.sizes, requests)]
        table = np.full((size, width), self.scratch_page, dtype=np.int32)
        table[:requests] = batch.table
        self._put(self.table[:size, :width], table)
        self._put(self.ids[:size], _padded(batch.ids, size, 0))
        self._put(self.positions[:size], _padded(batch.positions, size, 0))
        self._put(self.slots[:size], _padded(batch.slots, size, self.scratch_slot))
        self._put(self.contexts[:size], _padded(batch.contexts.astype(np.int32), size, 1))
        return self._replays[size]()[:requests]

    def _put(self, static: Tensor, values: npt.NDArray[np.integer]) -> None:
        """Copy into a static input without waiting for the device."""
        tensor = torch.from_numpy(values)
        static.copy_(tensor if self.device.type == "cpu" else tensor.pin_memory(), non_blocking=True)


def _padded(values: npt.NDArray[np.integer], size: int, padding: int) -> npt.NDArray[np.integer]:
    return np.concatenate((values, np.full(size - len(values), padding, dtype=values.dtype)))
