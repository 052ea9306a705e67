"""An access log and the event log of the same run are audited alike."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.analysis.audit import Audit, audit_log, exit_status, judged, read_thresholds
from fairsched.engines.analysis.audit.text import gap_sentence
from fairsched.engines.analysis.outcomes import EventTables, Outcomes
from fairsched.model.events import Admitted
from fairsched.model.machine import PRESETS
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from tests.support.access_logs import EPOCH_NS, GOOD, logged
from tests.support.logs import Case
from tests.support.logs import write as write_run

TRUTH = Path(__file__).parents[5] / "shared" / "ground-truth"
SECOND = 10**9
NAMES = ("a", "b", "c")
ASKED = st.tuples(
    st.integers(0, len(NAMES) - 1),
    st.integers(0, 20 * SECOND),
    st.integers(1, 2_000),
    st.one_of(st.integers(1, 60), st.integers(500, 3_000)),
)
"""Client, arrival, prompt and output."""
RUNNING = 3
CASES = st.builds(
    Case,
    st.sampled_from(["fcfs", "vtc", "dlpm"]),
    st.just({"max_running": str(RUNNING)}),
    workers=st.integers(1, 2),
    kv_capacity_tokens=st.just(40_000),
    latency=st.just(PRESETS["llama-3.1-8b-a100"]),
)
TENTH = 8 * 2 * RUNNING
"""What is served in a tenth of a second at most by one worker, which takes 13 ms a step."""


def both(folder: Path, asked: Sequence[tuple[int, int, int, int]], case: Case) -> tuple[Audit, Audit, float]:
    """Audit the event log of a run and its access log; also what the access log cannot tell: how far a client's service
    is from what it were, had each request's tokens come evenly, and the order of what is let in at one time."""
    jobs = tuple(
        Job(Request(id=i, client=c, arrival_ns=a, prompt=Prompt(tokens=p), max_output_tokens=o), output_tokens=o)
        for i, (c, a, p, o) in enumerate(sorted(asked, key=lambda row: row[1]))
    )
    workload = Workload("drawn", jobs, tuple(Client(i, name) for i, name in enumerate(NAMES)))
    written = write_run(folder / "events.jsonl", workload, case)
    tables = EventTables()
    tables.add(written.events)
    trace = tables.whole()
    found = Outcomes(workload, trace)
    admitted = np.zeros(len(jobs), dtype=np.int64)
    worker, cached = np.zeros_like(admitted), np.zeros_like(admitted)
    rows = found.row(trace[Admitted]["request_id"])
    admitted[rows], worker[rows] = trace[Admitted]["time_ns"], trace[Admitted]["worker"]
    cached[rows] = trace[Admitted]["cached_prefix_tokens"]
    log = []
    for row, job in enumerate(jobs):
        arrival = job.request.arrival_ns
        log.append(
            {
                "client": NAMES[job.request.client],
                "worker": f"w{worker[row]}",
                "start_ns": EPOCH_NS + arrival,
                "queue_ns": int(admitted[row]) - arrival,
                "ttft_ns": int(found.first[row] + found.origin) - arrival,
                "latency_ns": int(found.ended[row] + found.origin) - arrival,
                "prompt_tokens": job.request.prompt.tokens,
                "cached_tokens": int(cached[row]),
                "output_tokens": job.output_tokens,
            }
        )
    events = audit_log(written.path, starved_after_ns=SECOND, window_ns=SECOND)
    access = audit_log(logged(folder, *log), starved_after_ns=SECOND, window_ns=SECOND)
    return events, access, uneven(events, log) + at_once(log)


def at_once(log: Sequence[dict[str, Any]]) -> int:
    """The most prompt tokens that several requests brought when they were let in at one time."""
    when = Counter(row["start_ns"] + row["queue_ns"] for row in log)
    prompts = Counter[int]()
    for row in log:
        time = row["start_ns"] + row["queue_ns"]
        prompts[time] += row["prompt_tokens"] * (when[time] > 1)
    return max(prompts.values())


def uneven(events: Audit, log: Sequence[dict[str, Any]]) -> float:
    """The largest difference of a client's outputs in the event log to those that come evenly, in cost units."""
    charged, origin = events.evidence.charged, events.evidence.origin_ns
    start = min(row["start_ns"] for row in log)
    times = np.unique(charged["time_ns"])
    worst = 0.0
    for client, name in enumerate(NAMES):
        mine = charged["client"] == client
        got = np.zeros(len(times))
        np.add.at(got, np.searchsorted(times, charged["time_ns"][mine]), charged["amount"][mine])
        even = np.zeros(len(times))
        for row in log:
            if row["client"] == name:
                at = times - origin - (row["start_ns"] - start)
                even += (row["prompt_tokens"] - row["cached_tokens"]) * (at >= row["queue_ns"])
                span = max(row["latency_ns"] - row["ttft_ns"], 1)
                passed = np.clip((at - row["ttft_ns"]) / span, 0, 1)
                even += 2 * np.where(at >= row["ttft_ns"], 1 + (row["output_tokens"] - 1) * passed, 0)
        worst = max(worst, float(np.abs(np.cumsum(got) - even).max(initial=0)))
    return worst


