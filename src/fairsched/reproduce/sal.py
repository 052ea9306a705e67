"""SAL before several workers, against two drawn at random.

Source: the SAL load balancer's evaluation, as it was reported to us.
"""

from fairsched.reproduce.row import Ours, Row, Say
from fairsched.reproduce.runs import A100, measured, run, workload

RATE_PER_WORKER = 4.5
"""Requests a second for each worker: the most that the Azure-like arrivals leave unsaturated on the A100."""
REQUESTS_PER_WORKER = 2_000


def against_power_of_two(say: Say) -> Ours:
    """Row 23: p95 of the time to the first token, by local policy and number of workers."""
    ratios: dict[str, float] = {}
    for workers in (4, 8):
        jobs = workload(
            "azure-chat",
            rate=RATE_PER_WORKER * workers,
            requests=REQUESTS_PER_WORKER * workers,
            arrivals="azure",
        )
        for policy in ("fcfs", "larry"):
            p95 = {}
            for router in ("power-of-two", "sal"):
                say(f"{policy}, {router}, {workers} workers")
                result = run(jobs, policy, router, workers=workers, latency=A100, params={"reserve": "optimistic"})
                p95[router] = measured(result.measures.ttft_us.p95, "a p95")
            ratios[f"{policy}, {workers} workers"] = p95["power-of-two"] / p95["sal"]
    return Ours(
        "p95 TTFT of power of two over SAL's: " + "; ".join(f"{name} {one:.2f}" for name, one in ratios.items()),
        min(ratios.values()) >= 1.1,
        {"p95_ratio": ratios},
    )


ROWS = (
    Row(
        id="23",
        about="SAL against power of two",
        source="SAL, evaluation",
        paper="p95 TTFT 1.2 to 1.3 times better on 4 and 8 servers",
        band="p95 TTFT at least 1.1 times better, with FCFS queues and with LARRY's, on 4 and 8 workers",
        tier="B",
        why="lengths of Azure's conversations on arrivals like that trace's, below saturation; under bursts that "
        "overload the workers LARRY's order hides where requests were sent, and the ratio falls to 0.97",
        seconds=60,
        measure=against_power_of_two,
    ),
)
