"""How much later a program ends than on an ideal machine, if calls are let in by virtual finish times.

Justitia serves agents in the order in which a fluid machine of the same memory would finish them, and claims that each
ends at most a constant later than there (reconstructed: by 2 c_max + C_max / M).  Both readings of that are false, for
two reasons that each have a world here.  A machine whose calls do not fit together leaves memory unused, so it falls
behind one that uses all by a part of all work (F-J-1).  And calls that wait for one another cannot be served at once,
which the ideal machine does (F-J-2).

What is true: against an ideal machine of rate r = M - m + 1, with m the most memory of a call, a program whose calls
all come with it ends less than 2 d - 1 steps later, with d the most steps of a call (J-delay).

The proof.  Fix a program.  Calls of programs with no later virtual finish are *early*, others are late.  Let tau be the
last step before the program's last call starts in which a late call was started, or no early call waited.  Calls that
run then are *old*, and end within d steps.  From tau on an early call waits, so at most m - 1 tokens are unused, and
from step tau + d on all that is worked off, r a step or more, is of early calls that came after tau (J-busy).  The
ideal machine has worked all of that off when it finishes the program.
"""

from collections.abc import Mapping
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, ClassVar

import attrs
import hypothesis.strategies as st

from fairsched.model.algebra import Algebra
from fairsched.model.events import Finished
from fairsched.model.request import Prompt, Request
from fairsched.model.service import ideal_finishes
from fairsched.model.theorem import Assumption, Scope, Theorem
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import Chunked
from fairsched.policies.gates import OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import Order
from fairsched.verify import logic as v
from fairsched.verify.conformance import WorkerPlay

FIRST_STOPS = Assumption(
    "FirstStops", "Calls are let in by their program's virtual finish time, and none after the first that does not fit."
)
COSTS_COVER = Assumption("CostsCover", "The cost of a call is at least its memory times its steps.")
CALLS_TOGETHER = Assumption(
    "CallsTogether", "All calls of a program are there when it comes, so the ideal machine works them off at once."
)

J_BUSY = Theorem(
    "J-busy",
    "while an early call waits, from d steps after tau on: what was worked off of early calls that came after tau is "
    "at least r a step, and at most what came",
    "this library; the busy period of Parekh and Gallager (1993), for calls that hold memory for a time",
    (FIRST_STOPS, COSTS_COVER),
    bound="r (n - d)",
)
J_DELAY = Theorem(
    "J-delay",
    "a program whose calls all come with it ends less than 2 d - 1 steps after an ideal machine of rate M - m + 1 "
    "finishes it",
    "this library; Justitia's claim, repaired",
    (FIRST_STOPS, COSTS_COVER, CALLS_TOGETHER),
    bound="2 d - 1",
    rests_on=("J-busy",),
)
J_WORKER = Theorem(
    "J-worker",
    "the shipped admission by virtual finish times is within J-delay",
    "this library; in drawn worlds of the shipped policy and worker",
    scope=Scope.TESTED,
    rests_on=("J-delay",),
)

# --- the busy period --------------------------------------------------------------------------------------------------


def _early_work(o: Algebra, w: v.World) -> v.Term:
    """Return what a step works off of each early call that came after tau."""
    return o.where(w.old, 0, w.need)


def busy_period() -> v.System:
    """Return steps from tau on, in each of which an early call waits.  Vectors are over calls.

    `need` is the memory that a running call holds, `left` for how many steps it does, `old` those that ran at tau.
    `rest` is what early calls that came after tau still cost.  In `n` steps `done` was worked off of the `came` that
    came.  `G` counts r for each step from step d on.
    """

    def arrive(o: Algebra, w: v.World) -> v.Written:
        return {"rest": o.bump(w.rest, w.p, w.x), "came": w.came + w.x}

    def start(o: Algebra, w: v.World) -> v.Written:
        return {"need": o.put(w.need, w.p, w.k), "left": o.put(w.left, w.p, w.l), "old": o.put(w.old, w.p, False)}

    def step(o: Algebra, w: v.World) -> v.Written:
        left = w.left - 1
        return {
            "need": o.where(left >= 1, w.need, 0),
            "left": left,
            "rest": w.rest - _early_work(o, w),
            "done": w.done + w.work,
            "n": w.n + 1,
            "G": w.G + o.where(w.n >= w.d, w.r, 0),
        }

    one = {"p": v.POINT}
    events = (
        v.Event("an early call comes", arrive, {**one, "x": v.SCALAR}, (lambda o, w: o.exists(w.p) & (w.x >= 1),)),
        v.Event(
            "an early call is started",
            start,
            {**one, "k": v.SCALAR, "l": v.SCALAR},
            (lambda o, w: (w.k >= 1) & (w.k <= w.m) & (w.l >= 1) & (w.l <= w.d),),
        ),
        v.Event(
            "a step",
            step,
            {"k": v.SCALAR},
            (
                lambda o, w: (w.k >= 1) & (w.k <= w.m),
                # The first that waits, which needs k, does not fit.
                v.Need(lambda o, w: w.used + w.k > w.M, FIRST_STOPS),
                v.Need(lambda o, w: _early_work(o, w) <= w.rest, COSTS_COVER),
            ),
        ),
    )
    return v.System(
        "an order by virtual finish times",
        {"M": v.SCALAR, "m": v.SCALAR, "d": v.SCALAR, "r": v.SCALAR},
        (v.Need(lambda o, w: (w.m >= 1) & (w.m <= w.M) & (w.d >= 1) & v.same(w.r, w.M - w.m + 1)),),
        {**v.vectors("need", "left", "rest"), "old": v.MASK, **v.scalars("n", "done", "came", "G")},
        events,
        derived={
            "used": lambda o, w: v.total(o, w.need),
            "work": lambda o, w: v.total(o, _early_work(o, w)),
            "owed": lambda o, w: v.total(o, w.rest),
        },
    )


