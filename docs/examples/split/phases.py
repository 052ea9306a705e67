"""Two routers before workers that are split by phase."""

from fairsched.engines.simulation import simulate_events
from fairsched.engines.workloads import generate
from fairsched.engines.workloads.fleet import KvLink, WorkerSpec
from fairsched.model.machine import PRESETS
from fairsched.policies.registry import LOCAL_POLICIES
from fairsched.policies.routers import D2LPM, PowerOfTwo
from fairsched.policies.routers.phases import SplitPhases

model = PRESETS["opt-13b-a100"]
fleet = [WorkerSpec(model, role=role) for role in ("prefill", "prefill", "decode")]
router = SplitPhases(prefill=D2LPM(), decode=PowerOfTwo(measure="tokens"))
work = generate("azure-chat", seed=0, workers=fleet, rate=5, requests=50)
events = simulate_events(work, LOCAL_POLICIES["dlpm"], router, model, workers=fleet, link=KvLink(819_200))
