"""Orders: one integer for a waiting request, larger goes first, one order a file. Read `base` first."""

from fairsched.policies.orders.abilities import (
    D_HEAD,
    D_LINE,
    D_OLDER,
    D_PASSED,
    D_REQUEST,
    DUE_RESPECTED,
    GROUPS_RISE,
    KV_HOST,
    KV_SWAP_IN,
    KV_SWAP_OUT,
    NO_MATCHES,
    P_DISPLACED,
    P_SWAP,
    PG_1,
    PG_GROUPS,
    PG_ROUND,
    PG_SERVES,
    PG_TURNS,
    QUOTA_POSITIVE,
    TURN_RESPECTED,
    BypassLines,
    CacheMatches,
    Columns,
    FollowsCache,
    FollowsOutput,
    Grouped,
    LimitsBypass,
    Line,
    Matches,
    Preempts,
    Promotes,
    Promotions,
    Ranking,
    RanksQueue,
    Regroups,
    Swap,
    Swaps,
    bypass_budget_field,
    picks_max,
    preempts,
    round_picks,
    turns_max,
    waits_for_prefix,
)
from fairsched.policies.orders.ageing import P_AGE_1, P_AGE_2, P_AGE_3, AgeingOrder, key, key_factors
from fairsched.policies.orders.base import (
    AGE_BITS,
    AGE_MASK,
    NO_POSITION,
    Order,
    QueuedRequest,
    QueueExtension,
    score_of,
)
from fairsched.policies.orders.dfs_weight import P_DFS_1, DfsWeightOrder, walked
from fairsched.policies.orders.fastserve import P_FS_1, SkipJoin, join_level, level_after, service_left
from fairsched.policies.orders.larry import (
    P_LAR_1,
    P_LAR_2,
    P_LAR_3,
    P_LAR_4,
    P_LAR_5,
    QUEUE_BOUNDED,
    LarryOrder,
    LarryPrintedOrder,
)
from fairsched.policies.orders.learning_to_rank import P_LTR_1, ShortestPredicted
from fairsched.policies.orders.plain import Arrival, LongestPrefix, ShortestPrompt
from fairsched.policies.orders.priority_groups import PriorityGroups
from fairsched.policies.orders.trail import P_TRAIL, ShortestRemaining, predicted
from fairsched.policies.orders.upstream_first import DownstreamLevels

__all__ = [
    "AGE_BITS", "AGE_MASK", "DUE_RESPECTED", "D_HEAD", "D_LINE", "D_OLDER", "D_PASSED", "D_REQUEST", "GROUPS_RISE",
    "KV_HOST", "KV_SWAP_IN", "KV_SWAP_OUT", "NO_MATCHES", "NO_POSITION", "PG_1", "PG_GROUPS", "PG_ROUND",
    "PG_SERVES", "PG_TURNS", "P_AGE_1", "P_AGE_2", "P_AGE_3", "P_DFS_1", "P_DISPLACED", "P_FS_1", "P_LAR_1",
    "P_LAR_2", "P_LAR_3", "P_LAR_4", "P_LAR_5", "P_LTR_1", "P_SWAP", "P_TRAIL", "QUEUE_BOUNDED", "QUOTA_POSITIVE",
    "TURN_RESPECTED", "AgeingOrder", "Arrival", "BypassLines", "CacheMatches", "Columns", "DfsWeightOrder",
    "DownstreamLevels", "FollowsCache", "FollowsOutput", "Grouped", "LarryOrder", "LarryPrintedOrder",
    "LimitsBypass", "Line", "LongestPrefix", "Matches", "Order", "Preempts", "PriorityGroups", "Promotes",
    "Promotions", "QueueExtension", "QueuedRequest", "Ranking", "RanksQueue", "Regroups", "ShortestPredicted",
    "ShortestPrompt", "ShortestRemaining", "SkipJoin", "Swap", "Swaps", "bypass_budget_field", "join_level", "key",
    "key_factors", "level_after", "picks_max", "predicted", "preempts", "round_picks", "score_of", "service_left",
    "turns_max", "waits_for_prefix", "walked"
]  # fmt: skip
