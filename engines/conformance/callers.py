"""The callers of a script: each call over a connection of its own, and what was heard of it."""

import asyncio
import hashlib
import ssl
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

import aiohttp
import attrs
import msgspec

from fairsched.engines.conformance import script as steps
from fairsched.engines.conformance.loadtest import first_model, open_session
from fairsched.engines.conformance.mock_server import TOKEN, MockEngine
from fairsched.engines.conformance.scenarios import CLIENTS
from fairsched.engines.gateway import StreamReader, Usage

PATH = "/v1/chat/completions"
SAID_MAX = 120
POLL_SECONDS = 0.02
_WORDS = "a question of some words "


class Credentials:
    """What callers show, so that the gateway knows their clients; `way` says what it is."""

    way: ClassVar[steps.Way]

    def headers(self, call: steps.ScriptedCall) -> dict[str, str]:
        raise NotImplementedError

    def context(self, _: steps.ScriptedCall) -> ssl.SSLContext | bool:
        """Return how the connection of a call checks the gateway's certificate and shows one; True: as usual."""
        return True


@attrs.frozen
class Keys(Credentials):
    """API keys, by client."""

    keys: Mapping[str, str] = attrs.field(repr=False)
    way: ClassVar[steps.Way] = "key"

    def headers(self, call: steps.ScriptedCall) -> dict[str, str]:
        key = self.keys[call.client]
        if call.flaw == steps.UNKNOWN:
            key = f"sk-unknown-{hashlib.sha256(key.encode()).hexdigest()[:20]}"
        return {} if call.flaw == steps.MISSING else {"authorization": f"Bearer {key}"}


@attrs.frozen
class Header(Credentials):
    """A header that names the client, as a proxy that is trusted sets it."""

    name: str
    way: ClassVar[steps.Way] = "header"

    def headers(self, call: steps.ScriptedCall) -> dict[str, str]:
        return {self.name: call.client}


@attrs.frozen
class Gateways:
    """Where calls go: one address, or those of instances before the same servers, without `/v1`; what callers show."""

    urls: tuple[str, ...]
    shows: Credentials
    model: str | None = None


@attrs.frozen
class CallerPace:
    """Times of the callers, in seconds; none of them is measured.

    All is quiet when nothing happened for `quiet`; what must come is waited for as long as `patience` says.
    """

    quiet: float = 1.0
    patience: float = 15.0
    drain: float = 300.0


