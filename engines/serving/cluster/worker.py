"""What a cluster asks of a worker, wherever it runs: take commands, serve for a while, report all that happened.

One call carries many commands and its report many steps, so that a worker behind a network costs a message or two a
turn and not several a token.  A report is whole or was never made: a worker that dies takes along what it did since
its last one, and neither callers nor debts know of that.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import attrs
import msgspec

from fairsched.engines.serving.calls import CallThread
from fairsched.engines.serving.executor import Executor, Sampling
from fairsched.engines.serving.guard import Rebuild, from_history
from fairsched.engines.serving.loop import Engine
from fairsched.engines.serving.runner import since_now
from fairsched.engines.serving.state import unpacked
from fairsched.model import cluster
from fairsched.model import worker as transitions
from fairsched.model.decision import Role, WorkerLoad
from fairsched.model.events import Event, Rejected
from fairsched.model.request import Client, Request
from fairsched.model.theorem import Certificate
from fairsched.policies.base import AnyLocalPolicy


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Serve a request (see `Engine.submit`); tokens are `snapshot.packed`.  No id below `below` will come any more."""

    request: Request
    prompt_ids: bytes
    sampling: Sampling
    output_tokens: int | None
    generated: bytes
    below: int
    prefill_only: bool = False


class GiveUp(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The caller gave up."""

    request_id: int


class Configure(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """There is a client with the next number, or a known one has another weight."""

    client: Client


class Land(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The KV of a request has come (empty: it never left), and the request goes on here."""

    submit: Submit
    kv: bytes


class ListenOnly(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Take the commands and report: another worker decides next, and what waits here counts then."""


class Decide(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Take the commands, decide the next step, and report before it is computed: the policy's credit is shared.

    `credit` is what the worker sees of it (None: its own reports alone have changed that).  A worker that `may_idle`
    waits for credit where its policy lets no request in.
    """

    credit: dict[str, Any] | None
    may_idle: bool = True


class Compute(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Compute the step that was decided."""


Command = Submit | Land | GiveUp | Configure | cluster.Command | ListenOnly | Decide | Compute

_GRACE_S = 5.0
"""For how long a thread that is stopped may finish its call."""


class ServingReport(msgspec.Struct, frozen=True, array_like=True):
    """What a worker did since its last report: events in order, and the output tokens of each request.

    `heard` counts the commands that it has taken; `load` is what it has left to do.  The guard's `interventions` are
    counted since the worker came; `set_aside` says why its policy does not decide any more (None: it does).

    Of transfers: `granted` are the numbers of those that memory is reserved for, `kv` is what was to be sent, by
    number, and `lost` are staged requests whose KV is gone.  `rests` says that nothing will happen before the next
    command; `decided` that a step is to be computed now.  `landed` is the youngest request that waits with KV which
    came along (None: there is none).
    """

    events: list[Event]
    tokens: dict[int, list[int]]
    load: WorkerLoad
    heard: int
    process_id: int
    interventions: dict[str, int] = {}
    set_aside: str | None = None
    granted: list[int] = []
    kv: dict[int, bytes] = {}
    lost: list[int] = []
    rests: bool = False
    decided: bool = False
    landed: int | None = None


@attrs.frozen
class Cadence:
    """How long a worker serves before it reports: until either is over, and at least one step."""

    seconds: float = 0.02
    steps: int = 1 << 20


@attrs.frozen
class WorkerConfig:
    """What a worker that comes must know: its number, the clients so far, and the policy state of its number.

    `policy_state` is the document of `LocalPolicy.state_to_json` (None: the first worker of that number).  Its clock
    reads the wall clock less `epoch_ns`, and never less than `not_before_ns`.  Its `role` is for routers to see.
    """

    worker: int
    clients: tuple[Client, ...] = ()
    policy_state: dict[str, object] | None = None
    epoch_ns: int = 0
    not_before_ns: int = 0
    role: Role = "both"

    def clock(self) -> Callable[[], int]:
        """Return the worker's clock, in nanoseconds: that of the cluster, as well as two machines' clocks agree."""
        start, since = max(time.time_ns() - self.epoch_ns, self.not_before_ns), since_now()
        return lambda: start + since()


@attrs.frozen
class Recipe:
    """How to make a worker's engine, in whatever process: the options are those of `Engine`.

    `make_executor` makes its executor, and another when that one fails.
    """

    policy: AnyLocalPolicy
    make_executor: Callable[[], Executor]
    kv_capacity_tokens: int
    fallback: AnyLocalPolicy | None = None
    decision_budget_ns: int | None = None
    rebuild: Rebuild = from_history
    certificate: Certificate | None = None


class WorkerBrokenError(RuntimeError):
    """A worker whose executor failed, and of which no other can be made."""


encode = msgspec.msgpack.Encoder().encode
"""Commands or a report as bytes, for workers in other processes."""
commands_from = msgspec.msgpack.Decoder(list[Command]).decode
report_from = msgspec.msgpack.Decoder(ServingReport).decode


class Worker(Protocol):
    """A worker as a cluster knows it.  Calls are served one after the other, in order."""

    def serve(self, commands: Sequence[Command], pace: Cadence) -> "Future[ServingReport]":
        """Take the commands, serve, and report.  Any exception of the future means that the worker is gone."""

    def stop(self) -> None:
        """Give it up, whatever it does.  What it has not reported did not happen."""


Start = Callable[[WorkerConfig], Worker]
"""Starts a worker and returns at once; one that cannot come fails at its first call."""


class WorkerHost:
    """An engine that takes commands and reports: what stands behind every `Worker`, in the process that computes."""

    def __init__(self, recipe: Recipe, config: WorkerConfig) -> None:
        self._recipe = recipe
        self._events: list[Event] = []
        self._tokens: dict[int, list[int]] = {}
        self._kv: dict[int, bytes] = {}
        self._heard = 0
        self._failure: Exception | None = None
        state, policy = config.policy_state, recipe.policy
        options = attrs.asdict(recipe, recurse=False)
        del options["policy"], options["make_executor"]
        self.engine = Engine(
            policy,
            recipe.make_executor(),
            worker=config.worker,
            clients=config.clients,
            policy_state=None if state is None else policy.state_from_json(state),
            make_executor=self._another,
            listeners=[self._events.extend],
            now_ns=config.clock(),
            role=config.role,
            **options,
        )

    def _another(self) -> Executor:
        try:
            return self._recipe.make_executor()
        except Exception as error:
            self._failure = error
            raise

    def serve(self, commands: Sequence[Command], pace: Cadence) -> ServingReport:
        """Take the commands, serve until the pace is over or nothing is left to do, and report.

        Raises `WorkerBrokenError` if there is no executor any more; others take the requests over, as if the worker had
        died after its last report.
        """
        until = time.monotonic() + pace.seconds
        half = commands[0] if commands and isinstance(commands[0], ListenOnly | Decide | Compute) else None
        if isinstance(half, Decide) and half.credit is not None:
            self.engine.guard.check_out(half.credit, self.engine.state.worker)
        for command in commands[half is not None :]:
            self._take(command)
        steps, decided, rests = 0, False, True
        if isinstance(half, Decide):
            decided = self.engine.begin_step(may_idle=half.may_idle)
            rests = not decided
        elif isinstance(half, Compute):
            rests = not self.engine.end_step()
        elif half is not None:
            rests = False
        else:
            while self.engine.step():
                steps += 1
                if steps == pace.steps or time.monotonic() >= until:
                    rests = False
                    break
        if self._failure is not None:
            raise WorkerBrokenError(f"no executor can be made: {self._failure!r}") from self._failure
        self._heard += len(commands) - (half is not None)
        events, tokens = [*self._events], self._tokens
        self._events.clear()
        self._tokens = {}
        guard, state = self.engine.guard, self.engine.state
        counts = {str(cause): count for cause, count in guard.interventions.items()}
        (granted, lost), kv, self._kv = self.engine.exchange.answers(), self._kv, {}
        return ServingReport(
            *(events, tokens, state.load(), self._heard, os.getpid(), counts, guard.set_aside),
            *(granted, kv, lost, rests, decided),
            landed=transitions.youngest_landed(state) if state.transit.landed else None,
        )

    def _take(self, command: Command) -> None:
        match command:
            case Submit():
                self._submit(command)
            case GiveUp(request_id):
                self.engine.cancel(request_id)
            case Configure(client):
                self.engine.configure_client(client.name, client.weight, client.place, client.cache_floor or None)
            case cluster.LeaveBatch(request_id, with_kv):
                self.engine.migrate(request_id, with_kv)
            case Land(submit, kv):
                self._enter(submit, lambda **tokens: self.engine.receive(submit.request, kv=kv, **tokens))
            case _:
                self._exchange(command)

    def _submit(self, command: Submit) -> None:
        engine = self.engine
        if command.prefill_only and not engine.moves_kv:
            self._reject(command.request, f"the executor of worker {engine.state.worker} does not give KV away")
            return
        only = command.prefill_only
        self._enter(command, lambda **tokens: engine.submit(command.request, prefill_only=only, **tokens))

    def _enter(self, command: Submit, enter: Callable[..., object]) -> None:
        """Take a request on with its tokens."""
        request = command.request
        self.engine.used_ids.skip_to(command.below)

        def produced(token: int) -> None:
            self._tokens.setdefault(request.id, []).append(token)

        try:
            enter(
                prompt_ids=unpacked(command.prompt_ids),
                sampling=command.sampling,
                output_tokens=command.output_tokens,
                generated=unpacked(command.generated),
                on_token=produced,
            )
        except ValueError as error:
            # What is no request for this engine (a token outside its vocabulary) ends here like any other.
            self._reject(request, str(error))

    def _reject(self, request: Request, reason: str) -> None:
        worker = self.engine.state.worker
        self._events.append(Rejected(self.engine.last_ns, worker, request.id, request.client, reason))

    def _exchange(self, command: Command) -> None:
        """Do what a transfer needs."""
        engine, exchange = self.engine, self.engine.exchange
        match command:
            case cluster.ReserveKv(number, request_id, tokens):
                exchange.ask(number, request_id, tokens)
            case cluster.ReleaseKv(number, request_id):
                engine.state = exchange.release(engine.state, number, request_id)
            case cluster.SendKv(number, request_id):
                kv = exchange.send(engine.state, request_id)
                if kv is not None:
                    self._kv[number] = kv
            case cluster.FreeKv(request_id):
                engine.state = exchange.free(engine.state, request_id)

    def close(self) -> None:
        """Give back what is held."""
        self.engine.close()


@attrs.frozen
class InProcess:
    """Starts workers in this process, each in a thread of its own."""

    recipe: Recipe

    def __call__(self, config: WorkerConfig) -> Worker:
        return _ThreadWorker(self.recipe, config)


class _ThreadWorker:
    """A worker that serves in a thread of its own, which does not keep the process."""

    def __init__(self, recipe: Recipe, config: WorkerConfig) -> None:
        self._thread = CallThread(f"fairsched-worker-{config.worker}")
        self._host = self._thread.later(lambda: WorkerHost(recipe, config))

    def serve(self, commands: Sequence[Command], pace: Cadence) -> "Future[ServingReport]":
        return self._thread.later(lambda: self._host.result().serve(commands, pace))

    def stop(self) -> None:
        # A thread that computes while the process ends would abort it; one that hangs is not waited for.
        self._thread.later(lambda: self._host.result().close())
        self._thread.stop(_GRACE_S)
