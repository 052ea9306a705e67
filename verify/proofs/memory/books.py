"""The KV memory of a worker never overflows, and what a client may be charged is reserved: KV-sum to KV-charge.

KV-sum is about the worker's books, over a sort of *requests*.  `kv` is what each running request is promised and
`promised` the running total that the worker keeps instead of a sum; `own` is what of it a prompt takes that is not
cached yet; `protected` is the part of the prefix cache that may not be evicted.  `due` is what a step was found to have
room for and has not taken yet.  An event knows of the worker's functions their contracts, which KV-admit, KV-prefill,
KV-grow and KV-release show of the text that ships (`fairsched.verify.proofs.memory.memory`).  KV-takers is about the
other total: `growing` counts the requests that decode without a reservation and take a token a step (`g` is 1).

KV-outputs adds `out`, the outputs that each request may still produce, and says what an admission finds: its prompt and
all outputs of its client's requests fit into the memory.  KV-charge runs the shipped prices on that: what the gates
assume as MemReserve, word for word (`charge_fits`).
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import attrs

from fairsched.model import pricing
from fairsched.model import worker as workers
from fairsched.model.theorem import CHARGES_AT_LEAST_ONE, RESERVES
from fairsched.policies.batching import KV_CHARGE, KV_OUTPUTS
from fairsched.verify import logic as v
from fairsched.verify.events import charge_fits

# --- contracts ------------------------------------------------------------------------------------------------------

ADMITTED = v.Contract(
    {
        "promised grows by kv": lambda w: v.same(w.promised_after, w.promised + w.kv_after),
        "kv is extend and reserved tokens": lambda w: v.same(w.kv_after, w.own + w.reserved),
        "something is computed": lambda w: w.own >= 1,
        "nothing is negative": lambda w: (w.reserved >= 0) & (w.cached >= 0),
        "protected + promised <= C": lambda w: w.protected_after + w.promised_after <= w.C,
        "what is cached is protected": lambda w: w.cached <= w.protected_after,
        "all that may come is reserved, or nothing": lambda w: (w.reserved <= 0) | (w.reserved >= w.left),
    },
)
"""`_admit`: of a prompt `cached` tokens lie in the cache and `own` are computed; `left` outputs may come."""
BEGUN = v.Contract(
    {
        "what may grow is due": lambda w: v.same(w.due_after, w.growing + w.entering),
        "and there is room": lambda w: w.protected + w.promised + w.due_after <= w.C,
    },
)
"""`begin`: requests without a reservation that decode, and that compute a chunk."""
GREW = v.Contract(
    {"promised grows by a token a request": lambda w: v.same(w.promised_after, w.promised + w.growing)},
)
"""`finish`: one step of decoding."""
CACHED = v.Contract(
    {
        "promised changes with kv": lambda w: v.same(w.promised_after - w.promised, w.kv_after - w.kv),
        "a token grows at most": lambda w: (w.grew >= 0) & (w.grew <= 1),
        "no more than its own part of the prompt moves": lambda w: w.kv_after >= w.kv + w.grew - w.own,
        "what the cache protects came from there": lambda w: (
            w.protected_after + w.promised_after <= w.protected + w.promised + w.grew
        ),
        "nothing is unprotected": lambda w: w.protected_after >= w.protected,
        "who takes a token a step is counted": lambda w: v.same(w.growing_after, w.growing + w.joins),
        "once": lambda w: (w.joins >= 0) & (w.joins <= 1),
    },
)
"""`_prefill` of the last chunk."""
RELEASED = v.Contract(
    {
        "promised falls by kv": lambda w: v.same(w.promised_after, w.promised - w.kv),
        "it takes nothing any more": lambda w: v.same(w.growing_after, w.growing - w.g),
    },
)
"""`release`."""
PAUSED = v.Contract(
    {
        "it is promised what it was": lambda w: v.same(w.promised_after, w.promised) & v.same(w.kv_after, w.kv),
        "it takes nothing any more": RELEASED.promises["it takes nothing any more"],
    },
)
"""`pause`."""
RESUMED = v.Contract(
    {
        "it is promised what it was": PAUSED.promises["it is promised what it was"],
        **{name: CACHED.promises[name] for name in ("who takes a token a step is counted", "once")},
    },
)
"""`unpause`."""

# --- any number of requests -----------------------------------------------------------------------------------------


def _at(name: str) -> Any:
    return lambda o, w: o.pick(getattr(w, name), w.r, 0)


def _not_running(o: Any, w: v.World) -> Any:
    return (o.pick(w.kv, w.r, 0) <= 0) & (o.pick(w.own, w.r, 0) <= 0)


def _books(o: Any, w: v.World, kv: v.Term, own: v.Term) -> v.Written:
    """Return the books in which the request is promised so much."""
    each = {"kv": o.put(w.kv, w.r, kv), "own": o.put(w.own, w.r, own)}
    return {**each, "promised": w.promised_after, "protected": w.protected_after}


def _events() -> tuple[v.Event, ...]:
    return (
        v.of_one(
            "admitted",
            lambda o, w: _books(o, w, w.x, w.owned),
            _not_running,
            # A plan changes the batch before its step is found to have room.
            lambda o, w: w.due <= 0,
            ADMITTED.need(kv_after=lambda o, w: w.x, own=lambda o, w: w.owned),
            facts="protected_after promised_after x owned cached reserved left",
        ),
        v.Event(
            "a step begins",
            lambda o, w: {"due": w.due_after},
            v.scalars("due_after", "entering", "growing"),
            (
                lambda o, w: (w.entering >= 0) & (w.growing >= 0),
                BEGUN.need(),
            ),
        ),
        v.Event(
            "outputs grow",
            lambda o, w: {"kv": w.kv + w.g, "promised": w.promised_after, "due": w.due - w.growing},
            {"promised_after": v.SCALAR, "g": v.VECTOR, "growing": v.SCALAR},
            (
                lambda o, w: (w.g >= 0) & v.implies(o, w.g >= 1, w.kv >= 1),
                # What KV-takers says.
                lambda o, w: v.same(w.growing, v.total(o, w.g)),
                lambda o, w: w.growing <= w.due,
                GREW.need(),
            ),
        ),
        v.of_one(
            "the prompt is cached",
            lambda o, w: {**_books(o, w, w.x, 0), "due": w.due - w.grew},
            lambda o, w: o.pick(w.own, w.r, 1) >= 1,
            # Each chunk of a request without a reservation is counted when the step begins.
            lambda o, w: w.grew <= w.due,
            CACHED.need(kv=_at("kv"), kv_after=lambda o, w: w.x, own=_at("own")),
            facts="protected_after promised_after x grew joins growing growing_after",
        ),
        v.Event("a step ends", lambda o, w: {"due": w.due - w.due}),
        v.of_one(
            "released",
            lambda o, w: _books(o, w, 0, 0),
            # Its prefix may be evicted from now on, if no other request uses it.
            lambda o, w: (w.protected_after >= 0) & (w.protected_after <= w.protected),
            RELEASED.need(kv=_at("kv")),
            facts="protected_after promised_after growing growing_after g",
        ),
    )


_SUM = v.Clause("promised is the sum of kv", lambda o, w: v.same(w.promised, w.sum))
_EACH = v.Clause("0 <= own <= kv", lambda o, w: (w.own >= 0) & (w.own <= w.kv))
_BOOKS = (
    _EACH,
    _SUM,
    v.Clause("protected >= 0, due >= 0", lambda o, w: (w.protected >= 0) & (w.due >= 0)),
    v.Clause("protected + promised + due <= C", lambda o, w: w.protected + w.promised + w.due <= w.C),
)
_NOTHING = tuple(
    v.Clause(f"{name} = 0", lambda o, w, name=name: v.same(getattr(w, name), 0))
    for name in ("kv", "own", "promised", "protected", "due")
)


def _system(*events: v.Event) -> v.System:
    return v.System(
        "KV memory of a worker",
        parameters={"C": v.SCALAR},
        laws=(lambda o, w: w.C >= 1,),
        fields={**v.vectors("kv", "own"), **v.scalars("promised", "protected", "due")},
        events=events or _events(),
        derived={"sum": lambda o, w: v.total(o, w.kv)},
    )


def _sum_claim() -> v.Claim:
    return v.Claim(
        workers.theorems.KV_SUM,
        _system(),
        _NOTHING,
        _BOOKS,
        (
            v.Clause("protected + sum of kv <= C", lambda o, w: w.protected + w.sum <= w.C),
            v.Clause("no more is promised than there is", lambda o, w: w.kv <= w.C),
        ),
    )


def _takers_claim() -> v.Claim:
    """`g` is 1 for each request that takes a token a step."""
    once = "who takes a token a step is counted", "once"
    counted = v.Contract({name: CACHED.promises[name] for name in once})
    leaves = "it takes nothing any more"
    none_yet = v.Need(lambda o, w: o.pick(w.g, w.r, 0) <= 0)
    uncounted = v.Contract({leaves: RELEASED.promises[leaves]})
    return v.Claim(
        workers.theorems.KV_TAKERS,
        v.System(
            "requests that take a token a step",
            parameters={},
            laws=(),
            fields={"g": v.VECTOR, "growing": v.SCALAR},
            events=(
                *(
                    v.of_one(
                        name,
                        lambda o, w: {"g": o.put(w.g, w.r, w.joins), "growing": w.growing_after},
                        *(none_yet, counted.need()),
                        facts="joins growing_after",
                    )
                    for name in ("the prompt is cached", "resumed")
                ),
                *(
                    v.of_one(
                        name,
                        lambda o, w: {"g": o.put(w.g, w.r, 0), "growing": w.growing_after},
                        uncounted.need(g=_at("g")),
                        facts="growing_after",
                    )
                    for name in ("released", "paused")
                ),
            ),
            derived={"takers": lambda o, w: v.total(o, w.g)},
        ),
        (v.Clause("none does", lambda o, w: v.same(w.g, 0) & v.same(w.growing, 0)),),
        (
            v.Clause("0 <= g <= 1", lambda o, w: (w.g >= 0) & (w.g <= 1)),
            v.Clause("growing is the sum of g", lambda o, w: v.same(w.growing, w.takers)),
        ),
        (v.Clause("growing is the sum of g", lambda o, w: v.same(w.growing, w.takers)),),
    )


# --- one client of theirs -------------------------------------------------------------------------------------------


def tokens_fit(prompt: Any, outputs: Any, capacity: Any) -> Any:
    """State that a prompt and all outputs that its client's requests may produce fit into the memory."""
    return prompt + outputs <= capacity


