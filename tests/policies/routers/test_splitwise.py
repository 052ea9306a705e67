"""Splitwise's cluster scheduler: which pair of machines a request gets, and how pools follow the work."""

from collections import Counter
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.simulation import Simulator, simulate_events
from fairsched.engines.workloads.fleet import Change, Crash, Drain, Join, KvLink, LinkDown, Restart, WorkerSpec
from fairsched.model import events as ev
from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch, Migration, Role, WorkerLoad
from fairsched.model.machine import DecodePiece, LatencyModel
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.batching import WholePrompts
from fairsched.policies.catalog import SplitwiseMachine
from fairsched.policies.gates import OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import AgeingOrder, PromptsFirst
from fairsched.policies.routers import Splitwise, SplitwisePrinted, SplitwiseReleased
from fairsched.policies.routers.splitwise import Pools, pool_of
from fairsched.verify.conformance.strategies import workloads

LATENCY = LatencyModel("test", "made for tests", 30, 7, 1_500, (DecodePiece(1, 50, 1, 2),), 200)
S = 1_000_000_000


class Cluster:
    """Machines of given roles, and what their scheduler does, by hand."""

    def __init__(self, policy: Splitwise, roles: str, capacity: int = 100_000) -> None:
        self.policy, self.now_ns, self.count = policy, 0, 0
        kinds: dict[str, Role] = {"P": "prefill", "T": "decode", "M": "both"}
        self.loads = tuple(WorkerLoad(i, 0, 0, 0, capacity, capacity, kinds[role]) for i, role in enumerate(roles))
        self.state: Pools = policy.init()
        self.tell(*(ev.WorkerJoined(0, load.worker, capacity) for load in self.loads))

    def tell(self, *events: ev.Event) -> None:
        """Events happen."""
        for event in events:
            self.state = self.policy.observe(self.state, event)
            self.policy.check(self.state)

    def decide(self) -> ClusterPlan:
        """The scheduler decides."""
        plan, self.state = self.policy.decide(self.state, ClusterView(self.now_ns, self.loads))
        self.policy.check(self.state)
        return plan

    def request(self, prompt: int = 1_000, output: int = 100) -> tuple[int, Dispatch, Migration | None]:
        """A request comes; its number, where its prompt goes, and how its KV leaves there."""
        request = Request(self.count, 0, self.now_ns, Prompt(prompt), output)
        self.count += 1
        self.tell(ev.Arrived(self.now_ns, ev.NOWHERE, request))
        plan = self.decide()
        (dispatch,) = plan.dispatches
        self.tell(ev.Arrived(self.now_ns, dispatch.worker, request))
        return request.id, dispatch, plan.migrations[0] if plan.migrations else None

    def prompt_is_done(self, request_id: int) -> None:
        """The prompt is computed, and the request leaves for its other machine, if it has one."""
        pair = self.state.pairs[request_id]
        self.tell(ev.Prefilled(self.now_ns, pair.prompt, request_id, 0, pair.prompt_tokens, 0))
        if pair.output != pair.prompt:
            self.tell(ev.Migrated(self.now_ns, pair.prompt, request_id, 0, True, 0, 1, kv_tokens=5))

    def pools(self) -> str:
        """The machines' pools, a letter each."""
        names = {"prefill": "P", "decode": "T", "both": "M"}
        return "".join(names[self.state.machines[load.worker].pool] for load in self.loads)


def test_a_request_gets_both_machines_when_it_comes() -> None:
    """The prompt machine with the fewest pending tokens, the token machine with the most free memory, in one plan."""
    cluster = Cluster(Splitwise(), "PPTT")
    _, first, to = cluster.request()
    assert (first, to) == (Dispatch(0, 0, True), Migration(0, 0, 2, True, 99, "layers"))
    _, second, to = cluster.request(prompt=3_000)
    assert (second.worker, to and to.target) == (1, 3)
    _, third, to = cluster.request()
    assert (third.worker, to and to.target) == (0, 2)


@pytest.mark.parametrize(("tokens", "overlap"), [(511, "none"), (512, "layers")])
def test_short_prompts_are_sent_when_they_are_computed(tokens: int, overlap: str) -> None:
    """From 512 tokens on KV is sent layer by layer."""
    _, _, migration = Cluster(Splitwise(), "PT").request(prompt=tokens)
    assert migration is not None
    assert migration.overlap == overlap


