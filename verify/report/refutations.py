"""The false statements by name, each found in the rule that was printed and absent from the one that ships.

A refutation is *found* when a world breaks the printed variant, confirmed by the numpy and the exact interpretation of
the kernel (or by the shipped policy and worker themselves), and the true theorem about what ships is proved in the
same run.  CE1 to CE5 are about the deficit gate (DLPM), CV1 to CV3 about the counter gate (VTC); those about routers
stand beside their proofs (`fairsched.verify.suite`).
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from fairsched.model import worker as transitions
from fairsched.model.events import Admitted
from fairsched.model.request import Prompt, Request
from fairsched.model.theorem import LIFT_ON_JOIN, REJOIN_KEEPS_DEBT, Assumption
from fairsched.model.worker_state import WorkerState
from fairsched.policies.bypass import D_REQUEST
from fairsched.policies.counter import V_43
from fairsched.policies.deficit_fairness import D_42
from fairsched.policies.deficit_progress import D_WC
from fairsched.policies.dlpm import DLPM
from fairsched.verify import arithmetic, counterexample, decide, prover, refuted, staggered_proofs, suite, world_file
from fairsched.verify.arithmetic import ArithmeticClaim
from fairsched.verify.counterexample import Document, Happening
from fairsched.verify.false_claim import FalseClaim
from fairsched.verify.prover import Proved, Refuted
from fairsched.verify.subject import SUITE, claims_of
from fairsched.verify.system import Claim
from fairsched.verify.world_file import WorldFile


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
    world: Callable[[], Document | WorldFile] | None = None


@cache
def _proved(theorem: str) -> bool:
    """Of what was tried in drawn worlds: that it held in each."""
    return isinstance(decide.prove(claims_of(SUITE)[theorem]), Proved)


def _claim(theorem: str) -> Claim:
    return next(claim for claim in suite.gate_claims() if claim.theorem.id == theorem)


def _of_worlds(module: ModuleType, false: FalseClaim) -> Refutation:
    """A statement about plain Python: some world breaks it, and so does the one that is saved."""
    theorem = false.claim.theorem

    def world() -> WorldFile:
        return world_file.document(false.claim, module.__name__, false.world)

    def shows() -> bool:
        return isinstance(decide.prove(false.claim), Refuted) and bool(world_file.broken(false.claim, false.world))

    return Refutation(theorem.id, theorem.statement, false.variant, false.shipped, false.text, shows, world)


def _without(theorem: str, assumption: Assumption, world: Callable[[], Document]) -> Callable[[], bool]:
    """The theorem falls without the assumption, and a run from its start ends in the conclusion's breach."""

    def shows() -> bool:
        refused = isinstance(prover.prove(_claim(theorem), dropped=frozenset({assumption})), Refuted)
        return refused and counterexample.replay(world()).confirmed

    return shows


def _refuted(claim: Callable[[], Claim]) -> tuple[Callable[[], bool], Callable[[], Document]]:
    """Whether the prover refutes a claim of `fairsched.verify.refuted`, and the world that it found."""

    def world() -> Document:
        verdict = prover.prove(claim())
        assert isinstance(verdict, Refuted)
        return counterexample.document(verdict.world, refuted.__name__)

    return lambda: counterexample.replay(world()).confirmed, world


# --- CE1: coming back forgives debt ---------------------------------------------------------------------------------

_F, _G = 0, 1
CE1_CYCLES = 6
"""After six cycles g leads by 24: over 2(Q + U - 1) = 14, and over the printed 20."""


def _served(client: int, output: int, *, used: int) -> Iterator[Happening]:
    """One input token, `output` output tokens reserved and `used` of them produced."""
    chosen = (1, 0) if client == _F else (0, 1)
    yield Happening("admit", {"x": 1, "r": 2 * output, "ready": chosen, "score": (0, 0)})
    yield Happening("decode", {"d": tuple(2 * used * entry for entry in chosen)})
    yield Happening("finish", {"p": client, "x": 2 * (output - used)})


