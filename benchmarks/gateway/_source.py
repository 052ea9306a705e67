"""A source of token streams that costs little, to measure proxies by: `python benchmarks/gateway/_source.py SECONDS`.

It answers every POST with a stream of `max_tokens` events, one every `SECONDS` from 20 ms on, in chunks as vLLM sends
them, and tells usage where it is asked.  It parses no more of HTTP than that takes.  It prints its two ports.
"""

import asyncio
import heapq
import json
import re
import socket
import sys
from contextlib import suppress

HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: source\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
FIRST_SECONDS = 0.02
TICK_SECONDS = 0.005
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


def chunk(document: dict | None) -> bytes:
    """An event as a chunk of an answer."""
    event = f"data: {'[DONE]' if document is None else json.dumps(document)}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


def _choice(delta: dict[str, str], reason: str | None = None) -> dict:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    head = {"id": "chatcmpl-5f0c2d6e", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": "made-up"}
    return {**head, "choices": [choice]}


TOKEN = chunk(_choice({"content": " word"}))
END = chunk(_choice({"content": ""}, "length"))


class Stream(asyncio.Protocol):
    """A connection, and the answer that is under way there."""

    due: list[tuple[float, int, "Stream"]] = []  # noqa: RUF012 - one agenda for all
    interval = 0.1
    number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.got = b""
        self.left = 0

    def data_received(self, data: bytes) -> None:
        self.got += data
        head, ended, rest = self.got.partition(b"\r\n\r\n")
        if not ended:
            return
        found = LENGTH.search(head)
        size = int(found[1]) if found else 0
        if len(rest) < size:
            return
        self.got = b""
        if not head.startswith(b"POST"):
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            return
        body = json.loads(rest)
        self.tokens = self.left = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        self.usage = (body.get("stream_options") or {}).get("include_usage")
        loop = asyncio.get_running_loop()
        self.later(loop.time() + FIRST_SECONDS)

    def later(self, at: float) -> None:
        """Have the next token at this time."""
        Stream.number += 1
        heapq.heappush(self.due, (at, Stream.number, self))

    def connection_lost(self, _: Exception | None) -> None:
        self.left = 0

    def step(self, at: float) -> None:
        """Send the next token."""
        if not self.left:
            return
        sent = (
            HEAD + chunk(_choice({"role": "assistant", "content": ""})) + TOKEN if self.left == self.tokens else TOKEN
        )
        self.left -= 1
        if not self.left:
            usage = {"prompt_tokens": 10, "total_tokens": 10 + self.tokens, "completion_tokens": self.tokens}
            told = chunk({**_choice({}), "choices": [], "usage": usage}) if self.usage else b""
            sent += END + told + chunk(None) + b"0\r\n\r\n"
        else:
            self.later(at + self.interval)
        self.transport.write(sent)


async def main(seconds: float) -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    Stream.interval = seconds
    ports = []
    for _ in range(2):
        listener = socket.create_server(("127.0.0.1", 0), backlog=8192)
        ports.append(listener.getsockname()[1])
        await loop.create_server(Stream, sock=listener, backlog=8192)
    sys.stdout.write(f"{ports[0]} {ports[1]}\n")
    sys.stdout.flush()
    while True:
        await asyncio.sleep(TICK_SECONDS)
        now, due = loop.time(), Stream.due
        while due and due[0][0] <= now:
            at, _, stream = heapq.heappop(due)
            stream.step(at)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        try:
            import uvloop

            uvloop.run(main(float(sys.argv[1])))
        except ImportError:
            asyncio.run(main(float(sys.argv[1])))
