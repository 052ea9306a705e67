"""Every figure of a run against values worked out by hand, and the rules they follow on any run."""

import json
from fractions import Fraction

import attrs
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.analysis import Comparison, Recorder, Run, Summary, summary
from fairsched.engines.analysis.metrics import jain
from fairsched.engines.analysis.outcomes import Outcomes
from fairsched.engines.analysis.series import POINTS_MAX, KvSamples, cumulative, responses, thinned
from fairsched.model import events as ev
from fairsched.model.pricing import Rates
from fairsched.model.request import Client, Job, Prompt, Request, Slo, Workload
from fairsched.model.service import Charging, concatenate, tables
from tests.support.scenarios import latency_of

US = 1_000
RUN_KEYS = {
    *("policy", "router", "params", "requests", "finished", "rejected", "cancelled", "makespan_us", "throughput_rps"),
    *("output_tokens_per_s", "client_service_rate", "jain_client", "jain_charged", "service_gap_max"),
    *("service_gap_bound", "gap_scope", "gap_excuses", "bound_over_busiest", "service_gap_common_max", "ttft_us"),
    "service_gap_cluster_max",
    *("normalized_ttft_us", "tpot_us", "latency_us", "program_latency_us", "clients", "prefix_hit_ratio"),
    *("preemptions", "swaps", "wall_s", "log_sha256", "assumptions", "imbalance", "workers", "moves", "predictor"),
    *("rate_scale", "phases_us", "tbt_us", "second_token_us", "scheduling_delay_us", "normalized_latency_us"),
    *("transfers", "transferred_tokens", "pauses", "paused_us", "joules_per_request", "joules_per_token"),
}


def job(
    request: int,
    client: int,
    arrival_us: int,
    prompt: int,
    output: int,
    *,
    after: tuple[int, ...] = (),
    program: int | None = None,
    slo: Slo | None = None,
) -> Job:
    """A request that declares no more output than it has."""
    return Job(
        Request(request, client, arrival_us * US, Prompt(prompt), output, slo=slo),
        output,
        after=after,
        program=program,
    )


def workload(*jobs: Job, weights: tuple[int, ...] = (1, 1)) -> Workload:
    """A workload of clients a, b, ..."""
    return Workload("hand-made", jobs, tuple(Client(i, "abcdef"[i], weight) for i, weight in enumerate(weights)))


def recorded(work: Workload, events: list[ev.Event]) -> Recorder:
    """A recorder that has seen these events."""
    recorder = Recorder(work)
    for event in events:
        recorder.record([event])
    return recorder


# Client a asks for two calls of one program (the second once the first finished), client b for one request that is
# served late and preempted once, for one that fits nowhere, and for one that it takes back while it waits.
JOBS = (
    job(0, 0, 100, prompt=10, output=3, program=0, slo=Slo(ttft_ns=10 * US)),
    job(1, 1, 100, prompt=20, output=2),
    job(2, 1, 100, prompt=99, output=1),
    job(3, 1, 110, prompt=5, output=1, slo=Slo(latency_ns=10**9)),
    job(4, 0, 100, prompt=10, output=1, after=(0,), program=0, slo=Slo(ttft_ns=4 * US, tpot_ns=0)),
)
EVENTS: list[ev.Event] = [
    ev.Arrived(100 * US, 0, JOBS[0].request),
    ev.Arrived(100 * US, 0, JOBS[1].request),
    ev.Rejected(100 * US, 0, 2, 1, "too large"),
    ev.Admitted(100 * US, 0, 0, 0, 10, 0, 3),
    ev.Prefilled(105 * US, 0, 0, 0, 10, 0),
    ev.Decoded(105 * US, 0, 1, (0,), (1,)),
    ev.Admitted(105 * US, 0, 1, 1, 12, 8, 2),
    ev.Settled(105 * US, 0, 1, 1, 16),
    ev.Arrived(110 * US, 0, JOBS[3].request),
    ev.Prefilled(115 * US, 0, 1, 1, 16, 0),
    ev.Decoded(115 * US, 0, 1, (0, 1), (1, 1)),
    ev.Preempted(115 * US, 0, 1, 1, 1, 0),
    ev.Decoded(117 * US, 0, 1, (0,), (1,)),
    ev.Finished(117 * US, 0, 0, 0, 3),
    ev.Arrived(117 * US, 0, JOBS[4].request),
    ev.Admitted(117 * US, 0, 4, 0, 2, 8, 1),
    ev.Cancelled(118 * US, 0, 3, 1, False, 0, 0),
    ev.Prefilled(120 * US, 0, 4, 0, 2, 0),
    ev.Decoded(120 * US, 0, 1, (0,), (1,)),
    ev.Finished(120 * US, 0, 4, 0, 1),
    ev.Admitted(120 * US, 0, 1, 1, 21, 0, 1),
    ev.Prefilled(140 * US, 0, 1, 1, 21, 0),
    ev.Decoded(140 * US, 0, 1, (1,), (1,)),
    ev.Finished(140 * US, 0, 1, 1, 2),
]


