"""The fleet with the highest rate for each GPU."""

from fairsched.engines.capacity import SloTarget
from fairsched.engines.capacity.search import Query, Space, search_fleets
from fairsched.engines.workloads import generate
from fairsched.model.machine import PRESETS

jobs = generate("azure-code", requests=30, arrivals="poisson")
space = Space((PRESETS["opt-13b-a100"],), gpus=(2,))
question = Query(jobs, (SloTarget(90, (("ttft", 2e6), ("tpot", 2e5))),), resolution=0.2)
found = search_fleets(question, space.candidates(jobs))
assert found.best.rate > 0
