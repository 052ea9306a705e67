"""Programs in progress: how much of memory a client's programs hold while another client lacks its share.

Vectors are over the owners of equal shares.  Of each, `old` is what calls may come to hold that ran when the interval
began, `new` the same of calls that were let in since; `sums` and `olds` add up, step by step, what it holds and what of
that is old.  Client d waits with credit and holds no more than the share S; a call needs at most N.

That each program goes on is tried in drawn worlds of the shipped policy, in which programs call again and again.
"""

from types import SimpleNamespace
from typing import Any

import attrs
import hypothesis.strategies as st

from fairsched.model.algebra import Algebra
from fairsched.model.events import Admitted, Decoded, Finished
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.catalog import Programs, ThunderAgent
from fairsched.policies.gates import DeficitGate, OpenGate
from fairsched.policies.local import P_PROG_FITS, P_PROG_SERVES, P_PROG_SHARE, ComposedPolicy
from fairsched.policies.orders import LargestPrograms, WarmPrograms
from fairsched.verify import logic as v
from fairsched.verify.conformance import WorkerPlay
from fairsched.verify.proofs.kernels import programs

_KEPT = {"kept": v.VECTOR, "one": v.VECTOR, "share": v.SCALAR}
_SENSIBLE = (
    lambda o, w: (w.kept >= 0) & (w.one >= 0) & (w.one <= w.N),
    lambda o, w: (w.share >= 0) & (w.share <= w.S),
)


def shares_system(kernel: v.Functions = programs) -> v.System:
    """Return what programs hold while one client lacks its share, which changes as clients come and go."""

    def held(o: Algebra, w: v.World) -> v.Term:
        running = w.old + w.new
        return running + kernel.kept_within(o, w.share, running, w.kept, w.one)

    def lacks(o: Algebra, w: v.World) -> v.Term:
        return o.pick(held(o, w), w.d, 0) <= w.share

    def may_enter(o: Algebra, w: v.World) -> v.Term:
        own, other = (o.pick(held(o, w), point, 0) for point in (w.p, w.d))
        beyond = kernel.beyond_share(o, w.share, own, w.need, kernel.goes_before(o, other, own))
        return o.where(beyond, False, True)

    used = (kernel.kept_within, kernel.beyond_share, kernel.goes_before)
    return v.System(
        "programs in progress",
        {"S": v.SCALAR, "N": v.SCALAR},
        (v.Need(lambda o, w: (w.S >= 1) & (w.N >= 1)),),
        dict.fromkeys(("old", "new", "sums", "olds"), v.VECTOR) | {"t": v.SCALAR, "d": v.POINT},
        (
            v.Event(
                "enter",
                lambda o, w: {"new": o.bump(w.new, w.p, w.need)},
                {"p": v.POINT, "need": v.SCALAR, **_KEPT},
                (
                    lambda o, w: o.exists(w.p) & o.exists(w.d),
                    lambda o, w: (w.need >= 1) & (w.need <= w.N),
                    *_SENSIBLE,
                    lacks,
                    may_enter,
                ),
                used,
            ),
            v.Event(
                "calls end",
                lambda o, w: {"old": w.left_old, "new": w.left_new},
                {"left_old": v.VECTOR, "left_new": v.VECTOR},
                (
                    lambda o, w: (w.left_old >= 0) & (w.left_old <= w.old),
                    lambda o, w: (w.left_new >= 0) & (w.left_new <= w.new),
                ),
            ),
            v.Event(
                "step",
                lambda o, w: {"sums": w.sums + held(o, w), "olds": w.olds + w.old, "t": w.t + w.S + w.N},
                _KEPT,
                _SENSIBLE,
                used,
            ),
        ),
    )


_RUNS = (
    v.Clause("what runs is not negative", lambda o, w: (w.old >= 0) & (w.new >= 0)),
    v.Clause(
        "what was let in is within the share and a call",
        lambda o, w: v.implies(o, w.new >= 1, w.old + w.new <= w.S + w.N),
    ),
)
_SUMS = v.Clause("what it holds sums to at most t (S + N), beside what is old", lambda o, w: w.sums <= w.olds + w.t)
_STARTS = (
    *_RUNS,
    v.Clause("no call was let in yet", lambda o, w: v.same(w.new, 0)),
    v.Clause("no step was taken yet", lambda o, w: v.same(w.sums, 0) & v.same(w.olds, 0) & v.same(w.t, 0)),
)


def _share_claim(kernel: v.Functions = programs) -> v.Claim:
    return v.Claim(P_PROG_SHARE, shares_system(kernel), _STARTS, (*_RUNS, _SUMS), (_SUMS,))


