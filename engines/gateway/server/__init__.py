"""A gateway as a process. Read `process` first: how it is built, served and told to end; then `connections`."""

from fairsched.engines.gateway.server.connections import Connections, descriptors
from fairsched.engines.gateway.server.process import Recorded, build, listening, reload, serve, tls_context

__all__ = ["Connections", "Recorded", "build", "descriptors", "listening", "reload", "serve", "tls_context"]
