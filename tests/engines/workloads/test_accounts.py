"""Whose account calls are charged to: clients, their programs, or sessions."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.analysis import EventTables, Outcomes
from fairsched.engines.analysis.metrics import by_program
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