def hand_made(charging: Charging | None = None, bound: int | None = None) -> Run:
    """The result of the run above."""
    recorder = recorded(workload(*JOBS), EVENTS)
    return recorder.result(policy="fcfs", charging=charging, service_gap_bound=bound, wall_s=0.5, log_sha256="f00")


def test_counts_and_latencies() -> None:
    """Each request is counted once, and times are those between arrival, first token and finish."""
    run = hand_made().measures
    assert (run.requests, run.finished, run.rejected, run.cancelled, run.preemptions) == (5, 3, 1, 1, 1)
    # TTFT 5, 15 and, from the follow-up's own arrival, 3; the preempted request keeps its first token.
    assert run.ttft_us == Summary(mean=(5 + 15 + 3) / 3, p50=5, p90=15, p95=15, p99=15)
    assert run.normalized_ttft_us.p99 == pytest.approx(15 / 20)
    assert run.normalized_ttft_us.p50 == pytest.approx(5 / 10)
    # (117 - 105) / 2 and (140 - 115) / 1; a single token has no time between tokens.
    assert run.tpot_us == Summary(mean=(6 + 25) / 2, p50=6, p90=25, p95=25, p99=25)
    assert run.latency_us == Summary(mean=(17 + 40 + 3) / 3, p50=17, p90=40, p95=40, p99=40)
    assert run.program_latency_us == Summary(mean=20, p50=20, p90=20, p95=20, p99=20)


def test_what_is_measured_of_a_client_looks_at_its_own_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of all clients are looked up once, whatever the number of clients, and the figures are the same."""
    work = workload(*JOBS)
    outcomes = Outcomes(work, concatenate([tables(EVENTS)]), [latency_of(1)])
    looked: list[int] = []
    monkeypatch.setattr(Outcomes, "row", lambda self, request_ids: looked.append(len(request_ids)))
    alone = [outcomes.measures(client.id) for client in work.clients]
    assert not looked
    assert [each.requests for each in alone] == [2, 3]
    assert [each.second_token_us.mean for each in alone] == [10, 25]
    assert [each.slo_attainment for each in alone] == [1, 0]


def test_an_output_that_ended_early_counts_as_it_was() -> None:
    """Whatever was foreseen, the time a token takes is over the tokens that were produced."""
    foreseen = tuple(
        msgspec.structs.replace(
            one,
            request=msgspec.structs.replace(one.request, max_output_tokens=one.output_tokens + 7),
            output_tokens=one.output_tokens + 7,
        )
        for one in JOBS
    )
    run = recorded(workload(*foreseen), EVENTS).result(policy="fcfs")
    assert attrs.asdict(run.measures) == attrs.asdict(hand_made().measures)


def test_rates_and_hits() -> None:
    """Rates are over the makespan, from the first arrival to the last end; hits are over first admissions."""
    result = hand_made()
    run = result.measures
    assert run.makespan_us == 40
    assert run.throughput_rps == 3 / 40e-6
    assert run.output_tokens_per_s == 6 / 40e-6
    # Prompts 10 + 20 + 10 and twice 6 output tokens: a recomputed token is no new service to the client.
    assert run.client_service_rate == 52 / 40e-6
    # Of 10 + 20 + 10 tokens 8 and 8 came from the cache, 4 of which turned out to be computed after all; the preempted
    # request's second admission does not count.
    assert run.prefix_hit_ratio == 12 / 40
    assert run.slo_attainment == 2 / 3
    assert result.clients["a"].makespan_us == 20
    assert result.clients["a"].client_service_rate == 28 / 20e-6
    assert result.clients["a"].program_latency_us.mean == 20
    assert result.clients["a"].slo_attainment == 1
    assert result.clients["b"].slo_attainment == 0
    assert (result.clients["b"].requests, result.clients["b"].preemptions) == (3, 1)
    assert result.clients["b"].program_latency_us == Summary()


def test_service_gap_against_its_bound() -> None:
    """The gap is in what the gate charges, the common gap in computed tokens, the bound over the busiest client's."""
    # Both wait from 100 until b is admitted: a is charged 10 + 2, then b's admission 12.  From 117 to its admission a
    # waits beside b and is charged 2.
    result = hand_made(bound=100)
    assert (result.gap.cost, result.common_gap.cost) == (10, 10)
    assert (result.gap.ahead, result.gap.behind) == (0, 1)
    # Charged: a 10 + 2 + 2 * 4 = 20, b 16 + 21 + 2 * 2 = 41.
    assert result.bound_over_busiest == 100 / 41
    assert result.is_binding is False
    assert hand_made(bound=40).is_binding is True
    assert hand_made().is_binding is None
    dearer = hand_made(Charging(Rates(3, 1), "prompt"))
    assert (dearer.gap.cost, dearer.common_gap.cost) == (30, 10)


