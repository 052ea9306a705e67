"""An explanation accounts for all of a request's time, to the nanosecond, and gives the cause that was made to hold."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.analysis import explain
from fairsched.engines.analysis.explained import COLUMNS, Explanation
from fairsched.engines.simulation import Simulator
from fairsched.model import events as ev
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.registry import ROUTERS
from tests.support.logs import RUNS, Case, Written, before_decisions, build, write
from tests.support.policies.pausing import pause_at_random

ENDS = ev.Cancelled | ev.Rejected | ev.Finished
"""How a request may end that waits, or is paused."""


def job(request_id: int, client: int, arrival_ns: int, prompt: Prompt | int, output_tokens: int) -> Job:
    """A request whose output is as long as it may be; a number is a prompt that no other shares."""
    whole = Prompt(prompt) if isinstance(prompt, int) else prompt
    return Job(Request(request_id, client, arrival_ns, whole, output_tokens), output_tokens)


def explained(request_id: int, jobs: list[Job], case: Case) -> Explanation:
    """Run the jobs and explain one of them."""
    clients = tuple(Client(i, f"client-{i}") for i in range(1 + max(j.request.client for j in jobs)))
    with TemporaryDirectory() as folder:
        written = write(Path(folder) / "log", Workload("made", tuple(jobs), clients), case)
        return explain(written.path, request_id, build)


def of_request(events: list[ev.Event], request_id: int) -> list[ev.Event]:
    """The events of one request."""
    return [
        event
        for event in events
        if getattr(event, "request_id", None) == request_id
        or (isinstance(event, ev.Arrived) and event.request.id == request_id)
    ]


# --- every nanosecond -----------------------------------------------------------------------------------------------


def decision_times(workload: Workload, case: Case, prepare: Callable[[Simulator], object]) -> set[tuple[int, int]]:
    """(worker, time) of all decisions when every step is taken by itself."""
    decided: set[tuple[int, int]] = set()
    simulator = case.simulator(workload, leap=False)
    prepare(simulator)
    before_decisions(simulator, lambda worker: decided.add((worker.state.worker, simulator.loop.now_ns)))
    simulator.run()
    return decided


@given(RUNS.filter(lambda run: not ROUTERS[run[1].router].splits_phases), st.booleans())
def test_spans_add_up(run: tuple[Workload, Case], pauses: bool) -> None:
    """For every request of any run whose phases are not split the spans follow each other without a gap from arrival to
    end.

    They add up to the time to first token and the latency that its events show; what held it changes only when its
    worker decides or something happens to the request itself; and it waits exactly while it is not in the batch, or
    paused there.  No worker fails, since a log does not tell for how long one is down.
    """
    workload, case = run[0], attrs.evolve(run[1], changes=())
    prepare = pause_at_random if pauses else lambda simulator: None
    decided = decision_times(workload, case, prepare)
    with TemporaryDirectory() as folder:
        written = write(Path(folder) / "log", workload, case, prepare=prepare)
        for one in workload.jobs:
            mine = of_request(written.events, one.request.id)
            if any(isinstance(event, ev.Arrived) for event in mine):
                check_life(explain(written.path, one.request.id, build), mine, decided)


def check_life(life: Explanation, mine: list[ev.Event], decided: set[tuple[int, int]]) -> None:
    """Compare an explanation with the request's own events."""
    times = {event.time_ns for event in mine}
    first = min((e.time_ns for e in mine if isinstance(e, ev.Prefilled) and not e.remaining_tokens), default=None)
    arrived, ended = mine[0].time_ns, mine[-1].time_ns
    assert (life.arrived_ns, life.first_token_ns, life.ended_ns) == (arrived, first, ended)
    assert life.outcome == mine[-1].__class__.__name__.lower()
    assert sum(life.totals().values()) == ended - arrived == life.latency_ns
    assert sum(life.ttft_parts.values()) == (0 if first is None else first - arrived)
    edges = [arrived, *(span.end_ns for span in life.spans)]
    assert [span.start_ns for span in life.spans] == edges[:-1]
    assert edges[-1] == ended or not life.spans
    for span in life.spans:
        assert span.ns > 0
        assert span.start_ns in times or (life.worker, span.start_ns) in decided
    assert sum(life.waited.values()) == out_of_batch_ns(mine)
    assert not [line for line in life.text().splitlines() if len(line) > COLUMNS]
    assert msgspec.json.decode(msgspec.json.encode(life.to_json()))["latency_us"] == life.latency_ns / 1e3


