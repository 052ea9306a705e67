"""The named policies that decide what a worker does next: each an order x a gate x a batching rule.

`fairsched.policies.registry` lists them by name.  Orders, gates and batching rules explain themselves in their own
modules, theorems stand there.  A bypass budget (`policies.orders.abilities.bypass`) bounds the wait of each request
under any order that takes one (D-request).
"""

import attrs

from fairsched.policies.batching import Batching, Chunked, MemoryCentric, RequestLevel
from fairsched.policies.gates import AnyGate, CounterGate, DeficitGate, GlobalDeficitGate, HierarchicalGate, OpenGate
from fairsched.policies.local import ComposedPolicy, PredictedBatches, SimilarLength
from fairsched.policies.offline import PrefixGroupOrder
from fairsched.policies.orders import (
    AgeingOrder,
    Arrival,
    DfsWeightOrder,
    DownstreamLevels,
    LarryOrder,
    LarryPrintedOrder,
    LongestPrefix,
    Order,
    PriorityGroups,
    ShortestPredicted,
    ShortestPrompt,
    ShortestRemaining,
    SkipJoin,
)


def optimistic() -> Batching:
    """Return chunked prefill that admits a request when its prompt fits, and lets outputs grow."""
    return Chunked(reserve="optimistic")


@attrs.frozen(kw_only=True)
class _Open(ComposedPolicy):
    """No gate, chunked prefill: the policy promises nothing to clients."""

    gate: AnyGate = attrs.field(factory=OpenGate)
    batching: Batching = attrs.field(factory=Chunked)


@attrs.frozen(kw_only=True)
class _Credited(ComposedPolicy):
    """The deficit gate, chunked prefill: waiting clients' charged service differs by at most 2(Q + U - 1), D-4.1."""

    gate: AnyGate = attrs.field(factory=DeficitGate)
    batching: Batching = attrs.field(factory=Chunked)


# --- arrival, size, locality, without a gate ------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class FCFS(_Open):
    """First come, first served: the usual default of engines.  The first request that does not fit stops the line.

    The client that sends most is served most.  Papers mean two policies by the name, which differ in the memory that an
    admission needs: `no-preempt` and `fcfs-optimistic` are those, and `fcfs` takes either `reserve`.
    """

    name: str = "fcfs"
    order: Order = attrs.field(factory=Arrival)


@attrs.frozen(kw_only=True)
class FCFSOptimistic(FCFS):
    """First come, first served, as soon as the prompt fits (vLLM).

    When outputs have grown too far the youngest request is preempted and computed again.
    """

    name: str = "fcfs-optimistic"
    batching: Batching = attrs.field(factory=optimistic)


@attrs.frozen(kw_only=True)
class NoPreempt(FCFS):
    """First come, first served, with room for the whole declared output: no request is ever preempted.

    Memory stands unused while outputs end early.
    """

    name: str = "no-preempt"


@attrs.frozen(kw_only=True)
class ShortestPromptFirst(_Open):
    """Fewest prompt tokens first.  A long prompt waits for ever under a steady stream of shorter ones."""

    name: str = "shortest-prompt"
    order: Order = attrs.field(factory=ShortestPrompt)


@attrs.frozen(kw_only=True)
class LPM(_Open):
    """Longest cached prefix first, for the highest hit rate of the prefix cache.

    Source: SGLang's default order ("SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS'24).
    A request whose prefix is cold waits for ever under a steady stream of warm ones, and so does its client.
    """

    name: str = "lpm"
    order: Order = attrs.field(factory=LongestPrefix)


@attrs.frozen(kw_only=True)
class DfsWeight(_Open):
    """Depth first through the prefix tree, where most requests wait first (SGLang's dfs-weight)."""

    name: str = "dfs-weight"
    order: Order = attrs.field(factory=DfsWeightOrder)


@attrs.frozen(kw_only=True)
class Ageing(_Open):
    """The highest priority first, which waiting raises.  Under a gate, priorities count within a client."""

    name: str = "ageing"
    order: Order = attrs.field(factory=AgeingOrder)


@attrs.frozen(kw_only=True)
class Preble(_Open):
    """Preble's local scheduler: priority groups by cached share, which take turns.

    Paper: "Preble: Efficient Distributed Prompt Scheduling for LLM Serving" (ICLR'25); its released code has no
    priority groups, and its global scheduler is a router (`E2`).  Theorem: the k-th request of group g is admitted
    after at most ceil(k/g) P(P+1)/2 picks (PG-1).  Under a gate each client's requests take turns of their own.
    """

    name: str = "preble"
    order: Order = attrs.field(factory=PriorityGroups)


@attrs.frozen(kw_only=True)
class PreblePrinted(_Open):
    """The groups as printed: group 0 has no quota, and groups follow the cache down.  For comparison.

    A request that is cold, or whose prefix is evicted, may wait for ever.
    """

    name: str = "preble-printed"
    order: Order = attrs.field(factory=lambda: PriorityGroups(lowest=0, regroup="always"))


