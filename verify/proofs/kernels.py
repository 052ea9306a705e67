"""The modules of kernels that ship, each under the name that its proofs use; a variant of one takes its place there."""

from importlib import import_module

adapters = import_module("fairsched.policies.local.adapters")
bands = import_module("fairsched.policies.gates.bands.gate")
counter = import_module("fairsched.policies.gates.counter")
credit_ledger = import_module("fairsched.policies.gates.shared.credit_ledger")
d2lpm_credit = import_module("fairsched.policies.routers.d2lpm.credit")
deficit = import_module("fairsched.policies.gates.deficit.gate")
global_deficit = import_module("fairsched.policies.gates.shared.gate")
in_batch = import_module("fairsched.policies.gates.deficit.in_batch")
hierarchical = import_module("fairsched.policies.gates.hierarchical.gate")
leased = import_module("fairsched.policies.gates.leased.gate")
state_transfer = import_module("fairsched.policies.local.state_transfer")
weighted_round_robin = import_module("fairsched.policies.orders.abilities.weighted_round_robin")

# Plain Python that is run on symbolic integers or in worlds.
aladdin_limits = import_module("fairsched.policies.placement.aladdin.limits")
flips = import_module("fairsched.policies.routers.phases.flips")
host_memory = import_module("fairsched.model.worker.host_memory")
larry = import_module("fairsched.policies.orders.larry")
preemption = import_module("fairsched.policies.local.preemption")
reservation = import_module("fairsched.policies.local.reservation")
swapping = import_module("fairsched.policies.local.swapping")
quota = import_module("fairsched.policies.gates.quota.ledger")
worker_batch = import_module("fairsched.model.worker.batch")
transit = import_module("fairsched.model.worker.transit")
worker = import_module("fairsched.model.worker.transitions")
seconds = import_module("fairsched.policies.guarantees.seconds")
window = import_module("fairsched.policies.guarantees.window")
