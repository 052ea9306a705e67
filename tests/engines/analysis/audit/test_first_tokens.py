"""First tokens that a log does not have: inferred within what the audit says of the error, or kept out of all waits."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.analysis.audit import Audit, audit_log, audit_models
from fairsched.engines.analysis.audit.inference import STREAMING_MIN, first_tokens
from fairsched.engines.analysis.audit.text import basis, verdict
from fairsched.engines.logs.access import UNKNOWN, read_access_log
from tests.support.access_logs import MS, TEAM, Known, Sender, known_waits

FLOOD = tuple(attrs.evolve(each, rate=12.0, begin=0.3, stop=0.5) if each.name == "free" else each for each in TEAM)
REPORT = (Sender("chat", True, 2.0, 400, 150), Sender("report", False, 0.25, 800, 1_500))
NIGHT = tuple(attrs.evolve(each, stop=0.5) if each.streams else each for each in TEAM)
WORLDS: dict[str, dict[str, Any]] = {
    "calm": {"seed": 1, "kv_capacity_tokens": 28_000},
    "flooded": {"seed": 4, "senders": FLOOD, "kv_capacity_tokens": 28_000},
    "flooded, fair": {"seed": 4, "senders": FLOOD, "kv_capacity_tokens": 28_000, "policy": "vtc"},
    "two workers": {"seed": 3, "kv_capacity_tokens": 14_000, "workers": 2},
    "another machine": {"seed": 3, "kv_capacity_tokens": 45_000, "preset": "opt-13b-a100"},
    "long answers": {"seed": 11, "senders": REPORT, "kv_capacity_tokens": 60_000},
    "a night without streams": {"seed": 5, "senders": NIGHT, "kv_capacity_tokens": 28_000},
}


def both(known: Known) -> tuple[Audit, Audit]:
    """The audit of the log as it was written, and of one in which every call has its first token."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "access.jsonl"
        found = audit_log(known.write(path))
        return found, audit_log(known.write(path, whole=True))


@pytest.fixture(scope="module", params=WORLDS)
def world(request: pytest.FixtureRequest) -> tuple[Known, Audit, Audit]:
    """A simulated run, its audit, and the audit of the truth."""
    known = known_waits(**WORLDS[request.param])
    return known, *both(known)


def test_inferred_waits_are_within_what_is_said_of_them(world: tuple[Known, Audit, Audit]) -> None:
    """Of all calls that do not stream nine in ten are within their margins, and each client's true p99 wait is between
    the two that are said."""
    _, found, truth = world
    (said,) = found.evidence.inferences
    assert said.done
    calls = found.evidence.calls
    inferred = np.flatnonzero(calls.margin_ns > 0)
    assert len(inferred) == said.calls >= 90
    errors = np.abs(calls.first_ns - truth.evidence.calls.first_ns)[inferred]
    assert (errors <= calls.margin_ns[inferred]).mean() >= 0.9
    for mine, theirs in zip((found.total, *found.clients), (truth.total, *truth.clients), strict=True):
        assert theirs.wait_us.p99 is not None
        if mine.wait_range_us is None:
            assert mine.wait_us == theirs.wait_us
        else:
            assert mine.wait_range_us.low.p99 is not None
            assert mine.wait_range_us.high.p99 is not None
            assert mine.wait_range_us.low.p99 <= theirs.wait_us.p99 <= mine.wait_range_us.high.p99
    assert "it is inferred from" in basis(found)[0]


def test_no_innocent_client_starves(world: tuple[Known, Audit, Audit]) -> None:
    """A client that truly never starved does not starve in the audit, and none starves longer than it truly did."""
    _, found, truth = world
    for mine, theirs in zip(found.clients, truth.clients, strict=True):
        assert mine.starved <= theirs.starved
        assert mine.starved_us_max <= theirs.starved_us_max


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_a_client_that_starves_is_found_though_it_does_not_stream(seed: int) -> None:
    """A client whose few calls have no first token waits behind a flood: the audit finds that it starved, as often as
    it truly did, and nearly as long."""
    senders = (
        Sender("chat", True, 3.0, 400, 150),
        Sender("flood", True, 30.0, 300, 100, 0.2, 0.4),
        Sender("batch", False, 0.1, 600, 300, 0.2, 0.5),
    )
    found, truth = both(known_waits(seed, senders, span_s=120, kv_capacity_tokens=16_000))
    mine, theirs = (next(c for c in audit.clients if c.name == "batch") for audit in (found, truth))
    assert mine.inferred == mine.requests
    assert mine.starved == theirs.starved > 0
    assert 0.9 * theirs.starved_us_max <= mine.starved_us_max <= theirs.starved_us_max
    assert verdict(found).startswith("1 of 3 clients starved, batch for at least ")


