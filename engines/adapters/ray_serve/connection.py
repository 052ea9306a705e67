"""A handle's end of the line: it asks the actor for places, reports what became of them, and works without it.

Messages go in order, one exchange at a time; what comes meanwhile goes with the next.  When an exchange fails or takes
too long it is not known what arrived, so the handle says `HandleHello` with all that is open until it is answered.  A
call that waited `patience_seconds` for an actor that is not there gets `UnreachableError`, and goes around the policy.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Literal, Protocol

import attrs

from fairsched.engines.adapters.ray_serve import messages as msg
from fairsched.engines.adapters.ray_serve.settings import RouterSettings

_log = logging.getLogger("fairsched.ray_serve")

_EXCHANGE_SECONDS = 10.0
"""An exchange that takes longer has failed."""


class UnreachableError(Exception):
    """The actor did not answer in time."""


class TooLargeError(ValueError):
    """A call that no replica's window could ever hold."""


class Actor(Protocol):
    """What is at the other end."""

    async def __call__(
        self, method: Literal["hello", "exchange", "hear"], handle: str, session: int, *raw: bytes
    ) -> bytes:
        """Call that method of `Host`."""


@attrs.define(eq=False)
class _Waiting:
    ask: msg.AskPlace
    place: "asyncio.Future[msg.PlacedCall]"


