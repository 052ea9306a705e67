"""Loads for a small worker that computes, and the smallest serving loop to drive it: what its tests share."""

import hashlib
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import attrs
from hypothesis import strategies as st

from fairsched.engines.serving import Executor, Sampling
from fairsched.engines.torch import Llama
from fairsched.engines.torch.executor import TorchExecutor
from fairsched.engines.torch.model import SIZES
from fairsched.model.events import Admitted, Event, Preempted
from fairsched.model.request import KEY_BYTES, Prompt, Request
from fairsched.model.worker import Step, WorkerState, transitions
from fairsched.policies.base import AnyLocalPolicy
from fairsched.policies.batching import BATCHINGS, Batching
from fairsched.policies.registry import LOCAL_POLICIES
from tests.support.policies.pausing import RandomPauses

CAPACITY = 64
RUNNING_MAX = 6
MODEL = Llama.random(SIZES["tiny"])


@attrs.frozen
class Call:
    """A request of the load: when it comes (in steps), what it says, how long its answer is, when its caller leaves."""

    step: int
    client: int
    ids: tuple[int, ...]
    output_tokens: int
    sampling: Sampling
    cancelled_after: int | None


@attrs.frozen
class World:
    """A policy with its batching rule, a page size and a load."""

    policy: AnyLocalPolicy
    page_tokens: int
    calls: tuple[Call, ...]


@st.composite
def worlds(draw: st.DrawFn, policies: Sequence[str] = tuple(sorted(LOCAL_POLICIES))) -> World:
    """Loads that outgrow a small worker, whose prompts share prefixes, in chunks of a few tokens.

    Sizes and tokens come from a drawn seed, since Hypothesis likes numbers small and alike, and such loads fit.
    """
    rng = Random(draw(st.integers(0, 1 << 32)))
    batching: Batching = BATCHINGS[draw(st.sampled_from(sorted(BATCHINGS)))](
        max_batched_tokens=rng.randint(1, 40),
        max_running=rng.randint(1, RUNNING_MAX),
        reserve=rng.choice(("static", "optimistic", "optimistic")),
    )
    if batching.refuses(CAPACITY):
        # A rule that refuses what is longer than its budget: here every prompt is to be served.
        batching = attrs.evolve(batching, max_batched_tokens=CAPACITY)
    policy: AnyLocalPolicy = attrs.evolve(LOCAL_POLICIES[draw(st.sampled_from(policies))], batching=batching)
    if rng.random() < 0.3:
        policy = RandomPauses(policy)  # type: ignore[arg-type]
    stems = [_tokens(rng, rng.randint(1, 24)) for _ in range(rng.randint(1, 2))]
    calls = []
    for _ in range(rng.randint(1, 12)):
        stem = rng.choice(stems)
        calls.append(
            Call(
                step=rng.randint(0, 8),
                client=rng.randint(0, 2),
                ids=stem[: rng.randint(0, len(stem))] + _tokens(rng, rng.randint(1, 16)),
                output_tokens=rng.randint(1, 24),
                sampling=Sampling(
                    temperature=rng.choice((0.0, 0.7, 2.0)),
                    top_k=rng.choice((0, 1, 5, 1000)),
                    seed=rng.randint(-3, 1 << 70),
                ),
                cancelled_after=rng.choice((None, None, rng.randint(0, 12))),
            )
        )
    return World(policy, draw(st.sampled_from((1, 3, 4, 16))), tuple(calls))


def _tokens(rng: Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(MODEL.config.vocab_size) for _ in range(count))


def prompt_of(ids: tuple[int, ...], block_tokens: int) -> Prompt:
    """The prompt with a key for each whole block, which names all tokens up to its end."""
    blocks = len(ids) // block_tokens
    keys = [
        hashlib.blake2b(repr(ids[: (block + 1) * block_tokens]).encode(), digest_size=KEY_BYTES).digest()
        for block in range(blocks)
    ]
    return Prompt.from_keys(b"".join(keys), block_tokens=block_tokens, tokens=len(ids))


class Drive:
    """A worker, its policy and an executor, step by step: the smallest serving loop."""

    def __init__(self, world: World, executor: Executor) -> None:
        self.world = world
        self.executor = executor
        self.worker = WorkerState(0, CAPACITY)
        self.policy_state: Any = world.policy.init()
        self.answers: dict[int, list[int]] = {i: [] for i in range(len(world.calls))}
        self.seen: list[Event] = []
        self.now_ns = 0

    def run(self) -> Iterator[None]:
        """Serve the whole load; stops after each step for whoever wants to look."""
        last = max(call.step for call in self.world.calls)
        while self.now_ns <= last or self.worker.queue or self.worker.in_flight:
            self.callers()
            self.step()
            yield

    def callers(self, *, leave_only: bool = False) -> None:
        """Callers come, and leave."""
        for i, call in enumerate(self.world.calls):
            if call.step == self.now_ns and not leave_only:
                prompt = prompt_of(call.ids, self.world.page_tokens)
                self.executor.submit(i, call.ids, call.sampling)
                request = Request(i, call.client, self.now_ns, prompt, call.output_tokens)
                self.moved(transitions.arrive(self.worker, request, call.output_tokens, self.now_ns))
            leaves = call.cancelled_after is not None and call.step + call.cancelled_after == self.now_ns
            if leaves and (i in self.worker.queue or i in self.worker.in_flight):
                self.moved(transitions.cancel(self.worker, i, self.now_ns))

    def step(self) -> None:
        """Decide and compute a step."""
        plan, self.policy_state = self.world.policy.decide(self.policy_state, self.worker.view(self.now_ns))
        self.moved(transitions.begin(self.worker, plan, self.now_ns), decided=True)
        for request_id, token in self.executor.execute(plan).items():
            self.answers[request_id].append(token)
        self.now_ns += 1
        self.moved(transitions.finish(self.worker, plan, 1, self.now_ns))

    def moved(self, step: Step, decided: bool = False) -> None:
        """A transition happened."""
        self.worker, events = step
        self.seen.extend(events)
        self.executor.follow(events)
        for event in events:
            if not (decided and isinstance(event, Admitted | Preempted)):
                self.policy_state = self.world.policy.observe(self.policy_state, event)


def executor_for(world: World, model: Llama = MODEL) -> TorchExecutor:
    """An executor of the size of the world's worker."""
    return TorchExecutor(model, CAPACITY, page_tokens=world.page_tokens, running_max=RUNNING_MAX)


def served(world: World, executor: Executor) -> Drive:
    """The whole load, served."""
    drive = Drive(world, executor)
    for _ in drive.run():
        pass
    return drive
