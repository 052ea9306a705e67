"""Advice held against servers that are known: what it names, what it promises, and when it promises nothing."""

import json
import random
import tomllib
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
import pytest

import fairsched as fs
from fairsched.cli import main
from fairsched.engines.adapters.vllm.settings import chosen, read_settings
from fairsched.engines.analysis.audit import audit_log
from fairsched.engines.capacity.advice import Windows, write_configurations
from fairsched.engines.capacity.advice.configuration import gateway_toml
from fairsched.engines.capacity.advice.window import busiest_window
from fairsched.engines.logs.access import read_access_log
from fairsched.model.machine import DecodePiece, LatencyModel

NAMES = ("batch", "chat", "search")
HARMED = {"chat", "search"}
SETTINGS = {"batching": "chunked", "reserve": "optimistic", "max_running": "12", "max_batched_tokens": "2048"}
TRUTH = LatencyModel("truth", "made up", 8_000_000, 90_000, 1, (DecodePiece(1, 20_000_000, 60, 400_000),), 100_000)
SERVER = fs.Cluster(TRUTH)
Call = tuple[float, int, int, int]
"""When a request is sent, in seconds, its client, and the tokens of its prompt and output."""


def asked(bursts: int, seed: int = 3) -> fs.Workload:
    """Two clients that send a request now and then, and one that sends many at once, so many times."""
    draw = random.Random(seed)
    calls: list[Call] = []
    for client in (1, 2):
        calls += [(draw.uniform(0, 240), client, draw.randint(80, 900), draw.randint(20, 120)) for _ in range(75)]
    for burst in range(bursts):
        calls += [(10 + 58 * burst + 0.03 * i, 0, draw.randint(400, 1_400), draw.randint(60, 240)) for i in range(60)]
    return workload(sorted(calls))


def workload(calls: Sequence[Call]) -> fs.Workload:
    """The calls as a workload."""
    jobs = tuple(
        fs.Job(fs.Request(i, client, round(at * 1e9), fs.Prompt(tokens=prompt), output), output)
        for i, (at, client, prompt, output) in enumerate(calls)
    )
    return fs.Workload("known", jobs, tuple(fs.Client(i, name) for i, name in enumerate(NAMES)))


def served(work: fs.Workload, policy: str = "fcfs", **params: object) -> fs.Run:
    """What the known server does."""
    return fs.simulate(work, policy, cluster=SERVER, params=SETTINGS | params)


def write_log(path: Path, run: fs.Run, stretch: Sequence[float] | None = None) -> Path:
    """The run as an access log with columns of its own; `stretch` multiplies what each request took."""
    requests = run.requests
    lines = []
    for i in range(len(requests["request"])):
        begin, first, end = (int(requests[name][i]) for name in ("arrival_ns", "first_token_ns", "end_ns"))
        factor = 1.0 if stretch is None else stretch[i]
        lines.append(
            {
                "tenant": run.names[requests["client"][i]],
                "start": f"2026-11-21T18:{begin // 10**9 // 60:02}:{begin / 1e9 % 60:09.6f}Z",
                "ttft_ms": (first - begin) * factor / 1e6,
                "latency_ms": (end - begin) * factor / 1e6,
                "prompt_tokens": int(requests["prompt_tokens"][i]),
                "completion_tokens": int(requests["output_tokens"][i]),
            }
        )
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> tuple[fs.Workload, fs.Run, Path]:
    """A server that takes requests in order of arrival, and one client that floods it."""
    work = asked(bursts=4)
    run = served(work)
    return work, run, write_log(tmp_path_factory.mktemp("flooded") / "access.jsonl", run)


@pytest.fixture(scope="module")
def advice(flooded: tuple[fs.Workload, fs.Run, Path]) -> fs.Advice:
    """The advice on its log."""
    return fs.advise(flooded[2])


