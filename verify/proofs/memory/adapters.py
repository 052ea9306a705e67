"""LoRA adapters' slots, for any number of adapters and requests: one is free in time, since one adapter drains.

Vectors are over adapters.  `left` is the most tokens that a running request of each may still produce, `d` the adapter
that drains; `t` counts the steps in which all of the batch decoded since a request first lacked a slot.  In other steps
some decode and some do not.  A step after which an adapter is done ends the wait, so none of those is in the system.
"""

from types import SimpleNamespace
from unittest.mock import patch

import attrs

from fairsched.model.algebra import Algebra
from fairsched.model.request import Prompt, Request
from fairsched.model.theorem import SLOTS_RESPECTED
from fairsched.model.worker import WorkerState
from fairsched.policies.catalog import FCFS
from fairsched.policies.local import LORA_DRAIN, LORA_PAST, AdapterSlots
from fairsched.policies.orders import QueuedRequest
from fairsched.verify import logic as v
from fairsched.verify.conformance import WorkerPlay, admitted
from fairsched.verify.proofs.kernels import adapters

SLOT_THEOREMS = (LORA_DRAIN, LORA_PAST)

_ADMISSION = {"p": v.POINT, "tokens": v.SCALAR}
_ADMITTED = (v.Need(lambda o, w: o.exists(w.p)), v.Need(lambda o, w: w.tokens >= 1))
_STEP = {"now": v.VECTOR}
_NONE_ENDS = v.Need(lambda o, w: v.implies(o, w.loaded, w.now >= 1))


def _draining(o: Algebra, w: v.World) -> v.Term:
    """Return what the adapter that drains may still produce."""
    return o.pick(w.left, w.d, 0)


def slots_system(kernel: v.Functions = adapters) -> v.System:
    """Return the adapters that are loaded, while a request lacks a slot."""

    def admit(o: Algebra, w: v.World) -> v.Written:
        longest = o.maximum(o.pick(w.left, w.p, 0), w.tokens)
        return {"left": o.put(w.left, w.p, longest)}

    def past(o: Algebra, w: v.World) -> v.Written:
        return {**admit(o, w), "d": w.first}

    def decide(o: Algebra, w: v.World) -> v.Written:
        return {"first": kernel.drains(o, w.left, w.loaded)}

    def decode(o: Algebra, w: v.World) -> v.Written:
        return {"left": w.now, "t": w.t + 1}

    may = v.Need(lambda o, w: o.pick(kernel.goes_past(o, w.left, w.loaded, w.first), w.p, False))
    loaded = v.Need(lambda o, w: o.pick(w.loaded, w.p, False))
    sooner = v.Need(lambda o, w: v.implies(o, w.loaded, w.now <= w.left - 1))
    no_later = v.Need(lambda o, w: v.implies(o, w.loaded, w.now <= w.left))
    return v.System(
        "adapter slots",
        {"L": v.SCALAR},
        (),
        {"left": v.VECTOR, "loaded": v.MASK, "d": v.POINT, "t": v.SCALAR},
        (
            v.Event(
                "admit past it", past, _ADMISSION, (*_ADMITTED, may), (kernel.goes_past, kernel.drains), decides=decide
            ),
            v.Event("admit of any", admit, _ADMISSION, (*_ADMITTED, loaded), excluded_by=SLOTS_RESPECTED),
            v.Event("all decode", decode, _STEP, (sooner, _NONE_ENDS)),
            v.Event("some decode", lambda o, w: {"left": w.now}, _STEP, (no_later, _NONE_ENDS)),
        ),
    )


_RUNS = (
    v.Clause("what is loaded may produce a token", lambda o, w: v.implies(o, w.loaded, w.left >= 1)),
    v.Clause("the adapter that drains is loaded", lambda o, w: o.pick(w.loaded, w.d, False)),
)
_STARTS = (
    *_RUNS,
    v.Clause("t = 0", lambda o, w: v.same(w.t, 0)),
    v.Clause("L is what the adapter that drains may produce", lambda o, w: v.same(_draining(o, w), w.L)),
)
_HOLDS = (*_RUNS, v.Clause("what that is now, and the steps, are at most L", lambda o, w: _draining(o, w) + w.t <= w.L))


