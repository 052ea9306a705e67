"""Whose turn it is among priority groups, and how often others are let in before a request, whatever comes.

The kernel is `fairsched.policies.orders.abilities.weighted_round_robin`.  Here the sort is that of the priority groups
of one queue, for any number of them and any distinct quotas; groups 1 to P, group g with quota g, are a case of that.
`below` is the sum of the quotas of lower groups, `N` that of all; `low` is the sum of those that are left in the
round (the one at turn whole).  The queue may change in any way between two picks.

For PG-turns a request r waits in group `g`, and begins to wait at any point of a round.  `others` and `own` count what
was let in since, of other groups and of its own; `visit` is how far its group's turn is.  `base` and `owned` grow by
N - g and by g when a turn of its group ends: R times, in the theorem's words.
"""

from fairsched.model.algebra import Algebra
from fairsched.policies.orders.abilities import (
    GROUPS_RISE,
    PG_ROUND,
    PG_SERVES,
    PG_TURNS,
    QUOTA_POSITIVE,
    TURN_RESPECTED,
)
from fairsched.verify.logic import (
    Claim,
    Clause,
    Event,
    Functions,
    Kind,
    Need,
    System,
    Term,
    World,
    Written,
    implies,
    one_step,
    only,
    same,
)
from fairsched.verify.proofs.kernels import weighted_round_robin

_QUOTAS = {"quota": Kind.VECTOR, "below": Kind.VECTOR, "N": Kind.SCALAR}
_STATE = {"queued": Kind.MASK, **dict.fromkeys(("turn", "taken", "low"), Kind.SCALAR)}


def _quota(o: Algebra, w: World, point: str) -> Term:
    return o.pick(w.quota, getattr(w, point), 0)


def _below(o: Algebra, w: World, point: str) -> Term:
    return o.pick(w.below, getattr(w, point), 0)


def _is(o: Algebra, w: World, point: str, other: str) -> Term:
    """Whether two points are one group."""
    return o.pick(only(o, w.quota, getattr(w, point)), getattr(w, other), False)


# --- what quotas are, and where a round is ----------------------------------------------------------------------------


def _sums(o: Algebra, w: World, i: Term, j: Term) -> Term:
    mine, other = o.pick(w.quota, i, 0), o.pick(w.quota, j, 0)
    return implies(o, mine < other, o.pick(w.below, i, 0) + mine <= o.pick(w.below, j, 0))


def _distinct(o: Algebra, w: World, i: Term, j: Term) -> Term:
    mine, other = o.pick(w.quota, i, 0), o.pick(w.quota, j, 0)
    return (mine < other) | (mine > other) | o.pick(only(o, w.quota, i), j, False)


_LAWS = (Need(lambda o, w: w.quota >= 0), Need(lambda o, w: w.below >= 0), Need(lambda o, w: w.below + w.quota <= w.N))
_SUMS = (
    Clause("lower groups are part of what is below a higher one", _sums, points=2),
    Clause("quotas are distinct", _distinct, points=2),
)
_POSITION = (
    Clause("0 <= taken <= low", lambda o, w: (w.taken >= 0) & (w.taken <= w.low)),
    Clause("low <= N", lambda o, w: w.low <= w.N),
    Clause("a turn that began is not over", lambda o, w: implies(o, w.taken > 0, w.taken < w.turn)),
    Clause("low has the groups up to turn", lambda o, w: implies(o, w.quota <= w.turn, w.below + w.quota <= w.low)),
    Clause("and no others", lambda o, w: implies(o, w.quota > w.turn, w.low <= w.below)),
    Clause(
        "and the one at turn beside the lower ones",
        lambda o, w: implies(o, w.quota < w.turn, w.below + w.quota + w.taken <= w.low),
    ),
)


def _pick(kernel: Functions) -> Event:
    """One request of group `p` is let in; `new` says that a round begins with it."""

    def decides(o: Algebra, w: World) -> Written:
        return {"best": kernel.chosen(o, w.quota, w.queued, w.turn), "new": o.none(w.queued & (w.quota <= w.turn))}

    def step(o: Algebra, w: World) -> Written:
        quota = _quota(o, w, "p")
        counted = kernel.count(o, w.turn, w.taken, quota)
        turn = kernel.turn_after(o, quota, counted)
        return {
            "turn": turn,
            "taken": kernel.taken_after(o, quota, counted),
            "low": o.where(turn >= quota, _below(o, w, "p") + quota, _below(o, w, "p")),
        }

    return Event(
        "let in",
        step,
        {"p": Kind.POINT},
        (
            Need(lambda o, w: o.pick(w.queued, w.p, False)),
            Need(lambda o, w: _is(o, w, "p", "best"), TURN_RESPECTED),
        ),
        (kernel.chosen, kernel.count, kernel.turn_after, kernel.taken_after),
        decides,
    )


