"""The picker over gRPC on loopback, spoken to as Envoy does: ways of sending bodies, refusals, ends, and health."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

grpc = pytest.importorskip("grpc")
pytest.importorskip("envoy.service.ext_proc.v3.external_processor_pb2")
pytest.importorskip("grpc_health")

from envoy.config.core.v3 import base_pb2  # noqa: E402
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc  # noqa: E402
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as ext_proc_grpc  # noqa: E402
from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402

from fairsched.engines.adapters.endpoint_picker import Picker  # noqa: E402
from fairsched.engines.adapters.endpoint_picker.config import EndpointPool, PickerConfig, PickerLimits  # noqa: E402
from fairsched.engines.adapters.endpoint_picker.server import SERVICE, PickerServer  # noqa: E402
from fairsched.engines.gateway.config import StoreConfig  # noqa: E402

pytestmark = pytest.mark.integration

A, B = "127.0.0.1:1", "127.0.0.1:2"
DESTINATION = "x-gateway-destination-endpoint"
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 40}], "max_tokens": 20}).encode()
"""A call of 18 tokens by estimate and 20 of output: of two at an endpoint less than an eighth of its window is left."""
CONFIG = PickerConfig(
    EndpointPool(80, endpoints=(A, B)),
    listen="127.0.0.1:0",
    limits=PickerLimits(waiting_per_client=2, wait_seconds=5.0),
)
Work = Callable[[PickerServer, Any], Awaitable[None]]
FULL = ext_proc.ProtocolConfiguration(request_body_mode=4, response_body_mode=4)
BUFFERED = ext_proc.ProtocolConfiguration(request_body_mode=2, response_body_mode=1)
NO_BODIES = ext_proc.ProtocolConfiguration(request_body_mode=0, response_body_mode=0)


def headers(ends: bool = False, **values: str) -> Any:
    """A message of headers."""
    listed = [
        base_pb2.HeaderValue(key=key.replace("__", ":").replace("_", "-"), raw_value=value.encode())
        for key, value in values.items()
    ]
    return ext_proc.HttpHeaders(headers=base_pb2.HeaderMap(headers=listed), end_of_stream=ends)


def request(config: Any, client: str = "a", ends: bool = False, method: str = "POST", **more: str) -> Any:
    """A call's headers."""
    said = headers(ends, __method=method, x_gateway_inference_fairness_id=client, **more)
    return ext_proc.ProcessingRequest(request_headers=said, protocol_config=config)


def body(data: bytes, ends: bool = True) -> Any:
    """A piece of a call's body."""
    return ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=data, end_of_stream=ends))


def answer(status: str = "200", kind: str = "application/json", ends: bool = False) -> Any:
    """An answer's headers."""
    return ext_proc.ProcessingRequest(response_headers=headers(ends, __status=status, content_type=kind))


def answer_body(data: bytes, ends: bool = True) -> Any:
    """A piece of an answer's body."""
    return ext_proc.ProcessingRequest(response_body=ext_proc.HttpBody(body=data, end_of_stream=ends))


def destination(response: Any) -> str:
    """The endpoint that a response picks: the header and the metadata say the same."""
    part = getattr(response, response.WhichOneof("response")).response
    (option,) = part.header_mutation.set_headers
    assert option.header.key == DESTINATION
    picked: str = option.header.raw_value.decode()
    assert response.dynamic_metadata["envoy.lb"][DESTINATION] == picked
    assert part.clear_route_cache
    return picked


class Envoy:
    """One HTTP call's stream."""

    def __init__(self, stub: Any) -> None:
        self.call = stub.Process()

    async def say(self, *messages: Any) -> None:
        """Send messages."""
        for message in messages:
            await self.call.write(message)

    async def hear(self) -> Any:
        """The next answer."""
        return await asyncio.wait_for(self.call.read(), 10)

    async def done(self) -> None:
        """The call is over."""
        await self.call.done_writing()
        assert await self.hear() is grpc.aio.EOF

    async def buffered(self, client: str = "a", data: bytes = CHAT) -> Any:
        """A call whose body comes at once; the answer to it."""
        await self.say(request(BUFFERED, client))
        assert not (await self.hear()).request_headers.HasField("response")
        await self.say(body(data))
        return await self.hear()


def run(work: Work, config: PickerConfig = CONFIG) -> None:
    """Run it with a server and a stub; at the end nothing waits or is in flight."""

    async def main() -> None:
        server = PickerServer(Picker(config))
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                await work(server, channel)
            await until(lambda: (server.picker.window.waiting, server.picker.window.in_flight_tokens) == (0, 0))
        finally:
            await server.stop()

    asyncio.run(main())


def served(config: PickerConfig = CONFIG) -> Callable[[Work], Callable[[], None]]:
    """Run the test as `run` does."""
    return lambda work: lambda: run(work, config)


