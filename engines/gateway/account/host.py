"""The account for other processes: each speaks over a connection of its own, and its calls end with it.

A call is known by its connection and its number there.  It ends once: as its process says, or, when the connection is
lost, as withdrawn if it waited, and cancelled, charged by estimate, if it had a place.

Ray Serve's coordinator (`engines.adapters.ray_serve`) shares the window and not this protocol: its calls do not pass
through the handles that ask for them and go on while the actor is away, so that a handle outlives it and says again
what is open.  Here a call's bytes pass through the process, and end with it.
"""

import asyncio
import json
import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any

import attrs
import msgspec

from fairsched.engines.gateway.account import messages as msg
from fairsched.engines.gateway.account.messages import VERSION
from fairsched.engines.gateway.account.protocol import Account
from fairsched.engines.gateway.account.wire import BACKLOG_MAX, Wire
from fairsched.engines.gateway.config import GatewayConfig
from fairsched.engines.gateway.openai import CallError
from fairsched.engines.gateway.servers import Upstream
from fairsched.engines.serving import Document

_log = logging.getLogger("fairsched.gateway")

CALLS_MAX = 1 << 16
"""Calls of one process that are open at a time."""
LOST = "lost with its process"
"""The outcome of calls whose connection was lost."""


class AccountHost:
    """Belongs to one event loop.  `config` is the configuration in force.

    `ready` is told of a process that takes connections, `lost` of one whose connection was lost.
    """

    def __init__(
        self,
        account: Account,
        config: GatewayConfig,
        *,
        ready: Callable[["ProcessPeer"], object] = lambda peer: None,
        lost: Callable[["ProcessPeer"], object] = lambda peer: None,
    ) -> None:
        self.account = account
        self.config = config
        self.ready = ready
        self.lost = lost
        self.peers: set[ProcessPeer] = set()
        self.empty = asyncio.Event()
        """Set while no process is connected."""
        self.empty.set()
        self._upstreams: tuple[Upstream, ...] = account.upstreams()
        account.hung = lambda server: self.tell(msg.Hung(server))

    def wire(self) -> Wire:
        """Return this end of a new connection."""
        return ProcessPeer(self).wire

    def configure(self, config: GatewayConfig) -> None:
        """Put a configuration in force here and in all processes.  Raises `ConfigError`; then nothing changes."""
        self.account.configure(config)
        self.config = config
        self.tell(msg.Configured(config))

    async def status(self) -> Document:
        """Return the account's status, and the calls that each process has open."""
        return {**await self.account.status(), "processes": {str(peer.pid): len(peer.calls) for peer in self.peers}}

    def watch(self) -> None:
        """Tell all processes the servers that take calls, if these changed.  To be called now and then."""
        upstreams = self.account.upstreams()
        if upstreams != self._upstreams:
            self._upstreams = upstreams
            self.tell(msg.Upstreams(upstreams))

    def tell(self, message: msg.Configured | msg.Upstreams | msg.Hung) -> None:
        """Say it to all processes."""
        for peer in self.peers:
            peer.wire.say(message)


@attrs.define
class _Call:
    """An open call; `place` is None once it has one, and `request_id` its number in the account."""

    place: "asyncio.Task[None] | None" = None
    heard: bool = False
    """Whether the account has heard of it."""
    request_id: int = -1


