"""Aladdin's arithmetic: P-ALD-2 to P-ALD-6, P-ALD-8 and P-ALD-9, the shipped functions on unknown integers.

Best fit itself, and what is false, are in `aladdin_fit`.
"""

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st

from fairsched.model.machine import Performance
from fairsched.policies import placement
from fairsched.policies.placement import aladdin
from fairsched.verify.logic import ArithmeticClaim, Bug, Condition, SampledClaim, Shown, arithmetic, at_least, sampled
from fairsched.verify.proofs.kernels import aladdin_limits as limits


def _lines(w: SimpleNamespace, **known: int) -> Any:
    """Return lines whose coefficients are unknown, but for those that are known."""
    names = {"prefill_token_ns": "k1", "prefill_constant_ns": "c1", "context_token_ns": "k2", "request_ns": "c2"}
    names |= {"decode_constant_ns": "c3", "kv_token": "h", "kv_constant": "j"}
    values = {field: known.get(name, getattr(w, name, 0)) for field, name in names.items()}
    lines = SimpleNamespace(**values)
    for method in ("kv", "prefill_ns", "decode_ns"):
        setattr(lines, method, getattr(Performance, method).__get__(lines))
    return lines


# --- memory -----------------------------------------------------------------------------------------------------------

_THREE = ("a", "b", "c")


def _of_each(name: str) -> tuple[Condition, ...]:
    """It began before it ends, holds nothing once it has left, and leaves as foreseen."""

    def holds(w: SimpleNamespace) -> Any:
        held, there = getattr(w, f"{name}_held"), w.k <= getattr(w, f"{name}_left")
        return (held == 0) | (there & (held == getattr(w, f"{name}_level") + w.k + w.j))

    return (
        Condition(lambda w: (getattr(w, f"{name}_level") + w.now >= 0) & (getattr(w, f"{name}_end") >= w.now)),
        Condition(holds),
        Condition(lambda w: getattr(w, f"{name}_left") <= getattr(w, f"{name}_end"), aladdin.PREDICTIONS_BOUND),
    )


def _full() -> tuple[int, int]:
    """Return the most that three requests hold of which the last just fits, iteration by iteration, and the
    capacity."""
    p, entries = Performance(0, 0, 0, 0, 0), [(3, 2), (6, 1), (3, 2)]
    there = limits.profile_of(p, entries[:2])
    capacity = next(c for c in range(100) if limits.profile_slack(p, c, there, *entries[2]) >= 0)
    held = [sum(p.kv(level + k) for end, level in entries if k <= end) for k in range(9)]
    return max(held), capacity


@arithmetic(
    aladdin.P_ALD_2,
    ("capacity", "j", "now", "k", *(f"{name}_{part}" for name in _THREE for part in ("end", "level", "left", "held"))),
    Condition(lambda w: (w.j >= 0) & (w.capacity >= 0) & (w.k >= w.now)),
    Condition(lambda w: w.a_end <= w.b_end),
    Condition(lambda w: w.a_held + w.b_held <= w.capacity),
    *(condition for name in _THREE for condition in _of_each(name)),
    attained=_full,
)
def never_passed(w: SimpleNamespace, slack: Any = limits.profile_slack) -> Shown:
    """Of three requests the first two are there, and fit; at iteration k from `now` on each may have ended already."""
    p = _lines(w, h=1)
    entries = [(getattr(w, f"{name}_end"), getattr(w, f"{name}_level")) for name in _THREE]
    if slack(p, w.capacity, limits.profile_of(p, entries[:2]), *entries[2]) < 0:
        return {}
    return {"never more than there is": w.a_held + w.b_held + w.c_held <= w.capacity}


def _reserved() -> tuple[int, int]:
    p, capacity = Performance(0, 0, 0, 0, 0, 2, 1), 100
    peak = limits.peak_kv(p, 7, 17)
    most = next(reserved for reserved in range(capacity, -1, -1) if limits.peaks_slack(capacity, reserved, peak) >= 0)
    return most + p.kv(7 + 17), capacity