VLLM = Path(__file__).parent / "vllm.jsonl.gz"
"""2,182 calls of two clients that vLLM served on a CPU with a tiny model; times are those of its processor."""


@pytest.mark.parametrize("hidden", ["a", "b", "long"])
def test_waits_of_a_real_engine_are_inferred(hidden: str) -> None:
    """Without the first tokens of one client, or of the longer half of all answers, the p99 wait is within what is said
    of it, and nine of ten calls are within their margins."""
    log = read_access_log(VLLM)
    gone = log.output > np.median(log.output) if hidden == "long" else log.client == log.clients.index(hidden)
    first, served = (np.where(gone, UNKNOWN, each) for each in (log.first_ns, log.served_ns))
    found = first_tokens(attrs.evolve(log, first_ns=first, served_ns=served))
    (said,) = found.inferences
    assert (said.done, said.calls) == (True, gone.sum() - (gone & (log.output == 1)).sum())
    off = np.abs(found.first_ns - log.first_ns)[gone]
    assert (off <= found.margin_ns[gone]).mean() >= 0.9
    wait, margin = (found.first_ns - log.arrival_ns)[gone], found.margin_ns[gone]
    truth = np.percentile((log.first_ns - log.arrival_ns)[gone], 99)
    assert np.percentile(wait - margin, 99) <= truth <= np.percentile(wait + margin, 99)
    assert truth < 0.9 * np.percentile((log.end_ns - log.arrival_ns)[gone], 99)


def rows_of(speeds: list[int], waits: list[int], streaming: int) -> list[dict[str, Any]]:
    """Calls a second apart, with a speed (ms a token) and a wait each; the first ones stream."""
    rows = []
    for i, (speed, wait) in enumerate(zip(speeds, waits, strict=True)):
        row: dict[str, Any] = {
            "start_ms": 1_700_000_000_000 + 1_000 * i,
            "latency_ms": wait + 99 * speed,
            "output_tokens": 100,
        }
        row |= {"prompt_tokens": 10, "client": "a" if i < streaming else "b"}
        rows.append(row | ({"ttft_ms": wait} if i < streaming else {}))
    return rows


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """These rows as a log."""
    path = folder / "a.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@given(speed=st.integers(5, 80), data=st.data())
def test_at_a_constant_speed_first_tokens_are_exact(speed: int, data: st.DataObject) -> None:
    """Where every token takes as long as any other, an inferred first token is the true one."""
    count = STREAMING_MIN + 5
    waits = data.draw(st.lists(st.integers(0, 20_000), min_size=count, max_size=count))
    with TemporaryDirectory() as folder:
        log = read_access_log(written(Path(folder), rows_of([speed] * count, waits, STREAMING_MIN)))
    found = first_tokens(log)
    assert found.inferences[0].done
    assert np.abs(found.first_ns - log.arrival_ns - np.array(waits) * MS).max() <= MS


@pytest.mark.parametrize(
    ("streaming", "noise", "wait", "reason"),
    [
        (STREAMING_MIN - 1, 1, 60_000, f"{STREAMING_MIN - 1} calls stream, and it takes {STREAMING_MIN}"),
        (2 * STREAMING_MIN, 60, 50, "of their latency, and 50 % is the limit"),
    ],
)
def test_what_cannot_be_inferred_is_kept_out(
    tmp_path: Path, streaming: int, noise: int, wait: int, reason: str
) -> None:
    """With few calls that stream, or with speeds that tell nothing of each other, no call is said to wait or to starve:
    the headline says so, and the p99 wait may be anything up to the latency."""
    rng = np.random.default_rng(0)
    count = streaming + 30
    speeds = rng.integers(1, noise + 1, count).tolist()
    found = audit_log(written(tmp_path, rows_of(speeds, [50] * streaming + [wait] * 30, streaming)))
    (said,) = found.evidence.inferences
    assert not said.done
    assert reason in said.reason
    assert reason in basis(found)[0]
    assert "kept out of all waits" in basis(found)[0]
    a, b = found.clients
    assert (a.kept_out, b.kept_out, b.inferred) == (0, 30, 0)
    assert (a.wait_us.p99, b.wait_us.p99) == (50_000, None)
    assert (b.starved, found.total.starved) == (0, 0)
    assert b.service == 30 * (10 + 2 * 100)
    assert verdict(found).startswith("No client is seen to starve for 10 s; p99 wait 50 ms, between 50 ms and ")
    assert b.wait_range_us is not None
    assert (b.wait_range_us.low.p99, b.wait_range_us.high.p99) == (0, b.latency_us.p99)


