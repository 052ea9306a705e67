"""What a proof says, as values: assumptions, theorems, and the certificate that an engine may ask for.

Nothing here proves anything.  A gate lists its `Theorem`s, `verify` decides them and writes a `Certificate`, and an
engine reads it: the certificate is all that passes between the two.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any

import attrs
import msgspec


@attrs.frozen
class Assumption:
    """A condition under which a theorem holds, as one name and one sentence."""

    name: str
    sentence: str


class Scope(Enum):
    """For which sizes a statement was decided; a report never mixes them."""

    ALL_N = "all n"
    """Every number of clients and every sequence of events."""
    BOUNDED = "n <= k"
    """Every world up to a size that the statement names."""
    TESTED = "tested"
    """Sampled worlds only."""


@attrs.frozen
class Theorem:
    """One claim about a gate.

    `statement` is one line, `source` the paper and section (and whether it was reconstructed), `bound` the constant as
    text in the symbols of the statement.  `bound_cost`, where there is one, computes that constant in cost units from
    the quanta (0 where a gate has none) and the most that may be charged after the gate was passed:
    ``bound_cost(quantum_f, charge_max_f, quantum_g, charge_max_g)``.  With `per_quantum` the result is to be divided by
    a quantum.  `rests_on` are the ids of theorems that the proof takes for granted, whose assumptions it needs too.
    """

    id: str
    statement: str
    source: str
    assumptions: tuple[Assumption, ...] = ()
    bound: str = ""
    bound_cost: Callable[[int, int, int, int], int] | None = attrs.field(default=None, eq=False)
    scope: Scope = Scope.ALL_N
    per_quantum: bool = False
    rests_on: tuple[str, ...] = ()


class ProvedTheorem(msgspec.Struct, frozen=True):
    """One line of a certificate: a theorem that was decided, with its constant for one configuration.

    `bound_cost` is in cost units, None for a theorem without a constant.
    """

    id: str
    statement: str
    scope: str
    assumptions: tuple[str, ...]
    bound: str = ""
    bound_cost: int | None = None


CERTIFICATE_VERSION = 3


class Certificate(msgspec.Struct, frozen=True):
    """What was proved about one policy in one configuration, and about which text.

    `configuration` has two parts, as `model.serialization.documents` describes them: the "policy" with all its
    parameters, and the "deployment" on which the constants rest (KV capacity, longest prompt and output, weights).
    `code` has the hash of each function, class and constant that runs when the policy decides, by its full name
    (`model.serialization.code`). `solvers` maps each solver that agreed to its version.
    """

    policy: str
    configuration: dict[str, Any]
    configuration_sha256: str
    code: dict[str, str]
    theorems: tuple[ProvedTheorem, ...]
    solvers: dict[str, str]
    version: int = CERTIFICATE_VERSION

    def to_json(self) -> bytes:
        """Return the certificate as JSON, the same bytes for the same certificate."""
        return msgspec.json.encode(self, order="sorted")

    @classmethod
    def from_json(cls, raw: bytes) -> "Certificate":
        """Read `to_json`'s output; raises `ValueError` on anything else, a newer version included."""
        try:
            certificate = msgspec.json.decode(raw, type=cls)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a certificate: {error}") from error
        if certificate.version != CERTIFICATE_VERSION:
            raise ValueError(f"certificate of version {certificate.version}; this library reads {CERTIFICATE_VERSION}")
        return certificate

    def covers(self, theorem_id: str) -> bool:
        """Return whether the theorem of this id is among those proved."""
        return any(theorem.id == theorem_id for theorem in self.theorems)


# --- the named assumptions, in the order of a report ----------------------------------------------------------------
# First what events show, then what the configuration says, then what is about several workers.

