"""Gates: which clients may be served now, whatever order prefers.  Theorems of fairness live here, a file a gate with
its rule, speed, statements and variants.  Read `base` first, then `deficit`.
"""

from fairsched.policies.gates import bands, counter, credit_ledger, deficit, hierarchical, in_batch, leased, shared
from fairsched.policies.gates.authoring import (
    COUNTER_MAX,
    EVENTS,
    Calls,
    Kernel,
    KernelAdmissions,
    KernelFault,
    KernelGate,
    call,
    parameters,
    place_of,
)
from fairsched.policies.gates.bands import BAND_INT64, PERCENT, BandGate
from fairsched.policies.gates.base import (
    AdmissionTransaction,
    AnyGate,
    BoundedGate,
    BoundTerms,
    Cautions,
    Gate,
    OpenGate,
    Returns,
)
from fairsched.policies.gates.counter import V_43, V_INT64, V_TOTAL, CounterGate, CounterState
from fairsched.policies.gates.deficit import DeficitGate, DeficitState
from fairsched.policies.gates.deficit_printed import PrintedDeficitGate
from fairsched.policies.gates.hierarchical import HierarchicalGate, HierarchicalState
from fairsched.policies.gates.in_batch import InBatchGate
from fairsched.policies.gates.interpreters import GateInterpreter, interpreter
from fairsched.policies.gates.leased import (
    L_INT64,
    LEASE_THEOREMS,
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
from fairsched.policies.gates.shared import (
    S_GAP,
    S_U_DECODE,
    S_U_PREFILL,
    GlobalDeficitGate,
    decode_charge_max,
    prefill_charge_max,
)

__all__ = [
    "BAND_INT64", "COUNTER_MAX", "EVENTS", "LEASE_THEOREMS", "L_INT64", "PERCENT", "S_GAP", "S_U_DECODE", "S_U_PREFILL",
    "V_43", "V_INT64", "V_TOTAL", "AdmissionTransaction", "AnyGate", "AnyLeasedGate", "BandGate", "BoundTerms",
    "BoundedGate", "Calls", "Cautions", "CounterGate", "CounterState", "DeficitGate", "DeficitState", "Gate",
    "GateInterpreter", "GlobalDeficitGate", "HierarchicalGate", "HierarchicalState", "InBatchGate", "Kernel",
    "KernelAdmissions", "KernelFault", "KernelGate", "LeaseError", "LeasedDeficits", "LeasedGate", "LeasedTree",
    "OpenGate", "PrintedDeficitGate", "Renewal", "Renewed", "Returns", "SharedAccount", "Terms", "bands", "call",
    "counter", "credit_ledger", "decode_charge_max", "deficit", "hierarchical", "in_batch", "interpreter", "leased",
    "left", "on_lease", "parameters", "place_of", "prefill_charge_max", "renewed", "shared"
]  # fmt: skip
