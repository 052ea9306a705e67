"""What is false of Aladdin, as printed or as told: F-ALD-1 to F-ALD-6, each with a world."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from fairsched.model.events import NOWHERE, Arrived
from fairsched.model.performance import Performance
from fairsched.model.request import Prompt, Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.policies import aladdin_limits as limits
from fairsched.policies.aladdin import AladdinPrinted
from fairsched.policies.aladdin_draft import FOREVER_NS, Draft, Row, Rules, Wanted
from fairsched.policies.aladdin_pack import pack
from fairsched.policies.aladdin_theorems import P_ALD_1, P_ALD_3, P_ALD_4, P_ALD_6, P_ALD_7
from fairsched.policies.aladdin_worker import Believed
from fairsched.verify.false_claim import FalseClaim
from fairsched.verify.tested import TestedClaim

_MS = 1_000_000


def _theorem(number: int, statement: str, source: str) -> Theorem:
    return Theorem(f"F-ALD-{number}", statement, source, (), scope=Scope.BOUNDED)


_TARGETS = {"prompt": 5_000, "token_us": 102, "ttft_ms": 400}


def _placements_meet_targets() -> TestedClaim:
    """F-ALD-1: a request that is late wherever it goes, before an empty worker."""

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        lines = Performance(1_000 * w.token_us, 0, 0, 0, 1)
        policy = AladdinPrinted(ttft_us=1_000 * w.ttft_ms, performance=lines)
        request = Request(0, 0, 0, Prompt(w.prompt), 10)
        state = policy.observe(policy.init(), Arrived(0, NOWHERE, request))
        plan, _ = policy.decide(state, ClusterView(0, (WorkerLoad(0, 0, 0, 0, 10**5, 10**5),)))
        return {"in time": not plan.dispatches or lines.prefill_ns(w.prompt) <= w.ttft_ms * _MS}

    theorem = _theorem(1, "whom Algorithm 1 places keeps its targets", "Aladdin, Algorithm 1")
    return TestedClaim(theorem, lambda: [_TARGETS], shows)


_LATE = {"capacity": 9, "a": [1, 6], "b": [2, 3], "late": 5}


def _late_starts_fit() -> TestedClaim:
    """F-ALD-2: (e) holds if the second request starts now, and it starts later."""

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        p = Performance(0, 0, 0, 0, 0)
        (a, a_output), (b, b_output) = w.a, w.b
        there = limits.profile_of(p, [(a_output, a)])
        if limits.profile_slack(p, w.capacity, there, b_output, b) < 0:
            return {}
        later = limits.profile_slack(p, w.capacity, there, w.late + b_output, b - w.late)
        return {"memory is enough": later >= 0}

    theorem = _theorem(2, "whom (e) lets in has memory, whenever it starts", "Aladdin, constraint (e)")
    return TestedClaim(theorem, lambda: [_LATE], shows)


_OLD = {"long": [500, 1_440, 1_430], "count": 3, "short": [100, 20], "target_ms": 50}


def _half_is_enough() -> TestedClaim:
    """F-ALD-3: long requests near their end, and a short one that lives through their longest iterations."""

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        p = Performance(0, 0, 10_000, 0, 12 * _MS)
        (prompt, output, done), (short, tokens) = w.long, w.short
        context = limits.context_cost(w.count * prompt + short, w.count * output + tokens, 50)
        if limits.decode_slack(p, 100, w.target_ms * _MS, w.count + 1, context) < 0:
            return {}
        # The long ones leave after `output`, so only what the short one lives through with them is looked at.
        steps = range(1, min(tokens, output - done))
        took = [p.decode_ns(w.count + 1, w.count * (prompt + done + n) + short + n) for n in steps]
        return {"its mean iteration is within the target": sum(took) <= len(took) * w.target_ms * _MS}

    theorem = _theorem(3, "with gamma = 1/2 every request keeps its mean time per token", "Aladdin, section 4.3")
    return TestedClaim(theorem, lambda: [_OLD], shows)


_LEAVE = {"large": 9, "small": 1, "workers": 5}


def _near_the_best_later() -> TestedClaim:
    """F-ALD-4: large and small requests come in turn, and the large ones leave."""

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        rules = Rules(Performance(0, 0, 0, 0, 0), 1, 100, 100, "normalised", "peaks")
        pairs = [Wanted(size - 1, 1, 1, None) if size > 1 else Wanted(0, 1, 1, None) for size in (w.large, w.small)]
        at = pack(rules, pairs * w.workers, w.large + w.small)
        used = len(set(at[1::2]))
        best = len(set(pack(rules, pairs[1:] * w.workers, w.large + w.small)))
        return {"at most twice the best": used <= 2 * best}

    theorem = _theorem(4, "best fit is within twice the optimum when requests leave", "folklore")
    return TestedClaim(theorem, lambda: [_LEAVE], shows)


_BETWEEN = {"prefill_ms": 380, "ttft_ms": 400, "heartbeat_ms": 50, "after_ns": 1}


def _in_time_by_c() -> TestedClaim:
    """F-ALD-5: (c) as printed counts from the heartbeat, and the request came just after the one before."""

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        p = Performance(0, w.prefill_ms * _MS, 0, 0, 0)
        if limits.prefill_slack(p, 1, 0, w.ttft_ms * _MS) < 0:
            return {}
        waited = w.heartbeat_ms * _MS - w.after_ns
        return {"the first token is in time": waited + p.prefill_ns(1) <= w.ttft_ms * _MS}

    theorem = _theorem(5, "whom (c) lets in has its first token in time", "Aladdin, constraint (c)")
    return TestedClaim(theorem, lambda: [_BETWEEN], shows)


_MOVE = {"prompt": 900, "output": 10, "room": 50, "errors": [60, -60]}


def _moves_keep_limits() -> TestedClaim:
    """F-ALD-6: Algorithm 2 as printed moves what is foreseen of the output, and looks at nothing else."""

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        p = Performance(0, 0, 1, 0, 0)
        over, under = w.errors
        if limits.apart(*limits.moved(over, under, w.output)) >= limits.apart(over, under):
            return {}
        rules = Rules(p, w.room, 100, 100, "printed", "peaks")
        draft = Draft(rules, [Row(0, 10**6, Believed(), 0, 0, 0, FOREVER_NS, FOREVER_NS)])
        return {"(b) holds where it goes": draft.holds(0, Wanted(w.prompt, w.output, w.output, None))}

    theorem = _theorem(6, "a move of Algorithm 2 keeps the constraints", "Aladdin, Algorithm 2")
    return TestedClaim(theorem, lambda: [_MOVE], shows)


def refutations() -> tuple[FalseClaim, ...]:
    """What is said of Aladdin."""
    return (
        FalseClaim(
            _placements_meet_targets(),
            "Algorithm 1 as printed, which opens a worker without looking",
            P_ALD_1.id,
            "a prompt of 5,000 tokens takes 510 ms, its first token is due in 400 ms, and an empty worker gets it",
            _TARGETS,
        ),
        FalseClaim(
            _late_starts_fit(),
            "(e) as it ships, if requests wait before they start",
            P_ALD_3.id,
            "9 tokens of memory: 1 that grows to 7 and 2 that grow to 5 fit together now, and not if the second starts "
            "5 iterations later",
            _LATE,
        ),
        FalseClaim(
            _half_is_enough(),
            "(b) as it ships with gamma = 1/2, for requests that do not start and end together",
            P_ALD_4.id,
            "three of 500 + 1,440 tokens ten iterations before their end, and one of 100 + 20: counted 3,770 of 3,800 "
            "tokens, and iterations take 71 ms with a target of 50 ms",
            _OLD,
        ),
        FalseClaim(
            _near_the_best_later(),
            "best fit as it ships, with departures",
            P_ALD_7.id,
            "five workers of 10 get 9 and 1 each; when the large ones have left, five serve what fits into one",
            _LEAVE,
        ),
        FalseClaim(
            _in_time_by_c(),
            "(c) as printed, from the heartbeat on",
            P_ALD_1.id,
            "380 ms of prefill fit into 400 ms, but the request waited 50 ms for the heartbeat",
            _BETWEEN,
        ),
        FalseClaim(
            _moves_keep_limits(),
            "Algorithm 2 as printed, which moves the output alone",
            P_ALD_6.id,
            "a request of 900 + 10 tokens goes where 50 more would be too many, since 10 are counted",
            _MOVE,
        ),
    )
