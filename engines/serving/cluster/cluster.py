"""Several workers behind a router, in one process or in many: requests go where the router sends them, and end once.

The cluster is the one place where a request begins and ends.  Each worker serves with its own engine, policy and guard
(`engines.serving.cluster.worker`); what it reports is told here in one order to callers, log, router and listeners,
and leads to the policy state of the worker's number, which the cluster keeps.

A worker that dies (its call fails, or it is silent for too long) did what it has reported, and no more.  It leaves, its
requests go to other workers with the tokens that they have, where they go on as if nothing had happened, and another
worker of its number is started with its policy state: debts are those of the last report.  A request that was at
`deaths_max` workers when they died is rejected, since it may be the cause.

Where requests are and how KV moves between workers is said by `model.cluster`, whose commands are sent to the workers.
The KV passes through the cluster's process: one copy more than a direct way, and no state between two workers of which
neither the one nor the other knows.  Policies of workers may share credit (`engines.serving.cluster.turns`), and that
of the cluster may hold requests (`engines.serving.cluster.control`).

A cluster belongs to one thread; `engines.serving.thread` is the front for many.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from typing import Any

import attrs
from msgspec.structs import replace
from sortedcontainers import SortedDict

from fairsched.engines.serving.answers import Answer, Answers, End
from fairsched.engines.serving.clients import ClientRegistry
from fairsched.engines.serving.cluster import member as cluster_member
from fairsched.engines.serving.cluster import worker as wire
from fairsched.engines.serving.cluster.control import LiveControl
from fairsched.engines.serving.cluster.turns import DecisionTurns
from fairsched.engines.serving.executor import Sampling
from fairsched.engines.serving.log import EventBus, EventLog, Listener
from fairsched.engines.serving.request import BlockKeys, check_request
from fairsched.engines.serving.state import packed
from fairsched.model import cluster
from fairsched.model import events as ev
from fairsched.model.cluster import ClusterState, MovePhase
from fairsched.model.decision import ClusterView, Dispatch, Migration, Role
from fairsched.model.request import Client, Groups, Job
from fairsched.policies.base import AnyClusterPolicy, AnyLocalPolicy

_log = logging.getLogger("fairsched.cluster")


class NoWorkerError(ValueError):
    """There is no worker of that number, or no number left for another one."""


@attrs.define
class TransferCounts:
    """Transfers that started (memory was reserved), landed and failed, and the `bytes` of KV that were passed on.

    `refused` migrations could not be executed; `stranded` requests waited for a transfer that nothing would begin, and
    went on without it.
    """

    started: int = 0
    landed: int = 0
    failed: int = 0
    bytes: int = 0
    refused: int = 0
    stranded: int = 0


class LiveCluster:
    """Workers that `start` makes, all with `policy` and room for `kv_capacity_tokens`.

    `workers` come at once; there are never more than `workers_max`, numbered from 0 on.  `ahead` calls at a time are
    under way to each (2 where a report takes a while to come).  `on_token` and `on_end` of requests are called as in an
    engine, between steps.  `roles` are those of the numbers from 0 on (`split_roles("1:1")`); the others are there for
    both phases.
    """

    def __init__(
        self,
        policy: AnyLocalPolicy,
        router: AnyClusterPolicy,
        start: wire.Start,
        *,
        kv_capacity_tokens: int,
        workers: int | None = None,
        workers_max: int | None = None,
        roles: Sequence[Role] = (),
        clients: Sequence[Client] = (),
        block_keys: BlockKeys | None = None,
        log: EventLog | None = None,
        listeners: Sequence[Listener] = (),
        pace: wire.Cadence | None = None,
        ahead: int = 1,
        timeouts: cluster_member.Timeouts | None = None,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        workers = (len(roles) or 2) if workers is None else workers
        self.workers_max = workers if workers_max is None else workers_max
        if not 1 <= workers <= self.workers_max:
            raise ValueError(f"a cluster has 1 to {self.workers_max} workers, not {workers}")
        cluster_member.check_roles(roles, workers, self.workers_max)
        others: list[Role] = ["both"] * (self.workers_max - len(roles))
        self.roles: tuple[Role, ...] = (*roles, *others)
        self.policy = policy
        self.clients = ClientRegistry()
        self.block_keys = BlockKeys() if block_keys is None else block_keys
        self.bus = EventBus(log, listeners)
        self.pace = wire.Cadence() if pace is None else pace
        self.timeouts = cluster_member.Timeouts() if timeouts is None else timeouts
        self.next_id = 0
        self.deaths = 0
        self._start = start
        self._capacity = kv_capacity_tokens
        self._epoch_ns = time.time_ns()
        self._clock = wire.WorkerConfig(ev.NOWHERE, epoch_ns=self._epoch_ns).clock() if now_ns is None else now_ns
        sharing = policy.shared_credit
        self.shared_credit = None if sharing is None else cluster_member.SharedCredit(sharing)
        self._replicas = [
            cluster_member.StateReplica(policy, worker, self.shared_credit) for worker in range(self.workers_max)
        ]
        self._members: SortedDict[int, cluster_member.LiveWorker] = SortedDict()
        self._state = ClusterState()
        self._calls: dict[int, cluster_member.OpenRequest] = {}
        self.transfers = TransferCounts()
        self._begun = False
        self._answers = Answers()
        self._turns = DecisionTurns(self._members, self.pace, ahead, self.shared_credit, self._clock)
        self._control = LiveControl(router, self._clock, self._tell, self._send, self._want)
        self.router = self._control.guard
        for client in clients:
            self._define(client)
        for worker in range(workers):
            self._begin(worker, 0)

    # --- callers ----------------------------------------------------------------------------------------------------

    @property
    def answers(self) -> Mapping[int, Answer]:
        """The requests that are open, by id."""
        return self._answers.open

    def ask(
        self,
        client: str,
        prompt_ids: Sequence[int],
        max_output_tokens: int,
        *,
        sampling: Sampling | None = None,
        output_tokens: int | None = None,
        on_token: Callable[[int], None] | None = None,
        on_end: Callable[[Answer], None] | None = None,
        **labels: Any,
    ) -> Answer:
        """Serve a prompt for a client by name; `labels` are further fields of the request (priority, session, ...).

        With `output_tokens` it produces exactly so many; otherwise until a stop token of `sampling`, or
        `max_output_tokens`.  What no worker can serve is rejected by the one that it is sent to.  Raises `ValueError`
        for what is no request.
        """
        if client not in self.clients:
            self.configure_client(client, 1)
        number = self.clients[client].id
        request = self.block_keys.request(self.next_id, number, prompt_ids, max_output_tokens, **labels)
        check_request(request, len(prompt_ids), output_tokens)
        try:
            raw = packed(prompt_ids)
        except OverflowError as error:
            raise ValueError(f"request {request.id}: {error}") from error
        answer = Answer(request.id, number, prompt_ids, Sampling() if sampling is None else sampling, on_token, on_end)
        self.next_id += 1
        self._answers.open[request.id] = answer
        self.bus.request(Job(request, max_output_tokens if output_tokens is None else output_tokens))
        self._calls[request.id] = call = cluster_member.OpenRequest(request, raw, output_tokens, answer)
        self._state = cluster.hold(self._state, request.id)
        self._place(call)
        self._answers.call(self.cancel)
        return answer

    def cancel(self, request_id: int) -> bool:
        """Cancel a request.  Returns whether it was still open; it ends when its worker has heard of it."""
        if request_id not in self.answers:
            return False
        worker, call = self._state.at[request_id], self._calls[request_id]
        if worker == ev.NOWHERE:
            self._control.held.pop(request_id, None)
            self._cancelled(call)
            self._answers.call(self.cancel)
        elif not call.cancelled:
            call.cancelled = True
            self._members[worker].outbox.append(wire.GiveUp(request_id))
        return True

    def configure_client(
        self, client: str, weight: int, groups: Groups = (), cache_floor_tokens: int | None = None
    ) -> None:
        changed = self.clients.changed(client, weight, groups, cache_floor_tokens)
        if client in self.clients:
            self.clients.put(changed)
        else:
            self._define(changed)
        for member in self._members.values():
            member.outbox.append(wire.Configure(changed))

    def _define(self, client: Client) -> None:
        self.clients.put(client)
        self.bus.client(client)

    # --- workers ----------------------------------------------------------------------------------------------------

    @property
    def status(self) -> tuple[cluster_member.WorkerStatus, ...]:
        return tuple(member.status(self._state.workers[worker]) for worker, member in self._members.items())

    @property
    def moves(self) -> Mapping[int, MovePhase]:
        """The requests that are between two workers, by id, and in which phase of their transfer."""
        moves = self._state.moves.values()
        return {move.request_id: move.phase for move in moves if move.phase != "computing"}

    @property
    def policy_states(self) -> tuple[Any, ...]:
        """The policy state of each number below `workers_max`, as the reports so far lead to it."""
        return tuple(replica.state for replica in self._replicas)

    def add_worker(self) -> int:
        """Start another worker, of the lowest number that is free, with the debts of that number; returns the number.

        It takes requests from its first report on.  Raises `NoWorkerError` when there are `workers_max`.
        """
        free = next((worker for worker in range(self.workers_max) if worker not in self._members), None)
        if free is None:
            raise NoWorkerError(f"there are {len(self._members)} workers, and no number for another")
        self._begin(free, 0)
        return free

    def drain_worker(self, worker: int) -> None:
        """Drain the worker, which takes no new requests and leaves when it has finished those that it has.

        Raises `NoWorkerError` if it is not there, or is the last one that takes requests.
        """
        member = self._members.get(worker)
        if member is None:
            raise NoWorkerError(f"there is no worker {worker}")
        phases = self._state.workers
        if phases[worker] == "draining":
            return
        if all(other == worker or phase == "draining" for other, phase in phases.items()):
            raise NoWorkerError(f"worker {worker} is the last one that takes requests")
        if phases[worker] == "serving":
            self._tell(member.replica, [ev.WorkerDraining(member.replica.last_ns, worker)])
        self._state = cluster.enter(self._state, worker, "draining")
        for request_id in cluster.unreserved(self._state, worker):
            self._do(cluster.fail(self._state, request_id))
        self._leave_if_idle(member)

    def _begin(self, worker: int, deaths: int) -> None:
        replica = self._replicas[worker]
        config = wire.WorkerConfig(
            worker,
            tuple(self.clients.all),
            None if replica.is_new else self.policy.state_to_json(replica.state),
            self._epoch_ns,
            replica.last_ns,
            self.roles[worker],
        )
        given = replica, self._capacity, deaths, self.roles[worker], self.shared_credit
        member = cluster_member.LiveWorker(worker, self._start(config), *given)
        member.outbox += [wire.Configure(client) for client in replica.missed(self.clients.all)]
        self._members[worker] = member
        self._state = cluster.enter(self._state, worker, "starting")

    # --- placing ----------------------------------------------------------------------------------------------------

    def _place(self, call: cluster_member.OpenRequest) -> None:
        """Send a request where the router says.

        It is held while no worker takes any and one is starting; at first until there is a worker for each phase.
        """
        view = self._view()
        if view.workers and self._has_begun(view):
            self._control.place(call, view)
        elif view.workers or "starting" in self._state.workers.values():
            self._control.place(call, None)
        else:
            self._control.held.pop(call.request.id, None)
            self._reject(call, 0, "no worker is left, and none is starting")

    def _send(self, call: cluster_member.OpenRequest, dispatch: Dispatch) -> None:
        """Let a request be a worker's from now on."""
        call.prefill_only = dispatch.prefill_only
        self._state = cluster.place(self._state, call.request.id, dispatch.worker)
        self._members[dispatch.worker].submit(call, self._submission(call))

    def _view(self) -> ClusterView:
        """Return the workers that take requests."""
        phases = self._state.workers
        loads = tuple(member.load() for worker, member in self._members.items() if phases[worker] == "serving")
        credit = self.shared_credit
        return ClusterView(self._clock(), loads, None if credit is None else credit.sharing.snapshot(credit.value))

    def _has_begun(self, view: ClusterView) -> bool:
        """Return whether there was a worker for each phase at a time, or none is starting for the one that is missing.

        Afterwards a router makes do with what is left, until those that died are back.
        """
        if not self._begun:
            roles = {load.role for load in view.workers}
            coming = {self.roles[worker] for worker, phase in self._state.workers.items() if phase == "starting"}
            phases: list[set[Role]] = [{"both", "prefill"}, {"both", "decode"}]
            self._begun = all(roles & able or not coming & able for able in phases)
        return self._begun

    def _submission(self, call: cluster_member.OpenRequest) -> wire.Submit:
        below, answer = next(iter(self._answers.open)), call.answer
        tokens, only = packed(answer.tokens), call.prefill_only
        return wire.Submit(call.request, call.prompt_ids, answer.sampling, call.output_tokens, tokens, below, only)

    # --- requests that change their worker ---------------------------------------------------------------------------

    def _want(self, plan: Migration) -> None:
        """Do what the router wants with a request, or count that it cannot be done."""
        call = self._calls.get(plan.request_id)
        step = None
        if call is not None and not call.cancelled:
            takes = plan.target == plan.source or self._takes(plan, call)
            # KV is sent when all of it is computed.
            plan = replace(plan, overlap="none")
            step = cluster.migrate(self._state, plan, takes=takes, prefill_only=call.prefill_only)
        if step is None:
            self.transfers.refused += 1
        else:
            self._do(step)

    def _takes(self, plan: Migration, call: cluster_member.OpenRequest) -> bool:
        """Return whether the target takes requests, and what is to be reserved there is sensible."""
        serves = self._state.workers.get(plan.target) == "serving"
        return serves and 0 <= plan.reserved_output_tokens <= call.request.max_output_tokens

    def _departed(self, member: cluster_member.LiveWorker, event: ev.Migrated) -> None:
        """Follow a request that has left its worker: its KV is staged there, or it goes on at once without."""
        request_id, kv_tokens = event.request_id, event.kv_tokens
        call, move = member.calls.pop(request_id), self._state.moves.get(request_id)
        call.prefill_only = False
        if call.cancelled:
            if kv_tokens:
                member.outbox.append(cluster.FreeKv(request_id))
            self._cancelled(call)
            return
        if kv_tokens:
            member.deaths = 0
        takes = move is not None and move.plan is not None and self._takes(move.plan, call)
        self._do(cluster.left(self._state, request_id, kv_tokens, takes=takes))

    def _pass_on(self, request_id: int, target: int, kv: bytes) -> None:
        """KV came here, and is passed on: the request is the target's from now on."""
        self.transfers.bytes += len(kv)
        self._state = cluster.pass_on(self._state, request_id)
        call = self._calls[request_id]
        self._members[target].submit(call, wire.Land(self._submission(call), kv))

    def _arrived(self, member: cluster_member.LiveWorker, request_id: int) -> None:
        """Follow a request that has arrived at a worker: if its KV landed there, the source frees its own."""
        move = self._state.moves.get(request_id)
        if move is not None and move.phase == "landing" and move.target == member.worker:
            self.transfers.landed += 1
            self._do(cluster.land(self._state, request_id))

    def _go_on(self) -> bool:
        """Let one request go on that waits for a target or for room, when nothing else can happen; whether one did."""
        step = cluster.unstrand(self._state)
        if step is None:
            return False
        self.transfers.stranded += 1
        self._do(step)
        return True

    def _do(self, step: cluster.Transition) -> None:
        """Take a transition of the cluster, and do what follows from it."""
        self._state, effects = step
        for worker, effect in effects:
            call = self._calls.get(effect.request_id)
            match effect:
                case cluster.PlaceAgain():
                    assert call is not None
                    self._place(call)
                case cluster.ResumeRequest():
                    assert call is not None
                    self._members[worker].submit(call, wire.Land(self._submission(call), b""))
                case cluster.GoWithoutKv():
                    assert call is not None
                    self._state = cluster.arrive(self._state, effect.request_id)
                    self._members[worker].submit(call, self._submission(call))
                case cluster.TellFailed(target=target):
                    assert call is not None
                    self.transfers.failed += 1
                    last_ns = self._replicas[worker].last_ns
                    failed = ev.TransferFailed(last_ns, worker, effect.request_id, call.request.client, target)
                    self._tell(self._replicas[worker], [failed])
                case _:
                    self._members[worker].outbox.append(effect)
                    if isinstance(effect, cluster.SendKv):
                        self._tell_started(worker, effect.request_id)

    def _tell_started(self, source: int, request_id: int) -> None:
        self.transfers.started += 1
        move, replica = self._state.moves[request_id], self._replicas[source]
        client = self._calls[request_id].request.client
        sent = (replica.last_ns, source, request_id, client, move.target, move.kv_tokens, move.reserved)
        self._tell(replica, [ev.TransferStarted(*sent)])

    # --- steps ------------------------------------------------------------------------------------------------------

    def run_until_idle(self) -> None:
        """Serve until no request is open, no worker is starting and none that drains has anything left to do."""
        while self.step():
            pass

    def step(self) -> bool:
        """Send what is to be sent, wait for a report, and do what comes of it; False if nothing is under way."""
        members = self._turns.send()
        heads = {member.head: member.left_s(self.timeouts) for member in members if member.head is not None}
        if heads:
            wait(heads, timeout=max(min(heads.values()), 0.0), return_when=FIRST_COMPLETED)
        for member in members:
            self._hear(member)
        if self.router.decides and self._has_begun(view := self._view()):
            self._control.decide(view)
        self._control.place_held(self._place)
        self._answers.call(self.cancel)
        if all(member.waits for member in self._members.values()):
            goes_on = self._turns.insist(landed=True) or self._go_on() or self._control.go_on(self._view())
            _ = goes_on or self._turns.insist(landed=False)
        return bool(self._answers.open) or not all(member.idle for member in self._members.values())

    def _hear(self, member: cluster_member.LiveWorker) -> None:
        """Take a worker's report, if there is one; or its death."""
        try:
            report = member.report()
        except Exception as error:
            self._died(member, f"{type(error).__name__}: {error}".partition("\n")[0])
            return
        if report is not None:
            self._reported(member, report)
            if self._state.workers.get(member.worker) == "draining":
                self._leave_if_idle(member)
        elif member.left_s(self.timeouts) < 0:
            self._died(member, "it is silent for too long")

    def _reported(self, member: cluster_member.LiveWorker, report: wire.ServingReport) -> None:
        for request_id, tokens in report.tokens.items():
            if request_id in member.calls:
                for token in tokens:
                    self._answers.take({request_id: token})
        self._tell(member.replica, report.events)
        last = {event.request.id: i for i, event in enumerate(report.events) if isinstance(event, ev.Arrived)}
        for i, event in enumerate(report.events):
            self._answers.hear(event)
            if isinstance(event, End) and event.request_id in member.calls:
                del member.calls[event.request_id]
                self._over(event)
                if isinstance(event, ev.Finished):
                    member.deaths = 0
            elif isinstance(event, ev.Migrated) and event.request_id in member.calls:
                # One that comes again at once, without its KV, has lost that with an executor.
                if last.get(event.request_id, -1) < i:
                    self._departed(member, event)
            elif isinstance(event, ev.Arrived):
                self._arrived(member, event.request.id)
            elif isinstance(event, ev.WorkerJoined) and self._state.workers[member.worker] == "starting":
                self._state = cluster.enter(self._state, member.worker, "serving")
        self._follow_kv(member.worker, report)
        self._turns.reported(member, report)

    def _follow_kv(self, worker: int, report: wire.ServingReport) -> None:
        """Take over what a worker reports of transfers."""
        self._do(cluster.lose_kv(self._state, worker, report.lost))
        for move in cluster.numbered(self._state, report.granted, "reserving"):
            self._do(cluster.grant(self._state, move.request_id))
        for move in cluster.numbered(self._state, report.kv, "sending"):
            self._pass_on(move.request_id, move.target, report.kv[move.number])

    # --- ends -------------------------------------------------------------------------------------------------------

    def _leave_if_idle(self, member: cluster_member.LiveWorker) -> None:
        """A worker that drains leaves when it has nothing left, and nothing comes or goes, or when it never came."""
        worker = member.worker
        moving = any(worker in (move.source, move.target) for move in self._state.moves.values())
        if member.is_starting or (member.idle and not moving):
            self._leave(member)

    def _leave(self, member: cluster_member.LiveWorker) -> list[int]:
        """A worker is no part of the cluster any more; returns the requests that are to be placed again."""
        worker, replica = member.worker, member.replica
        del self._members[worker]
        state, effects, lost = cluster.lose(self._state, worker, member.calls)
        self._do((cluster.leave(state, worker), effects))
        try:
            member.link.stop()
        except Exception:
            _log.exception("worker %d cannot be stopped", worker)
        if not member.is_starting:
            self._tell(replica, [ev.WorkerLeft(max(self._clock(), replica.last_ns), worker)])
        if self.shared_credit is not None:
            self.shared_credit.forget(worker)
        return lost

    def _died(self, member: cluster_member.LiveWorker, why: str) -> None:
        """Take a worker out that died: another one of its number comes, and its requests go elsewhere."""
        self.deaths += 1
        member.deaths += 1
        _log.error("worker %d died with %d requests: %s", member.worker, len(member.calls), why)
        drains = self._state.workers[member.worker] == "draining"
        lost = self._leave(member)
        had = [self._calls[request_id] for request_id in sorted({*member.calls, *lost})]
        most = self.timeouts.deaths_max
        for call in had:
            call.deaths += 1
            if call.deaths >= most and not call.cancelled:
                self._reject(call, member.worker, f"{call.deaths} workers died that had it, the last one so: {why}")
        if not drains and member.deaths <= self.timeouts.restarts_max:
            try:
                self._begin(member.worker, member.deaths)
            except Exception:
                _log.exception("worker %d cannot be started again", member.worker)
        for call in had:
            if call.cancelled:
                self._cancelled(call)
            elif not call.answer.ended and call.request.id in lost:
                self._place(call)
        if all(phase == "draining" for phase in self._state.workers.values()):
            while self._control.held:
                self._reject(self._control.held.popitem(0)[1], member.worker, f"no worker is left: {why}")

    def _reject(self, call: cluster_member.OpenRequest, worker: int, reason: str) -> None:
        request, replica = call.request, self._replicas[worker]
        event = ev.Rejected(max(self._clock(), replica.last_ns), worker, request.id, request.client, reason)
        self._tell(replica, [event])
        self._over(event)

    def _cancelled(self, call: cluster_member.OpenRequest) -> None:
        request, generated = call.request, len(call.answer.tokens)
        event = ev.Cancelled(self._clock(), ev.NOWHERE, request.id, request.client, False, 0, generated)
        self._tell(None, [event])
        self._over(event)

    def _over(self, event: End) -> None:
        del self._calls[event.request_id]
        self._do(cluster.end(self._state, event.request_id))
        self._answers.end(event)

    def _tell(self, replica: cluster_member.StateReplica | None, events: list[ev.Event]) -> None:
        """Report events to the policy state of the worker's number, to the router, the log and the listeners."""
        if replica is not None:
            replica.observe(events)
        self._control.hear(events, nowhere=replica is None)
        if events:
            self.bus.tell(events)

    def close(self) -> None:
        """Let every worker leave at once, and cancel what is open.  The cluster takes no requests afterwards."""
        for member in list(self._members.values()):
            self._leave(member)
        self._control.held.clear()
        for _, call in sorted(self._calls.items()):
            self._cancelled(call)
        self._answers.call(self.cancel)
