"""What every cluster policy that holds requests must do: the routers' battery, with requests that wait for a decision.

Beside what `conformance_router` claims of a router:

- **Held.**  What is dispatched was held, is dispatched once, and goes to a worker that the view shows.
- **Answered.**  A caller may give up while its request is held, and it is not dispatched afterwards.

The author of such a policy calls `check_cluster_policy(MyPolicy())`.
"""

from typing import Any

from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from fairsched.model.events import NOWHERE, Arrived, Cancelled
from fairsched.model.plan import Dispatch
from fairsched.model.request import Request
from fairsched.model.view import ClusterView
from fairsched.policies.base import ClusterPolicy
from fairsched.verify.conformance_router import RouterMachine, picks

__all__ = ["check_cluster_policy", "machine"]


def machine(policy: ClusterPolicy[Any]) -> type["ClusterMachine"]:
    """The state machine of a policy, for those who want to run it their own way."""
    return type(f"Conformance[{type(policy).__name__}]", (ClusterMachine,), {"router": policy})


def check_cluster_policy(policy: ClusterPolicy[Any], settings: hypothesis_settings | None = None) -> None:
    """Play the whole battery against a policy; raises what it finds, after the shortest way there was printed."""
    chosen = hypothesis_settings(settings, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine(policy), settings=chosen)


class ClusterMachine(RouterMachine):
    """A few workers, one policy that holds requests, and whatever may happen to them."""

    router: Any

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, tuple[Request, int]] = {}
        """Requests that are at no worker, with the tokens that they have."""

    @precondition(lambda m: m.held)
    @rule(pick=picks)
    def give_up(self, pick: int) -> None:
        """A caller gives up a request that is held."""
        request_id = sorted(self.held)[pick % len(self.held)]
        request, done = self.held.pop(request_id)
        self.tell_of_nobody(Cancelled(self.now_ns, NOWHERE, request_id, request.client, False, 0, done))

    @rule(times=st.integers(1, 2))
    def decide(self, times: int = 1) -> None:
        """What the policy dispatches goes, and what it wants to move moves."""
        for _ in range(times):
            view = ClusterView(self.now_ns, tuple(self.servers[worker].report for worker in self.serving()))
            before = self.encoded(self.state)
            plan, after = self.router.decide(self.state, view)
            for state in (self.state, self.restored(self.state)):
                again, after_again = self.router.decide(state, view)
                assert again == plan, f"the same state and view gave {plan} and {again}"
                assert self.encoded(after_again) == self.encoded(after), "the same decision left two different states"
            assert self.encoded(self.state) == before, "decide changed the state that it was given"
            self.router.check(after)
            self.state = after
            for dispatch in plan.dispatches:
                self.dispatched(dispatch, [load.worker for load in view.workers])
            for migration in plan.migrations:
                if self.home.get(migration.request_id) == migration.source:
                    self.migrate(migration)

    def dispatched(self, dispatch: Dispatch, workers: list[int]) -> None:
        """A held request goes to its worker."""
        assert dispatch.request_id in self.held, f"request {dispatch.request_id} is dispatched and not held"
        assert dispatch.worker in workers, f"the view has no worker {dispatch.worker}"
        request, done = self.held.pop(dispatch.request_id)
        self.deliver(request, done, dispatch.worker)

    def place(self, request: Request, generated_tokens: int) -> None:
        """It is held from now on."""
        self.held[request.id] = (request, generated_tokens)
        self.tell_of_nobody(Arrived(self.now_ns, NOWHERE, request, generated_tokens))

    def tell_of_nobody(self, event: Arrived | Cancelled) -> None:
        """The policy learns what happens to a request at no worker."""
        before = self.encoded(self.state)
        after = self.router.observe(self.state, event)
        assert self.encoded(self.state) == before, "observe changed the state that it was given"
        self.router.check(after)
        self.state = after