class Player:
    """Plays scripts.  `journal` is what the mock servers write to, and this."""

    def __init__(self, gateways: Gateways, engines: Sequence[MockEngine], journal: list[tuple[str, int]]) -> None:
        self.gateways = gateways
        self.pace = CallerPace()
        self._engines = engines
        self._journal = journal
        self._model = gateways.model or ""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._heard: dict[int, steps.HeardAnswer] = {}
        self._calls: dict[int, steps.ScriptedCall] = {}
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Player":
        self._http = open_session(self.pace.drain)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._http is not None
        await self._http.close()

    async def play(self, script: steps.CallScript) -> steps.Record:
        """Send the calls of a script, and return what came of them."""
        self._journal.clear()
        self._heard, self._tasks, self._calls = {}, {}, script.calls
        record = steps.Record(script, [], self._heard, bool(self._engines))
        for step in script.steps:
            record = await self._step(step, record)
        await self._step(steps.DrainServers(), record)
        return attrs.evolve(record, journal=list(self._journal))

    async def ask(self, call: steps.ScriptedCall) -> steps.HeardAnswer:
        """Send one call, and return what came of it."""
        self._heard, self._calls = {call.number: (heard := steps.HeardAnswer())}, {call.number: call}
        await self._call(call, heard)
        return heard

    async def model(self) -> str:
        """Return the model that is asked for: the one given, or the first that the gateway lists."""
        if not self._model:
            assert self._http is not None
            call, shows = steps.ScriptedCall(0, next(iter(CLIENTS)), 1), self.gateways.shows
            url = self.gateways.urls[0]
            self._model = await first_model(self._http, url, shows.headers(call), shows.context(call))
        return self._model

    # --- steps ------------------------------------------------------------------------------------------------------

    async def _step(self, step: steps.Step, record: steps.Record) -> steps.Record:
        match step:
            case steps.Send():
                await self._send(step)
            case steps.Hold():
                for engine in self._engines:
                    engine.released.clear()
            case steps.Release():
                await self._release(step.until_paused)
            case steps.HearTokens():
                heard = self._heard[step.call]
                await self._until(lambda: heard.tokens >= step.tokens or self._tasks[step.call].done())
                return attrs.evolve(record, heard_held={**record.heard_held, step.call: heard.tokens})
            case steps.Leave():
                await self._leave(step.calls)
            case steps.Gone():
                await self._until(lambda: not any(each.live for each in self._engines))
            case steps.DrainServers():
                await self._drain()
        return record

    async def _drain(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.pace.drain):
                while any(not task.done() for task in self._tasks.values()):
                    # A call may stop the servers again.
                    await self._release(False)
                    await asyncio.sleep(POLL_SECONDS)
        late = [number for number, task in self._tasks.items() if not task.done()]
        await self._leave(late)
        for number in late:
            self._heard[number].lost = f"no end within {self.pace.drain:g} s"
        await self._release(False)

    async def _send(self, step: steps.Send) -> None:
        for call in step.calls:
            self._heard[call.number] = steps.HeardAnswer()
            self._journal.append(("sent", call.number))
            self._tasks[call.number] = asyncio.ensure_future(self._call(call, self._heard[call.number]))
            # Calls of one client are sent in order, and a gateway may take them in between.
            await asyncio.sleep(0)
        if not self._engines:
            # Servers that are not ours never stand still: what comes next is sent as soon as this is under way.
            await self._until(lambda: not step.at_servers or bool(self._count("begun")))
            return
        if step.at_servers:
            await self._until(lambda: len(self._count("arrived")) >= step.at_servers)
        seen = -1
        while seen != len(self._journal):
            seen = len(self._journal)
            await asyncio.sleep(self.pace.quiet)

    def _count(self, event: str) -> Counter[int]:
        return Counter(call for what, call in self._journal if what == event)

    async def _release(self, until_paused: bool) -> None:
        for engine in self._engines:
            engine.released.set()
        if until_paused:
            await self._until(lambda: all(not each.released.is_set() or not each.live for each in self._engines))

    async def _leave(self, calls: Sequence[int]) -> None:
        for number in calls:
            self._heard[number].left = True
            self._tasks[number].cancel()
        await asyncio.gather(*(self._tasks[number] for number in calls), return_exceptions=True)

    async def _until(self, over: Callable[[], bool]) -> None:
        """Wait until something is so, or patience is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.pace.patience):
                while not over():
                    await asyncio.sleep(POLL_SECONDS)

    # --- calls ------------------------------------------------------------------------------------------------------

    async def _call(self, call: steps.ScriptedCall, heard: steps.HeardAnswer) -> None:
        assert self._http is not None
        prompt = f"[call {call.number}] {call.words} {_WORDS}" if self._engines else _WORDS
        body: dict[str, object] = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": call.tokens,
        }
        if call.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        shows = self.gateways.shows
        headers = call.headers | shows.headers(call) | {"content-type": "application/json"}
        url, tls = self.gateways.urls[call.gateway] + PATH, shows.context(call)
        try:
            async with self._http.post(url, data=msgspec.json.encode(body), headers=headers, ssl=tls) as answer:
                heard.status = answer.status
                if answer.status >= 300:
                    heard.said = (await answer.content.read(SAID_MAX)).decode("utf-8", "replace")
                elif call.stream:
                    await self._stream(call, heard, answer)
                else:
                    self._whole(call, heard, await answer.read())
        except (aiohttp.ClientError, OSError) as error:
            heard.lost = type(error).__name__
        finally:
            self._journal.append(("ended", call.number))

    async def _stream(self, call: steps.ScriptedCall, heard: steps.HeardAnswer, answer: aiohttp.ClientResponse) -> None:
        reader, usage, rest, length = StreamReader(), Usage(), b"", 0
        while chunk := await answer.content.readany():
            tokens = reader.read(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                data = line.removeprefix(b"data:").strip()
                heard.done += data == b"[DONE]"
                event = _decoded(data)
                heard.error |= line.startswith(b"event: error") or bool(event.error)
                usage.read(event.usage)
                length += sum(len(choice.delta.content or "") for choice in event.choices)
            # The text says how many tokens came, whatever else a gateway adds to a stream.
            self._hears(call, heard, length // len(TOKEN) - heard.tokens if self._engines else tokens)
        heard.usage_tokens, heard.prompt_tokens = usage.output_tokens, usage.computed_tokens

    def _whole(self, call: steps.ScriptedCall, heard: steps.HeardAnswer, body: bytes) -> None:
        answer, usage = _decoded(body), Usage()
        usage.read(answer.usage)
        heard.done, heard.usage_tokens, heard.prompt_tokens = 1, usage.output_tokens, usage.computed_tokens
        length = sum(len(choice.message.content or "") for choice in answer.choices)
        self._hears(call, heard, length // len(TOKEN) if self._engines else usage.output_tokens or 1)

    def _hears(self, call: steps.ScriptedCall, heard: steps.HeardAnswer, tokens: int) -> None:
        if tokens and not self._engines:
            # What servers begin is not seen: it is told by what comes of it.
            if not heard.tokens:
                self._journal.append(("begun", call.number))
            self._journal += [("token", call.number)] * tokens
        heard.tokens += tokens


class _Text(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Text = msgspec.field(default_factory=_Text)
    message: _Text = msgspec.field(default_factory=_Text)


class _Answer(msgspec.Struct):
    """An answer, or an event of one: text, usage, and whether it went wrong."""

    choices: list[_Choice] = []
    usage: dict[str, object] | None = None
    error: object = None


def _decoded(data: bytes) -> _Answer:
    try:
        return msgspec.json.decode(data, type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Answer()
