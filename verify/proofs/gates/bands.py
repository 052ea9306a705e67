"""Priority bands with a guaranteed share, for any number of bands and clients: a lag and both its sides.

Vectors are over bands.  All amounts are scaled as the kernel's `gain` and `cost` are: what a charge counts between a
band and those below it.  R and V are what may still be charged to a band, and to those below it, without another look
at the gate, at most `most` (A_k U) and `below` (g_k U); K and J are what was charged to those below and to the band
itself and will be given back, at most `back`.  X and S are what band and those below it were charged since the interval
began.

Which bands wait, of which a request may go, and below which none waits is the environment's in each event: bands and
clients come and go as they like.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np

from fairsched.model.algebra import NO_GROUP, NO_SCORE, Algebra, Ints
from fairsched.model.theorem import (
    BACKLOGGED_DURING,
    FLOOR_COVERS,
    GATE_RESPECTED,
    MEM_RESERVE,
    NOTHING_REFUNDED,
    Theorem,
)
from fairsched.policies import gates
from fairsched.verify import logic as v
from fairsched.verify.proofs.kernels import bands

# --- what may happen ------------------------------------------------------------------------------------------------

_PARAMETERS = {**v.vectors("rank", "most", "below", "back", "floor", "lag0"), "f": v.POINT}
_LAWS = (
    v.Need(lambda o, w: (w.most >= 0) & (w.below >= 0) & (w.back >= 0) & (w.floor >= 0)),
    v.Need(lambda o, w: o.exists(w.f)),
)
_FIELDS = v.vectors("lag", "R", "V", "K", "J", "X", "S")
_CHARGE = v.vectors("gain", "cost")
_ADMISSION = {**_CHARGE, **v.vectors("r", "v", "k", "j"), **dict.fromkeys(("waiting", "ready", "alone"), v.MASK)}


def _not_negative(*names: str) -> v.Need:
    return v.Need(lambda o, w: _all_of(*(getattr(w, name) >= 0 for name in names)))


def _all_of(first: v.Term, *others: v.Term) -> v.Term:
    for other in others:
        first = first & other
    return first


def _of_one(o: Algebra, w: v.World) -> v.Term:
    """Only the band itself gains, and only to bands above it is it a cost."""
    itself, above = v.only(o, w.lag, w.p), w.rank > o.pick(w.rank, w.p, 0)
    return o.where(itself, True, v.same(w.gain, 0) & v.same(w.r, 0)) & o.where(
        above, True, v.same(w.cost, 0) & v.same(w.v, 0)
    )


def _is_reserved(o: Algebra, w: v.World) -> v.Term:
    """What is charged now, was reserved and is reserved now is at most U, of the band and of those below a band."""
    itself, above = v.only(o, w.lag, w.p), w.rank > o.pick(w.rank, w.p, 0)
    own = v.implies(o, itself, w.gain + w.R + w.r <= w.most)
    return own & v.implies(o, above, w.cost + w.V + w.v <= w.below)


def _comes_back(o: Algebra, w: v.World) -> v.Term:
    of_charge = (w.k <= w.cost) & (w.j <= w.gain)
    return of_charge & (w.K + w.k <= w.back) & (w.J + w.j <= w.back)


_ADMITTED = (
    _not_negative("gain", "cost", "r", "v", "k", "j"),
    v.Need(_of_one),
    v.Need(_comes_back),
    v.Need(_is_reserved, MEM_RESERVE),
)
_RESERVED = v.Need(lambda o, w: (w.gain <= w.R) & (w.cost <= w.V), MEM_RESERVE)


def bands_system(
    kernel: v.Functions = bands, *, held: tuple[v.Need, ...] = (), seen: tuple[v.Need, ...] = ()
) -> v.System:
    """The bands; `held` are needs of every charge, `seen` those of an admission."""

    def charge(o: Algebra, w: v.World) -> v.Written:
        lag = kernel.charged(o, w.lag, w.alone, w.gain, w.cost, w.floor)
        return {"lag": lag, "X": w.X + w.gain, "S": w.S + w.cost}

    def admit(o: Algebra, w: v.World) -> v.Written:
        return {**charge(o, w), "R": w.R + w.r, "V": w.V + w.v, "K": w.K + w.k, "J": w.J + w.j}

    def choose(o: Algebra, w: v.World) -> v.Written:
        return {"p": kernel.choose(o, w.lag, w.waiting, w.ready, w.alone, w.rank)}

    def decode(o: Algebra, w: v.World) -> v.Written:
        return {**charge(o, w), "R": w.R - w.gain, "V": w.V - w.cost}

    def refund(o: Algebra, w: v.World) -> v.Written:
        lag = kernel.refunded(o, w.lag, w.gain, w.cost, w.floor)
        given = {"X": w.X - w.gain, "S": w.S - w.cost, "K": w.K - w.cost, "J": w.J - w.gain}
        return {"lag": lag, **given}

    exists = v.Need(lambda o, w: o.exists(w.p))
    kernels = (kernel.choose, kernel.charged)
    return v.System(
        "priority bands",
        _PARAMETERS,
        _LAWS,
        _FIELDS,
        (
            v.Event(
                "admit",
                admit,
                _ADMISSION,
                (*_ADMITTED, *held, *seen),
                kernels,
                decides=choose,
                happens=lambda o, w: o.exists(w.p),
            ),
            v.Event(
                "admit past the gate",
                admit,
                {**_ADMISSION, "p": v.POINT},
                (exists, *_ADMITTED, *held),
                (kernel.charged,),
                excluded_by=GATE_RESPECTED,
            ),
            v.Event(
                "charge what was reserved",
                decode,
                {**_CHARGE, "alone": v.MASK},
                (_not_negative("gain", "cost"), _RESERVED, *held),
                (kernel.charged,),
            ),
            v.Event(
                "finish",
                lambda o, w: {"R": w.R - w.gain, "V": w.V - w.cost},
                _CHARGE,
                (_not_negative("gain", "cost"), _RESERVED),
            ),
            v.Event(
                "refund",
                refund,
                _CHARGE,
                (_not_negative("gain", "cost"), lambda o, w: (w.cost <= w.K) & (w.gain <= w.J)),
                (kernel.refunded,),
            ),
        ),
    )


# --- what holds -----------------------------------------------------------------------------------------------------

RANGE = (
    v.Clause("lag + R + K <= A U + B", lambda o, w: w.lag + w.R + w.K <= w.most + w.back),
    v.Clause("-F <= lag", lambda o, w: w.lag >= 0 - w.floor),
    v.Clause("0 <= R <= A U", lambda o, w: (w.R >= 0) & (w.most >= w.R)),
    v.Clause("0 <= V <= g U", lambda o, w: (w.V >= 0) & (w.below >= w.V)),
    v.Clause("0 <= K, J <= B", lambda o, w: (w.K >= 0) & (w.back >= w.K) & (w.J >= 0) & (w.back >= w.J)),
)
NOTHING_YET = (
    v.Clause(
        "nothing was charged",
        lambda o, w: v.same(w.lag, 0) & v.same(w.R, 0) & v.same(w.V, 0) & v.same(w.K, 0) & v.same(w.J, 0),
    ),
)
_STARTS = (
    *RANGE,
    v.Clause("X = 0, S = 0", lambda o, w: v.same(w.X, 0) & v.same(w.S, 0)),
    v.Clause("lag = lag0", lambda o, w: v.same(w.lag, w.lag0)),
)
_BEGAN = v.Clause("-F <= lag0 <= A U + B", lambda o, w: (w.lag0 >= 0 - w.floor) & (w.lag0 <= w.most + w.back))
_IN_RANGE = v.Clause("-F <= lag <= A U + B", lambda o, w: (w.lag >= 0 - w.floor) & (w.lag <= w.most + w.back))
_BELOW_WAITS = v.Need(lambda o, w: o.where(o.pick(w.alone, w.f, False), False, True), BACKLOGGED_DURING)
_BAND_WAITS = v.Need(lambda o, w: o.pick(w.waiting & w.ready, w.f, True), BACKLOGGED_DURING)


def _at_f(o: Algebra, w: v.World, name: str) -> Any:
    return o.pick(getattr(w, name), w.f, 0)


def _share(o: Algebra, w: v.World) -> v.Term:
    bound = _at_f(o, w, "most") + _at_f(o, w, "back") + _at_f(o, w, "floor")
    return _at_f(o, w, "X") - _at_f(o, w, "S") <= bound


def _both(o: Algebra, w: v.World) -> v.Term:
    """(A + g) U - 1."""
    return _at_f(o, w, "most") + _at_f(o, w, "below") - 1


def _later(o: Algebra, w: v.World) -> v.Term:
    """What those below had and may still have."""
    return _at_f(o, w, "S") - _at_f(o, w, "X") + _at_f(o, w, "V") <= _both(o, w)


def _free(o: Algebra, w: v.World) -> v.Term:
    """What those below had and will have without being counted is at most what the lag may be."""
    lag, floor = _at_f(o, w, "lag"), _at_f(o, w, "floor")
    uncounted = o.maximum(_at_f(o, w, "V") - lag - floor, 0)
    return _at_f(o, w, "S") - _at_f(o, w, "X") + lag + uncounted <= _at_f(o, w, "most")


def _gate_claim(kernel: v.Functions) -> v.Claim:
    """`goes` is the band that is let go."""

    def choose(o: Algebra, w: v.World) -> v.Written:
        return {"goes": kernel.choose(o, w.lag, w.waiting, w.ready, w.alone, w.rank)}

    def eligible(w: v.World) -> v.Term:
        return w.waiting & w.ready & (w.alone | (w.lag <= 0))

    def highest(o: Algebra, w: v.World) -> v.Term:
        return v.implies(o, eligible(w), v.spread(o.exists(w.goes), w.lag) & (w.rank <= o.pick(w.rank, w.goes, 0)))

    def not_idle(o: Algebra, w: v.World) -> v.Term:
        return v.implies(o, w.waiting & w.ready & w.alone, v.spread(o.exists(w.goes), w.lag))

    return v.one_step(
        bands.BAND_GATE,
        "priority bands, the choice",
        {"goes": v.POINT},
        v.Event("choose", choose, kernels=(kernel.choose,)),
        (
            v.Clause("it waits and need not yield", lambda o, w: o.pick(eligible(w), w.goes, True)),
            v.Clause("none above it is such a band", highest),
            v.Clause("one goes if one waits below which none waits", not_idle),
        ),
        parameters={**v.vectors("lag", "rank"), **dict.fromkeys(("waiting", "ready", "alone"), v.MASK)},
    )


def _counted_claim(theorem: Theorem, event: v.Event, counted: v.Formula) -> v.Claim:
    """Return that the lag, which `was` what it was before an event, is what is `counted` of it, down to the floor."""

    def down_to_the_floor(o: Algebra, w: v.World) -> v.Term:
        exact = counted(o, w)
        return v.same(w.lag, exact) | (v.same(w.lag, 0 - w.floor) & (exact <= 0 - w.floor))

    return v.one_step(
        theorem,
        f"priority bands, a {event.name}",
        v.vectors("lag"),
        event,
        (v.Clause("counted to the floor, and no more forgotten", down_to_the_floor),),
        parameters={**v.vectors("was", "gain", "cost", "floor"), "alone": v.MASK},
        laws=(lambda o, w: w.floor >= 0, _not_negative("gain", "cost")),
    )


def _count_claim(kernel: v.Functions) -> v.Claim:
    def charge(o: Algebra, w: v.World) -> v.Written:
        return {"lag": kernel.charged(o, w.was, w.alone, w.gain, w.cost, w.floor)}

    def counted(o: Algebra, w: v.World) -> v.Term:
        return o.where(w.alone, o.minimum(w.was, 0), w.was + w.gain) - w.cost

    return _counted_claim(bands.BAND_COUNT, v.Event("charge", charge, kernels=(kernel.charged,)), counted)


def _refund_claim(kernel: v.Functions) -> v.Claim:
    def refund(o: Algebra, w: v.World) -> v.Written:
        return {"lag": kernel.refunded(o, w.was, w.gain, w.cost, w.floor)}

    event = v.Event("refund", refund, kernels=(kernel.refunded,))
    return _counted_claim(bands.BAND_REFUND, event, lambda o, w: w.was + w.cost - w.gain)


def claims(kernel: v.Functions = bands) -> tuple[v.Claim | v.ArithmeticClaim | v.SampledClaim, ...]:
    """The theorems about the bands whose kernel functions are `kernel`'s."""
    no_refunds = v.Need(lambda o, w: w.back <= 0, NOTHING_REFUNDED)
    covers = v.Need(lambda o, w: w.floor >= w.below, FLOOR_COVERS)
    charges = v.Need(lambda o, w: o.pick(w.most, w.f, 1) >= 1)
    return (
        v.Claim(bands.BAND_RANGE, bands_system(kernel), NOTHING_YET, RANGE, (_IN_RANGE,)),
        v.Claim(
            bands.BAND_SHARE,
            bands_system(kernel, held=(_BELOW_WAITS,)),
            _STARTS,
            (
                *RANGE,
                _BEGAN,
                v.Clause(
                    "X - S <= lag - lag0",
                    lambda o, w: _at_f(o, w, "X") - _at_f(o, w, "S") <= _at_f(o, w, "lag") - _at_f(o, w, "lag0"),
                ),
            ),
            (v.Clause("X - S <= A U + B + F", _share),),
        ),
        v.Claim(
            bands.BAND_FIRST,
            bands_system(kernel, seen=(_BAND_WAITS,)).with_laws(no_refunds, covers, charges),
            _STARTS,
            (
                *RANGE,
                _BEGAN,
                v.Clause("what is not counted is bounded", _free),
                v.Clause("S - X + V <= (A + g) U - 1", _later),
            ),
            (v.Clause("S - X <= (A + g) U - 1", lambda o, w: _at_f(o, w, "S") - _at_f(o, w, "X") <= _both(o, w)),),
        ),
        late(kernel),
        _gate_claim(kernel),
        _count_claim(kernel),
        _refund_claim(kernel),
        within(),
    )


