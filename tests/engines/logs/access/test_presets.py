"""Logs of programs that are known are read without a map; the samples were written by the programs themselves,
but for two that their README names."""

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.logs.access import UNKNOWN, AccessLog, Ending, read_access_log
from fairsched.engines.logs.access.presets import PRESETS
from fairsched.engines.workloads import TraceError

SAMPLES = Path(__file__).parent / "samples"
READ = {
    "loads/aiperf.jsonl": ("aiperf", 20, 20),
    "proxies/envoy-json.jsonl": ("Envoy, JSON", 24, 17),
    "loads/genai-perf.json": ("genai-perf", 5, 4),
    "loads/guidellm.json": ("guidellm", 12, 12),
    "loads/inference-perf.json": ("inference-perf", 11, 11),
    "loads/llmservingsim.jsonl": ("LLMServingSim bench", 8, 8),
    "proxies/litellm.jsonl": ("LiteLLM", 17, 10),
    "proxies/nginx-json.jsonl": ("nginx, JSON", 24, 16),
    "proxies/nginx-text.log": ("nginx, text", 24, 16),
    "engines/otel-genai.jsonl": ("OpenTelemetry GenAI spans", 20, 0),
    "engines/sglang-metrics.jsonl": ("SGLang metrics file", 12, 8),
    "engines/sglang-requests.log": ("SGLang request log", 12, 8),
    "loads/vllm-bench.json": ("vLLM bench", 24, 24),
    "engines/vllm-server.jsonl": ("vLLM server log", 10, 8),
    "engines/vllm-server.log": ("vLLM server log", 11, 8),
    "engines/vllm-spans.jsonl": ("OpenTelemetry GenAI spans", 44, 44),
}
"""Of each sample its kind, its requests, and how many of them have a first token."""
TRUTH = Path(__file__).parents[5] / "shared" / "ground-truth"
WITHOUT_TOKENS = {"proxies/envoy-text.log": "dynamic metadata", "proxies/nginx-combined.log": "njs"}
"""Samples that say no tokens, and a word of what is to be done about it."""


def read(name: str) -> AccessLog:
    """A sample."""
    return read_access_log(SAMPLES / name)


def columns(log: AccessLog) -> dict[str, list[object]]:
    """What a log says of its requests, names as text."""
    names = {"client": log.clients, "worker": log.workers, "model": log.models, "status": log.statuses}
    found: dict[str, list[object]] = {
        name: [None if place == UNKNOWN else known[place] for place in getattr(log, name)]
        for name, known in names.items()
    }
    for name in ("arrival_ns", "first_ns", "end_ns", "prompt", "cached", "output", "most", "streamed", "outcome"):
        found[name] = getattr(log, name).tolist()
    return found


def test_there_is_a_sample_of_each_kind_and_no_other() -> None:
    """Every preset has a sample, and every sample is in the tables."""
    assert {str(path.relative_to(SAMPLES)) for path in SAMPLES.glob("*/*")} == {*READ, *WITHOUT_TOKENS}
    assert {kind for kind, _, _ in READ.values()} | {"Envoy, text"} == {preset.name for preset in PRESETS}


@pytest.mark.parametrize("name", [*READ, *WITHOUT_TOKENS])
def test_one_kind_knows_a_sample(name: str) -> None:
    """Exactly one kind knows the first lines of a sample, so that their order does not matter."""
    head = (SAMPLES / name).read_text().splitlines()[:50]
    assert len([preset.name for preset in PRESETS if preset.knows(head)]) == 1


@pytest.mark.parametrize("name", READ)
def test_a_sample_is_read_without_a_map(name: str) -> None:
    """All requests are there, times are in order, and what finished has tokens."""
    kind, requests, first_tokens = READ[name]
    log = read(name)
    assert log.reading[0] == kind
    assert len(log.arrival_ns) == requests
    has_first = log.first_ns != UNKNOWN
    assert has_first.sum() == first_tokens
    assert (log.end_ns >= log.arrival_ns).all()
    assert (log.first_ns[has_first] >= log.arrival_ns[has_first]).all()
    assert (log.first_ns[has_first] <= log.end_ns[has_first]).all()
    done = log.outcome == Ending.FINISHED
    assert done.any()
    assert (log.prompt[done] > 0).all()
    assert (log.output[done] > 0).all()