@given(asked=st.lists(ASKED, min_size=1, max_size=20), case=CASES)
@settings(max_examples=60, deadline=None)
def test_both_logs_of_a_run_are_audited_alike(asked: list[tuple[int, int, int, int]], case: Case) -> None:
    """The same clients starve for as long; gap and leads differ by no more than what a tenth of a second serves, how
    unevenly tokens came, and what is let in at one time; and both say whether clients ever waited together."""
    with TemporaryDirectory() as folder:
        events, access, untold = both(Path(folder), asked, case)
    error = 4 * untold + 2 * case.workers * TENTH
    mine = {client.name: client for client in events.clients}
    for client in access.clients:
        other = mine[client.name]
        assert client.service == other.service
        assert client.starved == other.starved
        assert client.starved_us_max == pytest.approx(other.starved_us_max, abs=1)
        assert client.ahead == pytest.approx(other.ahead, abs=error)
        assert client.behind == pytest.approx(other.behind, abs=error)
    assert access.gap.cost == pytest.approx(events.gap.cost, abs=error)
    never = "no two clients ever waited"
    assert gap_sentence(access).startswith(never) == gap_sentence(events).startswith(never)


@pytest.mark.parametrize("name", ["rtx4090-llama-3.1-8b", "rtxpro6000-qwen3-32b"])
def test_no_client_of_a_real_run_starves_while_it_is_served(name: str, tmp_path: Path) -> None:
    """Of clients that wait for minutes, each has requests that produce all the time: none starves, and no build fails
    by it."""
    if not TRUTH.exists():
        pytest.skip("the measured runs are not here")
    rows = [json.loads(line) for line in (TRUTH / f"{name}-requests.jsonl").read_text().splitlines()]
    apart = min(row["queued_ts"] - row["arrival_time"] for row in rows)
    log = [
        {
            "client": f"u{i % 4}",
            "arrival_time": row["arrival_time"],
            "queue_time_ms": 1e3 * (row["scheduled_ts"] - apart - row["arrival_time"]),
            "ttft_ms": 1e3 * (row["first_token_ts"] - apart - row["arrival_time"]),
            "latency_ms": 1e3 * (row["last_token_ts"] - apart - row["arrival_time"]),
            "prompt_tokens": row["input_toks"],
            "completion_tokens": row["output_toks"],
        }
        for i, row in enumerate(rows)
    ]
    found = audit_log(logged(tmp_path, *log), starved_after_ns=2 * SECOND)
    assert min(client.wait_us.p99 or 0 for client in found.clients) > 60e6
    assert not found.starved
    assert exit_status(judged([found], read_thresholds("starved>0"))) == 0


def test_equal_clients_that_decode_for_a_minute_do_not_starve(tmp_path: Path) -> None:
    """Two clients decode for a minute, in which nothing comes or ends, while each waits with a second call."""
    long = GOOD | {"latency_ms": 61_000, "prompt_tokens": 100, "output_tokens": 1_201}
    short = GOOD | {
        "start_ms": 2_000,
        "ttft_ms": 59_000,
        "latency_ms": 60_000,
        "prompt_tokens": 100,
        "output_tokens": 20,
    }
    rows = [row | {"client": name} for name in ("a", "b") for row in (long, short)]
    found = audit_log(logged(tmp_path, *rows))
    assert not found.starved
    assert gap_sentence(found) == "clients that waited at the same time received the same"


def test_a_flood_leads_by_what_it_got_between_two_instants(tmp_path: Path) -> None:
    """Seven calls of a flood run beside one for a minute, in which nothing comes or ends: its lead over a fair share
    rises all the time."""
    long = GOOD | {"ttft_ms": 1_000, "latency_ms": 61_000, "prompt_tokens": 100, "output_tokens": 1_201}
    short = GOOD | {
        "start_ms": 3_000,
        "ttft_ms": 59_000,
        "latency_ms": 60_000,
        "prompt_tokens": 100,
        "output_tokens": 20,
    }
    rows = [long | {"client": "flood"}] * 7 + [long | {"client": "polite"}]
    rows += [short | {"client": name} for name in ("flood", "polite")]
    flood, _ = audit_log(logged(tmp_path, *rows)).clients
    assert flood.ahead == pytest.approx(1_812, rel=0.02)
