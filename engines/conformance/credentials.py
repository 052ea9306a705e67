"""Tokens and certificates that callers show, good and wrong ones: the suite is issuer and authority (extra `jwt`).

What the gateway must know of them lies in a folder, and stays there, so that one that has read it knows the next run's
callers, too.  A client's token is a new one with each call, and its certificate is one of two: a gateway that takes the
token or the certificate for the client, and not the name in it, gives a flood as many shares as it has calls.
"""

import base64
import datetime
import hashlib
import hmac
import json
import os
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fairsched.engines.conformance.callers import Credentials
from fairsched.engines.conformance.script import CERTIFICATE_FLAWS, MISSING, TOKEN_FLAWS, ScriptedCall, Way

ISSUER, AUDIENCE, KEY_ID = "https://conform.test", "conform", "conform-1"
"""What tokens say of their issuer, whom they are for, and which key signed them."""
TOKEN_SECONDS, LATE_SECONDS = 600, 7_200
"""A token is good for so long; what has expired or is not valid yet is off by more than clocks are."""
CERTIFICATES_EACH = 2
"""Certificates that a client has at a time."""
LONG_DAYS = 3_650


# --- tokens -----------------------------------------------------------------------------------------------------------


class Tokens(Credentials):
    """Clients by what the claim `sub` of a token names; `jwks.json` in the folder has the issuer's public key."""

    way: ClassVar[Way] = "token"

    def __init__(self, folder: Path) -> None:
        """Open the folder, and raise `OSError` if it cannot be used, `ValueError` for a key in it that is none."""
        self._key: Any = _kept(folder / "issuer.key", lambda: rsa.generate_private_key(65537, 2048))
        said = jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        public = {"kty": said["kty"], "n": said["n"], "e": said["e"], "kid": KEY_ID, "alg": "RS256", "use": "sig"}
        (folder / "jwks.json").write_text(json.dumps({"keys": [public]}, indent=1))

    @cached_property
    def _other(self) -> Any:
        """A key that is not the issuer's."""
        return rsa.generate_private_key(65537, 2048)

    def headers(self, call: ScriptedCall) -> dict[str, str]:
        """Return the headers that show a call's token, which is made now."""
        return {} if call.flaw == MISSING else {"authorization": f"Bearer {self._token(call)}"}

    def _token(self, call: ScriptedCall) -> str:
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": call.client,
            "iat": now,
            "exp": now + TOKEN_SECONDS,
            "jti": os.urandom(8).hex(),
        }
        key, head = self._key, {"kid": KEY_ID}
        match call.flaw:
            case "":
                pass
            case "expired":
                claims |= {"iat": now - 2 * LATE_SECONDS, "exp": now - LATE_SECONDS}
            case "not valid yet":
                claims |= {"nbf": now + LATE_SECONDS, "exp": now + 2 * LATE_SECONDS}
            case "of another issuer":
                claims["iss"] = "https://other.test"
            case "for another audience":
                claims["aud"] = "other"
            case "of an unknown key":
                key, head = self._other, {"kid": "other"}
            case "signed with another key":
                key = self._other
            case "changed after signing":
                first, _, signature = self._signed(claims | {"sub": "stranger"}, key, head).split(".")
                return f"{first}.{_base64(json.dumps(claims).encode())}.{signature}"
            case "unsigned":
                return self._forged("none", claims)
            case "signed with the public key":
                return self._forged("HS256", claims)
            case _:
                raise ValueError(f"a token is {', '.join(TOKEN_FLAWS)}, and not {call.flaw!r}")
        return self._signed(claims, key, head)

    def _signed(self, claims: dict[str, Any], key: Any, head: dict[str, Any]) -> str:
        return jwt.encode(claims, key, algorithm="RS256", headers=head)

    def _forged(self, algorithm: str, claims: Mapping[str, Any]) -> str:
        public = self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return forged(algorithm, {"alg": algorithm, "typ": "JWT", "kid": KEY_ID}, claims, public)


