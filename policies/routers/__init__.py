"""Routers: which worker serves a request. Read `load_based` first; `e2` and `phases` have folders of their own."""

from fairsched.policies.routers import d2lpm, llumnix, load_based, sal, splitwise
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
    D2LPMPrinted,
    SparseCredit,
)
from fairsched.policies.routers.e2 import E2, E2Printed
from fairsched.policies.routers.llumnix import P_LL_1, P_LL_2, SIZE_WITHIN, Llumnix
from fairsched.policies.routers.load_based import (
    Freeness,
    JoinShortestQueue,
    PerClientRoundRobin,
    PowerOfTwo,
    Random,
    RoundRobin,
)
from fairsched.policies.routers.phases import (
    DistServe,
    DistServeReleased,
    SplitD2LPM,
    SplitJSQ,
    SplitP2C,
    SplitPhases,
    TetriInfer,
    TetriInferPrinted,
)
from fairsched.policies.routers.prefix_based import (
    P_LM_1,
    P_LM_2,
    LMetric,
    LongestPrefixRouter,
    OraclePartition,
    PrefixRouter,
)
from fairsched.policies.routers.sal import SAL, SALPrinted
from fairsched.policies.routers.splitwise import (
    P_SW_1,
    P_SW_3,
    Splitwise,
    SplitwisePrinted,
    SplitwiseReleased,
    pool_of,
    visible_ns,
)
from fairsched.policies.routers.valley_filling import P_VF_1, P_VF_2, ValleyFilling, cheaper, price_curve

__all__ = [
    "D2LPM", "D2_51", "D2_52", "D2_A4", "D2_GATE", "D2_RANGE", "D2_REFILL", "D2_ROUND", "D2_SPREAD", "E2", "P_LL_1",
    "P_LL_2", "P_LM_1", "P_LM_2", "P_SW_1", "P_SW_3", "P_VF_1", "P_VF_2", "SAL", "SIZE_WITHIN", "CentralDLPM",
    "D2LPMPrinted", "DistServe", "DistServeReleased", "E2Printed", "Freeness", "JoinShortestQueue", "LMetric",
    "Llumnix", "LongestPrefixRouter", "OraclePartition", "PerClientRoundRobin", "PowerOfTwo", "PrefixRouter",
    "Random", "RoundRobin", "SALPrinted", "SparseCredit", "SplitD2LPM", "SplitJSQ", "SplitP2C", "SplitPhases",
    "Splitwise", "SplitwisePrinted", "SplitwiseReleased", "TetriInfer", "TetriInferPrinted", "ValleyFilling",
    "cheaper", "d2lpm", "llumnix", "load_based", "pool_of", "price_curve", "sal", "splitwise", "visible_ns"
]  # fmt: skip
