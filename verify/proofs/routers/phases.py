"""Routers of split phases: flips leave no phase without a worker and starve none (P-TI-4, P-TI-5), what one server's
first tokens do when arrivals are squeezed (P-DS-2), and that pulled KV never passes the memory there is (P-DS-3).

The shipped functions of flips are run on unknown integers: counts of workers that serve a phase, and loads.  P-DS-2 is
Lindley's recursion, one request after the other, for any number of them.  P-DS-3 is KV-transit.
"""

from types import SimpleNamespace
from typing import Any

import attrs
from immutables import Map

from fairsched.model.decision import WorkerLoad
from fairsched.policies.routers.phases import ONE_SERVER, P_DS_2, P_DS_3
from fairsched.verify.logic import ArithmeticClaim, Bug, Claim, Condition, Shown, arithmetic, at_least, if_then
from fairsched.verify.proofs.kernels import flips
from fairsched.verify.proofs.memory import books_claim

# --- flips ------------------------------------------------------------------------------------------------------------


def _fewest() -> tuple[int, int]:
    """Return two workers for prompts and one for outputs: one of the two may flip, and the other may not."""
    serving = (2, 1)
    assert flips.may_flip(serving[0] - 1, 1, 1, 1)
    serving = flips.flipped(serving, 0)
    assert not flips.may_flip(serving[0] - 1, 1, 1, 1)
    return min(serving), 1


@arithmetic(
    flips.P_TI_4,
    ("prompts", "outputs", "phase", "waiting", "for_ns", "patience_ns"),
    *at_least(1, "prompts", "outputs"),
    *at_least(0, "for_ns", "patience_ns"),
    Condition(lambda w: (w.phase >= 0) & (w.phase <= 1)),
    attained=_fewest,
)
def phases_kept(w: SimpleNamespace, may: Any = flips.may_flip, after: Any = flips.flipped) -> Shown:
    """Before a flip each phase has a worker; one of `phase` may flip, or another one becomes ready for it."""
    ready = flips.arrived((w.prompts, w.outputs), w.phase)
    shown = {
        "a worker that is ready takes none away": (ready[0] >= w.prompts) & (ready[1] >= w.outputs),
        "and there is one more": ready[0] + ready[1] == w.prompts + w.outputs + 1,
    }
    others = (w.prompts if w.phase == 0 else w.outputs) - 1
    if not may(others, w.waiting, w.for_ns, w.patience_ns):
        return shown
    prompts, outputs = after((w.prompts, w.outputs), w.phase)
    return shown | {
        "a phase keeps a worker": (prompts >= 1) & (outputs >= 1),
        "one worker flips": prompts + outputs == w.prompts + w.outputs - 1,
    }


@arithmetic(
    flips.P_TI_5,
    ("now_ns", "ready_ns", "switch_ns", "waits", "runs", "tokens", "free", "drains"),
    *at_least(0, "now_ns", "switch_ns", "waits", "runs", "tokens", "free"),
    Condition(lambda w: w.free <= 100),
)
def nothing_new(w: SimpleNamespace, serve: Any = flips.as_they_serve, advance: Any = flips.advanced) -> Shown:
    """Worker 0 flips: it drains, or waits until it is ready; worker 1 has work of the other phase."""
    ready_ns = None if w.drains >= 1 else w.ready_ns
    under_way = flips.Flips(under_way=Map({0: flips.Flip("decode", ready_ns)}))
    flipping = WorkerLoad(0, w.waits, w.runs, w.tokens, w.free, 100, "prefill")
    loads = (flipping, WorkerLoad(1, 1, 1, 50, 10, 100, "decode"), WorkerLoad(2, 1, 1, 50, 10, 100, "prefill"))
    serving = serve(under_way, loads)
    after = advance(under_way, loads, w.now_ns, 0, 1, w.switch_ns)
    shown: dict[str, Any] = {"it is given nothing": [load.worker for load in serving] == [1, 2]}
    idle = (w.waits == 0) & (w.runs == 0) & (w.tokens == 0) & (w.free == 100)
    if ready_ns is None:
        shown["as long as it has work it drains"] = (0 in after.under_way) and if_then(
            after.under_way[0].ready_ns is not None, idle
        )
        if 0 in after.under_way and after.under_way[0].ready_ns is not None:
            shown["then it switches"] = after.under_way[0].ready_ns == w.now_ns + w.switch_ns
    elif 0 in after.under_way:
        shown["it serves in time"] = w.now_ns < w.ready_ns
    else:
        shown["not before it is ready"] = w.ready_ns <= w.now_ns
        shown["and then the other phase"] = after.roles.get(0) == "decode"
    return shown


# --- one server -------------------------------------------------------------------------------------------------------


@arithmetic(
    P_DS_2,
    ("waited", "squeezed", "service", "next_service", "gap", "less", "next_waits", "next_squeezed", "target"),
    *at_least(0, "waited", "service", "next_service", "gap", "less"),
    Condition(lambda w: w.waited <= w.squeezed),
    Condition(lambda w: w.less <= w.gap),
    # A request waits until the one before it is done, if that is not yet so when it comes.
    Condition(
        lambda w: (
            (w.next_waits >= 0)
            & (w.next_waits >= w.waited + w.service - w.gap)
            & ((w.next_waits == 0) | (w.next_waits == w.waited + w.service - w.gap))
        ),
        ONE_SERVER,
    ),
    Condition(lambda w: (w.next_squeezed >= 0) & (w.next_squeezed >= w.squeezed + w.service - w.less), ONE_SERVER),
)
def no_sooner(w: SimpleNamespace, shorter: bool = False) -> Shown:
    """Return a request and the next one, `gap` later, and `less` with arrivals squeezed; what holds of the first holds
    of the second.  With `shorter` prompts take less time at the higher rate, which nothing says."""
    saved = w.service if shorter else 0
    squeezed = w.next_squeezed - saved
    return {
        "the next waits no less": w.next_waits <= squeezed,
        "in time when squeezed, in time before": if_then(
            squeezed + w.next_service <= w.target, w.next_waits + w.next_service <= w.target
        ),
    }


# --- pulled KV --------------------------------------------------------------------------------------------------------


def claims() -> tuple[Claim | ArithmeticClaim, ...]:
    """About what ships."""
    return (phases_kept(), nothing_new(), no_sooner(), attrs.evolve(books_claim(), theorem=P_DS_3))


# --- seeded bugs ------------------------------------------------------------------------------------------------------


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    return (
        Bug(
            "the last worker of a phase may flip",
            phases_kept(may=lambda staying, *rest: flips.may_flip(staying + 1, *rest)),
        ),
        Bug("two workers flip at once", phases_kept(after=lambda s, p: flips.flipped(flips.flipped(s, p), p))),
        Bug("a worker that flips is still given requests", nothing_new(serve=lambda _, loads: loads)),
        Bug(
            "a worker switches that still has work",
            nothing_new(
                advance=lambda under_way, loads, now_ns, *rest: (
                    flips.Flips(Map({0: "decode"}))
                    if under_way.under_way[0].ready_ns is None
                    else flips.advanced(under_way, loads, now_ns, *rest)
                )
            ),
        ),
        Bug("prompts take less time at a higher rate", no_sooner(shorter=True)),
    )