def _outputs_claim() -> v.Claim:
    """`asked` are the outputs of the client `mine` when it was let in last, and `prompt` what it was let in for.

    What KV-sum says of the books is known of the state after an admission.
    """

    def at_admission(o: Any, w: v.World) -> Mapping[str, Any]:
        out, ours = o.put(w.out, w.r, w.left), o.pick(w.mine, w.r, False)
        # One sum for its outputs and for what it computes.
        asked = v.total(o, o.bump(o.where(w.mine, out, 0), w.r, w.owned)) - w.owned
        return {
            "out": out,
            "prompt": o.where(ours, w.owned + w.cached, w.prompt),
            "asked": o.where(ours, asked, w.asked),
        }

    def more(event: v.Event) -> v.Event:
        if event.name == "admitted":
            return v.and_also(
                event.with_needs(
                    lambda o, w: w.left >= 0,
                    v.Need(lambda o, w: (w.reserved >= 1) | (w.left <= 0), RESERVES),
                    # What KV-sum says of the books once it is admitted.
                    lambda o, w: v.same(w.promised_after, v.total(o, o.put(w.kv, w.r, w.x))),
                ),
                **{name: lambda o, w, _, name=name: at_admission(o, w)[name] for name in ("out", "prompt", "asked")},
            )
        if event.name == "released":
            return v.and_also(event, out=lambda o, w, _: o.put(w.out, w.r, 0))
        return event

    produced = v.Event(
        "outputs come", lambda o, w: {"out": w.out - w.d}, {"d": v.VECTOR}, (lambda o, w: (w.d >= 0) & (w.d <= w.out),)
    )
    of = _system(*map(more, _events()), produced)
    fits = v.Clause("prompt + outputs of the client <= C", lambda o, w: tokens_fit(w.prompt, w.asked, w.C))
    return v.Claim(
        KV_OUTPUTS,
        attrs.evolve(
            of,
            parameters={**of.parameters, "mine": v.MASK},
            fields={**of.fields, "out": v.VECTOR, "prompt": v.SCALAR, "asked": v.SCALAR},
            derived={},
        ),
        (
            *_NOTHING,
            v.Clause("nothing may come", lambda o, w: v.same(w.out, 0)),
            v.Clause("nothing was let in", lambda o, w: v.same(w.prompt, 0) & v.same(w.asked, 0)),
        ),
        (_EACH, v.Clause("0 <= out <= kv - own", lambda o, w: (w.out >= 0) & (w.out + w.own <= w.kv)), fits),
        (fits,),
    )


