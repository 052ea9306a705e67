"""A workload replayed against an OpenAI-compatible server, and the figures of `compare` that can be measured there.

Each request is sent as a streamed completion at its arrival, or after those that it follows, whatever became of others
(an open loop).  Its prompt is a text of four bytes a token in which equal blocks are equal, so that prefixes are shared
as in the trace; how many tokens that is is up to the server's vocabulary.  Its output is asked for in the trace's
length.  What happens is told as events, and `engines.analysis.outcomes` measures them as it measures a simulation.
"""

import asyncio
import hashlib
import ssl
import time
from collections.abc import Mapping

import aiohttp
import attrs
import msgspec

from fairsched.engines.analysis import Measures, Outcomes
from fairsched.engines.gateway import StreamReader
from fairsched.model.events import Arrived, Cancelled, Decoded, Event, Finished, Prefilled, Rejected
from fairsched.model.request import KEY_BYTES, Job, Prompt, Request, Workload
from fairsched.model.service import concatenate, tables

SERVER = 0
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 2.0
"""Connections idle for longer are not used again: servers close theirs after a few seconds."""
_LETTERS = "abcdefghijklmnop"


@attrs.frozen
class LoadTarget:
    """Where calls go: the address without `/v1`, the model, the header that names a client, a key, and whether outputs
    shall not end before their length (`ignore_eos`, which vLLM and SGLang know)."""

    url: str
    model: str | None = None
    client_header: str = "x-client"
    key: str | None = attrs.field(default=None, repr=False)
    ignore_eos: bool = False
    read_seconds: float = 600.0


@attrs.frozen
class Replayed:
    """What was measured, of all requests and of each client's; `errors` says what was refused, by reason."""

    measures: Measures
    clients: dict[str, Measures]
    errors: dict[str, int]

    def to_json(self) -> dict[str, object]:
        """Return the run's entry in a document like that of `compare`; what cannot be measured from outside is not
        there."""
        entry = _measured(self.measures)
        entry["clients"] = {name: _measured(measures) for name, measures in self.clients.items()}
        return entry | {"errors": self.errors}


def _measured(measures: Measures) -> dict[str, object]:
    document = attrs.asdict(measures)
    for key in ("prefix_hit_ratio", "preemptions", "swaps", "pauses", "paused_us"):
        del document[key]
    if document["slo_attainment"] is None:
        del document["slo_attainment"]
    return document