def _others_change(needs: tuple[Need, ...] = ()) -> Event:
    """Requests come, give up, or change their groups."""
    return Event("others come and go", lambda o, w: {"queued": w.now}, {"now": Kind.MASK}, needs)


def _round(kernel: Functions) -> Claim:
    """`picks` counts what the round let in, `had` of the group at `j`."""
    pick = _pick(kernel)

    def counted(o: Algebra, w: World) -> Written:
        of_j = o.where(_is(o, w, "p", "j"), 1, 0)
        return {
            **pick.step(o, w),
            "picks": o.where(w.new, 1, w.picks + 1),
            "had": o.where(w.new, of_j, w.had + of_j),
        }

    def mine(o: Algebra, w: World) -> Term:
        quota = _quota(o, w, "j")
        at_turn = same(quota, w.turn)
        passed = implies(o, quota > w.turn, quota >= w.had)
        ahead = implies(o, quota < w.turn, same(w.had, 0))
        return passed & ahead & implies(o, at_turn, w.had <= w.taken) & (w.had >= 0)

    return Claim(
        PG_ROUND,
        System(
            "a round of priority groups",
            {**_QUOTAS, "j": Kind.POINT},
            (*_LAWS, Need(lambda o, w: o.exists(w.j)), Need(lambda o, w: w.quota >= 1, QUOTA_POSITIVE)),
            {**_STATE, "picks": Kind.SCALAR, "had": Kind.SCALAR},
            (
                Event("let in", counted, pick.facts, pick.needs, pick.kernels, pick.decides),
                _others_change(),
            ),
        ),
        (
            *_SUMS,
            Clause("no round is under way", lambda o, w: same(w.turn, 0) & same(w.taken, 0) & same(w.low, 0)),
            Clause("none was let in", lambda o, w: same(w.picks, 0) & same(w.had, 0)),
        ),
        (
            *_SUMS,
            *_POSITION,
            Clause("picks and what is left are at most N", lambda o, w: w.picks + w.low - w.taken <= w.N),
            Clause("j has had its turn, or not, or is in it", mine),
        ),
        (
            Clause("picks <= N", lambda o, w: w.picks <= w.N),
            Clause("had <= quota", lambda o, w: w.had <= _quota(o, w, "j")),
        ),
    )


def _serves(kernel: Functions) -> Claim:
    """Wherever the round is, also without quotas."""

    def choose(o: Algebra, w: World) -> Written:
        best = kernel.chosen(o, w.quota, w.queued, w.turn)
        return {"served": o.where(o.any(w.queued), o.pick(w.queued, best, False), True)}

    clause = Clause("if a request waits, one of the chosen group does", lambda o, w: w.served)
    return one_step(
        PG_SERVES,
        "a choice among priority groups",
        {"served": Kind.FLAG},
        Event("choose", choose, kernels=(kernel.chosen,)),
        (clause,),
        parameters={"quota": Kind.VECTOR, "queued": Kind.MASK, "turn": Kind.SCALAR},
    )


# --- one request ------------------------------------------------------------------------------------------------------


