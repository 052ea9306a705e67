"""For how long a decision holds, asked step by step.

A gate says for how many decode steps it goes on choosing the same client (`AdmissionTransaction.stays`), and a worker
leaps over them; a plan with chunks says for how many steps it is repeated (`StepPlan.valid_steps`), and a policy that
it `rests`, so that a worker does not ask.  Here the same decision is made anew after single steps, and must come out
the same.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from fairsched.model.algebra import NO_GROUP, Ints
from fairsched.model.decision import DECODE_ONLY, StepPlan
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.base import AnyLocalPolicy
from fairsched.policies.gates import AdmissionTransaction, AnyGate
from fairsched.policies.local import ComposedPolicy
from fairsched.verify.conformance.play import WorkerPlay, encoded

FAR = 1_000
"""After so many steps one looks again where a choice is said to hold until something else happens."""


def decided(gate: AnyGate, state: Any, heads: Ints, unready: Collection[int]) -> tuple[AdmissionTransaction, int]:
    """Return a decision that passes over the heads of some groups, and the group that it comes to."""
    turn = gate.begin(state, heads)
    chosen = turn.choose(heads)
    while chosen in unready:
        turn.skip(chosen)
        chosen = turn.choose(heads)
    return turn, chosen


def check_choice_holds(gate: AnyGate, state: Any, heads: Ints, clients: Sequence[int], counts: Sequence[int]) -> None:
    """Raise `AssertionError` unless each choice of a decision holds for as many steps as the gate says.

    `counts[k]` requests of `clients[k]` decode.  The groups chosen are passed over one after the other, until none is
    left: so every choice is looked at, and that of none.
    """
    unready: set[int] = set()
    chosen = None
    while chosen != NO_GROUP:
        turn, chosen = decided(gate, state, heads, unready)
        steps = turn.stays(chosen, clients, counts)
        for step in _looked_at(steps):
            later = gate.decoded(state, tuple(clients), tuple(count * step for count in counts))
            _, then = decided(gate, later, heads, unready)
            assert then == chosen, (
                f"group {chosen} is chosen, for {'ever' if steps is None else f'{steps} steps'}, "
                f"and group {then} after {step}; {sorted(unready)} are passed over"
            )
        unready.add(chosen)


def _looked_at(steps: int | None) -> Iterator[int]:
    """Yield the last step before which nothing may have changed, and some on the way there."""
    last = FAR if steps is None else steps - 1
    yield from sorted({step for step in (1, 2, last // 2, last) if 0 < step <= last})


def check_holds(policy: AnyLocalPolicy, worker: WorkerState, state: Any, plan: StepPlan, now_ns: int) -> None:
    """Raise `AssertionError` unless a decision that lets no request in holds for as long as is said."""
    if policy.rests and not (worker.queue or worker.prefilling or worker.paused):
        assert plan == DECODE_ONLY, f"the policy rests, and wants {plan}"
    if isinstance(policy, ComposedPolicy) and policy.gate.grouped and worker.decoding and state.queue.entries:
        check_choice_holds(policy.gate, state.gate, state.queue.heads, worker.clients, worker.counts)
    if plan.chunks and plan.valid_steps != 1:
        _check_repeated(policy, worker, state, plan, now_ns)


def _check_repeated(policy: AnyLocalPolicy, worker: WorkerState, state: Any, plan: StepPlan, now_ns: int) -> None:
    """Check that the same plan is decided before each of its steps, whatever arrives, until a request leaves the
    batch."""
    ahead = WorkerPlay(policy, worker)
    ahead.state = state
    client = worker.in_flight[plan.chunks[0][0]].client
    number = max([*worker.queue, *worker.in_flight]) + 1
    assert plan.valid_steps is not None
    for step in range(plan.valid_steps):
        if step:
            before = encoded(ahead.policy, ahead.state)
            again = ahead.decide(now_ns)
            assert (again.chunks, again.decode, again.changes_batch) == (plan.chunks, plan.decode, False), (
                f"step {step} of {plan.valid_steps} wants {again} instead of {plan}"
            )
            assert encoded(ahead.policy, ahead.state) == before
        ahead.execute(plan, now_ns)
        if ahead.worker.ranks is not worker.ranks or ahead.worker.ends is not worker.ends:
            return
        request = Request(number + step, client, now_ns, Prompt(1), 1)
        if ahead.policy.refuses(request) is None:
            ahead.arrive(request, 1, now_ns)
