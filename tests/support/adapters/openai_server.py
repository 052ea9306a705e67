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

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

LONG = 100
PAUSE = 0.02
counts: Counter[str] = Counter()
order: list[str] = []
priorities: list[int | None] = []


async def _answer(request: Request) -> Response:
    body = await request.json()
    counts["asked"] += 1
    order.append(request.headers.get("x-client", ""))
    priorities.append(body.get("priority"))
    tokens = body["max_tokens"]
    if body.get("stream"):
        return StreamingResponse(_stream(tokens), media_type="text/event-stream")
    counts["answered"] += 1
    usage = {"prompt_tokens": 7, "completion_tokens": tokens}
    return JSONResponse({"choices": [{"text": "x " * tokens}], "usage": usage})


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


async def _counts(_: Request) -> Response:
    return JSONResponse({**counts, "order": order, "priorities": priorities})


def main() -> None:
    """Serve until killed."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    routes = [Route("/v1/completions", _answer, methods=["POST"]), Route("/counts", _counts)]
    config = uvicorn.Config(Starlette(routes=routes), log_level="critical", access_log=False, ws="none")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
