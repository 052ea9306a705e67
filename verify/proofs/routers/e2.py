"""E2's choices: P-E2-2 to 5 by running the functions that ship on unknown integers, P-E2-1 and 6 in drawn worlds.

P-E2-4 is about any number of workers: a placement touches the load of one, so three positions stand for all, where the
request was meant to go, the lightest, and any other.  P-E2-3 and 5 run the search for the cheapest itself, among three.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import attrs
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.model.prefix_cache import PrefixIndex
from fairsched.model.request import Prompt, Request
from fairsched.model.theorem import Theorem
from fairsched.policies import routers
from fairsched.policies.routers import e2
from fairsched.verify import logic as v

THREE = range(3)
CAPACITY = 1 << 20


# --- P-E2-2: when to exploit ------------------------------------------------------------------------------------------


@v.arithmetic(e2.P_E2_2, ("c", "n"), *v.at_least(0, "c", "n"))
def half(w: SimpleNamespace, rule: Callable[..., bool] = e2.exploits) -> v.Shown:
    """Return a prompt of n tokens with c of them cached, at the default of 50 per cent."""
    if rule(w.c, w.n, routers.E2().exploit_percent):
        return {"more than half is cached": 2 * w.c > w.n, "less is missed": w.n - w.c < w.c}
    return {"at most half is cached": 2 * w.c <= w.n, "as much is missed": w.n - w.c >= w.c}


# --- P-E2-3: who is cheapest ------------------------------------------------------------------------------------------

_BASES, _EXTRAS = ("b0", "b1", "b2"), ("m0", "m1", "m2")


@v.arithmetic(e2.P_E2_3, (*_BASES, *_EXTRAS, "k"), *v.at_least(0, *_EXTRAS))
def least_cost(w: SimpleNamespace, search: Callable[..., int] = e2.cheapest) -> v.Shown:
    """Return three workers with bases b (L + P), and k more each, and extras m (M): k does not matter."""
    bases, extras = [getattr(w, b) for b in _BASES], [getattr(w, m) for m in _EXTRAS]
    found = search([base + w.k for base in bases], extras.__getitem__, THREE)
    costs = [base + extra for base, extra in zip(bases, extras, strict=True)]
    first: Any = True
    for i in THREE:
        first = (costs[found] < costs[i] if i < found else costs[found] <= costs[i]) & first
    return {"the least of b + m, the first of equals": first}


# --- P-E2-4: per-source rebalancing -----------------------------------------------------------------------------------


def _heaviest() -> tuple[int, int]:
    """Return requests that add 50 aimed at worker 0, which holds their prefix: the load that it reaches, and the
    bound."""
    loads, percent, cost = [100, 100, 100], 150, 50
    for _ in range(2):
        loads[e2.rebalanced(0, e2.lightest(loads), loads, percent, "per-source", loads.__getitem__)] += cost
    return loads[0], percent * min(loads) // 100 + cost


@v.arithmetic(
    e2.P_E2_4,
    ("t", "m", "o", "th", "least", "p", "v", "pm", "vm", "d", "c"),
    *v.at_least(0, "p", "v", "pm", "vm", "d"),
    v.Condition(lambda w: (w.m <= w.t) & (w.m <= w.o)),
    v.Condition(lambda w: (w.th >= 100) & (w.m >= 0), e2.THRESHOLD_AT_LEAST_ONE),
    v.Condition(lambda w: (w.p + w.v + w.d <= w.c) & (w.pm + w.vm + w.d <= w.c), e2.COST_AT_MOST),
    v.Condition(lambda w: w.least >= w.m, e2.NOTHING_EXPIRES),
    v.Condition(lambda w: 100 * w.o <= w.th * w.m + 100 * w.c, e2.STARTS_WITHIN),
    relaxed=True,
    attained=_heaviest,
)
def rebalancing(
    w: SimpleNamespace,
    rule: Callable[..., int] = e2.rebalanced,
    heavy: Callable[..., bool] = e2.is_heavy,
    source: str = "per-source",
) -> v.Shown:
    """Take a request meant for the worker with load t, where the lightest has m, another o, and the least is `least`
    later.

    At the two it misses p and `pm`, evicts v and `vm`, and is decoded for d; where it explores, the first cost least.
    """
    loads, costs = [w.t, w.m, w.o], [w.t + w.p + w.v, w.m + w.pm + w.vm, w.o]
    # Whichever of equals the lightest is, its load is the least, and position 1 stands for it.
    place = v.with_names(rule, is_heavy=heavy)(0, 1, loads, w.th, source, costs.__getitem__)
    placed = (w.m + w.pm if place else w.t + w.p) + w.d
    bound = w.th * w.least + 100 * w.c
    return {
        "where it exploits": 100 * placed <= bound,
        "where it explores": v.if_then(costs[0] <= costs[1], 100 * (w.t + w.p + w.d) <= bound),
        "everywhere else": 100 * w.o <= bound,
    }


# --- P-E2-5: exploring alone ------------------------------------------------------------------------------------------

_LOADS = ("l0", "l1", "l2")


@v.arithmetic(
    e2.P_E2_5,
    (*_LOADS, "p", "odd", "a", "c", "left"),
    *v.at_least(0, *_LOADS, "p", "odd", "a", "left"),
    v.Condition(lambda w: w.a <= w.c, e2.COST_AT_MOST),
    v.Condition(lambda w: w.odd == 0, e2.EQUAL_MISS),
    v.Condition(lambda w: w.left == 0, e2.NOTHING_EXPIRES),
    v.Condition(lambda w: _within([w.l0, w.l1, w.l2], w.c), e2.STARTS_WITHIN),
    attained=lambda: (_explored(1), 7),
)
def exploring(w: SimpleNamespace, search: Callable[..., int] = e2.cheapest) -> v.Shown:
    """Return three loads, a request that misses p everywhere (and `odd` more at worker 0) and adds a."""
    loads = [getattr(w, name) for name in _LOADS]
    bases = [loads[0] + w.p + w.odd, loads[1] + w.p, loads[2] + w.p]
    place = search(bases, lambda _: 0, THREE)
    after = [load + w.a if i == place else load for i, load in enumerate(loads)]
    # What leaves the window leaves worker 0.
    after[0] = after[0] - w.left
    return {"all are within c of each other": _within(after, w.c)}


def _within(loads: list[Any], apart: Any) -> Any:
    """State that no two loads differ by more."""
    every: Any = True
    for one in loads:
        for other in loads:
            if one is not other:
                every = (one - other <= apart) & every
    return every


def _explored(count: int) -> int:
    """Return how far loads of three workers are apart after so many requests of 7."""
    loads = [0, 0, 0]
    for _ in range(count):
        loads[e2.cheapest(loads, lambda _: 0, THREE)] += 7
    return max(loads) - min(loads)


# --- P-E2-7: splitting subtrees ---------------------------------------------------------------------------------------

_SUBTREES = ("s0", "s1", "s2")


@v.arithmetic(
    e2.P_E2_7,
    ("keeps", "gets", *_SUBTREES),
    *v.at_least(0, "keeps", "gets", *_SUBTREES),
    attained=lambda: (_split_apart([5, 5, 5], 0, 0), 5),
)
def splitting(w: SimpleNamespace, rule: Callable[..., list[int]] = e2.split) -> v.Shown:
    """Return three subtrees in any order, two workers."""
    subtrees = [getattr(w, name) for name in _SUBTREES]
    given = rule(subtrees, w.keeps, w.gets)
    everything = w.s0 + w.s1 + w.s2
    apart = w.keeps - w.gets
    for i, load in enumerate(subtrees):
        apart = apart - load if i in given else apart + load
    near: Any = (apart <= w.s0) & (-apart <= w.s0)
    for load in subtrees[1:]:
        near = near | ((apart <= load) & (-apart <= load))
    left = (apart <= w.keeps - w.gets - everything) & (-apart <= w.keeps - w.gets - everything)
    right = (apart <= w.gets - w.keeps - everything) & (-apart <= w.gets - w.keeps - everything)
    return {"apart by the largest, or by what is left": near | left | right}


def _split_apart(subtrees: list[int], keeps: int, gets: int) -> int:
    """Return how far the two loads are apart after a split."""
    given = e2.split(subtrees, keeps, gets)
    moved = sum(subtrees[i] for i in given)
    return abs(keeps + sum(subtrees) - moved - (gets + moved))


# --- P-E2-1 and P-E2-6: worlds ----------------------------------------------------------------------------------------

WORKERS = 3
_workers = st.integers(0, WORKERS - 1)


def histories_of(keys: SearchStrategy[list[int]]) -> SearchStrategy[dict[str, Any]]:
    """Return what the router was told of three workers, their loads in ms, and the prompt that comes; prompts from
    `keys`."""
    told = st.one_of(
        st.tuples(st.just("holds"), keys, _workers, st.just(0)),
        st.tuples(st.just("evicted"), keys, _workers, st.integers(0, 4)),
    )
    loads = st.lists(st.integers(0, 9), min_size=WORKERS, max_size=WORKERS)
    tells = st.lists(told, max_size=8).map(lambda every: [list(each) for each in every])
    return st.fixed_dictionaries({"told": tells, "loads": loads, "prompt": keys})


histories = histories_of(st.lists(st.sampled_from((0, 0, 0, 1)), min_size=1, max_size=4))
nested = histories_of(st.integers(1, 4).map(lambda count: [0] * count))
"""All prompts begin alike, so that workers hold more and less of the same."""


def prompt_of(keys: list[int]) -> Prompt:
    """Return a prompt of one-token blocks, with a token of its own at the end, so that all its blocks may be cached."""
    return Prompt.from_keys(keys, tokens=len(keys) + 1)


def index_of(told: list[Any]) -> PrefixIndex:
    """Return the index after what was told; who holds something was sent it."""
    index = PrefixIndex.empty(1_000)
    for what, keys, worker, keep in told:
        prompt = prompt_of(keys)
        if what == "holds":
            index, _ = index.insert(prompt, prompt.blocks, worker, 0)
        else:
            index = index.evicted(prompt, min(keep, len(keys)), worker)
    return index


def held_by(told: list[Any]) -> list[set[tuple[int, ...]]]:
    """Return the prefixes that each worker holds, by what was told and nothing else."""
    held = [set[tuple[int, ...]]() for _ in range(WORKERS)]
    for what, keys, worker, keep in told:
        if what == "holds":
            held[worker] |= {tuple(keys[: i + 1]) for i in range(len(keys))}
        else:
            gone = tuple(keys[: keep + 1])
            if len(gone) > keep:
                held[worker] = {prefix for prefix in held[worker] if prefix[: keep + 1] != gone}
    return held


def state_of(w: SimpleNamespace) -> e2.E2State:
    """Return the router's state in such a world."""
    history = e2.History()
    for worker, load in enumerate(w.loads):
        history = history.sent(e2.PlacedPrompt(history.next_number, -worker - 1, worker, 0, 0, load * 1_000_000, 1, 1))
    return e2.E2State(index_of(w.told), history)


