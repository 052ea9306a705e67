"""One deficit for a prefill and a decode worker: two clients whose outputs differ seven times."""

from fairsched.engines.simulation import Cluster, simulate
from fairsched.engines.workloads.fleet import WorkerSpec
from fairsched.model.machine import PRESETS
from fairsched.model.request import Client, Job, Prompt, Request, Workload

jobs = []
for i in range(400):
    output = (16, 112)[i % 2]
    jobs.append(Job(Request(i, i % 2, 0, Prompt.from_keys([-1 - 64 * i - k for k in range(64)]), output), output))
both = Workload("both-wait", tuple(jobs), (Client(0, "short"), Client(1, "long")))
model = PRESETS["llama-3.1-8b-a100"]
fleet = Cluster(model, tuple(WorkerSpec(model, 4_000, role=role) for role in ("prefill", "decode")))

fair = simulate(both, "dlpm-global", "jsq-split", cluster=fleet, params={"quantum": 256, "in_flight_cap_tokens": 500})
unfair = simulate(both, "fcfs", "jsq-split", cluster=fleet)
assert fair.cluster_gap.cost <= fair.service_gap_bound < unfair.cluster_gap.cost
assert fair.bound_over_busiest < 0.1
