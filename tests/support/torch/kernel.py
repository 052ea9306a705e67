"""The kernel that reads pages in place, in plain arithmetic: its stand-in where there is no CUDA."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fairsched.engines.torch import cuda as torch_cuda
from fairsched.engines.torch import executor as torch_executor


def slow_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
    block_table: Tensor,
) -> Tensor:
    """What `varlen_attn` is documented to compute, request by request: the kernel's stand-in where there is no CUDA."""
    assert window_size == (-1, 0)
    assert enable_gqa
    assert block_table.dtype == seqused_k.dtype == cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert block_table.shape[1] * key.shape[1] == max_k == cu_seq_k[1]
    seen = torch.empty_like(query)
    bounds = cu_seq_q.tolist()
    for row, (start, stop) in enumerate(pairwise(bounds)):
        tokens, context = stop - start, int(seqused_k[row])
        assert 1 <= tokens <= max_q
        pages = block_table[row, : -(-context // key.shape[1])].long()
        k, v = (x[pages].flatten(0, 1)[:context].transpose(0, 1) for x in (key, value))
        mask = torch.ones(tokens, context, dtype=torch.bool, device=query.device).tril(context - tokens)
        q = query[start:stop].transpose(0, 1)
        part = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], mask, enable_gqa=True)
        seen[start:stop] = part[0].transpose(0, 1)
    return seen


def stand_in(patch: pytest.MonkeyPatch) -> None:
    """The executor goes CUDA's way on the CPU: through block tables and static inputs, with the kernel's stand-in.

    What this leaves untested is the kernel itself and the capture.
    """
    patch.setattr(torch_executor, "reads_pages", lambda device, dtype, page_tokens: True)
    patch.setattr(torch_cuda, "varlen_attn", slow_varlen)
    patch.setattr(torch_cuda, "capture", lambda compute, pool: (compute, pool))
