"""A gateway seen from outside: callers, mock servers behind it, a load test and a conformance suite.

Read `scenarios` first: what a gateway is held to, each as calls and a judgement of what happened.  `script` has calls
and what is recorded of them as values, `callers` sends them with a key or what `credentials` makes, `mock_server`
answers them, `suite` runs all scenarios and replays one.  `loadtest` replays a whole workload.
"""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.conformance.callers import Credentials, Gateways, Header, Keys
    from fairsched.engines.conformance.credentials import Certificates, Tokens
    from fairsched.engines.conformance.loadtest import LoadReplay, LoadTarget
    from fairsched.engines.conformance.scenarios import CLIENTS, SCENARIOS, ScenarioLimits
    from fairsched.engines.conformance.script import CallScript
    from fairsched.engines.conformance.suite import CheckedScenario, conform, read_failure, write_failure
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "CLIENTS", "SCENARIOS", "CallScript", "Certificates", "CheckedScenario", "Credentials", "Gateways", "Header",
    "Keys", "LoadReplay", "LoadTarget", "ScenarioLimits", "Tokens", "conform", "read_failure", "write_failure"
]  # fmt: skip
