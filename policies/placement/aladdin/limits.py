"""Aladdin's constraints (b) to (e) and its norms, as plain arithmetic on integers.

Source: Aladdin, section 4.3 and Algorithm 1.  The same text runs on Python's integers, on numpy's columns of all
workers at once, and on unknown integers in proofs.  Context is counted in hundredths of a token, since gamma is in per
cent; so are the slacks of (b) and (d), since theta is.  Each function gives a slack: 0 or more means that it fits.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from fairsched.model.machine import Performance
from fairsched.model.theorem import Assumption, Scope, Theorem

Amount = Any
"""An integer, a numpy column of them, or an unknown integer of a proof."""
SCALE = 1 << 20
"""A part of the most, in the normalised norm, is rounded down to multiples of one by this."""


def context_cost(prompt_tokens: Amount, output_tokens: Amount, gamma_percent: Amount) -> Amount:
    """Return what a request adds to the context of (b): prompt and gamma of its output, in hundredths of a token."""
    return 100 * prompt_tokens + gamma_percent * output_tokens


def decode_slack(p: Performance, theta_percent: Amount, tpot_ns: Amount, batch: Amount, context: Amount) -> Amount:
    """(b): how far an iteration over all requests of the worker stays below theta of the target, in 10 ps.

    `context` is the sum of `context_cost`.
    """
    within = theta_percent * (tpot_ns - p.decode_constant_ns - p.request_ns * batch)
    return within - p.context_token_ns * context


def prefill_slack(p: Performance, new_tokens: Amount, begins_ns: Amount, deadline_ns: Amount) -> Amount:
    """(c): how long before the earliest deadline of a first token all new prompts of the worker are computed.

    `begins_ns` is when the iteration under way ends: as the paper has it, the target starts only there.
    """
    return deadline_ns - begins_ns - p.prefill_ns(new_tokens)


def stall_slack(p: Performance, new_tokens: Amount, saved: Amount) -> Amount:
    """(d): how far the prefill of all new prompts stays below what the least lucky running request has saved, in 10 ps.

    What is saved, with theta in it, is a matter of `saved_from`.
    """
    return saved - 100 * p.prefill_ns(new_tokens)


def least_saved(saved: Amount, waiting: Amount) -> Amount:
    """Return what all requests of a worker have saved, in 10 ps: nothing while `waiting` of them have no first token.

    `saved` is the least of those that have one.  A request that has just had its first token has saved nothing, so a
    prompt that was let in before would stall it as soon as it begins.
    """
    if waiting > 0:
        return 0 if saved >= 0 else saved
    return saved


def one_step(step_tokens: Amount, new_tokens: Amount, prompt_tokens: Amount) -> Amount:
    """(d): whether a prompt is computed in one step with all new ones of the worker; a prompt alone always is.

    In two steps the second would stall requests that have their first token from the first.
    """
    return (new_tokens == 0) | (new_tokens + prompt_tokens <= step_tokens)


def peak_kv(p: Performance, prompt_tokens: Amount, output_tokens: Amount) -> Amount:
    """Return the most that a request ever holds (equation 1)."""
    return p.kv(prompt_tokens + output_tokens)


def peaks_slack(capacity: Amount, reserved: Amount, peak: Amount) -> Amount:
    """(e) with peaks: what is left when each request has the most that it ever holds, whenever it starts."""
    return capacity - reserved - peak


class Profile(NamedTuple):
    """What requests hold in every iteration to come, from their (end, level), ends ascending: kv(level + k) at
    iteration k and nothing after `end`.

    `levels[i]` is the sum from the i-th on, and `highs[i]` the most that is held at one of the first i + 1 ends, with
    as much as one more request of level 0 would hold there.  Between two ends all grows, so the peaks are at ends.
    """

    ends: Sequence[Amount]
    levels: Sequence[Amount]
    highs: Sequence[Amount]


def profile_of(p: Performance, entries: Sequence[tuple[Amount, Amount]]) -> Profile:
    """Return the profile of requests.  O(entries)."""
    count = len(entries)
    levels = list(accumulate((level for _, level in reversed(entries)), initial=0))[::-1]
    at_ends = (
        p.kv_token * (levels[i] + (count - i) * end + end) + p.kv_constant * (count - i)
        for i, (end, _) in enumerate(entries)
    )
    return Profile([end for end, _ in entries], levels, list(accumulate(at_ends, max)))


def profile_slack(p: Performance, capacity: Amount, profile: Profile, end: Amount, level: Amount) -> Amount:
    """(e) in lock-step: the least that is left, with one more request, in any iteration up to its end.

    After that nothing changes.  O(log requests).
    """
    first = bisect_left(profile.ends, end)
    others = p.kv_token * (profile.levels[first] + (len(profile.ends) - first) * end)
    others = others + p.kv_constant * (len(profile.ends) - first)
    slack = capacity - others - p.kv(level + end)
    before = bisect_right(profile.ends, end)
    if before:
        earlier = capacity - profile.highs[before - 1] - p.kv(level)
        if earlier < slack:
            slack = earlier
    return slack


def norm_normalised(batch: Amount, context: Amount, batch_max: Amount, context_max: Amount) -> Amount:
    """Square of the length of (batch, context), each as a part of the most that (b) allows of it alone."""
    requests = batch * SCALE // batch_max
    tokens = context * SCALE // (100 * context_max)
    return requests * requests + tokens * tokens


def norm_printed(batch: Amount, context: Amount) -> Amount:
    """Square of the length of (batch, context) as printed, requests and tokens added."""
    tokens = context // 100
    return batch * batch + tokens * tokens


# --- prediction errors ------------------------------------------------------------------------------------------------


def weight(p: Performance, context: Amount, count: Amount) -> Amount:
    """Return how much an iteration grows by requests, in 10 ps: the unit of a worker's prediction error."""
    return p.context_token_ns * context + 100 * p.request_ns * count


