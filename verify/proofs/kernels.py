"""The modules of kernels that ship, each under the name that its proofs use; a variant of one takes its place there.

A module is found by something public that it defines.
"""

from fairsched.model.prefix_cache import reserve
from fairsched.model.worker import generated, land, receive, step
from fairsched.policies import gates, guarantees, local
from fairsched.policies.orders import LarryOrder
from fairsched.policies.orders.abilities import TakesTurns
from fairsched.policies.placement.aladdin import profile_of
from fairsched.policies.routers import SparseCredit
from fairsched.policies.routers.phases import Flips
from fairsched.verify.logic import module_of

adapters = module_of(local.AdapterSlots)
bands = module_of(gates.BandGate)
counter = module_of(gates.CounterGate)
credit_ledger = gates.credit_ledger
d2lpm_credit = module_of(SparseCredit)
deficit = module_of(gates.DeficitGate)
global_deficit = module_of(gates.GlobalDeficitGate)
in_batch = module_of(gates.InBatchGate)
hierarchical = module_of(gates.HierarchicalGate)
leased = gates.leased
weighted_round_robin = module_of(TakesTurns)

# Plain Python that is run on symbolic integers or in worlds.
aladdin_limits = module_of(profile_of)
flips = module_of(Flips)
host_memory = module_of(land)
larry = module_of(LarryOrder)
preemption = module_of(local.displaced)
programs = module_of(local.ProgramPlaces)
reservation = module_of(local.Foreseen)
swapping = module_of(local.swapping_step)
quota = guarantees.quota
shares = module_of(reserve)
worker_batch = module_of(generated)
transit = module_of(receive)
worker = module_of(step)
seconds = module_of(guarantees.Pace)
window = module_of(guarantees.WindowTerms)