@arithmetic(
    aladdin.P_ALD_3,
    ("capacity", "reserved", "held", "prompt", "foreseen", "done", "h", "j"),
    Condition(lambda w: (w.h >= 1) & (w.j >= 0) & (w.prompt >= 1) & (w.done >= 0) & (w.foreseen >= 1)),
    Condition(lambda w: (w.held >= 0) & (w.held <= w.reserved)),
    Condition(lambda w: w.done <= w.foreseen, aladdin.PREDICTIONS_BOUND),
    relaxed=True,
    attained=_reserved,
)
def peaks_hold(w: SimpleNamespace, slack: Any = limits.peaks_slack) -> Shown:
    """Let the others hold `held` of what is `reserved` for them; one more comes, and has `done` tokens of its
    output."""
    p = _lines(w)
    peak = limits.peak_kv(p, w.prompt, w.foreseen)
    if slack(w.capacity, w.reserved, peak) < 0:
        return {}
    holds = p.kv(w.prompt + w.done)
    return {
        "it holds no more than its peak": holds <= peak,
        "all together no more than is reserved": w.held + holds <= w.reserved + peak,
        "never more than there is": w.held + holds <= w.capacity,
    }


# --- iterations -------------------------------------------------------------------------------------------------------


def _longest() -> tuple[int, int]:
    """Return the longest iteration of one request of 10 tokens with as many as (b) allows to follow, and the target."""
    p, target = Performance(0, 0, 3, 5, 7), 1_002
    most = max(n for n in range(1_000) if limits.decode_slack(p, 100, target, 1, limits.context_cost(10, n, 100)) >= 0)
    return p.decode_ns(1, 10 + most), target


@arithmetic(
    aladdin.P_ALD_4,
    ("k2", "c2", "c3", "target", "theta", "gamma", "batch", "prompts", "foreseen", "done", "took"),
    Condition(lambda w: (w.k2 >= 0) & (w.c2 >= 0) & (w.c3 >= 0) & (w.batch >= 1) & (w.prompts >= 1)),
    Condition(lambda w: (w.done >= 0) & (w.foreseen >= 0) & (w.theta >= 1) & (w.theta <= 100)),
    Condition(lambda w: w.done <= w.foreseen, aladdin.PREDICTIONS_BOUND),
    Condition(lambda w: w.gamma == 100, aladdin.GAMMA_WHOLE),
    Condition(lambda w: w.took == w.k2 * (w.prompts + w.done) + w.c2 * w.batch + w.c3, aladdin.LINES_EXACT),
    relaxed=True,
    attained=_longest,
)
def iterations_within(w: SimpleNamespace, slack: Any = limits.decode_slack) -> Shown:
    """Return a batch of `batch`, with `prompts` and `done` tokens of output in all, of which `foreseen` were
    counted."""
    p = _lines(w)
    context = limits.context_cost(w.prompts, w.foreseen, w.gamma)
    if slack(p, w.theta, w.target, w.batch, context) < 0:
        return {}
    room = w.target - w.c3 - w.c2 * w.batch
    return {
        "context is at most what is counted": 100 * (w.prompts + w.done) <= context,
        "so is its time": 100 * (w.k2 * (w.prompts + w.done)) <= w.k2 * context,
        "theta takes no more than all": w.theta * room <= 100 * room,
        "the iteration is within the target": w.took <= w.target,
    }


@sampled(
    aladdin.P_ALD_5,
    st.fixed_dictionaries(
        {
            "lines": st.lists(st.integers(0, 10**6), min_size=3, max_size=3),
            "target": st.integers(0, 10**9),
            "prompts": st.lists(st.integers(1, 4_000), min_size=1, max_size=9),
            "n": st.integers(2, 200),
        }
    ),
)
def mean_iteration(w: SimpleNamespace, slack: Any = limits.decode_slack) -> Shown:
    """Return a batch of prompts, all with outputs of `n` tokens: their second to last token take n - 1 iterations."""
    p, batch, total = Performance(0, 0, *w.lines), len(w.prompts), sum(w.prompts)
    said = slack(p, 100, w.target, batch, limits.context_cost(total, batch * w.n, 50))
    took = sum(p.decode_ns(batch, total + batch * produced) for produced in range(1, w.n))
    return {"exactly": (w.n - 1) * said == 100 * ((w.n - 1) * w.target - took)}


# --- time per token ---------------------------------------------------------------------------------------------------