def test_fallbacks_in_order_and_the_way_back() -> None:
    """A long queue: the mixed pool first, then a token machine, which is mixed until the prompt is done."""
    cluster = Cluster(Splitwise(), "PMTT")
    assert [cluster.request(prompt=8_000)[1].worker for _ in range(3)] == [0, 1, 2]
    assert cluster.pools() == "PMMT"
    # Now no queue is short: of the token machines the one with the least token work lends itself.
    assert cluster.request(prompt=8_000)[1].worker == 3
    assert cluster.pools() == "PMMM"
    # And then the least pending of all.
    assert cluster.request(prompt=7_000)[1].worker == 0
    cluster.prompt_is_done(2)
    assert cluster.pools() == "PMTM"
    cluster.prompt_is_done(3)
    assert cluster.pools() == "PMTT"


def test_a_full_token_pool_takes_a_prompt_machine() -> None:
    """Mirror image: a prompt machine decodes what fits nowhere else, and is a prompt machine again when that ended."""
    cluster = Cluster(Splitwise(), "PPT", capacity=2_500)
    first, _, to = cluster.request()
    second, _, _ = cluster.request()
    assert cluster.pools() == "PPT"
    third, dispatch, to = cluster.request()
    assert cluster.pools() == "MPT"
    # The prompt machine with the least prompt work decodes it, here the one that computes its prompt: nothing is sent.
    assert (dispatch, to) == (Dispatch(third, 0, False), None)
    cluster.tell(ev.Finished(5, 0, third, 0, 100))
    assert cluster.pools() == "PPT"
    cluster.tell(ev.Cancelled(6, 0, first, 0, False, 0, 0), ev.Rejected(6, 1, second, 0, "for the test"))
    assert not cluster.state.pairs


def test_machines_of_both_kinds_serve_without_transfers() -> None:
    """A fleet without roles is one mixed pool: one machine may be both of a pair."""
    cluster = Cluster(Splitwise(), "M")
    _, dispatch, migration = cluster.request()
    assert (dispatch, migration) == (Dispatch(0, 0, False), None)


@pytest.mark.parametrize("roles", ["PP", "TT"])
def test_a_fleet_of_one_kind_serves(roles: str) -> None:
    """Without a machine of the other kind its own lend themselves."""
    cluster = Cluster(Splitwise(), roles)
    for _ in range(4):
        cluster.request()
    assert "M" in cluster.pools()
    assert len(cluster.state.pairs) == 4


def test_machines_that_were_mixed_for_long_change_sides() -> None:
    """After ten minutes of token work a prompt machine is a token machine; the last prompt machine stays one."""
    cluster = Cluster(Splitwise(), "PPT", capacity=2_500)
    for _ in range(6):
        cluster.request(prompt=1_000, output=100)
    assert cluster.pools() == "MMT"
    cluster.now_ns = 599 * S
    cluster.request(prompt=10, output=2)
    assert [machine.origin for _, machine in sorted(cluster.state.machines.items())] == ["prefill", "prefill", "decode"]
    cluster.now_ns = 601 * S
    cluster.request(prompt=10, output=2)
    assert [machine.origin for _, machine in sorted(cluster.state.machines.items())] == ["decode", "prefill", "decode"]
    never = Cluster(SplitwiseReleased(), "PPT", capacity=2_500)
    for _ in range(6):
        never.request()
    never.now_ns = 10_000 * S
    never.request()
    assert [machine.origin for _, machine in sorted(never.state.machines.items())] == ["prefill", "prefill", "decode"]


def test_a_failed_transfer_is_sent_elsewhere_and_then_stays() -> None:
    """The first time to another machine, the second time the request goes on where its prompt was computed."""
    cluster = Cluster(Splitwise(), "PTT")
    request_id, _, to = cluster.request()
    assert to is not None
    cluster.prompt_is_done(request_id)
    cluster.tell(ev.TransferFailed(0, 0, request_id, 0, to.target))
    (again,) = cluster.decide().migrations
    assert again == Migration(request_id, 0, 2, True, 99, "none")
    cluster.tell(ev.TransferFailed(0, 0, request_id, 0, again.target))
    (stays,) = cluster.decide().migrations
    assert (stays.source, stays.target) == (0, 0)
    assert cluster.pools() == "MTT"


def test_a_failure_before_the_first_token_is_sent_when_that_is_out() -> None:
    """A target that goes while the prompt is computed is replaced when the request is staged."""
    cluster = Cluster(Splitwise(), "PTT")
    request_id, _, to = cluster.request()
    assert to is not None
    cluster.tell(ev.TransferFailed(0, 0, request_id, 0, to.target), ev.WorkerLeft(0, to.target))
    cluster.loads = tuple(load for load in cluster.loads if load.worker != to.target)
    assert cluster.decide() == ClusterPlan()
    cluster.prompt_is_done(request_id)
    assert [migration.target for migration in cluster.decide().migrations] == [2]


