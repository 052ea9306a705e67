"""Gates: which clients may be served now, whatever order prefers. Theorems of fairness live here. Read `base` first,
then `deficit`.
"""

from fairsched.policies.gates.authoring import EVENTS, Kernel, KernelGate, parameters
from fairsched.policies.gates.bands import (
    BAND_COUNT,
    BAND_FIRST,
    BAND_GATE,
    BAND_INT64,
    BAND_RANGE,
    BAND_REFUND,
    BAND_SHARE,
    BAND_WITHIN,
    BandAdmissions,
    BandGate,
    BandState,
)
from fairsched.policies.gates.base import (
    AdmissionTransaction,
    AnyGate,
    BoundedGate,
    BoundTerms,
    Cautions,
    CountsLanded,
    Gate,
    NoState,
    OpenGate,
    PausesDebtors,
    counts_landed,
    pauses_debtors,
)
from fairsched.policies.gates.counter import (
    COMMON_MAX,
    COUNTER_MAX,
    V_43,
    V_44,
    V_49,
    V_49_WORKER,
    V_411,
    V_411_TIME,
    V_CHANGE,
    V_DEBT,
    V_GATE,
    V_INT64,
    V_LIFT,
    V_REFUND,
    V_SUMS,
    V_TOTAL,
    CounterGate,
    CounterState,
)
from fairsched.policies.gates.deficit import (
    DeficitGate,
    DeficitState,
    InBatchGate,
    InBatchState,
    reconfigure,
    refill_due,
    refill_rounds,
)
from fairsched.policies.gates.hierarchical import (
    H_CHANGE,
    H_FAMILIES,
    H_FIRST,
    H_GATE,
    H_PROGRESS,
    H_RANGE,
    H_REFUND,
    H_ROUNDS,
    H_SIBLINGS,
    H_SPLIT,
    H_WEIGHTED,
    H_WORDS,
    ROOT,
    HierarchicalGate,
    HierarchicalState,
)
from fairsched.policies.gates.interpreters import GateInterpreter, interpreter
from fairsched.policies.gates.leased import (
    AnyLeasedGate,
    LeasedDeficits,
    LeasedGate,
    LeasedTree,
    LeaseError,
    Renewal,
    Renewed,
    SharedAccount,
    Terms,
    left,
    on_lease,
    renewed,
)
from fairsched.policies.gates.relation import difference
from fairsched.policies.gates.shared import GlobalDeficitGate, GlobalState, waits

__all__ = [
    "BAND_COUNT", "BAND_FIRST", "BAND_GATE", "BAND_INT64", "BAND_RANGE", "BAND_REFUND", "BAND_SHARE", "BAND_WITHIN",
    "COMMON_MAX", "COUNTER_MAX", "EVENTS", "H_CHANGE", "H_FAMILIES", "H_FIRST", "H_GATE", "H_PROGRESS", "H_RANGE",
    "H_REFUND", "H_ROUNDS", "H_SIBLINGS", "H_SPLIT", "H_WEIGHTED", "H_WORDS", "ROOT", "V_43", "V_44",
    "V_49", "V_49_WORKER", "V_411", "V_411_TIME", "V_CHANGE", "V_DEBT", "V_GATE", "V_INT64", "V_LIFT", "V_REFUND",
    "V_SUMS", "V_TOTAL", "AdmissionTransaction", "AnyGate", "AnyLeasedGate", "BandAdmissions", "BandGate", "BandState",
    "BoundTerms", "BoundedGate", "Cautions", "CounterGate", "CounterState", "CountsLanded", "DeficitGate",
    "DeficitState", "Gate", "GateInterpreter", "GlobalDeficitGate", "GlobalState", "HierarchicalGate",
    "HierarchicalState", "InBatchGate", "InBatchState", "Kernel", "KernelGate", "LeaseError", "LeasedDeficits",
    "LeasedGate", "LeasedTree", "NoState", "OpenGate", "PausesDebtors", "Renewal", "Renewed", "SharedAccount",
    "Terms", "counts_landed", "difference", "interpreter",
    "left", "on_lease", "parameters", "pauses_debtors", "reconfigure", "refill_due", "refill_rounds", "renewed", "waits"
]  # fmt: skip