def moved(source: Amount, target: Amount, size: Amount) -> tuple[Amount, Amount]:
    """Return the errors of two workers after a request of this weight went from one to the other."""
    return source - size, target + size


def apart(source: Amount, target: Amount) -> Amount:
    """Return how far two workers are from what was planned."""
    return (source if source >= 0 else -source) + (target if target >= 0 else -target)


# --- time that running requests have saved ------------------------------------------------------------------------


def saved_from(slack: str, theta_percent: Amount, tpot_ns: Amount, start: Amount, first_ns: Amount) -> Amount:
    """Return the part of a request's saved time that stays as it is, in 10 ps; `saved_now` adds the rest.

    At iteration k and time t, with n = k - `start` tokens produced since `first_ns`, theta and the target T:

        printed   theta (T n - (t - first))            what Aladdin's (d) says
        earned    theta (T (n - 1) - (t - first))      what its definition of time per token says
    """
    skipped = start + 1 if slack == "earned" else start
    return theta_percent * (first_ns - tpot_ns * skipped)


def saved_now(theta_percent: Amount, tpot_ns: Amount, kept: Amount, clock: Amount, now_ns: Amount) -> Amount:
    """Return what a request has saved, in 10 ps, of which `kept` (`saved_from`) stays as it is."""
    return kept + theta_percent * (tpot_ns * clock - now_ns)


# --- theorems ---------------------------------------------------------------------------------------------------------


PREDICTIONS_BOUND = Assumption("PredictionsBound", "No output is longer than was foreseen.")
STARTS_AT_ONCE = Assumption(
    "StartsAtOnce", "Requests begin when they are placed, and all of a worker advance together, a token an iteration."
)
LINES_EXACT = Assumption("LinesExact", "Iterations take what the worker's lines say.")
GAMMA_WHOLE = Assumption("GammaWhole", "Of a foreseen output all is counted (gamma = 1).")
EQUAL_OUTPUTS = Assumption("EqualOutputs", "All requests of a batch begin together and end together.")
LINEAR_GROUPS = Assumption("LinearGroups", "Each group needs at most a + b rate workers, rounded up.")

EAGER_STEPS = Assumption(
    "EagerSteps", "A worker computes its new prompts as soon as the iteration under way ends, in one step if they fit."
)
PLACED_BY_RULE = Assumption(
    "PlacedByRule", "All requests of the worker were placed where (b) to (e) hold, and none is computed again."
)

_HERE = "this library; Aladdin, section 4"

P_ALD_1 = Theorem(
    "P-ALD-1",
    "where a request is placed by the rule, (b) to (e) hold with it, on an empty worker too",
    _HERE,
    scope=Scope.TESTED,
)
P_ALD_2 = Theorem(
    "P-ALD-2",
    "a worker that (e) lets a third request into never holds more KV than it has, if it did not before",
    "Aladdin, constraint (e)",
    (PREDICTIONS_BOUND, STARTS_AT_ONCE),
    bound="kv_capacity",
)
P_ALD_3 = Theorem(
    "P-ALD-3",
    "with peaks reserved, KV never exceeds the capacity, for any number of requests, whenever each starts",
    "this library",
    (PREDICTIONS_BOUND,),
    bound="kv_capacity",
)
P_ALD_4 = Theorem(
    "P-ALD-4",
    "while (b) holds of a batch, none of its decode iterations takes longer than the target per token",
    "Aladdin, equation 4",
    (PREDICTIONS_BOUND, LINES_EXACT, GAMMA_WHOLE),
    bound="tpot_ns",
)
P_ALD_5 = Theorem(
    "P-ALD-5",
    "with gamma = 1/2, (b) is about the mean iteration of the batch exactly",
    "Aladdin, section 4.3",
    (LINES_EXACT, EQUAL_OUTPUTS),
    scope=Scope.TESTED,
)
P_ALD_6 = Theorem(
    "P-ALD-6",
    "a move keeps the sum of the workers' errors, and the sum of their sizes stays at least the size of that sum",
    "Aladdin, Algorithm 2",
    bound="|sum e|",
)
P_ALD_7 = Theorem(
    "P-ALD-7",
    "best fit opens at most 3/2 times as many workers as any packing needs, for up to 5 requests of two kinds",
    "this library",
    bound="3/2",
    scope=Scope.BOUNDED,
)
P_ALD_8 = Theorem(
    "P-ALD-8",
    "G groups need at most slope rate + G (constant + 1) workers, less a millionth for each",
    "this library's reconstruction of grouped scheduling",
    (LINEAR_GROUPS,),
    bound="slope rate + G (constant + 1 - 10^-6)",
)
P_ALD_9 = Theorem(
    "P-ALD-9",
    "every request that is placed by the rule keeps its target per token, for any number of requests: whenever "
    "it has n tokens, at most n - 1 targets have passed since the first",
    "this library; Aladdin states it of constraints (b) and (d)",
    (PREDICTIONS_BOUND, LINES_EXACT, GAMMA_WHOLE, EAGER_STEPS, PLACED_BY_RULE),
    bound="tpot_ns (n - 1)",
)
THEOREMS = (P_ALD_1, P_ALD_2, P_ALD_3, P_ALD_4, P_ALD_5, P_ALD_6, P_ALD_7, P_ALD_9)
"""Those of the placement itself; P-ALD-8 is the grouped scheduler's."""
