"""The endpoint picker's protocol in the real Envoy: what the page's configuration leaves open, and its other modes."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

aiohttp: Any = pytest.importorskip("aiohttp")
pytest.importorskip("grpc")
pytest.importorskip("grpc_health")
pytest.importorskip("yaml")

from google.protobuf.json_format import ParseDict  # noqa: E402
from google.protobuf.struct_pb2 import Value  # noqa: E402

from fairsched.engines.conformance import (  # noqa: E402
    CLIENTS,
    SCENARIOS,
    Certificates,
    Gateways,
    Keys,
    ScenarioLimits,
    Tokens,
    conform,
)
from tests.integration.envoy_parts import (  # noqa: E402
    ENVOY,
    PAGE,
    WINDOW,
    Configuration,
    Edit,
    Stack,
    filter_of,
    is_whole,
    streams,
    yaml,
)
from tests.support.adapters.http import free_pair  # noqa: E402

if not ENVOY.exists():
    pytest.skip("Envoy is not installed", allow_module_level=True)

pytestmark = pytest.mark.integration

FAIRNESS_ID = "x-gateway-inference-fairness-id"
DESTINATION = "x-gateway-destination-endpoint"
SERVED = f"{DESTINATION}-served"
SMALL = {"model": "m", "prompt": "x", "max_tokens": 2}


@contextmanager
def stack(folder: Path, *edits: Edit, **how: Any) -> Iterator[Stack]:
    """The processes, with Envoy's configuration changed; calls pass the picker."""

    def edit(made: Configuration) -> None:
        for each in edits:
            each(made)

    made = Stack(folder, edit, **how)
    try:
        yield made
    finally:
        made.close()


def run(folder: Path, main: Callable[[Stack], Any], *edits: Edit, **how: Any) -> None:
    """Run it with the processes."""

    async def ready(made: Stack) -> None:
        await made.until(413)
        await main(made)

    with stack(folder, *edits, **how) as made:
        asyncio.run(ready(made))


def full_duplex(made: Configuration) -> None:
    """Bodies are sent to the picker while they come, as gateways of the extension do."""
    made.processor["processing_mode"] |= {
        "request_body_mode": "FULL_DUPLEX_STREAMED",
        "response_body_mode": "FULL_DUPLEX_STREAMED",
        "request_trailer_mode": "SEND",
        "response_trailer_mode": "SEND",
    }


def closed(made: Configuration) -> None:
    """Without a picker no call goes on."""
    made.processor["failure_mode_allow"] = False


def soon(made: Configuration) -> None:
    """A picker has a second for an answer."""
    made.processor["message_timeout"] = "1s"


EACH_MODE = pytest.mark.parametrize("modes", [(), (full_duplex,)], ids=["buffered", "full duplex"])

# --- what callers see -------------------------------------------------------------------------------------------------


@EACH_MODE
def test_the_conformance_suite_through_envoy(modes: tuple[Edit, ...], tmp_path: Path) -> None:
    """Envoy with the picker passes what applies to one gateway whose callers have keys: shares, starvation,
    cancellations, streams while they come, ends.  A stream whose server is gone is cut, since Envoy writes no event."""
    first = free_pair()
    clients = "".join(f"[client.{name}]\nweight = {weight}\n" for name, weight in CLIENTS.items())
    how = {"pool": "window_tokens = 200\nwindow_requests = 4", "more": clients, "top": "quantum = 64"}
    keys = {name: f"sk-{name}-0123456789abcdef" for name in CLIENTS}

    def with_keys(made: Configuration) -> None:
        made.keys[:] = [{"key": key, "client": name} for name, key in keys.items()]

    with stack(tmp_path, with_keys, *modes, ports=(first, first + 1), **how) as made:
        gateways = Gateways((made.url,), Keys(keys), "made-up")
        found = asyncio.run(conform(gateways, ScenarioLimits.of(8), servers=2, port=first))
    verdicts = {each.scenario.name: each.verdict for each in found}
    results = {name: verdict.result for name, verdict in verdicts.items()}
    expected = dict.fromkeys(SCENARIOS, "passes") | {"stream-errors": "fails"}
    expected |= dict.fromkeys(("two-instances", "two-instances-flood"), "not applicable")
    expected |= dict.fromkeys(("tokens", "certificates"), "not applicable")
    assert results == expected, verdicts
    assert verdicts["stream-errors"].measured == "a cut connection"


