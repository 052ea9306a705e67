"""The search for a fleet: its space, its journal, what is best, DistServe's placement, and when a fleet changes."""

from math import ceil
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import fairsched.engines.capacity.search.run as running
from fairsched.engines.capacity import Goodput, SloTarget, goodput, search
from fairsched.engines.capacity.highest_rate import RateTrial
from fairsched.engines.capacity.search.placement import Option, best_per_gpu, prefill_only, replicated, weights_load_s
from fairsched.engines.capacity.search.replanning import loading_s
from fairsched.engines.capacity.search.run import Rated
from fairsched.engines.capacity.search.space import Candidate
from fairsched.engines.workloads import at_rate, generate
from fairsched.model.machine import PRESETS, LatencyModel, idle_nj, pipelined
from fairsched.model.request import Prompt, Workload

OPT, OPT2 = PRESETS["opt-13b-a100"], PRESETS["opt-13b-a100-tp2"]
CODE = generate("azure-code", requests=30, arrivals="poisson")
TARGETS = (SloTarget(90, (("ttft", 2e6), ("tpot", 200_000.0))),)
QUESTION = search.Query(CODE, TARGETS, 0.1)


# --- the space --------------------------------------------------------------------------------------------------------


@given(st.integers(1, 24), st.sampled_from([(OPT,), (OPT, OPT2), (OPT2,)]), st.sampled_from([(1,), (1, 2)]))
def test_a_fleet_uses_the_gpus_that_there_are(
    gpus: int, kinds: tuple[LatencyModel, ...], stages: tuple[int, ...]
) -> None:
    """No fleet has more GPUs, none leaves room for another decode worker, and every split fleet has both phases."""
    space = search.Space(kinds, gpus=(gpus,), stages=stages)
    fleets = list(space.fleets())
    assert len(set(fleets)) == len(fleets)
    for fleet in fleets:
        last = fleet.pools[-1]
        assert gpus - (last.latency.gpus or 1) < fleet.gpus <= gpus
        assert {pool.role for pool in fleet.pools} in ({"both"}, {"prefill", "decode"})
    smallest = min(kind.gpus or 1 for kind in space.kinds())
    assert bool(fleets) == (gpus >= smallest)
    assert any(fleet.is_split for fleet in fleets) == (gpus >= 2 * smallest)


@pytest.mark.parametrize("text", ["4xopt-13b-a100", "3xopt-13b-a100:prefill+1xopt-13b-a100-tp2/2:decode"])
def test_a_fleet_is_read_as_it_is_written(text: str) -> None:
    """Its name names it."""
    assert search.fleet_of(text).text == text


def test_a_fleet_costs_what_its_gpus_cost() -> None:
    """GPUs, cost relative to an A100, dollars and rated watts of Splitwise's table; a kind without them is named."""
    fleet = search.fleet_of("2xbloom-176b-h100:prefill+1xbloom-176b-a100:decode")
    assert fleet.gpus == 24
    assert fleet.amount("cost") == pytest.approx(16 * 2.35 + 8)
    assert fleet.amount("joule") == pytest.approx(16 * 0.7 + 8 * 0.4)
    assert fleet.amount("dollar") == pytest.approx(16 * 4.752 + 17.6)
    assert fleet.prefill_share == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="what a GPU of kind a6000 takes, per dollar: choose --per gpu"):
        search.fleet_of("1xmistral-7b-a6000").amount("dollar")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2xopt-13b-a100:prefill", "has no decode worker: no request would ever finish there"),
        ("2xopt-13b-a100:decode", "has no prefill worker"),
        ("opt-13b-a100", "expected NxMODEL"),
        ("2xopt-13b-a100:front", "ROLE prefill or decode, not '2xopt-13b-a100:front'"),
        ("0xopt-13b-a100", "pools of 1 worker or more, not 0xopt-13b-a100"),
        ("1xopt-13b-a100:prefill+1xbloom-176b-h100:decode", "different models"),
        ("1xopt-14b-a100", "opt-14b-a100"),
    ],
)
def test_bad_fleets_are_refused(text: str, said: str) -> None:
    """In one line with what was given."""
    with pytest.raises(ValueError, match=said):
        search.fleet_of(text)


