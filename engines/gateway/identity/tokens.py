"""Tokens (JSON Web Tokens): what they say of their caller, once the key of their issuer has verified them.

The issuer's public keys come from a file or a URL.  They are read again now and then, and when a token names a key that
is not among them, at most every `retry_seconds`, however many such tokens come.  While the URL cannot be read, the keys
that were read last stay.  No other algorithm than those of the configuration is taken, and each only with a key of its
kind, so that a public key never serves as a shared secret.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from fairsched.engines.gateway.config import KEY_KINDS, JwtConfig, is_url
from fairsched.engines.gateway.openai import CallError
from fairsched.engines.gateway.tls import server_context
from fairsched.engines.settings import ConfigError
from fairsched.model import installing

_log = logging.getLogger("fairsched.gateway")

KEYS_BYTES_MAX = 1 << 20
"""Longest set of keys."""
FETCH_SECONDS = 5.0
"""A URL that has not answered by then is away."""


_WHY = {
    "InvalidSignatureError": "the token's signature is wrong",
    "ExpiredSignatureError": "the token has expired",
    "ImmatureSignatureError": "the token is not valid yet",
    "InvalidIssuerError": "the token is of another issuer",
    "InvalidAudienceError": "the token is for another audience",
}
"""What is wrong with a token, by PyJWT's exceptions."""


class UnknownKeyError(CallError):
    """No key that is here made the token's signature; reading the keys again may bring it."""


@attrs.frozen
class _Key:
    """A public key of the issuer: its name, its kind, and the one algorithm that it is for, if it says so."""

    kid: str | None
    kind: str
    algorithm: str | None
    public: Any