def by_tokens(folder: Path) -> Edit:
    """Envoy checks tokens with the page's filter, and tells the picker the claim."""
    block = PAGE.read_text().split("```yaml\n")[1]
    (made,) = yaml.safe_load(block.split("```")[0])
    provider = made["typed_config"]["providers"]["issuer"]
    provider |= {"issuer": "https://conform.test", "audiences": ["conform"]}
    provider["local_jwks"] = {"filename": str(folder / "jwks.json")}
    return lambda configuration: configuration.names_callers(made)


def by_certificates(folder: Path) -> Edit:
    """Envoy checks certificates, and tells the picker the subject."""
    files = {"certificate_chain": "gateway.pem", "private_key": "gateway.key"}
    chain = {name: {"filename": str(folder / file)} for name, file in files.items()}
    common = {
        "tls_certificates": [chain],
        "validation_context": {"trusted_ca": {"filename": str(folder / "authority.pem")}},
    }

    def edit(made: Configuration) -> None:
        kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"
        tls = {"@type": kind, "common_tls_context": common, "require_client_certificate": True}
        made.listener["filter_chains"][0]["transport_socket"] = {"name": "tls", "typed_config": tls}
        header = {"key": FAIRNESS_ID, "value": "%DOWNSTREAM_PEER_SUBJECT%"}
        said = {"request_mutations": [{"append": {"header": header}}]}
        made.names_callers(filter_of("header_mutation", "header_mutation.v3.HeaderMutation", mutations=said))

    return edit


@pytest.mark.parametrize("way", ["token", "certificate"])
def test_the_conformance_suite_where_envoy_knows_the_callers(way: str, tmp_path: Path) -> None:
    """By tokens or certificates that Envoy checks for the picker: clients have their shares, a flood gains nothing by
    what it claims in headers, and what is wrong is refused."""
    first, folder, token = free_pair(), tmp_path / "credentials", way == "token"
    shows = Tokens(folder) if token else Certificates(folder, CLIENTS, ("127.0.0.1",))
    names = {name: name if token else f"CN={name}" for name in CLIENTS}
    clients = "".join(f'[client."{names[name]}"]\nweight = {weight}\n' for name, weight in CLIENTS.items())
    how = {"pool": "window_tokens = 200\nwindow_requests = 4", "more": clients, "top": "quantum = 64"}
    edit = by_tokens(folder) if token else by_certificates(folder)
    with stack(tmp_path, edit, ports=(first, first + 1), **how) as made:
        url = made.url if token else made.url.replace("http:", "https:")
        chosen = ("flood", "weights", "identity", "tokens", "certificates", "exactly-once")
        found = asyncio.run(
            conform(Gateways((url,), shows, "made-up"), ScenarioLimits.of(8), servers=2, port=first, names=chosen)
        )
    verdicts = {each.scenario.name: each.verdict for each in found}
    expected = dict.fromkeys(chosen, "passes") | {"certificates" if token else "tokens": "not applicable"}
    assert {name: verdict.result for name, verdict in verdicts.items()} == expected, verdicts


@EACH_MODE
def test_bodies_come_in_pieces_and_headers_are_long(modes: tuple[Edit, ...], tmp_path: Path) -> None:
    """A body without a length, in pieces with pauses, reaches the server as it was, beside 40 KiB of headers."""
    document = json.dumps(SMALL | {"pad": "y" * 200_000}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        size = len(document) // 5
        for start in range(0, len(document), size):
            yield document[start : start + size]
            await asyncio.sleep(0.05)

    async def main(made: Stack) -> None:
        long = {f"x-long-{i}": "z" * 4000 for i in range(10)}
        status, text = await made.call(pieces(), headers=long)
        assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 2)

    run(tmp_path, main, *modes)


