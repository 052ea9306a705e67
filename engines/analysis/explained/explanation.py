"""Why one request took as long as it did: its time in spans, each with what held it, as a value and as text."""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill
from typing import Any, Literal

import attrs

from fairsched.engines.analysis.figures import safe_text
from fairsched.engines.analysis.phases import Phase
from fairsched.model.request import Job

Wait = Literal["step", "gate", "memory", "order", "budget", "prefix", "cap", "swapped", "adapter", "paused"]
"""What holds a request back."""

Held = Literal[Wait, "prefill", "decode", "transfer"]
"""What a request's time goes to."""

MEANING: dict[Held, str] = {
    "step": "a step was under way when it came",
    "gate": "its client had no credit",
    "cap": "its client had reached the cap on what it has in flight",
    "prefix": "another request was computing a prefix of its prompt",
    "order": "others came first",
    "swapped": "it had been swapped out, and others came first or memory was short",
    "adapter": "running requests had other adapters in all slots, or one with this adapter would have kept its slot",
    "paused": "it kept its place in the batch, and others decoded",
    "memory": "it was next, and did not fit into the free KV memory",
    "budget": "it was next, and the step's tokens or seats were spent",
}
"""Why a request waits, in words."""

COLUMNS = 100
"""Width of the text."""

AHEAD_SHOWN = 5
"""So many requests and clients that went first are named, those with the most tokens."""


@attrs.frozen
class HeldSpan:
    """From `start_ns` to `end_ns` (nanoseconds, end excluded) the request was held by one thing, or computed."""

    held: Held
    start_ns: int
    end_ns: int

    @property
    def ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns


@attrs.frozen
class Moment:
    """Something that happened to the request, in words."""

    time_ns: int
    what: str


@attrs.frozen
class Ahead:
    """A request that entered the batch of the worker while ours waited, with the tokens computed for its prompt."""

    request_id: int
    client: int
    extend_tokens: int


