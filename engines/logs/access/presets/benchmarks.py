"""Results of load generators: vLLM's and LLMServingSim's bench, aiperf, genai-perf, guidellm and inference-perf.

They saw the requests from the outside, as a client does, and name no clients.
"""

import math
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path

import msgspec

from fairsched.engines.logs.access.presets import preset
from fairsched.engines.logs.access.rows import Lines, Rows, json_rows
from fairsched.engines.workloads import TraceError

# --- vLLM's bench -----------------------------------------------------------------------------------------------------

_LISTS = ("input_lens", "output_lens", "ttfts", "itls", "start_times")
_DETAILS = (
    "a list each, as `vllm bench serve` of 2026 or later writes them with --save-detailed (an older one, and SGLang's, "
    "tells no start times unless --request-rate is inf: run it so, or read the server's log of requests)"
)


def _starts(found: object) -> list[float] | None:
    """Return when requests were sent at an endless rate: at once, or in their order as the ones before end."""
    took, slots = [], preset.inside(found, "max_concurrency")
    if str(preset.inside(found, "request_rate")) != "inf":
        return None
    for ttft, steps in zip(*(preset.items(preset.inside(found, name)) for name in ("ttfts", "itls")), strict=False):
        times = [ttft, *preset.items(steps)]
        took.append(sum(each for each in times if isinstance(each, int | float) and math.isfinite(each)))
    starts: list[float] = []
    ends: list[float] = []
    for each in took:
        starts.append(heappop(ends) if isinstance(slots, int) and len(ends) >= max(slots, 1) else 0.0)
        heappush(ends, starts[-1] + each)
    return starts


def _bench(path: Path, found: object) -> Iterator[preset.Dict]:
    lists = {name: preset.inside(found, name) for name in _LISTS}
    if lists["start_times"] is None:
        lists["start_times"] = _starts(found)
    missing = [name for name, values in lists.items() if not isinstance(values, list)]
    if missing:
        raise TraceError(path, None, ", ".join(missing), _DETAILS, "none")
    errors = preset.inside(found, "errors")
    lengths = {len(values) for values in (*lists.values(), errors) if isinstance(values, list)}
    if len(lengths) > 1:
        raise TraceError(path, None, ", ".join(_LISTS), "lists of one length", f"lengths {sorted(lengths)}")
    for place in range(lengths.pop()):
        of = {name: values[place] for name, values in lists.items() if isinstance(values, list)}
        error = errors[place] if isinstance(errors, list) else ""
        steps = of["itls"] if isinstance(of["itls"], list) else []
        timed = all(isinstance(each, int | float) for each in (of["ttfts"], *steps))
        answered = timed and not error
        yield {
            "start_times": of["start_times"],
            "ttfts": of["ttfts"] if answered else None,
            "latency": of["ttfts"] + sum(steps) if answered else None,
            "input_lens": of["input_lens"],
            "output_lens": of["output_lens"],
            "status": "error" if error else "ok",
            "model_id": preset.inside(found, "model_id"),
        }


VLLM_BENCH = preset.Preset(
    "vLLM bench",
    preset.has_keys("input_lens", "output_lens"),
    preset.whole_file(_bench),
    preset.columns(
        arrival=("start_times", "s"),
        ttft=("ttfts", "s"),
        latency=("latency", "s"),
        prompt_tokens="input_lens",
        output_tokens="output_lens",
        model="model_id",
        status="status",
    ),
    "JSON objects with the lists `input_lens` and `output_lens`",
    "run `vllm bench serve` with --save-result --save-detailed",
    "vllm bench serve 0.32.0",
    (
        "Where a result has no start times and an endless rate, requests are taken to be sent at once, or each when "
        "one of the max_concurrency before it ended.",
    ),
)

# --- LLMServingSim ----------------------------------------------------------------------------------------------------


def _llmservingsim(path: Path, lines: Lines) -> Rows:
    """Yield rows on one clock: that of the engine is set where a request was queued soonest after it came."""
    rows = list(json_rows(path, lines))
    pairs = [(row.get("queued_ts"), row.get("arrival_time")) for _, row in rows if isinstance(row, dict)]
    ahead = [at - came for at, came in pairs if isinstance(at, int | float) and isinstance(came, int | float)]
    set_by = min(ahead, default=0)
    for _, row in rows:
        for name in ("scheduled_ts", "first_token_ts", "last_token_ts"):
            if isinstance(row, dict) and isinstance(at := row.get(name), int | float):
                row[name] = at - set_by
    yield from rows