def _past_claim(kernel: v.Functions) -> v.Claim:
    """`past` is what the kernel says of `left_now` and `loaded_now`, where `drained` is the adapter that drains."""

    def decide(o: Algebra, w: v.World) -> v.Written:
        return {"first": kernel.drains(o, w.left_now, w.loaded_now)}

    def ask(o: Algebra, w: v.World) -> v.Written:
        seen = {"left": w.left_now, "loaded": w.loaded_now, "drained": w.first}
        return {**seen, "past": kernel.goes_past(o, w.left_now, w.loaded_now, w.first)}

    def all_others(o: Algebra, w: v.World) -> v.Term:
        return v.implies(o, w.loaded, w.past | v.only(o, w.left, w.drained))

    return v.one_step(
        LORA_PAST,
        "adapter slots, which may go past",
        {"left": v.VECTOR, "loaded": v.MASK, "past": v.MASK, "drained": v.POINT},
        v.Event(
            "ask",
            ask,
            {"left_now": v.VECTOR, "loaded_now": v.MASK},
            (lambda o, w: o.exists(w.first),),
            (kernel.goes_past, kernel.drains),
            decides=decide,
        ),
        (
            v.Clause("none that is not loaded", lambda o, w: v.implies(o, w.past, w.loaded)),
            v.Clause("all but the one that drains", all_others),
            v.Clause("but not that one", lambda o, w: o.pick(o.where(w.past, False, True), w.drained, True)),
            v.Clause(
                "which is done first", lambda o, w: v.implies(o, w.loaded, w.left >= o.pick(w.left, w.drained, 0))
            ),
        ),
    )


def claims(kernel: v.Functions = adapters) -> tuple[v.Claim, ...]:
    """Return the theorems about slots whose kernel functions are `kernel`'s."""
    bounded = v.Clause("t <= L - 1", lambda o, w: w.t <= w.L - 1)
    return (v.Claim(LORA_DRAIN, slots_system(kernel), _STARTS, _HOLDS, (bounded,)), _past_claim(kernel))


def witnesses() -> tuple[v.Witness, ...]:
    """Return two adapters with three and five tokens left; a request of the second goes past, and two steps end
    none."""
    alone = slots_system()
    load = v.Event("load", lambda o, w: {"left": w.now, "loaded": w.now >= 1, "d": w.p}, {**_STEP, "p": v.POINT})
    steps: tuple[v.RunStep, ...] = (
        ("load", {"now": (3, 5), "p": 0}),
        (v.BEGIN, {}),
        ("admit past it", {"p": 1, "tokens": 9}),
        ("all decode", {"now": (2, 8)}),
        ("all decode", {"now": (1, 7)}),
    )
    history = attrs.evolve(alone, events=(*alone.events, load))
    return (v.Witness(claims()[0], 2, {"L": 3}, steps, 2, measure=lambda w: int(w.t), history=history),)


# --- what is false ----------------------------------------------------------------------------------------------------


class _Undrained(AdapterSlots):
    """Requests of all loaded adapters go past one that lacks a slot."""

    def lacks(self, entry: QueuedRequest) -> bool:
        lacks = super().lacks(entry)
        self.open = None
        return lacks and entry.request.adapter not in self._loaded()


def waited(slots: type[AdapterSlots], steps: int, output_tokens: int) -> int:
    """Return for how many steps the only request of an adapter waits for the one slot, while of another one comes
    often."""
    play, came = WorkerPlay(FCFS(), WorkerState(0, 1_000, adapter_slots=1)), 0
    with patch("fairsched.policies.local.admission.AdapterSlots", slots):
        for step in range(steps):
            due = ["popular"] if step % (output_tokens // 2) == 0 else ["rare"] if step == 1 else []
            for adapter in due:
                play.arrive(Request(came, 0, step, Prompt(1), output_tokens, adapter=adapter), output_tokens, step)
                came += 1
            if 1 in admitted(play.step(step)):
                return step - 1
    return steps


def _lets_it_in(w: SimpleNamespace) -> v.Shown:
    return {"let in within two outputs": waited(_Undrained, w.steps, w.output_tokens) <= 2 * w.output_tokens}


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Return what happens if none drains."""
    return (
        v.refuted(
            "F-LORA-1",
            "a request that lacks a slot for its adapter has one in time if requests of loaded adapters go past it",
            "engines that keep an adapter as long as requests of it run; this library",
            _lets_it_in,
            {"steps": 200, "output_tokens": 8},
            variant="passing over without draining",
            instead=LORA_DRAIN.id,
            text="a request of a popular adapter comes before the last one ends: the slot is never free",
        ),
    )