async def until(said: Callable[[], bool]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(10):
        while not said():
            await asyncio.sleep(0.005)


def stub(channel: Any) -> Any:
    """The external processor."""
    return ext_proc_grpc.ExternalProcessorStub(channel)


def client_of(server: PickerServer, name: str = "a") -> tuple[int, int]:
    """Tokens of prompts and outputs that a client was charged."""
    found = server.picker.status()["clients"][name]
    return found["prompt_tokens"], found["output_tokens"]


@served()
async def test_a_call_whose_body_comes_at_once(server: PickerServer, channel: Any) -> None:
    """The endpoint is said with the body; the answer's usage is charged; the place is free at its end."""
    envoy = Envoy(stub(channel))
    picked = await envoy.buffered()
    assert picked.WhichOneof("response") == "request_body"
    assert destination(picked) in (A, B)
    assert server.picker.window.in_flight_tokens == 38
    usage = {"prompt_tokens": 30, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 18}}
    await envoy.say(answer(), answer_body(json.dumps({"usage": usage}).encode()))
    assert (await envoy.hear()).WhichOneof("response") == "response_headers"
    passed = await envoy.hear()
    assert passed.WhichOneof("response") == "response_body"
    assert not passed.response_body.HasField("response")
    assert server.picker.window.in_flight_tokens == 0
    await envoy.done()
    assert client_of(server) == (12, 7)


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_call_whose_body_streams_both_ways(pieces: int) -> None:
    """Nothing is answered before the body is whole; then come the headers with the endpoint and the body as it was, in
    pieces that Envoy takes.  The stream of events passes byte for byte, and its tokens are charged."""
    data = CHAT[:-1] + b', "pad": "' + b"y" * 150_000 + b'"}'
    events = [b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'] * 5
    events += [
        b'data: {"choices": [], "usage": {"prompt_tokens": 22, "completion_tokens": 6}}\n\n',
        b"data: [DONE]\n\n",
    ]

    async def work(server: PickerServer, channel: Any) -> None:
        envoy = Envoy(stub(channel))
        size = -(-len(data) // pieces)
        cut = [data[start : start + size] for start in range(0, len(data), size)]
        await envoy.say(request(FULL), *(body(each, each is cut[-1]) for each in cut))
        assert destination(await envoy.hear()) in (A, B)
        back, ends = b"", False
        while not ends:
            piece = (await envoy.hear()).request_body.response.body_mutation.streamed_response
            assert len(piece.body) <= 64 << 10
            back, ends = back + piece.body, piece.end_of_stream
        assert back == data
        await envoy.say(answer(kind="text/event-stream"))
        assert (await envoy.hear()).WhichOneof("response") == "response_headers"
        for each in events:
            await envoy.say(answer_body(each, each is events[-1]))
            piece = (await envoy.hear()).response_body.response.body_mutation.streamed_response
            assert (piece.body, piece.end_of_stream) == (each, each is events[-1])
        await envoy.done()
        assert client_of(server) == (22, 6)

    run(work)


@served(PickerConfig(CONFIG.pool, listen=CONFIG.listen, default_output_tokens=40))
async def test_a_call_of_which_only_headers_are_seen(server: PickerServer, channel: Any) -> None:
    """The endpoint is said with the headers, by the length that they say; at the end what is declared by default is
    charged, and the place free."""
    envoy = Envoy(stub(channel))
    await envoy.say(request(NO_BODIES, content_length="80"))
    assert destination(await envoy.hear()) in (A, B)
    assert server.picker.window.in_flight_tokens == 20 + 40
    await envoy.say(answer())
    await envoy.hear()
    assert server.picker.window.in_flight_tokens == 20 + 40
    await envoy.done()
    assert client_of(server) == (20, 40)
    models = Envoy(stub(channel))
    await models.say(request(FULL, ends=True, method="GET"))
    assert destination(await models.hear()) in (A, B)
    await models.say(answer(), answer_body(b'{"data": []}'))
    await models.hear()
    await models.hear()
    await models.done()


@served()
async def test_a_buffered_body_is_answered_at_once_also_before_trailers(server: PickerServer, channel: Any) -> None:
    """Envoy holds the trailers back until the body was answered, and says that the body does not end the call; and a
    body of more than gRPC's 4 MiB is one message, too."""
    envoy = Envoy(stub(channel))
    await envoy.say(request(BUFFERED))
    await envoy.hear()
    large = CHAT[:-1] + b', "pad": "' + b"y" * (5 << 20) + b'"}'
    await envoy.say(body(large, ends=False))
    assert destination(await envoy.hear()) in (A, B)
    await envoy.say(ext_proc.ProcessingRequest(request_trailers=ext_proc.HttpTrailers()))
    assert (await envoy.hear()).WhichOneof("response") == "request_trailers"
    await envoy.say(answer(ends=True))
    await envoy.hear()
    await envoy.done()


@served(
    PickerConfig(EndpointPool(100, endpoints=(A,), dns=f"{'a' * 70}..b:80", resolve_seconds=0.01), listen=CONFIG.listen)
)
async def test_names_that_are_none_change_nothing(server: PickerServer, channel: Any) -> None:
    """A pool whose name cannot be looked up serves what it has."""
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in server._tasks)
    assert server.picker.endpoints == (A,)


@served()
async def test_calls_wait_for_room_and_are_refused_over_limits(server: PickerServer, channel: Any) -> None:
    """With both windows full a call waits until one ends; a third of one client is refused with 429 and told when to
    come again; one that is too large with 413, one that says nonsense with 400."""
    large = json.dumps({"prompt": "x" * 400, "max_tokens": 20}).encode()
    wrong = json.dumps({"prompt": "x", "max_tokens": "many"}).encode()
    runs = [Envoy(stub(channel)) for _ in range(4)]
    endpoints = [destination(await envoy.buffered()) for envoy in runs]
    assert sorted(endpoints) == [A, A, B, B]
    waits = [Envoy(stub(channel)) for _ in range(2)]
    picks = [asyncio.create_task(envoy.buffered()) for envoy in waits]
    await until(lambda: server.picker.window.waiting == 2)
    for data, status in ((CHAT, 429), (large, 413), (wrong, 400)):
        kind = "rate_limit_error" if status == 429 else "invalid_request_error"
        refused = (await Envoy(stub(channel)).buffered(data=data)).immediate_response
        assert refused.status.code == status
        assert json.loads(refused.body)["error"]["type"] == kind
        told = {option.header.key: option.header.raw_value for option in refused.headers.set_headers}
        assert told.get("retry-after") == (b"1" if status == 429 else None)
    assert not any(pick.done() for pick in picks)
    runs[0].call.cancel()  # The caller leaves, and Envoy ends the stream.
    assert destination(await asyncio.wait_for(next(iter(asyncio.as_completed(picks))), 10)) == endpoints[0]
    await runs[1].say(answer("503"))
    await runs[1].hear()
    await runs[1].say(answer_body(b"busy"))
    assert destination(await picks[1]) in (A, B)
    assert server.picker.outcomes["refused by endpoint"] == 1
    for envoy in (*runs, *waits):
        envoy.call.cancel()


@served()
async def test_health_follows_the_pool(server: PickerServer, channel: Any) -> None:
    """Alive always, ready while there is an endpoint."""
    health = health_pb2_grpc.HealthStub(channel)

    async def status(service: str) -> int:
        return int((await health.Check(health_pb2.HealthCheckRequest(service=service))).status)

    assert [await status(each) for each in ("liveness", "readiness", SERVICE)] == [1, 1, 1]
    pool = EndpointPool(100, endpoints=("127.0.0.1:3",))
    await server.configure(PickerConfig(pool, listen=CONFIG.listen))
    assert server.picker.endpoints == ("127.0.0.1:3",)
    server.picker.see([])
    await server._tell_health()
    assert [await status(each) for each in ("liveness", "readiness", SERVICE)] == [1, 2, 2]


@served(PickerConfig(EndpointPool(100, dns="localhost:8000", resolve_seconds=0.05), listen=CONFIG.listen))
async def test_endpoints_by_name_are_asked_again(server: PickerServer, channel: Any) -> None:
    """`localhost` stands for a loopback address."""
    assert any(each.endswith(":8000") for each in server.picker.endpoints)


@served()
async def test_an_error_of_ours_does_not_lose_the_call(server: PickerServer, channel: Any) -> None:
    """What cannot be queued goes to the endpoint with the fewest calls, and is counted."""

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    server.picker.window.arrive = broken  # type: ignore[method-assign, assignment]
    assert destination(await Envoy(stub(channel)).buffered()) in (A, B)
    assert server.picker.outcomes["around the policy"] == 1


def test_a_picker_with_a_store_returns_its_leases_as_it_stops(tmp_path: Path) -> None:
    """Another serves on meanwhile with what it has on lease; afterwards no picker holds any credit."""
    store = StoreConfig(tmp_path.as_uri())
    config = msgspec.structs.replace(CONFIG, store=store)
    value = tmp_path / "fairsched.default.account"

    async def main() -> None:
        servers = [PickerServer(Picker(config)) for _ in range(2)]
        for server in servers:
            await server.start()
        for server in servers:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                envoy = Envoy(stub(channel))
                assert destination(await envoy.buffered()) in (A, B)
                await envoy.done()
            assert b"holders\x80" not in value.read_bytes()
            assert server.picker.status()["store"]["up"]
            await server.stop()
        assert b"holders\x80" in value.read_bytes()

    asyncio.run(main())


def test_the_command_serves_reloads_and_drains(tmp_path: Path) -> None:
    """As a process: it says where it listens, SIGHUP reads the file again, SIGTERM ends it with its report."""
    path, report = tmp_path / "picker.toml", tmp_path / "report.json"
    text = f'listen = "127.0.0.1:0"\n[pool]\nwindow_tokens = 100\nendpoints = ["{A}"]\n'
    path.write_text(text)
    command = [sys.executable, "-m", "fairsched", "gateway", "--picker", str(path), "--report", str(report)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        path.write_text(text.replace(A, B))
        process.send_signal(signal.SIGHUP)

        async def picks() -> str:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                return destination(await Envoy(stub(channel)).buffered())

        deadline = time.monotonic() + 20
        while asyncio.run(picks()) != B:
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()
    assert json.loads(report.read_text())["endpoints"] == [B]
