"""What is told of calls: a request id from caller to server and log, lines of JSON, and spans with their parents."""

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.gateway.config import ClientConfig
from fairsched.engines.gateway.operations import CALLS, begun, current
from fairsched.engines.gateway.operations.calls import JsonFormatter
from tests.support.adapters.gateway_processes import ROOT, ask, caller, server, servers_text
from tests.support.adapters.gateway_scenarios import Fake, World, world
from tests.support.adapters.http import served
from tests.support.adapters.loops import in_loop

CLIENTS = {"a": ClientConfig()}
BODY = {"prompt": "hello", "max_tokens": 3}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Told(Fake):
    """A server that remembers the headers of calls."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.headers: list[dict[str, str]] = []
        self.app.middlewares.append(self._remember)

    @web.middleware
    async def _remember(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.method == "POST":
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
        response: web.StreamResponse = await handler(request)
        return response


async def sent(here: World, **headers: str) -> Any:
    """A call of client a."""
    return await here.http.post("/v1/completions", json=BODY, headers={"x-client": "a", **headers})


@in_loop
async def test_a_call_has_one_id_from_its_caller_to_its_server() -> None:
    """The caller's own is kept and returned, and its server is told it with what makes it no other's; a call without
    one, or with one that is no plain word, gets a new one, also where it is refused, and on a connection that had
    another before."""
    fake = Told()
    async with served(fake.app) as url, world(url) as here:
        answer = await sent(here, **{"x-request-id": "mine-1"})
        assert answer.headers.getall("x-request-id") == ["mine-1"]
        await sent(here, **{"x-request-id": "mine-1"})
        told = {headers["x-request-id"] for headers in fake.headers}
        assert len(told) == 2
        assert all(each.startswith("mine-1-") for each in told)
        ids = {"mine-1"}
        for odd in ("", "two words", "x" * 129, "é"):
            answer = await sent(here, **{"x-request-id": odd})
            (request_id,) = answer.headers.getall("x-request-id")
            assert fake.headers[-1]["x-request-id"].startswith(f"{request_id}-")
            assert request_id not in ids
            ids.add(request_id)
        refused = await here.http.post("/v1/completions", content=b"{", headers={"x-client": "a"})
        assert refused.status == 400
        assert refused.headers["x-request-id"] not in ids
        assert "x-request-id" not in (await here.http.get("/healthz")).headers


@given(st.text(max_size=200))
def test_an_id_is_always_a_plain_word(given_id: str) -> None:
    """Whatever a caller sends, what is forwarded and logged is of visible ASCII characters, at most 128 of them."""
    record = begun("POST", "/v1/completions", {"x-request-id": given_id})
    assert 1 <= len(record.request_id) <= 128
    assert all("!" <= mark <= "~" for mark in record.request_id)
    assert current() is record


@given(st.text(st.characters(codec=None), max_size=50), st.text(st.characters(codec=None), max_size=50))
def test_a_line_of_json_is_one_line(message: str, client: str) -> None:
    """Line breaks, escapes and halves of surrogate pairs in what callers send make no second line and no error."""
    call = begun("POST", "/v1/completions", {})
    call.client = client
    record = logging.LogRecord("fairsched.gateway", logging.WARNING, "", 0, message.replace("%", "%%"), (), None)
    record.call = call
    line = JsonFormatter().format(record)
    assert not {"\n", "\r", "\x1b"} & set(line)
    assert json.loads(line)["request_id"] == call.request_id


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """The lines of calls, as they are written in JSON."""
    found: list[dict[str, Any]] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(json.loads(JsonFormatter().format(record)))

    handler, level = Kept(), CALLS.level
    CALLS.addHandler(handler)
    CALLS.setLevel(logging.INFO)
    yield found
    CALLS.removeHandler(handler)
    CALLS.setLevel(level)


@in_loop
async def test_each_call_has_a_line(lines: list[dict[str, Any]]) -> None:
    """Client, server, status, wait and tokens are those of the call; a call that waits for another says how long."""
    fake = Told(tokens=3, held=True)
    async with served(fake.app) as url, world(url, window_requests=1, clients=CLIENTS) as here:
        calls = [asyncio.ensure_future(sent(here)) for _ in range(2)]
        async with asyncio.timeout(60):
            while not (fake.running and here.account.window.waiting):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        fake.answers.set()
        answers = await asyncio.gather(*calls)
        assert (await here.http.post("/v1/completions", json={"prompt": []}, headers={"x-client": "a"})).status == 400
    assert {line["request_id"] for line in lines[:2]} == {answer.headers["x-request-id"] for answer in answers}
    assert [(line["client"], line["server"], line["status"], line["tries"]) for line in lines[:2]] == [
        ("a", url, 200, 1)
    ] * 2
    assert max(line["wait_seconds"] for line in lines) >= 0.2 > min(line["wait_seconds"] for line in lines)
    assert all(line["seconds"] >= line["wait_seconds"] for line in lines)
    assert [line["output_tokens"] for line in lines] == [3, 3, None]
    assert lines[2]["status"] == 400


@in_loop
async def test_a_gateway_of_two_processes_logs_json(tmp_path: Path) -> None:
    """With `--log-format json` every line on standard error is JSON, those of calls from the processes that served
    them, with the id that the caller saw."""
    path = tmp_path / "gateway.toml"
    with server() as (_, one):
        path.write_text(
            'listen = "127.0.0.1:0"\nidentify = "header"\nunknown_clients = "own"\n' + servers_text([one], 5000)
        )
        program = "import sys; from fairsched.cli import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", program, "gateway", str(path), "--processes", "2", "--log-format", "json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as started:
            try:
                assert started.stdout is not None
                url = "http://" + started.stdout.readline().partition("http://")[2].split()[0]
                async with caller(url) as http:
                    assert (await ask(http, "a", 2)).whole
                started.terminate()
                _, said = await asyncio.to_thread(started.communicate, timeout=60)
            finally:
                started.kill()
    told = [json.loads(line) for line in said.splitlines()]
    (call,) = [line for line in told if line["logger"] == "fairsched.gateway.calls"]
    assert (call["status"], call["output_tokens"], call["server"]) == (200, 2, one)


@in_loop
async def test_a_span_joins_its_callers_trace_and_its_servers() -> None:
    """Of the caller's trace, with the caller's span as parent and itself as that of the server; its attributes are the
    call's, and a call that fails is an error."""
    pytest.importorskip("opentelemetry.sdk", reason="the extra `traces` is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from fairsched.engines.gateway.operations.traces import Tracing

    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    fake = Told(tokens=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairsched.engines.gateway.gateway._tracing", lambda: Tracing(provider))
        async with served(fake.app) as url, world(url, clients=CLIENTS, traces=True) as here:
            await sent(here, traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="a=b")
            await sent(here)
            fake.status = 500
            await sent(here)
    joined, own, failed = kept.get_finished_spans()
    assert joined.parent is not None
    assert (f"{joined.context.trace_id:032x}", f"{joined.parent.span_id:016x}") == (TRACE, PARENT)
    assert fake.headers[0]["traceparent"] == f"00-{TRACE}-{joined.context.span_id:016x}-01"
    assert fake.headers[0]["tracestate"] == "a=b"
    assert own.parent is None
    assert f"{own.context.trace_id:032x}" in fake.headers[1]["traceparent"]
    assert joined.attributes is not None
    said = dict(joined.attributes)
    assert said["fairsched.client"] == "a"
    assert said["gen_ai.usage.output_tokens"] == 3
    assert said["server.address"] == url
    assert said["http.response.status_code"] == 200
    assert (joined.status.is_ok, failed.status.is_ok) == (True, False)


@in_loop
async def test_without_traces_a_callers_context_passes_as_it_came() -> None:
    """Nothing of OpenTelemetry is loaded, and the server is the caller's child."""
    fake = Told()
    async with served(fake.app) as url, world(url) as here:
        given_parent = f"00-{TRACE}-{PARENT}-01"
        await sent(here, traceparent=given_parent)
    assert fake.headers[-1]["traceparent"] == given_parent
    program = "import sys, fairsched.engines.gateway.app; print(any('opentelemetry' in name for name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.strip() == "False"
