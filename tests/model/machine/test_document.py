"""A preset as a document: what is written is what is read, and what is no preset is refused by its key."""

import json
from typing import Any

import pytest

from fairsched.model import machine as lat

FACTS = lat.EngineFacts("tiny", "cpu", "float32", "2.13.0", 1, 16, 8, 64, "fcfs", "wall", "November 2026")
TWO_PIECES = lat.PRESETS["opt-13b-a100"]


@pytest.mark.parametrize("latency", lat.PRESETS.values(), ids=lambda latency: latency.name)
def test_what_is_written_is_read(latency: lat.LatencyModel) -> None:
    """Every shipped model goes through JSON and through a table unchanged."""
    document = lat.preset_document(latency, FACTS)
    assert lat.decoded(lat.encoded(document)) == document
    assert lat.decoded(lat.encoded(document)).latency == latency
    assert lat.from_builtins(lat.as_builtins(latency)).latency == latency


def broken(path: str, value: object) -> bytes:
    """A good document with one key set (None: taken away)."""
    document: Any = json.loads(lat.encoded(lat.preset_document(TWO_PIECES, FACTS)))
    at = document
    *parents, key = path.split(".")
    for parent in parents:
        at = at[int(parent)] if parent.isdecimal() else at[parent]
    if value is None:
        del at[key]
    else:
        at[key] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"{", "line 1, column 2"),
        (b"[]", "Expected object, got array"),
        (b"\xff", "line 1, column 1"),
        (broken("fairsched_preset", 2), "this version reads 1"),
        (broken("name", ""), "name"),
        (broken("source", None), "missing required field source"),
        (broken("extra", 1), "unknown field extra"),
        (broken("coefficients.prefil_token_ns", 1), "unknown field prefil_token_ns"),
        (broken("coefficients.prefill_token_ns", -1), "prefill_token_ns"),
        (broken("coefficients.prefill_token_ns", 1.5), "prefill_token_ns"),
        (broken("coefficients.prefill_constant_ns", 0), "prefill_constant_ns"),
        (broken("coefficients.decode", []), "decode"),
        (broken("coefficients.decode.0.batch_min", 2), r"begin at 1 and rise, and are \[2, 95\]"),
        (broken("coefficients.decode.1.batch_min", 1), r"begin at 1 and rise, and are \[1, 1\]"),
        (broken("coefficients.decode.0.constant_ns", 0), r"decode\[0\].constant_ns"),
        (broken("coefficients.decode.0.request_ns", "2"), r"decode\[0\].request_ns"),
        (broken("kv_capacity_tokens", 1), "kv_capacity_tokens"),
        (broken("engine.machine", "mine"), "unknown field machine"),
    ],
)
def test_what_is_no_preset_is_refused(raw: bytes, said: str) -> None:
    """Each broken document gives one error that names what is wrong with it."""
    with pytest.raises(ValueError, match=said):
        lat.decoded(raw)
