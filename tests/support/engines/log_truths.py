"""Servers whose truth is known, independent of fairsched: kinds of load, a server of its own, and what its log has.

A server takes requests in order of arrival, or from under a gate that refills credit; steps mix decodes with chunks of
prompts.  It stands beside the simulator so that advice is held against something that does not share its faults.
"""

import csv
import json
import math
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from pathlib import Path

import attrs

TEAMS = ("search", "legal", "Übersetzung", "客服", "finance", "hr", "devtools", "marketing", "mobile", "data", "qa")
FLOODER = "batch"
START = 1_795_000_000.0
QUANTUM = 4_096


@attrs.define(eq=False)
class Call:
    """A request: when it was sent, in seconds, what it asks, and what became of it.  `then` is sent when it ends."""

    at: float
    client: str
    prompt: int
    output: int
    streams: bool = True
    then: "Call | None" = None
    server: int = 0
    admitted: float = 0.0
    first: float = 0.0
    end: float = 0.0
    left: int = 0
    done: int = 0


@attrs.frozen
class Truth:
    """A kind of load, of how many servers, and what is right to advise."""

    load: Callable[[random.Random, float], Iterator[Call]]
    verdict: str
    servers: int = 1


def _sent(
    draw: random.Random,
    client: str,
    start: float,
    stop: float,
    rate: float,
    prompt: tuple[float, float] = (6.3, 0.8),
    output: tuple[float, float] = (4.7, 0.8),
) -> Iterator[Call]:
    """Yield requests of a client, `rate` a second, with lognormal lengths."""
    now = start
    while (now := now + draw.expovariate(rate)) < stop:
        asked, told = (max(1, int(draw.lognormvariate(*each))) for each in (prompt, output))
        yield Call(now, client, min(asked, 60_000), min(told, 2_000), draw.random() < 0.75)


def _teams(draw: random.Random, stop: float, total: float) -> Iterator[Call]:
    for name in TEAMS:
        own = total / len(TEAMS) * draw.uniform(0.5, 1.5)
        yield from _sent(draw, name, 0, stop, own)
        yield from _sent(draw, name, 0, stop, 0.003 * own, (10.5, 0.3))


def _flood(draw: random.Random, span: float, rate: float) -> Iterator[Call]:
    return _sent(draw, FLOODER, span / 3, span * 7 / 12, rate, (6.8, 0.4), (5.2, 0.4))


def _bursts(draw: random.Random, span: float) -> Iterator[Call]:
    for i in range(3):
        at = span * (0.15 + 0.3 * i)
        yield from _sent(draw, FLOODER, at, at + 0.03 * span, 30.0, (6.8, 0.4), (5.2, 0.4))


def _agents(draw: random.Random, span: float) -> Iterator[Call]:
    """Yield the first turns of agents that send the next turn, with all that was said, when an answer is there."""
    for _ in range(int(0.4 * span)):
        last: Call | None = None
        prompt = draw.randint(1_000, 4_000)
        for turn in reversed(range(draw.randint(4, 10))):
            last = Call(0.0, FLOODER, prompt + 900 * turn, draw.randint(40, 200), True, last)
        assert last is not None
        last.at = span / 4 + draw.random() * span / 4
        yield last


def _with(
    total: float, *more: Callable[[random.Random, float], Iterator[Call]]
) -> Callable[[random.Random, float], Iterator[Call]]:
    def load(draw: random.Random, span: float) -> Iterator[Call]:
        yield from _teams(draw, span, total)
        for each in more:
            yield from each(draw, span)

    return load


TRUTHS = {
    "flood": Truth(_with(3, lambda d, s: _flood(d, s, 14)), "gate"),
    "two servers": Truth(_with(6, lambda d, s: _flood(d, s, 26)), "gate", 2),
    "overload": Truth(_with(13), "capacity"),
    "idle": Truth(_with(2), "leave"),
    "burst": Truth(_with(3, _bursts), "gate"),
    "long prompts": Truth(
        _with(3, lambda d, s: _sent(d, FLOODER, s / 3, 2 * s / 3, 0.5, (10.4, 0.3), (3.0, 0.3))), "gate"
    ),
    "agents": Truth(_with(3, _agents), "gate"),
}


def asked(kind: str, span: float, seed: int = 7) -> list[Call]:
    """Return what is sent in `span` seconds, in order of time."""
    return sorted(TRUTHS[kind].load(random.Random(seed), span), key=lambda call: call.at)


SEATS, BUDGET, MEMORY = 64, 2_048, 250_000
"""Requests at once, tokens that a step computes, and KV tokens of a server."""


