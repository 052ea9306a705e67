"""The named policies that decide what a worker does next: each an order x a gate x a batching rule.

`fairsched.policies.registry` lists them by name.  Orders, gates and batching rules explain themselves in their own
modules, theorems stand there.
"""

from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature
from typing import Any, ClassVar

import attrs

from fairsched.policies import batching as steps
from fairsched.policies import gates, orders
from fairsched.policies.local import ComposedPolicy, PredictedBatches, SimilarLength, parameters, parts_with
from fairsched.policies.offline import PrefixGroupOrder
from fairsched.policies.validators import meant

_KEYWORD = Parameter.KEYWORD_ONLY
OPTIMISTIC = partial(steps.Chunked, reserve="optimistic")
"""Chunked prefill that admits a request when its prompt fits, and lets outputs grow."""


@attrs.frozen(kw_only=True, init=False)
class _Composition(ComposedPolicy):
    """A policy whose class statement names its parts; those that it does not name are its parent's.

    A part is given whole (`gate=DeficitGate(quantum=512)`) or by its parameters (`quantum=512`).
    """

    __signature__: ClassVar[Signature]
    """With the parts' defaults and their parameters, which `help` and the reference show."""
    made_of: ClassVar[dict[str, Callable[[], Any]]] = {
        "order": orders.Arrival,
        "gate": gates.OpenGate,
        "batching": steps.Chunked,
    }

    name: str = attrs.field(default=attrs.Factory(lambda self: self.made_of["name"](), takes_self=True))
    order: orders.Order = attrs.field(default=attrs.Factory(lambda self: self.made_of["order"](), takes_self=True))
    gate: gates.AnyGate = attrs.field(default=attrs.Factory(lambda self: self.made_of["gate"](), takes_self=True))
    batching: steps.Batching = attrs.field(
        default=attrs.Factory(lambda self: self.made_of["batching"](), takes_self=True)
    )

    def __init__(self, **given: Any) -> None:
        parts = {part: given.pop(part) for part in ("name", *self.made_of) if part in given}
        self.__attrs_init__(**parts)
        if not given:
            return
        known = parameters(self)
        for parameter in given:
            if parameter not in known:
                names = dict.fromkeys([*self.made_of, *known])
                raise TypeError(meant(f"parameter of {type(self).__name__}", parameter, names))
        self.__attrs_init__(**parts | parts_with(self, self.batching, given))

    def __init_subclass__(cls, *, name: str = "", **parts: Callable[[], Any]) -> None:
        named = {"name": lambda: name} if name else {}
        cls.made_of = {**cls.made_of, **named, **parts}
        if "name" in cls.made_of:
            made = {part: make() for part, make in cls.made_of.items()}
            defaults = made | parameters(ComposedPolicy(**made)) | made  # parts first
            cls.__signature__ = Signature(
                [Parameter(part, _KEYWORD, default=value) for part, value in defaults.items()]
            )


# --- arrival, size, locality, without a gate ------------------------------------------------------------------------


class FCFS(_Composition, name="fcfs"):
    """First come, first served: the usual default of engines.  The first request that does not fit stops the line.

    The client that sends most is served most.  Papers mean two policies by the name, which differ in the memory that an
    admission needs: `no-preempt` and `fcfs-optimistic` are those, and `fcfs` takes either `reserve`.
    """


class FCFSOptimistic(FCFS, name="fcfs-optimistic", batching=OPTIMISTIC):
    """First come, first served, as soon as the prompt fits (vLLM).

    When outputs have grown too far the youngest request is preempted and computed again.
    """


class NoPreempt(FCFS, name="no-preempt"):
    """First come, first served, with room for the whole declared output: no request is ever preempted.

    Memory stands unused while outputs end early.
    """


class FairBatchingLocal(FCFS, name="fair-batching", batching=steps.FairBatching):
    """First come, first served, in steps that last until the nearest deadline of the tokens that are due.

    Paper: "FairBatching: Fairness-Aware Batch Formation for LLM Inference" (arXiv 2510.14392).
    """