def workers() -> list[WorkerLoad]:
    """Return three workers with room for everything."""
    return [WorkerLoad(worker, 0, 0, 0, CAPACITY, CAPACITY) for worker in range(WORKERS)]


def missing(w: SimpleNamespace) -> list[int]:
    """Return tokens of the prompt that each worker misses."""
    held = held_by(w.told)
    return [len(w.prompt) + 1 - sum(tuple(w.prompt[: i + 1]) in each for i in range(len(w.prompt))) for each in held]


def longest(kind: type[routers.E2] = routers.E2, theorem: Theorem = e2.P_E2_1) -> v.SampledClaim:
    """Rebalancing and autoscaling are off, since they take from the exploited on purpose."""

    def shows(w: SimpleNamespace) -> v.Shown:
        router, state = kind(rebalancing="off", scaling="off"), state_of(w)
        prompt = prompt_of(w.prompt)
        choice = router.choose(state, prompt, state.index.match(prompt), workers())
        if choice.why != "exploit":
            return {}
        missed = missing(w)
        return {
            "misses least": missed[choice.worker] == min(missed),
            "less than is cached": 2 * missed[choice.worker] < prompt.tokens,
        }

    return v.SampledClaim(theorem, histories if kind is routers.E2 else nested, shows)


@v.sampled(e2.P_E2_6, histories)
def hygiene(w: SimpleNamespace, kind: type[PrefixIndex] = PrefixIndex) -> v.Shown:
    """Let every worker evict all it has, a part at a time."""
    index, held = index_of(w.told), held_by(w.told)
    closed = all(prefix[:-1] in each for each in held for prefix in each if len(prefix) > 1)
    freed = leaves = True
    for worker, known in enumerate(held):
        freed &= index.held_tokens(worker) == len(known)
        for victim in kind.victims(index, worker, len(known)):
            node = index.nodes[victim.node]
            leaves &= worker not in node.below
            before = index.held_tokens(worker)
            index = index.evicted(node.prompt, victim.context_tokens, worker)
            freed &= before - index.held_tokens(worker) == victim.tokens
        freed &= index.held_tokens(worker) == 0
    return {"closed": closed, "frees what it says": freed, "never a part that goes on": leaves}