def test_an_answer_in_one_piece_had_no_first_token(tmp_path: Path) -> None:
    """Proxies write the end in place of a first token for calls that do not stream: it is not believed."""
    rows = rows_of([20] * 60, [100] * 60, STREAMING_MIN)
    for row in rows[STREAMING_MIN:]:
        row["ttft_ms"] = row["latency_ms"]
    found = audit_log(written(tmp_path, rows))
    assert [client.wait_us.p99 for client in found.clients] == pytest.approx([100_000, 100_000], abs=1)
    brief = [row | ({"output_tokens": 5} if i == STREAMING_MIN else {}) for i, row in enumerate(rows)]
    assert audit_log(written(tmp_path, brief)).total.inferred == 10
    log = read_access_log(written(tmp_path, [row | {"stream": i < STREAMING_MIN} for i, row in enumerate(rows)]))
    short = attrs.evolve(log, output=np.minimum(log.output, 5))
    assert set(log.streamed.tolist()) == {0, 1}
    assert (first_tokens(short).first_ns[STREAMING_MIN:] < short.end_ns[STREAMING_MIN:]).all()


def test_each_model_has_its_own_speed(tmp_path: Path) -> None:
    """First tokens are inferred from calls of the same model; one with none that stream is kept out, and named."""
    fast = [row | {"model": "fast"} for row in rows_of([10] * 60, [100] * 60, STREAMING_MIN)]
    slow = [row | {"model": "slow"} for row in rows_of([40] * 60, [100] * 60, STREAMING_MIN)]
    silent = [row | {"model": "silent"} for row in rows_of([40] * 9, [100] * 9, 0)]
    found = audit_log(written(tmp_path, fast + slow + silent))
    times = {each.name: (each.inferred, each.kept_out, each.wait_us.p99) for each in found.models}
    assert times == {"fast": (10, 0, 100_000), "slow": (10, 0, 100_000), "silent": (0, 9, None)}
    assert [said.model for said in found.evidence.inferences if not said.done] == ["silent"]
    assert any(line.startswith("9 calls of silent have no time of a first token") for line in basis(found))


def test_a_queue_tells_the_wait_and_not_the_first_token(tmp_path: Path) -> None:
    """Where the log has the time in the queue, waits are known, and only the time to the first token is inferred."""
    rows = [row | {"queue_ms": 30} for row in rows_of([20] * 60, [100] * 60, STREAMING_MIN)]
    found = audit_log(written(tmp_path, rows))
    assert (found.total.wait_us.p99, found.total.wait_range_us) == (30_000, None)
    assert found.total.inferred == 0
    assert found.clients[1].ttft_us.p99 == pytest.approx(100_000, abs=1)
    assert found.clients[1].ttft_range_us is not None


