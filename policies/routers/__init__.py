"""Routers: which worker serves a request. Read `load_based` first; `e2` and `phases` have folders of their own."""

from fairsched.policies.routers import d2lpm, splitwise
from fairsched.policies.routers.central import CentralDLPM
from fairsched.policies.routers.d2lpm import D2LPM, D2LPMPrinted
from fairsched.policies.routers.e2 import E2, E2Printed
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
from fairsched.policies.routers.phases import (
    P_DS_2,
    P_DS_3,
    DistServe,
    DistServeReleased,
    SplitD2LPM,
    SplitJSQ,
    SplitP2C,
    SplitPhases,
    TetriInfer,
    TetriInferPrinted,
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
from fairsched.policies.routers.splitwise import P_SW_1, P_SW_3, Splitwise, SplitwisePrinted, SplitwiseReleased

__all__ = [
    "D2LPM", "E2", "MEASURES", "NOBODY_LEAVES", "NOBODY_PREEMPTED", "NOBODY_WAITED", "NO_BUSIER", "ONE_ROUTER",
    "OUTPUTS_RESERVED", "P_DS_2", "P_DS_3", "P_JSQ_1", "P_JSQ_TOKENS", "P_LL_1", "P_LL_2", "P_P2C_1", "P_RR_1",
    "P_SAL_1", "P_SAL_1_PRINTED", "P_SAL_2", "P_SAL_2_PRINTED", "P_SAL_3", "P_SAL_LEAST", "P_SAL_TIES", "P_SW_1",
    "P_SW_3", "REPORTS_FRESH", "SAL", "SIZE_WITHIN", "CentralDLPM", "ClientTurnState", "D2LPMPrinted", "DistServe",
    "DistServeReleased", "DrawState", "E2Printed", "Estimate", "Freeness", "JoinShortestQueue", "Llumnix",
    "LongestPrefixRouter", "NoRouterState", "OraclePartition", "PerClientRoundRobin", "PowerOfTwo", "Random",
    "RoundRobin", "SALPrinted", "SALState", "SplitD2LPM", "SplitJSQ", "SplitP2C", "SplitPhases", "Splitwise",
    "SplitwisePrinted", "SplitwiseReleased", "TetriInfer", "TetriInferPrinted", "TurnState",
    "d2lpm", "splitwise"
]  # fmt: skip