class DistServeLocal(
    FCFS, name="distserve", batching=partial(steps.EagerPrefill, max_batched_tokens=512, reserve="optimistic")
):
    """DistServe's workers: prompts in order of arrival, in batches of about 512 tokens, a longer one alone.

    Paper: "DistServe" (OSDI'24), section 4.3; 512 tokens saturate OPT-13B on an A100, and other workers at
    `saturating_prompt` of their latency model.  Its controller is a router (`distserve`).
    """


class DistServeLocalReleased(
    DistServeLocal,
    name="distserve-released",
    batching=partial(steps.CappedPrefill, max_batched_tokens=2048, reserve="optimistic"),
):
    """The released code's workers: no prompt is longer than a batch (F-DS-4), and outputs grow into free memory.  For
    comparison."""


class ShortestPromptFirst(_Composition, name="shortest-prompt", order=orders.ShortestPrompt):
    """Fewest prompt tokens first.  A long prompt waits for ever under a steady stream of shorter ones."""


class ShortestPrefillFirst(_Composition, name="shortest-prefill", order=orders.ShortestPrefill):
    """Fewest tokens to prefill first, less a share of what a request waited: with any, no request waits for ever."""


class HRRN(_Composition, name="hrrn", order=orders.HighestResponseRatio):
    """Highest response ratio next: waits count by the tokens that a request has to prefill.

    Source: SGLang's `hrrn`.  Under a stream of shorter requests a longer one may wait for ever all the same (F-HRRN-1).
    """


class LPM(_Composition, name="lpm", order=orders.LongestPrefix):
    """Longest cached prefix first, for the highest hit rate of the prefix cache.

    Source: SGLang's default order ("SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS'24).
    A request whose prefix is cold waits for ever under a steady stream of warm ones, and so does its client.
    """


class Ageing(_Composition, name="ageing", order=orders.AgeingOrder):
    """The highest priority first, which waiting raises.  Under a gate, priorities count within a client."""


class Preble(_Composition, name="preble", order=orders.PriorityGroups):
    """Preble's local scheduler: priority groups by cached share, which take turns.

    Paper: "Preble: Efficient Distributed Prompt Scheduling for LLM Serving" (ICLR'25); its global scheduler is a router
    (`E2`).  Theorem: the k-th request of group g is admitted
    after at most ceil(k/g) P(P+1)/2 picks (PG-1).  Under a gate each client's requests take turns of their own.
    """


class PreblePrinted(_Composition, name="preble-printed", order=partial(orders.PriorityGroups, variant="released")):
    """The groups of Preble's released code: shares rounded up, and groups follow the cache down.  For comparison.

    A request whose prefix is evicted again and again may wait for ever.
    """


# --- fair to clients ------------------------------------------------------------------------------------------------


class VTC(_Composition, name="vtc", gate=gates.CounterGate):
    """Virtual token counters: the client charged least goes first.

    Paper: "Fairness in Serving Large Language Models" (OSDI'24).  Theorem: two waiting clients' charged service differs
    by at most 2U (V-4.4).  Prompts are charged whole, cached or not: the paper knows no prefix cache.
    """


class DLPM(_Composition, name="dlpm", order=orders.LongestPrefix, gate=gates.DeficitGate):
    """Deficit longest prefix match: longest cached prefix first, among clients with credit, which service uses up.

    Paper: "Locality-aware Fair Scheduling in LLM Serving".  Theorem: waiting clients' charged service differs by at
    most 2(Q + U - 1) (D-4.1).  A large quantum Q approaches LPM, a small one VTC.
    """


class DLPMPrinted(
    DLPM,
    name="dlpm-printed",
    order=orders.LongestPrefixAtOnce,
    gate=gates.PrintedDeficitGate,
    batching=OPTIMISTIC,
):
    """DLPM's algorithm 1 as printed (reconstructed).  For comparison: nothing is promised.

    D-4.2 is false for it (CE1), as are two of its other rules (CE3, CE4).
    """


class DLPMGlobal(DLPM, name="dlpm-global", gate=gates.GlobalDeficitGate):
    """DLPM with one deficit a client for all workers; on one worker it is DLPM.

    Source: this library (`policies.gates.shared`).  Theorem: clients that wait anywhere differ in charged
    service by at most 2(Q + m(U - 1)) on m workers, whatever routes their requests (D2-global).
    """


