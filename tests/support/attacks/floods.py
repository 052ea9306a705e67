"""A polite closed-loop client and floods of every kind: coroutines over HTTP, for a gateway in any loop's time.

A flood runs until it is cancelled.  `[tokens 100]` and the like in a prompt say what the made-up model does
(`engines.conformance.mock_server`).
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any

import aiohttp
import attrs

POLITE = "polite"
CHAT = "/v1/chat/completions"
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
AT_ONCE_SECONDS = 0.1
"""A call that takes less was refused at once."""
STUCK_SECONDS = 4.0
"""A call without an answer for so long, when time is over, is stuck."""


@attrs.define
class Polite:
    """What the polite client saw."""

    answered: int = 0
    tokens: int = 0
    refused: Counter[str] = attrs.field(factory=Counter)
    first_token_ms: list[float] = attrs.field(factory=list)


@attrs.define
class World:
    """A gateway, or several that share an account, the engines behind them, and what callers saw."""

    urls: Sequence[str]
    engines: Sequence[str]
    http: aiohttp.ClientSession
    rng: random.Random = attrs.field(factory=lambda: random.Random(1))
    polite: Polite = attrs.field(factory=Polite)
    seen: Counter[str] = attrs.field(factory=Counter)
    """What the flood saw."""
    _turns: Iterator[str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._turns = cycle(self.urls)

    @property
    def url(self) -> str:
        """The gateway of the next call, connection or request: in turns, as a load balancer spreads them."""
        return next(self._turns)

    async def call(
        self, key: str, body: dict[str, Any], leaves: tuple[float, float] | None = None, until: bytes | None = None
    ) -> None:
        """One call of the flood, by a caller that leaves after a time between the two, or when this has come, if they
        are given."""
        try:
            async with asyncio.timeout(None if leaves is None else self.rng.uniform(*leaves)):
                headers = {"authorization": key if " " in key else f"Bearer {key}"}
                async with self.http.post(self.url + CHAT, json=body, headers=headers) as answer:
                    async for chunk in answer.content.iter_any():
                        if until is not None and until in chunk:
                            self.seen["left"] += 1
                            return
                    self.seen[str(answer.status)] += 1
        except TimeoutError:
            self.seen["left"] += 1
        except (aiohttp.ClientError, OSError) as error:
            self.seen[type(error).__name__] += 1
            await asyncio.sleep(0.1)

    async def behave(self, document: dict[str, Any], which: slice = slice(None)) -> None:
        """Change the behaviour of some engines."""
        for url in self.engines[which]:
            async with self.http.post(f"{url}/behave", json=document) as answer:
                assert answer.status == 200


Flood = Callable[[World], Awaitable[object]]


Call = Callable[[int], dict[str, Any]]
"""The body of a call of which so many tokens are to come."""


def chat(words: str = "[tokens {n}]", most: int | None = None, **fields: Any) -> Call:
    """Return calls whose prompt makes the made-up model do what it says; without `most` they declare what will come."""

    def body(n: int) -> dict[str, Any]:
        message = {"role": "user", "content": f"{words.format(n=n)} {'lorem ' * 4}"}
        return {"model": "made-up", "messages": [message], "max_tokens": most or n, **fields}

    return body


def loops(
    count: int,
    body: Call,
    tokens: int = 60,
    keys: Sequence[str] = ("sk-f0",),
    pause: float = 0.0,
    stagger: float = 0.0,
    **how: Any,
) -> Flood:
    """Return a flood of so many closed loops, whose calls have these keys in turn, with a pause after each.

    Answers have three to five quarters of `tokens`, and each loop begins a little later than the one before, so that
    calls do not end together.
    """

    async def flood(world: World) -> None:
        clock = asyncio.get_running_loop().time

        async def loop(i: int) -> None:
            await asyncio.sleep(i * stagger)
            while True:
                begun = clock()
                n = world.rng.randint(tokens * 3 // 4, tokens * 5 // 4)
                await world.call(keys[i % len(keys)], body(n), **how)
                # What was refused at once is asked again with a short pause, or nothing else would run.
                await asyncio.sleep(max(pause, begun + AT_ONCE_SECONDS - clock()))

        await asyncio.gather(*(loop(i) for i in range(count)))

    return flood


async def polite_client(world: World, key: str, at_once: int, tokens: int, seconds: float) -> None:
    """Ask for about `tokens` again and again until the time is over; what was refused is repeated after a pause."""
    clock = asyncio.get_running_loop().time
    stop, seen = clock() + seconds, world.polite
    # Its own, so that it asks for the same beside every flood.
    rng = random.Random(1)

    async def ask(began: float) -> None:
        count, whole = 0, False
        headers = {"authorization": f"Bearer {key}"}
        body = chat(**USAGE)(rng.randint(tokens * 3 // 4, tokens * 5 // 4))
        # A connection of its own each time, as a new caller has.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as http, asyncio.timeout_at(stop):
            async with http.post(world.url + CHAT, json=body, headers=headers) as answer:
                if answer.status != 200:
                    seen.refused[str(answer.status)] += 1
                    await asyncio.sleep(0.1)
                    return
                async for line in answer.content:
                    whole |= line.startswith(b"data: [DONE]")
                    if b'"content": "x' in line:
                        count += 1
                        if count == 1:
                            seen.first_token_ms.append((clock() - began) * 1e3)
            seen.tokens += count
            if whole:
                seen.answered += 1
            else:
                seen.refused["cut"] += 1

    async def loop() -> None:
        while clock() < stop:
            began = clock()
            try:
                await ask(began)
            except TimeoutError:
                if clock() - began > STUCK_SECONDS:
                    seen.refused["stuck"] += 1
                return
            except (aiohttp.ClientError, OSError) as error:
                seen.refused[type(error).__name__] += 1
                await asyncio.sleep(0.1)

    await asyncio.gather(*(loop() for _ in range(at_once)))


def later(seconds: float, then: Flood) -> Flood:
    """Return a flood that begins after a time."""

    async def flood(world: World) -> None:
        await asyncio.sleep(seconds)
        await then(world)

    return flood


def after(first: Flood, then: Flood) -> Flood:
    """Return a flood that begins with something else."""

    async def flood(world: World) -> None:
        await first(world)
        await then(world)

    return flood


def beside(*floods: Flood) -> Flood:
    """Return floods at the same time."""

    async def flood(world: World) -> None:
        await asyncio.gather(*(each(world) for each in floods))

    return flood


async def fails_fast(world: World) -> None:
    """The last engine answers 500 at once from now on."""
    await world.behave({"fails": "fast"}, slice(-1, None))


async def hangs(world: World) -> None:
    """The last engine says nothing from now on, and keeps its connections."""
    await world.behave({"fails": "hangs"}, slice(-1, None))


async def over_quota(world: World) -> None:
    """Every engine answers 429 for the flood's key from now on."""
    await world.behave({"quota": {"sk-f0": 5}})


