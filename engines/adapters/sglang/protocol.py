"""What the hook uses of SGLang's requests and scheduling policy, so that all but the plugin itself needs no SGLang."""

from collections.abc import Sequence
from typing import Any, Protocol


class SglangRequest(Protocol):
    """A request as SGLang's scheduler keeps it (`sglang.srt.managers.schedule_batch.Req`).

    `extend_batch_idx` counts the forward passes of its prompt since it was let in, and is 0 while it waits.
    `cached_tokens` is what its first admission found in the cache; `num_matched_prefix_tokens` what the last look did.
    """

    rid: str
    origin_input_ids: Sequence[int]
    output_ids: Sequence[int]
    sampling_params: Any
    routing_key: str | None
    cached_tokens: int
    num_matched_prefix_tokens: int
    extend_batch_idx: int
    extend_end: int | None
    retraction_count: int
    finished_reason: object | None
    finished_len: int | None


def outputs(request: SglangRequest) -> int:
    """Output tokens so far, up to a stop."""
    return len(request.output_ids) if request.finished_len is None else request.finished_len


def aborted(request: SglangRequest) -> bool:
    """Return whether it is over before its output was whole."""
    return type(request.finished_reason).__name__ == "FINISH_ABORT"
