"""Whose account calls are charged to: clients, their programs, or sessions; and the seats that programs take."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.analysis import EventTables, Outcomes, by_program
from fairsched.engines.serving import ProgramSeats
from fairsched.engines.simulation import Cluster, RunSpec, Simulator
from fairsched.engines.workloads import Account, WorkloadError, generate, with_account
from fairsched.model.request import Client, Groups, Job, Prompt, Request, Workload

PLACES: tuple[Groups, ...] = ((), (("acme", 2),), (("acme", 2),))
NAMES = ("solo", "acme/ann", "bob")


def workload(calls: list[tuple[int, int | None, int | None]]) -> Workload:
    """Calls as (client, program, session)."""
    clients = tuple(Client(i, name, i + 1, PLACES[i]) for i, name in enumerate(NAMES))
    jobs = tuple(
        Job(Request(i, client, 0, Prompt(4), 2, session=None if s is None else f"s{s}"), 1, program=program)
        for i, (client, program, s) in enumerate(calls)
    )
    return Workload("drawn", jobs, clients)


NUMBERS = st.none() | st.integers(0, 3)


@given(st.lists(st.tuples(st.integers(0, 2), NUMBERS, NUMBERS), min_size=1, max_size=12), st.booleans())
def test_calls_have_one_account_if_they_are_of_one_client_and_program_or_session(
    calls: list[tuple[int, int | None, int | None]], by_program: bool
) -> None:
    """Of another client or label they have another one; nothing else of a job changes, and no account is unused."""
    before = workload(calls)
    after = with_account(before, "program" if by_program else "session")
    labels = [(client, program if by_program else session) for client, program, session in calls]
    accounts = [job.request.client for job in after.jobs]
    assert len(set(zip(labels, accounts, strict=True))) == len(set(labels)) == len(after.clients)
    assert [each.id for each in after.clients] == list(range(len(after.clients)))
    assert len({each.name for each in after.clients}) == len(after.clients)
    back = [
        msgspec.structs.replace(job, request=msgspec.structs.replace(job.request, client=client))
        for job, (client, _) in zip(after.jobs, labels, strict=True)
    ]
    assert back == list(before.jobs)
    assert with_account(before, "client") is before


def test_a_program_is_in_the_groups_of_its_client_and_in_that_of_the_client() -> None:
    """With the client's weight there; a session is in no group and has the weight of its client."""
    made = with_account(workload([(0, 7, None), (1, 7, 1), (2, None, 1)]), "program")
    assert [(each.name, each.weight, each.place) for each in made.clients] == [
        ("solo/7", 1, (("solo", 1),)),
        ("acme/ann/7", 1, (("acme", 2), ("ann", 2))),
        ("bob/-", 1, (("acme", 2), ("bob", 3))),
    ]
    flat = with_account(workload([(0, 7, None), (1, 7, 1), (2, None, 1)]), "session")
    assert [(each.name, each.weight, each.place) for each in flat.clients] == [
        ("solo/-", 1, ()),
        ("acme/ann/s1", 2, ()),
        ("bob/s1", 3, ()),
    ]


def test_a_client_two_groups_deep_has_no_place_for_programs() -> None:
    """The error says which, and how deep."""
    deep = msgspec.structs.replace(
        workload([(0, 1, None)]), clients=(Client(0, "acme/ann/key", 1, (("acme", 1), ("ann", 1))),)
    )
    with pytest.raises(WorkloadError, match=r"client 'acme/ann/key' is in 2 groups, so its programs would be in 3"):
        with_account(deep, "program")


def share(account: Account, policy: str) -> float:
    """The share of a harness of sixteen agents, while three other programs of its key, of two agents, are under way."""
    made = generate("subagents", agents=16, others=3, width=2, turns=6, keys="one", task_tokens=256)
    made = with_account(made, account)
    spec, tables = RunSpec.of(policy, params={"quantum": 256}), EventTables()
    cluster = Cluster("llama-3.2-3b-a10g", kv_capacity_tokens=4_096)
    local: Any = spec.policy
    Simulator(made, local, spec.router, cluster.latency, workers=cluster.specs, on_events=tables.add).run()
    harness = next(job.program for job in made.jobs if job.request.session == "0.0")
    return by_program(Outcomes(made, tables.whole()))[harness or 0].share or 0.0


def test_agents_gain_nothing_where_programs_have_accounts() -> None:
    """Sixteen of 22 agents get more than half where sessions have accounts, and a fourth where programs have."""
    assert share("session", "dlpm") > 0.5
    assert share("program", "dlpm-hierarchical") == pytest.approx(1 / 4, abs=0.05)


# --- seats ------------------------------------------------------------------------------------------------------------

IDLE = 5
CALLS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 4), st.integers(0, 9)), max_size=40)
"""Calls as (client, program, time after the call before, how long they take)."""


@given(calls=CALLS, seats_max=st.integers(1, 4))
def test_a_program_keeps_its_seat_and_a_client_has_no_more_seats_than_programs_at_once(
    calls: list[tuple[str, int, int, int]], seats_max: int
) -> None:
    """Two programs under way share a seat only if the client has no more, and no seat is made while one is free."""
    seats, now = ProgramSeats(seats_max, IDLE), 0
    ends: list[tuple[int, str, str]] = []
    under_way: dict[tuple[str, str], tuple[int, int]] = {}
    calls_of = Counter[tuple[str, str]]()
    ever: dict[str, int] = {"a": 0, "b": 0}
    most = Counter[str]()
    for client, number, gap, takes in calls:
        now += gap
        program = str(number)
        for end in sorted(ends):
            if end[0] <= now:
                ends.remove(end)
                seats.end(*end[1:], end[0])
                calls_of[end[1:]] -= 1
                under_way[end[1:]] = (under_way[end[1:]][0], end[0])
        # Those without a call for so long are over, as far as their client's seats are concerned.
        for (owner, other), (_, last) in list(under_way.items()):
            if owner == client and not calls_of[owner, other] and last + IDLE <= now:
                del under_way[owner, other]
        seat = seats.begin(client, program, now)
        seats.check()
        before = under_way.get((client, program))
        assert before is None or before[0] == seat
        taken = {other[0] for (owner, name), other in under_way.items() if owner == client and name != program}
        if before is None and seat in taken:
            assert len(taken) == seats_max
        under_way[client, program] = (seat, now)
        calls_of[client, program] += 1
        most[client] = max(most[client], sum(owner == client for owner, _ in under_way))
        ever[client] = max(ever[client], seat + 1)
        assert ever[client] <= min(seats_max, most[client])
        ends.append((now + takes, client, program))


def test_the_seat_that_was_free_for_longest_goes_first() -> None:
    """Refills had the most time to pay what its last program owed."""
    seats = ProgramSeats(3, IDLE)
    assert [seats.begin("a", program, 0) for program in "xyz"] == [0, 1, 2]
    for now, program in enumerate("yzx"):
        seats.end("a", program, now)
    assert [seats.begin("a", program, 20) for program in "pqr"] == [1, 2, 0]
    # A fourth shares, and other clients have seats of their own.
    assert seats.begin("a", "s", 20) == 0
    assert seats.begin("b", "p", 20) == 0


def test_seats_are_refused_by_number() -> None:
    """None at all, or a negative time."""
    with pytest.raises(ValueError, match="at least 1 seat, idle for at least 0 ns, not 0 and 5"):
        ProgramSeats(0, 5)
