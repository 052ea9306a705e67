"""The workers of a simulated cluster, the links between them, and what happens to them: restarts, crashes, drains,
links that fail, and workers that join.

Workers are numbered from 0 on, those that join later after those that are there from the start.  Times are on the clock
of the workload's arrivals.  What comes too late (no request is left, or the worker is gone) does not happen.
"""

from collections.abc import Mapping, Sequence

import attrs

from fairsched.model.decision import NO_HOST, Host, Overlap, Role
from fairsched.model.machine import LatencyModel
from fairsched.model.prefix_cache import NO_FLOORS
from fairsched.model.worker import WorkerState
from fairsched.policies.routers import visible_ns
from fairsched.policies.validators import not_negative

HOST_BYTES_PER_S = 25_000_000_000
"""Four fifths of the nominal rate of PCIe 4.0 x16 (16 lanes of 16 GT/s, 31.5 GB/s); chosen here, not measured."""
LINK_BYTES_PER_S = 8_000_000_000
"""64 Gbit/s."""


@attrs.frozen
class KvLink:
    """A link between two workers, or to host memory: bytes of KV a token, and bytes a second.

    A transfer takes `latency_ns` more.  One that overlaps with the prefill by `layers` takes `sync_ns` for the last.
    With `contended`, a worker sends and receives one transfer at a time; else each has the whole rate.

    Defaults: Llama-3.1-8B in 16 bits (2 x 32 layers x 8 heads x 128 x 2 bytes), and 64 Gbit/s.
    """

    bytes_per_token: int = 131_072
    bytes_per_s: int = LINK_BYTES_PER_S
    latency_ns: int = 0
    layers: int = 32
    sync_ns: int = 0
    contended: bool = False

    def __attrs_post_init__(self) -> None:
        if self.bytes_per_token < 0 or self.bytes_per_s < 1:
            raise ValueError(
                "a link needs bytes_per_token of 0 or more and bytes_per_s of 1 or more, "
                f"not {self.bytes_per_token} and {self.bytes_per_s}"
            )
        if self.latency_ns < 0 or self.layers < 1 or self.sync_ns < 0:
            raise ValueError(
                "a link needs latency_ns of 0 or more, layers of 1 or more and sync_ns of 0 or more, "
                f"not {self.latency_ns}, {self.layers} and {self.sync_ns}"
            )

    def transfer_ns(self, tokens: int) -> int:
        """Return the nanoseconds that the KV of this many tokens is under way, rounded up."""
        return self.latency_ns + -(-tokens * self.bytes_per_token * 1_000_000_000 // self.bytes_per_s)

    def visible_ns(self, tokens: int, overlap: Overlap, prefill_ns: int, last_tokens: int) -> int:
        """Return what of a transfer is left when the prefill is over.

        The transfer went along with `prefill_ns` of it.  By layers, all but the last of equal layers was computed and
        sent one after the other: max(t / L, t - p (L - 1) / L) for t of transfer and p of prefill (source: Splitwise,
        section on layer-wise transfer, as a two-stage pipeline).  By chunks, the `last_tokens` are sent afterwards, and
        what the others' transfer was late.
        """
        whole_ns = self.transfer_ns(tokens)
        if overlap == "layers":
            return visible_ns(whole_ns, prefill_ns, self.layers) + self.sync_ns
        if overlap == "chunks":
            return max(self.transfer_ns(last_tokens), whole_ns - prefill_ns)
        return whole_ns


def kv_link(latency: LatencyModel, bytes_per_s: int = LINK_BYTES_PER_S) -> KvLink:
    """Return a link of a worker with this model: each of its GPUs sends an equal share of the KV."""
    known = latency.deployment
    each = KvLink().bytes_per_token if known is None else known.kv_token_bytes // (latency.gpus or 1)
    return KvLink(each, bytes_per_s)


def host_link(latency: LatencyModel) -> KvLink:
    """Return the link to host memory of a worker with this model: PCIe."""
    return kv_link(latency, HOST_BYTES_PER_S)


@attrs.frozen
class WorkerSpec:
    """A worker: how long its steps take, and how many tokens of KV it holds (None: the model's own figure).

    With `host_capacity_tokens` of host memory KV can be swapped there over `host_link` (None: that of PCIe).  Its
    `role` says to policies which phase of a request it is there for.  The KV of a call that others of its
    program follow counts as used `keep_ns` after its end, and gives way to whatever needs memory.  Its running requests
    have at most `adapter_slots` different LoRA adapters; without slots a request that names one is rejected.  A step
    waits `adapter_load_ns` for each adapter that it loads; of loaded ones that none runs with the one that was used
    longest ago gives way.  Clients have `floors` of KV in tokens; those of a workload's clients are added in a
    simulation.
    """

    latency: LatencyModel
    kv_capacity_tokens: int | None = None
    host_capacity_tokens: int = attrs.field(default=0, validator=not_negative)
    host_link: KvLink | None = None
    role: Role = "both"
    keep_ns: int = attrs.field(default=0, validator=not_negative)
    adapter_slots: int = attrs.field(default=0, validator=not_negative)
    floors: Mapping[int, int] = NO_FLOORS
    adapter_load_ns: int = attrs.field(default=0, validator=not_negative)

    @property
    def capacity(self) -> int:
        """KV tokens."""
        return self.latency.kv_capacity_tokens if self.kv_capacity_tokens is None else self.kv_capacity_tokens

    def empty(self, worker: int) -> WorkerState:
        """Return the state of a worker of this kind without requests."""
        host = Host(self.host_capacity_tokens) if self.host_capacity_tokens else NO_HOST
        slots = self.adapter_slots
        state = WorkerState(worker, self.capacity, host=host, role=self.role, keep_ns=self.keep_ns, adapter_slots=slots)
        return state.with_floors(self.floors)

    @property
    def link(self) -> KvLink:
        """How KV gets there and back."""
        return host_link(self.latency) if self.host_link is None else self.host_link


@attrs.frozen
class Restart:
    """Worker `worker` loses its memory and the step under way, and keeps its queue: an engine behind its own queue.

    What ran waits there again.  For `down_ns` it computes nothing, and no router sees it unless all are down.
    """

    worker: int
    at_ns: int
    down_ns: int = 0


@attrs.frozen
class Crash:
    """Worker `worker` is gone, with its memory, its queue and the step under way.

    What waited or ran there is placed again with the tokens that it has.  After `down_ns` a worker of that number
    joins, empty; None: never.
    """

    worker: int
    at_ns: int
    down_ns: int | None = None


@attrs.frozen
class Drain:
    """Worker `worker` takes no more requests, finishes those that it has, and leaves."""

    worker: int
    at_ns: int


@attrs.frozen
class Join:
    """Another worker joins (None: one like the first)."""

    at_ns: int
    spec: WorkerSpec | None = None


@attrs.frozen
class LinkDown:
    """Worker `worker` cannot send or receive KV for `down_ns`; transfers under way fail, and their KV stays.

    None: its link never comes back, and requests that are to go on elsewhere are computed there again.
    """

    worker: int
    at_ns: int
    down_ns: int | None = None


Change = Restart | Crash | Drain | Join | LinkDown


def checked_workers(specs: Sequence[WorkerSpec]) -> tuple[WorkerSpec, ...]:
    """Return the workers; raises `ValueError` if there is none, one has no room for a request, or none does a phase."""
    if not specs:
        raise ValueError(f"a cluster has at least one worker, not {len(specs)}")
    for spec in specs:
        if spec.capacity < 2:
            raise ValueError(f"a worker needs room for a prompt and an output token, not for {spec.capacity} tokens")
        if spec.host_capacity_tokens < 0:
            raise ValueError(f"host memory holds 0 tokens or more, not {spec.host_capacity_tokens}")
        if spec.adapter_slots < 0:
            raise ValueError(f"a worker has 0 adapter slots or more, not {spec.adapter_slots}")
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        if all(spec.role == role for spec in specs):
            raise ValueError(f"all {len(specs)} workers {role}, and none is there to {other}: no request would finish")
    return tuple(specs)


def checked_changes(changes: Sequence[Change], workers: int) -> tuple[Change, ...]:
    """Return the changes in order of time; raises `ValueError` for one of a worker that is never there, or out of
    time."""
    ordered = tuple(sorted(changes, key=lambda change: change.at_ns))
    joins = sum(isinstance(change, Join) for change in ordered)
    for change in ordered:
        what = "failing link" if isinstance(change, LinkDown) else type(change).__name__.lower()
        if change.at_ns < 0:
            raise ValueError(f"a {what} at {change.at_ns} ns: the run starts at 0")
        if isinstance(change, Restart | Crash | LinkDown) and change.down_ns is not None and change.down_ns < 0:
            raise ValueError(f"worker {change.worker} cannot be down for {change.down_ns} ns")
        if not isinstance(change, Join) and not 0 <= change.worker < workers + joins:
            raise ValueError(f"a {what} of worker {change.worker}: there are {workers + joins} workers, from 0 on")
    return ordered


def described(change: Change) -> str:
    """Return a change in a few words.

    >>> described(Crash(0, 30_000_000_000, 5_000_000_000))
    'worker 0 dies at 30 s, back after 5 s'
    """
    at = f"at {change.at_ns / 1e9:g} s"
    if isinstance(change, Join):
        return f"a worker joins {at}"
    if isinstance(change, Drain):
        return f"worker {change.worker} drains {at}"
    down = "" if change.down_ns is None else f", back after {change.down_ns / 1e9:g} s"
    if isinstance(change, LinkDown):
        return f"the link of worker {change.worker} fails {at}{down}"
    does = "dies" if isinstance(change, Crash) else "restarts"
    return f"worker {change.worker} {does} {at}{down}"
