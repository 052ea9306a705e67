"""A gateway as a process. Read `process` first: how it is built, served and told to end; then `connections`;
`processes` runs several."""

from fairsched.engines.gateway.server.connections import Connections, sockets_at
from fairsched.engines.gateway.server.process import build, listening, log_to_stderr, loop_factory, serve
from fairsched.engines.gateway.server.processes import UNEXPLAINED, Spec, supervise

__all__ = [
    "UNEXPLAINED", "Connections", "Spec", "build", "listening", "log_to_stderr", "loop_factory", "serve", "sockets_at",
    "supervise"
]  # fmt: skip
