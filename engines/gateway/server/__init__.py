"""A gateway as a process. Read `process` first: how it is built, served and told to end; then `connections`;
`supervisor` runs several, each a `child`."""

from fairsched.engines.gateway.server.connections import Connections, descriptors
from fairsched.engines.gateway.server.process import (
    Recorded,
    build,
    listening,
<<<<<<< HEAD
    log_opener,
    reload,
    serve,
    serving_text,
)
from fairsched.engines.gateway.server.supervisor import Spec, supervise

__all__ = [
    "Connections", "Recorded", "Spec", "build", "descriptors", "listening", "log_opener", "reload", "serve",
    "serving_text", "supervise"
]  # fmt: skip
=======
    loop_factory,
    reload,
    serve,
    tls_context,
)

__all__ = [
    "Connections",
    "Recorded",
    "build",
    "descriptors",
    "listening",
    "loop_factory",
    "reload",
    "serve",
    "tls_context",
]
>>>>>>> main