def claims() -> tuple[v.ArithmeticClaim | v.SampledClaim, ...]:
    """About the router that ships."""
    return (longest(), half(), least_cost(), rebalancing(), exploring(), hygiene(), splitting())


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Return what a reader may expect of E2, and is false as printed."""
    node = [["holds", [0, 0], 0, 0], ["holds", [0, 0, 1], 1, 0]]
    gone = [["holds", [0, 1], 0, 0], ["evicted", [0, 1], 0, 0]]
    return (
        v.RefutedClaim(
            longest(routers.E2Printed, e2.F_E2_1),
            "e2-printed",
            e2.P_E2_1.id,
            "Both workers hold the longest node of the path, two tokens; worker 1 also holds the third, and is busier.",
            {"told": node, "loads": [0, 9, 0], "prompt": [0, 0, 1]},
        ),
        v.RefutedClaim(
            _least_total(),
            "e2 with rebalancing=off",
            e2.P_E2_4.id,
            "A worker with a million tokens of work holds 501 of the 1,000 tokens of a prompt, and an idle one none.",
            {"busy": 1_000_000, "idle": 0, "c": 501, "n": 1_000},
        ),
        v.RefutedClaim(
            attrs.evolve(rebalancing(source="heaviest"), theorem=e2.F_E2_3, attained=None),
            "e2-printed",
            e2.P_E2_4.id,
            "Of loads 200, 199 and 100 the second is heavy, not the heaviest, and gets another 50; the bound is 200.",
            {
                "t": 199,
                "m": 100,
                "o": 200,
                "th": 150,
                "least": 100,
                "p": 50,
                "v": 0,
                "pm": 50,
                "vm": 0,
                "d": 0,
                "c": 50,
            },
        ),
        v.RefutedClaim(
            v.SampledClaim(e2.F_E2_4, histories, _a_worker_holds),
            "e2-printed",
            e2.P_E2_1.id,
            "The only worker that held a prompt evicted it; the tree still knows it, from the request of the window.",
            {"told": gone, "loads": [0, 0, 0], "prompt": [0, 1]},
        ),
        v.RefutedClaim(
            _spread(),
            "e2-printed",
            e2.P_E2_4.id,
            "Of twenty requests that share nothing the first goes to worker 0, as all are idle; its work is decoding "
            "then, so all the others follow.",
            {"prompts": [1] * 20},
        ),
    )


@v.arithmetic(e2.F_E2_2, ("busy", "idle", "c", "n"), *v.at_least(0, "busy", "idle", "c", "n"))
def _least_total(w: SimpleNamespace) -> v.Shown:
    """Return two workers, of which the busy one has c of a prompt's n tokens cached, a token costing 1."""
    costs = [w.busy + w.n - w.c, w.idle + w.n]
    if not e2.exploits(w.c, w.n, routers.E2().exploit_percent):
        return {}
    place = e2.rebalanced(0, 1, [w.busy, w.idle], routers.E2().threshold_percent, "off", costs.__getitem__)
    return {"no worker is cheaper": costs[place] <= costs[1 - place]}