# --- fair to clients ------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class VTC(ComposedPolicy):
    """Virtual token counters: the client charged least goes first.

    Paper: "Fairness in Serving Large Language Models" (OSDI'24).  Theorem: two waiting clients' charged service differs
    by at most 2U (V-4.4).  Prompts are charged whole, cached or not: the paper knows no prefix cache.
    """

    name: str = "vtc"
    order: Order = attrs.field(factory=Arrival)
    gate: AnyGate = attrs.field(factory=CounterGate)
    batching: Batching = attrs.field(factory=Chunked)


@attrs.frozen(kw_only=True)
class DLPM(_Credited):
    """Deficit longest prefix match: longest cached prefix first, among the clients that have credit.

    Paper: "Locality-aware Fair Scheduling in LLM Serving".  Theorem: D-4.1.  A large quantum Q approaches LPM, a small
    one VTC.
    """

    name: str = "dlpm"
    order: Order = attrs.field(factory=LongestPrefix)


@attrs.frozen(kw_only=True)
class DLPMPrinted(DLPM):
    """DLPM as printed: a client that comes back starts at zero, and D-4.1 fails (CE1).  For comparison.

    All that is left is D-4.1-rejoin: nothing is promised against a client that comes and goes.
    """

    name: str = "dlpm-printed"
    gate: AnyGate = attrs.field(factory=lambda: DeficitGate(rejoin="reset"))


@attrs.frozen(kw_only=True)
class DLPMGlobal(DLPM):
    """DLPM with one deficit a client for all workers; on one worker it is DLPM.

    Source: this library (`policies.gates.shared.gate`).  Theorem: clients that wait anywhere differ in charged
    service by at most 2(Q + m(U - 1)) on m workers, whatever routes their requests (D2-global).
    """

    name: str = "dlpm-global"
    gate: AnyGate = attrs.field(factory=GlobalDeficitGate)


@attrs.frozen(kw_only=True)
class DLPMHierarchical(DLPM):
    """DLPM for organisations of users and keys; for clients in no groups it is DLPM.

    Source: this library (`policies.gates.hierarchical`).  Theorem: siblings that wait differ in charged service by at
    most 2(Q + U - 1), whatever is below them (H-siblings), so that splitting up gains nothing (H-split).
    """

    name: str = "dlpm-hierarchical"
    gate: AnyGate = attrs.field(factory=HierarchicalGate)


@attrs.frozen(kw_only=True)
class UpstreamFirst(_Credited):
    """Calls that other calls wait for first, among the clients that have credit."""

    name: str = "upstream-first"
    order: Order = attrs.field(factory=DownstreamLevels)


# --- queue length and predicted outputs -----------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class LARRY(_Open):
    """Small prompts first while the queue is long, the oldest first while it is short."""

    name: str = "larry"
    order: Order = attrs.field(factory=LarryOrder)
    batching: Batching = attrs.field(factory=optimistic)


@attrs.frozen(kw_only=True)
class LARRYPrinted(LARRY):
    """LARRY by its equation 1 as printed, which serves large prompts first.  For comparison."""

    name: str = "larry-printed"
    order: Order = attrs.field(factory=LarryPrintedOrder)


@attrs.frozen(kw_only=True)
class FairLARRY(_Credited):
    """LARRY's order among the clients that have credit.  Outputs are reserved, since the tight bound needs it."""

    name: str = "larry-fair"
    order: Order = attrs.field(factory=LarryOrder)


def _whole() -> Batching:
    return RequestLevel(reserve="optimistic")


@attrs.frozen(kw_only=True)
class S3(PredictedBatches):
    """Batches of whole requests in order of arrival, each with memory for its predicted output."""

    name: str = "s3"
    order: Order = attrs.field(factory=Arrival)
    gate: AnyGate = attrs.field(factory=OpenGate)
    batching: Batching = attrs.field(factory=_whole)


@attrs.frozen(kw_only=True)
class PiA(S3):
    """Batches of whole requests of similar predicted output, the shortest first."""

    name: str = "pia"
    order: Order = attrs.field(factory=SimilarLength)


@attrs.frozen(kw_only=True)
class TRAIL(_Open):
    """Shortest predicted remaining output first."""

    name: str = "trail"
    order: Order = attrs.field(factory=ShortestRemaining)
    batching: Batching = attrs.field(factory=optimistic)


@attrs.frozen(kw_only=True)
class LearningToRank(_Open):
    """Shorter predicted outputs first."""

    name: str = "learning-to-rank"
    order: Order = attrs.field(factory=ShortestPredicted)
    batching: Batching = attrs.field(factory=optimistic)


@attrs.frozen(kw_only=True)
class FastServe(_Open):
    """A multi-level feedback queue with preemption."""

    name: str = "fastserve"
    order: Order = attrs.field(factory=SkipJoin)
    batching: Batching = attrs.field(factory=optimistic)


# --- prefix groups --------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class BatchLLM(_Open):
    """Prefix groups, for throughput."""

    name: str = "batchllm"
    order: Order = attrs.field(factory=PrefixGroupOrder)
    batching: Batching = attrs.field(factory=MemoryCentric)


@attrs.frozen(kw_only=True)
class HybridBatchLLM(_Credited):
    """Prefix groups among the clients that have credit, while many wait and share much; else the longest prefix."""

    name: str = "batchllm-hybrid"
    order: Order = attrs.field(factory=lambda: PrefixGroupOrder(backlog_min=64, saving_min_percent=30))