def test_jain_is_over_the_interval_in_which_all_are_active() -> None:
    """a is active until 120, so what b receives later does not count."""
    result = hand_made()
    seen = (10 + 2 * 3 + 10 + 2, 20 + 2)
    assert result.jain_client == sum(seen) ** 2 / (2 * sum(x * x for x in seen))
    charged = (10 + 6 + 2 + 2, 16 + 2 + 21)
    assert result.jain_charged == sum(charged) ** 2 / (2 * sum(x * x for x in charged))


def test_weights_divide_service() -> None:
    """A client of weight two that receives twice as much is served fairly."""
    jobs = (job(0, 0, 0, prompt=8, output=1), job(1, 1, 0, prompt=18, output=1))
    events: list[ev.Event] = [ev.Arrived(0, 0, jobs[0].request), ev.Arrived(0, 0, jobs[1].request)]
    events += [ev.Admitted(0, 0, 0, 0, 8, 0, 1), ev.Admitted(0, 0, 1, 1, 18, 0, 1)]
    events += [ev.Prefilled(9, 0, 0, 0, 8, 0), ev.Prefilled(9, 0, 1, 1, 18, 0), ev.Decoded(9, 0, 1, (0, 1), (1, 1))]
    events += [ev.Finished(9, 0, 0, 0, 1), ev.Finished(9, 0, 1, 1, 1)]
    result = recorded(workload(*jobs, weights=(1, 2)), events).result(policy="vtc")
    assert (result.jain_client, result.jain_charged) == (1, 1)
    assert result.common_gap.cost == 16  # a's admission at twice the price, before b left the queue


def test_without_a_common_interval_there_is_no_index() -> None:
    """Clients that are never active together are not compared."""
    jobs = (job(0, 0, 0, prompt=8, output=1), job(1, 1, 50, prompt=8, output=1))
    events: list[ev.Event] = []
    for i, one in enumerate(jobs):
        start = one.request.arrival_ns
        events += [ev.Arrived(start, 0, one.request), ev.Admitted(start, 0, i, i, 8, 0, 1)]
        events += [ev.Prefilled(start + 10, 0, i, i, 8, 0), ev.Decoded(start + 10, 0, 1, (i,), (1,))]
        events += [ev.Finished(start + 10, 0, i, i, 1)]
    result = recorded(workload(*jobs), events).result(policy="fcfs")
    assert (result.jain_client, result.jain_charged) == (None, None)


@pytest.mark.parametrize("jobs", [(), JOBS])
def test_nothing_recorded_gives_no_figures(jobs: tuple[Job, ...]) -> None:
    """A run that was interrupted before its first event has counts, and None where there is nothing to measure."""
    recorder = Recorder(workload(*jobs))
    result = recorder.result(policy="fcfs")
    assert result.measures.requests == len(jobs)
    assert result.measures.finished == 0
    assert result.measures.throughput_rps is None
    assert result.measures.ttft_us == Summary()
    assert result.gap.cost == 0
    json.dumps(result.to_json(), allow_nan=False)


