"""The report is one well-formed page without outside addresses that says what the figures say; so is the table."""

import re
from io import StringIO
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fairsched.engines.analysis import Comparison, Recorder, Run, count, print_comparison, time
from fairsched.engines.analysis.figures import broken, standing, who, worst
from fairsched.engines.analysis.report import COLOURS, GREY
from fairsched.engines.analysis.report.canvas import TEXT
from fairsched.engines.analysis.report.player import worker_samples
from fairsched.engines.analysis.report.plots import plots
from fairsched.engines.analysis.report.report import page_of, write_report
from fairsched.engines.analysis.table import LEGEND
from fairsched.engines.analysis.verdict import verdict
from fairsched.engines.simulation import Cluster, simulate
from fairsched.engines.workloads import generate
from fairsched.model.events import Admitted, Arrived, Decoded, Event, Finished, Prefilled, Rejected
from fairsched.model.monitor import Finding
from fairsched.model.monitor.guarantee import Breach
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from tests.support.engines.pages import parsed

MS = 1_000_000


def a_run(
    policy: str,
    params: dict[str, str] | None = None,
    *,
    clients: int = 3,
    router: str = "round-robin",
    bound: int | None = None,
    rounds: int = 6,
    favourite: int = 0,
) -> Run:
    """A run in which all clients wait all the time and `favourite` is served in every second step."""
    names = ["<b>&amp; co</b>", "$\\x$ 日本", *(f"client-{i}" for i in range(2, clients))]
    jobs = [Job(Request(i, i % clients, i * MS, Prompt(10 + i % 3), 2), 2) for i in range(2 * clients * rounds)]
    workload = Workload("made", jobs, tuple(Client(i, name) for i, name in enumerate(names[:clients])))
    recorder = Recorder(workload)
    recorder.record([Arrived(job.request.arrival_ns, 0, job.request) for job in jobs])
    now = jobs[-1].request.arrival_ns
    queue = [job.request for job in jobs]
    step = 0
    while queue:
        wanted = favourite if step % 2 else step // 2 % clients
        request = next((r for r in queue if r.client == wanted), queue[0])
        queue.remove(request)
        step += 1
        events: list[Event] = [Admitted(now, 0, request.id, request.client, request.prompt.tokens, 0, 2)]
        now += 5 * MS
        events += [Prefilled(now, 0, request.id, request.client, request.prompt.tokens, 0)]
        events += [Decoded(now, 0, 1, (request.client,), (1,)), Decoded(now + MS, 0, 1, (request.client,), (1,))]
        events += [Finished(now + MS, 0, request.id, request.client, 2)]
        recorder.record(events)
        recorder.kv_samples(0).add(now, 40 + step % 20, 30, 100)
    return recorder.result(policy=policy, router=router, params=params, service_gap_bound=bound, wall_s=0.25)


def render(comparison: Comparison) -> str:
    """The report's HTML."""
    return page_of(comparison).html()


def compared(*runs: Run) -> Comparison:
    """A comparison of these runs."""
    facts = {
        "name": "made",
        "requests": 36,
        "notes": ["Clients <i>were</i> assigned."],
        "prompt_tokens": {"mean": 11.0, "max": 12},
        "arrivals_per_s": 1000.5,
        "sessions": None,
    }
    return Comparison("9.9", "fairsched compare --trace 'a<b>.csv'", facts, runs)


def text_of(html: str) -> str:
    """All text of a page, which is well-formed and leads nowhere else."""
    return " ".join(parsed(html).itertext())


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    """Two policies, one of them with three values of a parameter."""
    swept = [a_run("dlpm", {"quantum": str(q)}, bound=30 * (i + 1), favourite=i) for i, q in enumerate((8, 64, 512))]
    return compared(a_run("lpm", rounds=6), *swept)


@pytest.fixture(scope="module")
def html(comparison: Comparison) -> str:
    """Its report."""
    return render(comparison)


def test_page_is_well_formed_and_stands_alone(html: str) -> None:
    """A strict parser reads it, every reference is to the page itself, and nothing is loaded."""
    root = parsed(html)
    assert len([*root.iter("figure")]) == 6
    assert len([*root.iter("svg")]) == 5 + html.count('class="key"')
    assert "http" not in html
    assert "url(#" in html
    assert all(f'id="{part.split(")")[0]}"' in html for part in html.split("url(#")[1:])


