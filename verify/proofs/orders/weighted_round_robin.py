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
from fairsched.policies.orders import abilities
from fairsched.verify import logic as v
from fairsched.verify.proofs.kernels import weighted_round_robin

_QUOTAS = {"quota": v.VECTOR, "below": v.VECTOR, "N": v.SCALAR}
_STATE = {"queued": v.MASK, **v.scalars("turn", "taken", "low")}


def _quota(o: Algebra, w: v.World, point: str) -> v.Term:
    return o.pick(w.quota, getattr(w, point), 0)


def _below(o: Algebra, w: v.World, point: str) -> v.Term:
    return o.pick(w.below, getattr(w, point), 0)


def _is(o: Algebra, w: v.World, point: str, other: str) -> v.Term:
    """Return whether two points are one group."""
    return o.pick(v.only(o, w.quota, getattr(w, point)), getattr(w, other), False)


# --- what quotas are, and where a round is ----------------------------------------------------------------------------


def _sums(o: Algebra, w: v.World, i: v.Term, j: v.Term) -> v.Term:
    mine, other = o.pick(w.quota, i, 0), o.pick(w.quota, j, 0)
    return v.implies(o, mine < other, o.pick(w.below, i, 0) + mine <= o.pick(w.below, j, 0))


def _distinct(o: Algebra, w: v.World, i: v.Term, j: v.Term) -> v.Term:
    mine, other = o.pick(w.quota, i, 0), o.pick(w.quota, j, 0)
    return (mine < other) | (mine > other) | o.pick(v.only(o, w.quota, i), j, False)


_LAWS = (
    v.Need(lambda o, w: w.quota >= 0),
    v.Need(lambda o, w: w.below >= 0),
    v.Need(lambda o, w: w.below + w.quota <= w.N),
)
_SUMS = (
    v.Clause("lower groups are part of what is below a higher one", _sums, points=2),
    v.Clause("quotas are distinct", _distinct, points=2),
)
_POSITION = (
    v.Clause("0 <= taken <= low", lambda o, w: (w.taken >= 0) & (w.taken <= w.low)),
    v.Clause("low <= N", lambda o, w: w.low <= w.N),
    v.Clause("a turn that began is not over", lambda o, w: v.implies(o, w.taken > 0, w.taken < w.turn)),
    v.Clause("low has the groups up to turn", lambda o, w: v.implies(o, w.quota <= w.turn, w.below + w.quota <= w.low)),
    v.Clause("and no others", lambda o, w: v.implies(o, w.quota > w.turn, w.low <= w.below)),
    v.Clause(
        "and the one at turn beside the lower ones",
        lambda o, w: v.implies(o, w.quota < w.turn, w.below + w.quota + w.taken <= w.low),
    ),
)


def _pick(kernel: v.Functions) -> v.Event:
    """Let in one request of group `p`; `new` says that a round begins with it."""

    def decides(o: Algebra, w: v.World) -> v.Written:
        return {"best": kernel.chosen(o, w.quota, w.queued, w.turn), "new": o.none(w.queued & (w.quota <= w.turn))}

    def step(o: Algebra, w: v.World) -> v.Written:
        quota = _quota(o, w, "p")
        counted = kernel.count(o, w.turn, w.taken, quota)
        turn = kernel.turn_after(o, quota, counted)
        return {
            "turn": turn,
            "taken": kernel.taken_after(o, quota, counted),
            "low": o.where(turn >= quota, _below(o, w, "p") + quota, _below(o, w, "p")),
        }

    return v.Event(
        "let in",
        step,
        {"p": v.POINT},
        (
            lambda o, w: o.pick(w.queued, w.p, False),
            v.Need(lambda o, w: _is(o, w, "p", "best"), abilities.TURN_RESPECTED),
        ),
        (kernel.chosen, kernel.count, kernel.turn_after, kernel.taken_after),
        decides,
    )


def _others_change(needs: tuple[v.Need, ...] = ()) -> v.Event:
    """Let requests come, give up, or change their groups."""
    return v.Event("others come and go", lambda o, w: {"queued": w.now}, {"now": v.MASK}, needs)