def _last_moment() -> tuple[int, int]:
    """Return a request whose time the prefill of another one uses up, and whose further iterations take all of the
    target.

    Returns the time that its outputs take after the first, and the target for them.
    """
    p, target, tokens = Performance(1, 10, 0, 20, 60), 100, 12
    produced, passed, there = 1, 0, 1
    while produced < tokens:
        kept = limits.saved_from("earned", 100, target, 0, 0)
        saved = limits.saved_now(100, target, kept, produced, passed)
        longest = saved // 100 - p.prefill_constant_ns
        if there == 1 and longest >= 50 and limits.stall_slack(p, longest, limits.least_saved(saved, 0)) >= 0:
            passed, there = passed + p.prefill_ns(longest), 2
        assert limits.decode_slack(p, 100, target, there, 0) >= 0
        passed, produced = passed + p.decode_ns(there, 0), produced + 1
    return passed, target * (tokens - 1)


@arithmetic(
    aladdin.P_ALD_9,
    (
        *("k1", "c1", "k2", "c2", "c3", "target", "theta", "gamma"),
        *("batch", "prompts", "foreseen", "done", "took"),
        *("start", "clock", "first", "now", "begun", "others", "waiting"),
        *("step_tokens", "there", "prompt", "prefill"),
    ),
    *at_least(0, "k1", "k2", "c2", "c3", "prompts", "done", "foreseen", "waiting", "there", "step_tokens"),
    *at_least(1, "c1", "batch", "theta", "prompt"),
    Condition(lambda w: w.theta <= 100),
    # It has been in time so far: when the iteration under way began, and it had a token for each tick since `start`.
    Condition(lambda w: (w.clock > w.start) & (w.begun - w.first <= w.target * (w.clock - w.start - 1))),
    Condition(lambda w: (w.begun <= w.now) & (w.now <= w.begun + w.took)),
    Condition(lambda w: w.done <= w.foreseen, aladdin.PREDICTIONS_BOUND),
    Condition(lambda w: w.gamma == 100, aladdin.GAMMA_WHOLE),
    Condition(
        lambda w: (
            (w.took == w.k2 * (w.prompts + w.done) + w.c2 * w.batch + w.c3)
            & (w.prefill == w.k1 * (w.there + w.prompt) + w.c1)
        ),
        aladdin.LINES_EXACT,
    ),
    relaxed=True,
    attained=_last_moment,
)
def token_times_kept(
    w: SimpleNamespace,
    within: Any = limits.decode_slack,
    least: Any = limits.least_saved,
    together: Any = limits.one_step,
    slack: str = "earned",
) -> Shown:
    """Return any request of a worker; in the iteration under way one more comes to `there` tokens of new prompts.

    `others` is the least that other requests have saved.  A request with its first token has n = 1 and no time has
    passed, so all that follows is a step: an iteration, or one and the prefill after it.
    """
    p = _lines(w)
    context = limits.context_cost(w.prompts, w.foreseen, w.gamma)
    if within(p, w.theta, w.target, w.batch, context) < 0:
        return {}
    room, own = w.target - w.c3 - w.c2 * w.batch, w.target * (w.clock - w.start - 1) - (w.now - w.first)
    shown = {
        "context is at most what is counted": 100 * (w.prompts + w.done) <= context,
        "so is its time": 100 * (w.k2 * (w.prompts + w.done)) <= w.k2 * context,
        "theta takes no more than all": w.theta * room <= 100 * room,
        "the iteration is within the target": w.took <= w.target,
        "an iteration keeps it in time": w.begun + w.took - w.first <= w.target * (w.clock - w.start),
    }
    kept = limits.saved_from(slack, w.theta, w.target, w.start, w.first)
    saved = limits.saved_now(w.theta, w.target, kept, w.clock, w.now)
    new_tokens, all_saved = w.there + w.prompt, least(saved if saved <= w.others else w.others, w.waiting)
    if limits.stall_slack(p, new_tokens, all_saved) < 0:
        return shown
    if not together(w.step_tokens, w.there, w.prompt):
        return shown
    return shown | {
        "no request of an earlier heartbeat waits": w.waiting == 0,
        "all prompts fit in a step": (w.there == 0) | (new_tokens <= w.step_tokens),
        "what it has saved is its own": saved == w.theta * own,
        "the least is not more": 100 * w.prefill <= w.theta * own,
        "it has saved something": own >= 0,
        "theta of it is no more than it": w.theta * own <= 100 * own,
        "the prefill takes no more than that": w.prefill <= own,
        "the prefill keeps it in time": w.begun + w.took + w.prefill - w.first <= w.target * (w.clock - w.start),
        "so it does without an iteration": w.now + w.prefill - w.first <= w.target * (w.clock - w.start - 1),
    }


