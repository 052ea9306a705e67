"""Logs of machines that are known: drawn arrivals and lengths, served by the simulator, written as access logs."""

import json
import random
from pathlib import Path

import numpy as np

from fairsched.engines.calibration.from_log import LogMachine
from fairsched.engines.calibration.from_log.machine import Played
from fairsched.engines.calibration.from_log.observed import Observed


def drawn(seed: int, count: int, rate: float) -> Observed:
    """Return requests as if nothing had served them: stretches from quiet to overloaded, unequal lengths."""
    rng = random.Random(seed)
    arrivals: list[float] = []
    begin = 0.0
    while len(arrivals) < count:
        load, span = rng.choice((0.1, 0.4, 0.7, 0.95, 1.3)), rng.uniform(20, 40) / rate
        now = begin + rng.expovariate(load * rate)
        while now < begin + span:
            arrivals.append(now)
            now += rng.expovariate(load * rate)
        begin += span
    times = np.array([round(1e9 * each) for each in arrivals[:count]], dtype=np.int64)
    prompts = [min(max(int(rng.lognormvariate(5, 0.8)), 4), 1000) for _ in range(count)]
    outputs = [min(max(int(rng.lognormvariate(3.2, 0.7)), 1), 200) for _ in range(count)]
    nothing = np.zeros(count, dtype=np.int64)
    return Observed(
        arrival=times - times[0],
        ttft=nothing - 1,
        latency=nothing,
        prompt=np.array(prompts, dtype=np.int64),
        output=np.array(outputs, dtype=np.int64),
        client=nothing,
        worker=nothing,
        judged=nothing == 0,
    )


def written(path: Path, machine: LogMachine, *, seed: int, count: int, rate: float) -> Path:
    """Write the access log of a machine, in microseconds, as a proxy would have it."""
    asked = drawn(seed, count, rate)
    said = Played(asked).on(machine)
    rows = zip(asked.arrival, said.ttft, said.latency, asked.prompt, asked.output, strict=True)
    with path.open("w") as file:
        for arrival, ttft, latency, prompt, output in rows:
            row = {
                "client": "a",
                "start_us": 1_700_000_000_000_000 + int(arrival) // 1000,
                "ttft_us": int(ttft) // 1000,
                "latency_us": int(latency) // 1000,
                "prompt_tokens": int(prompt),
                "output_tokens": int(output),
                "status": 200,
            }
            file.write(json.dumps(row) + "\n")
    return path


def changed(path: Path, source: Path, change: str, seed: int = 0) -> Path:
    """Write a log again in which something else than the server decides how long requests take.

    `shuffled`: requests have each other's times.  `limited`: a limiter before the server lets one request in every
    second of a client's, and the log's times begin before it.  `no-first`: no first token is in it.
    """
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    rng = random.Random(seed)
    if change == "shuffled":
        times = [(row["ttft_us"], row["latency_us"]) for row in rows]
        rng.shuffle(times)
        for row, (ttft, latency) in zip(rows, times, strict=True):
            row |= {"ttft_us": ttft, "latency_us": latency}
    elif change == "limited":
        free = 0
        for row in rows:
            start = max(free, row["start_us"])
            held = start - row["start_us"]
            free = start + 400_000
            row |= {"ttft_us": row["ttft_us"] + held, "latency_us": row["latency_us"] + held}
    elif change == "no-first":
        for row in rows:
            del row["ttft_us"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
