"""What only some orders need, one ability a file: a class that an order derives from, with what it keeps beside the
queue.

Read `promotion` first.
"""

from fairsched.policies.orders.abilities.batches import P_TI_2, TakenBatches, TakesBatches, batch_requests_field
from fairsched.policies.orders.abilities.fronts import OWN_MAX, Fronts, Key, KeyRanking, RanksByKey
from fairsched.policies.orders.abilities.preemption import (
    P_DISPLACED,
    P_SWAP,
    SWAPPING,
    Preempts,
    Swap,
    Swaps,
    preempts,
)
from fairsched.policies.orders.abilities.programs import KeepsPrograms, ProgramsHeld, needed
from fairsched.policies.orders.abilities.promotion import FollowsOutput, Promotes, Promotions
from fairsched.policies.orders.abilities.weighted_round_robin import (
    GROUPS_RISE,
    PG_1,
    PG_GROUPS,
    PG_ROUND,
    PG_SERVES,
    PG_TURNS,
    QUOTA_POSITIVE,
    THEOREMS,
    TURN_RESPECTED,
    TakesTurns,
    picks_max,
    round_picks,
    turns_max,
)

__all__ = [
    "GROUPS_RISE", "OWN_MAX", "PG_1", "PG_GROUPS", "PG_ROUND", "PG_SERVES", "PG_TURNS", "P_DISPLACED", "P_SWAP",
    "P_TI_2", "QUOTA_POSITIVE", "SWAPPING", "THEOREMS", "TURN_RESPECTED", "FollowsOutput", "Fronts", "KeepsPrograms",
    "Key", "KeyRanking", "Preempts", "ProgramsHeld", "Promotes", "Promotions", "RanksByKey", "Swap", "Swaps",
    "TakenBatches", "TakesBatches", "TakesTurns", "batch_requests_field", "needed", "picks_max", "preempts",
    "round_picks", "turns_max"
]  # fmt: skip
