"""AgentX's sessions: calls follow one another as in the trace, and no two sessions share a prefix."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.workloads import TraceError, load_trace
from fairsched.model.request import Workload

MS = 10**6


@st.composite
def calls(draw: Any, from_ms: int, depth: int) -> list[dict[str, Any]]:
    """Calls of an agent, some at once, and subagents that it waits for or not."""
    made: list[dict[str, Any]] = []
    at = from_ms
    for _ in range(draw(st.integers(1, 5))):
        at += draw(st.integers(0, 5_000))
        if depth and made and draw(st.booleans()):
            status = draw(st.sampled_from(["completed", "async_launched"]))
            inner = draw(calls(at, depth - 1))
            made.append({"t": at / 1000, "type": "subagent", "agent_id": "a", "status": status, "requests": inner})
            continue
        took = draw(st.integers(0, 9_000))
        prompt = draw(st.integers(0, 300))
        call = {"t": at / 1000, "type": draw(st.sampled_from("ns")), "model": "m", "api_time": took / 1000}
        call |= {"in": prompt, "out": draw(st.integers(0, 50)), "hash_ids": list(range(-(-prompt // 64)))}
        made.append(call)
    return made


def flat(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls of all agents."""
    found: list[dict[str, Any]] = []
    for each in requests:
        found += flat(each["requests"]) if each["type"] == "subagent" else [each]
    return found


def loaded(sessions: list[list[dict[str, Any]]]) -> Workload:
    """The workload of sessions."""
    lines = (
        json.dumps(
            {"id": f"s{place}", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": requests}
        )
        for place, requests in enumerate(sessions)
    )
    with TemporaryDirectory() as folder:
        path = Path(folder, "agentx.jsonl")
        path.write_text("".join(f"{line}\n" for line in lines))
        return load_trace(path)


@given(st.lists(calls(0, 2), min_size=1, max_size=3))
def test_with_the_traces_own_answers_every_call_is_sent_when_it_was(sessions: list[list[dict[str, Any]]]) -> None:
    """If each call takes as long as in the trace, calls are sent at the times of the trace, and no other."""
    made = loaded(sessions)
    took: dict[tuple[str | None, int], list[dict[str, Any]]] = {}
    for place, requests in enumerate(sessions):
        for call in flat(requests):
            took.setdefault((f"s{place}", round(call["t"] * 1000)), []).append(call)
    ends: dict[int, int] = {}
    for job in made.jobs:
        start_ns = job.request.arrival_ns if not job.after else max(ends[each] for each in job.after) + job.think_ns
        at = took[job.request.session, start_ns // MS]
        fits = [
            call
            for call in at
            if max(call["in"], 1) == job.request.prompt.tokens and max(call["out"], 1) == job.output_tokens
        ]
        assert fits
        # Of calls at one moment with the same lengths the shortest stands first.
        call = min(fits, key=lambda call: call["api_time"])
        at.remove(call)
        ends[job.request.id] = start_ns + round(call["api_time"] * 1000) * MS
    assert not any(took.values())


def test_sessions_share_nothing_and_calls_of_one_share_their_beginning() -> None:
    """Ids of blocks mean something in their session only; a partly filled last block is no key."""
    call = {
        "t": 0.0,
        "type": "s",
        "model": "m",
        "in": 130,
        "out": 5,
        "hash_ids": [1, 2, 3],
        "api_time": 1.5,
        "ttft": 0.1,
    }
    made = loaded([[call, call | {"t": 2.25}], [call]])
    one, again, other = sorted(made.jobs, key=lambda job: (str(job.request.session), job.request.id))
    assert one.request.prompt.blocks == 2
    assert one.request.prompt.keys == again.request.prompt.keys != other.request.prompt.keys
    assert again.after == (one.request.id,)
    assert again.think_ns == 750 * MS


def test_a_subagent_that_is_not_waited_for_does_not_hold_up_the_main_agent() -> None:
    """The main agent's next call follows a subagent's last one only if it waited for that."""

    def of(status: str) -> int:
        main = {"type": "n", "model": "m", "in": 10, "out": 5, "api_time": 1.0}
        inner = [main | {"t": 2.0, "in": 20}]
        subagent = {"t": 1.5, "type": "subagent", "agent_id": "a", "status": status, "requests": inner}
        jobs = loaded([[main | {"t": 0.0}, subagent, main | {"t": 4.0, "in": 30}]]).jobs
        (parent,) = jobs[-1].after
        return jobs[parent].request.prompt.tokens

    assert of("completed") == 20
    assert of("async_launched") == 10


def test_ids_across_sessions_are_refused(tmp_path: Path) -> None:
    """A scope that the format does not have yet would share what we keep apart."""
    path = tmp_path / "agentx.jsonl"
    path.write_text('{"id": "s", "models": [], "block_size": 64, "hash_id_scope": "global", "requests": []}\n')
    with pytest.raises(TraceError, match=r"hash_id_scope.*local"):
        load_trace(path)