def test_workers_without_memory_for_the_longest_request_are_left_out() -> None:
    """Weights fit into two H100 with 12,200 tokens of KV left, and a request of 13,000 does not (D6)."""
    kind = PRESETS["llama-3-70b-h100-tp2"]
    assert kind.kv_capacity_tokens < 13_000
    jobs = generate("azure-code", requests=3)
    long = attrs.evolve(QUESTION, workload=_with_prompts(jobs, 13_000)).workload
    with pytest.raises(ValueError, match=r"holds 13,0.. tokens of KV, and a worker at most 12,200"):
        search.Space((kind,), gpus=(2,)).candidates(long)
    found = search.Space((kind,), gpus=(4,), stages=(1, 2), splitting="never").candidates(long)
    assert [candidate.fleet.text for candidate in found] == ["1xllama-3-70b-h100-tp2/2"]
    with pytest.raises(ValueError, match=r"no fleet has at most 1 GPUs; workers have: llama-3-70b-h100-tp2 \(2\)"):
        search.Space((kind,), gpus=(1,)).candidates(jobs)


def _with_prompts(jobs: Workload, tokens: int) -> Workload:
    longer = tuple(replace(job, request=replace(job.request, prompt=Prompt(tokens))) for job in jobs.jobs)
    return replace(jobs, jobs=longer)


# --- the search -------------------------------------------------------------------------------------------------------


def test_a_search_finds_what_goodput_says_and_orders_it() -> None:
    """Each candidate's rate is that of `goodput` on its cluster, the best is first, and nothing beats the frontier."""
    space = search.Space((OPT,), gpus=(2, 3), batchings=("chunked",))
    found = search.search_fleets(QUESTION, space.candidates(CODE))
    assert found.complete
    assert found.best is not None
    values = [each.value("gpu") for each in found.found]
    assert values == sorted(values, reverse=True)
    for each in found.found:
        fleet = each.candidate.fleet
        start, spec = search.likely_rate(fleet, CODE), each.candidate.spec
        assert each.goodput == goodput(CODE, spec, fleet.cluster(), TARGETS, start=start, resolution=0.1)
    for each in found.found:
        assert any(
            front.rate >= each.rate and front.candidate.fleet.gpus <= each.candidate.fleet.gpus
            for front in found.frontier
        )
    assert found.to_dict()["best"] == found.best.candidate.text


def test_joules_are_what_was_drawn_at_the_rate_found() -> None:
    """A fleet's joules a second are those of its last trial that keeps the targets: more than idling, and no more than
    the rated power, by which fleets are weighed that keep none."""
    found = search.search_fleets(QUESTION, search.Space((OPT,), gpus=(1, 2), splitting="never").candidates(CODE))
    for each in found.found:
        drawn, rated = each.goodput.tried[each.rate].watts, each.candidate.fleet.amount("joule") * 1_000
        assert drawn is not None
        assert idle_nj(OPT, 10**9) / 1e9 * each.candidate.fleet.gpus < drawn < rated
        assert each.value("joule") == each.rate / (drawn / 1_000)
    never = Rated(found.found[0].candidate, Goodput(None, {1.0: RateTrial((2.0,), 0, 1)}), 0.0)
    assert never.amount("joule") == never.candidate.fleet.amount("joule")


def test_limits_of_batches_and_of_steps_are_axes() -> None:
    """Every limit of a batch is tried with every size of a step, and 0 leaves the policy's own."""
    space = search.Space((OPT,), gpus=(1,), splitting="never", chunks=(0, 512), batches=(32, 512))
    tried = {candidate.params for candidate in space.candidates(CODE)}
    steps: tuple[tuple[tuple[str, str], ...], ...] = ((), (("max_batched_tokens", "512"),))
    assert tried == {
        (("batching", "chunked"), *step, ("max_running", batch)) for step in steps for batch in ("32", "512")
    }