class DLPMInBatch(DLPM, name="dlpm-in-batch", gate=gates.InBatchGate):
    """DLPM that pauses running requests of clients deep in debt while others wait: its bound does not grow with memory.

    Source: this library (`policies.gates.in_batch`).  Theorem: waiting clients' charged service differs by at
    most 2(Q + U - 1) with U = w_q B + w_e L (D-pause-gap), for batches of B requests of at most L tokens.  A lone
    client is never paused.
    """


class DLPMHierarchical(DLPM, name="dlpm-hierarchical", gate=gates.HierarchicalGate):
    """DLPM for organisations of users and keys; for clients in no groups it is DLPM.

    Source: this library (`policies.gates.hierarchical`).  Theorem: siblings that wait differ in charged service by at
    most 2(Q + U - 1), whatever is below them (H-siblings), so that splitting up gains nothing (H-split).
    """


class Programs(
    DLPMHierarchical,
    name="programs",
    order=orders.WarmPrograms,
    gate=partial(gates.HierarchicalGate, quantum=1 << 17),
):
    """DLPM for programs of many calls: as many are in progress as memory holds between their calls, too.

    Source: this library (`policies.local.programs`).  Each program is a client in the group of its client.  Theorems:
    H-siblings and H-split hold as they are; a client's programs hold no more than its share of memory while another
    waits with less (P-PROG-share).
    """


class Continuum(_Composition, name="continuum", order=orders.OldestPrograms):
    """Programs first come, first served, with a time to live for their KV.  For comparison."""


class Concur(_Composition, name="concur", order=orders.CountedPrograms):
    """As many programs as find their KV when they come back.  For comparison."""


class ThunderAgent(_Composition, name="thunderagent", order=orders.LargestPrograms):
    """Programs in progress fit into memory, others are paused between two calls.  For comparison."""


class DLPMBands(DLPM, name="dlpm-bands", gate=gates.BandGate):
    """DLPM in priority bands: the higher band first, each lower one with a guaranteed share of the charge.

    Source: this library (`policies.gates.bands`).  Theorem: while a request waits below band k, those below it get
    their share of what they and band k are charged, less a constant (BAND-share).
    """


class UpstreamFirst(_Composition, name="upstream-first", order=orders.DownstreamLevels, gate=gates.DeficitGate):
    """Calls that other calls wait for first, among the clients that have credit."""


class VirtualFinishFirst(_Composition, name="virtual-finish", order=orders.VirtualFinish):
    """The program that was served least, or needs least, first."""


class LAS(_Composition, name="las", order=orders.LeastAttained):
    """The program that attained least service first, where old service counts half after a half-life.

    Source: llm-d-router's fairness policy `program-aware`.  New programs go before one that was ever served (F-LAS-1).
    """


# --- queue length and predicted outputs -----------------------------------------------------------------------------


class EDF(_Composition, name="edf", order=orders.EarliestDeadline, batching=OPTIMISTIC):
    """The earliest deadline first: the time by which a request's target asks for its first token, or for its end.

    Requests without such a target go last, in order of arrival.
    """


class LeastSlackFirst(_Composition, name="least-slack", order=orders.LeastSlack, batching=OPTIMISTIC):
    """The least slack first: what is left until the deadline, less the predicted work before it."""


class AFS(_Composition, name="afs", order=orders.AgentFairShare, batching=OPTIMISTIC):
    """The client with the most work for the time until its first deadline first.

    Source: SAGA's agent fair share (arXiv 2605.00528), as far as it is described.  A client that sends more is served
    more, and another waits for ever (F-AFS-1).
    """


class JITServe(_Composition, name="jitserve", order=orders.JustInTime, batching=OPTIMISTIC):
    """The least slack first, where more tokens for the work make up for slack.

    Source: JITServe (arXiv 2504.20068), of which the aims are taken; the rule is this library's.
    """


class Equinox(_Composition, name="equinox", order=orders.HolisticShares, batching=OPTIMISTIC):
    """The client first whose requests so far are predicted to cost it and the worker least.

    Source: Equinox (arXiv 2508.16646), by its summary; differences are in `policies.orders.holistic`.
    """


class LARRY(_Composition, name="larry", order=orders.LarryOrder, batching=OPTIMISTIC):
    """Small prompts first while the queue is long, the oldest first while it is short."""