# --- what other bands are charged while a request waits ---------------------------------------------------------------


@v.arithmetic(
    bands.BAND_LATE,
    ("s", "A", "U", "own", "X", "S", "below", "A_j", "F", "X_j", "S_j", "below_j", "above"),
    *v.at_least(1, "s", "U"),
    *v.at_least(0, "A", "own", "below", "A_j", "F", "below_j"),
    v.Condition(lambda w: w.s <= bands.PERCENT),
    v.Condition(lambda w: (w.A * w.own >= w.X) & (w.s * w.below <= w.S)),
    v.Condition(lambda w: w.S - w.X <= w.A * w.U + bands.PERCENT * w.U - 1),
    v.Condition(lambda w: (w.X_j >= w.s * w.above) & (w.S_j <= (bands.PERCENT - w.s) * w.below_j)),
    v.Condition(lambda w: w.X_j - w.S_j <= w.A_j * w.U + w.F),
    relaxed=True,
    attained=lambda: (max(n for n in range(200) if 10 * n - 20 * 5 < 120 * 9), bands.below_most(5, 9, 10, 20)),
)
def late(w: SimpleNamespace, functions: v.Functions = bands) -> v.Shown:
    """A band of share s, the shares below which come to A, and one above it; X and S count what BAND-first and
    BAND-share say of them, where a charge to a band counts at least s of the band that waits and of those below it,
    at most A of its own."""
    most_below = functions.below_most(w.own, w.U, w.s, w.A)
    most_above = functions.above_most(w.below_j, w.U, w.s, w.A_j, w.F)
    return {
        "less than one more below": w.s * (w.below - most_below - 1) < 0,
        "those below": w.below < most_below + 1,
        "less than one more above": w.s * (w.above - most_above - 1) < 0,
        "one above": w.above < most_above + 1,
    }