def _round(kernel: v.Functions) -> v.Claim:
    """`picks` counts what the round let in, `had` of the group at `j`."""
    pick = _pick(kernel)

    def counted(o: Algebra, w: v.World) -> v.Written:
        of_j = o.where(_is(o, w, "p", "j"), 1, 0)
        return {**pick.step(o, w), "picks": o.where(w.new, 1, w.picks + 1), "had": o.where(w.new, of_j, w.had + of_j)}

    def mine(o: Algebra, w: v.World) -> v.Term:
        quota = _quota(o, w, "j")
        at_turn = v.same(quota, w.turn)
        passed = v.implies(o, quota > w.turn, quota >= w.had)
        ahead = v.implies(o, quota < w.turn, v.same(w.had, 0))
        return passed & ahead & v.implies(o, at_turn, w.had <= w.taken) & (w.had >= 0)

    return v.Claim(
        abilities.PG_ROUND,
        v.System(
            "a round of priority groups",
            {**_QUOTAS, "j": v.POINT},
            (*_LAWS, v.Need(lambda o, w: o.exists(w.j)), v.Need(lambda o, w: w.quota >= 1, abilities.QUOTA_POSITIVE)),
            {**_STATE, "picks": v.SCALAR, "had": v.SCALAR},
            (v.Event("let in", counted, pick.facts, pick.needs, pick.kernels, pick.decides), _others_change()),
        ),
        (
            *_SUMS,
            v.Clause("no round is under way", lambda o, w: v.same(w.turn, 0) & v.same(w.taken, 0) & v.same(w.low, 0)),
            v.Clause("none was let in", lambda o, w: v.same(w.picks, 0) & v.same(w.had, 0)),
        ),
        (
            *_SUMS,
            *_POSITION,
            v.Clause("picks and what is left are at most N", lambda o, w: w.picks + w.low - w.taken <= w.N),
            v.Clause("j has had its turn, or not, or is in it", mine),
        ),
        (
            v.Clause("picks <= N", lambda o, w: w.picks <= w.N),
            v.Clause("had <= quota", lambda o, w: w.had <= _quota(o, w, "j")),
        ),
    )


def _serves(kernel: v.Functions) -> v.Claim:
    """Wherever the round is, also without quotas."""

    def choose(o: Algebra, w: v.World) -> v.Written:
        best = kernel.chosen(o, w.quota, w.queued, w.turn)
        return {"served": o.where(o.any(w.queued), o.pick(w.queued, best, False), True)}

    clause = v.Clause("if a request waits, one of the chosen group does", lambda o, w: w.served)
    return v.one_step(
        abilities.PG_SERVES,
        "a choice among priority groups",
        {"served": v.FLAG},
        v.Event("choose", choose, kernels=(kernel.chosen,)),
        (clause,),
        parameters={"quota": v.VECTOR, "queued": v.MASK, "turn": v.SCALAR},
    )


# --- one request ------------------------------------------------------------------------------------------------------


def _waiting(kernel: v.Functions) -> tuple[v.Event, ...]:
    """Whatever may happen while r waits."""
    pick = _pick(kernel)

    def let_in(o: Algebra, w: v.World) -> v.Written:
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

    not_r = v.Need(lambda o, w: v.implies(o, _is(o, w, "p", "g"), w.ahead >= 1))
    point = {"p": v.POINT}
    return (
        v.Event("let in", let_in, pick.facts, (*pick.needs, not_r), pick.kernels, pick.decides),
        _others_change((v.Need(lambda o, w: o.pick(w.now, w.g, False)),)),
        v.Event("an older one comes into the group", lambda o, w: {"ahead": w.ahead + 1, "k": w.k + 1}),
        v.Event("one before r gives up", lambda o, w: {"ahead": w.ahead - 1}, needs=(lambda o, w: w.ahead >= 1,)),
        v.Event(
            "r falls into a lower group",
            lambda o, w: {"g": w.p},
            point,
            (
                lambda o, w: o.pick(w.queued, w.p, False) & (_quota(o, w, "p") >= 1),
                lambda o, w: _quota(o, w, "p") < _quota(o, w, "g"),
            ),
            excluded_by=abilities.GROUPS_RISE,
        ),
    )