def p99_of_harmed(run: fs.Run) -> float:
    """The p99 time to a first token of the clients that are flooded, in microseconds."""
    requests = run.requests
    mine = np.isin(requests["client"], [NAMES.index(name) for name in HARMED])
    taken = np.sort(requests["first_token_ns"][mine] - requests["arrival_ns"][mine])
    return float(taken[(99 * len(taken) + 99) // 100 - 1]) / 1e3


def test_the_flooded_clients_are_named_and_the_flooding_one_is_not(advice: fs.Advice) -> None:
    """A gate is advised for the clients that the flood harms, by name."""
    assert advice.verdict == "gate"
    assert {advice.audit.clients[client].name for client in advice.harmed} == HARMED
    assert all(name in advice.paragraph.split(".")[0] for name in HARMED)
    assert "batch, which had" in advice.paragraph


def test_the_interval_holds_what_the_true_server_does(
    advice: fs.Advice, flooded: tuple[fs.Workload, fs.Run, Path]
) -> None:
    """The harmed clients' p99 on the true server under the advised policy lies in the interval, which promises that it
    halves at least; throughput is what was predicted within 2 %."""
    work, today, _ = flooded
    assert advice.effects is not None
    truth = served(work, advice.policy)
    low, high = advice.effects.gated(advice.harmed)
    assert low <= p99_of_harmed(truth) <= high <= p99_of_harmed(today) / 2
    lost = truth.measures.output_tokens_per_s / today.measures.output_tokens_per_s  # type: ignore[operator]
    least, most = advice.effects.throughput
    assert least - 0.02 <= lost <= most + 0.02


def test_what_is_written_can_be_used_as_it_is(
    advice: fs.Advice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gateway --check` accepts gateway.toml and has a bound, and vLLM's scheduler takes the policy of vllm.toml."""
    gateway, vllm = write_configurations(tmp_path, advice)
    assert main(["gateway", str(gateway), "--check"]) == 0
    assert "differ by at most" in capsys.readouterr().out
    assert set(tomllib.loads(gateway.read_text())["client"]) == set(NAMES)
    settings = read_settings(None, {"FAIRSCHED_VLLM_CONFIG": str(vllm)})
    assert settings.policy == advice.policy == "fcfs+deficit"
    assert chosen(settings, 2_048).policy.gate.quantum == 4_096  # type: ignore[attr-defined]


def unfitted(log: Path) -> fs.Advice:
    """Advice on a log of which no machine was fitted."""
    read = read_access_log(log)
    return fs.Advice(read, audit_log(read), (0,), "unknown")


def test_windows_are_what_the_server_held_though_no_queue_is_logged(
    tmp_path: Path, flooded: tuple[fs.Workload, fs.Run, Path]
) -> None:
    """A flood that waits is in no window: requests count from their first token, which is inferred of calls that do not
    stream."""
    _, run, path = flooded
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    log = tmp_path / "whole.jsonl"
    log.write_text("".join(f"{json.dumps(row | ({} if i % 3 else {'ttft_ms': None}))}\n" for i, row in enumerate(rows)))
    windows = Windows.of(unfitted(log))
    held = [(run.requests[name], run.requests["end_ns"]) for name in ("admitted_ns", "arrival_ns")]
    tokens = run.requests["prompt_tokens"] + run.requests["output_tokens"]
    truth, whole = (
        max(int(tokens[(start <= now) & (now < end)].sum()) for now in start.tolist()) for start, end in held
    )
    assert 0.7 * truth <= windows.tokens <= 1.1 * truth < whole / 2
    assert 10 <= windows.requests <= 14


def test_what_the_log_does_not_tell_of_windows_is_a_warning(
    tmp_path: Path, flooded: tuple[fs.Workload, fs.Run, Path]
) -> None:
    """Where most calls have no first token the window is unknown; a bound above all service in the log is named."""
    rows = [json.loads(line) for line in flooded[2].read_text().splitlines()]
    bare = [row | ({} if i < 20 else {"ttft_ms": None}) for i, row in enumerate(rows)]
    log = tmp_path / "whole.jsonl"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in bare))
    found = unfitted(log)
    text = gateway_toml(found)
    assert "window_tokens is unknown" in text
    assert "# UNKNOWN: set it to the server's KV cache" in text
    (few,) = (each for each in Windows.of(unfitted(write_few(tmp_path, rows))).warnings if "may differ by" in each)
    assert "and the log has" in few
    assert not Windows.of(unfitted(flooded[2])).warnings


def write_few(folder: Path, rows: Sequence[dict[str, object]]) -> Path:
    """The first rows of a log."""
    log = folder / "few.jsonl"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows[:40]))
    return log


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("10.0.0.10:8000", "http://10.0.0.10:8000"),
        ("http://llm-1:8000/v1", "http://llm-1:8000"),
        ("https://llm.example/v1/", "https://llm.example"),
        ("s0", "http://SERVER-1:8000"),
        ('x:1"\nurl = "y', "http://SERVER-1:8000"),
        ("http://me:secret@llm:8000", "http://SERVER-1:8000"),
        ("llm:99999", "http://SERVER-1:8000"),
    ],
)
def test_an_upstreams_address_is_filled_in(tmp_path: Path, name: str, url: str) -> None:
    """As the log has it, without `/v1`, where it is one that a gateway may have; else it stands in."""
    log = tmp_path / "a.jsonl"
    row = {"start": 1_700_000_000, "ttft_ms": 5, "latency_ms": 9, "prompt_tokens": 9, "output_tokens": 3}
    log.write_text(f"{json.dumps(row | {'client': 'a', 'api_base': name})}\n")
    path = write_configurations(tmp_path, unfitted(log))[0]
    assert [server["url"] for server in tomllib.loads(path.read_text())["server"]] == [url]
    assert main(["gateway", str(path), "--check"]) == 0


def test_names_of_clients_cannot_break_out_of_a_configuration(advice: fs.Advice) -> None:
    """Quotes, brackets, line ends and letters of any script are part of a name, and of nothing else."""
    odd = ('"]\n[server]\nurl="x', "a.b", "\u05d0\u202e\x00", "back\\slash\x7f", "")
    clients = tuple(attrs.evolve(advice.audit.clients[0], name=name, weight=i + 1) for i, name in enumerate(odd))
    renamed = attrs.evolve(advice, audit=attrs.evolve(advice.audit, clients=clients))
    found = tomllib.loads(gateway_toml(renamed))
    assert set(found["client"]) == set(odd)
    assert [server["url"] for server in found["server"]] == ["http://SERVER-1:8000"]


def test_the_advice_is_the_same_again_and_is_plain_values(
    advice: fs.Advice, flooded: tuple[fs.Workload, fs.Run, Path]
) -> None:
    """The log alone decides; the document has what the paragraph says."""
    document = json.loads(json.dumps(advice.to_json()))
    assert document["verdict"] == "gate"
    assert document["paragraph"] == advice.paragraph
    assert set(document["harmed"]) == HARMED
    assert document["effects"]["helped"]["gated_ttft_p99_us"] == list(advice.effects.gated(advice.harmed))  # type: ignore[union-attr]


def test_a_log_without_starvation_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same server without the flood: nothing is fitted, and no configuration is written."""
    log = write_log(tmp_path / "calm.jsonl", served(asked(bursts=0)))
    assert main(["advise", str(log), "--report", str(tmp_path / "out"), "--json", str(tmp_path / "a.json")]) == 0
    level, said = capsys.readouterr().out.splitlines()[:2]
    assert level == "Clients: 2 by client (tenant)."
    assert said.startswith("Leave it as it is: no client starved")
    document = json.loads((tmp_path / "a.json").read_text())
    assert (document["verdict"], document["harmed"], document["calibration"]) == ("leave", [], None)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["index.html"]


def test_a_log_that_no_machine_explains_gets_no_claim(
    tmp_path: Path, flooded: tuple[fs.Workload, fs.Run, Path]
) -> None:
    """Times that have nothing to do with load: clients that waited are named, and intervals hold both."""
    _, run, _ = flooded
    draw = random.Random(5)
    stretch = [draw.choice((0.02, 0.3, 1.0, 4.0)) for _ in run.requests["request"]]
    found = fs.advise(write_log(tmp_path / "odd.jsonl", run, stretch))
    assert found.harmed
    assert found.verdict == "unknown"
    assert "it cannot be told" in found.paragraph
    assert "would fall" not in found.paragraph
    assert main(["gateway", str(write_configurations(tmp_path, found)[0]), "--check"]) == 0


def test_a_log_without_first_tokens_says_what_to_log(tmp_path: Path, flooded: tuple[fs.Workload, fs.Run, Path]) -> None:
    """No call has a first token or a time in the queue, so no wait is known: nothing is fitted and nothing claimed."""
    rows = [json.loads(line) for line in flooded[2].read_text().splitlines()]
    log = tmp_path / "whole.jsonl"
    log.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "ttft_ms"}) + "\n" for row in rows))
    found = fs.advise(log)
    assert (found.verdict, found.fit) == ("unknown", None)
    assert found.paragraph.startswith("Nothing is advised: ")
    assert "log when its first token came" in found.paragraph


def test_models_with_servers_of_their_own_are_not_mixed(
    tmp_path: Path, flooded: tuple[fs.Workload, fs.Run, Path]
) -> None:
    """The flood is of another model, on another server, and larger: advice is about the flood, and says so."""
    rows = [json.loads(line) for line in flooded[2].read_text().splitlines()]
    for row in rows:
        row["model"] = row["upstream"] = "large" if row["tenant"] == "batch" else "small"
    log = tmp_path / "models.jsonl"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = fs.advise(log)
    assert (found.verdict, found.log.clients, found.models) == ("capacity", ("batch",), ("large", "small"))
    assert "This is about large; small had servers of their own" in found.paragraph


def test_the_stretch_that_is_simulated_is_the_one_that_waited(flooded: tuple[fs.Workload, fs.Run, Path]) -> None:
    """Of a long log as many requests are simulated as were asked for, one after the other, those that waited more than
    others; what was under way when they began is simulated with them, and it does not count, nor do the last ones."""
    log = read_access_log(flooded[2])
    whole = busiest_window(log, 10_000)
    assert whole is not None
    assert whole.whole
    found = busiest_window(log, 100)
    assert found is not None
    assert found.requests == 100
    arrivals = np.sort(log.arrival_ns)
    chosen = np.isin(arrivals - arrivals[0], found.seen.arrival)
    stretch = np.flatnonzero(chosen)[-100:]
    assert (np.diff(stretch) == 1).all()
    waits = (log.first_ns - log.arrival_ns)[np.argsort(log.arrival_ns, kind="stable")]
    assert waits[stretch].mean() > waits.mean()
    assert 70 <= found.seen.judged.sum() <= 75


def test_an_interrupt_keeps_what_was_found(
    flooded: tuple[fs.Workload, fs.Run, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the machine is fitted: the audit is told and written, and the exit status is 130."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fairsched.engines.capacity.advice.advising.fit_log", interrupted)
    figures = tmp_path / "advice.json"
    assert main(["advise", str(flooded[2]), "--json", str(figures)]) == 130
    document = json.loads(figures.read_text())
    assert document["paragraph"].startswith("Interrupted: ")
    assert (document["complete"], set(document["harmed"]), document["effects"]) == (False, {*HARMED, "batch"}, None)