@EACH_MODE
def test_trailers_pass_and_end_what_they_end(modes: tuple[Edit, ...], tmp_path: Path) -> None:
    """A request and an answer with trailers: both come to their end, and the place is free for a call that needs it."""

    def trailers(made: Configuration) -> None:
        made.calls["http_protocol_options"] = {"enable_trailers": True}
        options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
        explicit = {"http_protocol_options": {"enable_trailers": True}}
        made.pool["typed_extension_protocol_options"] = {
            options: {"@type": f"type.googleapis.com/{options}", "explicit_http_config": explicit}
        }

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"0\r\nx-checksum: 7\r\n\r\n")
        usage = json.dumps({"usage": {"prompt_tokens": 5, "completion_tokens": 3}}).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%s\r\n0\r\nx-seconds: 1\r\n\r\n" % (len(usage), usage))
        await writer.drain()
        writer.close()

    async def ask(made: Stack) -> bytes:
        data = json.dumps({"prompt": "x", "max_tokens": WINDOW - 10}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        head += b"authorization: Bearer %s\r\n" % made.key.encode()
        head += b"te: trailers\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%s\r\n0\r\nx-checksum: 7\r\n\r\n" % (len(data), data))
        said = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return said

    async def main() -> None:
        servers = [await asyncio.start_server(answer, "127.0.0.1", 0) for _ in range(2)]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        with stack(tmp_path, trailers, *modes, ports=ports) as made:
            await made.until(413)
            for _ in range(5):  # Each fills a window, so that five pass only if places become free.
                said = await ask(made)
                assert said.startswith(b"HTTP/1.1 200"), said
                assert b'"completion_tokens": 3' in said
                assert b"x-seconds: 1" in said
            status = await asyncio.to_thread(made.status)
        assert status["outcomes"]["finished"] == 5
        assert status["clients"]["gold"]["output_tokens"] == 15
        for server in servers:
            server.close()

    asyncio.run(main())


def test_answers_that_the_picker_does_not_see_are_charged_at_their_end(tmp_path: Path) -> None:
    """With answers not sent to it, a call has its place until its stream ends, and is charged what it declared, also
    where its caller leaves; one that says its length no more than its bytes."""

    def unseen(made: Configuration) -> None:
        made.processor["processing_mode"]["response_body_mode"] = "NONE"

    async def main(made: Stack) -> None:
        begun = [asyncio.Event() for _ in range(2)]
        first = [asyncio.create_task(made.call(streams(270), hears=each.set)) for each in begun]
        for each in begun:
            await each.wait()
        waits = asyncio.create_task(made.call(streams(270)))
        await asyncio.sleep(1)
        assert not any(each.done() for each in first)
        assert sum([(await made.counts(i))["asked"] for i in range(2)]) == 2
        assert all([is_whole(await each, 270) for each in (*first, waits)])
        left = asyncio.Event()
        leaves = asyncio.create_task(made.call(streams(200), hears=left.set))
        await left.wait()
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        status, text = await made.call({"model": "m", "prompt": "x", "max_tokens": 100})
        assert status == 200
        said = await asyncio.to_thread(made.status)
        charged = 3 * 270 + 200 + min(100, len(text))
        assert (said["clients"]["gold"]["output_tokens"], said["in_flight"]) == (charged, 0)

    run(tmp_path, main, unseen)


# --- a picker that is not there ---------------------------------------------------------------------------------------


def test_where_failures_are_not_allowed_a_dead_picker_stops_calls(tmp_path: Path) -> None:
    """New calls get 5xx and reach no server, also those that waited in it; a new picker lets calls pass again."""

    async def main(made: Stack) -> None:
        begun = asyncio.Event()
        streaming = asyncio.create_task(made.call(streams(290), hears=begun.set))
        other = asyncio.create_task(made.call(streams(290)))
        await begun.wait()
        waiting = [asyncio.create_task(made.call(streams(160))) for _ in range(3)]
        await asyncio.sleep(0.5)
        made.kill_picker()
        for each in waiting:
            assert (await each)[0] >= 500
        status, text = await made.call(SMALL)
        assert status >= 500
        assert "error" in json.loads(text)
        await asyncio.gather(streaming, other, return_exceptions=True)
        asked = [(await made.counts(i)).get("asked", 0) for i in range(2)]
        assert sum(asked) == 2
        made.start_picker()
        await made.until(413)
        await made.until(200, SMALL)

    run(tmp_path, main, closed)