def _busy_claim() -> v.Claim:
    runs = v.Clause("a call that runs has steps left", lambda o, w: v.implies(o, w.need >= 1, w.left >= 1))
    held = v.Clause("need >= 0", lambda o, w: w.need >= 0)
    worked = v.Clause("done >= G", lambda o, w: w.done >= w.G)
    start = (
        v.Clause(
            "all that run are old, for at most d steps", lambda o, w: v.implies(o, w.need >= 1, w.old & (w.left <= w.d))
        ),
        v.Clause(
            "nothing has come, nothing is done", lambda o, w: v.same(w.n, 0) & v.same(w.done, 0) & v.same(w.came, 0)
        ),
        v.Clause("nothing is owed", lambda o, w: v.same(w.rest, 0) & v.same(w.G, 0)),
        runs,
        held,
    )
    invariants = (
        runs,
        held,
        v.Clause("rest >= 0", lambda o, w: w.rest >= 0),
        v.Clause("n >= 0", lambda o, w: w.n >= 0),
        v.Clause(
            "an old call that runs ends by step d",
            lambda o, w: v.implies(o, w.old & (w.need >= 1), w.left + w.n <= w.d),
        ),
        v.Clause("what came is done or owed", lambda o, w: v.same(w.owed, w.came - w.done)),
        worked,
    )
    enough = v.Clause("G and what a waiting call costs is at most what came", lambda o, w: w.G + w.rest <= w.came)
    return v.Claim(J_BUSY, busy_period(), start, invariants, (worked, enough))


@v.arithmetic(
    J_DELAY,
    ("r", "d", "G", "came", "cost", "tau", "ideal", "last", "worked", "e"),
    v.Condition(lambda w: (w.r >= 1) & (w.d >= 1) & (w.cost >= 1)),
    v.Condition(lambda w: (w.last >= 1) & (w.last <= w.d)),
    v.Condition(lambda w: w.worked + w.r * w.e <= w.G),
    v.Condition(lambda w: w.G + w.cost <= w.came),
    v.Condition(lambda w: w.came <= w.worked, CALLS_TOGETHER),
)
def _delay(w: SimpleNamespace) -> v.Shown:
    """Return the last call of the program, which costs `cost`, starts n steps after tau and takes `last` steps.

    All that came did so after the decision of step tau, and the ideal machine has worked it off at `ideal`: in the
    ideal - tau - 1 steps from then on it worked off `worked`, r in each.  n - d is by `e` more steps than these, so G,
    which is r (n - d) at least, is worked + r e.  `ideal` is a fraction; multiplied by its denominator all times and
    costs are whole numbers.
    """
    n = w.d + w.ideal - w.tau - 1 + w.e
    return {
        "r e < 0": w.r * w.e < 0,
        "e < 0": w.e < 0,
        "ends before ideal + 2 d - 1": w.tau + n + w.last < w.ideal + 2 * w.d - 1,
    }


# --- the shipped policy and worker ------------------------------------------------------------------------------------


@attrs.frozen
class ByTable(Order):
    """The least of what a table says of a request goes first."""

    name: ClassVar[str] = "by-table"
    places: Mapping[int, int]

    def rank(self, request: Request, cached_tokens: int) -> int:
        return -self.places[request.id]


Calls = list[list[int]]
"""Calls as (prompt, output)."""


def _cost(prompt: int, output: int) -> int:
    """Return tokens of memory times steps: all of it is reserved from the first step on."""
    return (prompt + output) * output


