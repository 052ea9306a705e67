"""What a simulation is given: jobs (requests with the truth about them) and the clients who send them."""

from collections.abc import Sequence

import msgspec

from fairsched.model.request import Client, Request


class Job(msgspec.Struct, frozen=True, gc=False):
    """A request together with what only the world knows.

    `output_tokens` is the true output length (1 to `max_output_tokens`).  With `after`, the request is sent
    `think_ns` after the last of these requests finished, and `request.arrival_ns` is when its program started.
    A request whose predecessor was rejected or cancelled is cancelled too.  `program` groups the calls of one
    program, whose latency ends with its last call.  `cancel_after_ns` is how long after its arrival the caller
    gives up, None for never.
    """

    request: Request
    output_tokens: int
    after: tuple[int, ...] = ()
    think_ns: int = 0
    program: int | None = None
    cancel_after_ns: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.output_tokens <= self.request.max_output_tokens:
            raise ValueError(
                f"request {self.request.id}: output_tokens is {self.output_tokens}, "
                f"outside 1 to max_output_tokens = {self.request.max_output_tokens}"
            )


class Workload(msgspec.Struct, frozen=True):
    """Jobs in order of `request.arrival_ns`, with unique request ids, and the clients they name.

    `clients[i].id == i`.  `notes` are sentences a report must show: how clients were assigned, where
    `max_output_tokens` came from, what was scaled.
    """

    name: str
    jobs: Sequence[Job]
    clients: tuple[Client, ...]
    notes: tuple[str, ...] = ()