def test_where_failures_are_not_allowed_a_slow_picker_is_a_timeout(tmp_path: Path) -> None:
    """A call that waits in the picker beyond `message_timeout` gets 504, and reaches no server.  Each server has room
    for one: what is left is less than an eighth of the window."""

    async def main(made: Stack) -> None:
        calls = [asyncio.create_task(made.call(streams(270))) for _ in range(6)]
        answers = [await each for each in calls]
        assert sorted(status for status, _ in answers) == [200] * 2 + [504] * 4
        assert all("error" in json.loads(text) for status, text in answers if status == 504)
        assert all(is_whole(each, 270) for each in answers if each[0] == 200)
        assert sum([(await made.counts(i)).get("asked", 0) for i in range(2)]) == 2
        assert await made.stat("http.calls.ext_proc.message_timeouts") > 0

    run(tmp_path, main, closed, soon)


def test_full_duplex_does_not_fail_open(tmp_path: Path) -> None:
    """In that mode a dead picker stops calls with bodies even where failures are allowed."""

    async def main(made: Stack) -> None:
        made.kill_picker()
        assert (await made.call(SMALL))[0] >= 500

    run(tmp_path, main, full_duplex)


# --- what is picked ---------------------------------------------------------------------------------------------------


def by_metadata(made: Configuration) -> None:
    """The pool takes the endpoint from the metadata, and not from the header."""
    (policy,) = made.pool["load_balancing_policy"]["policies"]
    sources = policy["typed_extension_config"]["typed_config"]["override_host_sources"]
    sources[:] = [{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}]
    made.processor.setdefault("metadata_options", {})["receiving_namespaces"] = {"untyped": ["envoy.lb"]}


def with_subset(made: Configuration) -> None:
    """The callers' header `x-subset` (commas) or `x-subset-list` (a list) is the subset hint of the protocol."""
    namespace, key = "envoy.lb.subset_hint", f"{DESTINATION}-subset"
    target = {"metadata_namespace": namespace, "key": key}
    listed = target | {"type": "PROTOBUF_VALUE", "encode": "BASE64"}
    rules = [
        {"header": "x-subset", "on_header_present": target | {"type": "STRING"}, "remove": True},
        {"header": "x-subset-list", "on_header_present": listed, "remove": True},
    ]
    made.before_processor("header_to_metadata", "header_to_metadata.v3.Config", request_rules=rules)
    made.processor.setdefault("metadata_options", {})["forwarding_namespaces"] = {"untyped": [namespace]}


def as_list(endpoints: Sequence[str]) -> str:
    """A list of endpoints as a header may say it."""
    return base64.b64encode(ParseDict(list(endpoints), Value()).SerializeToString()).decode()


@EACH_MODE
@pytest.mark.parametrize("source", [(), (by_metadata,)], ids=["header", "metadata"])
def test_calls_go_to_an_endpoint_of_the_subset(
    source: tuple[Edit, ...], modes: tuple[Edit, ...], tmp_path: Path
) -> None:
    """All calls of a subset go to it, as text or as a list, by the header and by the metadata; an unknown or an empty
    subset gets 503; and a caller cannot name its endpoint itself."""

    async def main(made: Stack) -> None:
        before = [(await made.counts(i)).get("asked", 0) for i in range(2)]
        for server, times in ((1, 5), (0, 3)):
            own = {DESTINATION: made.endpoint(1 - server)}
            for i in range(times):
                only = [made.endpoint(server), "10.9.9.9:1"]
                hint = {"x-subset": ",".join(only)} if i % 2 else {"x-subset-list": as_list(only)}
                assert (await made.call(SMALL, headers=hint | own))[0] == 200
        assert [(await made.counts(i)).get("asked", 0) - before[i] for i in range(2)] == [3, 5]
        for hint in ({"x-subset": "10.9.9.9:1"}, {"x-subset-list": as_list([])}):
            assert (await made.call(SMALL, headers=hint))[0] == 503

    run(tmp_path, main, *source, *modes, with_subset)


