"""The order by declared levels: levels first, then the cached prefix."""

from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.workloads import generate
from fairsched.engines.workloads.sampling.programs import LlmCall, downstream_levels
from fairsched.model.request import TOKENS_MAX, Prompt, Request
from fairsched.policies.orders import DownstreamLevels
from fairsched.policies.orders.plain import LEVEL, LEVELS_MAX, STEP

PROMPT = Prompt(8)
LEVELS = st.integers(0, 80)
CACHED = st.integers(0, TOKENS_MAX)


def request(levels: int) -> Request:
    """A request that so many levels wait for."""
    return Request(0, 0, 0, PROMPT, 1, downstream_levels=levels)


@given(LEVELS, CACHED, LEVELS, CACHED)
def test_levels_go_before_prefixes(levels: int, cached: int, others: int, others_cached: int) -> None:
    """More levels downstream go first, whatever is cached; of equal ones the longer prefix, to within a step."""
    upstream, downstream = DownstreamLevels(), DownstreamLevels("downstream")
    mine, theirs = request(levels), request(others)
    more = min(levels, LEVELS_MAX) - min(others, LEVELS_MAX)
    ahead = upstream.rank(mine, cached) - upstream.rank(theirs, others_cached)
    behind = downstream.rank(mine, cached) - downstream.rank(theirs, others_cached)
    if more:
        assert (ahead > 0) is (more > 0) is (behind < 0)
    else:
        longer = min(cached // STEP, LEVEL - 1) - min(others_cached // STEP, LEVEL - 1)
        assert ahead == behind == longer
    assert 0 <= upstream.rank(mine, cached) <= TOKENS_MAX


@given(st.lists(st.lists(st.integers(0, 11), max_size=3), max_size=12))
def test_declared_levels_are_the_longest_chain(parents: list[list[int]]) -> None:
    """Each call has one level more than the deepest call that waits for it."""
    calls = [LlmCall(PROMPT, 1, tuple({p for p in each if p < place})) for place, each in enumerate(parents)]
    levels = downstream_levels(calls)
    for place in range(len(calls)):
        waiting = [levels[other] for other, call in enumerate(calls) if place in call.after]
        assert levels[place] == max((level + 1 for level in waiting), default=0)


def test_generated_programs_declare_their_levels() -> None:
    """A tree of height 4 has 3 levels below its roots, and a judge's branch the solving calls and the merge."""
    trees = generate("tree-of-thoughts", clients="1", trees="1")
    assert [job.request.downstream_levels for job in trees.jobs] == [3] * 2 + [2] * 4 + [1] * 8 + [0] * 16
    judge = generate("llm-judge", clients="1", articles="1")
    assert [job.request.downstream_levels for job in judge.jobs] == [2, 1, 1, 0]
