"""The gateway's findings as attacks, through HTTP in virtual time: the polite client has its answers beside each.

Every test plays an attack and the honest flood that asks for the same work (`tests/support/attacks/table.py`), and
names its finding.  `benchmarks/gateway/attacks.py` plays the same attacks with processes and real time.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.support.attacks.floods import beside, later
from tests.support.attacks.table import ATTACKS, HONEST, Attack
from tests.support.attacks.virtual import POLITE, Played, play, stands_still

pytestmark = pytest.mark.nightly
BY_NAME = {attack.name: attack for attack in ATTACKS}
KEPT = 0.9
"""Of the polite client's answers beside an honest flood, beside any other."""

Versus = Callable[..., tuple[Played, Played]]
TOGETHER = pytest.mark.parametrize("gateways", [1, 2], ids=["one gateway", "two with one account"])
"""Where charges, reservations, names or the queue matter, calls of all come to two gateways in turns, too."""
_HONEST: dict[tuple[Attack, float, int], Played] = {}
"""Honest runs so far, by all that they depend on: many attacks are held against the same."""


def honest_run(attack: Attack, seconds: float, folder: Path, gateways: int) -> Played:
    """Return what came of the honest flood in place of an attack."""
    key = attack.as_honest(), seconds, gateways
    if key not in _HONEST:
        _HONEST[key] = play(key[0], seconds=seconds, folder=folder, gateways=gateways)
    return _HONEST[key]


@pytest.fixture
def versus(full_budget: bool, tmp_path: Path) -> Versus:
    """Return what plays an attack by its name, with changes: the honest run and the attacked one.

    The polite client has its answers, the bound holds, and the policy was not set aside.
    """

    def played(name: str, seconds: float = 14.0, gateways: int = 1, **changes: Any) -> tuple[Played, Played]:
        attack: Attack = attrs.evolve(BY_NAME[name], **changes)
        seconds = 60.0 if full_budget else seconds
        honest = honest_run(attack, seconds, tmp_path, gateways)
        attacked = play(attack, seconds=seconds, folder=tmp_path, gateways=gateways)
        assert honest.answered >= 25
        assert attacked.answered >= KEPT * honest.answered, (honest, attacked)
        for each in (honest, attacked):
            # A gateway that shares an account sees its part of the gap.
            assert gateways > 1 or each.status["promise"]["bound_violations"] == 0
            assert each.status["set_aside"] is None
        return honest, attacked

    return played


def charged_and_computed(run: Played) -> tuple[int, int]:
    """Output tokens that the flood was charged, and that engines computed for it."""
    charged = sum(run.charged(name) for name in run.status["clients"] if name != POLITE)
    return charged, sum(tokens for name, tokens in run.computed.items() if name != POLITE)


@TOGETHER
@pytest.mark.parametrize("name", ["withheld", "several"])
def test_finding_1_output_that_no_event_shows_is_charged(versus: Versus, name: str, gateways: int) -> None:
    """Text that a stop text withholds, and events of several tokens: usage is asked of the server and charged."""
    _, attacked = versus(name, gateways=gateways)
    charged, computed = charged_and_computed(attacked)
    in_flight = 4 * 90
    assert charged >= computed - in_flight


def test_calls_that_fail_at_once_are_not_free(versus: Versus) -> None:
    """Work that is over in less time than a failure at once may take is charged by time: a client whose calls are free
    always has credit, and no other is given any."""
    _, attacked = versus("short-500")
    charged, computed = charged_and_computed(attacked)
    assert charged >= 0.8 * (computed - 9 * 12)


@TOGETHER
@pytest.mark.parametrize("name", ["leaves", "late-500"])
def test_finding_2_work_of_calls_that_end_without_usage_is_charged(versus: Versus, name: str, gateways: int) -> None:
    """Callers that leave, and a 500 after the work, are charged by an estimate, which is no less than a tenth under
    what was computed."""
    _, attacked = versus(name, gateways=gateways)
    charged, computed = charged_and_computed(attacked)
    in_flight = 4 * 75
    assert charged >= 0.9 * (computed - in_flight)