@pytest.mark.parametrize("name", WITHOUT_TOKENS)
def test_a_log_without_tokens_is_refused_with_advice(name: str) -> None:
    """The error names what is missing, and what to turn on in the program."""
    with pytest.raises(TraceError, match=f"prompt_tokens.*output_tokens.*{WITHOUT_TOKENS[name]}"):
        read(name)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("proxies/nginx-text.log", "proxies/nginx-json.jsonl"),
        ("engines/sglang-requests.log", "engines/sglang-metrics.jsonl"),
    ],
)
def test_two_logs_of_the_same_requests_say_the_same(one: str, other: str) -> None:
    """A program that logs its requests in two ways is understood in the same way, but for names one leaves out."""
    found, same = columns(read(one)), columns(read(other))
    if "sglang" in one:
        del found["client"], same["client"]
    assert found == same


def test_an_answer_that_was_not_streamed_has_no_first_token() -> None:
    """A proxy sees the body of such an answer begin at its end, which is no first token; neither is LiteLLM's."""
    for name in (
        "proxies/envoy-json.jsonl",
        "proxies/litellm.jsonl",
        "proxies/nginx-json.jsonl",
        "proxies/nginx-text.log",
    ):
        log = read(name)
        whole = log.streamed == 0
        assert whole.sum() >= 4
        assert (log.first_ns[whole] == UNKNOWN).all()
        finished = ~whole & (log.outcome == Ending.FINISHED)
        assert (log.first_ns[finished] != UNKNOWN).all()


@pytest.mark.parametrize("name", ["proxies/envoy-json.jsonl", "proxies/nginx-json.jsonl", "proxies/nginx-text.log"])
def test_a_caller_that_left_is_cancelled(name: str) -> None:
    """One caller gave up in the middle, and one asked for a model that is not there."""
    assert np.bincount(read(name).outcome).tolist() == [22, 1, 1]