def _a_worker_holds(w: SimpleNamespace) -> v.Shown:
    """Return what the tree matches, which is what the printed test counts, against what any worker holds."""
    matched = index_of(w.told).match(prompt_of(w.prompt)).blocks
    return {"a worker holds what is matched": matched <= len(w.prompt) + 1 - min(missing(w))} if matched else {}


def _spread(kind: type[routers.E2] = routers.E2Printed) -> v.SampledClaim:
    """Return requests of so many tokens that share nothing, and the loads that they leave."""

    def shows(w: SimpleNamespace) -> v.Shown:
        router = kind(scaling="off")
        state, loads, most = router.init(), [0] * WORKERS, 0
        for i, tokens in enumerate(w.prompts):
            asked = Request(i, 0, 0, Prompt.from_keys([i], tokens=tokens + 1), 2)
            dispatch, state = router.route(state, asked, ClusterView(0, tuple(workers())))
            case = router.case(state, asked.prompt, state.index.match(asked.prompt), workers())
            before, loads = loads, list(case.loads)
            most = max(most, loads[dispatch.worker] - before[dispatch.worker])
        bound = router.threshold_percent * min(loads) + 100 * most
        return {"every load is at most Th times the least and c": 100 * max(loads) <= bound}

    prompts = st.lists(st.integers(1, 2_000), min_size=1, max_size=20)
    return v.SampledClaim(e2.F_E2_5, st.fixed_dictionaries({"prompts": prompts}), shows)


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""
    any_holder = v.changed(routers.E2, "_holders", "bits(case.holders)", "[*range(len(case.workers))]")
    return (
        v.Bug("any worker that holds anything is exploited", longest(any_holder)),
        v.Bug("equality exploits", half(lambda cached, tokens, percent: 100 * cached >= percent * tokens)),
        v.Bug(
            "what is evicted costs nothing", least_cost(lambda bases, _extra, among: min(among, key=bases.__getitem__))
        ),
        v.Bug(
            "heavy is twice the threshold",
            rebalancing(heavy=lambda load, least, percent: 100 * load > 2 * percent * least),
        ),
        v.Bug(
            "the heaviest is the lightest", exploring(lambda bases, _extra, among: max(among, key=bases.__getitem__))
        ),
        v.Bug("every subtree moves", splitting(lambda subtrees, _keeps, _gets: [0, 1, 2])),
        v.Bug("the last leaf goes first", hygiene(type("Youngest", (PrefixIndex,), {"victims": _youngest_first}))),
    )


def _youngest_first(index: PrefixIndex, worker: int, tokens: int) -> Any:
    return tuple(reversed(index.victims(worker, tokens)))