class ActorConnection:
    """Belongs to one event loop.  `connect` finds or makes the actor; `name` is the handle's."""

    def __init__(self, settings: RouterSettings, name: str, connect: Callable[[], Awaitable[Actor]]) -> None:
        self.settings = settings
        self.name = name
        self.around = 0
        self.held: dict[int, msg.HeldPlace] = {}
        """Calls in flight, by ticket."""
        self._connect = connect
        self._actor: Actor | None = None
        self._session = 0
        self._tickets = count()
        self._replicas: dict[str, int] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._accounts: msg.Accounts | None = None
        self._around_told = 0
        self._out: list[msg.Message] = []
        self._wake = asyncio.Event()
        self._talking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._given_up = False
        self._deadline: asyncio.TimerHandle | None = None

    # --- calls ------------------------------------------------------------------------------------------------------

    async def place(self, name: str, client: str, prompt_tokens: int, max_output_tokens: int) -> msg.PlacedCall:
        """Return a booked place for a call.

        Raises `UnreachableError` when there is no actor to ask, `TooLargeError` for a call that fits nowhere.  When it
        is cancelled the call is given up.
        """
        self.start()
        if self._given_up:
            raise UnreachableError
        ask = msg.AskPlace(next(self._tickets), name, client, prompt_tokens, max_output_tokens)
        waiting = _Waiting(ask, asyncio.get_running_loop().create_future())
        self._waiting[ask.ticket] = waiting
        self.tell(ask)
        try:
            placed = await waiting.place
        except (asyncio.CancelledError, UnreachableError):
            # A place that comes meanwhile is given back, too: nothing was sent.
            del self._waiting[ask.ticket]
            self.held.pop(ask.ticket, None)
            self.tell(msg.EndedCall(ask.ticket, "given back"))
            raise
        del self._waiting[ask.ticket]
        if placed.refusal:
            raise TooLargeError(f"client {client}: {placed.refusal}")
        return placed

    def went_around(self, name: str, client: str, prompt_tokens: int, max_output_tokens: int, replica: str) -> int:
        """Note a call that goes to that replica without having been let in; returns its ticket.

        An actor that is there, or comes back, hears of it and charges it.
        """
        self.around += 1
        ask = msg.AskPlace(next(self._tickets), name, client, prompt_tokens, max_output_tokens)
        held = self.held[ask.ticket] = msg.HeldPlace(ask, replica, 0)
        self.tell(held)
        return ask.ticket

    def end(self, ticket: int, outcome: msg.Outcome = "answered") -> None:
        """End a call that was placed.  Telling an end twice changes nothing."""
        if self.held.pop(ticket, None) is not None:
            self.tell(msg.EndedCall(ticket, outcome))

    def sees(self, replicas: dict[str, int]) -> None:
        """Tell the replicas that there are, and how many calls each takes."""
        self._replicas = replicas
        self.tell(msg.Replicas(replicas))

    # --- the line ---------------------------------------------------------------------------------------------------

    def start(self) -> bool:
        """Begin to talk, in the loop that is running; returns whether it had not begun."""
        if self._talking is not None:
            return False
        self._give_time()
        self._talking = self._run(self._talk())
        return True

    def _run(self, work: Awaitable[None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def stop(self) -> None:
        """Say nothing more.  Calls that wait get `UnreachableError`."""
        self._give_up()
        for task in self._tasks:
            task.cancel()

    def tell(self, message: msg.Message) -> None:
        """Say it to the actor.  Without one nothing is said: the next `HandleHello` has it."""
        if self._actor is not None:
            self._out.append(message)
            self._wake.set()

    async def _talk(self) -> None:
        """Find the actor, say `HandleHello`, exchange and listen; and again whenever that fails."""
        shortest = min(0.05, self.settings.heartbeat_seconds)
        delay = shortest
        while True:
            try:
                async with asyncio.timeout(2 * _EXCHANGE_SECONDS):
                    actor = await self._connect()
                    await self._greet(actor)
                delay = shortest
                await self._converse(actor)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                _log.warning("the actor of %s does not answer: %s: %s", self.name, type(error).__name__, error)
            self._actor = None
            self._give_time()
            await asyncio.sleep(delay)
            delay = min(2 * delay, self.settings.heartbeat_seconds)

    async def _greet(self, actor: Actor) -> None:
        self._session += 1
        self._out.clear()
        around = self.around
        waiting = tuple(each.ask for each in self._waiting.values() if not each.place.done())
        hello = msg.HandleHello(
            self._replicas, waiting, tuple(self.held.values()), self._accounts, around - self._around_told
        )
        # What is said from here on comes after this `HandleHello`.
        self._actor = actor
        async with asyncio.timeout(_EXCHANGE_SECONDS):
            heard = msg.heard_of(await actor("hello", self.name, self._session, msg.encode(hello)))
        self._around_told = around
        self._here()
        self._hear(heard)

    async def _converse(self, actor: Actor) -> None:
        """Note that the actor is there."""
        tasks = [self._run(self._exchanges(actor)), self._run(self._hears(actor))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _exchanges(self, actor: Actor) -> None:
        while True:
            if not self._out:
                self._wake.clear()
                await self._wake.wait()
            messages, self._out = tuple(self._out), []
            async with asyncio.timeout(_EXCHANGE_SECONDS):
                heard = msg.heard_of(await actor("exchange", self.name, self._session, msg.encode(messages)))
            if not self._hear(heard):
                return

    async def _hears(self, actor: Actor) -> None:
        while True:
            async with asyncio.timeout(_EXCHANGE_SECONDS + self.settings.heartbeat_seconds):
                heard = msg.heard_of(await actor("hear", self.name, self._session))
            if not self._hear(heard):
                return

    def _hear(self, heard: msg.CoordinatorAnswer) -> bool:
        if heard.accounts is not None:
            self._accounts = heard.accounts
        for placed in heard.placed:
            waiting = self._waiting.get(placed.ticket)
            if waiting is None or waiting.place.done():
                # It was given up while this was on its way, which was said or will be.
                continue
            if not placed.refusal:
                self.held[placed.ticket] = msg.HeldPlace(waiting.ask, placed.replica, placed.number)
            waiting.place.set_result(placed)
        return heard.known

    # --- patience ---------------------------------------------------------------------------------------------------

    def _give_time(self) -> None:
        if self._deadline is None and not self._given_up:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self.settings.patience_seconds, self._give_up)

    def _give_up(self) -> None:
        self._given_up, self._deadline = True, None
        for waiting in list(self._waiting.values()):
            if not waiting.place.done():
                waiting.place.set_exception(UnreachableError())

    def _here(self) -> None:
        """Begin a window, with these accounts;"""
        self._given_up = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