LLMSERVINGSIM = preset.Preset(
    "LLMServingSim bench",
    preset.has_keys("arrival_time", "queued_ts", "first_token_ts", "last_token_ts"),
    _llmservingsim,
    preset.columns(
        arrival=("arrival_time", "s"),
        first_token=("first_token_ts", "s"),
        end=("last_token_ts", "s"),
        prompt_tokens="input_toks",
        output_tokens="output_toks",
        request_id="request_id",
    ),
    "JSON lines with `arrival_time` and vLLM's `queued_ts`, `first_token_ts` and `last_token_ts`: `requests.jsonl`",
    "run LLMServingSim's bench",
    "none: made by hand in its form",
    ("Arrivals are on another clock than the engine's times, which are set where a request was queued soonest.",),
)

# --- genai-perf -------------------------------------------------------------------------------------------------------


def _genai_perf(path: Path, found: object) -> Iterator[preset.Dict]:
    is_told = False
    for experiment in preset.dicts(preset.inside(found, "experiments")):
        for request in preset.dicts(experiment.get("requests")):
            times, usage, first = preset.items(request.get("response_timestamps")), None, None
            for at, output in zip(times, preset.items(request.get("response_outputs")), strict=False):
                for piece in _pieces(preset.inside(output, "response")):
                    usage = preset.inside(piece, "usage") or usage
                    for choice in preset.dicts(preset.inside(piece, "choices")):
                        text = preset.inside(choice, "delta", "content") or choice.get("text")
                        first = at if first is None and text else first
            is_told |= usage is not None
            yield {
                "timestamp": request.get("timestamp"),
                "first": first if len(times) > 1 else None,
                "end": times[-1] if times else None,
                "prompt": preset.inside(usage, "prompt_tokens"),
                "cached": preset.inside(usage, "prompt_tokens_details", "cached_tokens"),
                "output": preset.inside(usage, "completion_tokens"),
            }
    if not is_told:
        said = 'answers with usage: genai-perf profile --extra-inputs \'{"stream_options": {"include_usage": true}}\''
        raise TraceError(path, None, None, said, "an export of genai-perf without tokens")


def _pieces(text: object) -> Iterator[object]:
    """Yield the JSON of an answer, or of events of a stream."""
    for line in str(text).splitlines():
        try:
            yield msgspec.json.decode(line.strip().removeprefix("data:"))
        except msgspec.DecodeError:
            continue


GENAI_PERF = preset.Preset(
    "genai-perf",
    preset.has_keys("experiments", any_of=("service_kind", "version", "experiment")),
    preset.whole_file(_genai_perf),
    preset.columns(
        arrival=("timestamp", "ns"),
        first_token=("first", "ns"),
        end=("end", "ns"),
        prompt_tokens="prompt",
        cached_tokens="cached",
        output_tokens="output",
    ),
    "one JSON object with `experiments`: `profile_export.json`",
    'run genai-perf profile with --streaming and --extra-inputs \'{"stream_options": {"include_usage": true}}\'',
    "none: made by hand in its form",
)

# --- aiperf -----------------------------------------------------------------------------------------------------------


def _aiperf(row: preset.Dict) -> Iterator[preset.Dict | None]:
    if preset.inside(row, "error") is not None:
        row["status"] = preset.inside(row, "error", "code") or preset.inside(row, "error", "type") or "error"
    elif preset.inside(row, "metadata", "was_cancelled"):
        row["status"] = "cancelled"
    for name, counted, seen in (
        ("prompt", "usage_prompt_tokens", "input_sequence_length"),
        ("output", "usage_completion_tokens", "output_sequence_length"),
    ):
        found = (preset.inside(row, "metrics", each, "value") for each in (counted, seen))
        row[name] = next((value for value in found if value is not None), None)
    metadata = row.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("worker_id", None)  # of aiperf, not of the server
    yield row


