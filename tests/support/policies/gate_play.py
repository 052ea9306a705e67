"""Random worlds of one worker in which everything happens that a gate is told, small or with very large numbers."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import attrs
from msgspec.structs import replace

from fairsched.model import worker as transitions
from fairsched.model.events import Admitted, ClientConfigured, Event, Settled
from fairsched.model.monitor import GateCheck
from fairsched.model.request import Groups, Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import Chunked
from fairsched.policies.gates import AnyGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import LongestPrefix, Order
from fairsched.verify.conformance import WorkerPlay

ACTIONS = ("arrive", "arrive", "step", "step", "step", "step", "cancel", "configure", "misjudge")


@attrs.frozen
class GatePlay:
    """What is drawn: so many clients, of these groups, memory for so many blocks of so many tokens, of which a step
    computes a few, and weights up to `weight_max`."""

    clients: int = 3
    capacity_blocks: int = 24
    step_blocks: int = 4
    block_tokens: int = 1
    weight_max: int = 1
    actions: int = 80
    places: tuple[Groups, ...] = ()
    kinds: tuple[str, ...] = ACTIONS

    def policy(self, gate: AnyGate, order: Order | None = None) -> ComposedPolicy:
        """The gate under an order.  Prompts take several steps, and as many requests decode as there is memory for."""
        rule = Chunked(max_batched_tokens=self.step_blocks * self.block_tokens, max_running=16)
        return ComposedPolicy("played", order or LongestPrefix(), gate, rule)

    def play(self, policy: ComposedPolicy, seed: int) -> Iterator[tuple[Any, Any, list[Event]]]:
        """The policy's state and the worker's view before each action, and the events of it."""
        rng = Random(seed)
        play = WorkerPlay(policy, WorkerState(0, self.capacity_blocks * self.block_tokens))
        came = 0
        for client, groups in enumerate(self.places):
            yield play.state, play.worker.view(0), self._told(play, ClientConfigured(0, 0, client, 1, groups))
        for now_ns in range(self.actions):
            before = play.state, play.worker.view(now_ns)
            action = rng.choice(self.kinds)
            events: list[Event] = []
            if action in ("arrive", "flood"):
                alone = rng.randrange(self.clients) if action == "flood" else None
                for _ in range(rng.randint(1, 3 if action == "flood" else self.clients)):
                    request = self._request(rng, came, now_ns, alone)
                    events += play.arrive(request, rng.randint(1, request.max_output_tokens), now_ns)
                    came += 1
            elif action == "configure":
                event = ClientConfigured(now_ns, 0, rng.randrange(self.clients), rng.randint(1, self.weight_max))
                events = self._told(play, event) if self.weight_max > 1 else []
            elif action == "cancel":
                alive = sorted({*play.worker.queue, *play.worker.running})
                if alive:
                    events = play.follow(transitions.cancel(play.worker, rng.choice(alive), now_ns))
            else:
                events = self._steps(play, now_ns, rng.randint(1, 3) if action == "misjudge" else 0)
            yield *before, events

    def _request(self, rng: Random, number: int, now_ns: int, alone: int | None = None) -> Request:
        """Return a request of any client, or one of `alone` whose output takes up to all memory."""
        if alone is not None:
            rest = self.capacity_blocks - 1
            return Request(number, alone, now_ns, Prompt(1), rng.choice((rng.randint(1, rest), rest)))
        keys = [rng.randrange(3) for _ in range(rng.randint(1, 5))]
        prompt = Prompt.from_keys(keys, block_tokens=self.block_tokens, tokens=len(keys) * self.block_tokens + 1)
        return Request(number, rng.randrange(self.clients), now_ns, prompt, rng.randint(1, 8))

    def _told(self, play: WorkerPlay, event: Event) -> list[Event]:
        play.state = play.policy.observe(play.state, event)
        return [event]

    def _steps(self, play: WorkerPlay, now_ns: int, more: int) -> list[Event]:
        """One step; with `more` the last admission is charged for so much more first, settles for less than it
        computes, and then for what it does compute."""
        if not more:
            return play.step(now_ns)
        plan, _ = play.policy.decide(play.state, play.worker.view(now_ns))
        play.worker, begun = transitions.begin(play.worker, plan, now_ns)
        last = next((event for event in reversed(begun) if isinstance(event, Admitted)), None)
        told: list[Event] = []
        for event in begun:
            told.append(event)
            if event is last:
                true = event.extend_tokens
                planned = min(true + more * self.block_tokens, true + event.cached_prefix_tokens)
                told[-1] = replace(
                    event, extend_tokens=planned, cached_prefix_tokens=event.cached_prefix_tokens + true - planned
                )
                ids = (now_ns, 0, event.request_id, event.client)
                told += [Settled(*ids, (true + 1) // 2), Settled(*ids, true)]
        for event in told:
            play.state = play.policy.observe(play.state, event)
        return told + play.follow(transitions.finish(play.worker, plan, 1, now_ns))


def past_the_gate(policy: ComposedPolicy, world: GatePlay, monitor: GateCheck, seed: int) -> list[str]:
    """The admissions of a run of the policy that a monitor says were past the gate."""
    found = []
    for _, _, events in world.play(policy, seed):
        found += [why for event in events if (why := monitor.observe(event)) is not None]
    return found


def first_seed(found: Callable[[int], Any], seeds: int) -> int | None:
    """The first of so many seeds at which something is found."""
    return next((seed for seed in range(seeds) if found(seed)), None)
