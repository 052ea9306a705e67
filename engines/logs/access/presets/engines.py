"""Logs of engines: vLLM's server log, and SGLang's request log and metrics file.

vLLM's server log says of a request when it was received, every piece of its answer and when that was complete, each on
a line of its own; a row is made when the last of them is there.  The tokens themselves are on lines of level DEBUG.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import msgspec

from fairsched.engines.logs.access.presets.preset import Dict, Preset, columns, each_line, has_keys, inside, keys
from fairsched.engines.logs.access.rows import Lines, Rows, json_object
from fairsched.engines.logs.access.values import YEAR
from fairsched.engines.workloads import TraceError

# --- vLLM -------------------------------------------------------------------------------------------------------------

_LINE = re.compile(
    r"(?:\([^)]*\) )?(?:DEBUG|INFO|WARNING|ERROR) (?P<at>(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?) "
    r"\[[^\]]*\] (?P<message>.*)"
)
_RECEIVED = re.compile(r"Received request (?P<id>\S+): (?P<parameters>.*)")
_MOST = re.compile(r"\bmax_tokens=(\d+)")
_PROMPT = re.compile(r"Request (?P<id>\S+) details: .*prompt_token_ids: (?P<tokens>\[[\d, ]*\])")
_BODY = re.compile(r"Request (?P<id>\S+) JSON body: (?P<body>.*)")
_PIECE = re.compile(
    r"Generated response (?P<id>\S+?)(?P<how> \(streaming \w+\))? details: output_token_ids: (?P<tokens>.*)"
)
_DONE = re.compile(
    r"Generated response (?P<id>\S+?)(?P<how> \(streaming \w+\))?: output: .*, finish_reason: (?P<why>\w+)"
)
_ABORTED = re.compile(r"(?:Request (?P<one>\S+) aborted|Aborted request\(s\) (?P<ids>[^.]+))\.?")
_IN_BODY = re.compile(r'"(user|model)":"((?:[^"\\]|\\.)*)"')
_INNER = re.compile(r"-[0-9a-f]{8}$")
"""What the engine adds to the id of a request."""
_WORDS = ("Received request", "Generated response", "details: prompt", "JSON body:", "borted")
_OPEN_MAX = 100_000


@attrs.define
class _Call:
    """What is known of a request so far."""

    number: int
    row: Dict
    output: int = 0
    first: str | None = None
    why: str | None = None


class _Calls:
    """The requests that have not ended."""

    def __init__(self) -> None:
        self._open: dict[str, _Call] = {}
        self._bodies: dict[str, str] = {}

    def line(self, number: int, at: str, message: str) -> Iterator[tuple[int, Dict]]:
        """Take a message in; yields the row of a request that it ends."""
        if not any(word in message for word in _WORDS):
            return
        if found := _BODY.match(message):
            self._bodies[found["id"]] = found["body"]
        elif found := _PROMPT.match(message):
            self._call(number, found["id"]).row["prompt_tokens"] = found["tokens"].count(",") + (
                found["tokens"] != "[]"
            )
        elif found := _RECEIVED.fullmatch(message):
            row = self._call(number, found["id"]).row
            most = _MOST.search(found["parameters"])
            row["received"], row["max_tokens"] = at, most and most[1]
            body = self._bodies.pop(found["id"], None) or self._bodies.pop(found["id"].partition("-")[2], "")
            row |= {name: msgspec.json.decode(f'"{text}"') for name, text in _IN_BODY.findall(body)}
        elif found := _PIECE.fullmatch(message):
            call = self._open.get(found["id"])
            if call is not None and found["tokens"].startswith("["):
                call.output += found["tokens"].count(",") + (found["tokens"] != "[]")
                call.first = call.first or (at if found["how"] else None)
        elif found := _DONE.fullmatch(message):
            if found["how"] != " (streaming delta)":
                yield from self._ended(found["id"], at, found["why"], str(bool(found["how"])))
            elif found["id"] in self._open and found["why"] != "None":
                self._open[found["id"]].why = found["why"]
        elif found := _ABORTED.fullmatch(message):
            for each in (found["one"] or found["ids"]).split(","):
                yield from self._ended(_INNER.sub("", each.strip()), at, "abort", None)

    def _call(self, number: int, identity: str) -> _Call:
        if len(self._open) >= _OPEN_MAX:  # their ends are in no log: the oldest is given up
            del self._open[next(iter(self._open))]
        return self._open.setdefault(identity, _Call(number, {"request_id": identity}))

    def _ended(self, identity: str, at: str, why: str, streamed: str | None) -> Iterator[tuple[int, Dict]]:
        call = self._open.pop(identity, None)
        if call is None or "received" not in call.row:
            return  # it was received before the log began
        status = (call.why or "finished") if why == "streaming_complete" else why
        most = call.row["max_tokens"]
        output = most if status == "length" and most else call.output or None
        said = {"first": call.first, "finished": at, "status": status, "stream": streamed}
        yield call.number, call.row | {"completion_tokens": output} | said


def _vllm_rows(path: Path, lines: Lines) -> Rows:
    calls = _Calls()
    for number, line in lines:
        if isinstance(line, TraceError):
            yield number, line
        elif line.startswith("{"):
            found = json_object(path, number, line)
            if isinstance(found, dict) and isinstance(message := found.get("message"), str):
                yield from calls.line(number, str(found.get("asctime")), message)
        elif found_line := _LINE.fullmatch(line):
            yield from calls.line(number, _dated(found_line["at"]), found_line["message"])


def _dated(at: str) -> str:
    """Return the time of a line; a date without a year is one of `YEAR`."""
    return at if at[4:5] == "-" else f"{YEAR}-{at}"


def _knows_vllm(head: Sequence[str]) -> bool:
    if {"asctime", "levelname", "message"} <= keys(head):
        return any("vllm" in line or "Received request" in line for line in head)
    return any(_LINE.fullmatch(line) for line in head)


VLLM_SERVER = Preset(
    "vLLM server log",
    _knows_vllm,
    _vllm_rows,
    columns(
        arrival="received",
        first_token="first",
        end="finished",
        prompt_tokens="prompt_tokens",
        output_tokens="completion_tokens",
        max_output_tokens="max_tokens",
        model="model",
        status="status",
        streamed="stream",
        request_id="request_id",
    ),
    "vLLM's log lines, as text or JSON",
    "start vLLM with --enable-log-requests --enable-log-outputs --logging-config.log_level DEBUG "
    "--logging-config.formatter json (text has whole seconds without a year), or, better, read its spans: "
    "--otlp-traces-endpoint",
    "vLLM 0.32.0 on CPU",
    (
        "vLLM's log leaves out pieces of an answer that have no text: a streamed answer that stopped by itself may be "
        "some tokens longer, and have begun earlier, than is read.",
    ),
)

# --- SGLang -----------------------------------------------------------------------------------------------------------

_FINISHED, _RECEIVED_EVENT = "request.finished", "request.received"
_STAMPED = re.compile(r"(?:\[[^\]]*\] )?(?P<json>\{.*\})")
_PLAIN_REQUEST = re.compile(r"(?:\[[^\]]*\] )?(?:Receive|Finish): obj=")


def _sglang_row(meta: Dict, parameters: object, headers: object, at: object) -> Dict:
    """Return a row of what SGLang says of a finished request, with what came with it."""
    row = dict(meta)
    row["max_new_tokens"] = inside(parameters, "sampling_params", "max_new_tokens")
    streamed = inside(parameters, "stream")
    row["stream"] = streamed
    if streamed is False:
        row["first_token_latency"] = None
    row["status"] = inside(meta, "finish_reason", "type")
    if isinstance(headers, dict):
        row["headers"] = headers
        row["client"] = next(iter(headers.values())) if len(headers) == 1 else None
    row["logged_at"] = at
    return row


def _sglang_log(path: Path, lines: Lines) -> Rows:
    for number, line in lines:
        if isinstance(line, TraceError):
            yield number, line
            continue
        found = _STAMPED.fullmatch(line)
        if found is None or _FINISHED not in line:
            continue
        event = json_object(path, number, found["json"])
        if isinstance(event, TraceError):
            yield number, event
        elif event.get("event") == _FINISHED and isinstance(meta := inside(event, "out", "meta_info"), dict):
            yield number, _sglang_row(meta, event.get("obj"), event.get("headers"), event.get("timestamp"))


def _sglang_metrics(row: Dict) -> Iterator[Dict]:
    try:
        parameters = msgspec.json.decode(str(row.pop("request_parameters", None)))
    except msgspec.DecodeError:
        parameters = None
    yield _sglang_row(row, parameters, inside(parameters, "custom_labels"), None)


_SGLANG = columns(
    arrival=("request_received_ts", "s"),
    ttft=("first_token_latency", "s"),
    latency=("e2e_latency", "s"),
    queue=("queue_time", "s"),
    prompt_tokens="prompt_tokens",
    cached_tokens="cached_tokens",
    output_tokens="completion_tokens",
    max_output_tokens="max_new_tokens",
    status="status",
    streamed="stream",
    request_id="id",
)
_SGLANG_SAMPLE = "SGLang 0.5.23: its logger, exporter and time statistics, around a scheduler that was played (no GPU)"

SGLANG_REQUESTS = Preset(
    "SGLang request log",
    lambda head: (
        any(_STAMPED.fullmatch(line) and f'"{_RECEIVED_EVENT}' in line for line in head)
        or any(_STAMPED.fullmatch(line) and f'"{_FINISHED}"' in line for line in head)
    ),
    _sglang_log,
    _SGLANG,
    "JSON lines with the events `request.received` and `request.finished`",
    "start SGLang with --log-requests --log-requests-level 1 --log-requests-format json --enable-metrics, and with "
    "SGLANG_LOG_REQUEST_HEADERS=x-client for names of clients",
    _SGLANG_SAMPLE,
)
SGLANG_METRICS = Preset(
    "SGLang metrics file",
    has_keys("request_parameters", "e2e_latency"),
    each_line(_sglang_metrics),
    _SGLANG,
    "JSON lines with `request_parameters` and `e2e_latency`",
    "start SGLang with --enable-metrics --export-metrics-to-file",
    _SGLANG_SAMPLE,
)