def test_variants() -> None:
    """Printed: outputs by number of requests, memory is not looked at.  Released: a machine is full when it is full."""
    for policy, expected in ((Splitwise(), "MT"), (SplitwisePrinted(), "PT"), (SplitwiseReleased(), "PT")):
        cluster = Cluster(policy, "PT", capacity=2_000)
        for _ in range(2):
            cluster.request(prompt=1_000, output=100)
        assert cluster.pools() == expected, policy.name
    released = Cluster(SplitwiseReleased(), "PT", capacity=2_000)
    for _ in range(3):
        released.request(prompt=1_000, output=100)
    assert released.pools() == "MT"
    # At the threshold a prompt of any length is added as printed; here it is too long for the queue.
    for policy, where in ((SplitwisePrinted(), 0), (Splitwise(), 1)):
        cluster = Cluster(policy, "PT")
        cluster.request(prompt=8_000)
        assert cluster.request(prompt=30_000)[1].worker == where


# --- in drawn worlds --------------------------------------------------------------------------------------------------


@attrs.frozen
class Checked(Splitwise):
    """Looks at its books after every event and decision."""

    def observe(self, state: Pools, event: ev.Event) -> Pools:
        after = super().observe(state, event)
        self.check(after)
        return after

    def decide(self, state: Pools, view: ClusterView) -> tuple[ClusterPlan, Pools]:
        plan, after = super().decide(state, view)
        self.check(after)
        return plan, after


@st.composite
def fleets(draw: st.DrawFn) -> list[WorkerSpec]:
    """Two to five machines of roles for both phases, small enough to be full."""
    kinds: tuple[Role, ...] = ("prefill", "decode", "both")
    roles = draw(
        st.lists(st.sampled_from(kinds), min_size=2, max_size=5).filter(
            lambda drawn: set(drawn) not in ({"prefill"}, {"decode"})
        )
    )
    return [WorkerSpec(LATENCY, draw(st.integers(20, 60)), role=role) for role in roles]


def changes(machines: int) -> st.SearchStrategy[list[Change]]:
    """What may happen to them."""
    at, who, down = st.integers(0, 3_000), st.integers(0, machines - 1), st.integers(0, 900)
    return st.lists(
        st.one_of(
            st.builds(Crash, who, at, st.none() | down),
            st.builds(Restart, who, at, down),
            st.builds(LinkDown, who, at, down),
            st.builds(Drain, who, at),
            st.builds(Join, at),
        ),
        max_size=4,
    )


@given(st.data(), workloads(), fleets(), st.sampled_from((0, 5)), st.sampled_from(("static", "optimistic")))
def test_pools_follow_the_work_whatever_happens(
    data: st.DataObject, jobs: Workload, fleet: list[WorkerSpec], layers_from: int, reserve: Any
) -> None:
    """P-SW-1 under crashes, restarts, drains, joins and failed links: books are exact after every event, and every
    request ends once; when all have ended, every machine is in the pool of its origin."""
    policy = Checked(threshold_tokens=12, layers_from_tokens=layers_from, reserve=reserve, repurpose_s=0)
    local = SplitwiseMachine(order=PromptsFirst(2), batching=WholePrompts(10, 3, reserve))
    link = KvLink(1, 20_000_000, latency_ns=data.draw(st.integers(0, 60)), contended=data.draw(st.booleans()))
    events: list[ev.Event] = []
    simulator = Simulator(
        jobs,
        local,
        policy,
        LATENCY,
        workers=fleet,
        changes=data.draw(changes(len(fleet))),
        link=link,
        on_events=events.extend,
    )
    simulator.run()
    ended = Counter(event.request_id for event in events if isinstance(event, ev.Finished | ev.Cancelled | ev.Rejected))
    assert ended == Counter(job.request.id for job in jobs.jobs)
    state = simulator.control.state
    assert not state.pairs
    assert all(machine.pool == (machine.origin or "both") for machine in state.machines.values())


def test_the_opposite_pool_is_attained() -> None:
    """P-SW-1 is not vacuous: machines of either kind become mixed and come back in one run of the simulator."""
    jobs = Workload(
        "a burst",
        tuple(Job(Request(i, 0, 0, Prompt(20), 12), 12) for i in range(12)),
        (Client(0, "client"),),
    )
    pools: set[tuple[str, str]] = set()

    class Watched(Checked):
        def observe(self, state: Pools, event: ev.Event) -> Pools:
            after = super().observe(state, event)
            pools.update((machine.origin or "", machine.pool) for machine in after.machines.values())
            return after

    fleet = [WorkerSpec(LATENCY, 60, role="prefill"), WorkerSpec(LATENCY, 60, role="decode")]
    simulate_events(
        jobs, SplitwiseMachine(), Watched(threshold_tokens=30), LATENCY, workers=fleet, link=KvLink(1, 1_000_000_000)
    )
    assert {("prefill", "both"), ("decode", "both"), ("prefill", "prefill"), ("decode", "decode")} <= pools
    assert pool_of("prefill", 1, 0) == "prefill"


