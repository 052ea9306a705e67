"""`fairsched serve` in a test's own event loop, over an executor without a model, and callers of it."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import aiohttp

from fairsched.engines.gateway.config import LimitConfig
from fairsched.engines.gateway.server import Connections
from fairsched.engines.server import Access, ApiServer, Backend, CallReader, address, listening
from fairsched.engines.server.text import ByteTokenizer
from fairsched.engines.serving import Executor
from fairsched.policies.catalog import DLPM
from tests.support.engines.fake_executor import VOCABULARY, FakeExecutor, answer_of

CAPACITY = 4000
CONTEXT = 1000


def a_server(
    make_executor: Callable[[], Executor] = FakeExecutor,
    *,
    stop_tokens: frozenset[int] = frozenset(),
    access: Access | None = None,
    vocabulary: int = VOCABULARY,
    **options: Any,
) -> ApiServer:
    """A server whose tokens are bytes below 97, and whose answers are `answer_of`."""
    access = Access() if access is None else access
    backend = Backend(
        *(DLPM(), make_executor),
        kv_capacity_tokens=CAPACITY,
        context_tokens=CONTEXT,
        weights=access.weights,
        **options,
    )
    return ApiServer(backend, CallReader("fake", ByteTokenizer(), vocabulary, CONTEXT, stop_tokens), access)


@asynccontextmanager
async def served(server: ApiServer, *, metrics: bool = False) -> AsyncIterator["Caller"]:
    """A caller of the server, which listens on loopback and is closed in the end."""
    connections, sockets = Connections(LimitConfig()), listening("127.0.0.1", 0)
    await connections.start(server.application(metrics=metrics), sockets)
    try:
        async with aiohttp.ClientSession() as session:
            yield Caller(address("127.0.0.1", sockets), session)
    finally:
        await connections.stop(1.0)
        server.backend.close(drain=False)
        for each in sockets:
            each.close()


class Caller:
    """Calls a server."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        """The status and the document at a path."""
        async with self.session.get(self.url + path, **options) as answer:
            return answer.status, await answer.json(content_type=None)

    async def post(self, path: str, document: object, **options: Any) -> tuple[int, Any]:
        """The status and the document that a call comes to; a body of bytes is sent as it is."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        async with self.session.post(self.url + path, data=BytesIO(body), **options) as answer:
            return answer.status, await answer.json(content_type=None)

    async def complete(self, prompt: object, **fields: Any) -> dict[str, Any]:
        """The answer to a completion that is served."""
        status, document = await self.post("/v1/completions", {"prompt": prompt, **fields})
        assert status == 200, document
        return dict(document)

    async def chunks(self, path: str, document: object, **options: Any) -> list[dict[str, Any]]:
        """The documents of a stream; the last event is the mark of a whole one."""
        async with self.session.post(self.url + path, data=json.dumps(document).encode(), **options) as answer:
            assert answer.status == 200, await answer.text()
            *events, rest = (await answer.read()).split(b"\n\n")
        assert rest == b""
        assert all(event.startswith(b"data: ") for event in events)
        assert events.pop() == b"data: [DONE]"
        return [json.loads(event[6:]) for event in events]


def text_of(prompt: list[int], tokens: int) -> str:
    """What the made-up executor says after a prompt."""
    return bytes(answer_of(prompt, tokens)).decode()
