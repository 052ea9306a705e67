"""BatchLLM's token batching: the policy beside the paper's three queues, step by step; members follow their prefix.

The queues are written here by hand from the paper's rule, on lists of their own, and know nothing of ranks, prefix
trees or caches.  Where the paper is silent they say what this library does (`ThreeQueues`).
"""

from collections import Counter
from fractions import Fraction
from typing import Any

import attrs
import numpy as np
import pytest

from fairsched.model.events import Admitted, Arrived, Cached, Event, Evicted, Preempted
from fairsched.model.request import KEY_BYTES, Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import MemoryCentric
from fairsched.policies.catalog import BatchLLM
from fairsched.verify.conformance import WorkerPlay

STATES = 10_000
OWN = 1_000


@attrs.frozen
class Job:
    """A prompt of a group: tokens behind the shared prefix, and tokens to produce."""

    id: int
    group: int
    own: int
    outputs: int


@attrs.frozen
class Batch:
    """Prompts that come at once, the prefix of each group, and a worker."""

    jobs: tuple[Job, ...]
    prefixes: tuple[int, ...]
    step_tokens: int
    capacity: int
    percent: int

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> "Batch":
        """Up to eight groups of up to six, shuffled; the worker evicts nothing, and its threshold may bind."""
        prefixes = rng.integers(1, 40, rng.integers(1, 9))
        sizes = rng.integers(1, 7, len(prefixes))
        groups = rng.permutation(np.repeat(np.arange(len(prefixes)), sizes)).tolist()
        jobs = tuple(Job(i, g, int(rng.integers(1, 12)), int(rng.integers(1, 9))) for i, g in enumerate(groups))
        every = sum(int(prefixes[job.group]) + job.own + job.outputs for job in jobs)
        return cls(jobs, tuple(prefixes.tolist()), int(rng.integers(2, 60)), every, int(rng.integers(1, 101)))

    def request(self, job: Job) -> Request:
        """The request of a job: its group's prefix, then tokens that no other prompt has."""
        prompt = Prompt.from_keys([job.group] * self.prefixes[job.group] + [OWN + job.id] * job.own)
        return Request(job.id, 0, 0, prompt, job.outputs)


class ThreeQueues:
    """The paper's token batching: each step takes tokens from the decodes, then from distinct prompts, then from
    prefixes, up to so many tokens, and a prompt begins only if KV stays within the threshold.

    A group's prefix stands in the third queue; when it is computed, the group's distinct prompts join the second.
    Groups are in the order of their outputs to their tokens, outputs counted as one each.  Of the paper's silence: a
    prefix is computed as part of the group's first prompt; a prompt that is alone in its group stands in the third
    queue; a prompt takes KV for all of it and its output when it begins; the first that does not fit ends what begins
    in a step, unless nothing runs; what has begun goes on before others of its queue.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        members: dict[int, list[Job]] = {}
        for job in batch.jobs:
            members.setdefault(job.group, []).append(job)
        self.members = members
        self.prefixes = sorted(members, key=lambda group: (-self._density(group), members[group][0].id))
        self.distinct: list[Job] = []
        self.begun_distinct: list[tuple[Job, int]] = []
        self.begun_prefixes: list[tuple[Job, int]] = []
        self.decodes: dict[int, int] = {}
        self.running: dict[int, Job] = {}

    def _density(self, group: int) -> Fraction:
        there = self.members[group]
        return Fraction(len(there), self._prefix(group) + sum(job.own for job in there))

    def _prefix(self, group: int) -> int:
        return self.batch.prefixes[group]

    def _in_use(self, jobs: list[Job]) -> int:
        """KV of requests that run together: a prefix counts once."""
        return sum(job.own + job.outputs for job in jobs) + sum(map(self._prefix, {job.group for job in jobs}))

    def _fits(self, job: Job) -> bool:
        if not self.running:
            return True
        withheld = self.batch.capacity * (100 - self.batch.percent) // 100
        return self._in_use([*self.running.values(), job]) <= self.batch.capacity - withheld

    def step(self) -> tuple[list[int], list[tuple[int, int]]]:
        """Take one step; returns the requests that began in it, and its chunks, in order."""
        budget = self.batch.step_tokens - len(self.decodes)
        begun: list[int] = []
        chunks: list[tuple[int, int]] = []
        fits = True

        def continued(queue: list[tuple[Job, int]]) -> None:
            nonlocal budget
            for place, (job, left) in enumerate(queue):
                if budget <= 0:
                    break
                chunk = min(left, budget)
                budget -= chunk
                chunks.append((job.id, chunk))
                queue[place] = (job, left - chunk)

        def begins(job: Job, tokens: int, queue: list[tuple[Job, int]]) -> bool:
            nonlocal budget
            if not self._fits(job):
                return False
            chunk = min(tokens, budget)
            budget -= chunk
            begun.append(job.id)
            chunks.append((job.id, chunk))
            self.running[job.id] = job
            queue.append((job, tokens - chunk))
            return True

        continued(self.begun_distinct)
        while self.distinct and budget > 0 and fits:
            job = self.distinct[0]
            fits = begins(job, job.own, self.begun_distinct)
            if fits:
                self.distinct.pop(0)
        continued(self.begun_prefixes)
        while self.prefixes and budget > 0 and fits:
            first = self.members[self.prefixes[0]][0]
            fits = begins(first, self._prefix(first.group) + first.own, self.begun_prefixes)
            if fits:
                self.prefixes.pop(0)
        self._end_step()
        return begun, chunks

    def _end_step(self) -> None:
        """Each decode has one token more; prompts that are computed have their first, and free their group's others."""
        for request_id in list(self.decodes):
            self._produced(request_id)
        for job, left in self.begun_prefixes:
            if not left:
                self.distinct += self.members[job.group][1:]
        for queue in (self.begun_distinct, self.begun_prefixes):
            for job, left in queue:
                if not left:
                    self.decodes[job.id] = job.outputs
                    self._produced(job.id)
        self.begun_distinct = [(job, left) for job, left in self.begun_distinct if left]
        self.begun_prefixes = [(job, left) for job, left in self.begun_prefixes if left]

    def _produced(self, request_id: int) -> None:
        self.decodes[request_id] -= 1
        if not self.decodes[request_id]:
            del self.decodes[request_id], self.running[request_id]


