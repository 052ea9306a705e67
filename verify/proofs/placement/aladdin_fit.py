"""Aladdin's best fit: P-ALD-1 and P-ALD-7, tried.

Placements are held against a count of every iteration to come in drawn worlds, and the number of workers against every
way to share them in all small ones.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st

from fairsched.model.performance import Performance
from fairsched.policies import aladdin_limits as limits
from fairsched.policies.aladdin_draft import FOREVER_NS, Draft, Row, Rules, Wanted
from fairsched.policies.aladdin_pack import pack
from fairsched.policies.aladdin_theorems import (
    P_ALD_1,
    P_ALD_7,
)
from fairsched.policies.aladdin_worker import Believed, Member, joined
from fairsched.verify.changed import changed
from fairsched.verify.false_claim import Bug
from fairsched.verify.tested import TestedClaim


def placements_hold(kind: type[Draft] = Draft) -> TestedClaim:
    """Workers that have some requests already, the last one empty; a few more are placed in one heartbeat."""

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        k1, c1, k2, c2, c3 = w.lines
        p = Performance(k1, c1, k2, c2, c3, 1, w.per_request)
        rules = Rules(p, w.target, w.theta, w.gamma, "normalised", w.reserve)
        rows = [_row(rules, i, w.capacity, w.clock, there) for i, there in enumerate((*w.workers, ()))]
        draft = kind(rules, rows)
        shown: dict[str, bool] = {}
        there = [[*map(tuple, each)] for each in (*w.workers, ())]
        for prompt, output, due in w.coming:
            wanted = Wanted(prompt, output, output, due)
            row = draft.choose(wanted)
            if row is not None:
                draft.take(row, wanted)
                there[row].append((prompt, output, w.clock, due))
                shown |= _kept(rules, w, there[row], rows[row].saved)
        return shown

    request = st.tuples(st.integers(1, 30), st.integers(1, 12))
    present = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(0, 5), st.none()), max_size=3)
    worlds = st.fixed_dictionaries(
        {
            "lines": st.lists(st.integers(0, 5), min_size=5, max_size=5),
            "per_request": st.integers(0, 2),
            "target": st.integers(20, 300),
            "theta": st.integers(50, 100),
            "gamma": st.sampled_from((0, 50, 100)),
            "reserve": st.sampled_from(("lock-step", "peaks")),
            "capacity": st.integers(20, 120),
            "clock": st.just(5),
            "workers": st.lists(present, max_size=2),
            "coming": st.lists(st.builds(lambda r, due: (*r, due), request, st.integers(0, 300)), max_size=4),
        }
    )
    return TestedClaim(P_ALD_1, worlds, shows, drawn=400)


def _row(rules: Rules, worker: int, capacity: int, clock: int, there: Iterable[tuple[int, int, int, Any]]) -> Row:
    """A worker at this clock, whose requests began at theirs, and have produced no more than they were to."""
    believed = Believed(clock=clock)
    for i, (prompt, output, start, _) in enumerate(there):
        foreseen = max(output, clock - start)
        believed = joined(believed, i, Member(0, prompt, foreseen, foreseen, None, 0, 0, start), i)
    return Row(
        worker,
        capacity,
        believed,
        believed.everybody.batch,
        rules.cost(believed.everybody),
        0,
        FOREVER_NS,
        40_000 if believed.everybody.batch else FOREVER_NS,
    )


def _kept(rules: Rules, w: SimpleNamespace, there: list[Any], saved: int) -> Mapping[str, bool]:
    """(b) to (e) of a worker as the paper writes them, (e) for each iteration to come."""
    p, clock = rules.performance, w.clock
    sizes = [(prompt, max(output, clock - start), start) for prompt, output, start, _ in there]
    context = sum(100 * prompt + rules.gamma_percent * output for prompt, output, _ in sizes)
    new = [each for each in there if each[3] is not None]
    prefill = p.prefill_token_ns * sum(each[0] for each in new) + p.prefill_constant_ns
    if rules.reserve == "peaks":
        held = [sum(p.kv(prompt + output) for prompt, output, _ in sizes)]
    else:
        held = [
            sum(p.kv(prompt + k - start) for prompt, output, start in sizes if k <= start + output)
            for k in range(clock, clock + 40)
        ]
    left = rules.theta_percent * (rules.tpot_ns - p.decode_constant_ns - p.request_ns * len(there))
    return {
        "(b)": p.context_token_ns * context <= left,
        "(c)": all(prefill <= each[3] for each in new),
        "(d)": 100 * prefill <= saved,
        "(e)": max(held) <= w.capacity,
    }


_PACKED = (
    Rules(Performance(0, 0, 0, 0, 0), 1, 100, 100, "normalised", "peaks"),
    Rules(Performance(0, 0, 1, 1, 0), 13, 100, 50, "normalised", "peaks"),
)
_KINDS = ((2, 1), (1, 1), (1, 3), (4, 1), (3, 3))
_CAPACITY = 10


def near_the_optimum(packs: Callable[..., tuple[int | None, ...]] = pack) -> TestedClaim:
    """Sequences of up to five requests of two kinds of (prompt, output), under memory alone and under (b) too."""

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        wanted = [Wanted(*_KINDS[kind], _KINDS[kind][1], None) for kind in w.kinds]
        rules = _PACKED[w.rules]
        at = packs(rules, wanted, _CAPACITY)
        if None in at:
            return {}
        return {"at most 3/2": 2 * (1 + max(i for i in at if i is not None)) <= 3 * _fewest(rules, wanted)}

    def worlds() -> Iterator[Mapping[str, Any]]:
        for count in range(1, 6):
            for code in range(1 << count):
                for first in range(len(_KINDS)):
                    for second in range(first):
                        kinds = [second if code >> i & 1 else first for i in range(count)]
                        if len(set(kinds)) == 2:
                            yield from ({"kinds": kinds, "rules": rules} for rules in range(len(_PACKED)))

    return TestedClaim(P_ALD_7, worlds, shows, attained=_worst)


def _fewest(rules: Rules, wanted: list[Wanted]) -> int:
    """The fewest workers, by trying every way to share them, under (b) and memory."""
    p = rules.performance

    def fits(group: list[Wanted]) -> bool:
        context = sum(
            limits.context_cost(each.prompt_tokens, each.output_tokens, rules.gamma_percent) for each in group
        )
        within = limits.decode_slack(p, rules.theta_percent, rules.tpot_ns, len(group), context) >= 0
        return within and sum(p.kv(each.prompt_tokens + each.output_tokens) for each in group) <= _CAPACITY

    def shared(left: list[Wanted], groups: list[list[Wanted]]) -> int:
        if not left:
            return len(groups)
        first, rest = left[0], left[1:]
        found = [shared(rest, [*groups, [first]])]
        for i, group in enumerate(groups):
            if fits([*group, first]):
                found.append(shared(rest, [*groups[:i], [*group, first], *groups[i + 1 :]]))
        return min(found)

    return shared(wanted, [])


def _worst() -> tuple[int, int]:
    """Two of 4 tokens and two of 6 need two workers, and best fit opens three if the small ones come first."""
    wanted = [Wanted(*kind, kind[1], None) for kind in ((1, 3), (1, 3), (3, 3), (3, 3))]
    at = pack(_PACKED[0], wanted, _CAPACITY)
    return 2 * (1 + max(i for i in at if i is not None)), 3 * _fewest(_PACKED[0], wanted)


def claims() -> tuple[TestedClaim, ...]:
    """About what ships."""
    return (placements_hold(), near_the_optimum())


def _one_each(rules: Rules, wanted: list[Wanted], capacity: int) -> tuple[int | None, ...]:
    return tuple(range(len(wanted)))


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    forgets = changed(Draft, "_change", "self.context[row] += count * cost", "pass")
    unlooked = changed(Draft, "choose", "if self.has_memory(row, wanted):", "if True:")
    return (
        Bug("what was placed before in the heartbeat is not counted in (b)", placements_hold(forgets)),
        Bug("memory is not looked at", placements_hold(unlooked)),
        Bug("a worker for each", near_the_optimum(_one_each)),
    )