# --- within a band ----------------------------------------------------------------------------------------------------

_CLIENTS = 4
_EVENTS = st.tuples(
    st.sampled_from(["joins", "goes", "goes", "decodes"]), st.integers(0, _CLIENTS - 1), st.integers(1, 9)
)


@v.sampled(bands.BAND_WITHIN, st.fixed_dictionaries({"events": st.lists(_EVENTS, max_size=40)}))
def within(w: SimpleNamespace, gate: type[gates.BandGate] = gates.BandGate) -> v.Shown:
    """Two clients in each of two bands, beside a deficit gate for each band which is told of its own clients only."""
    shipped = gate(quantum=5, bands="high:60,low:40", kept=5)
    inner, state = shipped.inner, shipped.init()
    alone, waiting = [inner.init(), inner.init()], dict.fromkeys(range(_CLIENTS), 0)
    for client in range(_CLIENTS):
        state = shipped.configured(state, client, 1 + client, (("high" if client % 2 else "low", 1),))
        alone = [inner.configured(own, client, 1 + client) for own in alone]
    same_choice = True

    def heads(band: int | None = None) -> Ints:
        seen = [count and band in (None, 1 - client % 2) for client, count in waiting.items()]
        return np.where(seen, -np.arange(_CLIENTS), NO_SCORE)

    for event, client, tokens in w.events:
        band = 1 - client % 2
        if event == "joins":
            state = shipped.joined(state, client, heads(), waiting[client] > 0)
            alone[band] = inner.joined(alone[band], client, heads(band), waiting[client] > 0)
            waiting[client] += 1
        elif event == "decodes" and state.inside[band].known[client]:
            state = shipped.decoded(state, (client,), (tokens,))
            alone[band] = inner.decoded(alone[band], (client,), (tokens,))
        elif event == "goes":
            turn = shipped.begin(state, heads())
            chosen = turn.choose(heads())
            if chosen == NO_GROUP:
                same_choice &= not any(waiting.values())
                continue
            band = 1 - chosen % 2
            own = inner.begin(alone[band], heads(band))
            same_choice &= own.choose(heads(band)) == chosen
            waiting[chosen] -= 1
            for each in (turn, own):
                each.admit(chosen, tokens, tokens, not waiting[chosen])
            state, alone[band] = shipped.after(state, turn), inner.after(alone[band], own)
    alike = all(bool((kept.q == own.q).all()) for kept, own in zip(state.inside, alone, strict=True))
    return {"the client of the band that goes, and one": same_choice, "deficits": alike}


