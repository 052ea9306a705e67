"""A worker and a policy played by hand: what tests of single behaviours share."""

from collections import Counter
from typing import Any

from fairsched.model.decision import Host, StepPlan
from fairsched.model.events import Admitted, ClientConfigured, Decoded, Event, Finished, Preempted
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState, transitions
from fairsched.policies.local import ComposedPolicy


class Play:
    """One worker under one policy; time is the number of steps taken."""

    def __init__(
        self,
        policy: ComposedPolicy,
        kv_capacity_tokens: int = 100,
        host_capacity_tokens: int = 0,
        adapter_slots: int = 0,
    ) -> None:
        self.policy = policy
        self.worker = WorkerState(0, kv_capacity_tokens, host=Host(host_capacity_tokens), adapter_slots=adapter_slots)
        self.state: Any = policy.init()
        self.now_ns = 0
        self.events: list[Event] = []
        self.count = 0

    def arrive(
        self, client: int = 0, prompt: Prompt | int = 4, output: int = 2, output_max: int | None = None, **fields: Any
    ) -> int:
        """A request comes, perhaps with other fields; its id, which counts arrivals."""
        given = prompt if isinstance(prompt, Prompt) else Prompt(prompt)
        request = Request(self.count, client, self.now_ns, given, output_max or output, **fields)
        self.count += 1
        self.worker, events = transitions.arrive(self.worker, request, output, self.now_ns)
        self.tell(events)
        return request.id

    def cancel(self, request_id: int) -> None:
        """A caller gives up."""
        self.worker, events = transitions.cancel(self.worker, request_id, self.now_ns)
        self.tell(events)

    def configure(self, client: int, weight: int) -> None:
        """A client's weight is set."""
        self.tell([ClientConfigured(self.now_ns, 0, client, weight)])

    def decide(self) -> StepPlan:
        """What the policy would do now."""
        return self.policy.decide(self.state, self.worker.view(self.now_ns))[0]

    def admitted(self) -> list[int]:
        """Whom it would admit now."""
        return [admission.request_id for admission in self.decide().admit]

    def step(self, count: int = 1) -> StepPlan:
        """Take steps; the last one's plan."""
        plan = StepPlan()
        for _ in range(count):
            plan, self.state = self.policy.decide(self.state, self.worker.view(self.now_ns))
            self.worker, events = transitions.begin(self.worker, plan, self.now_ns)
            self.tell(events, decided=True)
            self.now_ns += 1
            self.worker, events = transitions.finish(self.worker, plan, 1, self.now_ns)
            self.tell(events)
        return plan

    def tell(self, events: list[Event], decided: bool = False) -> None:
        """The policy learns events, except those that it decided itself."""
        self.events.extend(events)
        for event in events:
            if not (decided and isinstance(event, Admitted | Preempted)):
                self.state = self.policy.observe(self.state, event)
        self.policy.check(self.state)

    def finished(self) -> list[int]:
        """Who has finished, in order."""
        return [event.request_id for event in self.events if isinstance(event, Finished)]

    def service(self) -> Counter[int]:
        """Computed tokens by client: 1 for an extend token, 2 for an output token."""
        total: Counter[int] = Counter()
        for event in self.events:
            if isinstance(event, Admitted):
                total[event.client] += event.extend_tokens
            elif isinstance(event, Decoded):
                for client, tokens in zip(event.clients, event.tokens, strict=True):
                    total[client] += 2 * tokens
        return total
