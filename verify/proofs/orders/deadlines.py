"""Orders by deadline: what is left of them behind a gate, what a deadline is not worth, and urgency.

Agent fair share compares clients by urgency, and has a world in which one waits for ever.

D-late bounds what a gate adds to an order, from the credit of the request's client and what that client sends before
it.  Both are needed: here are the worlds in which a request is late that the order alone lets in in time.
"""

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st

from fairsched.model.request import Prompt, Request, Slo
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import RequestLevel
from fairsched.policies.catalog import AFS, EDF
from fairsched.policies.gates import BandGate, CounterGate, DeficitGate, HierarchicalGate, OpenGate, deficit
from fairsched.policies.orders import P_AFS_1, P_DL_1, AgentFairShare, EarliestDeadline, JustInTime, LeastSlack
from fairsched.verify import logic as v
from fairsched.verify.conformance import WorkerPlay, admitted
from fairsched.verify.proofs.orders.scenarios import overtakers, steps

# --- within a client --------------------------------------------------------------------------------------------------

_ORDERS = (EarliestDeadline, LeastSlack, JustInTime)
_GATES = (OpenGate(), DeficitGate(quantum=4), BandGate(quantum=4), CounterGate(), HierarchicalGate(quantum=4))
_CLIENTS = 3


def _rows() -> st.SearchStrategy[list[list[int]]]:
    """Return requests as (steps after the one before, prompt, output, client, target for the first token or 0, and for
    the end)."""
    target = st.integers(0, 30)
    row = st.tuples(st.integers(0, 2), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2), target, target)
    return st.lists(row.map(list), min_size=2, max_size=12)


def _with_targets(number: int, row: list[int], now_ns: int) -> Request:
    _, prompt, output, client, first_ns, end_ns = row
    slo = Slo(ttft_ns=first_ns or None, latency_ns=end_ns or None)
    return Request(number, client, now_ns, Prompt(prompt), output + 2, slo=slo)


_WORLDS = st.fixed_dictionaries(
    {
        "capacity": st.integers(16, 40),
        "seats": st.integers(1, 3),
        "order": st.integers(0, len(_ORDERS) - 1),
        "gate": st.integers(0, len(_GATES) - 1),
        "rows": _rows(),
    }
)


@v.sampled(P_DL_1, _WORLDS)
def within(w: SimpleNamespace, orders: tuple[type[EarliestDeadline], ...] = _ORDERS) -> v.Shown:
    """Three clients, of which each request has a target for its first token, for its end, both or none."""
    gate, in_order = _GATES[w.gate], True
    shipped, policy = _ORDERS[w.order](), EDF(order=orders[w.order](), gate=gate)
    for step in steps(policy, w, _with_targets):
        waiting = {i: (shipped.number(each), each.age) for i, each in step.before.queue.entries.items()}
        clients = {i: each.request.client * gate.grouped for i, each in step.before.queue.entries.items()}
        for entry in step.plan.admit:
            due = waiting.pop(entry.request_id)
            client = clients.pop(entry.request_id)
            in_order &= all(due < waiting[other] for other, of in clients.items() if of == client)
    return {"none of its client was due sooner": in_order}


# --- by urgency -------------------------------------------------------------------------------------------------------

_TWO = ("work", "left", "other_work", "other_left")


@v.arithmetic(P_AFS_1, _TWO, *v.at_least(1, "work", "other_work"))
def urgency(w: SimpleNamespace, kind: Any = AgentFairShare) -> v.Shown:
    """Two clients, with work of 1 at least, and so long until their first deadlines."""
    before = kind().goes_before
    first, second = (
        before(w.work, w.left, w.other_work, w.other_left),
        before(w.other_work, w.other_left, w.work, w.left),
    )
    both = v.same(w.left, w.other_left) & (w.left >= 1)
    return {
        "who is late goes before who is not": v.if_then((w.left <= 0) & (w.other_left >= 1), first),
        "of the same deadline, more work first": v.if_then(both & (w.work > w.other_work), first),
        "not each before the other": v.if_then(first, v.if_then(second, w.work < 0)),
    }


def _as_shared(w: SimpleNamespace) -> v.Shown:
    """One client's only call comes as the second; all others are of another.  Steps take a second, targets as long."""
    policy = AFS(batching=RequestLevel(max_running=1))

    def request(number: int, now_ns: int) -> Request:
        slo = Slo(latency_ns=w.target_s * 10**9)
        return Request(number, int(number != 1), now_ns, Prompt(1), 1, slo=slo)

    return {"at most ten times as late": overtakers(policy, 100, w.coming, request, 1)[0] <= 10}


# --- across clients: what is false ------------------------------------------------------------------------------------
# One request is served at a time.  Rows are (second of arrival, client, prompt, output, second in which it is due).


