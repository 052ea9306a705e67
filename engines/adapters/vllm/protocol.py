"""What the shim uses of a request of vLLM, so that all but the scheduler itself needs no vLLM."""

from enum import Enum
from typing import Any, Protocol


class VllmRequest(Protocol):
    """A request as vLLM's scheduler keeps it (`vllm.v1.request.Request`)."""

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    num_computed_tokens: int
    sampling_params: Any
    block_hashes: list[bytes]
    resumable: bool
    next_decode_eligible_step: int
    """vLLM does not schedule a running request before this step, counted by the scheduler."""
    num_output_placeholders: int
    """Outputs of steps whose results are not back."""

    @property
    def status(self) -> Enum:
        """WAITING, RUNNING, PREEMPTED, ... or one of FINISHED_..."""

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""

    @property
    def num_output_tokens(self) -> int:
        """Output so far."""

    def is_finished(self) -> bool:
        """Return whether it is over, however."""


def runs(request: VllmRequest) -> bool:
    """Return whether vLLM has it in its batch."""
    return request.status.name == "RUNNING"


def ended_well(request: VllmRequest) -> bool:
    """Return whether its output is whole: a stop token, a stop string that the engine sees, or the length that was
    asked."""
    return request.status.name in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION")
