"""Who calls: by key, token, certificate or the header of a proxy. Read `names` first, then `tokens`."""

from fairsched.engines.gateway.identity.names import NO_PEER, CallerNames, Peer, access_warnings, told_name
from fairsched.engines.gateway.identity.tokens import Issuer, UnknownKeyError

__all__ = [
    "NO_PEER", "CallerNames", "Issuer", "Peer", "UnknownKeyError", "access_warnings", "told_name"
]  # fmt: skip