def let_in(gate: Any, rows: list[list[int]]) -> dict[int, int]:
    """Return the second in which each request is let in, by its number: the earliest deadline first, behind a gate."""
    policy = EDF(gate=gate, batching=RequestLevel(max_running=1))
    play, entered, now = WorkerPlay(policy, WorkerState(0, MEMORY)), dict[int, int](), 0
    while len(entered) < len(rows):
        for number, (at, client, prompt, output, due) in enumerate(rows):
            if at == now:
                slo = Slo(ttft_ns=(due - at) * 10**9)
                request = Request(number, client, at * 10**9, Prompt(prompt), output, slo=slo)
                play.arrive(request, output, now * 10**9)
        entered |= dict.fromkeys(admitted(play.step(now * 10**9)), now)
        now += 1
    return entered


MEMORY, QUANTUM = 5, 4
CHARGE_MAX = 9
"""The most that a client is charged after an admission: one token of a prompt, and four of output."""
MOST = QUANTUM + CHARGE_MAX - 1 + 2 * QUANTUM
"""D-late of a client with the deepest debt, which takes two rounds of its quantum to pay."""


def passed_cost(gate: Any, rows: list[list[int]], number: int) -> int:
    """Return what requests of other clients cost that are due later, and let in while this one waits."""
    entered = let_in(gate, rows)
    at, client, _, _, due = rows[number]
    return sum(
        prompt + 2 * output
        for other, (_, of, prompt, output, its_due) in enumerate(rows)
        if of != client and its_due > due and at <= entered[other] < entered[number]
    )


def _in_time(w: SimpleNamespace) -> v.Shown:
    """The last request of the world."""
    last, (*_, due) = len(w.rows) - 1, w.rows[-1]
    alone, gated = (let_in(gate, w.rows)[last] <= due for gate in (OpenGate(), DeficitGate(quantum=QUANTUM)))
    return {"in time behind the gate too": gated or not alone}


def _by_a_constant(w: SimpleNamespace) -> v.Shown:
    return {"no more": passed_cost(DeficitGate(quantum=QUANTUM), w.rows, len(w.rows) - 1) <= MOST}


IN_DEBT: list[list[int]] = [
    [0, 0, 1, 1, 1],
    [0, 0, 1, 4, 2],
    *([0, 1, prompt, output, 90] for prompt, output in ((2, 1), (2, 1), (1, 1), (1, 4))),
    [2, 0, 1, 1, 5],
]
"""f is served 3 and 9, and will owe 8; its next request is due when the worker is free.  g has a quantum of credit."""
TURNS: list[list[int]] = [[0, client, 1, 1, 1 + 50 * client + i] for i in range(12) for client in (1, 0)]


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Return what is said of deadlines behind a gate, and of urgency."""
    return (
        v.refuted(
            "F-AFS-1",
            "of two clients, a call of the one that has no other is let in at most ten times as late as at an equal "
            "share, whatever the other sends",
            "SAGA (arXiv 2605.00528): 'task-completion-time fairness with provable bounded-deviation guarantees'",
            _as_shared,
            {"coming": [30, *[1] * 40], "target_s": 20},
            variant="the order that ships",
            instead=P_AFS_1.id,
            text="30 calls of the other client come with it, and one a second after that, as many as are served: all "
            "are late after 20 s, and the client with more work goes first",
        ),
        v.refuted(
            "F-DL-1",
            "a deadline that earliest deadline first meets is met behind a deficit gate too",
            "edf+deficit, as it is hoped",
            _in_time,
            {"rows": IN_DEBT},
            variant="the order and the gate that ship",
            instead=deficit.D_LATE.id,
            text="the client of the request owes 8, and another is served 20 before it: all that D-late says",
        ),
        v.refuted(
            "F-DL-2",
            "a gate delays no request by more than a constant: what D-late says of a client's first request",
            "edf+deficit, as it is hoped",
            _by_a_constant,
            {"rows": TURNS},
            variant="the order and the gate that ship",
            instead=deficit.D_LATE.id,
            text="12 requests of a client are due before 12 of another, and the clients take turns all the same",
        ),
    )


def claims() -> tuple[v.ArithmeticClaim | v.SampledClaim, ...]:
    """About the orders that ship."""
    return (within(), urgency())


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""
    later = v.changed(EarliestDeadline, "number", "return nearest(", "return -nearest(")
    blind = v.changed(LeastSlack, "number", ", *self.work_ns(queued)", "")
    hasty = v.changed(JustInTime, "number", "begins - self", "begins + self")
    calm = v.changed(AgentFairShare, "goes_before", "other_left > 0 or", "other_left > 0 and")
    idle = v.changed(AgentFairShare, "goes_before", "work * other_left > other_work", "other_work * other_left > work")
    return (
        v.Bug("a late client waits for one that is not", urgency(calm)),
        v.Bug("the client with less work first", urgency(idle)),
        v.Bug("the latest deadline first", within((later, LeastSlack, JustInTime))),
        v.Bug("work is forgotten", within((EarliestDeadline, blind, JustInTime))),
        v.Bug("a request that yields more may wait longer", within((EarliestDeadline, LeastSlack, hasty))),
    )