# --- in cost units --------------------------------------------------------------------------------------------------


@v.arithmetic(
    KV_CHARGE,
    ("M", "L", "w_e", "w_q", "charged", "later", "prompt", "reserved", "others"),
    *v.at_least(1, "w_e", "w_q"),
    *v.at_least(0, "later", "reserved", "others"),
    v.Condition(lambda w: w.charged >= 0),
    v.Condition(lambda w: w.charged >= 1, CHARGES_AT_LEAST_ONE),
    # An admission is charged what is planned to be computed, or the whole prompt, and settled at no more than that.
    v.Condition(lambda w: w.charged + w.later <= w.prompt),
    v.Condition(lambda w: (w.prompt <= w.L) & (w.L <= w.M - 1)),
    # What KV-outputs says.
    v.Condition(lambda w: tokens_fit(w.prompt, w.reserved + w.others, w.M)),
    relaxed=True,
)
def charge(w: SimpleNamespace, functions: v.Functions = pricing) -> v.Shown:
    """Return an admission that is charged for `charged` tokens of its `prompt` and may be for `later` ones and
    `reserved` outputs, while `others` outputs of its client's requests may come."""
    now, later = functions.price(w.charged, w.w_e), functions.price(w.later, w.w_e)
    reserved, others = functions.price(w.reserved, w.w_q), functions.price(w.others, w.w_q)
    most = functions.charge_max_reserved(SimpleNamespace(input=w.w_e, output=w.w_q), w.M, w.L)
    return {"MemReserve": charge_fits(now, others, later + reserved, most)}


def claims() -> tuple[v.Claim | v.ArithmeticClaim, ...]:
    """From the worker's books to what its gates assume."""
    return (_sum_claim(), _takers_claim(), _outputs_claim(), charge())


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""
    return (
        v.Bug(
            "U is what outputs alone may cost", charge(charge_max_reserved=lambda rates, m, _: rates.output * (m - 1))
        ),
        v.Bug("an output is priced twice", charge(price=lambda tokens, rate, _=1: tokens * rate + tokens)),
    )
