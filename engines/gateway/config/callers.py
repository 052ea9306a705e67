"""How callers are known, and the names that each way gives: an issuer's tokens, certificates, the header of a proxy.

A client of the file has the name that the file says.  A caller that a token, a certificate or a proxy vouches for, and
that the file does not list, is named by the way, its groups and what the way says: `jwt/acme/ann:app-7`.  Such a name
is told apart from every other one by its form, so no client of the file may have it, and no two callers share it.
"""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Literal
from urllib.parse import urlsplit

import attrs

from fairsched.engines.gateway.config.limits import not_negative, positive

Way = Literal["key", "header", "jwt", "certificate"]
"""How a caller is identified."""
Network = IPv4Network | IPv6Network

KEY_KINDS = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
"""The kind of public key by algorithm.  `none` and the algorithms with a shared secret are no part of it."""
PROGRAM_PRESETS = {
    "claude-code": ("x-claude-code-session-id",),
    "codex": ("session-id", "session_id"),
    "opencode": ("x-parent-session-id", "x-session-affinity"),
}
"""Headers of agent harnesses, the first that a call has: sessions that subagents share with the agent that began them.

Sources: Claude Code's gateway protocol reference; openai/codex, `build_conversation_headers` (`session_id`, and
`session-id` since its change 22193), where the threads of subagents have their root's session; anomalyco/opencode,
`session/llm/request.ts`, where a subagent has a session of its own and names its parent's.
"""
UNKNOWN_PREFIX = "~"
"""How the name of an unknown client begins."""
_VOUCHED = ("jwt", "certificate", "header")


def verified_name(way: Way, said: str, groups: Sequence[str] = ()) -> str:
    """Return the name of a caller that is known by `way` as `said` and that the file does not list.

    Different ways, groups or words give different names: within groups the marks that separate them are escaped.

    >>> verified_name("jwt", "app-7", ("acme", "ann"))
    'jwt/acme/ann:app-7'
    """
    return "/".join((way, *(_escaped(group, "%#/:") for group in groups))) + ":" + _escaped(said, "%#")


def claimed_groups(name: str) -> tuple[str, ...]:
    """Return the groups that the name of a verified caller says; none for any other name.

    >>> claimed_groups("jwt/acme/ann:app-7")
    ('acme', 'ann')
    """
    return tuple(name.partition(":")[0].split("/")[1:]) if _is_verified(name) else ()


def is_reserved(name: str) -> bool:
    """Return whether a name is of a form that only callers have which the file does not list."""
    return name.startswith(UNKNOWN_PREFIX) or _is_verified(name)


def names_no_group(name: str) -> bool:
    """Return whether no claim can be this group, since it has a mark that separates groups."""
    return _escaped(name, "%#/:") != name


def _is_verified(name: str) -> bool:
    head, colon, _ = name.partition(":")
    return bool(colon) and head.split("/")[0] in _VOUCHED


def _escaped(text: str, marks: str) -> str:
    # `#` is in the names of programs' seats.
    return "".join(f"%{ord(mark):02X}" if mark in marks else mark for mark in text)


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Return networks of texts like 10.0.0.0/8.  Raises `ValueError`, with the text."""
    found = []
    for text in texts:
        try:
            found.append(ip_network(text))
        except ValueError as error:
            raise ValueError(f"a network is like 10.0.0.0/8 or ::1/128: {error}") from None
    return tuple(found)


def check_networks(_: object, attribute: "attrs.Attribute[Any]", values: tuple[str, ...]) -> None:
    """Raise `ValueError` for a text that is no network."""
    try:
        networks(values)
    except ValueError as error:
        raise ValueError(f"{attribute.name}: {error}") from None


def is_url(source: str) -> bool:
    """Return whether a JWKS is to be fetched; otherwise it is a file."""
    return source.startswith(("http://", "https://"))


def _source(_: object, attribute: "attrs.Attribute[Any]", value: str) -> None:
    if not value or (is_url(value) and ("@" in value or not urlsplit(value).hostname)):
        raise ValueError(f"{attribute.name} is a file, or http(s)://HOST/PATH without user and password")


def _text(_: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
    if value is not None and not value:
        raise ValueError(f"{attribute.name} is empty")


def _algorithms(_: object, attribute: "attrs.Attribute[Any]", values: tuple[str, ...]) -> None:
    if not values:
        raise ValueError(f"{attribute.name} is empty")
    for value in values:
        if value not in KEY_KINDS:
            raise ValueError(f"{attribute.name}: {value!r} is none of {', '.join(KEY_KINDS)}, which have a public key")


@attrs.frozen
class JwtConfig:
    """Tokens of an issuer (JSON Web Tokens): which are taken, and what they say of their caller (extra `jwt`)."""

    jwks: str = attrs.field(validator=_source)
    """File or URL of the issuer's public keys (a JSON Web Key Set)."""
    issuer: str = attrs.field(validator=_text)
    """The claim `iss` of its tokens."""
    audience: str = attrs.field(validator=_text)
    """What the claim `aud` names, alone or among others."""
    algorithms: tuple[str, ...] = attrs.field(default=("RS256", "ES256"), validator=_algorithms)
    """Algorithms with a public key that are taken; `none` and shared secrets never are."""
    client_claim: str = attrs.field(default="sub", validator=_text)
    """The claim that names the client."""
    organisation_claim: str | None = attrs.field(default=None, validator=_text)
    """The claim that names its organisation (hierarchical gate)."""
    user_claim: str | None = attrs.field(default=None, validator=_text)
    """The claim that names its user in that organisation."""
    leeway_seconds: float = attrs.field(default=30.0, validator=not_negative)
    """By so much the clocks of issuer and gateway may differ."""
    refresh_seconds: float = attrs.field(default=300.0, validator=positive)
    """The keys are read again so often, where they have a URL."""
    retry_seconds: float = attrs.field(default=10.0, validator=positive)
    """Tokens of unknown keys have the keys read again, at most so often."""
    ca: str | None = attrs.field(default=None, validator=_text)
    """Certificates of the authorities that the URL's certificate is checked by, in PEM; none: the system's."""

    def __attrs_post_init__(self) -> None:
        if self.user_claim is not None and self.organisation_claim is None:
            raise ValueError("user_claim names a user of an organisation, and organisation_claim is missing")