def out_of_batch_ns(mine: list[ev.Event]) -> int:
    """How long the request was at the worker and not in its batch, or paused there."""
    total, since = 0, mine[0].time_ns
    waiting = True
    for event in mine:
        if isinstance(event, ev.Admitted | ev.Resumed) or (waiting and isinstance(event, ENDS)):
            total += event.time_ns - since
            waiting = False
        elif isinstance(event, ev.Preempted) and waiting:
            continue
        elif isinstance(event, ev.Preempted | ev.Paused):
            since, waiting = event.time_ns, True
    return total


# --- causes made to hold --------------------------------------------------------------------------------------------
# A step costs 10 ns and 1 ns a prefilled token; a decode step of one request 10 + 2 + context ns.


def test_says_why_and_for_how_long_a_request_was_paused() -> None:
    """A request whose client owes the price of the longest request, 10 tokens and 40 of output, is paused while others
    wait, and goes on when none does."""
    params = {"quantum": "30", "max_batched_tokens": "4"}
    case = Case("dlpm-in-batch", params, kv_capacity_tokens=200)
    jobs = [job(0, 0, 0, 10, 40), job(1, 0, 0, 10, 40), job(2, 1, 300, 30, 2), job(3, 1, 300, 30, 2)]
    life = explained(0, jobs, case)
    said = [moment.what for moment in life.moments]
    assert said[3] == "paused after 24 output tokens: its client owed 50 and others waited"
    assert said[4] == "goes on, after 0.000 s"
    assert life.waited == {"paused": life.moments[4].time_ns - life.moments[3].time_ns}


def test_waits_for_memory() -> None:
    """A request that is next and does not fit waits for memory until the one before it ends."""
    # The first prefills 30 tokens in 40 ns and decodes 2 more over contexts of 31 and 32: 43 + 44 ns.
    life = explained(1, [job(0, 0, 0, 30, 3), job(1, 0, 0, 20, 1)], Case("fcfs"))
    assert life.waited == {"memory": 40 + 43 + 44}
    assert life.totals() == {"memory": 127, "prefill": 30}
    assert life.ttft_ns == 157


def test_waits_for_the_step_under_way() -> None:
    """A request that comes in the middle of a step waits for its end and then enters."""
    life = explained(1, [job(0, 0, 0, 5, 3), job(1, 0, 4, 5, 1)], Case("fcfs"))
    assert life.waited == {"step": 11}
    assert life.moments[0].what == "arrives; 1 running and 0 waiting there"


def test_waits_behind_others() -> None:
    """A request behind one that does not fit waits for its turn, then for memory itself."""
    jobs = [job(0, 0, 0, 30, 3), job(1, 0, 0, 38, 1), job(2, 0, 0, 20, 1)]
    life = explained(2, jobs, Case("fcfs"))
    assert life.waited == {"order": 127, "memory": 48}
    assert [(ahead.request_id, ahead.extend_tokens) for ahead in life.ahead] == [(0, 30), (1, 38)]
    assert life.ahead_by_client() == [(0, 2, 68)]


@pytest.mark.parametrize("params", [{"max_running": "1"}, {"max_batched_tokens": "5"}])
def test_waits_for_the_budget(params: dict[str, str]) -> None:
    """A request that is next waits for a seat in the batch, or for tokens of the step."""
    life = explained(1, [job(0, 0, 0, 5, 1), job(1, 0, 0, 5, 1)], Case("fcfs", params))
    assert life.waited == {"budget": 15}


def test_waits_for_credit() -> None:
    """Under a deficit gate a client in debt waits while the other has credit, and then only for a seat."""
    # Client 0 pays 11 of a quantum of 4 and is in debt while client 1 is served twice.  The quantum after that goes to
    # both, and client 1 is served again; then no other request waits, and only the batch of one is in the way.
    jobs = [job(0, 0, 0, 10, 1), job(1, 0, 0, 10, 1), *(job(i, 1, 0, 1, 1) for i in (2, 3, 4))]
    life = explained(1, jobs, Case("dlpm", {"quantum": "4", "max_running": "1"}))
    assert life.waited == {"gate": 20 + 11 + 11, "budget": 11}
    assert [ahead.request_id for ahead in life.ahead] == [0, 2, 3, 4]