def test_requests_of_one_step_leave_one_after_the_other() -> None:
    """A short prompt and a long one that waits for room at their target leave one step together, and both finish."""
    prompts = (4, 30, 20)
    jobs = Workload(
        "three at once",
        tuple(Job(Request(i, 0, 0, Prompt(tokens), 9), 9) for i, tokens in enumerate(prompts)),
        (Client(0, "client"),),
    )
    fleet = [WorkerSpec(LATENCY, role="prefill"), WorkerSpec(LATENCY, 40, role="decode")]
    policy = SplitwisePrinted(layers_from_tokens=20)
    events = simulate_events(jobs, SplitwiseMachine(), policy, LATENCY, workers=fleet, link=KvLink(1, 10**9))
    assert {event.request_id for event in events if isinstance(event, ev.Finished)} == {0, 1, 2}
    assert {event.target for event in events if isinstance(event, ev.TransferStarted)} == {1}


def _jobs(rows: list[tuple[int, int, int, int]]) -> Workload:
    """Requests by (time in ns, prompt, output, priority)."""
    jobs = tuple(
        Job(Request(i, 0, at_ns, Prompt(prompt), output, priority=priority), output)
        for i, (at_ns, prompt, output, priority) in enumerate(sorted(rows))
    )
    return Workload("rows", jobs, (Client(0, "client"),))


def _first_tokens(events: list[ev.Event]) -> dict[int, int]:
    times: dict[int, int] = {}
    for event in events:
        if isinstance(event, ev.Prefilled) and not event.remaining_tokens:
            times.setdefault(event.request_id, event.time_ns)
    return times


def test_batch_jobs_fill_idle_machines_and_delay_no_interactive_request_in_the_queue() -> None:
    """Prompts without targets, of low priority and all there at once: an interactive request waits for the step under
    way and no more, and behind the same jobs of its own priority it waits for all of them."""
    fleet = [WorkerSpec(LATENCY, 400, role="prefill"), WorkerSpec(LATENCY, 400, role="decode")]
    order, rule = AgeingOrder(boost_milli=0), WholePrompts(20, 8)
    local = ComposedPolicy("batch jobs", order, OpenGate(), rule)
    step_ns = LATENCY.step_ns([(20, 0)], 0, 0)
    interactive = [(1_000 + 900 * i, 10, 4, 1) for i in range(5)]
    waits: dict[int, int] = {}
    for priority in (0, 1):
        jobs = _jobs([*interactive, *((0, 20, 4, priority) for _ in range(30))])
        events = simulate_events(jobs, local, Splitwise(), LATENCY, workers=fleet, link=KvLink(1, 10**9))
        first = _first_tokens(events)
        assert len(first) == 35
        sent = {job.request.id: job.request.arrival_ns for job in jobs.jobs if job.request.arrival_ns}
        waits[priority] = max(first[i] - at_ns for i, at_ns in sent.items())
    assert waits[0] <= 2 * step_ns < waits[1]


@pytest.mark.parametrize("kept", [False, True])
def test_a_checkpoint_saves_the_prefill_of_what_a_crash_lost(kept: bool) -> None:
    """The token machine dies: without a checkpoint the prompt is computed twice, with one its KV comes back instead."""
    fleet = [WorkerSpec(LATENCY, role="prefill"), *[WorkerSpec(LATENCY, role="decode")] * 2]
    events: list[ev.Event] = []
    simulator = Simulator(
        _jobs([(0, 60, 12, 0)]),
        SplitwiseMachine(),
        Checked(),
        LATENCY,
        workers=fleet,
        changes=[Crash(1, 6_400)],
        link=KvLink(1, 10**9),
        checkpoint=KvLink(1, 10**9) if kept else None,
        on_events=events.extend,
    )
    simulator.run()
    assert any(isinstance(event, ev.WorkerLeft) for event in events)
    assert [event.output_tokens for event in events if isinstance(event, ev.Finished)] == [12]
    computed = sum(event.tokens for event in events if isinstance(event, ev.Prefilled))
    assert (computed < 120) == kept
