"""Certificates survive a round trip, and nothing else is taken for one."""

import pytest

from fairsched.model.theorem import Certificate, ProvedTheorem

CERTIFICATE = Certificate(
    policy="dlpm",
    configuration={"policy": {"name": "dlpm"}, "deployment": {"kv_capacity_tokens": 16}},
    configuration_sha256="aa",
    code={"fairsched.policies.gates.deficit.charge": "bb"},
    theorems=(ProvedTheorem("D-4.1", "|W_f - W_g| <= 2(Q + U - 1)", "all n", ("MemReserve",), "2(Q + U - 1)", 16),),
    solvers={"z3": "5.4.0"},
)


def test_a_certificate_survives_json() -> None:
    """to_json and from_json are inverse, and the bytes depend on the value alone."""
    raw = CERTIFICATE.to_json()
    assert Certificate.from_json(raw) == CERTIFICATE
    assert Certificate.from_json(raw).to_json() == raw


def test_a_certificate_says_what_it_covers() -> None:
    """`covers` is about ids of proved theorems."""
    assert CERTIFICATE.covers("D-4.1")
    assert not CERTIFICATE.covers("V-4.4")


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", CERTIFICATE.to_json().replace(b'"version":3', b'"version":4')])
def test_anything_else_is_no_certificate(raw: bytes) -> None:
    """Malformed JSON, missing fields and another version are refused with one clear error."""
    with pytest.raises(ValueError, match="certificate"):
        Certificate.from_json(raw)
