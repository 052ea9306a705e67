"""The TLS of a gateway, towards callers and towards servers, from the files that its configuration names."""

import ssl
from functools import lru_cache

from fairsched.engines.gateway.config import GatewayConfig, TlsConfig
from fairsched.engines.settings import ConfigError


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


def check_files(config: GatewayConfig) -> None:
    """Raise `ConfigError` for certificates, keys or authorities that cannot be used as they are now."""
    if config.tls is not None:
        tls_context(config.tls)
    if config.jwt is not None and config.jwt.ca is not None:
        server_context.__wrapped__(config.jwt.ca)
    for i, server in enumerate(config.servers):
        if server.tls_files is not None:
            try:
                server_context.__wrapped__(*server.tls_files)
            except ConfigError as error:
                raise ConfigError(f"server[{i}]: {error}") from None
