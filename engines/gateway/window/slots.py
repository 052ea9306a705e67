"""How many calls a server gets at a time, by what it says of its own queue.

`Slots` has the rule, `load_in` reads what vLLM, SGLang and this library's server say, and `slot_warnings` asks servers
before a gateway runs.
"""

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from urllib.request import urlopen

SLOT_PATHS = ("/metrics", "/status")
"""Where a server says how many of its requests run and wait."""
FIRST = 16
"""Calls that a server which says how many wait is sent at first."""
_SAID = re.compile(
    rb'(?:^(?:vllm:num_requests_|sglang:num_|fairsched_)|")(running|waiting|queue)(?:_reqs|_requests)?'
    rb'(?:(?:\{[^\n]*\})? |":\s?)([0-9]{1,9})(?:\.0)?(?=[\s,}]|$)',
    re.MULTILINE,
)
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
        """Return how many calls a server has at a time."""
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


def slot_warnings(servers: Iterable[tuple[str, int]], default: int, *, learns: bool) -> list[str]:
    """Return which of these servers, by address and `window_requests`, may have a queue of their own, before which no
    window protects.  `learns`: what a server says of its queue is followed."""
    asked, warnings = list(servers), []
    with ThreadPoolExecutor(max(min(len(asked), 16), 1)) as pool:
        loads = list(pool.map(_asked, (url for url, _ in asked)))
    for (url, requests), load in zip(asked, loads, strict=True):
        waits = load is not None and load[1] and requests > load[0]
        if (load is None and requests == default) if learns else (waits or requests == default):
            runs = f"it runs {load[0]} now" if load is not None and waits else "how many it runs is not known"
            warnings.append(
                f"{url} gets up to {requests} calls at once, and {runs}: what it does not run waits there, first come, "
                "first served, and no window protects. Set window_requests to what it runs"
            )
    return warnings


def _asked(url: str) -> Load | None:
    for path in SLOT_PATHS:
        try:
            with urlopen(url + path, timeout=1.0) as answer:
                if (load := load_in(answer.read(1 << 22))) is not None:
                    return load
        except (OSError, ValueError, HTTPException):
            continue
    return None