def test_steps_are_those_of_the_three_queues() -> None:
    """In 10,000 states of drawn batches the policy begins the requests, and computes the chunks, that the paper's three
    queues do, in the same order."""
    rng = np.random.default_rng(14)
    states, waited = 0, Counter[str]()
    while states < STATES:
        batch = Batch.drawn(rng)
        rule = MemoryCentric(max_batched_tokens=batch.step_tokens, kv_threshold_percent=batch.percent)
        play, queues = WorkerPlay(BatchLLM(batching=rule), WorkerState(0, batch.capacity)), ThreeQueues(batch)
        for job in batch.jobs:
            play.arrive(batch.request(job), job.outputs, 0)
        while play.worker.queue or play.worker.running:
            waited["prefix postponed"] += bool(queues.begun_prefixes and queues.distinct)
            waited["memory"] += bool(queues.running and queues.distinct and not queues._fits(queues.distinct[0]))
            plan = play.decide(states)
            begun, chunks = queues.step()
            assert [admission.request_id for admission in plan.admit] == begun, batch
            assert list(plan.chunks) == chunks, batch
            play.execute(plan, states)
            states += 1
        assert not queues.running
    # The draws reach what is in question.
    assert min(waited.values()) > STATES / 50


# --- members follow their prefix --------------------------------------------------------------------------------------


EARLY, LATE = range(40), range(40, 60)
"""Families of twelve that share 300 tokens and are there from the start, and of 24 that share 100 and come later."""


def shuffled(families: range, degree: int, rng: np.random.Generator) -> list[int]:
    """The family of each prompt, in random order."""
    return rng.permutation(np.repeat(np.array(families), degree)).tolist()  # type: ignore[no-any-return]


def shared(family: int) -> int:
    """How many tokens the prompts of a family share."""
    return 300 if family in EARLY else 100


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("reserve", ["static", "optimistic"])
def test_members_follow_their_prefix(seed: int, reserve: Any) -> None:
    """From when a prefix is cached until its last member enters, no request enters whose prefix is not cached: on a
    worker that holds a few families of many, also when requests come later whose groups rank before all others."""
    rng = np.random.default_rng(seed)
    family_of = shuffled(EARLY, 12, rng) + shuffled(LATE, 24, rng)
    rule = MemoryCentric(max_batched_tokens=512, reserve=reserve)
    play = WorkerPlay(BatchLLM(batching=rule), WorkerState(0, 2_500))
    events: list[Event] = []
    come = 0
    for now in range(8_000):
        while come < len(family_of) and (now >= 40 or family_of[come] in EARLY):
            prompt = Prompt.from_keys([family_of[come]] * shared(family_of[come]) + [OWN + come] * 20)
            events += play.arrive(Request(come, 0, now, prompt, 20), 20, now)
            come += 1
        events += play.step(now)
        if not play.worker.queue:
            break
    assert not play.worker.queue
    waiting: set[int] = set()
    cached: set[int] = set()
    for event in events:
        if isinstance(event, Arrived):
            waiting.add(event.request.id)
        elif isinstance(event, Cached):
            cached.add(family_of[event.owner])
        elif isinstance(event, Evicted):
            family = int.from_bytes(event.prompt.keys[:KEY_BYTES], "little")
            if event.keep_blocks < shared(family):
                cached.discard(family)
        elif isinstance(event, Preempted):
            waiting.add(event.request_id)
        elif isinstance(event, Admitted):
            waiting.remove(event.request_id)
            assert family_of[event.request_id] in cached or not any(family_of[i] in cached for i in waiting)
