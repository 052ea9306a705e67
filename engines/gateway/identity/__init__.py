"""Who calls: by key, token, certificate or the header of a proxy. Read `names` first, then `tokens`."""

from fairsched.engines.gateway.identity.names import CallerNames, Peer, access_warnings, told_name

__all__ = ["CallerNames", "Peer", "access_warnings", "told_name"]
