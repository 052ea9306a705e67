"""The servers behind a gateway: calls to them, which are there, which take calls. Read `health` first, then `fleet`."""

from fairsched.engines.gateway.servers.fleet import Fleet
from fairsched.engines.gateway.servers.probes import is_our_lack
from fairsched.engines.gateway.servers.retries import RetryBudget, retry_after_seconds
from fairsched.engines.gateway.servers.target import Upstream, Why, share_of

__all__ = ["Fleet", "RetryBudget", "Upstream", "Why", "is_our_lack", "retry_after_seconds", "share_of"]
