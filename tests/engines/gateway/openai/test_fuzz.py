"""Bad input of every kind: nothing but a clear refusal comes of it, and later calls are served."""

import logging
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.adapters import gateway_fuzz
from tests.support.adapters.gateway_scenarios import Fake, World, faked
from tests.support.adapters.http import LOG
from tests.support.adapters.loops import in_loop

HEADERS = st.dictionaries(
    st.sampled_from(["authorization", "x-api-key", "x-client"]),
    st.binary(max_size=20).map(lambda value: value.decode("utf-8", "surrogateescape")),
)


@given(st.sampled_from(gateway_fuzz.BODIES), st.randoms(use_true_random=False))
def test_any_body_is_a_call_or_one_clear_400(body: tuple[str, bytes], random: Random) -> None:
    """Whatever is changed in it; and what is read goes on as it came but for what the gateway asks."""
    gateway_fuzz.check_body(body[0], gateway_fuzz.mutated(body[1], random, [each for _, each in gateway_fuzz.BODIES]))


@given(st.sampled_from(gateway_fuzz.BODIES), st.randoms(use_true_random=False))
def test_any_document_is_a_call_or_one_clear_400(body: tuple[str, bytes], random: Random) -> None:
    """JSON with values of other kinds in it, and numbers of any size."""
    gateway_fuzz.check_body(body[0], gateway_fuzz.restructured(body[1], random))


@given(st.sampled_from([path for path, _ in gateway_fuzz.BODIES]), st.binary(max_size=60))
def test_any_bytes_are_a_call_or_one_clear_400(path: str, raw: bytes) -> None:
    """Bytes that nobody wrote as JSON."""
    gateway_fuzz.check_body(path, raw)


@example(gateway_fuzz.STREAMS[0], Random(0), [0, 0, 7], True)
@given(
    st.sampled_from(gateway_fuzz.STREAMS),
    st.randoms(use_true_random=False),
    st.lists(st.integers(0, 900), max_size=6),
    st.booleans(),
)
def test_any_stream_says_the_same_in_any_pieces(data: bytes, random: Random, cuts: list[int], hides: bool) -> None:
    """Whatever a server sends."""
    data = gateway_fuzz.mutated(data, random, gateway_fuzz.STREAMS)
    gateway_fuzz.check_stream(data, [min(cut, len(data)) for cut in cuts], hides=hides)


@given(HEADERS)
def test_any_headers_are_a_caller_or_an_unknown_one(headers: dict[str, str]) -> None:
    """Bytes of any kind in the headers that name a caller, which come as halves of surrogate pairs where they are none
    of UTF-8."""
    gateway_fuzz.check_headers(headers)


@pytest.mark.nightly
@settings(deadline=None)
@given(st.integers(0, 1 << 32))
def test_many_inputs_through_the_parsers(full_budget: bool, seed: int) -> None:
    """The script's mix of them."""
    gateway_fuzz.check_parsers(Random(seed), 2000 if full_budget else 50)


def address(here: World) -> tuple[str, int]:
    """Where the gateway listens."""
    url = here.http.url
    assert url.host is not None
    assert url.port is not None
    return url.host, url.port


@pytest.mark.nightly
@in_loop
async def test_raw_bytes_of_any_kind_leave_a_gateway_that_serves(
    full_budget: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Bad requests on connections of their own get an answer of HTTP or none, never a 500; no traceback is logged, no
    call stays, and good calls between them and after them are answered."""
    async with faked(Fake(), unknown_clients="own") as (_, here):
        with caplog.at_level(logging.WARNING):
            seen = await gateway_fuzz.check_connections(
                *address(here), gateway_fuzz.requests(Random(7), 3000 if full_budget else 200)
            )
        assert seen["200"] > 10
        assert seen["400"] > 20
        await here.emptied()
    told = [record for record in caplog.records if record.exc_info and record.name != LOG.name]
    assert [(record.getMessage(), str(record.exc_info)) for record in told] == []


@in_loop
async def test_a_length_beside_chunks_smuggles_no_second_call() -> None:
    """Of a request with both, whose end two parsers see at two places, nothing is served, and nothing behind it."""
    behind = gateway_fuzz.http(method="GET", path="/v1/models")
    async with faked(Fake()) as (fake, here):
        for headers in (
            (gateway_fuzz.LENGTH, gateway_fuzz.CHUNKED),
            (gateway_fuzz.CHUNKED, gateway_fuzz.LENGTH),
            ("Content-Length: 4", gateway_fuzz.CHUNKED),
        ):
            for body in (gateway_fuzz.CHUNKS, gateway_fuzz.GOOD):
                data = gateway_fuzz.http(*headers, body=body) + behind
                said = await gateway_fuzz.raw_answer(*address(here), data)
                assert gateway_fuzz.check_answer(data, said) in ("400", "silence")
                assert said.count(b"HTTP/1.1 ") <= 1
        assert fake.asked == []