@pytest.mark.parametrize(("workers", "named"), [(3, "worker 2"), (10, "least work")])
def test_a_cluster_s_report_plots_its_workers(workers: int, named: str) -> None:
    """With several workers come a plot of their balance and a player of theirs in place of the plot of KV memory, whose
    last samples are the workers' figures."""
    workload = generate("toolbench", documents=4, sharers=10, rate=60)
    cluster = Cluster(workers=workers)
    runs = [simulate(workload, "lpm", router, cluster=cluster) for router in ("round-robin", "random")]
    found = {plot.title: plot.svg for plot in plots(compared(*runs))}
    assert "KV memory in use" not in found
    assert f"lpm random ({runs[1].imbalance:.2f})" in found["How even the workers were"]
    assert named in text_of(render(compared(*runs)))
    for run in runs:
        of_workers = sorted(run.workers, key=lambda each: -each.work)
        if workers > 8:
            of_workers = [of_workers[0], of_workers[-1]]
        last = {name: values[-1].tolist() for name, values in worker_samples(run, "", workers).clients.items()}
        assert sorted(last["work so far, tokens"], reverse=True) == [each.work for each in of_workers]
        assert set(last["waiting requests"]) == {0}
        held = worker_samples(run, "", workers).clients["KV memory of running requests, %"]
        assert 0 < held.max() <= 100
        if workers <= 8:
            assert sum(last["requests sent so far"]) == run.measures.requests


def test_names_are_escaped(html: str) -> None:
    """What comes from a trace or a command line is text, never markup."""
    text = text_of(html)
    assert "<b>&amp; co</b>" in text
    assert text.count("$\\x$ 日本") >= 4  # in tables and in plots, and never read as mathematics
    assert "a<b>.csv" in text
    assert "Clients <i>were</i> assigned." in text


def test_page_says_what_the_figures_say(html: str, comparison: Comparison) -> None:
    """Runs, counts, gaps, bounds and worst pairs are those of the results."""
    text = " ".join(text_of(html).split())
    for label, run in zip(comparison.labels(), comparison.runs, strict=True):
        assert label in text
        assert f"{run.measures.finished:,}" in text
        assert count(run.gap.cost) in text
        assert worst(run) in text
        assert standing(run) in text
    for line in LEGEND:
        assert line in text
    assert "prompt tokens mean 11, max 12" in text
    assert "sessions" not in text


def test_colours_are_the_pages_own(comparison: Comparison, html: str) -> None:
    """No plot keeps a fixed colour, so that the page is readable in light and in dark."""
    for plot in plots(comparison):
        assert not any(colour in plot.svg for colour in (*COLOURS, GREY, TEXT))
        assert "var(--c0)" in plot.svg
        assert "currentColor" in plot.svg
        assert plot.caption.endswith(".")
    assert "prefers-color-scheme: dark" in html


def test_a_client_leads_to_its_longest_wait(comparison: Comparison) -> None:
    """Each client's name leads to the request of its that waited longest, which is the one with the largest wait of all
    of its requests, and where logs were written there is the command that explains it."""
    run = comparison.runs[0]
    text = render(attrs.evolve(comparison, trace={**comparison.trace, "logs": ["out/a.jsonl"] * 4}))
    root = parsed(text)
    for client in run.series.clients:
        assert root.find(f".//a[@href='#run-0-client-{client}']") is not None
    waits = run.requests["admitted_ns"] - run.requests["arrival_ns"]
    assert (waits >= 0).all()
    longest = int(run.requests["request"][waits.argmax()])
    assert f"fairsched audit out/a.jsonl --explain {longest}" in text_of(text)
    assert "explain" not in render(comparison)


def test_report_is_written_and_repeats(tmp_path: Path, comparison: Comparison, html: str) -> None:
    """The folder is made, the path returned, and the same comparison gives the same bytes."""
    path = write_report(tmp_path / "new" / "folder", comparison)
    assert path == tmp_path / "new" / "folder" / "index.html"
    assert path.read_text(encoding="utf-8") == html


@pytest.mark.parametrize("clients", [1, 2, 40])
def test_any_number_of_clients_and_runs(clients: int) -> None:
    """One client, many clients and more runs than panels or colours still make a page."""
    runs = [a_run(f"p{i}", clients=clients, rounds=1) for i in range(1 if clients != 2 else 14)]
    text = text_of(render(compared(*runs)))
    assert ("32 other clients" in text or "24 other clients" in text) == (clients == 40)
    assert ("Of 14 runs the first 12 are shown." in text) == (clients == 2)


def test_runs_in_which_nothing_happened() -> None:
    """Requests that are all rejected, and no runs at all, still make a page and a table."""
    request = Request(0, 0, 0, Prompt(5), 1)
    recorder = Recorder(Workload("none", (Job(request, 1),), (Client(0, "a"),)))
    recorder.record([Rejected(0, 0, 0, 0, "too large")])
    nothing = compared(recorder.result(policy="fcfs"))
    assert "fcfs" in text_of(render(nothing))
    assert "fcfs" in printed(nothing)
    mixed = compared(recorder.result(policy="fcfs"), a_run("lpm", clients=1, rounds=1))
    assert len([*parsed(render(mixed)).iter("svg")]) >= 4
    for text in (text_of(render(compared())), printed(compared())):
        assert "No run was completed" in text


def test_no_tick_is_a_formula(comparison: Comparison, html: str) -> None:
    """Also where an axis spans less than a decade, its ticks are numbers as a reader writes them."""
    short = compared(a_run("lpm", rounds=2), a_run("dlpm", rounds=2))
    for text in (html, render(short)):
        assert "mathdefault" not in text
        assert "times10" not in text


