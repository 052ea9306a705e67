"""Prompts of few keys, and small clusters: views of loads, and runs in which workers fail."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs
import msgspec
from hypothesis import strategies as st

from fairsched.engines.workloads.fleet import Change, Crash, Drain, Join, Restart
from fairsched.model.decision import ClusterPlan, ClusterView, WorkerLoad
from fairsched.model.events import Cancelled, Event, Finished, Rejected
from fairsched.model.request import Prompt, Request
from fairsched.policies.base import AnyClusterPolicy

Keys = tuple[int, ...]
KEYS = st.lists(st.integers(0, 1), max_size=6).map(tuple)
"""Few keys and short prompts: prefixes meet, diverge inside a node and end inside a node all the time."""
Placing = type[AnyClusterPolicy]


def request(
    i: int, keys: Sequence[int] = (), at_ns: int = 0, client: int = 0, tail: int = 1, output: int = 2
) -> Request:
    """A prompt of blocks of one token with these keys, and a tail of its own."""
    return Request(i, client, at_ns, Prompt.from_keys(keys, tokens=len(keys) + tail), 2)


def prompt_of(keys: Keys, block_tokens: int = 1) -> Prompt:
    """A prompt of the given keys and one token more."""
    return Prompt.from_keys(keys, block_tokens=block_tokens, tokens=len(keys) * block_tokens + 1)


def keys_of(prompt: Prompt, blocks: int) -> Keys:
    """The first `blocks` keys of a prompt."""
    return tuple(int.from_bytes(prompt.keys[8 * i : 8 * i + 8], "little") for i in range(blocks))


def prefixes(keys: Keys) -> list[Keys]:
    """Every nonempty prefix, the shortest first."""
    return [keys[:n] for n in range(1, len(keys) + 1)]


def view_of(*queues: int, now_ns: int = 0, capacity: int = 100) -> ClusterView:
    """Workers 0, 1, ... of equal size with so many requests waiting, and nothing running."""
    loads = (WorkerLoad(i, queue, 0, 0, capacity, capacity) for i, queue in enumerate(queues))
    return ClusterView(now_ns, tuple(loads))


def numbered(loads: Sequence[WorkerLoad], now_ns: int = 0) -> ClusterView:
    """These workers, numbered from 0."""
    return ClusterView(now_ns, tuple(msgspec.structs.replace(load, worker=i) for i, load in enumerate(loads)))


def ends(events: Sequence[Event]) -> Counter[int]:
    """How often each request ended."""
    return Counter(event.request_id for event in events if isinstance(event, Finished | Rejected | Cancelled))


def _change(kind: int, worker: int, at_ns: int) -> Change:
    return (Crash(worker, at_ns), Crash(worker, at_ns, 500), Restart(worker, at_ns, 500), Drain(worker, at_ns))[kind]


CHANGES: st.SearchStrategy[list[Change]] = st.lists(
    st.builds(_change, st.integers(0, 3), st.integers(0, 1), st.integers(0, 4_000)), max_size=2
).map(lambda drawn: [*drawn, Join(4_000)])
"""Of two workers some crash, restart or drain; another joins in the end."""


def watched(kind: Placing, **parameters: Any) -> AnyClusterPolicy:
    """A policy that checks its state at each decision, and that it decides the same from what was written and read."""

    @attrs.frozen
    class Watched(kind):  # type: ignore[misc, valid-type]
        def decide(self, state: Any, view: ClusterView) -> tuple[ClusterPlan, Any]:
            self.check(state)
            document = json.loads(json.dumps(self.state_to_json(state)))
            plan, after = super().decide(state, view)
            again, after_again = super().decide(self.state_from_json(document), view)
            assert plan == again
            assert self.state_to_json(after) == self.state_to_json(after_again)
            assert self.state_to_json(state) == document
            self.check(after)
            return plan, after

    return Watched(**parameters)
