"""The hierarchical gate: the deficit gate among the children of every node of a tree. Rule and gate are in `gate`, its
statements in `theorems`, the rule on exact integers, for monitors, in `interpreter`. Read `gate` first.
"""

from fairsched.policies.gates.hierarchical.gate import (
    ROOT,
    HierarchicalGate,
    HierarchicalState,
    admit,
    choose,
    refilled,
    refund,
)
from fairsched.policies.gates.hierarchical.interpreter import TreeOfDeficits
from fairsched.policies.gates.hierarchical.theorems import (
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
)

__all__ = [
    "H_CHANGE", "H_FAMILIES", "H_FIRST", "H_GATE", "H_PROGRESS", "H_RANGE", "H_REFUND", "H_ROUNDS", "H_SIBLINGS",
    "H_SPLIT", "H_WEIGHTED", "H_WORDS", "ROOT", "HierarchicalGate", "HierarchicalState", "TreeOfDeficits", "admit",
    "choose", "refilled", "refund"
]  # fmt: skip
