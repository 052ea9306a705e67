"""A quantum that fits the traffic: who can move it, what it does to the bound, and how it follows drift."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.capacity import Traffic, fitting, fitting_to, followed
from fairsched.engines.capacity.quantum import Quanta
from fairsched.engines.simulation import Cluster, RunSpec
from fairsched.engines.workloads import generate
from fairsched.engines.workloads.sampling import TokenSource, prompt_of
from fairsched.model.request import Job, Request
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.routers import D2LPM
from tests.support.clusters import request, view_of

MEMORY = 132_000
PREFIXES = st.integers(0, 40_000)
TRAFFIC = st.builds(
    lambda prefix, more, reused: Traffic(10, 4, prefix, prefix + more, prompt_tokens=100, reused_tokens=reused),
    PREFIXES,
    st.integers(1, 30_000),
    st.integers(0, 99),
)


def asked(tokens: TokenSource, client: int, document_tokens: int, questions: int) -> list[Job]:
    """A client's questions about one document of its own."""
    document = tokens.fresh(document_tokens)
    prompts = [prompt_of(document, tokens.fresh(16)) for _ in range(questions)]
    return [
        Job(Request(id=1_000 * client + i, client=client, prompt=prompt, max_output_tokens=8, arrival_ns=i), 8)
        for i, prompt in enumerate(prompts)
    ]


@given(
    st.lists(st.integers(64, 2_000), min_size=4, max_size=12), st.integers(64, 20_000), st.integers(2, 20), st.data()
)
def test_a_quarter_of_the_clients_cannot_raise_the_prefix(
    documents: list[int], flood: int, questions: int, data: st.DataObject
) -> None:
    """Whatever prefixes they send and how often, P is at most the longest of the other clients' documents."""
    chosen = data.draw(st.sets(st.integers(0, len(documents) - 1), max_size=len(documents) // 4))
    tokens = TokenSource(0)
    jobs = [
        job
        for client, document in enumerate(documents)
        for job in asked(tokens, client, flood if client in chosen else document, questions if client in chosen else 3)
    ]
    honest = max(document for client, document in enumerate(documents) if client not in chosen)
    assert Traffic.of(jobs).prefix_tokens <= honest


@given(st.integers(160, 5_000), st.integers(3, 9))
def test_the_prefix_is_what_a_client_uses_again(document: int, questions: int) -> None:
    """All of the document but its last, partly filled block."""
    found = Traffic.of(asked(TokenSource(0), 0, document, questions))
    assert document - 16 < found.prefix_tokens <= document
    assert found.largest_tokens == document + 16 + 8


@given(TRAFFIC)
def test_the_defaults_are_the_least(traffic: Traffic) -> None:
    """Nothing is below its default, the cap admits every request, and short or rarely used prefixes change nothing."""
    fit = fitting(traffic, MEMORY)
    least = fitting(Traffic.of([]), MEMORY)
    assert fit.quantum >= least.quantum
    assert fit.router_quantum >= least.router_quantum
    assert fit.in_flight_cap_tokens is None or traffic.largest_tokens <= fit.in_flight_cap_tokens < MEMORY
    assert (fit == least) == (traffic.prefix_tokens <= 2 * least.quantum or 2 * traffic.reused_tokens <= 100)
    # A turn pays for a prefix and as much again, or the prefix is short.
    assert not fit.long_prefixes or fit.quantum >= 2 * traffic.prefix_tokens


@pytest.mark.parametrize("name", ["long-context-qa", "loogle", "video-qa"])
def test_the_bound_of_what_fits_is_below_the_default_s(name: str) -> None:
    """D-4.1 with the larger quantum and the cap, against the default quantum and the whole memory; any outputs."""
    jobs, cluster = generate(name, limit=200), Cluster()
    fit = fitting_to(jobs, cluster)
    assert fit.long_prefixes
    bounds = []
    for params in ({}, fit.params):
        policy = RunSpec.of("dlpm", params=params).policy
        assert isinstance(policy, ComposedPolicy)
        limits = policy.guarantee.limits(cluster.capacity, cluster.capacity)
        bounds.append(policy.guarantee.service_gap_bound(jobs.clients, limits))
    default, fitted = bounds
    assert default is not None
    assert fitted is not None
    assert fitted < default


@given(st.lists(TRAFFIC, min_size=2, max_size=8))
def test_what_is_set_follows_drift(hours: list[Traffic]) -> None:
    """What is set is never below what fits, never twice as much or more, and shrinks to half or less or not at all."""
    present = fitting(hours[0], MEMORY)
    for hour in hours[1:]:
        wanted, before = fitting(hour, MEMORY), present
        present = followed(before, wanted)
        for name in ("quantum", "router_quantum"):
            was, now, fits = (getattr(each, name) for each in (before, present, wanted))
            assert fits <= now < 2 * fits
            assert now >= was or 2 * now <= was
        assert attrs.evolve(present, quantum=0, router_quantum=0) == attrs.evolve(wanted, quantum=0, router_quantum=0)


def test_a_rate_and_a_step_count() -> None:
    """Quanta are cost units, and short is what two quanta of the policy's own step are."""
    traffic = Traffic(9, 3, 10_000, 12_000, prompt_tokens=2, reused_tokens=2)
    assert fitting(traffic, MEMORY, input_rate=3).quantum == 3 * fitting(traffic, MEMORY).quantum == 60_000
    assert fitting(traffic, MEMORY, step_tokens=8_192) == Quanta(16_384, 20_000, 50, None)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), max_size=12), st.integers(1, 30), st.integers(0, 200))
def test_a_router_goes_on_with_a_larger_quantum(sent: list[tuple[int, int]], quantum: int, more: int) -> None:
    """Its state is one of the larger quantum, whatever was sent before."""
    router, state = D2LPM(quantum=quantum), D2LPM(quantum=quantum).init()
    for i, (client, keys) in enumerate(sent):
        _, state = router.route(state, request(i, range(keys), client=client), view_of(0, 0, 0))
    attrs.evolve(router, quantum=quantum + more).check(state)
