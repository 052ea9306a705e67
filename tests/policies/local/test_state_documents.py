"""State documents are read as the states that they were made of."""

import json
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.model.request import Prompt, Slo
from fairsched.model.serialization import StateError
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES, local_policy, with_parameters
from tests.support.policy_play import Play


def small(name: str) -> ComposedPolicy:
    """The policy of a document, on small batches."""
    given = {"max_running": "3", "max_batched_tokens": "12"}
    return with_parameters(local_policy(name), given)


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


@pytest.mark.parametrize("name", LOCAL_POLICIES)
def test_a_document_is_what_it_was_made_of(name: str) -> None:
    """Writing, reading and writing again gives the same document, also as text."""
    policy = small(name)
    document = json.loads(json.dumps(policy.state_to_json(played(policy).state)))
    assert policy.state_to_json(policy.state_from_json(document)) == document


def test_a_queue_of_another_order_is_refused() -> None:
    """An order that keeps more than the document has refuses it, unless no request waits in it."""
    play = Play(local_policy("fcfs"))
    empty = play.policy.state_to_json(play.state)
    play.arrive()
    full = play.policy.state_to_json(play.state)
    for name in ("larry", "fastserve", "preble"):
        policy = local_policy(name)
        assert policy.state_to_json(policy.state_from_json(empty)) == policy.state_to_json(policy.init())
        with pytest.raises(StateError, match="kept by another order, without"):
            policy.state_from_json(full)


def as_text(document: Any) -> Any:
    """The document after it was written and read."""
    return json.loads(json.dumps(document))


@pytest.mark.parametrize("name", ["edf", "ageing", "larry", "equinox", "larry+deficit"])
def test_what_follows_from_requests_that_wait_is_made_anew(name: str) -> None:
    """A document has no index of the queue: the restored state decides as the one that was kept."""
    play = Play(local_policy(name), 30)
    for i in range(9):
        slo = Slo(ttft_ns=5 + i, latency_ns=50 + 7 * i)
        play.arrive(i % 2, Prompt.from_keys((1, 2, *range(i, 6))), 3, priority=i % 3, slo=slo)
    play.step(2)
    document = as_text(play.policy.state_to_json(play.state))
    assert document["state"]["queue"]["extensions"]["Fronts"] == {}
    restored = play.policy.state_from_json(document)
    play.policy.check(restored)
    assert as_text(play.policy.state_to_json(restored)) == document
    view = play.worker.view(play.now_ns)
    assert play.policy.decide(restored, view)[0] == play.policy.decide(play.state, view)[0]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 99) | st.sampled_from(["", "q"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["entry", "q", "c"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@cache
def document_of_play(name: str) -> str:
    """Return the document of the state that `played` comes to, as text."""
    policy = small(name)
    return json.dumps(policy.state_to_json(played(policy).state))


DOCUMENTED = ("batchllm", "dlpm", "dlpm-bands", "equinox", "fastserve", "larry", "preble", "vtc")


@settings(max_examples=300)
@given(name=st.sampled_from(DOCUMENTED), instead=ANYTHING, data=st.data())
def test_a_document_with_anything_in_it_is_read_or_refused(name: str, instead: Any, data: Any) -> None:
    """Whatever stands at some place of it, or if nothing does: the one error that is told to callers, or a state."""
    changed = json.loads(document_of_play(name))
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
