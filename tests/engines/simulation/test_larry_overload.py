"""Where LARRY starves a large prompt: the overload condition of its order, seen in the simulator, and mended by a gate.

Small prompts of m tokens come lambda times a second and are served mu < lambda times a second, g = lambda - mu; q0 of
them and one of M = m + d tokens wait at the beginning.  The oldest small one that waits at t came at (mu t - q0) /
lambda, and q0 + g t wait, so the large one goes first when alpha (mu t - q0) / lambda >= (q0 + g t) d:

    t = q0 (1 + lambda d / alpha) / (mu - lambda g d / alpha),    never if alpha <= g d lambda / mu.
"""

import attrs
import pytest

from fairsched.engines.simulation import Simulator
from fairsched.model.events import Admitted, Event
from fairsched.model.machine import DecodePiece, LatencyModel
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.base import Limits
from fairsched.policies.batching import RequestLevel
from fairsched.policies.catalog import LARRY, FairLARRY
from fairsched.policies.gates import DeficitGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import LarryOrder
from fairsched.policies.routers import RoundRobin

SERVED_RPS, COMING_RPS, WAITING, DIFFERENCE = 100, 125, 200, 100
SURPLUS = COMING_RPS - SERVED_RPS
ONE_AT_A_TIME = LatencyModel(
    name="one at a time",
    source="made for tests: a request takes a hundredth of a second",
    prefill_constant_ns=10**9 // SERVED_RPS,
    prefill_token_ns=0,
    prefill_attention_ps=0,
    decode=(DecodePiece(1, 1, 0, 0),),
    kv_capacity_tokens=4 * DIFFERENCE,
)
LARGE = WAITING
"""The id of the large request, the first of client 1."""


def overload(seconds: int) -> Workload:
    """The world, in which small requests come for so many seconds."""
    times = [0] * (WAITING + 1) + [k * 10**9 // COMING_RPS for k in range(1, seconds * COMING_RPS)]
    jobs = [
        Job(Request(i, int(i == LARGE), time_ns, Prompt(1 + DIFFERENCE * (i == LARGE)), 1), 1)
        for i, time_ns in enumerate(times)
    ]
    return Workload("overload", jobs, (Client(0, "small"), Client(1, "large")))


def admissions(policy: ComposedPolicy, seconds: int) -> list[Admitted]:
    """Who was admitted in that world, in order."""
    found: list[Admitted] = []

    def note(events: list[Event]) -> None:
        found.extend(event for event in events if isinstance(event, Admitted))

    policy = attrs.evolve(policy, batching=RequestLevel(max_running=1))
    Simulator(overload(seconds), policy, RoundRobin(), ONE_AT_A_TIME, on_events=note).run()
    return found


def larry(alpha: int) -> LARRY:
    """LARRY with alpha in tokens a second."""
    return LARRY(order=LarryOrder(1_000 * alpha, memory_unit="tokens"))


@pytest.mark.parametrize("times", [1.6, 2, 3])
def test_large_prompt_waits_as_long_as_the_formula_says(times: float) -> None:
    """Above the threshold the large request is admitted within 5 % of the formula's time."""
    alpha = int(times * SURPLUS * DIFFERENCE)
    predicted_s = WAITING * (1 + COMING_RPS * DIFFERENCE / alpha)
    predicted_s /= SERVED_RPS - COMING_RPS * SURPLUS * DIFFERENCE / alpha
    seen = admissions(larry(alpha), seconds=int(1.2 * predicted_s) + 1)
    (large,) = (event for event in seen if event.request_id == LARGE)
    assert large.time_ns / 1e9 == pytest.approx(predicted_s, rel=0.05)


def test_large_prompt_is_starved_at_the_threshold() -> None:
    """With alpha = g d lambda / mu (1.25 g d) it waits as long as small ones keep coming, whom all it lets pass."""
    alpha = SURPLUS * DIFFERENCE * COMING_RPS // SERVED_RPS
    seen = admissions(larry(alpha), seconds=40)
    (large,) = (event for event in seen if event.request_id == LARGE)
    assert large.time_ns > 40 * 10**9


def test_under_the_gate_the_large_prompt_is_served_within_its_bound() -> None:
    """The same order and alpha under the deficit gate: others receive at most 2Q + U before it, which is D-A.2 for a
    client without debt, though LARRY alone would starve it."""
    alpha = SURPLUS * DIFFERENCE * COMING_RPS // SERVED_RPS
    gate = DeficitGate(quantum=256)
    seen = admissions(FairLARRY(order=larry(alpha).order, gate=gate), seconds=10)
    place = [event.request_id for event in seen].index(LARGE)
    limits = Limits(4 * DIFFERENCE, 4 * DIFFERENCE - 1, 1, 1, True)
    bound = 2 * gate.quantum + gate.bound_terms((Client(0, "small"), Client(1, "large")), limits)[0].charge_max
    received = sum(event.extend_tokens * gate.rates.input + gate.rates.output for event in seen[:place])
    assert 0 < received <= bound
    assert seen[place].time_ns < 10**10
