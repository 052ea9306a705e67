"""The false statements by name, each found in the rule that was printed and absent from the one that ships.

A refutation is *found* when a world breaks the printed variant, confirmed by the numpy and the exact interpretation of
the kernel (or by the shipped policy and worker themselves), and the true theorem about what ships is proved in the
same run.  CE1 to CE5 are about the deficit gate (DLPM), CV1 to CV3 about the counter gate (VTC); those about routers
stand beside their proofs (`fairsched.verify.proofs`).
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import msgspec

from fairsched.model.algebra import Algebra
from fairsched.model.pricing import price
from fairsched.model.request import Prompt, Request
from fairsched.model.theorem import LIFT_ON_JOIN, REJOIN_KEEPS_DEBT, Assumption, Theorem
from fairsched.model.worker import WorkerState
from fairsched.policies.catalog import DLPM
from fairsched.policies.gates import V_43, DeficitGate
from fairsched.policies.gates import deficit as gates_deficit
from fairsched.verify import logic as v
from fairsched.verify import proofs
from fairsched.verify.conformance import WorkerPlay, admitted
from fairsched.verify.proofs import SUITE, claims_of
from fairsched.verify.proofs.memory import staggered_as_printed
from fairsched.verify.solvers import Broken, Proved, Refuted, prove

# --- claims about gates that sound right and are false ----------------------------------------------------------------

deficit = v.module_of(DeficitGate)

SHIPPED_REFILL = "D-refill-serves"
"""The true statement about the shipped refill that CE3 and CE4 are the false ones of."""

_PARAMETERS = {"Q": v.VECTOR, "queued": v.MASK, "known": v.MASK}
_LAWS = (v.Need(lambda o, w: w.Q >= 1), v.Need(lambda o, w: v.implies(o, w.queued, w.known)))


def strong_work_conservation(kernel: v.Functions = deficit) -> v.Claim:
    """`fits` is whose head memory would hold; the first chosen that does not fit ends the admissions."""

    def decide(o: Algebra, w: v.World) -> v.Written:
        chosen = kernel.choose(o, w.q, w.queued, w.queued, w.score)
        return {"served": chosen, "entered": o.pick(w.fits, chosen, False)}

    served = v.Clause(
        "if a client waits whose head fits, one enters", lambda o, w: v.implies(o, w.queued & w.fits, w.entered)
    )
    return v.one_step(
        Theorem("CE2", "a client that waits and fits is not passed over for none", "strong work conservation", ()),
        "one admission",
        {"served": v.POINT, "entered": v.FLAG},
        v.Event("decide", decide, kernels=(kernel.choose,)),
        (served,),
        parameters={**_PARAMETERS, "q": v.VECTOR, "score": v.VECTOR, "fits": v.MASK},
        laws=(*_LAWS, lambda o, w: o.exists(kernel.choose(o, w.q, w.queued, w.queued, w.score))),
    )


def _eligible_after(name: str, what: str, refill: v.Rule, kernels: tuple[Any, ...] = ()) -> v.Claim:
    """After `refill`, waiting clients include one in credit; before it anything may be."""
    claimed = v.Clause("if a client waited, a waiting client has credit", lambda o, w: v.spread(w.claimed, w.q))

    def event(o: Algebra, w: v.World) -> v.Written:
        after = refill(o, w)
        eligible = o.any(deficit.in_credit(o, after["q"], w.queued))
        return {**after, "claimed": o.where(o.any(w.queued), eligible, True)}

    return v.one_step(
        Theorem(name, f"after {what}, if a client waits, a waiting client has credit", "rule 2 of the gate", ()),
        "one refill",
        {"q": v.VECTOR, "claimed": v.FLAG},
        v.Event("refill", event, kernels=kernels),
        (claimed,),
        parameters={**_PARAMETERS, "running": v.MASK},
        laws=_LAWS,
        closed_forms=True,
    )


def one_round(kernel: v.Functions = deficit) -> v.Claim:
    """Return a refill of one round, as printed."""

    def refill(o: Algebra, w: v.World) -> v.Written:
        return {"q": kernel.refill(o, w.q, w.queued, w.known, w.Q)}

    return _eligible_after("CE4", "one round of refill", refill, (kernel.refill_due, kernel.refill))


def _once_due(kernel: v.Functions, active: v.Formula) -> v.Rule:
    """Return all rounds of refill, once none of the active clients has credit."""

    def refill(o: Algebra, w: v.World) -> v.Written:
        due = kernel.refill_due(o, w.q, active(o, w))
        topped = kernel.refill_rounds(o, w.q, w.queued, w.known, w.Q)
        return {"q": o.where(v.spread(due, w.q), topped, w.q)}

    return refill


def active_means_running(kernel: v.Functions = deficit) -> v.Claim:
    """Return a refill that waits for every client that is queued or runs."""
    refill = _once_due(kernel, lambda o, w: w.queued | w.running)
    return _eligible_after("CE3", "a refill for which a client that only runs counts as active", refill)


def shipped_refill() -> v.Claim:
    """Return the same statement about what production runs, which is true."""
    return _eligible_after(SHIPPED_REFILL, "the shipped refill", _once_due(deficit, lambda o, w: w.queued))


def larger_of_both() -> v.ArithmeticClaim:
    """U as printed for VTC: the larger of a prompt's price and of the memory's price as outputs (CV2)."""

    def shows(w: SimpleNamespace) -> v.Shown:
        charged = price(w.input, w.w_p) + price(w.outputs, w.w_q)
        prompts, outputs = price(w.L, w.w_p), price(w.M, w.w_q)
        return {"charge + R <= max(w_p L, w_q M)": charged <= max(prompts, outputs)}

    return v.ArithmeticClaim(
        Theorem("CV2", "w_p p + w_q O <= max(w_p L, w_q M)", "VTC (OSDI'24), recalled", ()),
        ("M", "L", "w_p", "w_q", "input", "outputs"),
        (
            *v.at_least(1, "w_p", "w_q", "input"),
            v.Condition(lambda w: w.input <= w.L),
            *v.at_least(0, "outputs"),
            v.Condition(lambda w: w.input + w.outputs <= w.M),
        ),
        shows,
    )


def claims(kernel: v.Functions = deficit) -> tuple[v.Claim, ...]:
    """Return the false ones, where a saved counterexample finds them."""
    return (strong_work_conservation(kernel), active_means_running(kernel), one_round(kernel))


@attrs.frozen
class Refutation:
    """A false statement: what was claimed, the variant it is false of, a world that shows it, and what holds instead.

    `world` gives the saved world (None if there is none, and `text` says it all); `shows` whether it breaks the
    variant; `shipped` is the id of the theorem that is true of what ships.
    """

    id: str
    claim: str
    variant: str
    shipped: str
    text: str
    shows: Callable[[], bool]
    world: Callable[[], v.Document | v.WorldFile] | None = None


class RefutationEntry(msgspec.Struct, frozen=True):
    """A claim that is false of a variant: whether that was found, and its world as text or as a file to replay."""

    id: str
    claim: str
    variant: str
    found: bool
    replay: str | None


def _breaks(claim: v.WorldClaim, world: v.PlainWorld) -> bool:
    """Return whether some world breaks a claim about plain Python, and so does this one."""
    return isinstance(prove(claim), Refuted) and bool(v.broken(claim, world))


def _of_worlds(module: ModuleType, false: v.RefutedClaim) -> Refutation:
    theorem = false.claim.theorem
    return Refutation(
        theorem.id,
        theorem.statement,
        false.variant,
        false.shipped,
        false.text,
        partial(_breaks, false.claim, false.world),
        partial(v.world_document, false.claim, module.__name__, false.world),
    )


def _falls(theorem: str, without: Assumption, world: v.Document) -> bool:
    """Return whether the theorem falls without the assumption, and this run from its start ends in the conclusion's
    breach."""
    refuted = isinstance(prove(claims_of(SUITE)[theorem], dropped=frozenset({without})), Broken)
    return refuted and v.replay_counterexample(world).confirmed


def _world_of(claim: Callable[[], v.Claim]) -> v.Document:
    """Return the world in which the prover refutes a claim of this file."""
    verdict = prove(claim())
    assert isinstance(verdict, Broken)
    return v.counterexample_document(verdict.world, __name__)


def _run_from_start(
    theorem: Theorem, proofs: str, without: Assumption, broken: str, initial: dict[str, Any], events: list[v.Happening]
) -> v.Document:
    """Return a run of two clients, without an assumption of the theorem, that ends in the breach of its conclusion."""
    return v.Document(
        theorem=theorem.id,
        claims=f"fairsched.verify.proofs.gates.{proofs}",
        obligation="conclusion",
        broken=(broken,),
        clients=2,
        initial=initial,
        events=tuple(events),
        from_start=True,
        without=(without.name,),
    )


# --- CE1: coming back forgives debt ---------------------------------------------------------------------------------

_F, _G = 0, 1
CE1_CYCLES = 6
"""After six cycles g leads by 24: over 2(Q + U - 1) = 14, and over the printed 20."""


def _served(client: int, output: int, *, used: int) -> Iterator[v.Happening]:
    """Yield one input token, `output` output tokens reserved and `used` of them produced."""
    chosen = (1, 0) if client == _F else (0, 1)
    yield v.Happening("admit", {"x": 1, "r": 2 * output, "k": 0, "ready": chosen, "score": (0, 0)})
    yield v.Happening("decode", {"d": tuple(2 * used * entry for entry in chosen)})
    yield v.Happening("finish", {"p": client, "x": 2 * (output - used)})


def _rejoin_resets() -> v.Document:
    """Q = 1, M = 4, so U = 7: g's requests fill memory and come back at zero, f's stop after one token of two."""
    events: list[v.Happening] = []
    refill = v.Happening("refill")
    for cycle in range(CE1_CYCLES):
        events += [v.Happening("arrive as printed, at zero", {"p": _G}), refill, *_served(_G, 3, used=3)]
        events += [v.Happening("leave the queue", {"p": _G})]
        events += [refill, refill] if cycle else []
        events += _served(_F, 2, used=1)
    zeros = dict.fromkeys(("back", "q0", "q", "R", "K", "W", "P"), (0, 0))
    initial = {**zeros, "Q": (1, 1), "U": (7, 7), "f": _F, "g": _G, "queued": (1, 0), "known": (1, 1)}
    return _run_from_start(
        gates_deficit.D_42, "deficit", REJOIN_KEEPS_DEBT, "W_g - W_f <= 2(Q + U - 1) + B_f + B_g", initial, events
    )


# --- CE5: a request of a served client may wait for ever ------------------------------------------------------------

CE5_STEPS = 40


def _cold_request_waits() -> bool:
    """Let a request come in each step that matches five cached tokens; the one that matches none is never let in."""
    play, served = WorkerPlay(DLPM(), WorkerState(worker=0, capacity=8)), list[int]()
    cold = Request(0, 0, 0, Prompt.from_keys([-1, -2, -3, -4, -5, -6], block_tokens=1, tokens=6), 1)
    for step in range(CE5_STEPS):
        keys = [1, 2, 3, 4, 5, 10 + step]
        warm = Request(step + 1, 0, step, Prompt.from_keys(keys, block_tokens=1, tokens=6), 1)
        for request in (warm, cold) if step == 1 else (warm,):
            play.arrive(request, 1, step)
        served += admitted(play.step(step))
    return served == list(range(1, CE5_STEPS + 1)) and 0 in play.worker.queue


# --- CV1, CV2: constants that are too small -------------------------------------------------------------------------

CV1_WORLD = {"M": 7, "r1": 1, "r2": 2, "r3": 5}
"""Outputs 5, 2 and 1 of inputs 1 pass the check at M = 7; the jump is 1 + 2 x 8 = 17 where 2 M = 14."""
CV2_WORLD = {"M": 3, "L": 1, "w_p": 4, "w_q": 1, "input": 1, "outputs": 2}
"""One admission is charged 4 and reserves 2, where max(w_p L, w_q M) = 4."""


# --- CV3: no lift ---------------------------------------------------------------------------------------------------


def _no_lift() -> v.Document:
    """U = 9: g is served alone, 9 at a time, and leaves; f comes to an empty queue unlifted, then g again."""
    events: list[v.Happening] = []
    for _ in range(3):
        events += [
            v.Happening("arrive", {"p": _G}),
            v.Happening("admit the last that waits", {"x": 1, "r": 8, "k": 0}),
            v.Happening("decode", {"d": (0, 8)}),
        ]
    events += [v.Happening("arrive without a lift", {"p": _F})]
    zeros = dict.fromkeys(("c0", "m0", "c", "floor", "queued", "was", "R", "K", "W"), (0, 0))
    initial = {**zeros, "U": (9, 9), "f": _F, "g": _G, "last": -1}
    return _run_from_start(V_43, "counter", LIFT_ON_JOIN, "c_i + R_i <= c_j + U_i for waiting j", initial, events)


# --- all of them ----------------------------------------------------------------------------------------------------


def refutations() -> tuple[Refutation, ...]:
    """Return every false statement of the table, in its order."""
    ce2, ce3, ce4 = (partial(_world_of, claim) for claim in (strong_work_conservation, active_means_running, one_round))
    return (
        Refutation(
            "CE1",
            "D-4.2: a backlogged client gets no less than any other, minus 2(U + Q)",
            "coming back resets the deficit to zero (printed)",
            gates_deficit.D_42.id,
            "six rejoins of g forgive 6 each: W_g - W_f = 42 - 18 = 24 > 20",
            lambda: _falls(gates_deficit.D_42.id, REJOIN_KEEPS_DEBT, _rejoin_resets()),
            _rejoin_resets,
        ),
        Refutation(
            "CE2",
            "strong work conservation: a client that waits and fits is never passed over for none",
            "any gate that lets the first chosen wait for memory, the shipped one too",
            gates_deficit.D_WC.id,
            "f in credit does not fit, g fits and has no credit: none enters",
            lambda: v.replay_counterexample(ce2()).confirmed,
            ce2,
        ),
        Refutation(
            "CE3",
            "after a refill, if a client waits, a waiting client has credit",
            "a refill waits for every active client, running ones included",
            SHIPPED_REFILL,
            "a client that only runs has credit: no refill, and the others go on waiting",
            lambda: v.replay_counterexample(ce3()).confirmed,
            ce3,
        ),
        Refutation(
            "CE4",
            "after a refill, if a client waits, a waiting client has credit",
            "a refill is one round",
            SHIPPED_REFILL,
            "a debt of more than a quantum outlasts one round",
            lambda: v.replay_counterexample(ce4()).confirmed,
            ce4,
        ),
        Refutation(
            "CE5",
            "D-A.2 for each request",
            "longest prefix within a client, as printed and as shipped",
            gates_deficit.D_A2.id,
            f"a stream of requests that match 5 tokens: one that matches none waits {CE5_STEPS} of {CE5_STEPS} steps",
            _cold_request_waits,
        ),
        Refutation(
            "CV1",
            "U = w_q M where admissions count staggered finishes",
            "an admission check that lets later requests use what earlier ones will free",
            "mem-3",
            "M = 7, inputs 1, outputs 5, 2, 1: charged 1 + 2 x 8 = 17 > 14",
            lambda: _breaks(staggered_as_printed(), CV1_WORLD),
        ),
        Refutation(
            "CV2",
            "U = max(w_p L, w_q M)",
            "the printed constant, with w_p > w_q",
            "U-reserved",
            "w_p = 4, w_q = 1, L = 1, M = 3: one admission is charged 4 and reserves 2, 6 > 4",
            lambda: _breaks(larger_of_both(), CV2_WORLD),
        ),
        Refutation(
            "CV3",
            "V-4.3 and V-4.4",
            "no lift when the queue was momentarily empty (released code)",
            V_43.id,
            "g was charged 27 alone; f comes unlifted at 0: 27 > 0 + U = 9",
            lambda: _falls(V_43.id, LIFT_ON_JOIN, _no_lift()),
            _no_lift,
        ),
        *(_of_worlds(module, false) for module, false in proofs.refuted_claims()),
    )


def report(directory: Path | None = None) -> tuple[RefutationEntry, ...]:
    """Return every false statement: whether it was found in the variant and what ships is free of it, and its world.

    The world is a line of text, or a file for ``fairsched verify --replay`` where a `directory` is given to save it in.
    """
    return tuple(
        RefutationEntry(
            each.id, each.claim, each.variant, each.shows() and _holds(each.shipped), _saved(each, directory)
        )
        for each in refutations()
    )


def _saved(each: Refutation, directory: Path | None) -> str:
    if directory is None or each.world is None:
        return each.text
    path = directory / f"{each.id.lower()}.json"
    path.write_bytes(each.world().to_json())
    return str(path)


@cache
def _holds(theorem: str) -> bool:
    """Return whether the true statement is proved, or held in all worlds that were drawn."""
    claim = shipped_refill() if theorem == SHIPPED_REFILL else claims_of(SUITE)[theorem]
    return isinstance(prove(claim), Proved)
