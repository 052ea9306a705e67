"""Which column of a log is what: guessed from common names, or named in a map."""

from pathlib import Path
from typing import Any

import pytest

from fairsched.engines.logs.access import Ending, read_access_log, read_map
from fairsched.engines.workloads import TraceError
from tests.support.access_logs import GOOD, MS, logged

LITELLM = {
    "startTime": 1700000000.5,
    "completionStartTime": 1700000001.0,
    "endTime": 1700000002.0,
    "prompt_tokens": 10,
    "completion_tokens": 4,
    "end_user": "",
    "metadata": {"user_api_key_alias": "gold"},
    "response_time": 0.5,
    "status": "success",
    "api_base": "http://a",
}
OPENAI = {
    "created": 1700000000,
    "user": "gold",
    "ttft_ms": 500,
    "latency_ms": 1500.0,
    "usage": {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}},
}
SPAN = {
    "start_time": "2023-11-14T22:13:20Z",
    "gen_ai.latency.time_to_first_token": 0.5,
    "gen_ai.latency.e2e": 1.5,
    "gen_ai.usage.prompt_tokens": 10,
    "gen_ai.usage.completion_tokens": 4,
    "tenant": "gold",
}
VLLM = {
    "arrival_time": 1700000000.0,
    "end_time": 1700000001.5,
    "metrics": {"time_to_first_token_ms": 200.0, "queue_time_ms": 500.0, "generation_time_ms": 800.0},
    "usage": {"prompt_tokens": 10, "completion_tokens": 4},
    "client": "gold",
}


@pytest.mark.parametrize("row", [LITELLM, OPENAI, SPAN, VLLM], ids=["litellm", "openai", "span", "vllm"])
def test_common_logs_need_no_map(tmp_path: Path, row: dict[str, Any]) -> None:
    """What proxies, engines and spans usually write is read as it is meant."""
    log = read_access_log(logged(tmp_path, row))
    assert log.clients == ("gold",)
    assert (log.prompt[0], log.output[0], log.outcome[0]) == (10, 4, Ending.FINISHED)
    assert log.served_ns[0] - log.arrival_ns[0] == 500 * MS
    assert log.end_ns[0] - log.arrival_ns[0] == 1500 * MS
    assert log.cached[0] == (6 if row is OPENAI else 0)


MAP = """
arrival = { column = "t", unit = "ms" }
latency = { column = "took", unit = "ms" }
client = "who.name"
prompt_tokens = "in"
output_tokens = "out"
status = "code"
ok = ["fine"]
"""


def test_a_map_of_few_lines_names_columns(tmp_path: Path) -> None:
    """Columns, units and successes are as a map says; an end and a length of time make an arrival."""
    mapped = tmp_path / "map.toml"
    mapped.write_text(MAP)
    assert len(MAP.strip().splitlines()) <= 10
    row = {"t": 5_000, "took": 2, "who": {"name": "x"}, "in": 3, "out": 4, "code": "fine"}
    path = logged(tmp_path, row, row | {"code": "broke", "out": 0})
    log = read_access_log(path, read_map(mapped))
    assert log.clients == ("x",)
    assert (log.end_ns - log.arrival_ns).tolist() == [2 * MS, 2 * MS]
    assert sorted(log.outcome.tolist()) == [Ending.FINISHED, Ending.ERROR]
    mapped.write_text(MAP.replace("arrival =", "end ="))
    assert read_access_log(path, read_map(mapped)).arrival_ns.tolist() == [4_998 * MS] * 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("arival = 't'", "did you mean arrival"),
        ("arrival = 3", "arrival is a column as"),
        ("arrival = { column = 't', unit = 'weeks' }", "one of s, ms, us, ns, iso"),
        ("client = { column = 't', unit = 's' }", "this is no time"),
        ("ok = 'yes'", "ok is a list"),
        ("arrival = ", "line 1, column 11: no value"),
    ],
)
def test_a_map_that_is_wrong_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """In one line, with the file."""
    path = tmp_path / "map.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=said) as caught:
        read_map(path)
    assert str(path) in str(caught.value)


def test_all_columns_that_a_map_names_must_be_there(tmp_path: Path) -> None:
    """Those that are not are named at once, with the columns that there are."""
    path, mapped = logged(tmp_path, GOOD), tmp_path / "m.toml"
    mapped.write_text('client = "tenant"\nworker = "host"\nttft = "ttft_ms"\n')
    said = "the columns 'host', 'tenant', which the map names, found only client, latency_ms"
    with pytest.raises(TraceError, match=said):
        read_access_log(path, read_map(mapped))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"a": 1},
            ["arrival (when a request came)", "end or latency (", "prompt_tokens (", "output_tokens (", "only a"],
        ),
        ({"start": 1, "prompt_tokens": 1, "output_tokens": 1}, ["say end or latency (when it ended, or how long"]),
        ({"start": 1, "latency": 1, "output_tokens": 1}, ["say prompt_tokens (tokens of its prompt): name them with"]),
        ({"start": 1, "latency": 90000, "prompt_tokens": 1, "output_tokens": 1}, ["its unit in a map"]),
    ],
)
def test_all_that_a_log_does_not_say_is_named_at_once(tmp_path: Path, row: dict[str, Any], said: list[str]) -> None:
    """In one line, with what each column must say, and the columns that there are."""
    with pytest.raises(TraceError) as caught:
        read_access_log(logged(tmp_path, row))
    assert all(part in str(caught.value) for part in said)
    assert "\n" not in str(caught.value)


def test_columns_that_some_files_lack_are_found_in_others(tmp_path: Path) -> None:
    """Files of one kind are read alike: a field that the first rows of one do not have may be in those of another."""
    first = logged(tmp_path, {key: value for key, value in GOOD.items() if key not in ("client", "ttft_ms")})
    second = logged(tmp_path / "..", GOOD)
    log = read_access_log([first.rename(tmp_path / "b.jsonl"), second])
    assert log.clients == ("(none)", "a")
    assert {"ttft", "client"} <= log.fields