@attrs.define(eq=False)
class _Server:
    """A server with a queue of its own; `credit` of clients is shared by all servers, and None where there is no
    gate."""

    credit: dict[str, int] | None
    now: float = 0.0
    running: list[Call] = attrs.field(factory=list)
    queues: dict[str, deque[Call]] = attrs.field(factory=lambda: defaultdict(deque))

    @property
    def load(self) -> int:
        return len(self.running) + sum(map(len, self.queues.values()))

    def following(self) -> Call | None:
        """Return the request that is next, after a refill if no waiting client has credit."""
        waiting = [name for name, queue in self.queues.items() if queue]
        if waiting and self.credit is not None:
            while not any(self.credit[name] > 0 for name in waiting):
                for name, left in self.credit.items():
                    self.credit[name] += QUANTUM if left <= 0 else 0
            waiting = [name for name in waiting if self.credit[name] > 0]
        return min((self.queues[name][0] for name in waiting), key=lambda call: call.at, default=None)

    def charge(self, call: Call, cost: int) -> None:
        if self.credit is not None:
            self.credit[call.client] -= cost

    def admit(self) -> None:
        held = sum(call.prompt + call.output for call in self.running)
        while len(self.running) < SEATS and (call := self.following()) is not None:
            held += call.prompt + call.output
            if self.running and held > MEMORY:
                break
            self.queues[call.client].popleft()
            self.charge(call, call.prompt)
            call.admitted, call.left = self.now, call.prompt
            self.running.append(call)

    def step(self) -> list[Call]:
        """Return the requests that end with one step: a token for each that decodes, and chunks of prompts."""
        decoding = [call for call in self.running if not call.left]
        room, first = BUDGET - len(decoding), []
        for call in self.running:
            if call.left and room:
                part = min(room, call.left)
                call.left, room = call.left - part, room - part
                first += [call] * (not call.left)
        computed = BUDGET - len(decoding) - room
        context = sum(call.prompt + call.done for call in decoding)
        self.now += 0.008 + 9e-5 * computed + 1.2e-4 * len(decoding) + 4e-8 * context
        for call in (*first, *decoding):
            call.first = call.first or self.now
            call.done += 1
            self.charge(call, 2)
        ended = [call for call in (*first, *decoding) if call.done == call.output]
        for call in ended:
            call.end = self.now
            self.running.remove(call)
        return ended


def serve(calls: list[Call], servers: int = 1, gate: bool = False) -> list[Call]:
    """Return the calls that were served, all turns of agents included; a call goes to the server with the fewest.

    With the gate a client is served while it has credit, and all get the quantum when no waiting client has any.
    """
    credit: dict[str, int] | None = {} if gate else None
    fleet = [_Server(credit) for _ in range(servers)]
    agenda = [(call.at, i, call) for i, call in enumerate(calls)]
    heapify(agenda)
    served: list[Call] = []
    while True:
        busy = [server for server in fleet if server.load]
        if agenda and agenda[0][0] <= min((server.now for server in busy), default=math.inf):
            _, _, call = heappop(agenda)
            server = min(fleet, key=lambda each: each.load)
            call.server = fleet.index(server)
            server.now = server.now if server.load else max(server.now, call.at)
            server.queues[call.client].append(call)
            if credit is not None:
                credit.setdefault(call.client, QUANTUM)
        elif busy:
            server = min(busy, key=lambda each: each.now)
            server.admit()
            for call in server.step():
                served.append(call)
                if call.then is not None:
                    call.then.at = call.end + 0.5
                    heappush(agenda, (call.then.at, len(calls) + len(served), call.then))
        else:
            return served


def p99(calls: list[Call]) -> float:
    """Return the p99 time to a first token, in seconds."""
    taken = sorted(call.first - call.at for call in calls)
    return taken[min(len(taken) - 1, int(0.99 * len(taken)))] if taken else 0.0


# --- logs -----------------------------------------------------------------------------------------------------------


def _iso(at: float) -> str:
    return datetime.fromtimestamp(START + at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _clean(call: Call, draw: random.Random) -> dict[str, object]:
    wait, first, whole = (round(1e3 * (t - call.at), 2) for t in (call.admitted, call.first, call.end))
    return {
        "arrival_time": f"{START + call.at:.4f}",
        "client": call.client,
        "worker": f"s{call.server}",
        "prompt_tokens": call.prompt,
        "completion_tokens": call.output,
        "cached_tokens": 0,
        "queue_time_ms": wait,
        "ttft_ms": first,
        "latency_ms": whole,
        "status": 200,
    }


def _own(call: Call, draw: random.Random) -> dict[str, object]:
    """Return a row with neither server nor queue."""
    row = {
        "tenant": call.client,
        "start": _iso(call.at),
        "ttft_ms": round(1e3 * (call.first - call.at), 1),
        "latency_ms": round(1e3 * (call.end - call.at), 1),
        "prompt_tokens": call.prompt,
    }
    return row | {"completion_tokens": call.output} | ({} if call.streams else {"ttft_ms": None})


def _nginx(call: Call, draw: random.Random) -> dict[str, object]:
    first = call.first if call.streams else call.end
    prompt, output = (str(n) if draw.random() > 0.03 else "-" for n in (call.prompt, call.output))
    gone = draw.random() < 0.01
    return {
        "msec": f"{START + (call.at + 60 if gone else call.end):.3f}",
        "request": "POST /v1/chat/completions HTTP/1.1",
        "status": draw.choice([499, 502, 504]) if gone else 200,
        "request_time": "60.000" if gone else f"{call.end - call.at:.3f}",
        "upstream_addr": f"10.0.0.{10 + call.server}:8000",
        "request_completion": "" if gone else "OK",
        "client": call.client,
        "type": "" if gone else "text/event-stream" if call.streams else "application/json",
        "ttft": "-" if gone else f"{first - call.at:.3f}",
        "prompt_tokens": "-" if gone else prompt,
        "completion_tokens": "-" if gone else output,
    }


FORMATS = {"csv": _clean, "own": _own, "nginx": _nginx}


def write_log(path: Path, calls: list[Call], form: str) -> Path:
    """Write the log of what was served, in order of ends."""
    draw = random.Random(1)
    rows = [FORMATS[form](call, draw) for call in sorted(calls, key=lambda call: call.end)]
    with path.open("w", newline="") as file:
        if form == "csv":
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
        else:
            file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    return path