def _in_turn(o: Algebra, w: v.World) -> v.Term:
    return v.same(w.turn, _quota(o, w, "g")) & (w.taken > 0)


def _room(o: Algebra, w: v.World) -> v.Term:
    """Others that are still to come before the next turn of r's group ends, beside those counted."""
    mine, through = _quota(o, w, "g"), _below(o, w, "g") + _quota(o, w, "g")
    left = w.low - w.taken
    before = v.implies(o, mine < w.turn, w.others + left - through <= w.base)
    after = v.implies(o, mine > w.turn, w.others + left + w.N - through <= w.base)
    return before & after & (w.others <= w.base)


def _begins(o: Algebra, w: v.World) -> v.Term:
    """r comes: in a turn of its group, which is then the first to end, or out of it."""
    out = v.same(w.base, w.N - _quota(o, w, "g")) & v.same(w.owned, _quota(o, w, "g")) & v.same(w.visit, 0)
    during = v.same(w.base, 0) & v.same(w.owned, 0) & v.same(w.visit, w.taken)
    return o.where(_in_turn(o, w), during, out)


def _turns(kernel: v.Functions) -> v.Claim:
    """`k` is r's place in its group, 1 for the first, later comers before it counted; `ahead` who is before it now."""
    return v.Claim(
        abilities.PG_TURNS,
        v.System(
            "one request in a priority group",
            _QUOTAS,
            (
                *_LAWS,
                v.Need(lambda o, w: o.exists(w.g)),
                v.Need(lambda o, w: _quota(o, w, "g") >= 1, abilities.QUOTA_POSITIVE),
            ),
            {**_STATE, "g": v.POINT, **v.scalars("others", "own", "ahead", "k", "visit", "base", "owned")},
            _waiting(kernel),
        ),
        (
            *_SUMS,
            *_POSITION,
            v.Clause("r waits", lambda o, w: o.pick(w.queued, w.g, False)),
            v.Clause("none was let in since", lambda o, w: v.same(w.others, 0) & v.same(w.own, 0)),
            v.Clause("those before r", lambda o, w: (w.ahead >= 0) & v.same(w.k, w.ahead + 1)),
            v.Clause("r's group is in its turn, or not", _begins),
        ),
        (
            *_SUMS,
            *_POSITION,
            v.Clause("r waits", lambda o, w: o.pick(w.queued, w.g, False)),
            v.Clause(
                "the turn is as far as the group has had picks",
                lambda o, w: v.implies(o, _in_turn(o, w), v.same(w.visit, w.taken)),
            ),
            v.Clause("and has not begun out of it", lambda o, w: v.implies(o, w.visit > 0, _in_turn(o, w))),
            v.Clause("0 <= visit", lambda o, w: w.visit >= 0),
            v.Clause("others, and those to come, are at most R (N - g)", _room),
            v.Clause("own >= (R - 1) g and the turn", lambda o, w: w.own + _quota(o, w, "g") >= w.owned + w.visit),
            v.Clause("own + ahead < k", lambda o, w: w.own + w.ahead < w.k),
            v.Clause("ahead >= 0", lambda o, w: w.ahead >= 0),
        ),
        (
            v.Clause("others <= R (N - g)", lambda o, w: w.others <= w.base),
            v.Clause("own >= (R - 1) g", lambda o, w: w.own >= w.owned - _quota(o, w, "g")),
            v.Clause("own < k", lambda o, w: w.own < w.k),
        ),
    )


def claims(kernel: v.Functions = weighted_round_robin) -> tuple[v.Claim, ...]:
    """Return what is proved of the rule; `kernel` holds its functions."""
    return (_serves(kernel), _round(kernel), _turns(kernel))