class Issuer:
    """The keys of an issuer, and what its tokens say.  `clock` gives seconds.

    Raises `ConfigError` for a file of keys that cannot be used, and where the extra `jwt` is missing.
    """

    def __init__(self, config: JwtConfig, clock: Callable[[], float] = time.monotonic) -> None:
        try:
            import jwt
        except ImportError:
            raise ConfigError(f"jwt: tokens need another package: {installing('jwt')}") from None
        self._jwt = jwt
        self._config = config
        self._clock = clock
        self._keys: tuple[_Key, ...] = ()
        self._next = -float("inf")
        self._fetching: asyncio.Task[None] | None = None
        if not is_url(config.jwks):
            self._take(self._read())

    # --- keys -------------------------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Read a file of keys again, and let a URL be read again at the next unknown key."""
        self._next = -float("inf")
        if not is_url(self._config.jwks):
            try:
                self._take(self._read())
            except ConfigError as error:
                _log.warning("the keys of %s stay as they were: %s", self._config.issuer, error)

    async def run(self) -> None:
        """Read the keys of a URL now and then, until cancelled."""
        try:
            while is_url(self._config.jwks):
                await self.refresh()
                await asyncio.sleep(self._config.refresh_seconds if self._keys else self._config.retry_seconds)
        finally:
            if (fetching := self._fetching) is not None:
                # It is shielded from those who wait for it.
                fetching.cancel()
                await asyncio.wait([fetching])

    async def refresh(self) -> None:
        """Read the keys again, unless that was tried within `retry_seconds`; all who wait share one attempt."""
        if self._fetching is None:
            if self._clock() < self._next:
                return
            self._next = self._clock() + self._config.retry_seconds
            self._fetching = asyncio.ensure_future(self._fetch())
            self._fetching.add_done_callback(self._fetched)
        # A caller that leaves takes the attempt from no other.
        await asyncio.shield(self._fetching)

    def _fetched(self, _: "asyncio.Task[None]") -> None:
        self._fetching = None

    async def _fetch(self) -> None:
        try:
            self._take(await self._download() if is_url(self._config.jwks) else self._read())
        except (OSError, ValueError) as error:
            _log.warning("the keys of %s stay as they were: %s", self._config.issuer, error)

    def _read(self) -> bytes:
        try:
            return Path(self._config.jwks).read_bytes()
        except OSError as error:
            raise ConfigError(f"jwt.jwks: {error}") from None

    async def _download(self) -> bytes:
        """Return the document at the URL.  Raises `OSError`, `ValueError`."""
        import aiohttp

        config, timeout = self._config, aiohttp.ClientTimeout(total=FETCH_SECONDS)
        tls = True if config.ca is None else server_context(config.ca)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as http,
                http.get(config.jwks, ssl=tls, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    raise ValueError(f"{config.jwks}: HTTP {answer.status}")
                body = bytearray()
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > KEYS_BYTES_MAX:
                        raise ValueError(f"{config.jwks}: more than {KEYS_BYTES_MAX} bytes")
                return bytes(body)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ValueError(f"{config.jwks}: {type(error).__name__}: {error}") from None

    def _take(self, document: bytes) -> None:
        """Have the keys of a document from now on.  Raises `ConfigError` for one without any that can be used."""
        try:
            listed = json.loads(document)["keys"]
            keys = [self._key(each) for each in listed]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigError(f"jwt.jwks: {self._config.jwks} is no JSON Web Key Set: {type(error).__name__}") from None
        found = tuple(key for key in keys if key is not None)
        if not found:
            kinds = ", ".join(dict.fromkeys(KEY_KINDS[each] for each in self._config.algorithms))
            raise ConfigError(f"jwt.jwks: {self._config.jwks} has no public key of kind {kinds} for signatures")
        self._keys = found

    def _key(self, said: Any) -> _Key | None:
        """Return a public key for signatures, None for any other: what is secret or for encryption is left out."""
        kinds = [KEY_KINDS[each] for each in self._config.algorithms]
        if not isinstance(said, dict) or said.get("kty") not in kinds or "d" in said or said.get("use") == "enc":
            return None
        try:
            public = self._jwt.PyJWK(said).key
        except (self._jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError):
            return None
        return _Key(said.get("kid"), said["kty"], said.get("alg"), public)

    # --- tokens -----------------------------------------------------------------------------------------------------

    def claims(self, token: str) -> Mapping[str, object]:
        """Return what a token says.  O(1): one signature.

        Raises `CallError` (401) for one that is not to be believed, with what is wrong; `UnknownKeyError` where it is
        only its key that is not known, with 503 while no key was read.
        """
        try:
            head = self._jwt.get_unverified_header(token)
        except (self._jwt.InvalidTokenError, ValueError, RecursionError):
            raise CallError(401, "the token is no JSON Web Token") from None
        algorithm, kid = head.get("alg"), head.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._config.algorithms:
            raise CallError(401, f"a token is signed with {' or '.join(self._config.algorithms)}, and this one is not")
        if "crit" in head:
            raise CallError(401, "the token wants what is not known here (crit)")
        if not self._keys:
            seconds = round(self._config.retry_seconds) or 1
            raise UnknownKeyError(503, "the keys of the token's issuer cannot be had now", seconds)
        keys = [
            key
            for key in self._keys
            if key.kind == KEY_KINDS[algorithm]
            and key.algorithm in (None, algorithm)
            and (kid is None or key.kid == kid)
        ]
        if not keys:
            raise UnknownKeyError(401, "the token's issuer has no such key (kid)")
        if kid is None and len(keys) > 1:
            raise CallError(401, "the token does not say which key of its issuer signed it (kid)")
        return self._verified(token, keys, algorithm)

    def _verified(self, token: str, keys: list[_Key], algorithm: str) -> Mapping[str, object]:
        """Return what a token says that one of these keys has signed.  Raises `CallError` (401)."""
        config, why = self._config, ""
        for key in keys:
            try:
                claims: Mapping[str, object] = self._jwt.decode(
                    token,
                    key.public,
                    algorithms=[algorithm],
                    audience=config.audience,
                    issuer=config.issuer,
                    leeway=config.leeway_seconds,
                    options={"require": ["exp", "iss", "aud"]},
                )
                return claims
            except (self._jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
                why = _WHY.get(type(error).__name__, "the token cannot be used")
                if isinstance(error, self._jwt.MissingRequiredClaimError):
                    why = f"the token has no claim {error.claim}"
        raise CallError(401, why)
