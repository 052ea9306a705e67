"""Tokens of an issuer and certificates of an authority that tests make themselves; their keys are made once."""

import json
import time
from collections.abc import Mapping
from functools import cache
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import attrs
import pytest

jwt = pytest.importorskip("jwt")
pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa  # noqa: E402
from cryptography.hazmat.primitives.serialization import (  # noqa: E402
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from fairsched.engines.conformance import credentials  # noqa: E402

ISSUER, AUDIENCE = "https://id.test", "fairsched"


@cache
def key_of(kid: str) -> Any:
    """The private key of that name, whose kind is the name's beginning."""
    match kid.partition("-")[0]:
        case "rsa":
            return rsa.generate_private_key(65537, 2048)
        case "ec" if kid == "ec-1":
            # Its x begins with a zero byte, as that of one random key in 256 does.
            return ec.derive_private_key(379, ec.SECP256R1())
        case "ec":
            return ec.generate_private_key(ec.SECP256R1())
        case _:
            return ed25519.Ed25519PrivateKey.generate()


ALGORITHMS: dict[str, Any] = {
    "rsa": jwt.algorithms.RSAAlgorithm,
    "ec": jwt.algorithms.ECAlgorithm,
    "ed": jwt.algorithms.OKPAlgorithm,
}


def jwk(kid: str, **fields: object) -> dict[str, object]:
    """The public key of that name as a JSON Web Key."""
    said = ALGORITHMS[kid.partition("-")[0]].to_jwk(key_of(kid).public_key(), as_dict=True)
    said.pop("key_ops", None)
    return {**said, "kid": kid, "use": "sig", **fields}


def secret_of(kid: str) -> str:
    """What is private in a key of an elliptic curve, as a JSON Web Key has it."""
    return str(ALGORITHMS["ec"].to_jwk(key_of(kid), as_dict=True)["d"])


def jwks(*keys: Mapping[str, object]) -> bytes:
    """A set of keys as a document."""
    return json.dumps({"keys": [dict(key) for key in keys]}).encode()


def token(kid: str | None = "rsa-1", by: str | None = None, head: Mapping[str, object] = {}, **claims: object) -> str:
    """A token that names the key `kid` and is signed with the key `by`, or that one; None takes a claim out."""
    said = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 600, "sub": "ann", **claims}
    signer = by or kid or "rsa-1"
    algorithm = {"rsa": "RS256", "ec": "ES256", "ed": "EdDSA"}[signer.partition("-")[0]]
    found: str = jwt.encode(
        {name: value for name, value in said.items() if value is not None},
        key_of(signer),
        algorithm=algorithm,
        headers={**({} if kid is None else {"kid": kid}), **head},
    )
    return found


def forged(algorithm: str, kid: str = "rsa-1", **claims: object) -> str:
    """A token without a signature, or with one by the public key as if it were a shared secret."""
    said = {"iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 600, "sub": "ann", **claims}
    public = key_of(kid).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return credentials.forged(algorithm, {"alg": algorithm, "typ": "JWT", "kid": kid}, said, public)


def bearer(text: str) -> dict[str, str]:
    """The header that shows a key or a token."""
    return {"authorization": f"Bearer {text}"}


# --- certificates -----------------------------------------------------------------------------------------------------


@attrs.frozen
class Pair:
    """Files of a certificate and its key."""

    certificate: str
    key: str


def made(
    folder: Path,
    name: str,
    *,
    common: tuple[str, ...] = (),
    server: IPv4Address | None = None,
    by: str | None = None,
    days: int = 2,
) -> Pair:
    """A certificate of a caller with these names, or of a server at this address, signed by the authority of that name,
    or by itself as one."""
    private = key_of(f"ec-{name}")
    signer = None if by is None else (by, key_of(f"ec-{by}"))
    hosts = () if server is None else (str(server),)
    signed = credentials.certificate(common, private, signer, hosts=hosts, days=(-3, days))
    pair = Pair(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
    Path(pair.certificate).write_bytes(signed.public_bytes(Encoding.PEM))
    secret = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    Path(pair.key).write_bytes(secret)
    return pair