def _waiting(kernel: Functions) -> tuple[Event, ...]:
    """Whatever may happen while r waits."""
    pick = _pick(kernel)

    def let_in(o: Algebra, w: World) -> Written:
        quota = _quota(o, w, "g")
        one = o.where(_is(o, w, "p", "g"), 1, 0)
        ends = _is(o, w, "p", "g") & (w.visit + 1 >= quota)
        return {
            **pick.step(o, w),
            "own": w.own + one,
            "others": w.others + 1 - one,
            "ahead": w.ahead - one,
            "visit": o.where(ends, 0, w.visit + one),
            "base": o.where(ends, w.base + w.N - quota, w.base),
            "owned": o.where(ends, w.owned + quota, w.owned),
        }

    not_r = Need(lambda o, w: implies(o, _is(o, w, "p", "g"), w.ahead >= 1))
    point = {"p": Kind.POINT}
    return (
        Event("let in", let_in, pick.facts, (*pick.needs, not_r), pick.kernels, pick.decides),
        _others_change((Need(lambda o, w: o.pick(w.now, w.g, False)),)),
        Event("an older one comes into the group", lambda o, w: {"ahead": w.ahead + 1, "k": w.k + 1}),
        Event("one before r gives up", lambda o, w: {"ahead": w.ahead - 1}, needs=(Need(lambda o, w: w.ahead >= 1),)),
        Event(
            "r falls into a lower group",
            lambda o, w: {"g": w.p},
            point,
            (
                Need(lambda o, w: o.pick(w.queued, w.p, False) & (_quota(o, w, "p") >= 1)),
                Need(lambda o, w: _quota(o, w, "p") < _quota(o, w, "g")),
            ),
            excluded_by=GROUPS_RISE,
        ),
    )


def _in_turn(o: Algebra, w: World) -> Term:
    return same(w.turn, _quota(o, w, "g")) & (w.taken > 0)


def _room(o: Algebra, w: World) -> Term:
    """Others that are still to come before the next turn of r's group ends, beside those counted."""
    mine, through = _quota(o, w, "g"), _below(o, w, "g") + _quota(o, w, "g")
    left = w.low - w.taken
    before = implies(o, mine < w.turn, w.others + left - through <= w.base)
    after = implies(o, mine > w.turn, w.others + left + w.N - through <= w.base)
    return before & after & (w.others <= w.base)


def _begins(o: Algebra, w: World) -> Term:
    """r comes: in a turn of its group, which is then the first to end, or out of it."""
    out = same(w.base, w.N - _quota(o, w, "g")) & same(w.owned, _quota(o, w, "g")) & same(w.visit, 0)
    during = same(w.base, 0) & same(w.owned, 0) & same(w.visit, w.taken)
    return o.where(_in_turn(o, w), during, out)


def _turns(kernel: Functions) -> Claim:
    """`k` is r's place in its group, 1 for the first, later comers before it counted; `ahead` who is before it now."""
    return Claim(
        PG_TURNS,
        System(
            "one request in a priority group",
            _QUOTAS,
            (
                *_LAWS,
                Need(lambda o, w: o.exists(w.g)),
                Need(lambda o, w: _quota(o, w, "g") >= 1, QUOTA_POSITIVE),
            ),
            {
                **_STATE,
                "g": Kind.POINT,
                **dict.fromkeys(("others", "own", "ahead", "k", "visit", "base", "owned"), Kind.SCALAR),
            },
            _waiting(kernel),
        ),
        (
            *_SUMS,
            *_POSITION,
            Clause("r waits", lambda o, w: o.pick(w.queued, w.g, False)),
            Clause("none was let in since", lambda o, w: same(w.others, 0) & same(w.own, 0)),
            Clause("those before r", lambda o, w: (w.ahead >= 0) & same(w.k, w.ahead + 1)),
            Clause("r's group is in its turn, or not", _begins),
        ),
        (
            *_SUMS,
            *_POSITION,
            Clause("r waits", lambda o, w: o.pick(w.queued, w.g, False)),
            Clause(
                "the turn is as far as the group has had picks",
                lambda o, w: implies(o, _in_turn(o, w), same(w.visit, w.taken)),
            ),
            Clause("and has not begun out of it", lambda o, w: implies(o, w.visit > 0, _in_turn(o, w))),
            Clause("0 <= visit", lambda o, w: w.visit >= 0),
            Clause("others, and those to come, are at most R (N - g)", _room),
            Clause("own >= (R - 1) g and the turn", lambda o, w: w.own + _quota(o, w, "g") >= w.owned + w.visit),
            Clause("own + ahead < k", lambda o, w: w.own + w.ahead < w.k),
            Clause("ahead >= 0", lambda o, w: w.ahead >= 0),
        ),
        (
            Clause("others <= R (N - g)", lambda o, w: w.others <= w.base),
            Clause("own >= (R - 1) g", lambda o, w: w.own >= w.owned - _quota(o, w, "g")),
            Clause("own < k", lambda o, w: w.own < w.k),
        ),
    )


def claims(kernel: Functions = weighted_round_robin) -> tuple[Claim, ...]:
    """What is proved of the rule; `kernel` holds its functions."""
    return (_serves(kernel), _round(kernel), _turns(kernel))
