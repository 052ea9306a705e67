"""Bad input of every kind: nothing but a clear refusal comes of it, and later calls are served."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.support.adapters import gateway_fuzz

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


@given(HEADERS)
def test_any_headers_are_a_caller_or_an_unknown_one(headers: dict[str, str]) -> None:
    """Bytes of any kind in the headers that name a caller, which come as halves of surrogate pairs where they are none
    of UTF-8."""
    gateway_fuzz.check_headers(headers)