def with_fallbacks(made: Configuration) -> None:
    """A call that an endpoint does not take is tried at the next of the list; what served is told to the picker."""
    made.route["retry_policy"] = {"retry_on": "connect-failure,refused-stream", "num_retries": 2}
    header = {"key": SERVED, "value": "%UPSTREAM_REMOTE_ADDRESS%"}
    mutations = {"response_mutations": [{"append": {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}]}
    target = {"metadata_namespace": "envoy.lb", "key": SERVED, "type": "STRING"}
    rules = [{"header": SERVED, "on_header_present": target}]
    made.after_processor("header_to_metadata", "header_to_metadata.v3.Config", response_rules=rules)
    made.after_processor("header_mutation", "header_mutation.v3.HeaderMutation", mutations=mutations)
    made.processor.setdefault("metadata_options", {})["forwarding_namespaces"] = {"untyped": ["envoy.lb"]}


async def lose_first(made: Stack) -> None:
    """Kill the server that one call after another is sent to."""
    assert (await made.call(SMALL))[0] == 200
    (first,) = [i for i in range(2) if (await made.counts(i)).get("asked")]
    made.processes[first].kill()
    made.processes[first].wait()


@EACH_MODE
@pytest.mark.parametrize("source", [(), (by_metadata,)], ids=["header", "metadata"])
def test_a_call_falls_back_to_the_next_endpoint_of_the_list(
    source: tuple[Edit, ...], modes: tuple[Edit, ...], tmp_path: Path
) -> None:
    """With fallbacks a call whose endpoint is gone is answered by the next one of the list, and the picker learns which
    it was."""

    async def main(made: Stack) -> None:
        await lose_first(made)
        for _ in range(6):
            assert (await made.call(SMALL))[0] == 200
        status = await asyncio.to_thread(made.status)
        outcomes = status["outcomes"]
        assert (outcomes["finished"], outcomes["served elsewhere"]) == (7, 6)

    run(tmp_path, main, *source, *modes, with_fallbacks, pool=f"window_tokens = {WINDOW}\nfallbacks = 1")


def test_without_fallbacks_the_call_fails_where_its_endpoint_is_gone(tmp_path: Path) -> None:
    """The counterpart: one endpoint is named, and a call that was picked for the one that is gone gets 503."""

    async def main(made: Stack) -> None:
        await lose_first(made)
        assert [(await made.call(SMALL))[0] for _ in range(3)] == [503] * 3

    def no_other(made: Configuration) -> None:
        with_fallbacks(made)
        del made.route["retry_policy"]

    run(tmp_path, main, no_other)


@pytest.mark.parametrize(("drops", "asked"), [(True, [3, 3]), (False, [6, 0])])
def test_a_caller_cannot_choose_its_endpoint_beside_a_dead_picker(
    drops: bool, asked: list[int], tmp_path: Path
) -> None:
    """What a caller says in the protocol's header is dropped before the picker is asked, so that it chooses nothing
    where the picker fails open; without the page's filter for that it does."""

    async def main(made: Stack) -> None:
        made.kill_picker()
        await made.until(200, SMALL)
        before = [(await made.counts(i)).get("asked", 0) for i in range(2)]
        for _ in range(6):
            assert (await made.call(SMALL, headers={DESTINATION: made.endpoint(0)}))[0] == 200
        assert [(await made.counts(i)).get("asked", 0) - before[i] for i in range(2)] == asked

    def edit(made: Configuration) -> None:
        if not drops:
            assert made.filters.pop(0)["name"] == "envoy.filters.http.header_mutation"

    run(tmp_path, main, edit)
