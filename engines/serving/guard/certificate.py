"""Serving certified policies only: an engine may be told to run nothing but what a certificate is about.

A certificate matches when it names the policy, its configuration is, part by part, the policy's own, the KV capacity is
the worker's, and all code that runs is, word for word, what was certified.  Its other numbers (the longest prompt, the
most output, the weights) become limits of what the engine takes on.  The fallback is not certified: what the guard did
in the policy's place shows in its count, and in the assumptions that a monitor finds broken.
"""

from collections.abc import Iterator
from pathlib import Path

import attrs
import msgspec

from fairsched.model.request import Client, Request
from fairsched.model.serialization import changed_code, configuration, differences, document_sha256
from fairsched.model.theorem import Certificate

MANIFEST = "manifest.json"
"""The file of a certificate's directory that holds the certificates."""


class NotCertifiedError(ValueError):
    """A policy or configuration without a matching certificate; the message says what differs, a line each."""


class _Manifest(msgspec.Struct, frozen=True):
    """What an engine reads of a directory that `fairsched verify --certificate` wrote."""

    certificates: tuple[Certificate, ...]


class _Deployment(msgspec.Struct, frozen=True):
    """On which sizes the certificate's constants rest."""

    kv_capacity_tokens: int
    prompt_tokens_max: int
    max_output_tokens: int
    weights: dict[str, int]


@attrs.frozen
class Certified:
    """A certificate that matches, and the limits that it sets."""

    certificate: Certificate
    prompt_tokens_max: int
    max_output_tokens: int
    weights: frozenset[int]

    def refusal(self, request: Request) -> str | None:
        """Return why a request is outside what was certified, or None."""
        for what, tokens, most in (
            ("prompt", request.prompt.tokens, self.prompt_tokens_max),
            ("max_output", request.max_output_tokens, self.max_output_tokens),
        ):
            if tokens > most:
                return f"request {request.id} has {tokens} {what} tokens, and {most} are certified"
        return None

    def check_weight(self, client: Client) -> None:
        """Raise `NotCertifiedError` for a weight that the certificate does not have."""
        if client.weight not in self.weights:
            known = ", ".join(map(str, sorted(self.weights)))
            raise NotCertifiedError(f"client {client.name!r} has weight {client.weight}; certified are {known}")


def read_certificates(path: Path) -> tuple[Certificate, ...]:
    """Return the certificates of a directory, or the one of a file; raises `ValueError` if it holds none."""
    file = path / MANIFEST if path.is_dir() else path
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file}: no certificate can be read: {error.strerror}") from None
    try:
        if file.name == MANIFEST:
            return msgspec.json.decode(raw, type=_Manifest).certificates
        return (Certificate.from_json(raw),)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def require_certificate(policy: object, certificate: Certificate | Path, kv_capacity_tokens: int) -> Certified:
    """Return what the engine is held to; raises `NotCertifiedError` unless a certificate matches the policy on this
    worker."""
    found = read_certificates(certificate) if isinstance(certificate, Path) else (certificate,)
    name = getattr(policy, "name", type(policy).__name__)
    # Of an author's policy the certificate may say where it is found instead.
    mine = [each for each in found if name in (each.policy, _name_in(each))]
    if not mine:
        held = ", ".join(each.policy for each in found) or "nothing"
        raise NotCertifiedError(f"policy {name!r} has no certificate here; there are certificates of {held}")
    wrong = list(_mismatches(policy, mine[0], kv_capacity_tokens))
    if wrong:
        raise NotCertifiedError(f"policy {name!r} is not what was certified:\n  " + "\n  ".join(wrong))
    sizes = msgspec.convert(mine[0].configuration["deployment"], _Deployment)
    return Certified(mine[0], sizes.prompt_tokens_max, sizes.max_output_tokens, frozenset(sizes.weights.values()))


def _name_in(certificate: Certificate) -> object:
    said = certificate.configuration.get("policy")
    return said.get("name") if isinstance(said, dict) else None


def _mismatches(policy: object, certificate: Certificate, kv_capacity_tokens: int) -> Iterator[str]:
    said = certificate.configuration
    if document_sha256(said) != certificate.configuration_sha256:
        yield "the certificate's configuration is not the one of its hash: the certificate was changed"
    try:
        here = configuration(policy)
    except ValueError as error:
        yield str(error)
    else:
        yield from differences(said.get("policy"), here)
    capacity = said.get("deployment", {}).get("kv_capacity_tokens")
    if capacity != kv_capacity_tokens:
        yield f"kv_capacity_tokens: {capacity} is certified, and this worker has {kv_capacity_tokens}"
    if not certificate.theorems:
        yield "the certificate proves no theorem"
    if not certificate.code:
        yield "the certificate names no code"
    yield from changed_code(certificate.code, policy)