def fills_names(count: int) -> Flood:
    """Return a flood of so many random keys that ask for the list of models, which is free."""

    async def flood(world: World) -> None:
        async def ask(i: int) -> None:
            headers = {"authorization": f"Bearer free-{i}"}
            with suppress(aiohttp.ClientError, OSError):
                async with world.http.get(f"{world.url}/v1/models", headers=headers) as answer:
                    world.seen[f"models {answer.status}"] += 1

        for first in range(0, count, 50):
            await asyncio.gather(*(ask(i) for i in range(first, first + 50)))

    return flood


def random_keys(count: int, body: Call, tokens: int = 60) -> Flood:
    """Return a flood of closed loops with another key each time."""

    async def flood(world: World) -> None:
        async def loop() -> None:
            while True:
                n = world.rng.randint(tokens * 3 // 4, tokens * 5 // 4)
                await world.call(f"sk-{world.rng.randrange(1 << 60)}", body(n))
                await asyncio.sleep(AT_ONCE_SECONDS)

        await asyncio.gather(*(loop() for _ in range(count)))

    return flood


def sockets(count: int, sent: bytes, drip: bytes = b"") -> Flood:
    """Return a flood of connections that send so much, and then `drip` every second, until they are cut off."""

    async def flood(world: World) -> None:
        host, _, port = world.url.removeprefix("http://").partition(":")

        async def one() -> None:
            try:
                async with asyncio.timeout(10):
                    reader, writer = await asyncio.open_connection(host, int(port))
            except (OSError, TimeoutError):
                world.seen["not connected"] += 1
                return
            world.seen["open"] += 1
            try:
                writer.write(sent)
                while not reader.at_eof():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            if not await reader.read(4096):
                                break
                    writer.write(drip)
                    await writer.drain()
            except OSError:
                pass
            finally:
                world.seen["open"] -= 1
                writer.transport.abort()

        await asyncio.gather(*(one() for _ in range(count)))

    return flood
