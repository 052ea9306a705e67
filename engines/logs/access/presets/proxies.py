"""Access logs of proxies: nginx and Envoy, as text or JSON.

Neither knows tokens unless it is told to look for them in answers; the recipes are in
`docs/reference/access-logs.md`.  The time of a first token is that of the first bytes of a streamed answer's body:
headers come before, and an answer that is not streamed comes whole.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from fairsched.engines.logs.access.presets.preset import Dict, Preset, columns, each_line, has_keys
from fairsched.engines.logs.access.rows import Lines, Rows
from fairsched.engines.logs.access.values import is_null
from fairsched.engines.workloads import TraceError

Matched = Callable[[str], re.Match[str] | None]

_CALLER_GONE = "499"
_TEXT = r'(?:[^"\\]|\\.)*'
_PAIR = re.compile(rf'([A-Za-z_][\w.-]*)[=:](?:"({_TEXT})"|(\S*?))(?=[,\s]|$)')


def _quoted(name: str) -> str:
    return rf'"(?P<{name}>{_TEXT})"'


def _pairs(text: str) -> Dict:
    """Return what is written as `key=value` or `key="value"`."""
    return {found[1]: found[2] if found[2] is not None else found[3] for found in _PAIR.finditer(text)}


def _streamed(row: Dict, types: Sequence[str]) -> None:
    """Say whether the answer was streamed, by its type; a whole answer has no first token."""
    kind = next((row[name] for name in types if not is_null(row.get(name))), None)
    if kind is None:
        return
    streamed = "event-stream" in str(kind)
    row["streamed"] = str(streamed).lower()
    if not streamed:
        row["ttft"] = row["ttft_ms"] = None


def _first_of(row: Dict, names: Sequence[str]) -> object:
    return next((row[name] for name in names if not is_null(row.get(name))), None)


def _each_text(matched: Matched, row_of: Callable[[Dict], Iterable[Dict | None]], expected: str) -> Callable[..., Rows]:
    """Return what reads lines of text, and what stands behind them as pairs, into rows."""

    def read(path: Path, lines: Lines) -> Rows:
        for number, line in lines:
            found = line if isinstance(line, TraceError) else matched(line)
            if isinstance(found, TraceError):
                yield number, found
            elif found is None:
                yield number, TraceError(path, number, None, expected, line)
            else:
                groups: Dict = dict(found.groupdict(default=""))
                for row in row_of(groups | _pairs(str(groups.pop("rest")))):
                    yield number, row

    return read


def _most(matched: Matched) -> Callable[[Sequence[str]], bool]:
    """Return what recognises a log by more than half of its first lines."""
    return lambda head: sum(matched(line) is not None for line in head) * 2 > len(head)


# --- nginx ------------------------------------------------------------------------------------------------------------

_COMBINED = re.compile(
    r"(?P<remote_addr>\S+) \S+ (?P<remote_user>.+?) \[(?P<time_local>[^\]]+)\] "
    rf"{_quoted('request')} (?P<status>\d{{3}}) (?P<body_bytes_sent>\d+|-)"
    rf"(?: {_quoted('http_referer')} {_quoted('http_user_agent')})?(?P<rest>.*)"
)
_SHORT = {
    "rt": "request_time",
    "uct": "upstream_connect_time",
    "uht": "upstream_header_time",
    "urt": "upstream_response_time",
    "ut": "upstream_response_time",
    "ua": "upstream_addr",
    "us": "upstream_status",
    "done": "request_completion",
}
"""What logs call nginx's variables for short, as NGINX Amplify's format does."""
_TIMES = ("msec", "time_iso8601", "time_local", "time")


def _nginx(row: Dict) -> Iterator[Dict | None]:
    """Yield a row by nginx's own names of variables."""
    row = {_SHORT.get(key, key): value for key, value in row.items()}
    request = row.get("request")
    if row.get("request_method", str(request).partition(" ")[0] if request else "POST") != "POST":
        yield None
        return
    row["end"] = _first_of(row, _TIMES)
    upstream = row.get("upstream_addr")
    if isinstance(upstream, str):  # that which answered, of all that were tried
        row["upstream_addr"] = upstream.replace(" : ", ", ").rpartition(", ")[2]
    if row.get("request_completion") == "" and str(row.get("status")).startswith("2"):
        row["status"] = _CALLER_GONE
    _streamed(row, ("type", "content_type", "sent_http_content_type", "upstream_http_content_type"))
    yield row


