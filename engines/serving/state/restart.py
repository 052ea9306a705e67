"""A restart: an engine as it was at its last word, with its memory lost, goes on in a new process.

`kept` is what an engine must keep, as values.  `recovered` takes such values from a snapshot on through everything that
a journal says happened since, by the worker's own transitions (`engines.logs.replayer`), to the exact states at the
last line that was written; then whatever ran waits again, since its memory is gone, and keeps the tokens that it had.
`resume` puts the values into a new engine.

Debts are those of the last line, to the unit.  A request that was open is open again, under its id, and ends once; one
that ended since the snapshot ended, and `Recovery.ended` has its answer for a caller that never got it.  A request of
which no line was written never came; its caller sends it again.
"""

from typing import Any

import attrs
import msgspec

from fairsched.engines.logs import DifferenceError, LogReplayer, WorkerReplica
from fairsched.engines.serving.answers import OUTCOMES, Answer, End, Outcome
from fairsched.engines.serving.executor import Executor
from fairsched.engines.serving.log import MEASURED
from fairsched.engines.serving.loop import Engine
from fairsched.engines.serving.runner import since_now
from fairsched.engines.serving.state.journal import Tail
from fairsched.engines.serving.state.snapshot import Open, SavedEngine, SnapshotError, packed, unpacked
from fairsched.model import worker as transitions
from fairsched.model.events import Arrived, ClientConfigured, Finished
from fairsched.model.request import Client, Job
from fairsched.model.worker import WorkerState, generated
from fairsched.policies.base import AnyLocalPolicy


@attrs.frozen
class EndedRequest:
    """A request that ended between the snapshot and the crash, with the tokens that it produced."""

    request_id: int
    outcome: Outcome
    tokens: list[int]


@attrs.frozen
class Recovery:
    """An engine at its last word with its memory lost, as values, and what ended since the snapshot."""

    saved: SavedEngine
    ended: tuple[EndedRequest, ...]


def kept(engine: Engine) -> SavedEngine:
    """Return what a restart needs of an engine that is between two steps.  O(open requests and their tokens).

    Raises `SnapshotError` while the policy is set aside: its state is of an earlier time.
    """
    if engine.guard.set_aside is not None:
        raise SnapshotError(f"the policy is set aside ({engine.guard.set_aside}) and knows nothing of what came since")
    opened = tuple(
        Open(i, packed(answer.prompt_ids), answer.sampling, packed(answer.tokens))
        for i, answer in sorted(engine.answers.items())
    )
    next_id = max([engine.next_id, *(each.request_id + 1 for each in opened)])
    return SavedEngine(engine.policy_state, engine.state, tuple(engine.clients.all), opened, next_id, engine.last_ns)


def caught_up(policy: AnyLocalPolicy, saved: SavedEngine, tail: Tail) -> SavedEngine:
    """Return the states after everything that the tail says happened; tokens of requests are not touched.  O(tail).

    Raises `SnapshotError` for a tail that does not go on from there.
    """
    jobs = {job.request.id: job for job in tail.jobs}
    worker = WorkerReplica(saved.worker, jobs, MEASURED, saved.now_ns)
    replayer = LogReplayer(policy, worker, saved.policy_state)
    now_ns = saved.now_ns
    for number, events in enumerate(tail.transitions):
        try:
            for event in events:
                replayer.feed(event)
                now_ns = max(now_ns, event.time_ns)
            replayer.end()
        except DifferenceError as error:
            raise SnapshotError(f"transition {number} does not go on from the snapshot: {error}") from error
    next_id = max([saved.next_id, *(job.request.id + 1 for job in tail.jobs)])
    clients = _clients(saved.clients, tail)
    return SavedEngine(replayer.policy_state, worker.state, clients, saved.open, next_id, now_ns)


def recovered(policy: AnyLocalPolicy, saved: SavedEngine, tail: Tail) -> Recovery:
    """Return what a restarted engine goes on from: the snapshot, everything since, and then its memory is lost."""
    now = caught_up(policy, saved, tail)
    tokens = {each.request_id: unpacked(each.tokens) for each in saved.open}
    for request_id, produced in tail.tokens.items():
        tokens[request_id] = tokens.get(request_id, []) + produced
    known = {each.request_id: each for each in saved.open} | tail.prompts
    ended = tuple(
        EndedRequest(event.request_id, OUTCOMES[type(event)], tokens.get(event.request_id, []))
        for event in tail.events
        if isinstance(event, End)
    )
    state, worker = now.policy_state, now.worker
    worker, events = _stopped(worker, known, tokens, now.now_ns)
    ended += tuple(EndedRequest(event.request_id, "finished", tokens[event.request_id]) for event in events)
    worker, lost = transitions.lose(worker, now.now_ns)
    for event in [*events, *lost]:
        state = policy.observe(state, event)
    opened = []
    for request_id, waiting in sorted(worker.queue.items()):
        produced, count = tokens.get(request_id, []), waiting.generated_tokens
        if request_id not in known or len(produced) < count:
            raise SnapshotError(
                f"request {request_id} produced {count} tokens, and {len(produced)} of them are on record"
            )
        opened.append(msgspec.structs.replace(known[request_id], tokens=packed(produced[:count])))
    saved = msgspec.structs.replace(now, policy_state=state, worker=worker, open=tuple(opened))
    return Recovery(saved, ended)


def resume(saved: SavedEngine, policy: AnyLocalPolicy, executor: Executor, **options: Any) -> Engine:
    """Return an engine that goes on from there: what was open is open (`engine.answers`), its callers may attach
    themselves.

    `options` are the engine's.  Its clock goes on from where it was, unless they say otherwise; prompts of requests
    that wait and of those that will come share prefixes only if `block_keys` are what they were.
    """
    clock, worker = since_now(), saved.worker
    options = {"now_ns": lambda: saved.now_ns + clock(), **options}
    engine = Engine(
        policy,
        executor,
        kv_capacity_tokens=worker.capacity,
        worker=worker.worker,
        clients=saved.clients,
        policy_state=saved.policy_state,
        **options,
    )
    answers = []
    for each in saved.open:
        waiting = worker.queue[each.request_id]
        answer = Answer(each.request_id, waiting.request.client, unpacked(each.prompt_ids), each.sampling)
        answer.tokens += unpacked(each.tokens)
        answers.append(answer)
        engine.bus.request(Job(waiting.request, waiting.output_tokens))
        engine.bus.tell([Arrived(saved.now_ns, worker.worker, waiting.request, waiting.generated_tokens)])
    engine.take_over(worker, answers, saved.next_id, saved.now_ns)
    return engine


def _stopped(
    worker: WorkerState, known: dict[int, Open], tokens: dict[int, list[int]], now_ns: int
) -> tuple[WorkerState, list[Finished]]:
    """End requests whose last token is one to stop at and whose end was not on record yet."""
    ended: list[Finished] = []
    for request_id in sorted(worker.in_flight):
        count = generated(worker, request_id)
        produced = tokens.get(request_id, [])
        if count and produced[count - 1] in known[request_id].sampling.stop_tokens:
            worker, events = transitions.stop(worker, request_id, now_ns)
            ended += [event for event in events if isinstance(event, Finished)]
    return worker, ended


def _clients(clients: tuple[Client, ...], tail: Tail) -> tuple[Client, ...]:
    """Return the clients with those that came, at their last weights."""
    found = {client.id: client for client in (*clients, *tail.clients)}
    for event in tail.events:
        if isinstance(event, ClientConfigured):
            found[event.client] = found[event.client].changed(event.weight, event.groups)
    return tuple(found[i] for i in sorted(found))