def forged(algorithm: str, head: Mapping[str, Any], claims: Mapping[str, Any], public: bytes) -> str:
    """Return a token without a signature (`none`), or with one by the public key as if it were a shared secret."""
    signed = ".".join(_base64(json.dumps(each).encode()) for each in (head, claims))
    signature = b"" if algorithm.lower() == "none" else hmac.new(public, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{_base64(signature)}"


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


# --- certificates -----------------------------------------------------------------------------------------------------


class Certificates(Credentials):
    """Clients by the common name of a certificate.

    In the folder `authority.pem` has the authority of callers, `gateway.pem` and `gateway.key` what a gateway at
    `hosts` may show.
    """

    way: ClassVar[Way] = "certificate"

    def __init__(self, folder: Path, clients: Iterable[str], hosts: Sequence[str]) -> None:
        """Open the folder, and raise `OSError` if it cannot be used, `ValueError` for a key in it that is none."""
        self._folder = folder
        self._authority = _kept(folder / "authority.key", _curve)
        other, server = _curve(), _kept(folder / "gateway.key", _curve)
        by, long = ("conform", self._authority), (-1, LONG_DAYS)
        self._write("authority.pem", certificate(("conform",), self._authority, days=long))
        self._write("gateway.pem", certificate(("gateway",), server, by, hosts=hosts, days=long))
        self._contexts: dict[tuple[str, str, int], ssl.SSLContext] = {}
        for client in clients:
            for i in range(CERTIFICATES_EACH):
                key = _curve()
                self._hold((client, "", i), certificate((client,), key, by), key)
            key = _curve()
            flawed = {
                "expired": certificate((client,), key, by, days=(-3, -1)),
                "of another authority": certificate((client,), key, ("conform", other)),
                "of itself": certificate((client,), key),
                "a server's": certificate((client,), key, by, hosts=("conform.test",)),
            }
            for flaw, made in flawed.items():
                self._hold((client, flaw, 0), made, key)
        self._plain = self._trusting()

    def _write(self, name: str, made: x509.Certificate) -> None:
        (self._folder / name).write_bytes(made.public_bytes(Encoding.PEM))

    def _trusting(self) -> ssl.SSLContext:
        """Return what trusts gateways by this authority, and by those of the system."""
        context = ssl.create_default_context()
        context.load_verify_locations(self._folder / "authority.pem")
        return context

    def _hold(self, which: tuple[str, str, int], made: x509.Certificate, key: Any) -> None:
        path, context = self._folder / "caller.key", self._trusting()
        # OpenSSL reads files only.
        _write_secret(path, _pem(key) + made.public_bytes(Encoding.PEM))
        context.load_cert_chain(path)
        path.unlink()
        self._contexts[which] = context

    def headers(self, _: ScriptedCall) -> dict[str, str]:
        return {}

    def context(self, call: ScriptedCall) -> ssl.SSLContext | bool:
        """Return what the connection of a call shows."""
        if call.flaw == MISSING:
            return self._plain
        found = self._contexts.get((call.client, call.flaw, 0 if call.flaw else call.number % CERTIFICATES_EACH))
        if found is None:
            raise ValueError(f"a certificate is {', '.join(CERTIFICATE_FLAWS)}, and not {call.flaw!r}")
        return found


def certificate(
    names: Sequence[str],
    key: Any,
    by: tuple[str, Any] | None = None,
    *,
    hosts: Sequence[str] = (),
    days: tuple[int, int] = (-1, 1),
) -> x509.Certificate:
    """Return a certificate of a caller with these common names, or of a server at `hosts`, signed `by` an authority's
    name and key, or by itself as one; good from and to so many days from now."""
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each) for each in names])
    issuer = subject if by is None else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, by[0])])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=days[0]))
        .not_valid_after(now + datetime.timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_place(host) for host in hosts]), critical=False)
    if by is not None:
        use = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
    return builder.sign(key if by is None else by[1], hashes.SHA256())


def _place(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


# --- files ------------------------------------------------------------------------------------------------------------


def _curve() -> Any:
    return ec.generate_private_key(ec.SECP256R1())


def _pem(key: Any) -> bytes:
    pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem


def _kept(path: Path, new: Any) -> Any:
    """Return the private key in a file, or a new one that is in it from now on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        try:
            return load_pem_private_key(path.read_bytes(), None)
        except ValueError:
            raise ValueError(f"{path} is no private key in PEM") from None
    key = new()
    _write_secret(path, _pem(key))
    return key


def _write_secret(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