_NGINX = columns(
    end="end",
    latency=("request_time", "s"),
    ttft=("ttft", "s"),
    prompt_tokens="prompt_tokens",
    output_tokens="completion_tokens",
    worker="upstream_addr",
    status="status",
    streamed="streamed",
    request_id="request_id",
)
_NGINX_ASKS = (
    "log $request_time, and the tokens of answers, which nginx reads with njs (a log_format of both is in the how-to "
    "page on audits)"
)
_NGINX_SAMPLE = "nginx 1.22.1 (njs 0.7.9) before vLLM 0.32.0"

NGINX_TEXT = Preset(
    "nginx, text",
    _most(_COMBINED.fullmatch),
    _each_text(_COMBINED.fullmatch, _nginx, "a line of nginx: combined, and key=value pairs behind it"),
    _NGINX,
    "lines as of the format `combined`, with or without `key=value` pairs behind it",
    _NGINX_ASKS,
    _NGINX_SAMPLE,
)
NGINX_JSON = Preset(
    "nginx, JSON",
    has_keys("request_time", "status", any_of=("upstream_response_time", "upstream_addr", "remote_addr", "msec")),
    each_line(_nginx),
    _NGINX,
    "`request_time`, `status` and another of nginx's variables as keys",
    _NGINX_ASKS,
    _NGINX_SAMPLE,
)

# --- Envoy ------------------------------------------------------------------------------------------------------------

_ENVOY_LINE = re.compile(
    rf"\[(?P<start_time>[^\]]+)\] {_quoted('request')} (?P<response_code>\d+) (?P<response_flags>\S+) "
    r"(?P<details>.*?)(?P<bytes_received>\d+) (?P<bytes_sent>\d+) (?P<duration>\d+) (?P<service_time>\d+|-) "
    rf"{_quoted('x_forwarded_for')} {_quoted('user_agent')} {_quoted('x_request_id')} {_quoted('authority')} "
    rf"{_quoted('upstream_host')}(?P<rest>.*)"
)


def _envoy(row: Dict) -> Iterator[Dict | None]:
    method = row.get("method") or row.get(":method") or str(row.get("request") or "POST").partition(" ")[0]
    if method != "POST":
        yield None
        return
    row["session"] = row.get("session.id")
    row["downstream_remote_address"] = str(row.get("downstream_remote_address") or "").rpartition(":")[0]  # its port
    code = row.get("response_code")
    row["status"] = _CALLER_GONE if "DC" in str(row.get("response_flags")).split(",") else code
    _streamed(row, ("content_type", "content-type", "response_content_type"))
    yield row


_ENVOY = columns(
    arrival="start_time",
    latency=("duration", "ms"),
    ttft=("ttft_ms", "ms"),
    prompt_tokens="gen_ai.usage.input_tokens",
    output_tokens="gen_ai.usage.output_tokens",
    worker="upstream_host",
    model="gen_ai.request.model",
    status="status",
    streamed="streamed",
    request_id="x-request-id",
)
_ENVOY_ASKS = (
    "log tokens from dynamic metadata, as the AI gateway's access log does (a json_format that needs no gateway is in "
    "the reference of access logs)"
)
_ENVOY_SAMPLE = "Envoy 1.40.0 before vLLM 0.32.0"

ENVOY_TEXT = Preset(
    "Envoy, text",
    _most(_ENVOY_LINE.match),
    _each_text(_ENVOY_LINE.match, _envoy, "a line of Envoy's default format"),
    _ENVOY,
    "lines as of Envoy's default format, with or without `key=value` pairs behind it",
    _ENVOY_ASKS,
    _ENVOY_SAMPLE,
)
ENVOY_JSON = Preset(
    "Envoy, JSON",
    has_keys("start_time", "duration", "response_code"),
    each_line(_envoy),
    _ENVOY,
    "`start_time`, `duration` and `response_code` as keys, as Envoy, its AI gateway and Istio write them",
    _ENVOY_ASKS,
    f"{_ENVOY_SAMPLE}, with the AI gateway's fields",
)
