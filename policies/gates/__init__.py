"""Gates: which clients may be served now, whatever order prefers.  Theorems of fairness live here, a file a gate with
its rule, speed, statements and variants.  Read `base` first, then `deficit`.
"""

from fairsched.policies.gates import (
    bands,
    counter,
    credit_ledger,
    deficit,
    hierarchical,
    in_batch,
    leased,
    quota,
    shared,
)
from fairsched.policies.gates.authoring import (
    COMMON_MAX,
    COUNTER_MAX,
    EVENTS,
    Calls,
    Kernel,
    KernelAdmissions,
    KernelFault,
    KernelGate,
    call,
    parameters,
)
from fairsched.policies.gates.bands import BandGate
from fairsched.policies.gates.base import (
    AdmissionTransaction,
    AnyGate,
    BoundedGate,
    BoundTerms,
    Cautions,
    Gate,
    OpenGate,
)
from fairsched.policies.gates.counter import CounterGate, CounterState
from fairsched.policies.gates.deficit import DeficitGate, DeficitState
from fairsched.policies.gates.hierarchical import HierarchicalGate, HierarchicalState
from fairsched.policies.gates.in_batch import InBatchGate
from fairsched.policies.gates.interpreters import GateInterpreter, interpreter
from fairsched.policies.gates.leased import AnyLeasedGate
from fairsched.policies.gates.shared import GlobalDeficitGate

__all__ = [
    "COMMON_MAX", "COUNTER_MAX", "EVENTS", "AdmissionTransaction", "AnyGate", "AnyLeasedGate", "BandGate", "BoundTerms",
    "BoundedGate", "Calls", "Cautions", "CounterGate", "CounterState", "DeficitGate", "DeficitState", "Gate",
    "GateInterpreter", "GlobalDeficitGate", "HierarchicalGate", "HierarchicalState", "InBatchGate", "Kernel",
    "KernelAdmissions", "KernelFault", "KernelGate", "OpenGate", "bands", "call", "counter", "credit_ledger", "deficit",
    "hierarchical", "in_batch", "interpreter", "leased", "parameters", "quota", "shared"
]  # fmt: skip