def test_processes_find_what_one_process_finds() -> None:
    """Every rate that was tried, and every excess, is the same on two processes."""
    candidates = search.Space((OPT,), gpus=(2,)).candidates(CODE)
    alone, two = (search.search_fleets(QUESTION, candidates, jobs=jobs) for jobs in (1, 2))
    assert [(each.candidate, each.goodput) for each in alone.found] == [
        (each.candidate, each.goodput) for each in two.found
    ]


def test_an_interrupted_search_goes_on_from_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interrupt in the second candidate, and with a torn last line, only the others are run, and the result is
    that of an uninterrupted search."""
    candidates, journal = search.Space((OPT,), gpus=(3,)).candidates(CODE), tmp_path / "journal"
    whole, measured, ran = search.search_fleets(QUESTION, candidates), running._measured, list[Candidate]()

    def until(stop: int | None) -> None:
        def run(task: tuple[search.Query, Candidate]) -> Rated:
            if len(ran) == stop:
                raise KeyboardInterrupt
            ran.append(task[1])
            return measured(task)

        monkeypatch.setattr(running, "_measured", run)

    until(1)
    cut = search.search_fleets(QUESTION, candidates, journal=journal)
    assert (len(cut.found), cut.complete) == (1, False)
    with journal.open("ab") as file:
        file.write(b'{"candidate":"3xopt')
    until(None)
    ran.clear()
    again = search.search_fleets(QUESTION, candidates, journal=journal)
    assert ran == candidates[1:]
    assert again.resumed == 1
    assert [(each.candidate, each.goodput) for each in again.found] == [
        (each.candidate, each.goodput) for each in whole.found
    ]
    ran.clear()
    assert search.search_fleets(QUESTION, candidates, journal=journal).complete
    assert ran == []


def test_a_journal_of_something_else_is_refused(tmp_path: Path) -> None:
    """Of another question it says in what, and a file that is none stays as it is."""
    candidates, journal = search.Space((OPT,), gpus=(1,)).candidates(CODE), tmp_path / "journal"
    search.search_fleets(QUESTION, candidates, journal=journal)
    with pytest.raises(ValueError, match="of another search: it differs in resolution; name another file"):
        search.search_fleets(attrs.evolve(QUESTION, resolution=0.2), candidates, journal=journal)
    other = tmp_path / "notes.txt"
    other.write_text("my notes\n")
    with pytest.raises(ValueError, match=r"notes\.txt is no journal of a search"):
        search.search_fleets(QUESTION, candidates, journal=other)
    assert other.read_text() == "my notes\n"


def test_a_target_that_no_fleet_keeps_names_the_nearest() -> None:
    """No candidate is best, and the one that exceeds the target least is said."""
    impossible = attrs.evolve(QUESTION, targets=(SloTarget(50, (("ttft", 1.0),)),))
    found = search.search_fleets(impossible, search.Space((OPT, OPT2), gpus=(2,), splitting="never").candidates(CODE))
    assert found.best is None
    assert found.frontier == ()
    # One millisecond is far away from both; the faster worker is nearer.
    assert found.nearest.candidate.fleet.text == "1xopt-13b-a100-tp2"


@pytest.mark.nightly
def test_a_ray_cluster_finds_what_one_process_finds(by_night: None, ray_started: None) -> None:
    """Every rate that was tried, and every excess, is the same on a Ray cluster's cores."""
    candidates = search.Space((OPT,), gpus=(1,)).candidates(CODE)
    alone, there = (search.search_fleets(QUESTION, candidates, ray=ray) for ray in (None, "auto"))
    assert [(each.candidate, each.goodput) for each in alone.found] == [
        (each.candidate, each.goodput) for each in there.found
    ]


# --- DistServe's placement --------------------------------------------------------------------------------------------