@attrs.frozen
class Explanation:
    """The life of one request on its worker.

    `spans` follow each other without a gap from `arrived_ns` to `ended_ns`, so that they add up to the latency, and
    those before `first_token_ns` (None: there was none) to the time to first token.  `outcome` is "finished",
    "cancelled", "rejected" or "open" (the log ends before it does).

    For a request whose KV went from worker to worker `phases` are the nanoseconds of each of its phases at all of
    them, and `way` is what happened there; both are empty for another one.
    """

    policy: str
    job: Job
    clients: tuple[str, ...]
    worker: int
    arrived_ns: int
    first_token_ns: int | None
    ended_ns: int
    outcome: str
    spans: tuple[HeldSpan, ...]
    moments: tuple[Moment, ...]
    ahead: tuple[Ahead, ...]
    phases: Mapping[Phase, int] = attrs.field(factory=dict)
    way: tuple[Moment, ...] = ()

    @property
    def ttft_ns(self) -> int | None:
        """Time to first token."""
        return None if self.first_token_ns is None else self.first_token_ns - self.arrived_ns

    @property
    def latency_ns(self) -> int:
        """Time from arrival to the end."""
        return self.ended_ns - self.arrived_ns

    def totals(self, until_ns: int | None = None) -> dict[Held, int]:
        """Return nanoseconds by what they went to, until a time if one is given; only what there was, longest first."""
        sums: dict[Held, int] = {}
        for span in self.spans:
            length = span.ns if until_ns is None else min(span.end_ns, until_ns) - span.start_ns
            if length > 0:
                sums[span.held] = sums.get(span.held, 0) + length
        return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))

    @property
    def ttft_parts(self) -> dict[Held, int]:
        """The totals of the time to first token; empty if there was none."""
        return {} if self.first_token_ns is None else self.totals(self.first_token_ns)

    @property
    def waited(self) -> dict[Held, int]:
        """Nanoseconds waited by cause, longest first."""
        return {held: ns for held, ns in self.totals().items() if held in MEANING}

    def ahead_by_client(self) -> list[tuple[int, int, int]]:
        """(client, requests, tokens) of what went first, most tokens first."""
        rows: dict[int, tuple[int, int]] = {}
        for entry in self.ahead:
            requests, tokens = rows.get(entry.client, (0, 0))
            rows[entry.client] = requests + 1, tokens + entry.extend_tokens
        return sorted(((c, n, tokens) for c, (n, tokens) in rows.items()), key=lambda row: (-row[2], row[0]))

    def ahead_largest(self) -> list[Ahead]:
        """Return the requests that went first with the most tokens."""
        return sorted(self.ahead, key=lambda entry: (-entry.extend_tokens, entry.request_id))[:AHEAD_SHOWN]

    def to_json(self) -> dict[str, Any]:
        """Plain values; times in microseconds."""
        request = self.job.request
        way = {"phases_us": {phase: ns / 1e3 for phase, ns in self.phases.items()}} if self.phases else {}
        return way | {
            "policy": self.policy,
            "request": request.id,
            "client": self.clients[request.client],
            "worker": self.worker,
            "prompt_tokens": request.prompt.tokens,
            "output_tokens": self.job.output_tokens,
            "max_output_tokens": request.max_output_tokens,
            "outcome": self.outcome,
            "arrived_us": self.arrived_ns / 1e3,
            "ttft_us": None if self.ttft_ns is None else self.ttft_ns / 1e3,
            "latency_us": self.latency_ns / 1e3,
            "waited_us": _microseconds(self.waited),
            "ttft_parts_us": _microseconds(self.ttft_parts),
            "latency_parts_us": _microseconds(self.totals()),
            "moments": [{"at_us": (m.time_ns - self.arrived_ns) / 1e3, "what": m.what} for m in self.moments],
            "spans": [
                {"held": s.held, "at_us": (s.start_ns - self.arrived_ns) / 1e3, "us": s.ns / 1e3} for s in self.spans
            ],
            "ahead": {
                "requests": len(self.ahead),
                "tokens": sum(entry.extend_tokens for entry in self.ahead),
                "clients": [
                    {"client": self.clients[client], "requests": requests, "tokens": tokens}
                    for client, requests, tokens in self.ahead_by_client()
                ],
                "largest": [
                    {"request": e.request_id, "client": self.clients[e.client], "tokens": e.extend_tokens}
                    for e in self.ahead_largest()
                ],
            },
        }

    def text(self, width: int = COLUMNS) -> str:
        """Return the explanation in plain lines; those that list something have at most `width` columns."""
        story = _story(self.moments, self.arrived_ns)
        return "\n".join([*self._head(), "", *self._phases(), *story, "", *self._waiting(width), *self._sums(width)])

    def _phases(self) -> Iterator[str]:
        """Yield the request's way from worker to worker, where its KV moved."""
        whole = sum(self.phases.values())
        if not self.way:
            return
        yield f"Its way ({_milliseconds(whole)} ms)"
        for phase, ns in self.phases.items():
            yield f"  {phase.replace('_', ' '):<14}{_milliseconds(ns):>14} ms {_percent(ns, whole)}"
        yield ""
        yield from _story(self.way, self.way[0].time_ns)
        yield ""
        yield f"At worker {self.worker}"

    def _head(self) -> Iterator[str]:
        request = self.job.request
        client = safe_text(self.clients[request.client])
        yield f"Request {request.id} of client {client} on worker {self.worker} under {self.policy}: {self.outcome}"
        yield (
            f"prompt {request.prompt.tokens:,} tokens, output {self.job.output_tokens:,} "
            f"of at most {request.max_output_tokens:,}; arrived at {self.arrived_ns / 1e9:,.6f} s"
        )

    def _waiting(self, width: int) -> Iterator[str]:
        waited = self.waited
        whole = sum(waited.values())
        if not whole:
            yield "It did not wait."
            yield ""
            return
        yield f"Why it waited ({_milliseconds(whole)} ms)"
        for held, ns in waited.items():
            yield f"  {held:<8}{_milliseconds(ns):>14} ms {_percent(ns, whole)}  {MEANING[held]}"
        if self.ahead:
            yield from self._who(width)
        yield ""

    def _who(self, width: int) -> Iterator[str]:
        tokens = sum(entry.extend_tokens for entry in self.ahead)
        yield f"Meanwhile {len(self.ahead):,} other request(s) entered, with {tokens:,} tokens to compute"
        by_client = self.ahead_by_client()
        room = max(min(24, width - 50), 12)
        for client, requests, part in by_client[:AHEAD_SHOWN]:
            name = safe_text(self.clients[client], room)
            yield f"  {name:<{room}} {requests:>8,} request(s) {part:>12,} tokens {_percent(part, tokens)}"
        if len(by_client) > AHEAD_SHOWN:
            yield f"  and {len(by_client) - AHEAD_SHOWN:,} more clients"
        names = (
            f"{e.request_id} ({safe_text(self.clients[e.client], 24)}, {e.extend_tokens:,})"
            for e in self.ahead_largest()
        )
        yield fill(f"largest: {', '.join(names)}", width, initial_indent="  ", subsequent_indent="    ")

    def _sums(self, width: int) -> Iterator[str]:
        if self.first_token_ns is not None:
            yield _sum("Time to first token", self.ttft_parts, width)
        yield _sum("Latency", self.totals(), width)


def _story(moments: Sequence[Moment], origin_ns: int) -> Iterator[str]:
    return (f"{'+' + _milliseconds(moment.time_ns - origin_ns):>16} ms  {moment.what}" for moment in moments)


def _sum(name: str, parts: Mapping[Held, int], width: int) -> str:
    terms = " + ".join(f"{held} {_milliseconds(ns)}" for held, ns in parts.items()) or "0"
    text = f"{name:<20}{_milliseconds(sum(parts.values()))} ms = {terms}"
    return fill(text, width, subsequent_indent=" " * 20)


def _microseconds(parts: Mapping[Held, int]) -> dict[str, float]:
    return {held: ns / 1e3 for held, ns in parts.items()}


def _milliseconds(ns: int) -> str:
    return f"{ns / 1e6:,.3f}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole if whole else 0:>4.0f} %"