def _rejoin_resets() -> Document:
    """Q = 1, M = 4, so U = 7: g's requests fill memory and come back at zero, f's stop after one token of two."""
    events: list[Happening] = []
    refill = Happening("refill")
    for cycle in range(CE1_CYCLES):
        events += [Happening("arrive as printed, at zero", {"p": _G}), refill, *_served(_G, 3, used=3)]
        events += [Happening("leave the queue", {"p": _G})]
        events += [refill, refill] if cycle else []
        events += _served(_F, 2, used=1)
    zeros = (0, 0)
    return Document(
        theorem=D_42.id,
        claims="fairsched.verify.deficit_proofs",
        obligation="conclusion",
        broken=("W_g - W_f <= 2(Q + U - 1)",),
        clients=2,
        initial={
            **dict.fromkeys(("q0", "q", "R", "W", "P"), zeros),
            "Q": (1, 1),
            "U": (7, 7),
            "f": _F,
            "g": _G,
            "queued": (1, 0),
            "known": (1, 1),
        },
        events=tuple(events),
        from_start=True,
        without=(REJOIN_KEEPS_DEBT.name,),
    )


# --- CE5: a request of a served client may wait for ever ------------------------------------------------------------

CE5_STEPS = 40


def _cold_request_waits() -> bool:
    """Each step a request comes that matches five cached tokens; the one that matches none is never let in."""
    policy = DLPM()
    state, worker = policy.init(), WorkerState(worker=0, capacity=8)
    cold = Request(0, 0, 0, Prompt.from_keys([-1, -2, -3, -4, -5, -6], block_tokens=1, tokens=6), 1)
    entered: list[int] = []
    for step in range(CE5_STEPS):
        keys = [1, 2, 3, 4, 5, 10 + step]
        warm = Request(step + 1, 0, step, Prompt.from_keys(keys, block_tokens=1, tokens=6), 1)
        for request in (warm, cold) if step == 1 else (warm,):
            worker, arrived = transitions.arrive(worker, request, 1, step)
            for event in arrived:
                state = policy.observe(state, event)
        plan, state = policy.decide(state, worker.view(step))
        worker, begun = transitions.begin(worker, plan, step)
        worker, done = transitions.finish(worker, plan, 1, step)
        entered += [event.request_id for event in begun if isinstance(event, Admitted)]
        for event in (*begun, *done):
            if not isinstance(event, Admitted):
                state = policy.observe(state, event)
    return entered == list(range(1, CE5_STEPS + 1)) and 0 in worker.queue


# --- CV1, CV2: constants that are too small -------------------------------------------------------------------------

CV1_WORLD = {"M": 7, "r1": 1, "r2": 2, "r3": 5}
"""Outputs 5, 2 and 1 of inputs 1 pass the check at M = 7; the jump is 1 + 2 x 8 = 17 where 2 M = 14."""


def _breaks(claim: ArithmeticClaim, world: dict[str, int]) -> bool:
    """Whether a claim's own conditions hold in a world of numbers and what it says does not."""
    w: Any = attrs.make_class("World", list(world))(**world)
    return all(condition.holds(w) for condition in claim.conditions) and not all(claim.shows(w).values())


def _too_little_memory() -> bool:
    claim = staggered_proofs.printed()
    return isinstance(arithmetic.prove(claim), Refuted) and _breaks(claim, CV1_WORLD)


CV2_WORLD = {"M": 3, "L": 1, "w_p": 4, "w_q": 1, "input": 1, "outputs": 2}
"""One admission is charged 4 and reserves 2, where max(w_p L, w_q M) = 4."""


def _printed_constant() -> bool:
    claim = refuted.larger_of_both()
    return isinstance(arithmetic.prove(claim), Refuted) and _breaks(claim, CV2_WORLD)


# --- CV3: no lift ---------------------------------------------------------------------------------------------------


def _no_lift() -> Document:
    """U = 9: g is served alone, 9 at a time, and leaves; f comes to an empty queue unlifted, then g again."""
    events: list[Happening] = []
    for _ in range(3):
        events += [
            Happening("arrive", {"p": _G}),
            Happening("admit the last that waits", {"x": 1, "r": 8}),
            Happening("decode", {"d": (0, 8)}),
        ]
    events += [Happening("arrive without a lift", {"p": _F})]
    return Document(
        theorem=V_43.id,
        claims="fairsched.verify.counter_proofs",
        obligation="conclusion",
        broken=("c_i + R_i <= c_j + U_i for j who waits",),
        clients=2,
        initial={
            **dict.fromkeys(("c0", "c", "queued", "was", "R", "W"), (0, 0)),
            "U": (9, 9),
            "f": _F,
            "g": _G,
            "last": -1,
        },
        events=tuple(events),
        from_start=True,
        without=(LIFT_ON_JOIN.name,),
    )


