"""AgentX: hashed traces of coding agents, a session a line (SemiAnalysis' cc-traces-weka, Apache-2.0; files of one
session each become lines with `jq -c . *.json`).

A session is a list of calls, and of subagents with calls of their own: when each was sent (`t`, seconds from the
session's start), how long it took (`api_time`), tokens in and out, and one id for each block of the prompt, which mean
something within their session only.  A call is sent when the call before it has finished and the time between the two
in the trace has passed.  The call before is the one that ended last, of the same agent or of a subagent that was waited
for; the first call of a subagent follows one of the main agent.  So what a faster or slower server would have changed
is changed.  The data do not say when a session began: all begin at once.
"""

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import attrs
import msgspec
import numpy as np

from fairsched.engines.workloads.errors import TraceError
from fairsched.engines.workloads.readers.rows import TraceFormat, TraceRow, number_ns, read_objects
from fairsched.model.request import TOKENS_MAX, Prompt

ID_BITS = 32
"""Bits of a block's id within its session; the session's number is above them."""
NO_OUTPUT = "calls say no output token, and are taken to have one"
SUBAGENT = "subagent"
ASYNC = "async_launched"
"""The status of a subagent that no agent waits for."""

Count = Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]
Seconds = int | Decimal


class AgentXCall(msgspec.Struct, frozen=True):
    """A call, or a subagent with calls of its own."""

    t: Seconds
    type: str
    tokens_in: Count = msgspec.field(name="in", default=0)
    tokens_out: Count = msgspec.field(name="out", default=0)
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << ID_BITS)]] = []
    api_time: Seconds | None = None
    agent_id: str = ""
    status: str = ""
    requests: list["AgentXCall"] = []


class AgentXSession(msgspec.Struct, frozen=True):
    """A line of an AgentX file; other keys decide nothing here."""

    id: str
    block_size: Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)]
    requests: list[AgentXCall]
    hash_id_scope: str = "local"
    models: list[str] = []
    tool_tokens: int = 0
    system_tokens: int = 0
    totals: object = None


@attrs.frozen
class _Sent:
    """A call on its session's clock, of the agent at these places; `waited`: the main agent waits for that agent."""

    call: AgentXCall
    agent: tuple[int, ...]
    waited: bool
    start_ns: int
    end_ns: int


def read_agentx(path: Path) -> Iterator[TraceRow]:
    """Read the calls of all sessions, numbered from 0.  Raises `TraceError`."""
    rows: list[TraceRow] = []
    for session, (line, found) in enumerate(read_objects(path, AgentXSession)):
        if found.hash_id_scope != "local":
            expected = "ids of blocks that mean something within their session: local"
            raise TraceError(path, line, "hash_id_scope", expected, found.hash_id_scope)
        rows += _session(path, line, session, found, len(rows))
    # Calls that follow no other may begin later than the next session.
    yield from sorted(rows, key=lambda row: row.arrival_ns)


def _session(path: Path, line: int, session: int, found: AgentXSession, first_id: int) -> Iterator[TraceRow]:
    calls = sorted(_sent(path, line, found.requests), key=lambda sent: (sent.start_ns, sent.end_ns))
    arrivals: list[int] = []
    for place, sent in enumerate(calls):
        before = _before(calls[:place], sent)
        arrivals.append(sent.start_ns if before is None else arrivals[before])
        call = sent.call
        yield TraceRow(
            row=line,
            id=first_id + place,
            arrival_ns=arrivals[place],
            prompt=_prompt(call, found.block_size, session),
            output_tokens=max(call.tokens_out, 1),
            session=found.id,
            parents=() if before is None else (first_id + before,),
            think_ns=0 if before is None else sent.start_ns - calls[before].end_ns,
            program=first_id,
            remark=None if call.tokens_out else NO_OUTPUT,
        )


def _sent(
    path: Path,
    line: int,
    calls: Sequence[AgentXCall],
    agent: tuple[int, ...] = (),
    waited: bool = True,
    from_ns: int = 0,
) -> Iterator[_Sent]:
    """Yield all calls of a session, flat."""
    for place, call in enumerate(calls):
        start_ns = number_ns(path, line, "t", call.t, "seconds")
        if start_ns < from_ns:  # older files count from the start of the subagent
            start_ns += from_ns
        if call.type == SUBAGENT:
            waits = waited and call.status != ASYNC
            yield from _sent(path, line, call.requests, (*agent, place), waits, start_ns)
            continue
        took = call.api_time
        known = took is not None and math.isfinite(took) and took > 0
        end_ns = start_ns + (number_ns(path, line, "api_time", took, "seconds") if took is not None and known else 0)
        yield _Sent(call, agent, waited, start_ns, end_ns)


def _before(earlier: Sequence[_Sent], sent: _Sent) -> int | None:
    """Return the place of the call that this one was sent after: of those that had ended, the one that ended last."""
    own = [
        place
        for place, other in enumerate(earlier)
        if other.end_ns <= sent.start_ns and (other.agent == sent.agent or (other.waited and not sent.agent))
    ]
    main = [place for place, other in enumerate(earlier) if other.end_ns <= sent.start_ns and not other.agent]
    return max(own or main, key=lambda place: (earlier[place].end_ns, place), default=None)


def _prompt(call: AgentXCall, block_tokens: int, session: int) -> Prompt:
    tokens = max(call.tokens_in, 1)
    ids = np.array(call.hash_ids[: tokens // block_tokens], dtype=np.int64)
    return Prompt.from_keys((session << ID_BITS) + ids, block_tokens=block_tokens, tokens=tokens)


AGENTX = TraceFormat(
    "agentx",
    "AgentX's sessions of coding agents, JSON lines",
    AgentXSession.__struct_fields__,
    read_agentx,
    "t",
    None,
)