def prompt_text(prompt: Prompt, request_id: int) -> str:
    """Return a text of four bytes for each token: the same words for the same block, and words of its own for the
    rest."""
    size = prompt.block_tokens
    blocks = [
        _words(prompt.keys[i * KEY_BYTES : (i + 1) * KEY_BYTES], size) for i in range(len(prompt.keys) // KEY_BYTES)
    ]
    rest = prompt.tokens - prompt.blocks * size
    return "".join(blocks) + _words(b"request" + request_id.to_bytes(8, "little"), rest)


def _words(seed: bytes, count: int) -> str:
    drawn = hashlib.shake_128(seed).digest(3 * count)
    letters = "".join(_LETTERS[byte & 15] for byte in drawn)
    return "".join(f"{letters[i : i + 3]} " for i in range(0, 3 * count, 3))


def open_session(read_seconds: float) -> aiohttp.ClientSession:
    """Return a caller's connections: as many as it has calls, without cookies, and bytes as they come."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=read_seconds),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


class NotListeningError(ValueError):
    """Nothing takes a connection at an address."""


async def first_model(
    http: aiohttp.ClientSession, url: str, headers: Mapping[str, str], tls: ssl.SSLContext | bool = True
) -> str:
    """Return the first model that a server lists.  Raises `ValueError` where it lists none, `NotListeningError` where
    no connection is taken."""
    try:
        async with http.get(f"{url}/v1/models", headers=headers, ssl=tls) as answer:
            name = msgspec.json.decode(await answer.read())["data"][0]["id"]
    except aiohttp.ClientConnectorError as error:
        raise NotListeningError(f"nothing listens at {url}: {error.strerror or error}") from None
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{url}/v1/models names no model: {str(error) or type(error).__name__}") from None
    return str(name)


class LoadReplay:
    """One replay: the workload, the target, and the events so far (times in nanoseconds from its start)."""

    def __init__(self, workload: Workload, target: LoadTarget) -> None:
        self.workload = workload
        self.target = target
        self.events: list[Event] = []
        self.errors: dict[str, int] = {}
        self._begun_ns = 0
        # What a request's followers wait for: whether it finished.
        self._ends: dict[int, asyncio.Future[bool]] = {}

    async def run(self) -> Replayed:
        """Send everything and wait for all ends.  Raises `ValueError` where the server names no model."""
        async with open_session(self.target.read_seconds) as http:
            model = self.target.model or await first_model(http, self.target.url, self._headers("fairsched-load"))
            loop = asyncio.get_running_loop()
            self._ends = {job.request.id: loop.create_future() for job in self.workload.jobs}
            origin = min((job.request.arrival_ns for job in self.workload.jobs), default=0)
            self._begun_ns = time.monotonic_ns() - origin
            async with asyncio.TaskGroup() as group:
                for job in self.workload.jobs:
                    group.create_task(self._job(http, model, job))
        outcomes = Outcomes(self.workload, concatenate([tables(self.events)]))
        clients = {client.name: outcomes.measures(client.id) for client in self.workload.clients}
        return Replayed(outcomes.measures(None), clients, dict(sorted(self.errors.items())))

    def _headers(self, client: str) -> dict[str, str]:
        named = {self.target.client_header: client}
        return named if self.target.key is None else named | {"authorization": f"Bearer {self.target.key}"}

    def now(self) -> int:
        """Return the replay's clock: at a request's arrival it shows its `arrival_ns`."""
        return time.monotonic_ns() - self._begun_ns

    async def _job(self, http: aiohttp.ClientSession, model: str, job: Job) -> None:
        request, done = job.request, False
        try:
            followed = [await self._ends[before] for before in job.after]
            wait_ns = job.think_ns if job.after else request.arrival_ns - self.now()
            await asyncio.sleep(max(wait_ns, 0) / 1e9)
            self.events.append(Arrived(self.now(), SERVER, request))
            if not all(followed):
                self._cancelled(request, 0)
                return
            patience = None if job.cancel_after_ns is None else job.cancel_after_ns / 1e9
            reader = _Output(self, request)
            try:
                async with asyncio.timeout(patience):
                    done = await self._call(http, model, job, reader)
            except TimeoutError:
                self._cancelled(request, reader.tokens)
        finally:
            self._ends[request.id].set_result(done)

    def _cancelled(self, request: Request, tokens: int) -> None:
        self.events.append(Cancelled(self.now(), SERVER, request.id, request.client, tokens > 0, 0, tokens))

    def _rejected(self, request: Request, reason: str) -> bool:
        self.errors[reason] = self.errors.get(reason, 0) + 1
        self.events.append(Rejected(self.now(), SERVER, request.id, request.client, reason))
        return False

    async def _call(self, http: aiohttp.ClientSession, model: str, job: Job, output: "_Output") -> bool:
        """Send one call and follow its answer; whether it finished."""
        request = job.request
        body: dict[str, object] = {
            "model": model,
            "prompt": prompt_text(request.prompt, request.id),
            "max_tokens": job.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.target.ignore_eos:
            body["ignore_eos"] = True
        headers = self._headers(self.workload.clients[request.client].name) | {"content-type": "application/json"}
        url = f"{self.target.url}/v1/completions"
        try:
            async with http.post(url, data=msgspec.json.encode(body), headers=headers) as answer:
                if answer.status != 200:
                    return self._rejected(request, f"HTTP {answer.status}")
                while chunk := await answer.content.readany():
                    output.read(chunk)
        except (aiohttp.ClientError, OSError) as error:
            return self._rejected(request, type(error).__name__)
        return output.finished() or self._rejected(request, "an answer without a token")


class _Output:
    """One answer as it comes, told as events."""

    def __init__(self, replay: LoadReplay, request: Request) -> None:
        self.tokens = 0
        self._replay = replay
        self._request = request
        self._stream = StreamReader()

    def read(self, chunk: bytes) -> None:
        """Take bytes of the stream."""
        self._add(self._stream.read(chunk))

    def _add(self, tokens: int) -> None:
        if tokens <= 0:
            return
        request, now, events = self._request, self._replay.now(), self._replay.events
        if not self.tokens:
            events.append(Prefilled(now, SERVER, request.id, request.client, request.prompt_tokens, 0))
        self.tokens += tokens
        events.append(Decoded(now, SERVER, 1, (request.client,), (tokens,)))

    def finished(self) -> bool:
        """End the stream; whether it brought anything.  What its usage says stands."""
        self._add((self._stream.usage.output_tokens or 0) - self.tokens)
        if not self.tokens:
            return False
        request = self._request
        self._replay.events.append(Finished(self._replay.now(), SERVER, request.id, request.client, self.tokens))
        return True
