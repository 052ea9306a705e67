"""One deficit of a client for all workers of a cluster. Read `gate` first."""

from fairsched.policies.gates.shared.credit_ledger import CreditLedger
from fairsched.policies.gates.shared.gate import (
    D2_GIFT,
    D2_GLOBAL,
    D2_LAG,
    D2_MEMORY,
    D2_PLACES,
    D2_STALE,
    D2_STEAL,
    D2_TOGETHER,
    D2_UNSENT,
    GlobalDeficitGate,
    GlobalState,
    depart,
    enter,
    waits,
)
from fairsched.policies.gates.shared.phases import (
    S_GAP,
    S_U_DECODE,
    S_U_PREFILL,
    decode_charge_max,
    prefill_charge_max,
)

__all__ = [
    "D2_GIFT",
    "D2_GLOBAL",
    "D2_LAG",
    "D2_MEMORY",
    "D2_PLACES",
    "D2_STALE",
    "D2_STEAL",
    "D2_TOGETHER",
    "D2_UNSENT",
    "S_GAP",
    "S_U_DECODE",
    "S_U_PREFILL",
    "CreditLedger",
    "GlobalDeficitGate",
    "GlobalState",
    "decode_charge_max",
    "depart",
    "enter",
    "prefill_charge_max",
    "waits",
]  # fmt: skip
