"""Aladdin's best fit: P-ALD-1 and P-ALD-7, tried.

Placements are held against a count of every iteration to come in drawn worlds, and the number of workers against every
way to share them in all small ones.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st

from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.model.events import NOWHERE, Arrived
from fairsched.model.machine import Performance
from fairsched.model.request import Prompt, Request
from fairsched.policies import placement
from fairsched.policies.placement import aladdin
from fairsched.verify.logic import Bug, RefutedClaim, SampledClaim, Shown, changed, refuted, sampled
from fairsched.verify.proofs.kernels import aladdin_limits as limits

_REQUEST = st.tuples(st.integers(1, 30), st.integers(1, 12))
_PRESENT = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(0, 5), st.none()), max_size=3)
_HEARTBEATS = st.fixed_dictionaries(
    {
        "lines": st.tuples(*(st.integers(0, most) for most in (5, 5, 2, 20, 20))),
        "per_request": st.integers(0, 2),
        "target": st.one_of(st.integers(5, 40), st.integers(20, 300)),
        "theta": st.integers(50, 100),
        "gamma": st.sampled_from((0, 50, 100)),
        "reserve": st.sampled_from(("lock-step", "peaks")),
        "capacity": st.integers(20, 120),
        "clock": st.just(5),
        "step_tokens": st.integers(10, 60),
        "few": st.one_of(st.just((1, 0, 0)), st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 2))),
        "workers": st.lists(_PRESENT, max_size=2),
        "coming": st.lists(st.builds(lambda r, due: (*r, due), _REQUEST, st.integers(0, 300)), max_size=4),
    }
)


@sampled(aladdin.P_ALD_1, _HEARTBEATS, drawn=1_000)
def placements_hold(
    w: SimpleNamespace,
    kind: type[aladdin.PlacementBatch] = aladdin.PlacementBatch,
    rules: type[aladdin.Rules] = aladdin.Rules,
) -> Shown:
    """Return workers that have some requests already, the last one empty; a few more are placed in one heartbeat."""
    k1, c1, k2, c2, c3 = w.lines
    p = Performance(k1, c1, k2, c2, c3, 1, w.per_request)
    few = ((w.few[0], Performance(k1, c1, k2, min(c2, w.few[1]), min(c3, w.few[2]))),)
    aims = w.target, w.theta, w.gamma
    held = rules(p, *aims, "normalised", w.reserve, step_tokens=w.step_tokens, few=few)
    rows = [_row(held, i, w.capacity, w.clock, there) for i, there in enumerate((*w.workers, ()))]
    batch = kind(held, rows)
    shown: dict[str, bool] = {}
    there = [[*map(tuple, each)] for each in (*w.workers, ())]
    for prompt, output, due in w.coming:
        wanted = aladdin.Wanted(prompt, output, output, due)
        row = batch.choose(wanted)
        if row is not None:
            batch.take(row, wanted)
            there[row].append((prompt, output, w.clock, due))
            shown |= _kept(held, w, there[row], rows[row].saved)
    return shown


def _row(
    rules: aladdin.Rules, worker: int, capacity: int, clock: int, there: Iterable[tuple[int, int, int, Any]]
) -> aladdin.Row:
    """Return a worker at this clock, whose requests began at theirs, and have produced no more than they were to."""
    believed = aladdin.Believed(clock=clock)
    for i, (prompt, output, start, _) in enumerate(there):
        foreseen = max(output, clock - start)
        believed = aladdin.joined(believed, i, aladdin.Member(0, prompt, foreseen, foreseen, None, 0, 0, start), i)
    return aladdin.Row(
        worker,
        capacity,
        believed,
        believed.total.batch,
        rules.cost(believed.total),
        0,
        aladdin.FOREVER_NS,
        40_000 if believed.total.batch else aladdin.FOREVER_NS,
    )


def _kept(rules: aladdin.Rules, w: SimpleNamespace, there: list[Any], saved: int) -> Mapping[str, bool]:
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
    lines = [p, *(near for most, near in rules.few if len(there) <= most)]
    took = min(100 * (each.decode_constant_ns + each.request_ns * len(there)) for each in lines)
    return {
        "(b)": rules.theta_percent * (100 * rules.tpot_ns - took) >= 100 * p.context_token_ns * context,
        "(c)": all(prefill <= each[3] for each in new),
        "(d)": 100 * prefill <= saved,
        "in one step": len(new) <= 1 or sum(each[0] for each in new) <= w.step_tokens,
        "(e)": max(held) <= w.capacity,
    }


_PACKED = (
    aladdin.Rules(Performance(0, 0, 0, 0, 0), 1, 100, 100, "normalised", "peaks"),
    aladdin.Rules(Performance(0, 0, 1, 1, 0), 13, 100, 50, "normalised", "peaks"),
)
_KINDS = ((2, 1), (1, 1), (1, 3), (4, 1), (3, 3))
_CAPACITY = 10


def _worst() -> tuple[int, int]:
    """Return two of 4 tokens and two of 6 need two workers, and best fit opens three if the small ones come first."""
    wanted = [aladdin.Wanted(*kind, kind[1]) for kind in ((1, 3), (1, 3), (3, 3), (3, 3))]
    at = aladdin.pack(_PACKED[0], wanted, _CAPACITY)
    return 2 * (1 + max(i for i in at if i is not None)), 3 * _fewest(_PACKED[0], wanted)


def _sequences() -> Iterator[Mapping[str, Any]]:
    for count in range(1, 6):
        for code in range(1 << count):
            for first in range(len(_KINDS)):
                for second in range(first):
                    kinds = [second if code >> i & 1 else first for i in range(count)]
                    if len(set(kinds)) == 2:
                        yield from ({"kinds": kinds, "rules": rules} for rules in range(len(_PACKED)))


@sampled(aladdin.P_ALD_7, _sequences, attained=_worst)
def near_the_optimum(w: SimpleNamespace, packs: Callable[..., tuple[int | None, ...]] = aladdin.pack) -> Shown:
    """Sequences of up to five requests of two kinds of (prompt, output), under memory alone and under (b) too."""
    wanted = [aladdin.Wanted(*_KINDS[kind], _KINDS[kind][1]) for kind in w.kinds]
    rules = _PACKED[w.rules]
    at = packs(rules, wanted, _CAPACITY)
    if None in at:
        return {}
    return {"at most 3/2": 2 * (1 + max(i for i in at if i is not None)) <= 3 * _fewest(rules, wanted)}


def _fewest(rules: aladdin.Rules, wanted: list[aladdin.Wanted]) -> int:
    """Return the fewest workers, by trying every way to share them, under (b) and memory."""
    p = rules.performance

    def fits(group: list[aladdin.Wanted]) -> bool:
        context = sum(
            limits.context_cost(each.prompt_tokens, each.output_tokens, rules.gamma_percent) for each in group
        )
        within = limits.decode_slack(p, rules.theta_percent, rules.tpot_ns, len(group), context) >= 0
        return within and sum(p.kv(each.prompt_tokens + each.output_tokens) for each in group) <= _CAPACITY

    def shared(left: list[aladdin.Wanted], groups: list[list[aladdin.Wanted]]) -> int:
        if not left:
            return len(groups)
        first, rest = left[0], left[1:]
        found = [shared(rest, [*groups, [first]])]
        for i, group in enumerate(groups):
            if fits([*group, first]):
                found.append(shared(rest, [*groups[:i], [*group, first], *groups[i + 1 :]]))
        return min(found)

    return shared(wanted, [])


def claims() -> tuple[SampledClaim, ...]:
    """About what ships."""
    return (placements_hold(), near_the_optimum())


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    forgets = changed(aladdin.PlacementBatch, "_change", "self.context[row] += count * cost", "pass")
    stepwise = changed(aladdin.PlacementBatch, "fitting", "if self.rules.step_tokens is not None and", "if False and")
    near = changed(aladdin.Rules, "decode_slack", "np.where(batch <= most, ", "np.where(batch > 0, ")
    unlooked = changed(aladdin.PlacementBatch, "choose", "if self.has_memory(row, wanted):", "if True:")
    return (
        Bug("what was placed before in the heartbeat is not counted in (b)", placements_hold(forgets)),
        Bug("prompts of one heartbeat are computed in several steps", placements_hold(stepwise)),
        Bug("lines for few requests are taken for any number", placements_hold(rules=near)),
        Bug("memory is not looked at", placements_hold(unlooked)),
        Bug("a worker for each", near_the_optimum(lambda rules, wanted, capacity: tuple(range(len(wanted))))),
    )


# --- what is false --------------------------------------------------------------------------------------------------

_MS = 1_000_000


def _placements_meet_targets(w: SimpleNamespace) -> Shown:
    """Return a request that is late wherever it goes, before an empty worker."""
    lines = Performance(1_000 * w.token_us, 0, 0, 0, 1)
    policy = placement.AladdinPrinted(ttft_us=1_000 * w.ttft_ms, performance=lines)
    state = policy.observe(policy.init(), Arrived(0, NOWHERE, Request(0, 0, 0, Prompt(w.prompt), 10)))
    plan, _ = policy.decide(state, ClusterView(0, (WorkerLoad(0, 0, 0, 0, 10**5, 10**5),)))
    return {"in time": not plan.dispatches or lines.prefill_ns(w.prompt) <= w.ttft_ms * _MS}


def _late_starts_fit(w: SimpleNamespace) -> Shown:
    """(e) holds if the second request starts now, and it starts later."""
    p = Performance(0, 0, 0, 0, 0)
    (a, a_output), (b, b_output) = w.a, w.b
    there = limits.profile_of(p, [(a_output, a)])
    if limits.profile_slack(p, w.capacity, there, b_output, b) < 0:
        return {}
    return {"memory is enough": limits.profile_slack(p, w.capacity, there, w.late + b_output, b - w.late) >= 0}


def _half_is_enough(w: SimpleNamespace) -> Shown:
    """Long requests near their end, and a short one that lives through their longest iterations."""
    p = Performance(0, 0, 10_000, 0, 12 * _MS)
    (prompt, output, done), (short, tokens) = w.long, w.short
    context = limits.context_cost(w.count * prompt + short, w.count * output + tokens, 50)
    if limits.decode_slack(p, 100, w.target_ms * _MS, w.count + 1, context) < 0:
        return {}
    # The long ones leave after `output`, so only what the short one lives through with them is looked at.
    steps = range(1, min(tokens, output - done))
    took = [p.decode_ns(w.count + 1, w.count * (prompt + done + n) + short + n) for n in steps]
    return {"its mean iteration is within the target": sum(took) <= len(took) * w.target_ms * _MS}


def _near_the_best_later(w: SimpleNamespace) -> Shown:
    """Large and small requests come in turn, and the large ones leave."""
    rules = aladdin.Rules(Performance(0, 0, 0, 0, 0), 1, 100, 100, "normalised", "peaks")
    pairs = [aladdin.Wanted(size - 1, 1, 1) if size > 1 else aladdin.Wanted(0, 1, 1) for size in (w.large, w.small)]
    used = len(set(aladdin.pack(rules, pairs * w.workers, w.large + w.small)[1::2]))
    return {
        "at most twice the best": used <= 2 * len(set(aladdin.pack(rules, pairs[1:] * w.workers, w.large + w.small)))
    }


def _in_time_by_c(w: SimpleNamespace) -> Shown:
    """(c) as printed counts from the heartbeat, and the request came just after the one before."""
    p = Performance(0, w.prefill_ms * _MS, 0, 0, 0)
    if limits.prefill_slack(p, 1, 0, w.ttft_ms * _MS) < 0:
        return {}
    waited = w.heartbeat_ms * _MS - w.after_ns
    return {"the first token is in time": waited + p.prefill_ns(1) <= w.ttft_ms * _MS}


def _keeps_time_per_token(w: SimpleNamespace, kind: type[placement.Aladdin] = placement.AladdinPrinted) -> Shown:
    """Return one worker; a request comes, and at the next heartbeat another one, before the first has its first
    token."""
    lines = Performance(1_000 * w.token_us, 0, 0, 0, 1_000 * w.decode_us)
    policy = kind(ttft_us=1_000 * w.ttft_ms, tpot_us=1_000 * w.tpot_ms, performance=lines)
    state, load = policy.init(), WorkerLoad(0, 0, 0, 0, 10**5, 10**5)
    stalled_ns, first_ns = 0, lines.prefill_ns(w.prompts[0])
    for i, now_ns in enumerate((0, w.heartbeat_ms * _MS)):
        state = policy.observe(state, Arrived(now_ns, NOWHERE, Request(i, 0, now_ns, Prompt(w.prompts[i]), w.output)))
        plan, state = policy.decide(state, ClusterView(now_ns, (load,)))
        # What comes while the first prompt is computed is computed next.
        if i and plan.dispatches and now_ns < first_ns:
            stalled_ns = lines.prefill_ns(w.prompts[i])
    took_ns = stalled_ns + (w.output - 1) * lines.decode_ns(2, 0)
    return {"it keeps its target per token": took_ns <= (w.output - 1) * w.tpot_ms * _MS}


def _moves_keep_limits(w: SimpleNamespace) -> Shown:
    """Algorithm 2 as printed moves what is foreseen of the output, and looks at nothing else."""
    over, under = w.errors
    if limits.apart(*limits.moved(over, under, w.output)) >= limits.apart(over, under):
        return {}
    rules = aladdin.Rules(Performance(0, 0, 1, 0, 0), w.room, 100, 100, "printed", "peaks")
    batch = aladdin.PlacementBatch(
        rules, [aladdin.Row(0, 10**6, aladdin.Believed(), 0, 0, 0, aladdin.FOREVER_NS, aladdin.FOREVER_NS)]
    )
    return {"(b) holds where it goes": batch.holds(0, aladdin.Wanted(w.prompt, w.output, w.output))}


def refutations() -> tuple[RefutedClaim, ...]:
    """Return what is said of Aladdin."""
    return (
        refuted(
            "F-ALD-1",
            "whom Algorithm 1 places keeps its targets",
            "Aladdin, Algorithm 1",
            _placements_meet_targets,
            {"prompt": 5_000, "token_us": 102, "ttft_ms": 400},
            variant="Algorithm 1 as printed, which opens a worker without looking",
            instead=aladdin.P_ALD_1.id,
            text="a prompt of 5,000 tokens takes 510 ms, its first token is due in 400 ms, and an empty worker gets it",
        ),
        refuted(
            "F-ALD-2",
            "whom (e) lets in has memory, whenever it starts",
            "Aladdin, constraint (e)",
            _late_starts_fit,
            {"capacity": 9, "a": [1, 6], "b": [2, 3], "late": 5},
            variant="(e) as it ships, if requests wait before they start",
            instead=aladdin.P_ALD_3.id,
            text="9 tokens of memory: 1 that grows to 7 and 2 that grow to 5 fit together now, and not if the second "
            "starts 5 iterations later",
        ),
        refuted(
            "F-ALD-3",
            "with gamma = 1/2 every request keeps its mean time per token",
            "Aladdin, section 4.3",
            _half_is_enough,
            {"long": [500, 1_440, 1_430], "count": 3, "short": [100, 20], "target_ms": 50},
            variant="(b) as it ships with gamma = 1/2, for requests that do not start and end together",
            instead=aladdin.P_ALD_4.id,
            text="three of 500 + 1,440 tokens ten iterations before their end, and one of 100 + 20: counted 3,770 of "
            "3,800 tokens, and iterations take 71 ms with a target of 50 ms",
        ),
        refuted(
            "F-ALD-4",
            "best fit is within twice the optimum when requests leave",
            "folklore",
            _near_the_best_later,
            {"large": 9, "small": 1, "workers": 5},
            variant="best fit as it ships, with departures",
            instead=aladdin.P_ALD_7.id,
            text="five workers of 10 get 9 and 1 each; when the large ones have left, five serve what fits into one",
        ),
        refuted(
            "F-ALD-5",
            "whom (c) lets in has its first token in time",
            "Aladdin, constraint (c)",
            _in_time_by_c,
            {"prefill_ms": 380, "ttft_ms": 400, "heartbeat_ms": 50, "after_ns": 1},
            variant="(c) as printed, from the heartbeat on",
            instead=aladdin.P_ALD_1.id,
            text="380 ms of prefill fit into 400 ms, but the request waited 50 ms for the heartbeat",
        ),
        refuted(
            "F-ALD-6",
            "a move of Algorithm 2 keeps the constraints",
            "Aladdin, Algorithm 2",
            _moves_keep_limits,
            {"prompt": 900, "output": 10, "room": 50, "errors": [60, -60]},
            variant="Algorithm 2 as printed, which moves the output alone",
            instead=aladdin.P_ALD_6.id,
            text="a request of 900 + 10 tokens goes where 50 more would be too many, since 10 are counted",
        ),
        refuted(
            "F-ALD-7",
            "no prefill that (d) lets in makes a request miss its target per token",
            "Aladdin, constraint (d)",
            _keeps_time_per_token,
            {"prompts": [1_000, 1_000], "output": 10, "token_us": 100, "decode_us": 20_000, "heartbeat_ms": 50}
            | {"ttft_ms": 400, "tpot_ms": 30},
            variant="(d) as printed, which looks at requests that have a first token alone",
            instead=aladdin.P_ALD_9.id,
            text="a prompt is computed for 100 ms; 50 ms later the worker gets another one, since no request there has "
            "a first token that it could stall; it stalls the first one for 100 ms, whose 9 further tokens take 280 "
            "of 270 ms",
        ),
    )
