"""The deficit gate of DLPM: kernel, gate and theorems. Read `gate` first."""

from fairsched.policies.gates.deficit.gate import (
    DeficitAdmissions,
    DeficitGate,
    DeficitState,
    Sharing,
    choose,
    decode,
    reconfigure,
    refill,
    refill_due,
    refill_rounds,
    under_cap,
)
from fairsched.policies.gates.deficit.theorems import (
    D_41,
    D_41_REJOIN,
    D_42,
    D_A1,
    D_A2,
    D_A2_TIME,
    D_A2_WEIGHTED,
    D_CAP,
    D_CAP_HOLDS,
    D_CHANGE,
    D_CHANGE_GAP,
    D_EVICTION,
    D_GATE,
    D_INT64,
    D_PRICE,
    D_PRINTED,
    D_RANGE,
    D_RANGE_REJOIN,
    D_REFILL,
    D_SHARE_U,
    D_SPLIT,
    D_SPLIT_EVEN,
    D_STARVATION,
    D_UNDER_CAP,
    D_WC,
    D_WEIGHTED,
    gap_cost,
    gap_theorem,
    weighted_gap_cost,
)

__all__ = [
    "D_41", "D_41_REJOIN", "D_42", "D_A1", "D_A2", "D_A2_TIME", "D_A2_WEIGHTED", "D_CAP", "D_CAP_HOLDS", "D_CHANGE",
    "D_CHANGE_GAP", "D_EVICTION", "D_GATE", "D_INT64", "D_PRICE", "D_PRINTED", "D_RANGE", "D_RANGE_REJOIN",
    "D_REFILL", "D_SHARE_U", "D_SPLIT", "D_SPLIT_EVEN", "D_STARVATION", "D_UNDER_CAP", "D_WC", "D_WEIGHTED",
    "DeficitAdmissions", "DeficitGate", "DeficitState", "Sharing", "choose", "decode", "gap_cost", "gap_theorem",
    "reconfigure", "refill", "refill_due", "refill_rounds", "under_cap", "weighted_gap_cost"
]  # fmt: skip
