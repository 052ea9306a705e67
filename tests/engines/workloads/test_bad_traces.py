"""Whatever is wrong with a trace is said in one line that names file, row and field."""

from pathlib import Path
from typing import Any

import pytest

from fairsched.engines.workloads import TraceError, WorkloadError, load_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE_ROW = "2023-11-16 18:15:46.6805900,374,44\n"
ARENA = "req_id,arrival_s,client,input_tokens,output_tokens\n"
ARENA_ROW = "0,0.5,a,13,199\n"
MOONCAKE_ROW = '{"timestamp": 5, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
BURST = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_ROW = "5.0,s,43,GPT-4,906,446,1352,Conversation log\n"
BAILIAN_ROW = (
    '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 5, "input_length": 40, "output_length": 5, "type": "text", '
    '"turn": 1, "hash_ids": [1, 2, 3]}\n'
)


def own(**keys: str) -> str:
    """A row with optional keys: a sound one, but for the given keys (as JSON text; the empty text leaves one out)."""
    row = {"timestamp": "5", "input_length": "40", "output_length": "5", "client": '"a"'} | keys
    return "{" + ", ".join(f'"{key}": {value}' for key, value in row.items() if value) + "}\n"


BAD: dict[str, tuple[str, int | None, str | None, str]] = {
    # name: (text of the file, row, field, part of what is expected or found)
    "empty file": ("", None, None, "at least one request"),
    "header only": (AZURE, None, None, "at least one request"),
    "unknown header": ("a,b,c\n1,2,3\n", 1, None, "known format"),
    "no format at all": ("hello\n", 1, None, "known format"),
    "first line is broken JSON": ('{"timestamp": 5,\n', 1, None, "JSON object"),
    "azure: missing column": ("TIMESTAMP,ContextTokens\n", 1, "GeneratedTokens", "a column GeneratedTokens"),
    "azure: unknown column": ("TIMESTAMP,ContextTokens,GeneratedTokens,Model\n", 1, "Model", "columns"),
    "azure: column twice": ("TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n", 1, "ContextTokens", "once"),
    "azure: too few values": (AZURE + AZURE_ROW + "2023-11-16 18:15:47,3\n", 3, None, "2 values"),
    "azure: empty line": (AZURE + AZURE_ROW + "\n" + AZURE_ROW, 3, None, "an empty line"),
    "azure: bad time": (AZURE + "yesterday,374,44\n", 2, "TIMESTAMP", "yesterday"),
    "azure: no such day": (AZURE + "2023-02-30 18:15:46.68,374,44\n", 2, "TIMESTAMP", "2023-02-30"),
    "azure: time goes back": (AZURE + AZURE_ROW + AZURE_ROW.replace("46.68", "46.67"), 3, "TIMESTAMP", "not before"),
    "azure: zero prompt": (AZURE + AZURE_ROW.replace("374", "0"), 2, "ContextTokens", "from 1"),
    "azure: huge length": (AZURE + AZURE_ROW.replace("374", "4194305"), 2, "ContextTokens", "4194305"),
    "azure: absurd length": (AZURE + AZURE_ROW.replace("374", "9" * 5000), 2, "ContextTokens", "..."),
    "azure: foreign digits": (AZURE + AZURE_ROW.replace("374", "٣٧٤"), 2, "ContextTokens", "whole number"),
    "azure: open quote": (AZURE + '"2023-11-16,374,44\n', 2, None, "comma-separated"),
    "arena: missing column": ("req_id,arrival_s,client,input_tokens\n", 1, "output_tokens", "a column"),
    "arena: id twice": (ARENA + ARENA_ROW + ARENA_ROW, 3, "req_id", "no earlier row has"),
    "arena: no client": (ARENA + ARENA_ROW.replace("a", " "), 2, "client", "name"),
    "arena: negative time": (ARENA + ARENA_ROW.replace("0.5", "-0.5"), 2, "arrival_s", "-0.5"),
    "arena: time inf": (ARENA + ARENA_ROW.replace("0.5", "inf"), 2, "arrival_s", "'inf'"),
    "arena: time goes back": (ARENA + ARENA_ROW + ARENA_ROW.replace("0,0.5", "1,0.4"), 3, "arrival_s", "not before"),
    "burstgpt: missing column": (BURST.replace(",Model", ""), 1, "Model", "a column Model"),
    "burstgpt: unknown column": (BURST.replace(",Model", ",Model,User"), 1, "User", "the columns"),
    "burstgpt: bad time": (BURST + BURST_ROW.replace("5.0", "noon"), 2, "Timestamp", "noon"),
    "burstgpt: time before the first": (BURST + BURST_ROW + "4" + BURST_ROW[1:], 3, "Timestamp", "the first row's"),
    "burstgpt: bad elapsed time": (BURST + BURST_ROW.replace("43", "-43"), 2, "Elapsed time", "-43"),
    "burstgpt: negative output": (BURST + BURST_ROW.replace("446", "-1"), 2, "Response tokens", "from 0"),
    "burstgpt: bad total": (BURST + BURST_ROW.replace("1352", "many"), 2, "Total tokens", "many"),
    "burstgpt: only failures": (BURST + BURST_ROW.replace("446", "0"), None, None, "at least one request"),
    "bailian: missing key": (BAILIAN_ROW.replace('"input_length": 40, ', ""), 1, "input_length", "a key"),
    "bailian: negative time": (BAILIAN_ROW.replace("5,", "-5,", 1), 1, "timestamp", "from 0 to 9.2e9"),
    "bailian: too many ids": (BAILIAN_ROW.replace("[1,", "[1, 2, 3,"), 1, "hash_ids", "at most 3 ids"),
    "bailian: parent below -1": (BAILIAN_ROW.replace("-1", "-2"), 1, "parent_chat_id", ">= -1"),
    "bailian: id twice": (BAILIAN_ROW + BAILIAN_ROW, 2, "chat_id", "no earlier row has"),
    "mooncake: broken JSON": (MOONCAKE_ROW + '{"timestamp": 5\n', 2, None, "JSON object"),
    "mooncake: a list": (MOONCAKE_ROW + "[1, 2]\n", 2, None, "object"),
    "mooncake: missing key": (MOONCAKE_ROW.replace('"input_length": 600, ', ""), 1, "input_length", "a key"),
    "mooncake: unknown key": (MOONCAKE_ROW + MOONCAKE_ROW.replace("{", '{"user": 3, '), 2, "user", "knows"),
    "mooncake: NaN time": (MOONCAKE_ROW.replace("5,", '"NaN",', 1), 1, "timestamp", "NaN"),
    "mooncake: time goes back": (MOONCAKE_ROW + MOONCAKE_ROW.replace("5,", "4,", 1), 2, "timestamp", "not before"),
    "mooncake: huge output": (MOONCAKE_ROW.replace('h": 5', 'h": 9999999'), 1, "output_length", "9999999"),
    "mooncake: length as text": (MOONCAKE_ROW.replace("600", '"600"'), 1, "input_length", "'600'"),
    "mooncake: too many ids": (MOONCAKE_ROW.replace("[1, 2]", "[1, 2, 3]"), 1, "hash_ids", "at most 2 ids"),
    "mooncake: negative hash": (MOONCAKE_ROW.replace("[1, 2]", "[1, -2]"), 1, "hash_ids", ">= 0"),
    "mooncake: huge hash": (MOONCAKE_ROW.replace("[1, 2]", f"[{2**63}]"), 1, "hash_ids", "<="),
    "own: unknown key": (own() + own(wieght="2"), 2, "wieght", "keys that this format knows"),
    "own: unknown target": (own(slo='{"ttft": 5}'), 1, "slo.ttft", "keys that this format knows"),
    "own: id twice": (own(id="7") + own(id="7"), 2, "id", "no earlier row has"),
    "own: unknown parent": (own(parent="5"), 1, "parent", "earlier row"),
    "own: later parent": (own(parent="[1]") + own(), 1, "parent", "earlier row"),
    "own: one of two parents unknown": (own() + own(parent="[0, 9]"), 2, "parent", "found 9"),
    "own: thinks after no parent": (own(think_ms="3"), 1, "think_ms", "a parent"),
    "own: declares too little": (own(max_output_tokens="4"), 1, "max_output_tokens", "at least"),
    "own: client missing": (own() + own(client=""), 2, "client", "a client"),
    "own: client unexpected": (own(client="", session='"s"') + own(), 2, "client", "no client"),
    "own: empty client": (own(client='""'), 1, "client", "''"),
    "own: weight zero": (own(weight="0"), 1, "weight", ">= 1"),
    "own: weights differ": (own(weight="2") + own(weight="3"), 2, "weight", "the client's weight 2"),
    "own: weight of no client": (own(client="", weight="2"), 1, "weight", "a client"),
    "own: block of nothing": (own(block_tokens="0"), 1, "block_tokens", ">= 1"),
    "own: cancelled before": (own(cancel_after_ms="-1"), 1, "cancel_after_ms", "-1"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_trace_is_refused_where_it_is_bad(name: str, tmp_path: Path) -> None:
    """The error has path, row and field as attributes and in its message, on one line."""
    text, row, field, part = BAD[name]
    path = tmp_path / "some.trace"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    error, message = caught.value, str(caught.value)
    assert (error.path, error.row, error.field) == (path, row, field), message
    assert message.startswith(str(path))
    assert part in message
    assert "\n" not in message
    assert (f", row {row}" in message) == (row is not None)
    assert (f", field {field}" in message) == (field is not None)
    assert "expected" in message
    assert "found" in message


@pytest.mark.parametrize("row", [1, 2, 3])
def test_undecodable_bytes_are_located(row: int, tmp_path: Path) -> None:
    """A byte that is no UTF-8 is reported at its own line, not at the end of a buffer."""
    lines = [AZURE.encode(), AZURE_ROW.encode(), AZURE_ROW.encode()]
    lines[row - 1] = lines[row - 1][:5] + b"\xff" + lines[row - 1][5:]
    path = tmp_path / "azure.csv"
    path.write_bytes(b"".join(lines))
    with pytest.raises(TraceError, match=rf"azure\.csv, row {row}: expected UTF-8 text, found the bytes b'\\xff"):
        load_trace(path)


def test_a_file_that_is_not_there_is_a_trace_error(tmp_path: Path) -> None:
    """A missing file and a folder are bad input like any other."""
    with pytest.raises(TraceError, match=r"nowhere\.csv: expected a readable file, found no such file"):
        load_trace(tmp_path / "nowhere.csv")
    with pytest.raises(TraceError, match="expected a readable file, found is a directory"):
        load_trace(tmp_path)


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        *(("rate_scale", rate, "positive finite number") for rate in (float("nan"), float("inf"), 0.0, -1.0)),
        *(
            ("max_output_tokens", rule, "expected trace-max, oracle or 1 to 4194304")
            for rule in ("", "trace max", "0", "-5", "4194305", "1.5", "nan", "²", 0, -1)
        ),
        ("limit", 0, "at least 1, found 0"),
        ("format", "mooncak", "unknown trace format 'mooncak'; did you mean mooncake"),
        ("format", "arena", r"azure\.csv, row 1, field req_id: expected a column req_id"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(argument: str, value: Any, message: str, tmp_path: Path) -> None:
    """A rate is positive and finite, outputs are declared by a rule or a number of tokens, a limit is at least 1, and
    an unknown format gets the nearest names.
    """
    path = tmp_path / "azure.csv"
    path.write_text(AZURE + AZURE_ROW)
    with pytest.raises(WorkloadError, match=message):
        load_trace(path, **{argument: value})
