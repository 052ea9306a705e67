"""State documents of earlier schemas are read as the states that they were."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.model.events import Finished
from fairsched.model.request import Prompt, Slo
from fairsched.model.serialization import StateError
from fairsched.model.worker import WorkerState
from fairsched.policies.gates import NO_LEDGER, CounterState
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.local.state import AnyLocalState
from fairsched.policies.orders import NO_PLACE
from fairsched.policies.orders.abilities import Grouped
from fairsched.policies.registry import LOCAL_POLICIES, local_policy, with_parameters
from tests.support.policy_play import Play

SCHEMA_1: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "states" / "schema_1.json").read_text())
"""Documents that schema 1 had of the states that `played` comes to."""
SCHEMA_2: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "states" / "schema_2.json").read_text())
"""The same of schema 2, of orders that schema 1 did not have."""

PARAMETERS = {
    "lpm": {"bypass_budget": "1"},
    "larry-fair": {"bypass_budget": "2"},
    "shortest-prompt": {"bypass_budget": "1"},
    "dlpm-split": {"sharing": "equal-split"},
}


def small(name: str) -> ComposedPolicy:
    """The policy of a document, on small batches."""
    given = {"max_running": "3", "max_batched_tokens": "12", **PARAMETERS.get(name, {})}
    return with_parameters(local_policy("dlpm" if name == "dlpm-split" else name), given)


def played(policy: ComposedPolicy) -> Play:
    """A worker of 30 tokens in the middle of a load: requests run and wait, and one gave up."""
    play = Play(policy, 30)
    play.configure(1, 2)
    for i in range(14):
        shared = (1, 2, 3, 4) if i % 3 else (5, 6)
        play.arrive(i % 2, Prompt.from_keys((*shared, *(100 * i + k for k in range(i % 4)))), 3, 6)
        if i in (3, 6):
            play.step(3)
    play.step()
    play.cancel(max(play.worker.queue))
    return play


def _uncounted(state: AnyLocalState) -> AnyLocalState:
    """The state without what schema 1 did not keep: the preemptions of those that wait, and the floors of counters."""
    entries = state.queue.entries
    for request_id, queued in entries.items():
        entries = entries.set(request_id, replace(queued, preemptions=0))
    gate = state.gate
    if isinstance(gate, CounterState):
        gate = replace(gate, floor=np.zeros_like(gate.floor))
    return replace(state, gate=gate, queue=replace(state.queue, entries=entries))


REGROUPED = "batchllm"
"""Its documents are of groups that are made otherwise now."""


@pytest.mark.parametrize("name", sorted(SCHEMA_1.keys() - {REGROUPED}))
def test_schema_1_is_read(name: str) -> None:
    """The state of a stored document is the state that the same events lead to now, and goes on as that does."""
    policy, play = small(name), played(small(name))
    restored = policy.state_from_json(SCHEMA_1[name])
    policy.check(restored)
    assert policy.state_to_json(restored) == policy.state_to_json(_uncounted(play.state))
    view = play.worker.view(play.now_ns)
    assert policy.decide(restored, view)[0] == policy.decide(play.state, view)[0]


@pytest.mark.parametrize("name", SCHEMA_2)
def test_schema_2_is_read(name: str) -> None:
    """The state of a stored document is the state that the same events lead to now."""
    policy, play = small(name), played(small(name))
    restored = policy.state_from_json(SCHEMA_2[name])
    policy.check(restored)
    assert policy.state_to_json(restored) == policy.state_to_json(play.state)


def test_former_groups_are_made_anew() -> None:
    """Requests of a document that does not say who shares a prefix are in no group, until the next one enters."""
    policy = small(REGROUPED)
    restored = policy.state_from_json(SCHEMA_1[REGROUPED])
    policy.check(restored)
    assert len(restored.queue.entries) == 7
    assert {queued.place for queued in restored.queue.entries.values()} == {NO_PLACE}
    assert restored.queue.extension(Grouped) == Grouped()
    for request_id, flight in restored.flights.items():
        restored = policy.observe(restored, Finished(0, 0, request_id, flight.entry.request.client, 3))
    _, decided = policy.decide(restored, WorkerState(0, 30).view(0))
    policy.check(decided)
    assert NO_PLACE not in {queued.place for queued in decided.queue.entries.values()}


@pytest.mark.parametrize("name", [*SCHEMA_1, *SCHEMA_2])
def test_a_document_is_what_it_was_made_of(name: str) -> None:
    """Writing, reading and writing again gives the same document, also as text."""
    policy = small(name)
    document = json.loads(json.dumps(policy.state_to_json(played(policy).state)))
    assert policy.state_to_json(policy.state_from_json(document)) == document


def test_every_ability_is_among_the_documents() -> None:
    """What any shipped order keeps beside the queue is in some stored document."""
    kept = {type(each) for name in (*SCHEMA_1, *SCHEMA_2) for each in small(name).order.extensions()}
    assert kept >= {type(each) for policy in LOCAL_POLICIES.values() for each in policy.order.extensions()}


def test_a_queue_of_another_order_is_refused() -> None:
    """An order that keeps more than the document has refuses it, unless no request waits in it."""
    play = Play(local_policy("fcfs"))
    empty = play.policy.state_to_json(play.state)
    play.arrive()
    full = play.policy.state_to_json(play.state)
    for name in ("dfs-weight", "fastserve", "preble"):
        policy = local_policy(name)
        assert policy.state_to_json(policy.state_from_json(empty)) == policy.state_to_json(policy.init())
        with pytest.raises(StateError, match="kept by another order, without"):
            policy.state_from_json(full)


def as_text(document: Any) -> Any:
    """The document after it was written and read."""
    return json.loads(json.dumps(document))


@pytest.mark.parametrize("name", LOCAL_POLICIES)
def test_an_idle_worker_s_document_is_what_it_was_made_of(name: str) -> None:
    """Where none waits or runs any more, what was counted is kept."""
    play = Play(LOCAL_POLICIES[name], 30)
    for i in range(9):
        play.arrive(i % 2, Prompt.from_keys((1, 2, 3, 4, i % 3)), 3, 6)
        play.step(i % 2)
    while play.worker.queue or play.worker.running:
        play.step()
    document = as_text(play.policy.state_to_json(play.state))
    assert play.policy.state_to_json(play.policy.state_from_json(document)) == document


@pytest.mark.parametrize("field", ["preemptions", "tag", "uncounted"])
@pytest.mark.parametrize("name", ["batchllm", "dlpm", "fastserve"])
def test_what_former_versions_did_not_count_is_none(name: str, field: str) -> None:
    """Without the one field it is zero, and all else is as it was."""
    play = played(small(name))
    document, lacks = (as_text(play.policy.state_to_json(play.state)) for _ in range(2))
    for each, lacking in ((document, False), (lacks, True)):
        flights = [flight for _, flight in each["state"]["flights"]]
        rows = [entry for _, entry in each["state"]["queue"]["entries"]] + [flight["entry"] for flight in flights]
        for row in flights if field == "uncounted" else rows:
            row[field] = 0
            if lacking:
                del row[field]
    assert play.policy.state_to_json(play.policy.state_from_json(lacks)) == document


@pytest.mark.parametrize(
    "name", ["edf", "ageing", "larry", "equinox", "dfs-weight", "larry+deficit", "dfs-weight+deficit"]
)
def test_what_follows_from_requests_that_wait_is_made_anew(name: str) -> None:
    """A document has no index of the queue, and one of a former version has columns instead: either way the restored
    state decides as the one that was kept."""
    play = Play(local_policy(name), 30)
    for i in range(9):
        slo = Slo(ttft_ns=5 + i, latency_ns=50 + 7 * i)
        play.arrive(i % 2, Prompt.from_keys((1, 2, *range(i, 6))), 3, priority=i % 3, slo=slo)
    play.step(2)
    document, former = (as_text(play.policy.state_to_json(play.state)) for _ in range(2))
    kept = former["state"]["queue"]["extensions"]
    (index,) = [name for name in kept if name in ("Fronts", "Walk")]
    assert kept.pop(index) == {}
    kept["Columns"] = {"ages": [0, 1], "memory": [3, 3], "arrivals_ns": [0, 0], "groups": [0, 0], "priorities": [0, 0]}
    view = play.worker.view(play.now_ns)
    for each in (document, former):
        restored = play.policy.state_from_json(each)
        play.policy.check(restored)
        assert as_text(play.policy.state_to_json(restored)) == document
        assert play.policy.decide(restored, view)[0] == play.policy.decide(play.state, view)[0]


def test_a_policy_that_splits_takes_over_a_state_that_did_not() -> None:
    """No client has paid for what is cached, as far as its books say."""
    play = played(small("dlpm"))
    splits = small("dlpm-split")
    restored = splits.state_from_json(as_text(play.policy.state_to_json(play.state)))
    assert restored.ledger == NO_LEDGER
    assert play.policy.state_from_json(as_text(splits.state_to_json(restored))).ledger is None


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 99) | st.sampled_from(["", "q"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["entry", "q", "c"]), inner, max_size=2)
    ),
    max_leaves=4,
)
DOCUMENTS = [*SCHEMA_1.items(), *SCHEMA_2.items()]


@settings(max_examples=300)
@given(which=st.sampled_from(DOCUMENTS), instead=ANYTHING, data=st.data())
def test_a_document_with_anything_in_it_is_read_or_refused(which: tuple[str, Any], instead: Any, data: Any) -> None:
    """Whatever stands at some place of it, or if nothing does: the one error that is told to callers, or a state."""
    name, document = which
    changed: Any = json.loads(json.dumps(document))
    place, depth = changed["state"], data.draw(st.integers(0, 4))
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not depth or not isinstance(place[key], dict | list) or not place[key]:
            break
        place, depth = place[key], depth - 1
    if data.draw(st.booleans()) and isinstance(place, dict):
        del place[key]
    else:
        place[key] = instead
    with suppress(StateError):
        small(name).state_from_json(changed)