def test_models_that_share_no_upstream_do_not_compete(tmp_path: Path) -> None:
    """They are audited apart, so that no client starves for what another model's server did; those on one server are
    audited together, and without names of servers each model is by itself."""
    wait: dict[str, Any] = {"client": "waits", "model": "small", "api_base": "s", "start_ms": 0, "latency_ms": 60_000}
    wait["ttft_ms"] = 59_000
    busy = [
        {"client": "busy", "model": "big", "api_base": "b", "start_ms": 1_000 * i, "latency_ms": 900, "ttft_ms": 10}
        for i in range(50)
    ]
    rows = [row | {"prompt_tokens": 10, "output_tokens": 5} for row in (wait, *busy)]
    big, small = audit_models(written(tmp_path, rows))
    assert (big.evidence.model, small.evidence.model) == ("big", "small")
    assert ([c.name for c in big.clients], [c.name for c in small.clients]) == (["busy"], ["waits"])
    assert (big.total.starved, small.total.starved) == (0, 0)
    assert "do not compete: big | small." in audit_log(written(tmp_path, rows)).notes[-1]
    (shared,) = audit_models(written(tmp_path, [row | {"api_base": "s"} for row in rows]))
    assert (shared.evidence.model, shared.total.starved) == (None, 1)
    assert [each.name for each in shared.models] == ["big", "small"]
    silent = [{name: value for name, value in row.items() if name != "api_base"} for row in rows]
    assert [audit.evidence.model for audit in audit_models(written(tmp_path, silent))] == ["big", "small"]


def test_ends_and_tries_are_told_apart_by_name(tmp_path: Path) -> None:
    """Errors, refusals, cancellations and second tries are counted for every client, status and upstream."""
    row = {"start_ms": 0, "latency_ms": 900, "ttft_ms": 10, "prompt_tokens": 10, "output_tokens": 5, "client": "a"}
    failed = row | {"output_tokens": 0, "ttft_ms": None}
    rows = [
        row | {"status": 200, "request_id": "1", "worker": "x"},
        failed | {"status": 500, "request_id": "2", "worker": "x"},
        row | {"status": 200, "request_id": "2", "worker": "y", "start_ms": 1_000},
        failed | {"status": 429, "request_id": "3", "worker": "y"},
        failed | {"status": 499, "request_id": "4", "worker": "y"},
    ]
    found = audit_log(written(tmp_path, rows))
    total = found.total
    assert (total.finished, total.errors, total.rejected, total.cancelled, total.retries) == (2, 1, 1, 1, 1)
    assert total.failed == 3
    assert {each.name: each.requests for each in found.statuses} == {"200": 2, "429": 1, "499": 1, "500": 1}
    assert {each.name: (each.requests, each.errors, each.retries) for each in found.upstreams} == {
        "x": (2, 1, 0),
        "y": (3, 0, 1),
    }
    assert verdict(found).endswith(
        "of all requests 20.0% ended in an error, 20.0% were rejected, 20.0% were cancelled."
    )
    document = found.to_json()
    assert document["statuses"]["500"]["errors"] == document["clients"]["a"]["retries"] == 1


def test_moments_are_told_on_the_logs_clock(tmp_path: Path) -> None:
    """With date and zone in JSON and the headline; a log that counts from its own start stays with that."""
    row = {"latency_ms": 20_000, "ttft_ms": 15_000, "prompt_tokens": 10, "output_tokens": 5, "client": "a"}
    other = row | {"client": "b", "latency_ms": 8_000, "ttft_ms": 10}
    dated = [row | {"start": "2026-11-21T18:00:00Z"}, other | {"start": "2026-11-21T18:00:05Z"}]
    document = audit_log(written(tmp_path, dated)).to_json()
    (stretch,) = document["starved"]
    assert (stretch["client"], stretch["from"], stretch["to"]) == (
        "a",
        "2026-11-21T18:00:00.000+00:00",
        "2026-11-21T18:00:15.000+00:00",
    )
    clock = audit_log(written(tmp_path, dated)).evidence.clock
    assert clock.span() == "2026-11-21 18:00:00 to 18:00:20 UTC"
    assert clock.at(clock.origin_ns + 5_250 * MS) == "18:00:05.2"
    bare = audit_log(written(tmp_path, [row | {"start_ms": 0}])).evidence.clock
    assert (bare.wall, bare.span(), bare.at(5_000 * MS), bare.iso(0)) == (False, "", "5 s", None)


def test_nothing_is_inferred_where_nothing_is_missing(tmp_path: Path) -> None:
    """The first tokens that a log has are taken as they are, and no margin is said."""
    log = read_access_log(written(tmp_path, rows_of([20] * 60, [100] * 60, 60)))
    found = first_tokens(log)
    assert (found.first_ns == log.first_ns).all()
    assert not found.margin_ns.any()
    assert found.inferences == ()
    assert UNKNOWN not in found.first_ns.tolist()
