"""A quantum that follows the traffic."""

from fairsched.engines.capacity import Traffic, fitting, followed
from fairsched.engines.workloads import generate
from fairsched.policies.local import migrate
from fairsched.policies.registry import local_policy, with_parameters

policy = with_parameters(local_policy("dlpm"), {})
state = policy.init()  # Of a running engine: engine.policy_state.
present = fitting(Traffic.of(generate("azure-chat", requests=100).jobs), 132_000)
wanted = fitting(Traffic.of(generate("long-context-qa", limit=100).jobs), 132_000)
present = followed(present, wanted)
changed = with_parameters(policy, {name: str(value) for name, value in present.params.items()})
state = migrate(policy, state, changed)  # Of a running engine: engine.replace_policy(changed, state).
assert changed.gate.quantum == present.quantum > 4_096
