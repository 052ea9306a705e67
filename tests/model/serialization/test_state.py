"""States to JSON and back: equal states have equal documents, and what is no state is refused with its place."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map

from fairsched.model.algebra import Bools, Ints
from fairsched.model.prefix_cache import PrefixTree, SortedTuple
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.model.serialization import Derived, StateError, digest, from_json, to_json
from fairsched.model.worker import WorkerState
from fairsched.policies.registry import LOCAL_POLICIES
from tests.support.logs import RUNS, Case


class Everything(msgspec.Struct, frozen=True):
    """A state with a field of every kind that states are made of."""

    number: int
    flag: bool
    text: str | None
    raw: bytes
    pair: tuple[int, str]
    many: tuple[tuple[int, int], ...]
    order: SortedTuple[tuple[int, int]]
    by_id: Map[int, Request]
    by_key: Map[bytes, SortedTuple[int]]
    vector: Ints
    mask: Bools
    tree: PrefixTree


EVERYTHING = Everything(
    number=-3,
    flag=True,
    text=None,
    raw=b"\x00\xff",
    pair=(1, "one"),
    many=((1, 2), (3, 4)),
    order=SortedTuple.from_sorted([(1, 2), (1, 3)]),
    by_id=Map({7: Request(7, 0, 5, Prompt.from_keys([1, 2]), 9, session="s")}),
    by_key=Map({b"b": SortedTuple.from_sorted([4, 5]), b"a": SortedTuple.from_sorted([6])}),
    vector=np.array([1, -(2**62)]),
    mask=np.array([True, False]),
    tree=PrefixTree.empty().insert(Prompt.from_keys([1, 2, 3]), 3, owner=7, stamp=4)[0].pin(1, 4),
)


def document() -> dict[str, Any]:
    """The document of `EVERYTHING`, through text."""
    value: dict[str, Any] = json.loads(json.dumps(to_json(EVERYTHING)))
    return value


def test_every_kind_of_field_comes_back() -> None:
    """Each field of a state equals what it was, its type included."""
    restored = from_json(Everything, document())
    for name in Everything.__struct_fields__:
        mine, theirs = getattr(EVERYTHING, name), getattr(restored, name)
        assert type(mine) is type(theirs), name
        if isinstance(mine, np.ndarray):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)
        else:
            assert mine == theirs, name
    restored.tree.check()


@given(RUNS, st.integers(0, 200))
def test_policy_states_come_back_and_go_on(run: tuple[Workload, Case], cut: int) -> None:
    """A policy state saved and restored anywhere in a run is the same, holds its invariants, and goes on alike."""
    workload, case = run
    policy = case.build()
    state = restored = policy.init()
    for i, event in enumerate(event for event in case.events(workload) if event.worker == 0):
        state, restored = policy.observe(state, event), policy.observe(restored, event)
        if i == cut:
            text = json.dumps(policy.state_to_json(state))
            restored = policy.state_from_json(json.loads(text))
            policy.check(restored)
            assert json.dumps(policy.state_to_json(restored)) == text
            assert digest(restored) == digest(state)
    assert digest(restored) == digest(state)


@given(RUNS)
@settings(max_examples=40)
def test_worker_and_router_states_come_back(run: tuple[Workload, Case]) -> None:
    """After any run the states of workers and of the router survive a round trip."""
    workload, case = run
    simulator = case.simulator(workload)
    simulator.run()
    for worker in simulator.workers:
        assert from_json(WorkerState, json.loads(json.dumps(to_json(worker.state)))) == worker.state
    router, state = simulator.router, simulator.control.state
    restored = router.state_from_json(json.loads(json.dumps(router.state_to_json(state))))
    router.check(restored)
    # Documents, since a prefix index does not keep what a prompt goes on with beyond its node.
    assert router.state_to_json(restored) == router.state_to_json(state)


@given(st.lists(st.integers(0, 300), unique=True, min_size=1, max_size=200), st.randoms(use_true_random=False))
def test_documents_forget_histories(items: list[int], random: Any) -> None:
    """Sorted sequences and maps with the same content have one document, however they came about."""
    grown: SortedTuple[int] = SortedTuple()
    for item in items:
        grown = grown.add(item)
    shuffled = [*items, *range(1000, 1100)]
    random.shuffle(shuffled)
    other: SortedTuple[int] = SortedTuple()
    for item in shuffled:
        other = other.add(item)
    for item in range(1000, 1100):
        other = other.remove(item)
    assert to_json(grown) == to_json(other) == to_json(SortedTuple.from_sorted(sorted(items)))
    assert digest(Map(dict.fromkeys(items, 0))) == digest(Map(dict.fromkeys(sorted(items), 0)))


@pytest.mark.parametrize("name", sorted(LOCAL_POLICIES))
def test_different_states_differ(name: str) -> None:
    """A document says all of a state: an arrival changes it, and it is not another policy's."""
    policy = LOCAL_POLICIES[name]
    job = Job(Request(0, 0, 0, Prompt.from_keys([1, 2]), 3), 1)
    digests = [digest(policy.init())]
    state = policy.init()
    for event in Case(name).events(Workload("one", (job,), (Client(0, "a"),)))[:3]:
        state = policy.observe(state, event)
        digests.append(digest(state))
    assert len(set(digests)) == 3  # A worker that joins changes nothing; an arrival and an admission do.


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["number"], "3", "Everything.number: Expected `int`, got `str`"),
        (["number"], 1.5, "Everything.number: Expected `int`, got `float`"),
        (["flag"], None, "Everything.flag: Expected `bool`, got `null`"),
        (["raw"], "?", "Everything.raw: Invalid base64 encoded string"),
        (["pair"], [1], "Everything.pair: expected 2 items, found 1"),
        (["pair"], {}, "Everything.pair: Expected `array`, got `object`"),
        (["many"], [[1, 2], [3, "x"]], "Everything.many[1][1]: Expected `int`, got `str`"),
        (["order"], [[2, 1], [1, 2]], "Everything.order: the items of a sorted tuple ascend"),
        (["by_id"], [[7]], "Everything.by_id[0]: expected 2 items, found 1"),
        (["by_id", 0, 1, "prompt", "tokens"], 0, "Everything.by_id[0][1].prompt: a prompt has 1 to"),
        (["by_id", 0, 1, "client"], -1, "Everything.by_id[0][1]: request 7 of client -1"),
        (["by_id", 0, 1], {}, "Everything.by_id[0][1]: expected the fields id, client"),
        (["vector"], [1.5], "Everything.vector: Expected `int`, got `float` - at `$[0]`"),
        (["vector"], [2**70], "Everything.vector: "),
        (["mask"], [1], "Everything.mask: Expected `bool`, got `int` - at `$[0]`"),
        (["tree"], [], "Everything.tree: not a prefix tree"),
        (["tree"], {"schema": 1}, "Everything.tree: not a prefix tree (KeyError"),
        (["tree", "schema"], 2, "Everything.tree: a prefix tree of schema 2 cannot be read"),
        (["tree", "nodes", 1, 1], 99, "Everything.tree: not a prefix tree (KeyError: 99)"),
    ],
)
def test_wrong_shape_is_named(path: list[Any], value: object, message: str) -> None:
    """A document whose state has another shape is refused, and the error names the place."""
    bad = document()
    *way, last = ["state", *path]
    at: Any = bad
    for key in way:
        at = at[key]
    at[last] = value
    with pytest.raises(StateError) as caught:
        from_json(Everything, bad)
    assert str(caught.value).startswith(message)


