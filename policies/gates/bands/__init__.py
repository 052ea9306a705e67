"""Priority bands with a guaranteed share each, around the deficit gate: rule and gate are in `gate`, the statements in
`theorems`, the rule on exact integers, for monitors, in `interpreter`. Read `gate` first.
"""

from fairsched.policies.gates.bands.gate import PERCENT, BandAdmissions, BandGate, BandState, parsed
from fairsched.policies.gates.bands.interpreter import Bands
from fairsched.policies.gates.bands.theorems import (
    BAND_COUNT,
    BAND_FIRST,
    BAND_GATE,
    BAND_INT64,
    BAND_RANGE,
    BAND_REFUND,
    BAND_SHARE,
    BAND_WITHIN,
)

__all__ = [
    "BAND_COUNT", "BAND_FIRST", "BAND_GATE", "BAND_INT64", "BAND_RANGE", "BAND_REFUND", "BAND_SHARE", "BAND_WITHIN",
    "PERCENT", "BandAdmissions", "BandGate", "BandState", "Bands", "parsed"
]  # fmt: skip
