"""How many calls a server gets at a time, by what it says of its own queue.

`Slots` has the rule, `load_in` reads what vLLM, SGLang and this library's server say, `load_at` asks a server for it,
and `slot_warnings` does before a gateway runs.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from typing import TypeVar
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

SLOT_PATHS = ("/metrics", "/status")
"""Where a server says how many of its requests run and wait."""
FIRST = 16
"""Calls that a server which says how many wait is sent at first."""
UNTOLD_ROUNDS = 5
"""A server that did not say how many calls wait there is asked again after so many seconds."""
_open = build_opener(ProxyHandler({})).open
_SAID = re.compile(
    rb'(?:^(?:vllm:num_requests_|sglang:num_|fairsched_)|")(running|waiting|queue)(?:_reqs|_requests)?'
    rb'(?:(?:\{[^\n]*\})? |":\s?)([0-9]{1,9})(?:\.0)?(?=[\s,}]|$)',
    re.MULTILINE,
)
_Server = TypeVar("_Server")
Load = tuple[int, int]
"""Requests that run at a server, and that wait there."""


def load_in(said: bytes) -> Load | None:
    """Return what metrics or a status say of requests, of all replicas together; None where they say nothing."""
    found = [(name == b"running", int(value)) for name, value in _SAID.findall(said)]
    running, waiting = ([count for runs, count in found if runs is which] for which in (True, False))
    return (sum(running), sum(waiting)) if running and waiting else None


class Slots(dict[int, int]):
    """How many calls of this gateway each server has at a time, by its place.

    Where more than an eighth of what runs waits at a server (fewer may just have come), this gateway has so many in
    flight as its part of those that run: as many of its own as are in flight, times what runs, by what runs or waits;
    by half less at a time at most, and one at least.
    Where fewer wait and all that may be in flight are, an eighth more may be, one at least, up to `window_requests`.
    A server is asked each second, and begins with `FIRST`; one that says nothing has `window_requests`.

    Only when a call is let in depends on it: a server's tokens stay what they are, and with them W and every bound.
    """

    def of(self, place: int, window_requests: int) -> int:
        return min(self.get(place, window_requests), window_requests)

    def tell(self, place: int, load: Load | None, in_flight: int) -> None:
        """Take in what a server says while so many calls of this gateway are there; None: that it does not say."""
        if load is None:
            self.pop(place, None)
            return
        (running, waiting), most = load, self.get(place, FIRST)
        if 8 * waiting > running:
            ours = in_flight * running // (running + waiting)
            most = max(min(most, max(ours, most // 2)), 1) if in_flight else most
        elif in_flight >= most:
            most += max(most // 8, 1)
        self[place] = most

    async def follow(
        self, servers: Callable[[], Mapping[int, _Server]], ask: Callable[[int, _Server], Awaitable[object]]
    ) -> None:
        """Ask servers by place, until cancelled; `ask` tells what one says."""
        rounds = 0
        while True:
            asked = [each for each in servers().items() if each[0] in self or rounds % UNTOLD_ROUNDS == 0]
            await asyncio.gather(*(ask(*each) for each in asked))
            rounds += 1
            await asyncio.sleep(1.0)


def slot_warnings(servers: Iterable[tuple[str, int]], default: int) -> list[str]:
    """Return which of these servers, by address and `window_requests`, may have a queue of their own that nothing says
    anything of, before which no window protects."""
    asked = list(servers)

    def load(url: str) -> Load | None:
        with suppress(OSError):
            return load_at(url)
        return None

    with ThreadPoolExecutor(max(min(len(asked), 16), 1)) as pool:
        loads = pool.map(load, (url for url, _ in asked))
    return [
        f"{url} gets up to {requests} calls at once, and how many it runs is not known: what it does not run waits "
        "there, first come, first served, and no window protects. Set window_requests to what it runs"
        for (url, requests), said in zip(asked, loads, strict=True)
        if said is None and requests == default
    ]


def load_at(url: str) -> Load | None:
    """Return what a server says of its requests; None where it says nothing.  Raises `OSError` where it cannot be
    asked."""
    for path in SLOT_PATHS:
        try:
            with _open(url + path, timeout=1.0) as answer:
                if (load := load_in(answer.read(1 << 22))) is not None:
                    return load
        except HTTPError as error:
            error.close()
            if error.code >= 500:
                raise
        except (ValueError, HTTPException):
            continue
    return None