# --- all of them ----------------------------------------------------------------------------------------------------


def refutations() -> tuple[Refutation, ...]:
    """Every false statement of the table, in its order."""
    ce2, ce2_world = _refuted(refuted.strong_work_conservation)
    ce3, ce3_world = _refuted(refuted.active_means_running)
    ce4, ce4_world = _refuted(refuted.one_round)
    return (
        Refutation(
            "CE1",
            "D-4.2: a backlogged client gets no less than any other, minus 2(U + Q)",
            "coming back resets the deficit to zero (printed)",
            D_42.id,
            "six rejoins of g forgive 6 each: W_g - W_f = 42 - 18 = 24 > 20",
            _without(D_42.id, REJOIN_KEEPS_DEBT, _rejoin_resets),
            _rejoin_resets,
        ),
        Refutation(
            "CE2",
            "strong work conservation: whoever waits and fits is never passed over for nobody",
            "any gate that lets the first chosen wait for memory, the shipped one too",
            D_WC.id,
            "f in credit does not fit, g fits and has no credit: nobody enters",
            ce2,
            ce2_world,
        ),
        Refutation(
            "CE3",
            "after a refill, if somebody waits, somebody who waits has credit",
            "a refill waits for every active client, running ones included",
            refuted.SHIPPED_REFILL,
            "who only runs has credit: no refill, and whoever waits goes on waiting",
            ce3,
            ce3_world,
        ),
        Refutation(
            "CE4",
            "after a refill, if somebody waits, somebody who waits has credit",
            "a refill is one round",
            refuted.SHIPPED_REFILL,
            "a debt of more than a quantum outlasts one round",
            ce4,
            ce4_world,
        ),
        Refutation(
            "CE5",
            "D-A.2 for each request",
            "longest prefix within a client without a bypass budget, as printed and as shipped",
            D_REQUEST.id,
            f"a stream of requests that match 5 tokens: one that matches none waits {CE5_STEPS} of {CE5_STEPS} steps",
            _cold_request_waits,
        ),
        Refutation(
            "CV1",
            "U = w_q M where admissions count staggered finishes",
            "an admission check that lets later requests use what earlier ones will free",
            "mem-3",
            "M = 7, inputs 1, outputs 5, 2, 1: charged 1 + 2 x 8 = 17 > 14",
            _too_little_memory,
        ),
        Refutation(
            "CV2",
            "U = max(w_p L, w_q M)",
            "the printed constant, with w_p > w_q",
            "U-reserved",
            "w_p = 4, w_q = 1, L = 1, M = 3: one admission is charged 4 and reserves 2, 6 > 4",
            _printed_constant,
        ),
        Refutation(
            "CV3",
            "V-4.3 and V-4.4",
            "no lift when the queue was momentarily empty (released code)",
            V_43.id,
            "g was charged 27 alone; f comes unlifted at 0: 27 > 0 + U = 9",
            _without(V_43.id, LIFT_ON_JOIN, _no_lift),
            _no_lift,
        ),
        *(_of_worlds(module, false) for module, false in suite.false_claims()),
    )


def report(directory: Path | None = None) -> list[dict[str, Any]]:
    """Id, claim, variant, whether it was found there and what ships is free of it, and its world.

    The world is a line of text, or a file for ``fairsched replay`` where a `directory` is given to save it in.
    """
    return [
        {
            "id": each.id,
            "claim": each.claim,
            "variant": each.variant,
            "found": each.shows() and _holds(each.shipped),
            "replay": _saved(each, directory) or each.text,
        }
        for each in refutations()
    ]


def _saved(each: Refutation, directory: Path | None) -> str | None:
    if directory is None or each.world is None:
        return None
    path = directory / f"{each.id.lower()}.json"
    path.write_bytes(each.world().to_json())
    return str(path)


def _holds(theorem: str) -> bool:
    if theorem == refuted.SHIPPED_REFILL:
        return isinstance(prover.prove(refuted.shipped_refill()), Proved)
    return _proved(theorem)
