"""Pure decode steps as CUDA graphs: one launch instead of hundreds, for a few batch sizes captured once.

A graph reads and writes fixed memory, so a step is copied into static inputs, padded to the next captured size with
requests that do not exist: they read and write a scratch page that belongs to nobody.
"""

from bisect import bisect_left
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fairsched.engines.torch_attention import KVCache, on_device
from fairsched.engines.torch_model import Llama
from fairsched.engines.torch_seats import Batch
from fairsched.engines.torch_varlen import Tables, attend_by, rooms_of


def capture(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """`compute` as a graph on the current device: what is returned replays it and gives the same output tensor."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        compute()  # libraries allocate and choose kernels the first time, which a capture may not see
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = compute()

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay


class DecodeGraphs:
    """Decode steps of up to `running_max` requests with contexts of up to `context_tokens_max`.

    `scratch_page` is a page of the cache that holds nothing.  Captures when it is made, the largest size first, so that
    later ones find memory already allocated.
    """

    def __init__(
        self, model: Llama, cache: KVCache, *, running_max: int, context_tokens_max: int, scratch_page: int
    ) -> None:
        self.device = cache.device
        self.scratch_page = scratch_page
        self.scratch_slot = scratch_page * cache.page_tokens
        self.columns = -(-context_tokens_max // cache.page_tokens)
        self.sizes = _sizes(running_max)
        self.ids = torch.zeros(running_max, dtype=torch.int64, device=self.device)
        self.positions = torch.zeros_like(self.ids)
        self.slots = torch.full_like(self.ids, self.scratch_slot)
        self.contexts = torch.ones(running_max, dtype=torch.int32, device=self.device)
        self.table = torch.full((running_max, self.columns), scratch_page, dtype=torch.int32, device=self.device)
        self._replays = {size: self._captured(model, cache, size) for size in reversed(self.sizes)}

    def _captured(self, model: Llama, cache: KVCache, size: int) -> Callable[[], Tensor]:
        starts = torch.arange(size + 1, dtype=torch.int32, device=self.device)
        tables = Tables(starts, self.contexts[:size], self.table[:size], rooms_of(cache, size, self.columns))
        attend = attend_by(cache, self.slots[:size], tables, 1)
        return capture(lambda: model.forward(self.ids[:size], self.positions[:size], attend))

    def forward(self, batch: Batch) -> Tensor:
        """Logits [requests, vocab] of a step without chunks; valid until the next step."""
        requests, width = batch.table.shape
        size = self.sizes[bisect_left(self.sizes, requests)]
        table = np.full((size, width), self.scratch_page, dtype=np.int32)
        table[:requests] = batch.table
        self.table[:size, :width].copy_(on_device(table, self.device), non_blocking=True)
        for static, values, padding in (
            (self.ids, batch.ids, 0),
            (self.positions, batch.positions, 0),
            (self.slots, batch.slots, self.scratch_slot),
            (self.contexts, batch.contexts.astype(np.int32), 1),
        ):
            static[:size].copy_(on_device(_padded(values, size, padding), self.device), non_blocking=True)
        return self._replays[size]()[:requests]


def _padded(values: npt.NDArray[np.integer], size: int, padding: int) -> npt.NDArray[np.integer]:
    return np.concatenate((values, np.full(size - len(values), padding, dtype=values.dtype)))


def _sizes(running_max: int) -> list[int]:
    """Powers of two below the largest batch, and the largest batch."""
    return [*(1 << i for i in range((running_max - 1).bit_length())), running_max]