def test_f_ds_1_the_most_goodput_a_gpu_does_not_need_the_fewest_gpus() -> None:
    """Algorithm 1 buys 8 GPUs where 1 is enough, and 16 where 9 are."""
    small, large = Option("small", 1, 9.9), Option("large", 8, 80.0)
    assert best_per_gpu([small, large]) is large
    assert [replicated([small, large], rate).gpus for rate in (5, 81)] == [8, 16]


def test_a_placement_of_nothing_is_refused() -> None:
    """There is no empty configuration with a goodput of 0 / 0 to compare with (D7)."""
    with pytest.raises(ValueError, match="no configuration keeps the targets at any rate: a"):
        best_per_gpu([Option("a", 1, 0.0)])
    with pytest.raises(ValueError, match="at any rate: none fits into memory"):
        best_per_gpu([])


def test_algorithm_1_places_phases_by_their_own_goodput() -> None:
    """Each phase gets as many of its best workers as the rate needs, by the goodput of one alone; prompts of 2,000
    tokens and outputs of 30 take more workers for prompts than for outputs."""
    prefill, decode = (SloTarget(90, (limit,)) for limit in (("ttft", 2e6), ("tpot", 2e5)))
    found = search.high_affinity(
        CODE, 10.0, [OPT], prefill_targets=[prefill], decode_targets=[decode], gpus_max=1, resolution=0.1
    )
    best, count = found.prefill.option, found.prefill.count
    assert count == ceil(10 / best.rate)
    assert found.prefill.gpus > found.decode.gpus
    small = attrs.evolve(OPT, kv_capacity_tokens=8_000)
    found = search.high_affinity(
        CODE, 1.0, [small], prefill_targets=[prefill], decode_targets=[decode], gpus_max=1, resolution=0.1
    )
    # Requests that wait for memory to decode miss targets, too.
    assert max(option.rate for option in found.weighed[1]) < 100
    assert found.gpus == found.prefill.gpus + found.decode.gpus
    with pytest.raises(ValueError, match="tokens of KV, and a worker at most 0"):
        search.high_affinity(CODE, 1.0, [OPT2], prefill_targets=[prefill], decode_targets=[decode], gpus_max=1)


def test_algorithm_2_keeps_a_pair_within_nodes() -> None:
    """Pairs of both phases have the same stages and fit into as many nodes; as many as the rate needs are bought."""
    asked: list[search.FleetPlan] = []

    def joint(fleet: search.FleetPlan) -> Goodput:
        asked.append(fleet)
        return Goodput(2.0 * fleet.gpus - 1, {1.0: RateTrial((0.5,), 1, 1)})

    found = search.low_affinity(20.0, [OPT, OPT2], joint, longest=5_000, node_gpus=3, stages_max=2)
    for fleet in asked:
        prefill, decode = (pool.latency for pool in fleet.pools)
        assert prefill.stages == decode.stages
        assert (prefill.gpus or 1) + (decode.gpus or 1) <= 3 * prefill.stages
    assert {fleet.gpus for fleet in asked} == {2, 3, 4, 6}
    best, count = found.prefill.option, found.prefill.count
    assert (best.gpus, count, found.gpus) == (6, 2, 12)
    with pytest.raises(ValueError, match="no pair of workers fits into nodes of 1 GPUs with 5,000 tokens of KV each"):
        search.low_affinity(1.0, [OPT], joint, longest=5_000, node_gpus=1)


def test_phases_alone_have_only_their_own_work() -> None:
    """A prefill worker's requests end with the first token; a decode worker's prompts take next to nothing."""
    assert {job.output_tokens for job in prefill_only(CODE).jobs} == {1}
    assert [job.request.prompt for job in prefill_only(CODE).jobs] == [job.request.prompt for job in CODE.jobs]
    alone = search.decode_only(OPT)
    assert alone.step_ns(((2_000, 0),), 0, 0) == 1
    assert alone.decode_ns(7, 5_000) == OPT.decode_ns(7, 5_000)


# --- replanning -------------------------------------------------------------------------------------------------------