MEM_RESERVE = Assumption(
    "MemReserve",
    "What an admission is charged, and all that its client may still be charged for requests in flight, is reserved "
    "at the admission and at most U; nothing is charged later that was not reserved.",
)
OUTPUTS_BOUNDED = Assumption(
    "OutputsBounded",
    "No request produces more than its declared output, and no more run than the batching rule lets in, so that what a "
    "client may still be charged is at most U_dyn; it stands for MemReserve where outputs are not reserved.",
)
MEM_SHARED = Assumption(
    "MemShared",
    "What an admission is charged, and all that its client and any one other may still be charged or be given back, "
    "lies in one memory, so it is together at most U.",
)
GATE_RESPECTED = Assumption("GateRespected", "Every admission was let in by the gate.")
CHARGES_AT_LEAST_ONE = Assumption("ChargesAtLeastOne", "Every admission is charged at least one input token.")
EXTEND_AS_PLANNED = Assumption(
    "ExtendAsPlanned", "Nothing that was planned as cached has to be computed: no admission is settled at more."
)
NOTHING_REFUNDED = Assumption(
    "NothingRefunded",
    "Nothing that was charged is given back: no running request is cancelled or migrates before its prompt is "
    "computed, and none is settled for less.",
)
BATCH_BOUNDED = Assumption(
    "BatchBounded",
    "No more requests run than the batching rule lets in, each yields at most a token a step, and no admission is "
    "charged for more than the longest request, nor P more than its price.",
)
PAUSES_OBEYED = Assumption(
    "PausesObeyed",
    "In a step that begins while clients wait, a client that owes P or more gets no tokens but the first ones of "
    "requests whose prompts are computed in it.",
)
CAPPED = Assumption("Capped", "No admission passes the in-flight cap.")
CAPPED_TOGETHER = Assumption(
    "CappedTogether",
    "While another client waits, no admission passes the in-flight cap, unless nothing of its client is in flight.",
)
OUTPUTS_LIKELY = Assumption(
    "OutputsLikely",
    "What an admission is charged, and all that its client may still be charged for requests in flight, is at most U "
    "of the tokens that are counted in flight for the client then.",
)
FITS_ALONE = Assumption("FitsAlone", "Every request fits into an empty worker.")
BACKLOGGED_DURING = Assumption(
    "BackloggedDuring",
    "The named client has a request waiting throughout the interval, and lacks no slot for an adapter.",
)
NEXT_MAY_GO = Assumption(
    "NextMayGo",
    "Whenever the gate chooses, the next request of the named client ranks no lower than the named one, which waits, "
    "and is not passed over for a cap, an adapter or a prefix that is being computed.",
)
WAITS_SAID = Assumption(
    "WaitsSaid", "Whenever an account gives credit, it has been told that each named client waits, if it does."
)
CAPACITY_FLOOR = Assumption(
    "CapacityFloor",
    "While the named client waits, what clients are charged in any time grows at least a times as fast as time.",
)
STEPS_IN_TIME = Assumption("StepsInTime", "No step takes longer than the worker's latency model says.")
QUANTUM_POSITIVE = Assumption("QuantumPositive", "Every quantum is at least 1.")
RESERVES = Assumption("Reserves", "All that an output may come to is reserved when its request is let in.")
SLOTS_RESPECTED = Assumption(
    "SlotsRespected", "No request of the adapter that drains is let in past one that lacks a slot."
)
FLOOR_COVERS = Assumption(
    "FloorCovers", "What lower bands had beyond their share is remembered up to what they may have in flight: F >= g U."
)
EQUAL_QUANTA = Assumption("EqualQuanta", "The compared clients have the same quantum.")
REJOIN_KEEPS_DEBT = Assumption("RejoinKeepsDebt", "An arrival never changes a deficit.")
LIFT_ON_JOIN = Assumption(
    "LiftOnJoin",
    "A client that starts to wait, by an arrival or by a preemption, is lifted to the lowest counter that waits, or "
    "to that of the last client that left.",
)
WEIGHTS_ORDERED = Assumption("WeightsOrdered", "An input token costs at most as much as an output token.")
BACKLOGGED_EVERYWHERE = Assumption(
    "BackloggedEverywhere", "The named client has a request waiting at every worker throughout the interval."
)
BACKLOGGED_TOGETHER = Assumption(
    "BackloggedTogether", "At whatever worker one of the compared clients waits, the other waits too."
)
EQUAL_WORKERS = Assumption("EqualWorkers", "The two workers give their client the same quantum.")
BOTH_SERVE = Assumption(
    "BothServe",
    "The two workers take requests whenever the client is refilled, neither leaves, and the client is remembered.",
)
GLOBAL_REFILL = Assumption(
    "GlobalRefill", "Credit is given only when no client that waits at any worker has credit, to all clients without."
)
STALE_READS = Assumption(
    "StaleReads", "A decision may lack charges of other workers, at most S of each client, and nothing else."
)
PHASES_APART = Assumption(
    "PhasesApart",
    "A request leaves a prefill worker with its first token, and comes to a decode worker with the KV of all but that.",
)

ASSUMPTIONS = tuple(value for value in globals().values() if isinstance(value, Assumption))
"""All of them, in this order."""