def played(programs: list[tuple[int, Calls]], memory: int, places: list[int], chained: bool = False) -> list[int]:
    """Return when each program ends that comes at its step with its calls, served in order of `places`.

    With `chained` each call of a program waits for the one before.
    """
    calls = [(number, *call) for number, (_, its) in enumerate(programs) for call in its]
    order = ByTable({request_id: places[number] for request_id, (number, _, _) in enumerate(calls)})
    longest = max(prompt for _, prompt, _ in calls)
    policy = ComposedPolicy("played", order, OpenGate(), Chunked(longest * len(calls) + len(calls), len(calls)))
    play, ends = WorkerPlay(policy, WorkerState(0, memory)), [0] * len(programs)
    left = [len(its) for _, its in programs]
    waiting, finished, now = dict(enumerate(calls)), set[int](), 0
    while any(left):
        for request_id, (number, prompt, output) in list(waiting.items()):
            follows = chained and request_id > 0 and calls[request_id - 1][0] == number
            if programs[number][0] <= now and (not follows or request_id - 1 in finished):
                play.arrive(Request(request_id, 0, now, Prompt(prompt), output), output, now)
                del waiting[request_id]
        for event in play.step(now, took_ns=1):
            if isinstance(event, Finished):
                finished.add(event.request_id)
                number = calls[event.request_id][0]
                left[number], ends[number] = left[number] - 1, now + 1
        now += 1
    return ends


def _places(finishes: list[Any]) -> list[int]:
    """Return the place of each program by virtual finish time, then by number."""
    by_finish = sorted(range(len(finishes)), key=lambda number: (finishes[number].virtual, number))
    return [by_finish.index(number) for number in range(len(finishes))]


def lateness(w: SimpleNamespace, rate: int, places: Any = _places, chained: bool = False) -> list[Fraction]:
    """Return by how much each program of a world ends later than on an ideal machine of that rate."""
    programs = [(arrival, calls) for arrival, calls in w.programs]
    costs = [(arrival, sum(_cost(*call) for call in calls)) for arrival, calls in programs]
    finishes = ideal_finishes(costs, rate)
    ends = played(programs, w.memory, places(finishes), chained)
    return [end - finish.time for end, finish in zip(ends, finishes, strict=True)]


_CALL = st.tuples(st.integers(1, 6), st.integers(1, 6)).map(list)
_WORLDS = st.fixed_dictionaries(
    {
        "memory": st.integers(12, 30),
        "programs": st.lists(
            st.tuples(st.integers(0, 12), st.lists(_CALL, min_size=1, max_size=5)).map(list), min_size=1, max_size=8
        ),
    }
)


def _sizes(w: SimpleNamespace) -> tuple[int, int]:
    """Return the most memory and the most steps of a call."""
    calls = [call for _, its in w.programs for call in its]
    return max(prompt + output for prompt, output in calls), max(output for _, output in calls)


@v.sampled(J_WORKER, _WORLDS, drawn=60)
def _worker(w: SimpleNamespace, places: Any = _places) -> v.Shown:
    """Prompts are computed whole in the step in which they start, and outputs end when they are declared to."""
    most, steps = _sizes(w)
    return {"less than 2 d - 1 later": max(lateness(w, w.memory - most + 1, places)) < 2 * steps - 1}


# --- what is claimed and false ----------------------------------------------------------------------------------------


def _as_printed(w: SimpleNamespace, chained: bool = False) -> v.Shown:
    costs = [[_cost(*call) for call in calls] for _, calls in w.programs]
    call, program = max(map(max, costs)), max(map(sum, costs))
    late = max(lateness(w, w.memory, chained=chained))
    return {"2 c_max + C_max / M": late <= 2 * call + Fraction(program, w.memory)}


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Return the claim as it is recalled, in the reading that allows more: c_max counts in steps, not in steps / M."""
    source = "Justitia (reconstructed)"
    return (
        v.refuted(
            "F-J-1",
            "every agent ends at most 2 c_max + C_max / M after an ideal machine of rate M finishes it",
            source,
            _as_printed,
            {"memory": 3, "programs": [[0, [[1, 1]]] for _ in range(15)]},
            variant="calls in order of virtual finish times, on a machine of memory M",
            instead=J_DELAY.id,
            text="15 programs of one call of 2 tokens, which runs alone in a memory of 3: a third of it is never used",
        ),
        v.refuted(
            "F-J-2",
            "the same where calls of a program wait for one another",
            source,
            lambda w: _as_printed(w, chained=True),
            {"memory": 40, "programs": [[0, [[1, 1]] * 5]]},
            variant="calls in order of virtual finish times, on a machine of memory M",
            instead=J_DELAY.id,
            text="one program of five short calls, one after the other, alone: it takes five steps, the ideal a part",
        ),
    )


def claims() -> tuple[v.Claim | v.ArithmeticClaim | v.SampledClaim, ...]:
    """About any such order, and about what ships."""
    return (_busy_claim(), _delay(), _worker())


def bugs() -> tuple[v.Bug, ...]:
    """Return orders that have to be found wrong."""

    def last(finishes: list[Any]) -> list[int]:
        return [-place for place in _places(finishes)]

    return (v.Bug("the latest virtual finish goes first", _worker(last)),)