def test_every_cut_of_a_run_can_be_reported() -> None:
    """An interrupted run reports what was computed."""
    for cut in range(len(EVENTS) + 1):
        result = recorded(workload(*JOBS), EVENTS[:cut]).result(policy="fcfs", service_gap_bound=7)
        assert result.measures.finished == sum(isinstance(event, ev.Finished) for event in EVENTS[:cut])
        json.dumps(result.to_json(), allow_nan=False)


def test_document_has_exactly_the_promised_keys() -> None:
    """The JSON document is what the command line promises; targets and programs only where there are some."""
    comparison = Comparison("1.0", "fairsched compare", {"name": "hand-made"}, [hand_made(bound=9)])
    document = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert document.keys() == {"fairsched", "trace", "runs"}
    (run,) = document["runs"]
    assert run.keys() == RUN_KEYS | {"slo_attainment", "programs"}
    assert run["programs"].keys() == {"programs", "finished", "share_max", "jain"}
    assert run["ttft_us"].keys() == {"mean", "p50", "p90", "p95", "p99"}
    assert run["clients"].keys() == {"a", "b"}
    assert run["clients"]["b"].keys() == {field.name for field in attrs.fields(type(hand_made().measures))}
    plain = workload(job(0, 0, 0, prompt=8, output=1))
    assert Recorder(plain).result(policy="fcfs").to_json().keys() == RUN_KEYS


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300))
def test_percentiles_are_samples(samples: list[int]) -> None:
    """A percentile is the smallest sample that so many of the samples do not exceed; the mean is exact."""
    found = summary(np.array(samples, dtype=np.int64), scale=1)
    assert found.mean == float(Fraction(sum(samples), len(samples)))
    for percent, value in ((50, found.p50), (90, found.p90), (95, found.p95), (99, found.p99)):
        ranked = [s for s in sorted(samples) if 100 * sum(other <= s for other in samples) >= percent * len(samples)]
        assert value == ranked[0]


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=20))
def test_jain_lies_between_one_share_and_one(values: list[int]) -> None:
    """Jain's index is 1 for equal values, 1/n when one takes all, and exact for large ones."""
    found = jain(np.array(values, dtype=np.int64))
    if not any(values):
        assert found is None
        return
    exact = Fraction(sum(values) ** 2, len(values) * sum(v * v for v in values))
    assert found == float(exact)
    assert Fraction(1, len(values)) <= exact <= 1


@given(st.integers(0, 5_000))
def test_kv_samples_stay_few_and_even(count: int) -> None:
    """However many samples come, a bounded number is kept, evenly spaced and in order."""
    samples = KvSamples()
    for time in range(count):
        if samples.is_due():
            samples.add(time, 1, 2, 3)
    rows = samples.rows()
    assert len(rows) < 2 * POINTS_MAX
    assert len(rows) >= min(count, POINTS_MAX // 2)
    assert len(set(np.diff(rows[:, 0]).tolist())) <= 1


def test_series_add_up() -> None:
    """The last point of the cumulative service is all of it; mean response times weigh every request once."""
    result = hand_made()
    assert result.series.clients == (1, 0)  # b asks for more
    assert result.series.service[-1].tolist() == [24, 28]
    assert result.series.service[0].tolist() == [0, 0]
    assert result.series.gap[-1] == result.gap.cost
    assert result.series.ttft_us.tolist() == [3, 5, 15]
    assert np.nansum(result.series.response_us, axis=0).tolist() == [15, 5 + 3]


def test_binning_by_hand() -> None:
    """Amounts fall into equal parts of the span, the end included in the last; an empty part has no mean."""
    times, sums = cumulative(np.array([0, 5, 10]), np.array([1, 0, 1]), np.array([1, 2, 4]), (1,), 10)
    assert times[[0, -1]].tolist() == [0, 10 / 1e9]
    assert (sums[[0, 1, -2, -1], 0]).tolist() == [0, 1, 1, 5]
    _, means = responses(np.array([0, 0, 10]), np.array([0, 0, 0]), np.array([2_000, 4_000, 6_000]), (0,), 10)
    assert means[[0, -1], 0].tolist() == [3, 6]
    assert np.isnan(means[1:-1]).all()
    assert thinned(np.arange(10_001), 5).tolist() == [0, 2500, 5000, 7500, 10000]