def test_finding_2_work_that_times_out_is_charged_and_not_done_again(versus: Versus) -> None:
    """A server that is silent for too long: what it computed is charged.  Calls of the flood last for seconds, so that
    a run of 14 s says when the first ones end (the polite client has 58 answers there for 84), not what is shared."""
    _, attacked = versus("time-outs", seconds=30.0)
    charged, computed = charged_and_computed(attacked)
    in_flight = 8 * 250
    assert charged >= 0.9 * (computed - in_flight)
    assert not [outcome for outcome in attacked.status["outcomes"] if outcome.startswith("tried again")]


@TOGETHER
def test_finding_3_declaring_far_more_than_comes_takes_no_room_from_others(versus: Versus, gateways: int) -> None:
    """Four clients that declare the whole window with each call: what they may declare beyond their reservations is
    bounded, which holds up themselves."""
    versus("declares", gateways=gateways)


def test_finding_3_ordinary_over_declaring_costs_no_throughput(versus: Versus) -> None:
    """Reservations follow what calls come to: the engines work as much as for calls that declare what comes."""
    honest, attacked = versus("ordinary")
    assert sum(attacked.computed.values()) >= KEPT * sum(honest.computed.values())


def test_finding_5_a_server_that_fails_fast_swallows_no_traffic(versus: Versus) -> None:
    """It is left alone after a few failures; the polite client has at most a few errors of its hundreds of calls."""
    _, attacked = versus("fails-fast")
    assert sum(attacked.refused.values()) <= 10


def test_finding_5_a_server_that_hangs_keeps_no_calls(versus: Versus) -> None:
    """Its health path says so; calls of which no byte came go to the other server."""
    versus("hangs", limits=(("health_seconds", 0.5),))


def test_finding_6_a_long_answer_rests_no_server(versus: Versus) -> None:
    """Answers of 70 MB pass, and nobody is refused."""
    _, attacked = versus("huge")
    assert not attacked.refused
    assert set(attacked.seen) <= {"200"}


@pytest.mark.parametrize("name", ["window-sized", "withdrawn"])
def test_a_call_as_large_as_the_window_is_passed(versus: Versus, name: str) -> None:
    """Others go while it waits; what it kept is charged, whether it was served or withdrawn."""
    _, attacked = versus(name, seconds=30.0)
    assert attacked.status["clients"]["f1"]["held_token_seconds"] > 1000


def test_finding_8_a_gateway_that_is_late_itself_takes_no_server_out(tmp_path: Path) -> None:
    """The loop stands still for 20 s, again and again: longer than a connection or a health path may take.  Servers
    stay up, and each call is answered by the first server that it was sent to."""
    late = (later(4.0 + 23.0 * i, stands_still(20.0)) for i in range(3))
    attack = attrs.evolve(BY_NAME["withheld"], engines=2, flood=beside(HONEST, *late))
    run = play(attack, seconds=75.0, folder=tmp_path)
    assert run.answered >= 20
    assert not run.refused
    assert set(run.seen) == {"200"}
    assert not [outcome for outcome in run.status["outcomes"] if outcome.startswith(("tried again", "failed"))]
    assert all(server["up"] for server in run.status["servers"].values())


@TOGETHER
def test_finding_9_free_requests_take_no_names(versus: Versus, gateways: int) -> None:
    """1,100 random keys list models, and unknown callers still have names of their own afterwards."""
    _, attacked = versus("names", gateways=gateways)
    assert attacked.seen["models 200"] == 1100
    assert "others" not in attacked.status["clients"]


@TOGETHER
def test_finding_10_a_full_queue_has_room_for_a_client_within_its_share(
    versus: Versus, gateways: int, full_budget: bool
) -> None:
    """The polite client of weight 4 with one call at a time gets no 429 while four others fill the queue."""
    if gateways > 1 and not full_budget:
        pytest.skip("runs with --full-budget")
    _, attacked = versus(
        "full-queue",
        seconds=40.0,
        gateways=gateways,
        limits=(("waiting", 64 // gateways), ("waiting_per_client", 32 // gateways)),
    )
    assert not attacked.refused
    assert attacked.seen["429"] > 0