# --- errors -----------------------------------------------------------------------------------------------------------


@arithmetic(
    aladdin.P_ALD_6,
    ("source", "target", "size", "others", "other_sizes"),
    *at_least(0, "size"),
    Condition(lambda w: (w.other_sizes >= w.others) & (w.other_sizes >= -w.others)),
    attained=lambda: (limits.apart(*limits.moved(9, -5, 6)), 4),
)
def errors_kept(w: SimpleNamespace, move: Any = limits.moved) -> Shown:
    """Return two workers' errors, and those of all others with their sizes."""
    source, target = move(w.source, w.target, w.size)
    total, sizes = source + target + w.others, limits.apart(source, target) + w.other_sizes
    return {
        "the sum stays": total == w.source + w.target + w.others,
        "no smaller than the sum": (sizes >= total) & (sizes >= -total),
    }


def _rounded() -> tuple[int, int]:
    """Return two groups that are rounded up as far as can be, and the bound, in millionths of a worker."""
    slope, constant, rates = 1, 0, (placement.UNIT + 1, 2 * placement.UNIT + 1)
    workers = sum(placement.workers_for(rate, slope, constant) for rate in rates)
    return placement.UNIT * workers, slope * sum(rates) + len(rates) * (constant + placement.UNIT - 1)


@arithmetic(
    aladdin.P_ALD_8,
    ("workers", "rate", "more", "slope", "constant", "spent"),
    Condition(lambda w: (w.slope >= 0) & (w.constant >= 0) & (w.rate >= 0) & (w.more >= 0) & (w.workers >= 0)),
    Condition(lambda w: placement.UNIT * w.workers <= w.slope * w.rate + w.spent),
    attained=_rounded,
)
def groups_together(w: SimpleNamespace, count: Any = placement.workers_for) -> Shown:
    """So many groups with `rate` need `workers` within the bound; one more comes, with `more`."""
    each = w.constant + placement.UNIT - 1
    added = count(w.more, w.slope, w.constant)
    return {
        "one group": placement.UNIT * added <= w.slope * w.more + each,
        "all": placement.UNIT * (w.workers + added) <= w.slope * w.rate + w.slope * w.more + w.spent + each,
    }


def claims() -> tuple[ArithmeticClaim | SampledClaim, ...]:
    """About what ships."""
    return (
        never_passed(),
        peaks_hold(),
        iterations_within(),
        token_times_kept(),
        mean_iteration(),
        errors_kept(),
        groups_together(),
    )


# --- small errors -----------------------------------------------------------------------------------------------------


def _own_end_only(p: Any, capacity: Any, profile: Any, end: Any, level: Any) -> Any:
    return limits.profile_slack(p, capacity, profile._replace(highs=[0] * len(profile.ends)), end, level)


def _without_requests(p: Any, theta: Any, target: Any, batch: Any, context: Any) -> Any:
    return limits.decode_slack(p, theta, target, batch - 1, context)


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    return (
        Bug("only its own end is looked at", never_passed(_own_end_only)),
        Bug("half a peak is reserved", peaks_hold(lambda capacity, reserved, peak: 2 * (capacity - reserved) - peak)),
        Bug("the new request itself is not counted", iterations_within(_without_requests)),
        Bug(
            "requests without a first token are left out, as printed",
            token_times_kept(least=lambda saved, waiting: saved),
        ),
        Bug("prompts of one heartbeat take two steps", token_times_kept(together=lambda *_: True)),
        Bug("a request is granted a target for its first token, as printed", token_times_kept(slack="printed")),
        Bug("the new request itself is not counted", mean_iteration(_without_requests)),
        Bug("the target's error stays as it was", errors_kept(lambda source, target, size: (source - size, target))),
        Bug(
            "a group too many",
            groups_together(lambda rate, slope, constant: placement.workers_for(rate, slope, constant) + 1),
        ),
    )
