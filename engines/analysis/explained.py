"""The life of one request, from its log: where it was, what kept it waiting, and which requests went first.

`explain` replays its worker, and after every decision asks the policy why the request still waits.  A policy answers
for the state and the view after its decision, so the answer says what kept it from deciding more.  It holds until the
worker decides again; only from an arrival in the middle of a step to the end of that step there is no decision to ask
about, and the request waits for the step.  `Explanation` is the life in spans, each with what held it, and its text.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

import attrs

from fairsched.engines import logs
from fairsched.engines.analysis.figures import safe_text
from fairsched.engines.analysis.log_replay import BuildPolicy
from fairsched.engines.analysis.phases import PHASES, Phase, begins_phase, phase_of
from fairsched.model import events as ev
from fairsched.model.request import Job
from fairsched.policies.base import Explains, PausesClients

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
        return None if self.first_token_ns is None else self.first_token_ns - self.arrived_ns

    @property
    def latency_ns(self) -> int:
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


# --- from a log -------------------------------------------------------------------------------------------------------

NEAREST_SHOWN = 5
"""So many ids are named when a request is not in the log."""


def request_of(event: ev.Event) -> int | None:
    """Return the request that an event is about; None for one about no single request."""
    return event.request.id if isinstance(event, ev.Arrived) else getattr(event, "request_id", None)


@attrs.define
class RequestPath:
    """Where a request was and is, from its own events: nanoseconds by phase, in order, and moments.

    `moved` says whether KV of it was to go to another worker.
    """

    phases: dict[Phase, int] = attrs.field(factory=lambda: dict.fromkeys(PHASES, 0))
    moments: list[Moment] = attrs.field(factory=list)
    moved: bool = False
    _has_first: bool = False
    _phase: Phase | None = None
    _since_ns: int = 0

    def saw(self, event: ev.Event) -> None:
        if begins_phase(event, self._phase):
            if self._phase is not None:
                self.phases[self._phase] += event.time_ns - self._since_ns
            ends_prefill = isinstance(event, ev.Prefilled) and not self._has_first
            self._has_first |= isinstance(event, ev.Prefilled)
            self._phase, self._since_ns = phase_of(event, self._has_first), event.time_ns
            if ends_prefill:
                self._note(event, f"first token at worker {event.worker}")
        match event:
            case ev.Arrived(worker=worker) if worker == ev.NOWHERE:
                self._note(event, "waits at no worker")
            case ev.Arrived(worker=worker, kv_tokens=kv):
                self._note(event, f"arrives at worker {worker}" + (f" with the KV of {kv:,} tokens" if kv else ""))
            case ev.Admitted():
                self._note(event, f"enters the batch of worker {event.worker}")
            case ev.Migrated():
                self._note(event, f"leaves worker {event.worker}")
            case ev.TransferStarted(target=target, kv_tokens=kv):
                self.moved = True
                self._note(event, f"the KV of {kv:,} tokens goes from worker {event.worker} to worker {target}")
            case ev.TransferFailed(target=target):
                self.moved = True
                self._note(event, f"its KV does not come to worker {target}: the link, or an end of it, failed")

    def _note(self, event: ev.Event, what: str) -> None:
        self.moments.append(Moment(event.time_ns, what))


def explain(path: Path, request_id: int, build_policy: BuildPolicy = logs.logged_policy) -> Explanation:
    """Return the life of a request in the log at `path`, on the last worker that it was sent to.

    Raises `LogError` for a file that breaks its format, `ValueError` if the request is not there or never arrived, or
    if the log was changed or cannot be replayed up to the end of the request.  Reads the log twice and replays one
    worker; while the request waits, each decode step costs one question to the policy.
    """
    log = logs.LogReader(path)
    if log.header.run.windows:
        raise ValueError(f"{path} is a gateway's log, without decisions step by step: fairsched audit reads it")
    trail = _trail_of(log, request_id)
    worker = trail.worker
    assert worker is not None
    replayer = logs.replayers_of(log, build_policy(log.header))[worker]
    life = _Life(request_id, replayer, trail.origin)
    try:
        for _, event in log:
            if event.worker != worker:
                replayer.hears(event)
            else:
                replayer.feed(event)
                life.saw(event)
                if life.outcome != "open":
                    break
        else:
            if log.footer is not None:
                replayer.end()
    except logs.DifferenceError as error:
        raise ValueError(f"{path}, line {log.line}: {error}") from error
    names = tuple(client.name for client in log.clients)
    return life.explanation(log, names, trail.way)


def _trail_of(log: logs.LogReader, request_id: int) -> "_Trail":
    """Return where the request was, the worker at which it arrived last included; reads the whole log, and checks its
    hash if it has one."""
    trail = _Trail(request_id)
    for _, event in log:
        trail.saw(event)
    if log.changed is not None:
        raise ValueError(f"{log.path}, line {log.line}: {log.changed}")
    worker, ended = trail.worker, trail.ended
    if worker is not None and (ended is None or ended.worker == worker):
        return trail
    if isinstance(ended, ev.Rejected) and worker is None and not trail.held:
        raise ValueError(f"request {request_id} was rejected when it arrived: {ended.reason}")
    if ended is not None and (worker is not None or trail.held):
        how = f"rejected: {ended.reason}" if isinstance(ended, ev.Rejected) else "cancelled by its caller"
        came = f"; it came {trail.leaves}" if trail.leaves else ""
        raise ValueError(f"request {request_id} ended where no worker had it, {how}{came}")
    if ended is not None:
        raise ValueError(f"request {request_id} was never sent: a request that it follows did not finish")
    near = sorted(sorted(log.jobs), key=lambda known: abs(known - request_id))[:NEAREST_SHOWN]
    hint = f"the nearest are {', '.join(map(str, sorted(near)))}" if near else "there are none"
    until = "" if log.footer is not None else " (an interrupted run)"
    raise ValueError(f"request {request_id} is not among the {len(log.jobs):,} requests of {log.path}{until}; {hint}")


@attrs.define
class _Trail:
    """Where a request was: `origin` is where it came from to its last `worker`, `leaves` what took it from there."""

    request_id: int
    worker: int | None = None
    ended: ev.Rejected | ev.Cancelled | None = None
    origin: str = ""
    leaves: str = ""
    held: bool = False
    way: RequestPath = attrs.field(factory=RequestPath)

    def saw(self, event: ev.Event) -> None:
        if request_of(event) == self.request_id:
            self.way.saw(event)
        if isinstance(event, ev.Arrived):
            if event.request.id == self.request_id:
                self._arrived(event)
        elif isinstance(event, ev.WorkerLeft):
            if event.worker == self.worker and not self.leaves:
                self.leaves = f"from worker {self.worker}, which left"
        elif isinstance(event, ev.Migrated):
            if event.request_id == self.request_id:
                self.leaves = f"from worker {self.worker}, where it was told to leave"
        elif isinstance(event, ev.Rejected | ev.Cancelled) and event.request_id == self.request_id:
            self.ended = event

    def _arrived(self, event: ev.Arrived) -> None:
        if event.worker == ev.NOWHERE:
            self.held = True
            return
        self.worker, self.origin = event.worker, self.leaves
        if self.held:
            self.origin += f"{', ' if self.origin else ''}after a wait at no worker"
        self.leaves, self.held = "", False


class _Life:
    """Collects what happens to one request while its worker is retraced."""

    def __init__(self, request_id: int, replayer: logs.LogReplayer, origin: str) -> None:
        assert isinstance(replayer.replica, logs.WorkerReplica)
        self.request_id = request_id
        self.origin = origin
        self.replayer = replayer
        self.worker = replayer.replica
        self.outcome = "open"
        self.spans: list[HeldSpan] = []
        self.moments: list[Moment] = []
        self.ahead: list[Ahead] = []
        self.arrived_ns = 0
        self.first_token_ns: int | None = None
        self.last_ns = 0
        self._held: Held | None = None
        self._since_ns = 0
        self._chunks = 0
        self._kept = False
        self._has_first = False

    # --- spans ------------------------------------------------------------------------------------------------------

    def _turn(self, held: Held | None, time_ns: int) -> None:
        """Give the request to something else from `time_ns` on: None: its life is over."""
        if held == self._held:
            return
        if self._held is not None and time_ns > self._since_ns:
            self.spans.append(HeldSpan(self._held, self._since_ns, time_ns))
        self._held, self._since_ns = held, time_ns

    def _ask(self) -> None:
        """Note that the worker has decided, and the request still waits: why?"""
        now_ns, replayer = self.worker.since_ns, self.replayer
        view = self.worker.state.view(now_ns)
        policy, state = replayer.policy, replayer.policy_state
        held: Held = policy.wait_reason(state, view, self.request_id) if isinstance(policy, Explains) else "order"
        self._turn(held, now_ns)

    def _wait(self, time_ns: int) -> None:
        # Until the worker has decided, the request waits for the step that is under way.
        self._turn("step", time_ns)
        self.worker.on_decision = self._ask

    # --- events -----------------------------------------------------------------------------------------------------

    def saw(self, event: ev.Event) -> None:
        """Take an event of the worker, already fed to the retrace."""
        self.last_ns = event.time_ns
        if isinstance(event, ev.Arrived):
            if event.request.id == self.request_id:
                self._arrived(event)
        elif getattr(event, "request_id", None) == self.request_id:
            self._happened(event)
        elif isinstance(event, ev.WorkerLeft):
            self.worker.on_decision = None  # No request waits there any more.
        elif isinstance(event, ev.Admitted) and self.worker.on_decision is not None:
            self.ahead.append(Ahead(event.request_id, event.client, event.extend_tokens))

    def _arrived(self, event: ev.Arrived) -> None:
        # It may have been here before, at a worker of the same number that left.
        self.arrived_ns, self.first_token_ns, self._held = event.time_ns, None, None
        self._has_first = event.generated_tokens > 0
        for seen in (self.spans, self.moments, self.ahead):
            seen.clear()
        state = self.worker.state
        others = f"{len(state.in_flight):,} running and {len(state.queue) - 1:,} waiting"
        origin = f" {self.origin}" if self.origin else ""
        brings = f" with {event.generated_tokens:,} output tokens" if event.generated_tokens else ""
        moved = f" and the KV of {event.kv_tokens:,} tokens" if event.kv_tokens else ""
        self._note(event, f"arrives{brings}{moved}{origin}; {others} there")
        self._wait(event.time_ns)

    def _pauses(self, event: ev.Paused | ev.Resumed) -> None:
        """Note when it was paused and why, and for how long when it goes on."""
        if isinstance(event, ev.Paused):
            policy, view = self.replayer.policy, self.worker.state.view(event.time_ns)
            why = None
            if isinstance(policy, PausesClients):
                why = policy.pause_reason(self.replayer.policy_state, view, self.request_id)
            self._note(event, f"paused after {event.generated_tokens:,} output tokens" + (f": {why}" if why else ""))
            self._turn("paused", event.time_ns)
            return
        self._note(event, f"goes on, after {(event.time_ns - self._since_ns) / 1e9:,.3f} s")
        self._turn("decode", event.time_ns)

    def _happened(self, event: ev.Event) -> None:
        if isinstance(event, ev.Admitted):
            self._admitted(event)
        elif isinstance(event, ev.Prefilled):
            self._prefilled(event)
        elif isinstance(event, ev.Preempted):
            if not self._kept:
                self._note(event, f"preempted: loses its KV memory after {event.generated_tokens:,} output tokens")
            self._kept = False
            self._wait(event.time_ns)
        elif isinstance(event, ev.Paused | ev.Resumed):
            self._pauses(event)
        elif isinstance(event, ev.SwappedOut):
            self._note(
                event, f"swapped out: leaves the batch, and the KV of {event.kv_tokens:,} tokens goes to the host"
            )
            self._kept = True
        elif isinstance(event, ev.SwappedIn):
            self._note(event, f"swapped in: the KV of {event.kv_tokens:,} tokens comes back")
        elif isinstance(event, ev.Finished):
            self._over(event, "finished", f"finished, {event.output_tokens:,} output tokens")
        elif isinstance(event, ev.Cancelled):
            doing = "running" if event.was_running else "waiting"
            self._over(event, "cancelled", f"cancelled by its caller while {doing}")
        elif isinstance(event, ev.Migrated):
            self._note(event, "leaves, to go on at another worker")
            self.worker.on_decision = None
            self._turn("transfer", event.time_ns)
        elif isinstance(event, ev.Rejected):
            self._over(event, "rejected", f"rejected: {event.reason}")

    def _admitted(self, event: ev.Admitted) -> None:
        self.worker.on_decision = None
        self._chunks = 0
        cached = f"{event.cached_prefix_tokens:,} tokens cached, {event.extend_tokens:,} to compute"
        again = "again " if self.first_token_ns is not None else ""
        self._note(event, f"enters the batch {again}({cached})")
        self._turn("prefill", event.time_ns)

    def _prefilled(self, event: ev.Prefilled) -> None:
        self._chunks += 1
        if event.remaining_tokens:
            return
        what = "next token"
        if not self._has_first:
            self._has_first, self.first_token_ns, what = True, event.time_ns, "first token"
        self._note(event, f"{what}, after {self._chunks:,} chunk(s) of prefill")
        self._turn("decode", event.time_ns)

    def _over(self, event: ev.Event, outcome: str, what: str) -> None:
        self.outcome = outcome
        self._note(event, what)
        self._end(event.time_ns)

    def _note(self, event: ev.Event, what: str) -> None:
        self.moments.append(Moment(event.time_ns, what))

    def _end(self, time_ns: int) -> None:
        self.worker.on_decision = None
        self._turn(None, time_ns)

    def explanation(self, log: logs.LogReader, clients: tuple[str, ...], way: RequestPath) -> Explanation:
        """Return all of it; a request that the log leaves open ends where the log does."""
        if self.outcome == "open":
            waits, runs = self.request_id in self.worker.state.queue, self.request_id in self.worker.state.in_flight
            running = "paused" if self._held == "paused" else "running"
            doing = "waiting" if waits else running if runs else "on its way to another worker"
            self.moments.append(Moment(self.last_ns, f"the log ends while it is {doing}"))
            self._end(self.last_ns)
        return Explanation(
            policy=log.header.run.policy,
            job=log.jobs[self.request_id],
            clients=clients,
            worker=self.worker.state.worker,
            arrived_ns=self.arrived_ns,
            first_token_ns=self.first_token_ns,
            ended_ns=self.spans[-1].end_ns if self.spans else self.arrived_ns,
            outcome=self.outcome,
            spans=tuple(self.spans),
            moments=tuple(self.moments),
            ahead=tuple(self.ahead),
            phases=way.phases if way.moved else {},
            way=tuple(way.moments) if way.moved else (),
        )
