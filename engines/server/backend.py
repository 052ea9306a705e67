"""What computes behind the server: one engine in a thread, or a cluster of processes, with a monitor of each worker."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from fairsched.engines import serving
from fairsched.model.events import NOWHERE, Event
from fairsched.model.machine import LatencyModel
from fairsched.policies.base import AnyRouter
from fairsched.policies.catalog import FCFS
from fairsched.policies.local import ComposedPolicy, keep_debts

if TYPE_CHECKING:
    from fairsched.engines.torch import TorchSpec

T = TypeVar("T")


@attrs.frozen
class ExecutorMaker:
    """Makes the executor of a worker, in whatever process it is."""

    spec: "TorchSpec"
    kv_capacity_tokens: int

    def __call__(self) -> serving.Executor:
        return self.spec.executor(self.spec.load(), self.kv_capacity_tokens)


class Backend:
    """Workers that serve, and what they did: `front` takes requests, `document` and `samples` say how things stand.

    Each of `workers` has `kv_capacity_tokens`; with more than one, they are processes behind `router`.  A prompt with
    its outputs has at most `context_tokens`; `weights` and cache `floors` (tokens) are those of clients by name; with
    a worker's `latency` waits are held to what is proved of them.  What `document` and `samples` read belongs to the
    engine's thread: call them there.
    """

    def __init__(
        self,
        policy: ComposedPolicy,
        make_executor: Callable[[], serving.Executor],
        *,
        kv_capacity_tokens: int,
        context_tokens: int,
        workers: int = 1,
        router: AnyRouter | None = None,
        weights: Mapping[str, int] | None = None,
        floors: Mapping[str, int] | None = None,
        log: serving.ServingLog | None = None,
        latency: LatencyModel | None = None,
    ) -> None:
        self.policy = policy
        self.kv_capacity_tokens = kv_capacity_tokens
        self.statuses = {
            worker: serving.ServiceStatus(
                serving.monitor_of(
                    *(policy, kv_capacity_tokens, context_tokens, worker),
                    request_tokens_max=context_tokens,
                    latency=latency,
                )
            )
            for worker in range(workers)
        }
        self._away = serving.ServiceStatus(None)
        self._log = log
        self.engine: serving.Engine | serving.LiveCluster
        if workers == 1:
            self.engine = serving.Engine(
                policy,
                make_executor(),
                kv_capacity_tokens=kv_capacity_tokens,
                fallback=FCFS(),
                rebuild=keep_debts,
                make_executor=make_executor,
                log=log,
                listeners=[self._record],
            )
        else:
            assert router is not None
            recipe = serving.Recipe(policy, make_executor, kv_capacity_tokens, fallback=FCFS(), rebuild=keep_debts)
            self.engine = serving.LiveCluster(
                policy,
                router,
                serving.Processes(recipe),
                kv_capacity_tokens=kv_capacity_tokens,
                workers=workers,
                log=log,
                listeners=[self._record],
            )
            while any(status.phase == "starting" for status in self.engine.status):
                self.engine.step()
            if not self.engine.status:
                raise ValueError("no worker can be started")
        weights, floors = weights or {}, floors or {}
        for name in dict.fromkeys((*weights, *floors)):
            self.engine.configure_client(name, weights.get(name, 1), cache_floor_tokens=floors.get(name))
        self.front: serving.ServingThread[Any] = serving.ServingThread(self.engine)

    def _record(self, events: list[Event]) -> None:
        for worker, several in groupby(events, key=attrgetter("worker")):
            (self._away if worker == NOWHERE else self.statuses[worker]).record(list(several))

    @property
    def failures(self) -> int:
        """How often an executor or a worker failed."""
        return self.engine.executor_failures if isinstance(self.engine, serving.Engine) else self.engine.deaths

    @property
    def serves(self) -> bool:
        """Whether requests can be served."""
        has = not self.engine.runner.is_gone if isinstance(self.engine, serving.Engine) else bool(self.engine.status)
        return has and not self.front.stopped

    async def ask(self, read: Callable[[], T]) -> T:
        """Return what a function says that must be called in the engine's thread."""
        return await asyncio.wrap_future(self.front.later(lambda _: read()))

    def close(self, *, drain: bool) -> None:
        """End: after all that was asked for, or, without `drain`, after this step.  The log is completed."""
        self.front.close(drain=drain)
        if self._log is not None:
            self._log.complete(*self._policy_states())

    def _policy_states(self) -> tuple[Any, ...]:
        engine = self.engine
        return (engine.policy_state,) if isinstance(engine, serving.Engine) else engine.policy_states

    # --- how things stand -------------------------------------------------------------------------------------------

    def standings(self) -> Sequence[serving.WorkerStatus]:
        """Return the workers that are there."""
        engine = self.engine
        if isinstance(engine, serving.Engine):
            guard = engine.guard
            counts = {str(cause): count for cause, count in guard.interventions.items()}
            told = engine.state.load(), counts, guard.set_aside
            return [serving.WorkerStatus(engine.state.worker, "serving", os.getpid(), len(engine.answers), *told)]
        return engine.status

    def document(self) -> serving.Document:
        """Return plain JSON values: each worker's load and promise, and what each client got.  Gaps are in cost units
        times lcm / weight."""
        names = self.engine.clients.all
        tokens: Counter[tuple[int, str]] = Counter()
        ended: Counter[str] = Counter()
        for status in (*self.statuses.values(), self._away):
            tokens.update(status.tokens)
            ended.update(status.outcomes)
        waiting = Counter(answer.client for answer in self.engine.answers.values())
        workers: dict[str, serving.Document] = {}
        for each in self.standings():
            report = self.statuses[each.worker].report()
            workers[str(each.worker)] = {
                "waiting": each.load.waiting_requests,
                "running": each.load.running_requests,
                "kv_free_tokens": each.load.kv_free_tokens,
                "guard_interventions": sum(each.interventions.values()),
                "set_aside": each.set_aside,
                **({} if report is None else {"promise": serving.promise_document(report)}),
            }
        return {
            "policy": self.policy.name,
            "kv_capacity_tokens": self.kv_capacity_tokens,
            "workers": workers,
            "requests": dict(sorted(ended.items())),
            "clients": {
                client.name: {
                    "weight": client.weight,
                    "open": waiting[client.id],
                    "prompt_tokens": tokens[client.id, "prefill"],
                    "cached_tokens": tokens[client.id, "cached"],
                    "output_tokens": tokens[client.id, "decode"],
                }
                for client in names
            },
        }

    @property
    def unexplained(self) -> tuple[int, ...]:
        """The workers on which a gap was over its bound and no assumption of the theorem was broken."""
        reports = {worker: status.report() for worker, status in self.statuses.items()}
        return tuple(worker for worker, found in reports.items() if found is not None and found.unexplained)

    def samples(self, worker: int, labels: serving.ClientLabels) -> Iterator[serving.Sample]:
        """Yield a worker's samples for Prometheus; none while it is not there."""
        for each in self.standings():
            if each.worker == worker:
                yield from serving.worker_samples(
                    *(self.statuses[worker], labels, self._name), *(each.load, each.interventions, each.set_aside)
                )
        if isinstance(self.engine, serving.Engine):
            yield from serving.step_samples(self.engine)

    def _name(self, client: int) -> str:
        return self.engine.clients.all[client].name