def _fits_claim(kernel: v.Functions = programs) -> v.Claim:
    """A call that needs `need`, of a client of which `running` runs and `kept` is kept, `one` the largest; `others` is
    what others hold.  Beside it, one that holds `held` while another one holds `other`."""

    def ask(o: Algebra, w: v.World) -> v.Written:
        counted, after = (
            kernel.kept_within(o, w.share, runs, w.kept, w.one) for runs in (w.running, w.running + w.need)
        )
        return {
            "counted": counted,
            "after": after,
            "fits": kernel.fits(o, w.memory, w.others + w.running, counted, w.need),
            "out": kernel.beyond_share(o, w.share, w.held, w.need, kernel.goes_before(o, w.other, w.held)),
        }

    def all_counted(o: Algebra, w: v.World) -> v.Term:
        together = w.running + w.counted
        return (w.counted >= w.kept) | ((together >= w.share) & (together >= w.one))

    def no_more(o: Algebra, w: v.World) -> v.Term:
        together = w.running + w.counted
        return (w.counted <= w.kept) & ((w.counted <= 0) | (together <= w.share) | (together <= w.one))

    def alike(o: Algebra, a: v.Term, b: v.Term) -> v.Term:
        return v.implies(o, a, b) & v.implies(o, b, a)

    return v.one_step(
        P_PROG_FITS,
        "programs in progress, one call",
        {"counted": v.SCALAR, "after": v.SCALAR, "fits": v.FLAG, "out": v.FLAG},
        v.Event("ask", ask, {}, (), (kernel.kept_within, kernel.fits, kernel.beyond_share, kernel.goes_before)),
        (
            v.Clause("all that is kept counts, or fills the share and one program", all_counted),
            v.Clause("no more than is kept, and than the share or one program", no_more),
            v.Clause("none is less than nothing", lambda o, w: w.counted >= 0),
            v.Clause(
                "it fits exactly if what is free is no less than it needs",
                lambda o, w: alike(o, w.fits, w.memory - w.others - w.running - w.counted >= w.need),
            ),
            v.Clause(
                "then all fits after it, too",
                lambda o, w: v.implies(o, w.fits, w.others + w.running + w.need + w.after <= w.memory),
            ),
            v.Clause(
                "its share keeps it out exactly if something is held, too much with it, and more than another holds",
                lambda o, w: alike(o, w.out, (w.held >= 1) & (w.need > w.share - w.held) & (w.held > w.other)),
            ),
        ),
        parameters=dict.fromkeys(
            ("memory", "share", "running", "kept", "one", "need", "others", "held", "other"), v.SCALAR
        ),
        laws=(lambda o, w: (w.running >= 0) & (w.kept >= 0) & (w.need >= 1),),
    )


# --- in the shipped policy --------------------------------------------------------------------------------------------

_STEPS = 120


def served_meanwhile(policy: ComposedPolicy, w: SimpleNamespace) -> tuple[int, bool]:
    """Return the most that a program was charged while another one waited, and whether calls ever waited while nothing
    happened.

    Programs, as (prompt, output, steps of its tool), each of a client of its own, call for ever.
    """
    play, calls = WorkerPlay(policy, WorkerState(0, w.memory)), list[int]()
    charged, due = [0] * len(w.programs), dict.fromkeys(range(len(w.programs)), 0)
    since, most = dict[int, list[int]](), 0
    for now in range(_STEPS):
        for program in [each for each, at in due.items() if at == now]:
            prompt, output, _ = w.programs[program]
            play.arrive(Request(len(calls), program, now, Prompt(prompt), output, downstream_levels=1), output, now)
            since[program] = [*charged]
            del due[program]
            calls.append(program)
        waits, events = bool(since), play.step(now)
        if waits and not events:
            return most, True
        for event in events:
            if isinstance(event, Admitted):
                charged[event.client] += event.extend_tokens
                del since[event.client]
            elif isinstance(event, Decoded):
                for client, tokens in zip(event.clients, event.tokens, strict=True):
                    charged[client] += 2 * tokens
            elif isinstance(event, Finished):
                program = calls[event.request_id]
                due[program] = now + 1 + w.programs[program][2]
        for program, begun in since.items():
            others = [now - then for i, (now, then) in enumerate(zip(charged, begun, strict=True)) if i != program]
            most = max(most, *others)
    return most, False


