"""Orders: one integer for a waiting request, larger goes first, of one kind a file. Read `base` first."""

from fairsched.policies.orders import queue
from fairsched.policies.orders.ageing import P_AGE_1, P_AGE_2, P_AGE_3, AgeingOrder, key, key_factors
from fairsched.policies.orders.base import AGE_BITS, AGE_MASK, NO_PLACE, Order, QueuedRequest, QueueExtension
from fairsched.policies.orders.deadlines import (
    P_AFS_1,
    P_DL_1,
    AgentFairShare,
    EarliestDeadline,
    JustInTime,
    LeastSlack,
)
from fairsched.policies.orders.fastserve import P_FS_1, SkipJoin, join_level, level_after, service_left
from fairsched.policies.orders.holistic import HolisticShares
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
from fairsched.policies.orders.plain import (
    Arrival,
    CountedPrograms,
    DownstreamLevels,
    LargestPrograms,
    LongestPrefix,
    LongestPrefixAtOnce,
    OldestPrograms,
    PriorityGroups,
    ShortestPrompt,
    SortedBatches,
    WarmPrograms,
)
from fairsched.policies.orders.predicted_output import P_LTR_1, P_TRAIL, ShortestPredicted, ShortestRemaining, predicted
from fairsched.policies.orders.prompts_first import P_SW_2, PromptsFirst
from fairsched.policies.orders.queue import (
    CacheMatches,
    FollowsCache,
    Queue,
    Regroups,
    after_insertion,
    join,
    leave,
    refreshed,
    waits_for_prefix,
    with_groups,
    with_programs,
)
from fairsched.policies.orders.shortest_prefill import (
    P_HRRN_1,
    P_HRRN_2,
    P_SPF_1,
    HighestResponseRatio,
    ShortestPrefill,
)
from fairsched.policies.orders.virtual_finish import (
    P_LAS_1,
    P_LAS_2,
    P_LAS_3,
    P_LAS_4,
    AttainedService,
    LeastAttained,
    VirtualFinish,
)

__all__ = [
    "AGE_BITS", "AGE_MASK", "NO_PLACE", "P_AFS_1", "P_AGE_1", "P_AGE_2", "P_AGE_3", "P_DL_1", "P_FS_1", "P_HRRN_1",
    "P_HRRN_2", "P_LAR_1", "P_LAR_2", "P_LAR_3", "P_LAR_4", "P_LAR_5", "P_LAS_1", "P_LAS_2", "P_LAS_3", "P_LAS_4",
    "P_LTR_1", "P_SPF_1", "P_SW_2", "P_TRAIL", "QUEUE_BOUNDED", "AgeingOrder", "AgentFairShare", "Arrival",
    "AttainedService", "CacheMatches", "CountedPrograms", "DownstreamLevels", "EarliestDeadline", "FollowsCache",
    "HighestResponseRatio", "HolisticShares", "JustInTime", "LargestPrograms", "LarryOrder", "LarryPrintedOrder",
    "LeastAttained", "LeastSlack", "LongestPrefix", "LongestPrefixAtOnce", "OldestPrograms", "Order", "PriorityGroups",
    "PromptsFirst", "Queue", "QueueExtension", "QueuedRequest", "Regroups", "ShortestPredicted", "ShortestPrefill",
    "ShortestPrompt", "ShortestRemaining", "SkipJoin", "SortedBatches", "VirtualFinish", "WarmPrograms",
    "after_insertion", "join", "join_level", "key", "key_factors", "leave", "level_after", "predicted", "queue",
    "refreshed", "service_left", "waits_for_prefix", "with_groups", "with_programs"
]  # fmt: skip