class _AllSeen(gates.bands.BandAdmissions):
    """Each band's gate sees all that wait."""

    def inside(self, band: int) -> gates.AdmissionTransaction:
        if band not in self.begun:
            self.begun[band] = self.gate.inner.begin(self.state.inside[band], self.heads)
        return self.begun[band]


class _AllSeenGate(gates.BandGate):
    def begin(self, state: gates.bands.BandState, heads: Ints) -> gates.bands.BandAdmissions:
        return _AllSeen(self, state, heads)


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""
    return (
        v.Bug("clients of other bands hold a band's refill back", within(_AllSeenGate)),
        *v.reworded_bugs(
            bands,
            ("what those below have in flight is forgotten", late, "below_most", "lower + PERCENT", "lower"),
            ("those below have their share of all", late, "below_most", "lower * own", "own"),
            ("a band above has the share of the one that waits", late, "above_most", "PERCENT - share", "share"),
            ("what was saved is forgotten", late, "above_most", " + floor", ""),
        ),
    )


# --- runs that attain the bounds --------------------------------------------------------------------------------------
# Two bands of equal shares (A = g = 1), U = 5, F = 5: what a charge counts is what it is.

_HIGH, _LOW = 0, 1
_U = 5
_BOTH = {"waiting": (1, 1), "ready": (1, 1), "alone": (0, 1)}


