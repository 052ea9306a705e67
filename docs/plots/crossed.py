"""VTC and DLPM with their orders exchanged, for docs/results.md: is it the gate or the order that makes VTC slow?

fairsched compare --policies vtc,docs.plots.crossed:LONGEST_PREFIX_VTC,docs.plots.crossed:ARRIVAL_DLPM,dlpm
"""

from fairsched.policies.counter import CounterGate
from fairsched.policies.deficit import DeficitGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.order import Arrival, LongestPrefix

LONGEST_PREFIX_VTC = ComposedPolicy("longest-prefix-vtc", LongestPrefix(), CounterGate())
ARRIVAL_DLPM = ComposedPolicy("arrival-dlpm", Arrival(), DeficitGate())
