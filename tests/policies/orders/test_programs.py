"""Programs in progress: which calls are kept out by what others hold between their calls, and when no longer."""

from typing import Any

import pytest

from fairsched.model import worker as transitions
from fairsched.model.events import ClientConfigured
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.catalog import Concur, Continuum, Programs
from fairsched.policies.gates import DeficitGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import CountedPrograms, QueuedRequest, WarmPrograms
from fairsched.policies.orders.abilities import ProgramsHeld
from fairsched.verify.conformance import WorkerPlay, admitted

KEEP_STEPS = 6


def programs(**more: Any) -> ComposedPolicy:
    """The rule under a deficit gate with a quantum that is more than all is charged."""
    return Programs(order=WarmPrograms(KEEP_STEPS), gate=DeficitGate(**{"quantum": 1_000, **more}))


class Session:
    """A worker of 40 tokens, to which calls come."""

    def __init__(self, policy: ComposedPolicy) -> None:
        self.play = WorkerPlay(policy, WorkerState(0, 40))
        self.now = self.calls = 0

    def call(self, client: int, prompt: int, output: int = 2, follows: int = 1, session: str | None = None) -> int:
        """Let a call come that `follows` others of its program follow; returns its number."""
        request = Request(
            self.calls, client, self.now, Prompt(prompt), output, session=session, downstream_levels=follows
        )
        self.play.arrive(request, output, self.now)
        self.calls += 1
        return request.id

    def step(self, steps: int = 1) -> list[int]:
        """Return which calls are let in within so many steps."""
        entered = []
        for _ in range(steps):
            self.now += 1
            entered += admitted(self.play.step(self.now))
        return entered

    @property
    def held(self) -> ProgramsHeld:
        """What programs hold."""
        found: ProgramsHeld = self.play.state.queue.extension(ProgramsHeld)
        return found


def test_a_call_waits_for_room_that_is_kept_until_the_program_is_forgotten() -> None:
    """A program of 20 tokens between its calls, a call that runs, and a new one that fits beside one of them only."""
    worker = Session(programs())
    worker.call(0, 18)
    assert worker.step(2) == [0]
    assert [kept.tokens for kept in worker.held.between.values()] == [20]
    worker.call(1, 4, output=12)
    assert worker.step() == [1]
    worker.call(2, 4)
    assert worker.step(KEEP_STEPS - 2) == []
    policy: Any = worker.play.policy
    assert policy.wait_reason(worker.play.state, worker.play.worker.view(worker.now), 2) == "memory"
    assert worker.step() == []
    assert not worker.held.between
    assert worker.step() == [2]


def test_a_program_that_comes_back_finds_its_room() -> None:
    """A call that fits beside nothing else than its own context goes on, and a larger one pauses."""
    worker = Session(programs())
    worker.call(0, 18)
    worker.step(2)
    worker.call(1, 4, output=12)
    assert worker.step() == [1]
    back = worker.call(0, 20)
    assert worker.step(2) == [back]
    worker.call(0, 24)
    assert worker.step() == []
    assert not worker.held.between  # It pauses, and holds nothing.


def test_a_program_that_ends_keeps_nothing() -> None:
    """No other call follows the last one."""
    worker = Session(programs())
    worker.call(0, 18, follows=0)
    worker.step(2)
    assert not worker.held.between
    assert not worker.held.running


def test_a_program_whose_next_call_waits_keeps_nothing() -> None:
    """What its call that ended computed does not stand in the way of its own call that waits."""
    worker = Session(programs())
    worker.call(0, 18, output=3)
    worker.call(1, 2, output=12)
    assert worker.step() == [0, 1]
    waits = worker.call(0, 18)
    assert worker.step(2) == []
    assert [*worker.play.worker.running] == [1]
    assert not worker.held.between
    assert worker.step() == [waits]


def test_nothing_is_kept_for_a_client_without_credit() -> None:
    """One that was served more than its quantum loses its room to one that waits with credit."""
    worker = Session(programs(quantum=15))
    worker.call(1, 1, output=1, follows=0)
    worker.step()
    worker.call(0, 18)
    worker.step(2)
    assert worker.held.between
    worker.call(1, 4, output=12, session="a")
    worker.step()
    worker.call(1, 4, session="b")
    assert worker.step() == [3]


def test_where_nothing_runs_the_next_call_is_let_in() -> None:
    """Whatever is kept for others; only one, for then something runs."""
    worker = Session(programs())
    worker.call(0, 28)
    worker.step(2)
    worker.call(1, 18)
    worker.call(2, 18)
    assert worker.step() == [1]


@pytest.mark.parametrize(("weight", "goes"), [(1, []), (2, [3])])
def test_beyond_its_share_a_client_waits_while_one_holds_less(weight: int, goes: list[int]) -> None:
    """Client 0 runs a call of 14 of 40 tokens, and a second one would be 20: half of memory is its share, or two
    thirds by weight 2.  Client 1 waits for a call that fits nowhere beside it."""
    worker = Session(programs())
    worker.play.follow((worker.play.worker, [ClientConfigured(0, 0, 0, weight)]))
    worker.call(0, 10, output=4, session="a")
    worker.call(1, 8, output=1, session="kept")
    worker.step(2)
    worker.call(1, 28, session="large")
    worker.call(0, 4, output=3, session="b")
    assert worker.step() == goes


def test_a_lone_client_may_have_all_memory() -> None:
    """A share binds only while another client waits."""
    worker = Session(programs())
    for session in "abcd":
        worker.call(0, 8, session=session)
    assert worker.step() == [0, 1, 2, 3]


def test_programs_keep_their_place_by_when_they_came() -> None:
    """A call of an older program goes before one of a younger that came earlier."""
    worker = Session(Continuum(keep_steps=20))
    worker.call(0, 10, output=1)
    worker.step()
    worker.call(1, 10, output=10)
    worker.step()
    worker.call(2, 25)
    assert worker.step() == []
    back = worker.call(0, 12)
    assert worker.step() == [back]


def test_the_window_grows_with_hits_and_is_halved_by_a_miss() -> None:
    """So many returning calls that find their context widen it by one; one that does not halves it, once a window."""
    held, widths = ProgramsHeld(), []
    back = QueuedRequest(Request(0, 0, 0, Prompt(10), 1), 5, 0, tag=0)
    for hit in (True, True, True, True, False, False, False, False):
        held = held.started(back, 2 if hit else 9).ended(CountedPrograms(), back, None)
        widths.append(held.window)
    assert widths == [4, 4, 4, 5, 2, 2, 2, 1]


def test_more_programs_than_the_window_wait() -> None:
    """Four are let in at first, a fifth when one has ended."""
    worker = Session(Concur())
    for client in range(5):
        worker.call(client, 4, output=2 if client else 1, follows=0)
    assert worker.step() == [0, 1, 2, 3]
    assert worker.step() == [4]


def test_the_sums_are_of_what_runs() -> None:
    """Of a call that its caller gave up nothing is held, and its program is not kept."""
    worker = Session(programs())
    worker.call(0, 10, output=5)
    worker.step(2)
    assert dict(worker.held.running) == {0: 15}
    worker.play.follow(transitions.cancel(worker.play.worker, 0, worker.now))
    assert not worker.held.running
    assert not worker.held.between