def _joined(*parts: Workload) -> Workload:
    """Workloads one after the other, with a second between them."""
    jobs, start, number = [], 0, 0
    for part in parts:
        for job in part.jobs:
            at_ns = start + job.request.arrival_ns
            jobs.append(replace(job, request=replace(job.request, id=number, arrival_ns=at_ns)))
            number += 1
        start = jobs[-1].request.arrival_ns + 10**9
    return Workload("joined", tuple(jobs), parts[0].clients)


def test_a_fleet_changes_when_the_rate_does_and_not_before() -> None:
    """Two minutes at half a request a second and two at six: one change, to more workers, which load their weights
    while the old fleet delays requests."""
    slow = at_rate(generate("azure-code", requests=60, arrivals="poisson"), 0.5)
    fast = at_rate(generate("azure-code", requests=720, arrivals="poisson", seed=1), 6.0)
    candidates = search.Space((OPT,), gpus=(1, 2, 4, 8), splitting="never").candidates(slow)
    detector = search.DriftDetector(window_us=40_000_000, change_percent=50, requests_min=10)
    found = search.replan(_joined(slow, fast), candidates, TARGETS, detector)
    assert found.steps[0].changes
    assert found.steps[0].delayed == 0
    (change,) = (step for step in found.changes if "rate" in step.changed)
    before, after = found.steps[0].candidate, change.candidate
    assert before is not None
    assert after is not None
    assert after.fleet.gpus > before.fleet.gpus
    assert change.load_s == weights_load_s(OPT, 5e9) == pytest.approx(5.2)
    assert change.attained is not None
    assert change.attained < 0.9
    assert 0 < change.delayed <= change.arrivals


def test_a_steady_trace_has_one_plan() -> None:
    """The first, and nothing after it, since no mean drifts."""
    steady = at_rate(generate("azure-chat", requests=400, arrivals="poisson"), 2.0)
    candidates = search.Space((OPT,), gpus=(1, 2), splitting="never").candidates(steady)
    found = search.replan(steady, candidates, TARGETS, search.DriftDetector(window_us=50_000_000, change_percent=60))
    assert [step.changed for step in found.steps] == [()]
    assert found.changes == ()


def test_a_change_of_roles_loads_nothing() -> None:
    """Workers that are there already have their weights."""
    both, split = search.fleet_of("4xopt-13b-a100"), search.fleet_of("3xopt-13b-a100:prefill+1xopt-13b-a100:decode")
    assert loading_s(both, split, 1e9) == 0.0
    assert loading_s(split, both, 1e9) == 0.0
    assert loading_s(both, search.fleet_of("2xopt-13b-a100-tp2"), 1e9) == 13.0
    assert loading_s(search.fleet_of("3xopt-13b-a100"), both, 1e9) == 26.0


def test_traces_that_cannot_be_followed_are_refused() -> None:
    """A trace within one window, and one whose first window no fleet serves."""
    candidates = search.Space((OPT,), gpus=(1,), splitting="never").candidates(CODE)
    with pytest.raises(ValueError, match="ends in its first window of 10000 s: a shorter one may do"):
        search.replan(CODE, candidates, TARGETS, search.DriftDetector(window_us=10**10))
    with pytest.raises(ValueError, match="targets that a request keeps or misses, not by P99 tbt <= 1 s"):
        search.replan(CODE, candidates, (SloTarget(99, (("tbt", 1e6),)),), search.DriftDetector())
    busy = at_rate(CODE, 50.0)
    with pytest.raises(
        ValueError, match="none of 1 fleets keeps P90 ttft <= 2 s and tpot <= 200 ms on the first window"
    ):
        search.replan(busy, candidates, TARGETS, search.DriftDetector(window_us=500_000, requests_min=5))


@settings(max_examples=20)
@given(st.integers(2, 4))
def test_stages_load_the_weights_in_their_shares(stages: int) -> None:
    """Each GPU loads its own share, all at the same time."""
    assert weights_load_s(pipelined(OPT, stages), 1e9) == pytest.approx(weights_load_s(OPT, 1e9) / stages)
    with pytest.raises(ValueError, match="a rate above 0 bytes a second, not 0"):
        weights_load_s(OPT, 0)
