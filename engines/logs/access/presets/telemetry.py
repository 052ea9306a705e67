"""Logs that any program may write: OpenTelemetry's spans of GenAI calls as OTLP JSON, and LiteLLM's payload.

Of spans only those count that say tokens or name a GenAI operation; a trace has many others.
"""

from collections.abc import Iterator

from fairsched.engines.logs.access.presets.preset import Dict, Preset, columns, dicts, each_line, has_keys, inside
from fairsched.engines.logs.access.values import is_null

# --- OpenTelemetry ----------------------------------------------------------------------------------------------------

_CALLS = frozenset({"chat", "text_completion", "generate_content"})
_PROMPT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens")
_TTFT = (
    *("gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk"),
    *("gen_ai.server.time_to_first_token",),
)
_CACHED = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens")
_USER = ("user.id", "gen_ai.request.user")


def _value(value: object) -> object:
    """Return what OTLP wraps: {"intValue": "7"} is 7."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    kind, found = next(iter(value.items()))
    if kind == "intValue" and isinstance(found, str):
        return int(found) if found.lstrip("-").isdecimal() else None
    return found if kind in ("intValue", "doubleValue", "stringValue", "boolValue") else None


def _attributes(found: object) -> Dict:
    return {str(each.get("key")): _value(each.get("value")) for each in dicts(found)}


def _any(said: Dict, names: tuple[str, ...]) -> object:
    return next((said[name] for name in names if not is_null(said.get(name))), None)


def _spans(export: Dict) -> Iterator[Dict | None]:
    for of_resource in dicts(export.get("resourceSpans")):
        resource = _attributes(inside(of_resource, "resource", "attributes"))
        for of_scope in dicts(of_resource.get("scopeSpans")):
            for span in dicts(of_scope.get("spans")):
                yield _span(span, resource)


def _span(span: Dict, resource: Dict) -> Dict | None:
    said = _attributes(span.get("attributes"))
    operation = said.get("gen_ai.operation.name")
    prompt = _any(said, _PROMPT)
    if operation not in _CALLS if operation is not None else prompt is None:
        return None
    server = span.get("kind") in (2, "SPAN_KIND_SERVER")
    name = resource.get("service.instance.id") or resource.get("service.name")
    failed = inside(span, "status", "code") in (2, "STATUS_CODE_ERROR")
    row = {
        "startTimeUnixNano": span.get("startTimeUnixNano"),
        "endTimeUnixNano": span.get("endTimeUnixNano"),
        "ttft": _any(said, _TTFT),
        "queue": said.get("gen_ai.latency.time_in_queue"),
        "input_tokens": prompt,
        "output_tokens": _any(said, _OUTPUT),
        "cached_tokens": _any(said, _CACHED),
        "max_tokens": said.get("gen_ai.request.max_tokens"),
        "tenant": said.get("tenant.id"),
        "user": _any(said, _USER),
        "end_user": said.get("enduser.id"),
        "service": None if server else resource.get("service.name"),
        "server": name if server else said.get("server.address"),
        "model": said.get("gen_ai.response.model") or said.get("gen_ai.request.model"),
        "status": said.get("error.type") or "error" if failed else "ok",
        "stream": said.get("gen_ai.request.stream"),
    }
    return {name: value for name, value in row.items() if value is not None}


OTLP = Preset(
    "OpenTelemetry GenAI spans",
    has_keys("resourceSpans"),
    each_line(_spans),
    columns(
        arrival=("startTimeUnixNano", "ns"),
        end=("endTimeUnixNano", "ns"),
        ttft=("ttft", "s"),
        queue=("queue", "s"),
        prompt_tokens="input_tokens",
        cached_tokens="cached_tokens",
        output_tokens="output_tokens",
        max_output_tokens="max_tokens",
        worker="server",
        model="model",
        status="status",
        streamed="stream",
    ),
    "`resourceSpans`, as OTLP's JSON file exporters and the collector's write them",
    "export spans whose attributes have gen_ai.usage.input_tokens and gen_ai.usage.output_tokens (vLLM: "
    "--otlp-traces-endpoint)",
    "OpenTelemetry SDK 1.45.2, its OTLP JSON file exporter 0.66b1 and OpenAI instrumentation 2.4b0 before vLLM 0.32.0",
)

# --- LiteLLM ----------------------------------------------------------------------------------------------------------


def _litellm(row: Dict) -> Iterator[Dict | None]:
    if row.get("call_type") not in (None, "completion", "acompletion", "text_completion", "atext_completion"):
        yield None
        return
    streamed = row.get("stream")
    if streamed is None:
        streamed = inside(row, "model_parameters", "stream")
    row["stream"] = streamed
    if streamed is False or row.get("completionStartTime") == row.get("endTime"):
        row["completionStartTime"] = None  # it is the end, where an answer comes whole
    if row.get("status") == "failure":
        row["status"] = inside(row, "error_information", "error_code") or "failure"
        row["completionStartTime"] = None
    yield row


LITELLM = Preset(
    "LiteLLM",
    has_keys("startTime", "endTime", "completionStartTime"),
    each_line(_litellm),
    columns(
        arrival="startTime",
        first_token="completionStartTime",
        end="endTime",
        prompt_tokens="prompt_tokens",
        cached_tokens="metadata.usage_object.prompt_tokens_details.cached_tokens",
        output_tokens="completion_tokens",
        max_output_tokens="model_parameters.max_tokens",
        worker="api_base",
        model="model",
        status="status",
        streamed="stream",
        request_id="litellm_call_id",
    ),
    "`startTime`, `endTime` and `completionStartTime` as keys: the standard logging payload, or rows of its spend log",
    "write `standard_logging_object` as JSON lines in a callback (it is in the reference of access logs)",
    "LiteLLM proxy 1.106.2 before vLLM 0.32.0, less prompts, answers and prices",
)
