"""The account of another process, over a Unix socket.

To place a call takes one round trip.  Tokens that pass are reported every `REPORT_SECONDS`, ends at once.  What waits
here to be sent is bounded by the calls that are open: a call says `Place`, one sum of tokens, and one end.  When the
connection ends, the account ends the calls of this process, and no call has a place here any more.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal

from fairsched.engines.gateway.account import messages as msg
from fairsched.engines.gateway.account.wire import Wire
from fairsched.engines.gateway.config import GatewayConfig
from fairsched.engines.gateway.openai import CallError
from fairsched.engines.gateway.servers import Upstream
from fairsched.engines.serving import Document

REPORT_SECONDS = 0.02


class AccountLostError(ConnectionError):
    """The account is not there, or takes nothing from this process; the message says why."""


class RemoteAccount:
    """An `Account`.  It belongs to one event loop; `connected` makes one.

    `configured` is told the configuration whenever it changes; `lost` is done when the connection is.
    """

    def __init__(self) -> None:
        self._wire = Wire(msg.decoder_of_account, self._hear, self._is_lost)
        self._loop = asyncio.get_running_loop()
        self._welcome: asyncio.Future[GatewayConfig] | None = None
        self._places: dict[int, asyncio.Future[msg.Placed]] = {}
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._produced: dict[int, int] = {}
        self._counted: Counter[str] = Counter()
        self._worked: set[tuple[int, str]] = set()
        self._report: asyncio.TimerHandle | None = None
        self._upstreams: tuple[Upstream, ...] = ()
        self._next = 0
        self._tickets = 0
        self.lost = asyncio.Event()
        self.configured: Callable[[GatewayConfig], None] = lambda config: None
        self.hung: Callable[[int], object] = lambda server: None

    # --- the line ---------------------------------------------------------------------------------------------------

    @property
    def wire(self) -> Wire:
        """This end of the connection."""
        return self._wire

    async def greet(self) -> GatewayConfig:
        """Say who is there; returns the configuration in force.  Raises `AccountLostError`."""
        self._welcome = self._loop.create_future()
        self._wire.say(msg.Hello(msg.VERSION, os.getpid()))
        return await self._welcome

    def ready(self) -> None:
        """Tell that this process takes connections."""
        self._wire.say(msg.Ready())

    def _is_lost(self) -> None:
        self.lost.set()
        why = self._wire.why or "the account's process is gone"
        if self._welcome is not None and not self._welcome.done():
            self._welcome.set_exception(AccountLostError(why))
        waiting: list[asyncio.Future[Any]] = [*self._places.values(), *self._answers.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(_gone())
        if self._report is not None:
            self._report.cancel()

    def _hear(self, message: Any) -> None:
        match message:
            case msg.Placed():
                self._settle(message.request_id, message)
            case msg.Refused():
                said = message.status, message.message, message.retry_after_seconds
                self._settle(message.call, CallError(*said, code=message.code, headers=message.headers))
            case msg.Answer():
                answer = self._answers.get(message.ticket)
                if answer is not None and not answer.done():
                    if message.error:
                        answer.set_exception(CallError(message.status, message.error, message.retry_after_seconds))
                    else:
                        answer.set_result(message.body)
            case msg.Upstreams():
                self._upstreams = message.upstreams
            case msg.Hung():
                self.hung(message.server)
            case msg.Configured():
                self.configured(message.config)
            case msg.Welcome():
                self._upstreams = message.upstreams
                if self._welcome is not None and not self._welcome.done():
                    self._welcome.set_result(message.config)
            case msg.Bye():
                self._wire.close(message.why)

    def _settle(self, call: int, result: msg.Placed | CallError) -> None:
        # A call that was withdrawn meanwhile is not here any more, and the account has heard so.
        place = self._places.get(call)
        if place is None or place.done():
            return
        if isinstance(result, CallError):
            place.set_exception(result)
        else:
            place.set_result(result)

    # --- calls ------------------------------------------------------------------------------------------------------

    async def place(self, wanted: msg.PlaceRequest) -> msg.Placed:
        """Return where a call goes, once it may."""
        await self._wire.writable.wait()
        if self.lost.is_set():
            raise _gone()
        call = self._next
        self._next += 1
        place: asyncio.Future[msg.Placed] = self._loop.create_future()
        self._places[call] = place
        self._wire.say(msg.Place(call, wanted))
        try:
            return await place
        except asyncio.CancelledError:
            # A place that comes meanwhile is given back, too.
            self._wire.say(msg.Withdraw(call))
            raise
        finally:
            del self._places[call]

    def produced(self, request_id: int, tokens: int) -> None:
        """Count output tokens that passed by."""
        self._produced[request_id] = self._produced.get(request_id, 0) + tokens
        self._soon()

    def finish(
        self, request_id: int, computed_tokens: int | None, output_tokens: int | None, cached_tokens: int = 0
    ) -> None:
        """End a call whose answer is whole."""
        produced = self._produced.pop(request_id, 0)
        self._end(msg.Finish(request_id, produced, computed_tokens, output_tokens, cached_tokens))

    def cancel(self, request_id: int, outcome: str) -> None:
        """End a call whose usage is not known."""
        self._end(msg.Cancel(request_id, self._produced.pop(request_id, 0), outcome))

    def give_back(self, request_id: int, outcome: str) -> None:
        """End a call of which the server computed nothing."""
        self._produced.pop(request_id, None)
        self._end(msg.GiveBack(request_id, outcome))

    def _end(self, message: msg.Finish | msg.Cancel | msg.GiveBack) -> None:
        if not self.lost.is_set():
            self._wire.say(message)

    def count(self, outcome: str, calls: int = 1) -> None:
        """Count calls that ended before they had a place."""
        self._counted[outcome] += calls
        self._soon()

    # --- reports ----------------------------------------------------------------------------------------------------

    def _soon(self) -> None:
        if self._report is None:
            self._report = self._loop.call_later(REPORT_SECONDS, self.report)

    def report(self) -> None:
        """Send the sums that wait for the next report.  While the account does not read they go on as sums."""
        self._report = None
        if self.lost.is_set():
            return
        if not self._wire.writable.is_set():
            self._soon()
            return
        if self._produced:
            self._wire.say(msg.Produced(tuple(self._produced), tuple(self._produced.values())))
            self._produced = {}
        if self._counted:
            self._wire.say(msg.Count(dict(self._counted)))
            self._counted.clear()
        for server, name in self._worked:
            self._wire.say(msg.Worked(server, name))
        self._worked.clear()

    # --- servers ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do nothing until cancelled: the account's process looks after the servers."""
        await self._loop.create_future()

    def failed(self, failure: msg.Failed) -> None:
        """Tell that a server failed a call of the client."""
        worked = failure.server, failure.name
        if worked in self._worked:
            self._worked.discard(worked)
            self._wire.say(msg.Worked(*worked))
        self._wire.say(failure)

    def worked(self, server: int, name: str) -> None:
        """Tell that a server gave the client an answer."""
        self._worked.add((server, name))
        self._soon()

    def upstreams(self) -> tuple[Upstream, ...]:
        """Return the servers that take calls."""
        return self._upstreams

    # --- the whole gateway ------------------------------------------------------------------------------------------

    def configure(self, config: GatewayConfig) -> None:
        """Do nothing: the account had this configuration before this process."""

    async def status(self) -> Document:
        """Return the whole gateway's status."""
        document: Document = json.loads(await self._ask("status"))
        return document

    async def usage(self) -> Document:
        """Return what the clients of the whole gateway used."""
        document: Document = json.loads(await self._ask("usage"))
        return document

    async def metrics(self) -> bytes:
        """Return the whole gateway's metrics."""
        return await self._ask("metrics")

    async def weigh(self, weights: Mapping[str, int]) -> None:
        """Give clients other weights, in all processes."""
        await self._answered(lambda ticket: msg.Weigh(ticket, dict(weights)))

    async def _ask(self, what: Literal["status", "metrics", "usage"]) -> bytes:
        self.report()
        return await self._answered(lambda ticket: msg.Ask(ticket, what))

    async def _answered(self, asked: Callable[[int], msg.Ask | msg.Weigh]) -> bytes:
        if self.lost.is_set():
            raise _gone()
        ticket = self._tickets
        self._tickets += 1
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._answers[ticket] = answer
        self._wire.say(asked(ticket))
        try:
            return await answer
        finally:
            del self._answers[ticket]

    def close(self) -> None:
        """Send what was not reported, and end the connection: no call is left."""
        self.report()
        self._wire.close("this process ends")


async def connected(path: str) -> tuple[RemoteAccount, GatewayConfig]:
    """Return the account at a Unix socket and the configuration in force.  Raises `AccountLostError`."""
    remote = RemoteAccount()
    try:
        await asyncio.get_running_loop().create_unix_connection(lambda: remote.wire, path)
    except OSError as error:
        raise AccountLostError(f"the account at {path}: {error}") from None
    return remote, await remote.greet()


def _gone() -> CallError:
    return CallError(503, "the gateway starts again", 1)