_WORLDS = st.fixed_dictionaries(
    {
        "memory": st.integers(24, 40),
        "quantum": st.integers(1, 8),
        "keep_steps": st.integers(0, 12),
        "programs": st.lists(
            st.tuples(st.integers(1, 12), st.integers(1, 5), st.integers(0, 4)).map(list), min_size=3, max_size=6
        ),
    }
)


@v.sampled(P_PROG_SERVES, _WORLDS, drawn=40)
def goes_on(w: SimpleNamespace, order: type[Any] = WarmPrograms, gate: type[Any] = DeficitGate) -> v.Shown:
    """Programs run one call at a time, of which the dearest is U; D is less than U."""
    policy = Programs(order=order(w.keep_steps), gate=gate(quantum=w.quantum) if gate is DeficitGate else gate())
    dearest = max(prompt + 2 * output for prompt, output, _ in w.programs)
    most, stood = served_meanwhile(policy, w)
    return {"served at most 2Q + U - 1 + D": most <= 2 * (w.quantum + dearest - 1), "one runs": not stood}


def _goes_on(w: SimpleNamespace) -> v.Shown:
    most, _ = served_meanwhile(ThunderAgent(), w)
    return {"others are served no more than ten calls": most <= 10 * max(p + 2 * o for p, o, _ in w.programs)}


def _sessions_go_on(w: SimpleNamespace) -> v.Shown:
    """Sessions of one client, as (prompt, output), call again as soon as they are answered."""
    play, calls, entered = WorkerPlay(Programs(), WorkerState(0, w.memory)), list[int](), [0] * len(w.sessions)
    due = [*range(len(w.sessions))]
    for now in range(_STEPS):
        for session in due:
            tokens, output = w.sessions[session]
            prompt = Prompt.from_keys(range(100 * session, 100 * session + tokens - 1), tokens=tokens)
            request = Request(len(calls), 0, now, prompt, output, session=str(session), downstream_levels=1)
            play.arrive(request, output, now)
            calls.append(session)
        events = play.step(now)
        due = [calls[event.request_id] for event in events if isinstance(event, Finished)]
        for event in events:
            if isinstance(event, Admitted):
                entered[calls[event.request_id]] += 1
    return {"each is let in a tenth as often as another at least": max(entered) <= 10 * min(entered)}


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Return what is said of a rule without credit, and of programs that share a client's."""
    return (
        v.refuted(
            "F-PROG-1",
            "a program that is paused between two calls goes on after finitely many of others",
            "ThunderAgent's released scheduler, as recalled here: programs that come back before new ones",
            _goes_on,
            {"memory": 40, "programs": [[10, 5, 0], [10, 5, 0], [20, 5, 0]]},
            variant="programs that come back first, without credit",
            instead=P_PROG_SERVES.id,
            text="two programs of 15 tokens come back again and again, and leave no room for a third of 25",
        ),
        v.refuted(
            "F-PROG-2",
            "no program starves, of whatever client it is",
            "programs under a gate, as this library said",
            _sessions_go_on,
            {"memory": 40, "sessions": [[10, 5], [10, 5], [20, 5]]},
            variant="the rule that ships, for several sessions of one client",
            instead=P_PROG_SERVES.id,
            text="two sessions find their prompts in the cache, go first each time, and leave no room for a third",
        ),
    )


def claims(kernel: v.Functions = programs) -> tuple[v.Claim | v.SampledClaim, ...]:
    """About the rule whose kernel functions are `kernel`'s."""
    return (_share_claim(kernel), _fits_claim(kernel), goes_on())


def witnesses() -> tuple[v.Witness, ...]:
    """Return two clients of share 3: one fills its share, and while the other holds as much gets a call of 2 more."""
    alone = shares_system()
    wait = v.Event("wait", lambda o, w: {"d": w.p}, {"p": v.POINT})
    kept: dict[str, Any] = {"kept": (0, 3), "one": (0, 1), "share": 3}
    steps: tuple[v.RunStep, ...] = (
        ("wait", {"p": 1}),
        (v.BEGIN, {}),
        ("enter", {"p": 0, "need": 2, **kept}),
        ("enter", {"p": 0, "need": 1, **kept}),
        ("enter", {"p": 0, "need": 2, **kept}),
        ("step", kept),
        ("step", kept),
    )
    history = attrs.evolve(alone, events=(*alone.events, wait))
    return (
        v.Witness(_share_claim(), 2, {"S": 3, "N": 2}, steps, 10, measure=lambda w: int(w.sums[0]), history=history),
    )


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""
    return (v.Bug("programs that come back go first, without credit", goes_on(LargestPrograms, OpenGate)),)
