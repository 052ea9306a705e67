"""Budgets of tokens over time: what a call may use is reserved before it begins, and what it used is charged at its
end. Read `ledger`.

It is no gate: a gate says which client is next, a quota how much a client may have at all.
"""

from fairsched.policies.gates.quota.calendar import DAY_NS, MINUTE_NS, WINDOWS, window_of
from fairsched.policies.gates.quota.ledger import (
    NOTHING,
    Answer,
    Budget,
    End,
    Held,
    Ledger,
    Operation,
    Quota,
    Refused,
    Reserve,
    Reserved,
    Spent,
    advanced,
    changed,
    charged,
    fits,
)

__all__ = [
    "DAY_NS", "MINUTE_NS", "NOTHING", "WINDOWS", "Answer", "Budget", "End", "Held", "Ledger", "Operation", "Quota",
    "Refused", "Reserve", "Reserved", "Spent", "advanced", "changed", "charged", "fits", "window_of"
]  # fmt: skip
