"""An OpenAI-compatible server, made up, as a process: `python -m tests.support.adapters.openai_server` prints its port.

A stream has `max_tokens` tokens, numbered, so that one which is missing or comes twice is seen; from `LONG` tokens on
it takes its time.  `/counts` says how many calls it was asked for, answered and lost, and who asked, in order.
"""

import asyncio
import json
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator

from aiohttp import web

from tests.support.adapters.http import streamed

LONG = 100
PAUSE = 0.02
counts: Counter[str] = Counter()
order: list[str] = []


async def _answer(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    counts["asked"] += 1
    order.append(request.headers.get("x-fairsched-client", ""))
    tokens = body["max_tokens"]
    if body.get("stream"):
        return await streamed(request, _stream(tokens))
    counts["answered"] += 1
    usage = {"prompt_tokens": 7, "completion_tokens": tokens}
    return web.json_response({"choices": [{"text": "x " * tokens}], "usage": usage})


async def _stream(tokens: int) -> AsyncIterator[bytes]:
    whole = False
    try:
        for i in range(tokens):
            if tokens >= LONG:
                await asyncio.sleep(PAUSE)
            yield f"data: {json.dumps({'choices': [{'text': f't{i}'}]})}\n\n".encode()
        usage = {"prompt_tokens": 7, "completion_tokens": tokens}
        yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode()
        whole = True
        yield b"data: [DONE]\n\n"
    finally:
        counts["answered" if whole else "lost"] += 1


async def _counts(_: web.Request) -> web.Response:
    return web.json_response({**counts, "order": order})


def main() -> None:
    """Serve until killed."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/completions", _answer)
    app.router.add_get("/counts", _counts)
    web.run_app(app, sock=listener, print=None, access_log=None, handler_cancellation=True)


if __name__ == "__main__":
    main()
