"""A cluster of two kinds of workers, of which one crashes, one joins and one drains."""

from fairsched.engines.simulation import Reports, Simulator
from fairsched.engines.workloads import generate
from fairsched.engines.workloads.fleet import Crash, Drain, Join, WorkerSpec
from fairsched.model.machine import PRESETS
from fairsched.policies.catalog import DLPM
from fairsched.policies.routers import SAL

small, large = WorkerSpec(PRESETS["llama-3.2-3b-a10g"]), WorkerSpec(PRESETS["llama-3.1-8b-a100"], 60_000)
second = 1_000_000_000
simulator = Simulator(
    generate("demo", limit=200),
    DLPM(),
    SAL(),
    small.latency,
    workers=[small, large],
    changes=[Crash(0, 2 * second, down_ns=3 * second), Join(3 * second, large), Drain(1, 4 * second)],
    reports=Reports(every_us=100_000, delay_us=20_000, loss=0.1),
)
simulator.run()
assert simulator.moved()["placed_again"] > 0