def test_missing_and_unknown_fields_are_named() -> None:
    """A field too few or too many is refused."""
    bad = document()
    bad["state"]["extra"] = bad["state"].pop("number")
    with pytest.raises(StateError, match=r"Everything: expected the fields number, flag, .* found by_id, .*extra"):
        from_json(Everything, bad)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 3}, "this library reads schema 2, and the document has 3"),
        ({"type": "Nothing"}, "expected the state of a Everything, and the document holds a 'Nothing'"),
        ({"more": 1}, "a Everything document has the keys schema, type and state"),
    ],
)
def test_other_documents_are_refused(change: dict[str, Any], message: str) -> None:
    """Another schema version, another type, or no document of a state at all."""
    with pytest.raises(StateError, match=message):
        from_json(Everything, document() | change)
    nothings: list[object] = [None, 3, [], "state"]
    for nothing in nothings:
        with pytest.raises(StateError, match="has the keys schema, type and state"):
            from_json(Everything, nothing)


def test_states_hold_only_exact_values() -> None:
    """A float, or anything else that is no exact value, is not written; and a state's type is given in full."""
    for value in (1.5, object(), {1: 2}, np.int64(3)):
        with pytest.raises(TypeError, match="a state holds no"):
            to_json(value)

    class Vague(msgspec.Struct, frozen=True):
        """A state that does not say what it holds."""

        what: Any

    with pytest.raises(TypeError, match=r"Vague\.what: the type of a state is given in full"):
        from_json(Vague, to_json(Vague(3)))


class _Sum(Derived, frozen=True, eq=False):
    total: int = -1


NO_SUM = _Sum()


class _Kept(msgspec.Struct, frozen=True):
    parts: tuple[int, ...]
    total: _Sum = NO_SUM


def test_what_follows_from_the_rest_is_in_no_document() -> None:
    """States that differ in nothing else are equal and have one document, which does not say it."""
    with_sum, without = _Kept((1, 2), _Sum(3)), _Kept((1, 2))
    assert to_json(with_sum) == to_json(without)
    assert to_json(with_sum)["state"] == {"parts": [1, 2]}
    assert digest(with_sum) == digest(without)
    assert with_sum == without != _Kept((1, 3), _Sum(3))
    assert from_json(_Kept, to_json(with_sum)).total.total == -1