@pytest.mark.parametrize(
    "head",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n",
        "req_id,arrival_s,client,input_tokens,output_tokens\n0,0.0,a,5,5\n",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n",
        '{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1]}\n',
        '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0, "input_length": 9, "output_length": 5, "turn": 1}\n',
        '{"id": "s", "models": [], "block_size": 64, "hash_id_scope": "local", "requests": []}\n',
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,374,44\n",
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n0,2,0,0.5,1,9,5\n",
    ],
)
def test_a_trace_without_answers_is_refused_with_what_can_be_done(tmp_path: Path, head: str) -> None:
    """Nothing has waited in a trace of what was asked; the error says in one line how to compare policies on it."""
    path = tmp_path / "trace"
    path.write_text(head)
    with pytest.raises(TraceError, match=r"fairsched compare \S+trace") as raised:
        read_access_log(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", [name for name in READ if not name.endswith((".log", "vllm-server.jsonl"))])
def test_a_sample_says_the_same_over_several_lines_and_in_several_documents(name: str, tmp_path: Path) -> None:
    """As `jq` prints it; of results that were appended to others' there are as many requests more."""
    text, path = (SAMPLES / name).read_text(), tmp_path / "log"
    documents = [text] if name.endswith(".json") else text.splitlines()
    path.write_text("\n".join(json.dumps(json.loads(document), indent=2) for document in documents))
    assert columns(read_access_log(path)) == columns(read(name))
    if name.endswith(".json"):
        path.write_text(f"{text}\n{text}")
        assert len(read_access_log(path).end_ns) == 2 * READ[name][1]


BENCH = {"input_lens": [5, 5, 5], "output_lens": [2, 2, 2], "ttfts": [0.2, 0.5, 0.2], "itls": [[0.1], [0.2], [0.3]]}
"""A result without start times: answers that take 0.3, 0.7 and 0.5 s."""


@pytest.mark.parametrize(("slots", "starts_ms"), [(None, [0, 0, 0]), (2, [0, 0, 300]), (1, [0, 300, 1000])])
def test_starts_of_an_endless_rate_follow_from_the_answers(
    slots: int | None, starts_ms: list[int], tmp_path: Path
) -> None:
    """As older benchmarks of vLLM and SGLang write it: all at once, or each when a slot is free."""
    (tmp_path / "log").write_text(json.dumps(BENCH | {"request_rate": float("inf"), "max_concurrency": slots}))
    log = read_access_log(tmp_path / "log")
    starts, took = log.arrival_ns - log.arrival_ns[0], log.end_ns - log.arrival_ns
    found = np.rint(np.array([starts, took]) / 1e6).astype(int)
    assert sorted(zip(*found.tolist(), strict=True)) == sorted(zip(starts_ms, [300, 700, 500], strict=True))


@pytest.mark.skipif(not TRUTH.exists(), reason="the measurements are not beside this checkout")
@pytest.mark.parametrize("name", ["rtx4090-llama-3.1-8b", "rtxpro6000-qwen3-32b"])
def test_an_engines_clock_is_set_to_the_arrivals(name: str) -> None:
    """LLMServingSim prints what vLLM measured beside its requests: its first tokens are counted from the queue, into
    which vLLM takes requests between steps, and so a bit sooner than from their arrival."""
    log = read_access_log(TRUTH / f"{name}-requests.jsonl")
    ttft_ms, rest_ms = (log.first_ns - log.arrival_ns) / 1e6, (log.end_ns - log.first_ns) / 1e6
    lines = map(str.split, (TRUTH / f"{name}-llmservingsim.txt").read_text().splitlines())
    published = {(words[0], words[1]): float(words[2]) for words in lines if len(words) == 5}
    assert (rest_ms / (log.output - 1)).mean() == pytest.approx(published["TPOT", "Mean"], abs=0.06)
    assert 1 <= ttft_ms.mean() / published["TTFT", "Mean"] < 1.004
    assert 1 <= np.median(ttft_ms) / published["TTFT", "Median"] < 1.007


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"load_summary": {"count": 5}, "successes": {}}, "per_request_lifecycle_metrics.json"),
        ({"service_kind": "openai", "endpoint": "v1", "experiments": []}, "include_usage"),
        (BENCH | {"request_rate": 5.0}, "start_times: .*SGLang's"),
    ],
)
def test_results_that_do_not_tell_requests_are_refused_with_what_does(
    found: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """However they are printed: a summary, an export without tokens, a benchmark without start times."""
    for indent in (None, 2):
        (tmp_path / "log").write_text(json.dumps(found, indent=indent))
        with pytest.raises(TraceError, match=said):
            read_access_log(tmp_path / "log")


def test_requests_that_a_benchmark_never_sent_are_counted(tmp_path: Path) -> None:
    """guidellm lists them among the incomplete ones, without a start."""
    found = json.loads((SAMPLES / "loads/guidellm.json").read_text())
    requests = found["benchmarks"][0]["requests"]
    never = json.loads(json.dumps(requests["successful"][0]))
    never["info"]["timings"] = dict.fromkeys(never["info"]["timings"])
    requests["incomplete"].append(never)
    (tmp_path / "log").write_text(json.dumps(found))
    log = read_access_log(tmp_path / "log")
    assert len(log.end_ns) == 12
    assert any("never sent" in note and note.endswith(": 1.") for note in log.notes)


def test_a_trace_with_answers_is_read(tmp_path: Path) -> None:
    """BurstGPT's second release has the time that answers took, and a log with columns of its own is no trace."""
    path = tmp_path / "trace"
    head = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    path.write_text(f"{head}\n5.0,7,2.5,ChatGPT,472,18,490,Conversation log\n")
    assert (read_access_log(path).end_ns - read_access_log(path).arrival_ns).tolist() == [2_500_000_000]
    path.write_text('{"timestamp": 5, "input_length": 67, "output_length": 50, "latency_s": 2, "tenant": "a"}\n')
    assert read_access_log(path).clients == ("a",)


ODD: list[Any] = [None, True, -1, 0, 1e400, 10**30, "", "x", "1", [], [[]], ["x"], {}, {"value": "x"}, float("nan")]


def mutated(found: Any, draw: random.Random) -> Any:
    """A JSON value with something else somewhere in it."""
    if isinstance(found, dict) and found and draw.random() < 0.9:
        key = draw.choice(list(found))
        return {**found, key: mutated(found[key], draw)}
    if isinstance(found, list) and found and draw.random() < 0.9:
        place = draw.randrange(len(found))
        return [*found[:place], mutated(found[place], draw), *found[place + 1 :]]
    return draw.choice(ODD)


@pytest.mark.parametrize("name", READ)
def test_a_log_with_something_odd_in_it_is_read_or_refused(name: str, tmp_path: Path) -> None:
    """Whatever stands in a line, the log is read without that line, or refused in one line: there is no other error."""
    text = (SAMPLES / name).read_text()
    whole = name.endswith(".json")
    lines = [text] if whole else text.splitlines()
    for seed in range(15):
        draw = random.Random(seed)
        place = draw.randrange(len(lines))
        begin = lines[place].find("{")
        if begin >= 0 and (whole or not name.endswith("vllm-server.log")) and draw.random() < 0.8:
            odd = lines[place][:begin] + json.dumps(
                mutated(json.loads(lines[place][begin:] if not whole else text), draw)
            )
        else:
            at = draw.randrange(len(lines[place]))
            odd = (
                lines[place][:at]
                + draw.choice(["\x00", '"', "}", "9" * 40, "-", ""])
                + lines[place][at + draw.randrange(30) :]
            )
        path = tmp_path / Path(name).name
        path.write_text("\n".join([*lines[:place], odd, *lines[place + 1 :]]))
        for skip in (False, True):
            said = ""
            try:
                read_access_log(path, skip=skip)
            except TraceError as error:
                said = str(error)
            assert "\n" not in said


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9), st.integers(1, 6)), min_size=1, max_size=6), st.data())
@settings(max_examples=30)
def test_lines_of_vllms_calls_may_be_mixed(calls: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """However the lines of several calls are mixed, each call gets its own tokens and times."""
    lines: list[tuple[int, int, str]] = []
    for number, (begin, prompt, pieces) in enumerate(calls):
        call = f"chatcmpl-{number}a"
        said = [
            f'Request {call} JSON body: {{"messages":[{{"content":"\\"user\\":\\"no\\""}}],"user":"c{number}"}}',
            f"Request {call} details: prompt: 'x', prompt_token_ids: {list(range(prompt))}, prompt_embeds",
            f"Received request {call}: params: SamplingParams(n=1, max_tokens=50), lora_request: None.",
            *(f"Generated response {call} (streaming delta) details: output_token_ids: [7]" for _ in range(pieces)),
            f"Generated response {call} (streaming complete): output: 'x', finish_reason: streaming_complete",
        ]
        lines += [(begin + i, number, message) for i, message in enumerate(said)]
    mixed = sorted(data.draw(st.permutations(lines)), key=lambda line: line[0])
    # Lines of one call stay in order, since no two of them are of one second.
    text = "".join(f"INFO 11-23 09:{at // 60:02}:{at % 60:02} [a.py:1] {message}\n" for at, _, message in mixed)
    with TemporaryDirectory() as folder:
        path = Path(folder, "vllm.log")
        path.write_text(text)
        log = read_access_log(path)
    found = sorted(
        zip((log.clients[i] for i in log.client), log.prompt, log.output, log.end_ns - log.arrival_ns, strict=True)
    )
    assert found == [(f"c{i}", prompt, n, (n + 1) * 10**9) for i, (_, prompt, n) in enumerate(calls)]
