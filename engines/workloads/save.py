"""Any workload written as a trace: Mooncake's JSON lines with our optional keys.

Reading the file back gives the same jobs and clients, with clients numbered by first appearance.
"""

from decimal import Decimal
from pathlib import Path

import msgspec
import numpy as np

from fairsched.engines.workloads.mooncake import MooncakeRow, MooncakeSlo, Ms
from fairsched.model.request import Client, Slo
from fairsched.model.workload import Job, Workload


def save_workload(workload: Workload, path: Path) -> None:
    """Write `workload` as a trace, one line a job, in the jobs' order.

    Raises `OSError` where the file cannot be written.
    """
    encoder = msgspec.json.Encoder(decimal_format="number")
    with path.open("wb") as file:
        for job in workload.jobs:
            file.write(encoder.encode(_row(job, workload.clients[job.request.client])) + b"\n")


def _row(job: Job, client: Client) -> MooncakeRow:
    request, slo = job.request, job.request.slo
    return MooncakeRow(
        timestamp=_ms(request.arrival_ns),
        input_length=request.prompt.tokens,
        output_length=job.output_tokens,
        hash_ids=np.frombuffer(request.prompt.keys, dtype="<i8").tolist(),
        block_tokens=request.prompt.block_tokens,
        id=request.id,
        client=client.name,
        weight=client.weight if client.weight != 1 else None,
        session=request.session,
        priority=request.priority,
        downstream_levels=request.downstream_levels,
        slo=None if slo is None else _slo(slo),
        parent=list(job.after) or None,
        think_ms=_ms(job.think_ns),
        program=job.program,
        max_output_tokens=request.max_output_tokens,
        predicted_output_tokens=request.predicted_output_tokens,
        cancel_after_ms=None if job.cancel_after_ns is None else _ms(job.cancel_after_ns),
    )


def _slo(slo: Slo) -> MooncakeSlo:
    times_ns = (slo.ttft_ns, slo.tpot_ns, slo.latency_ns)
    ttft, tpot, latency = (None if time is None else _ms(time) for time in times_ns)
    return MooncakeSlo(ttft_ms=ttft, tpot_ms=tpot, latency_ms=latency)


def _ms(ns: int) -> Ms:
    """Milliseconds, exactly: a whole number where it is one."""
    return ns // 10**6 if ns % 10**6 == 0 else Decimal(ns).scaleb(-6)