class LARRYPrinted(LARRY, name="larry-printed", order=orders.LarryPrintedOrder):
    """LARRY by its equation 1 as printed, which serves large prompts first.  For comparison."""


class FairLARRY(_Composition, name="larry-fair", order=orders.LarryOrder, gate=gates.DeficitGate):
    """LARRY's order among the clients that have credit.  Outputs are reserved, since the tight bound needs it."""


class S3(_Composition, PredictedBatches, name="s3", batching=partial(steps.RequestLevel, reserve="optimistic")):
    """Batches of whole requests in order of arrival, each with memory for its predicted output."""


class PiA(S3, name="pia", order=SimilarLength):
    """Batches of whole requests of similar predicted output, the shortest first."""


class TRAIL(_Composition, name="trail", order=orders.ShortestRemaining, batching=OPTIMISTIC):
    """Shortest predicted remaining output first."""


class LearningToRank(_Composition, name="learning-to-rank", order=orders.ShortestPredicted, batching=OPTIMISTIC):
    """Shorter predicted outputs first."""


class FastServe(_Composition, name="fastserve", order=orders.SkipJoin, batching=OPTIMISTIC):
    """A multi-level feedback queue with preemption."""


class TetriInferLocal(
    _Composition, name="tetriinfer", order=orders.SortedBatches, batching=partial(steps.Padded, reserve="profile")
):
    """TetriInfer's prefill and decode schedulers: batches by prompt length in padded chunks, and outputs let in where
    they fit until all have ended, by their predictions.

    Paper: "Inference without Interference: Disaggregate LLM Inference for Mixed Downstream Workloads" (TetriInfer).
    """


class TetriInferLocalPrinted(
    TetriInferLocal, name="tetriinfer-printed", batching=partial(steps.Padded, reserve="first-finish")
):
    """TetriInfer with reserve-dynamic, which looks at the first request to end and runs short of memory.  For
    comparison; with predictions of a bucket's lower end (`bucketed:end=lower`) it is as printed."""


# --- machines of split phases -----------------------------------------------------------------------------------------


class SplitwiseMachine(
    _Composition,
    name="splitwise-machine",
    order=orders.PromptsFirst,
    batching=partial(steps.WholePrompts, max_running=512),
):
    """A machine of Splitwise in any of its pools: whole prompts first, in batches of 2,048 tokens, beside all decodes.

    Paper: "Splitwise: Efficient Generative LLM Inference Using Phase Splitting" (ISCA'24).  Where memory is short new
    prompts take the place of token work, of each request at most four times (P-SW-2).  The router is `splitwise`.
    """


# --- prefix groups --------------------------------------------------------------------------------------------------


class BatchLLM(_Composition, name="batchllm", order=PrefixGroupOrder, batching=steps.MemoryCentric):
    """Prefix groups, for throughput."""


class HybridBatchLLM(
    _Composition,
    name="batchllm-hybrid",
    order=partial(PrefixGroupOrder, backlog_min=64, saving_min_percent=30),
    gate=gates.DeficitGate,
):
    """Prefix groups among the clients that have credit, while many wait and share much; else the longest prefix."""


COMPOSITIONS: tuple[Callable[[], ComposedPolicy], ...] = (
    *(FCFS, ShortestPromptFirst, ShortestPrefillFirst, HRRN, LPM),
    *(VTC, DLPM, DLPMPrinted, DLPMGlobal, DLPMInBatch, DLPMHierarchical, DLPMBands),
    *(FCFSOptimistic, NoPreempt, FairBatchingLocal, DistServeLocal, DistServeLocalReleased, Ageing),
    *(EDF, LeastSlackFirst, AFS, JITServe, Equinox, S3, PiA),
    *(Programs, Continuum, Concur, ThunderAgent),
    *(LARRY, LARRYPrinted, FairLARRY, UpstreamFirst, VirtualFinishFirst, LAS, Preble, PreblePrinted),
    *(TRAIL, LearningToRank, FastServe, TetriInferLocal, TetriInferLocalPrinted, SplitwiseMachine),
    *(BatchLLM, HybridBatchLLM),
)
"""All of them, in the order in which they are listed."""
