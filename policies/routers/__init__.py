"""Routers: which worker serves a request. Read `load_based` first; `e2` and `d2lpm` have folders of their own."""

from fairsched.policies.routers.central import CentralDLPM
from fairsched.policies.routers.d2lpm import (
    D2_51,
    D2_52,
    D2_A4,
    D2_GATE,
    D2_RANGE,
    D2_REFILL,
    D2_ROUND,
    D2_SPREAD,
    D2LPM,
)
from fairsched.policies.routers.e2 import (
    COST_AT_MOST,
    E2,
    EQUAL_MISS,
    F_E2_1,
    F_E2_2,
    F_E2_3,
    F_E2_4,
    NOTHING_EXPIRES,
    P_E2_1,
    P_E2_2,
    P_E2_3,
    P_E2_4,
    P_E2_5,
    P_E2_6,
    STARTS_WITHIN,
    THRESHOLD_AT_LEAST_ONE,
    E2Printed,
    E2State,
    History,
    Sent,
    cheapest,
    exploits,
    is_heavy,
    rebalanced,
)
from fairsched.policies.routers.llumnix import P_LL_1, P_LL_2, SIZE_WITHIN, Llumnix
from fairsched.policies.routers.load_based import (
    MEASURES,
    NOBODY_LEAVES,
    P_JSQ_1,
    P_JSQ_TOKENS,
    P_P2C_1,
    P_RR_1,
    REPORTS_FRESH,
    ClientTurnState,
    DrawState,
    Freeness,
    JoinShortestQueue,
    NoRouterState,
    PerClientRoundRobin,
    PowerOfTwo,
    Random,
    RoundRobin,
    TurnState,
)
from fairsched.policies.routers.prefix_based import LongestPrefixRouter, OraclePartition
from fairsched.policies.routers.sal import (
    NO_BUSIER,
    NOBODY_PREEMPTED,
    NOBODY_WAITED,
    ONE_ROUTER,
    OUTPUTS_RESERVED,
    P_SAL_1,
    P_SAL_1_PRINTED,
    P_SAL_2,
    P_SAL_2_PRINTED,
    P_SAL_3,
    P_SAL_LEAST,
    P_SAL_TIES,
    SAL,
    Estimate,
    SALPrinted,
    SALState,
)
from fairsched.policies.routers.stealing import Stealing

__all__ = [
    "COST_AT_MOST", "D2LPM", "D2_51", "D2_52", "D2_A4", "D2_GATE", "D2_RANGE", "D2_REFILL", "D2_ROUND", "D2_SPREAD",
    "E2", "EQUAL_MISS", "F_E2_1", "F_E2_2", "F_E2_3", "F_E2_4", "MEASURES", "NOBODY_LEAVES", "NOBODY_PREEMPTED",
    "NOBODY_WAITED", "NOTHING_EXPIRES", "NO_BUSIER", "ONE_ROUTER", "OUTPUTS_RESERVED", "P_E2_1", "P_E2_2", "P_E2_3",
    "P_E2_4", "P_E2_5", "P_E2_6", "P_JSQ_1", "P_JSQ_TOKENS", "P_LL_1", "P_LL_2", "P_P2C_1", "P_RR_1", "P_SAL_1",
    "P_SAL_1_PRINTED", "P_SAL_2", "P_SAL_2_PRINTED", "P_SAL_3", "P_SAL_LEAST", "P_SAL_TIES", "REPORTS_FRESH", "SAL",
    "SIZE_WITHIN", "STARTS_WITHIN", "THRESHOLD_AT_LEAST_ONE", "CentralDLPM", "ClientTurnState", "DrawState",
    "E2Printed", "E2State", "Estimate", "Freeness", "History", "JoinShortestQueue", "Llumnix",
    "LongestPrefixRouter", "NoRouterState", "OraclePartition", "PerClientRoundRobin", "PowerOfTwo", "Random",
    "RoundRobin", "SALPrinted", "SALState", "Sent", "Stealing", "TurnState", "cheapest", "exploits", "is_heavy",
    "rebalanced"
]  # fmt: skip
