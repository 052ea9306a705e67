"""What a log says of each request beside its times: how it ended, which model and upstream had it, and which try it
was."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.analysis.audit import audit_log, judged, read_thresholds
from fairsched.engines.logs.access import UNKNOWN, AccessLog, Columns, Ending, read_access_log
from tests.support.access_logs import GOOD, logged

ROW: dict[str, object] = {"start_ms": 1_000, "latency_ms": 5, "prompt_tokens": 1, "output_tokens": 0}


def read(folder: Path, *rows: object) -> AccessLog:
    """The access log of these rows, as it was read."""
    return read_access_log(logged(folder, *rows))


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((status, Ending.FINISHED) for status in (200, "204", "success", True, None, "", "length", "tool_calls")),
        *((status, Ending.CANCELLED) for status in (499, "abort", "Cancelled", 0)),
        *((status, Ending.REJECTED) for status in (429, "401", 503, "rejected")),
        *((status, Ending.ERROR) for status in (500, 502, "failure", False, "timeout", 302)),
    ],
)
def test_how_a_request_ended_is_told_by_its_status(tmp_path: Path, status: object, outcome: Ending) -> None:
    """HTTP statuses and usual words tell finished, given up, refused and broken off apart."""
    log = read(tmp_path, ROW | {"status": status})
    assert log.outcome.tolist() == [outcome]
    assert log.statuses == ("" if status is None else str(status),)
    assert log.served_ns.tolist() == [UNKNOWN]


def test_what_has_an_output_was_not_refused(tmp_path: Path) -> None:
    """A server that gives up in the middle of an answer is in error, whatever its status."""
    assert read(tmp_path, ROW | {"status": 503, "output_tokens": 3}).outcome.tolist() == [Ending.ERROR]


def test_statuses_of_a_map_decide_what_finished_only(tmp_path: Path) -> None:
    """With `ok`, no other status means success, and those that are known as something else stay that."""
    path = logged(tmp_path, *(ROW | {"status": each} for each in ("fine", "success", 499)))
    log = read_access_log(path, Columns({}, frozenset({"fine"})))
    ended = dict(zip([log.statuses[i] for i in log.status], log.outcome.tolist(), strict=True))
    assert ended == {"fine": Ending.FINISHED, "success": Ending.ERROR, "499": Ending.CANCELLED}


def test_models_upstreams_and_streams_are_named(tmp_path: Path) -> None:
    """Each row has the model, the upstream and the kind of answer that it names, and UNKNOWN where it names none."""
    rows = [
        ROW | {"start_ms": 1, "model": "small", "upstream": "b", "stream": True},
        ROW | {"start_ms": 2, "model": "large", "upstream": "a", "stream": "false"},
        ROW | {"start_ms": 3, "model": None, "stream": None},
    ]
    log = read(tmp_path, *rows)
    assert (log.models, log.workers) == (("large", "small"), ("(none)", "a", "b"))
    assert log.model.tolist() == [1, 0, UNKNOWN]
    assert log.worker.tolist() == [2, 1, 0]
    assert log.streamed.tolist() == [1, 0, UNKNOWN]
    bare = read(tmp_path, ROW)
    assert (bare.models, bare.workers, bare.clients) == ((), ("",), ("(all)",))
    assert (bare.model.tolist(), bare.streamed.tolist(), bare.attempt.tolist()) == ([UNKNOWN], [UNKNOWN], [0])


def test_tries_of_a_request_are_counted_by_its_id(tmp_path: Path) -> None:
    """In order of arrival, whatever the order of the rows; a row that stands twice is one try."""
    tries = [ROW | {"request_id": "x", "start_ms": ms} for ms in (30, 10, 10, 20)]
    other = [ROW | {"request_id": name, "start_ms": 40 + i} for i, name in enumerate(("y", "", ""))]
    assert read(tmp_path, *other, *tries).attempt.tolist() == [0, 0, 1, 2, 0, 0, 0]


def test_a_first_token_that_is_not_told_is_unknown(tmp_path: Path) -> None:
    """A wait is over where the log says so: out of the queue, or at a first token; the end says neither."""
    done = ROW | {"output_tokens": 2}
    log = read(
        tmp_path, *({**done, "start_ms": i, **more} for i, more in enumerate(({}, {"queue_ms": 2}, {"ttft_ms": 3})))
    )
    assert (log.served_ns - log.arrival_ns).tolist()[1:] == [2_000_000, 3_000_000]
    assert log.served_ns[0] == UNKNOWN
    assert log.first_ns.tolist() == [UNKNOWN, UNKNOWN, log.arrival_ns[2] + 3_000_000]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 90), st.booleans()), min_size=2, max_size=20))
def test_a_stream_without_usage_is_counted(rows: list[tuple[str, int, bool]]) -> None:
    """Its row stops nothing: waits are all there, and what share of the load may be missing is said, with the remedy:
    that of the same log had it been whole, where a client's requests are alike."""
    rows = [("a", 5, True), *rows]
    prompt = {"a": 10, "b": 70}
    whole = [GOOD | {"client": c, "ttft_ms": 2, "latency_ms": w + 2, "prompt_tokens": prompt[c]} for c, w, _ in rows]
    bare = [
        row if told else row | {"prompt_tokens": None, "output_tokens": None}
        for row, (_, _, told) in zip(whole, rows, strict=True)
    ]
    known = {client for client, _, told in rows if told}
    with TemporaryDirectory() as folder:
        log = read_access_log(logged(Path(folder), *bare))
        audit = audit_log(Path(folder, "a.jsonl"))
    assert len(log.client) == len(rows) == audit.total.finished
    assert audit.total.wait_us.p50 == 2_000
    missing = [client for client, _, told in rows if not told]
    assert any("include_usage" in said for said in log.opening) == bool(missing)
    if missing and set(missing) <= known:
        cost = {client: tokens + 2 for client, tokens in prompt.items()}
        part = sum(cost[client] for client in missing) / sum(cost[client] for client, _, _ in rows)
        assert f"about {part:.1%} of the load is missing" in log.opening[-1]


def test_a_client_whose_streams_say_no_tokens_does_not_starve(tmp_path: Path) -> None:
    """It is served from first token to end."""
    bare = GOOD | {"client": "b", "latency_ms": 60_000, "prompt_tokens": None, "output_tokens": None}
    waiting = GOOD | {"client": "b", "ttft_ms": 50_000, "latency_ms": 50_001}
    others = [GOOD | {"start_ms": 1_000 * i} for i in range(60)]
    assert not audit_log(logged(tmp_path, bare, waiting, *others)).starved
    assert audit_log(logged(tmp_path, waiting, *others)).starved


def test_a_call_that_timed_out_starves_only_a_client_that_was_not_served(tmp_path: Path) -> None:
    """Nothing tells whether it waited: no client is said to starve by it, a build does not fail, and it is judged
    where the client's other calls were served all the while."""
    gone = GOOD | {"client": "b", "latency_ms": 60_000, "output_tokens": 0, "status": 504, "ttft_ms": None}
    others = [GOOD | {"start_ms": 1_000 * i} for i in range(60)]
    own = [GOOD | {"start_ms": 4_000 * i, "client": "b"} for i in range(17)]
    verdicts = {}
    for name, rows in {"alone": [gone, *others], "served": [gone, *others, *own]}.items():
        found = audit_log(logged(tmp_path, *rows))
        assert not found.starved
        (verdicts[name],) = judged([found], read_thresholds("starved>0"))
    assert (verdicts["alone"].verdict, verdicts["served"].verdict) == ("unknown", "ok")