def test_waits_for_a_prefix() -> None:
    """Of two cold requests with one prefix the second waits for the first to compute it, and then has it cached."""
    prompt = Prompt.from_keys(range(12))
    life = explained(1, [job(0, 0, 0, prompt, 1), job(1, 0, 0, prompt, 1)], Case("lpm"))
    assert life.waited == {"prefix": 22}
    assert "11 tokens cached, 1 to compute" in life.text()


def test_waits_at_the_cap() -> None:
    """A client at its in-flight cap waits though there is memory."""
    jobs = [job(0, 0, 0, 10, 2), job(1, 0, 0, 10, 2)]
    life = explained(1, jobs, Case("dlpm", {"in_flight_cap_tokens": "20"}))
    assert life.waited == {"cap": 20 + 23}


def test_waits_again_after_a_preemption() -> None:
    """A request that lost its memory waits for memory again, and both waits count."""
    jobs = [job(0, 0, 0, 15, 10), job(1, 0, 0, 15, 10)]
    life = explained(1, jobs, Case("fcfs", {"reserve": "optimistic"}))
    assert life.outcome == "finished"
    assert "preempted" in life.text()
    assert "enters the batch again" in life.text()
    assert {"memory", "prefill", "decode"} <= set(life.totals())


# --- nothing to explain ---------------------------------------------------------------------------------------------


def written(path: Path, jobs: list[Job], complete: bool = True) -> Written:
    """A log of these jobs of one client under FCFS."""
    return write(path / "log", Workload("made", tuple(jobs), (Client(0, "a"),)), Case("fcfs"), complete)


def test_unknown_request_names_the_nearest(tmp_path: Path) -> None:
    """An id that is not in the log is refused with those nearest to it."""
    log = written(tmp_path, [job(i, 0, 0, 5, 1) for i in (3, 10, 11, 50)])
    with pytest.raises(
        ValueError, match=r"request 12 is not among the 4 requests of .*; the nearest are 3, 10, 11, 50"
    ):
        explain(log.path, 12, build)


def test_request_that_never_arrived(tmp_path: Path) -> None:
    """A request that fits no worker, or follows one that did not finish, never waited: the error says which."""
    follows = msgspec.structs.replace(job(1, 0, 0, 5, 1), after=(0,))
    log = written(tmp_path, [job(0, 0, 0, 60, 1), follows])
    with pytest.raises(ValueError, match=r"request 0 was rejected when it arrived: request 0 needs 61 tokens"):
        explain(log.path, 0, build)
    with pytest.raises(ValueError, match=r"request 1 was never sent: a request that it follows did not finish"):
        explain(log.path, 1, build)


def test_open_end_of_an_interrupted_log(tmp_path: Path) -> None:
    """In a log that ends too early a request is explained as far as the log goes."""
    log = written(tmp_path, [job(0, 0, 0, 30, 3), job(1, 0, 0, 20, 1)], complete=False)
    lines = log.path.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith(b'["Finished"'))
    log.path.write_bytes(b"".join(lines[:at]))
    life = explain(log.path, 1, build)
    assert life.outcome == "open"
    assert "the log ends while it is waiting" in life.text()
    assert life.waited == {"memory": 127}


@given(st.integers(0, 2**16))
@settings(max_examples=30)
def test_changed_log_is_not_explained(at: int) -> None:
    """An event of a log was changed, and its last line still has the old hash: no explanation is made up."""
    with TemporaryDirectory() as folder:
        log = written(Path(folder), [job(i, 0, 0, 10, 3) for i in range(6)])
        lines = log.path.read_bytes().splitlines(keepends=True)
        numbers = [i for i, line in enumerate(lines) if line.startswith((b'["Prefilled"', b'["Finished"'))]
        number = numbers[at % len(numbers)]
        row = msgspec.json.decode(lines[number])
        row[-1] += 1
        lines[number] = msgspec.json.encode(row) + b"\n"
        log.path.write_bytes(b"".join(lines))
        with pytest.raises(ValueError, match=r"log_sha256 is .* the log was changed"):
            explain(log.path, 2, build)
