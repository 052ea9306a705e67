"""The TLS of a gateway, towards callers and towards servers, from the files that its configuration names."""

import ssl
from functools import lru_cache
from typing import Literal

import attrs

from fairsched.engines.gateway.config.limits import ConfigError

TlsFiles = tuple[str | None, str | None, str | None]
"""Authorities, certificate chain, and private key, in PEM."""


@attrs.frozen
class TlsConfig:
    """Files of a certificate and its key, which SIGHUP reads again; without them callers speak plain HTTP."""

    certificate: str
    """Certificate chain in PEM."""
    key: str
    """Its private key in PEM."""
    client_ca: str | None = None
    """Certificates of the authorities that callers' certificates are checked by, in PEM (`identify`: `certificate`)."""
    client_name: Literal["CN", "DNS", "URI", "email"] = "CN"
    """What names a caller in its certificate: the subject's common name, or a subject alternative name of this kind."""


def tls_context(config: TlsConfig) -> ssl.SSLContext:
    """Return the context for callers.  Raises `ConfigError` for files that cannot be used.

    With `client_ca` a caller may show a certificate; one that these authorities did not sign ends the handshake.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.certificate, config.key)
        if config.client_ca is not None:
            context.load_verify_locations(cafile=config.client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
    except OSError as error:
        files = ", ".join(filter(None, (config.certificate, config.key, config.client_ca)))
        raise ConfigError(f"tls: {files}: {error}") from None
    return context


@lru_cache(maxsize=256)
def server_context(ca: str | None, certificate: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """Return the context for a server whose certificate the authorities in `ca` signed (None: the system's), and that
    is shown a certificate.  Raises `ConfigError` for files that cannot be used.

    Files are read once, so that connections are used again; `server_context.cache_clear()` has them read again.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except OSError as error:
        files = ", ".join(filter(None, (ca, certificate, key)))
        raise ConfigError(f"{files}: {error}") from None
    return context