def _request(band: int, charge: int, later: int, **seen: Any) -> tuple[v.RunStep, ...]:
    """A request of a band: so much at once, and so much later; there is none below the low one, which gains nothing."""
    facts = {**_BOTH, **seen, **dict.fromkeys(("gain", "r", "cost", "v", "k", "j"), (0, 0))}
    counted, more = ("gain", "r") if band == _HIGH else ("cost", "v")
    none = {"gain": (0, 0), "cost": (0, 0), "alone": facts["alone"]}
    return (
        ("admit", {**facts, counted: (charge, 0), more: (later, 0)}),
        ("charge what was reserved", {**none, counted: (later, 0)}),
    )


_ONLY_LOW = {"waiting": (0, 1)}
_PARAMETERS_OF_RUN: dict[str, int | tuple[int, ...]] = {
    **{"rank": (1, 0), "most": (_U, 0), "below": (_U, 0), "back": (0, 0), "floor": (_U, 0)},
    "f": _HIGH,
}


def witnesses() -> tuple[v.Witness, ...]:
    """One run a bound."""
    named = {claim.theorem.id: claim for claim in claims() if isinstance(claim, v.Claim)}
    history = bands_system()
    start: v.RunStep = (v.BEGIN, {})

    def witness(theorem: str, steps: tuple[v.RunStep, ...], bound: int, **more: Any) -> v.Witness:
        return v.Witness(named[theorem], 2, _PARAMETERS_OF_RUN, steps, bound, {"lag0": "lag"}, **more)

    high, low = partial(_request, _HIGH), partial(_request, _LOW)
    # Alone, the low band goes down to the floor; then the high one may have that, and U more.
    share = (*low(2, 3, **_ONLY_LOW), start, *high(1, 0), *high(1, 0), *high(3, 0), *high(2, 3))
    # The high band goes up to U; the low one has that but for 1, and U more.
    first = (*high(2, 3), start, *low(4, 0), *low(2, 3))
    return (
        witness("BAND-range", (*high(2, 3),), _U, measure=lambda w: int(w.lag[_HIGH])),
        witness("BAND-share", share, 2 * _U, measure=lambda w: int(w.X[_HIGH]) - int(w.S[_HIGH]), history=history),
        witness("BAND-first", first, 2 * _U - 1, measure=lambda w: int(w.S[_HIGH]) - int(w.X[_HIGH]), history=history),
    )