def printed(comparison: Comparison, width: int = 120) -> str:
    """What the terminal shows."""
    console = Console(file=StringIO(), width=width, color_system=None)
    print_comparison(comparison, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_table_fits_and_says_what_matters(comparison: Comparison) -> None:
    """In 110 columns nothing is cut: verdict, labels, gaps and bounds, notes and the words of the table are there."""
    text = printed(comparison, 110)
    assert max(map(len, text.splitlines())) <= 110
    assert "…" not in text
    flat = " ".join(text.split())
    for run in comparison.runs:
        assert count(run.gap.cost) in flat
        assert ("none" if run.service_gap_bound is None else count(run.service_gap_bound)) in flat
    assert flat.startswith(verdict(comparison)[0])
    assert "quantum=512" in flat
    assert "<b>&amp; co</b>" in flat
    assert "Clients <i>were</i> assigned." in flat
    assert all(line in flat for line in LEGEND[:5])
    assert "lost" not in flat  # nothing was, so there is no column


def test_standing_to_the_bound() -> None:
    """A gap is inside its bound, over it, has none, or has one that nothing could break."""
    run = a_run("dlpm")
    busiest = 288  # 12 requests of 10 to 12 tokens with two of output are less than this
    assert standing(run) == "no bound"
    assert standing(attrs.evolve(run, service_gap_bound=run.gap.cost - 1, bound_over_busiest=0.1)) == "over bound"
    assert standing(attrs.evolve(run, service_gap_bound=2 * run.gap.cost, bound_over_busiest=0.5)) == "50.0% of bound"
    assert standing(a_run("dlpm", bound=busiest)) == "not binding"


def test_labels_tell_runs_apart() -> None:
    """Routers are named where there are several, and equal runs are numbered."""
    runs = [a_run("vtc", rounds=1), a_run("vtc", rounds=1, router="join-shortest-queue")]
    assert compared(*runs).labels() == ["vtc round-robin", "vtc join-shortest-queue"]
    assert compared(runs[0], runs[0]).labels() == ["vtc #1", "vtc #2"]
    assert compared(*runs).swept() is None
    swept = [attrs.evolve(runs[0], params={"quantum": q, "mode": "a"}) for q in ("1", "2")]
    assert compared(*swept).swept() == "quantum"
    assert (who("7"), who("seven")) == ("client 7", "seven")
    assert time(None) == "–"


def test_a_broken_assumption_is_said_by_name() -> None:
    """What broke first is said with the client's own name, the time on the run's clock, how often, and which theorems
    rest on it; an assumption that no theorem needs is left out."""
    first = Breach(7 * MS, 1, 4, "request 3 of client 1 is admitted where the gate lets in client 2")
    found = {
        "GateRespected": Finding(3, first, theorems=("a", "b", "c", "d", "e", "f")),
        "FitsAlone": Finding(1, first),
        "Capped": Finding(None, why="no cap", theorems=("a",)),
    }
    [sentence] = broken(found, ("x", "gold", "2"), 2 * MS)
    assert sentence == (
        "GateRespected is broken 3 times, first on worker 1 at 5 ms: request 3 of gold is admitted where the gate lets "
        "in client 2 (needed by a, b, c, d and 2 more)"
    )
    run = attrs.evolve(a_run("dlpm"), assumptions=found)
    stream = StringIO()
    print_comparison(compared(run), Console(file=stream, width=200))
    assert "GateRespected is broken 3 times" in stream.getvalue()
    assert "GateRespected is broken 3 times" in render(compared(run))
    assert "FitsAlone" not in render(compared(run))


@given(figures=st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**4)), min_size=1, max_size=4))
def test_the_verdict_says_of_each_run_what_is_true(figures: list[tuple[int, int]]) -> None:
    """Whatever the figures, each run is named in one clause: those that let the others wait long, those that are slow,
    and those that are neither; or all are about alike."""
    run, runs = a_run("x", rounds=1), []
    for place, (wait_us, rps) in enumerate(figures):
        requests = {**run.requests, "first_token_ns": run.requests["arrival_ns"] + 1_000 * wait_us}
        measures = attrs.evolve(run.measures, throughput_rps=float(rps))
        runs.append(attrs.evolve(run, policy=f"p{place}", requests=requests, measures=measures))
    clauses = verdict(compared(*runs))[0].split("; ")
    shortest, most = min(wait for wait, _ in figures), max(rps for _, rps in figures)
    said: dict[str, set[int]] = {"late": set(), "slow": set(), "neither": set()}
    for clause in clauses:
        kind = "slow" if " fewer requests than " in clause else "neither" if " neither: " in clause else "late"
        if " requests/s" in clause:
            kind = "neither"
        subject = re.split(r" the clients | answer| do", clause)[0]
        said[kind] |= {int(found) for found in re.findall(r"\bp(\d)\b", subject)}
    late = {i for i, (wait, _) in enumerate(figures) if wait > 5 * shortest and wait > shortest + 10**6}
    slow = {i for i, (_, rps) in enumerate(figures) if rps < 0.8 * most} - late
    assert said == {"late": late, "slow": slow, "neither": {*range(len(figures))} - late - slow}