AIPERF = preset.Preset(
    "aiperf",
    lambda head: {"metadata", "metrics"} <= preset.keys(head) and "request_start_ns" in "".join(head),
    preset.each_line(_aiperf),
    preset.columns(
        arrival=("metadata.request_start_ns", "ns"),
        end=("metadata.request_end_ns", "ns"),
        ttft=("metrics.time_to_first_token.value", "ms"),
        prompt_tokens="prompt",
        cached_tokens="metrics.usage_prompt_cache_read_tokens.value",
        output_tokens="output",
        status="status",
        request_id="metadata.x_request_id",
    ),
    "JSON lines with `metadata` and `metrics`: `profile_export.jsonl`",
    "run aiperf with --export-level records (and --streaming for first tokens)",
    "aiperf 0.13.0 before vLLM 0.32.0",
)

# --- guidellm ---------------------------------------------------------------------------------------------------------


def _guidellm(path: Path, found: object) -> Iterator[preset.Dict | None]:
    for benchmark in preset.dicts(preset.inside(found, "benchmarks")):
        for group in ("successful", "incomplete", "errored"):
            for request in preset.dicts(preset.inside(benchmark, "requests", group)):
                timings = preset.inside(request, "info", "timings")
                if group != "successful" and preset.inside(timings, "request_start") is None:
                    yield None  # it waited for its turn when the benchmark ended
                    continue
                yield {
                    "request_start": preset.inside(timings, "request_start"),
                    "first_token": preset.inside(timings, "first_output_token_iteration")
                    or preset.inside(timings, "first_token_iteration"),
                    "request_end": preset.inside(timings, "request_end") or preset.inside(timings, "resolve_end"),
                    "prompt": preset.inside(request, "input_metrics", "total_tokens"),
                    "cached": preset.inside(request, "input_metrics", "cached_tokens"),
                    "output": preset.inside(request, "output_metrics", "total_tokens"),
                    "status": "ok" if group == "successful" else "cancelled" if group == "incomplete" else "error",
                    "request_id": request.get("request_id"),
                    "model": preset.inside(found, "config", "backend", "model"),
                }


GUIDELLM = preset.Preset(
    "guidellm",
    lambda head: preset.has_keys("metadata", any_of=("benchmarks", "config"))(head) and "guidellm" in "".join(head),
    preset.whole_file(_guidellm),
    preset.columns(
        arrival=("request_start", "s"),
        first_token=("first_token", "s"),
        end=("request_end", "s"),
        prompt_tokens="prompt",
        cached_tokens="cached",
        output_tokens="output",
        model="model",
        status="status",
        request_id="request_id",
    ),
    "one JSON object with `benchmarks` and `metadata`: `benchmarks.json`",
    "run guidellm with an output of kind json",
    "guidellm 0.8.1 before vLLM 0.32.0, less its statistics",
)

# --- inference-perf ---------------------------------------------------------------------------------------------------


def _inference_perf(path: Path, found: object) -> Iterator[preset.Dict]:
    for request in preset.dicts(found):
        answer = preset.inside(request, "info", "response_metrics")
        times = preset.inside(answer, "output_token_times")
        usage = preset.inside(answer, "server_usage")
        yield {
            "start_time": request.get("start_time"),
            "first_token": times[0] if isinstance(times, list) and times else None,
            "end_time": request.get("end_time"),
            "prompt": preset.inside(usage, "prompt_tokens")
            or preset.inside(request, "info", "request_metrics", "text", "input_tokens"),
            "cached": preset.inside(usage, "prompt_tokens_details", "cached_tokens"),
            "output": preset.inside(usage, "completion_tokens") or preset.inside(answer, "output_tokens"),
            "status": "ok"
            if request.get("error") is None
            else preset.inside(request, "error", "error_type") or "error",
        }


def _knows_inference_perf(head: Sequence[str]) -> bool:
    text = "".join(head)
    return head[0].lstrip().startswith("[") and all(f'"{key}"' in text for key in ("start_time", "request", "info"))


INFERENCE_PERF = preset.Preset(
    "inference-perf",
    _knows_inference_perf,
    preset.whole_file(_inference_perf),
    preset.columns(
        arrival=("start_time", "s"),
        first_token=("first_token", "s"),
        end=("end_time", "s"),
        prompt_tokens="prompt",
        cached_tokens="cached",
        output_tokens="output",
        status="status",
    ),
    "one JSON list of requests with `info`: `per_request_lifecycle_metrics.json`",
    "run inference-perf with report.request_lifecycle.per_request: true and api.streaming: true",
    "inference-perf 0.7.0 before vLLM 0.32.0",
)