@attrs.define(eq=False)
class ProcessPeer:
    """A process, and its open calls by its own numbers."""

    host: AccountHost
    pid: int = 0
    calls: dict[int, _Call] = attrs.field(factory=dict)
    wire: Wire = attrs.field(init=False)
    _tasks: "set[asyncio.Task[None]]" = attrs.field(factory=set)

    def __attrs_post_init__(self) -> None:
        self.wire = Wire(msg.decoder_of_process, self._hear, self._lost)

    def _run(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _say(self, message: msg.Placed | msg.Refused | msg.Answer) -> None:
        """Answer the process, if it reads its answers."""
        self.wire.say(message)
        if self.wire.backlog > BACKLOG_MAX:
            self.wire.abort(f"{BACKLOG_MAX} bytes of answers wait")

    def _hear(self, message: Any) -> None:
        try:
            self._take(message)
        except (ValueError, IndexError, OverflowError) as error:
            self.wire.say(msg.Bye(str(error)))
            self.wire.close(str(error))

    def _take(self, message: Any) -> None:
        """Take a message.  Raises for what no process of ours says."""
        if not self.pid:
            self._welcome(message)
            return
        account = self.host.account
        match message:
            case msg.Place():
                self._begin(message)
            case msg.Produced() | msg.Finish() | msg.Cancel() | msg.GiveBack() | msg.Withdraw():
                self._follow(message)
            case msg.Count():
                for outcome, calls in message.outcomes.items():
                    account.count(outcome, calls)
            case msg.Failed():
                account.failed(message)
                self.host.watch()
            case msg.Worked():
                account.worked(message.server, message.name)
            case msg.Ask():
                _ = self._run(self._answer(message))
            case msg.Weigh():
                self._weigh(message)
            case msg.Ready():
                self.host.ready(self)
            case msg.Hello():
                raise ValueError("a second hello")

    def _follow(self, message: msg.Produced | msg.Finish | msg.Cancel | msg.GiveBack | msg.Withdraw) -> None:
        """Take what is said of calls that were placed; of those that ended it means nothing."""
        account = self.host.account
        match message:
            case msg.Produced():
                for call, tokens in zip(message.calls, message.tokens, strict=True):
                    if (found := self.calls.get(call)) is not None and found.place is None:
                        account.produced(found.request_id, tokens)
            case msg.Finish():
                if (request_id := self._end(message.call, message.produced)) is not None:
                    account.finish(request_id, message.computed_tokens, message.output_tokens, message.cached_tokens)
            case msg.Cancel():
                if (request_id := self._end(message.call, message.produced)) is not None:
                    account.cancel(request_id, message.outcome)
            case msg.GiveBack():
                if (request_id := self._end(message.call, 0)) is not None:
                    account.give_back(request_id, message.outcome)
            case msg.Withdraw():
                self._withdraw(message.call)

    def _welcome(self, message: Any) -> None:
        if not isinstance(message, msg.Hello) or message.version != VERSION:
            said = f"version {message.version}" if isinstance(message, msg.Hello) else type(message).__name__
            raise ValueError(f"the account speaks version {VERSION}, and was told {said}")
        self.pid = message.pid
        self.host.peers.add(self)
        self.host.empty.clear()
        self.wire.say(msg.Welcome(self.host.config, self.host.account.upstreams()))

    # --- calls ------------------------------------------------------------------------------------------------------

    def _begin(self, ask: msg.Place) -> None:
        if ask.call in self.calls:
            raise ValueError(f"call {ask.call} is open already")
        if not math.isfinite(ask.wanted.wait_seconds):
            raise ValueError(f"call {ask.call}: it waits {ask.wanted.wait_seconds} s")
        if len(self.calls) >= CALLS_MAX:
            self.host.account.count("limited")
            self._say(msg.Refused(ask.call, 503, f"{CALLS_MAX} calls are open", 1))
            return
        call = self.calls[ask.call] = _Call()
        call.place = self._run(self._place(ask, call))

    async def _place(self, ask: msg.Place, call: _Call) -> None:
        call.heard = True
        try:
            placed = await self.host.account.place(ask.wanted)
        except CallError as error:
            del self.calls[ask.call]
            said = error.status, error.message, error.retry_after_seconds
            self._say(msg.Refused(ask.call, *said, error.code, error.headers))
            return
        except asyncio.CancelledError:
            self.calls.pop(ask.call, None)
            raise
        except Exception as error:
            # An account that is broken refuses; the process goes on to serve what it has.
            _log.exception("no place for call %d of process %d", ask.call, self.pid)
            del self.calls[ask.call]
            self._say(msg.Refused(ask.call, 500, f"the gateway failed: {type(error).__name__}", None))
            return
        call.place, call.request_id = None, placed.request_id
        self._say(msgspec.structs.replace(placed, request_id=ask.call))

    def _end(self, number: int, produced: int) -> int | None:
        """Return the account's number of a call that has a place and ends now; None if it has ended."""
        call = self.calls.get(number)
        if call is None or call.place is not None:
            return None
        del self.calls[number]
        if produced:
            self.host.account.produced(call.request_id, produced)
        return call.request_id

    def _withdraw(self, number: int) -> None:
        call = self.calls.get(number)
        if call is None:
            return
        if call.place is None:
            del self.calls[number]
            self.host.account.give_back(call.request_id, "left")
        elif call.heard:
            call.place.cancel()
        else:
            # After its first step, so that the account has heard of it and counts it.
            asyncio.get_running_loop().call_soon(self._withdraw, number)

    def _lost(self) -> None:
        """End all that is open, once: first what waits, the last first, so that none of it is let in for another."""
        placed = [call.request_id for call in self.calls.values() if call.place is None]
        places = [call.place for call in reversed(self.calls.values()) if call.place is not None]
        for task in (*places, *(self._tasks - set(places))):
            task.cancel()
        self.calls.clear()
        asyncio.get_running_loop().call_soon(self._cancel, placed)
        if self in self.host.peers:
            self.host.peers.discard(self)
            self.host.lost(self)
            why = self.wire.why or "it is gone"
            _log.info("process %d: %s; %d calls in flight end", self.pid, why, len(placed))

    def _cancel(self, placed: list[int]) -> None:
        for request_id in placed:
            self.host.account.cancel(request_id, LOST)
        if not self.host.peers:
            self.host.empty.set()

    def _weigh(self, message: msg.Weigh) -> None:
        try:
            self.host.configure(self.host.config.with_weights(message.weights))
            self._say(msg.Answer(message.ticket, b""))
        except ValueError as error:
            self._say(msg.Answer(message.ticket, b"", str(error)))

    async def _answer(self, ask: msg.Ask) -> None:
        account = self.host.account
        try:
            if ask.what == "metrics":
                body = await account.metrics()
            else:
                told = self.host.status() if ask.what == "status" else account.usage()
                body = json.dumps(await told).encode()
            self._say(msg.Answer(ask.ticket, body))
        except CallError as error:
            self._say(msg.Answer(ask.ticket, b"", error.message, error.status, error.retry_after_seconds))
        except Exception as error:
            _log.exception("%s cannot be told", ask.what)
            self._say(msg.Answer(ask.ticket, b"", f"{type(error).__name__}: {error}"))
