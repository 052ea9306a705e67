"""Our policies inside the real vLLM V1 engine, on CPU: its order, its promise, its failures."""

import json
import os
import random
import socket
import subprocess
import sys
import urllib.request
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
from msgspec.structs import replace

from fairsched.engines.settings import ConfigError
from fairsched.engines.simulation import VllmOptions, simulate_events
from fairsched.engines.simulation.vllm import Step, VllmCall, VllmEngine
from fairsched.model.events import Admitted, Arrived, Cancelled, Decoded, Finished, Paused, Preempted
from fairsched.model.machine import DecodePiece, LatencyModel
from fairsched.model.request import Client, Job, Request, Workload
from fairsched.policies.registry import with_parameters
from fairsched.policies.routers import RoundRobin
from tests.support.adapters.vllm_stand_in import check_pauses, decisions_differ
from tests.support.policies.pausing import pauses_in_turns
from tests.support.scenarios import UNIT

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
pytest.importorskip("vllm", reason="vLLM is not installed")

with warnings.catch_warnings(action="ignore"):
    from vllm.v1.request import RequestStatus

    from tests.integration.vllm_parts import BLOCK, SIZE, Bare, Both, Core, drawn, prompts, tiny_llama

pytestmark = pytest.mark.integration

POLICIES: list[tuple[str, dict[str, int]]] = [("fcfs", {}), ("vtc", {}), ("dlpm", {"quantum": 64}), ("lpm", {})]
EACH_POLICY = pytest.mark.parametrize(("policy", "parameters"), POLICIES, ids=[name for name, _ in POLICIES])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama."""
    return tiny_llama(tmp_path_factory.mktemp("llama"))


def pure_order(policy: Any, arrived: list[Request], seats: int, budget: int, capacity: int) -> list[int]:
    """In which order the whole policy, with its own chunked batching, lets these requests in, in our simulator."""
    policy = with_parameters(
        policy,
        {"batching": "chunked", "max_running": str(seats), "max_batched_tokens": str(budget)}
        | ({"quantum": str(policy.gate.quantum)} if hasattr(policy.gate, "quantum") else {}),
    )
    clients = tuple(Client(i, str(i)) for i in range(1 + max(request.client for request in arrived)))
    workload = Workload("same", [Job(request, request.max_output_tokens) for request in arrived], clients)
    events = simulate_events(workload, policy, RoundRobin(), UNIT, kv_capacity_tokens=capacity)
    return [event.request_id for event in events if isinstance(event, Admitted)]


# --- the scheduler alone ----------------------------------------------------------------------------------------------


@EACH_POLICY
@pytest.mark.parametrize("seed", range(3))
def test_the_order_is_the_pure_policy_s(model: Path, policy: str, parameters: dict[str, int], seed: int) -> None:
    """Requests that come while others are served enter vLLM's batch in the order in which our simulator lets them in,
    with order, gate and batching of the whole policy; the gap is within its bound and nobody is preempted."""
    rng = random.Random(seed)
    engine = Bare(model, {"policy": policy, "parameters": parameters, "unreserved_tokens": 0})
    coming = list(prompts(rng, 40, caching=False))
    due = sorted(rng.choice((0, 0, 0, 4, 8, 19)) for _ in coming)
    at: list[int] = []

    def before(step: int) -> None:
        while len(at) < len(coming) and due[len(at)] <= step:
            engine.add(*coming[len(at)])
            at.append(step)

    engine.run(before=before, more=lambda: len(at) < len(coming))
    arrived = [event.request for event in engine.events if isinstance(event, Arrived)]
    arrived = [msgspec.structs.replace(request, arrival_ns=at[request.id]) for request in arrived]
    mine = [event.request_id for event in engine.events if isinstance(event, Admitted)]
    assert mine == pure_order(engine.scheduler.tracker.guard.policy, arrived, 4, 128, 16 * BLOCK)
    assert len(engine.finished) == 40
    said = engine.scheduler.status.document()
    assert said["preemptions"] == 0
    promise = said["promise"]
    assert promise is None or (0 < promise["gap"] <= promise["gap_bound"] and not promise["broken_assumptions"])


@EACH_POLICY
@pytest.mark.parametrize("caching", [False, True], ids=["cold", "caching"])
@pytest.mark.parametrize("reserve", ["all", "predicted", None], ids=["reserved", "predicted", "optimistic"])
@pytest.mark.parametrize("ahead", [1, 2], ids=["sync", "async"])
def test_whatever_happens_every_request_ends_once_and_the_policy_decides(
    model: Path, policy: str, parameters: dict[str, int], caching: bool, reserve: str | None, ahead: int
) -> None:
    """Aborts, resets of the cache with all that run, preemptions for want of memory, steps ahead, shared prefixes: each
    admission is the one that the pure policy decides, tokens charged are tokens produced, no bound is passed, and with
    all outputs reserved vLLM never preempts by itself."""
    rng = random.Random(f"{policy} {caching} {reserve is not None} {ahead}")
    table: dict[str, object] = {"policy": policy, "parameters": parameters, "clients": {"b": 2}}
    table |= {"reserve_outputs": reserve is not None} | ({"unreserved_tokens": 0} if reserve == "all" else {})
    engine = Bare(model, table, caching=caching, seats=rng.choice((2, 4, 8)), budget=rng.choice((64, 128, 512)))
    scheduler, rest, taken_out = engine.scheduler, list(prompts(rng, 60, caching)), [0]

    def before(_: int) -> None:
        while rest and rng.random() < 0.5:
            engine.add(*rest.pop())
        if scheduler.requests and rng.random() < 0.05:
            scheduler.finish_requests(rng.choice(list(scheduler.requests)), RequestStatus.FINISHED_ABORTED)
        if rng.random() < 0.01:
            taken_out[0] += len(scheduler.running)
            scheduler.reset_prefix_cache(reset_running_requests=True)
        scheduler.tracker.guard.policy.check(scheduler.tracker.guard.state)

    engine.run(ahead, before, lambda: bool(rest))
    ends = Counter(event.request_id for event in engine.events if isinstance(event, Finished | Cancelled))
    assert sorted(ends.items()) == [(i, 1) for i in range(60)]
    assert decisions_differ(scheduler.tracker, engine.events) == []
    produced = sum(sum(event.tokens) for event in engine.events if isinstance(event, Decoded))
    assert produced == sum(
        event.output_tokens if isinstance(event, Finished) else event.generated_tokens
        for event in engine.events
        if isinstance(event, Finished | Cancelled)
    )
    said = scheduler.status.document()
    # One that was taken out and ended before its results were back is told to have run all the time.
    if reserve != "predicted":
        assert said["preemptions"] <= taken_out[0] if reserve else said["preemptions"] > 0
    assert not any(said["interventions"].values())
    if said["promise"] is not None:
        assert said["promise"]["bound_violations"] == 0
        assert set(said["promise"]["broken_assumptions"]) <= {"EqualQuanta", "NothingRefunded"}


@pytest.mark.parametrize("ahead", [1, 2], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(4))
def test_a_paused_request_keeps_its_blocks_and_misses_steps(model: Path, tmp_path: Path, ahead: int, seed: int) -> None:
    """vLLM skips the running requests of clients that the policy pauses, which keep what they have and go on later,
    takes one out where the next lacks memory or a seat, and ends every request once.  The log replays:
    our own worker, told the same pauses, tells the same events, also where vLLM runs a step ahead."""
    from fairsched.cli import main

    rng, log = random.Random(seed), tmp_path / "run.jsonl"
    table: dict[str, object] = {"policy": "vtc", "unreserved_tokens": 0, "log": str(log)}
    engine = Bare(model, table, seats=rng.choice((2, 4, 8)), budget=rng.choice((64, 128, 512)))
    scheduler, rest = engine.scheduler, list(prompts(rng, 60, caching=False))
    scheduler.tracker.guard.policy = pauses_in_turns(scheduler.tracker.guard.policy)
    blocks = scheduler.kv_cache_manager.get_blocks
    held: dict[str, tuple[int, int]] = {}

    def before(_: int) -> None:
        while rest and rng.random() < 0.5:
            engine.add(*rest.pop())
        stand = {call.request.request_id for call in scheduler.tracker.running.values() if call.stands}
        now = {name: (len(blocks(name).blocks[0]), scheduler.requests[name].num_output_tokens) for name in stand}
        assert all(now[name] == held[name] for name in stand & held.keys())
        held.clear()
        held.update(now)

    engine.run(ahead, before, lambda: bool(rest))
    ends = Counter(event.request_id for event in engine.events if isinstance(event, Finished))
    assert sorted(ends.items()) == [(i, 1) for i in range(60)]
    assert decisions_differ(scheduler.tracker, engine.events) == []
    counts = check_pauses(engine.events)
    assert counts[Paused] > 0
    said = scheduler.status.document()
    assert said["preemptions"] == counts[Preempted]
    assert not any(said["interventions"].values())
    scheduler.shutdown()
    assert main(["audit", str(log), "--replay"]) == 0


def test_without_reservation_the_promise_names_the_larger_constant(model: Path) -> None:
    """U_dyn counts every request of a batch with the longest output of the model, beside its context; U the memory, and
    what may be unreserved."""
    tables: list[dict[str, object]] = [{"unreserved_tokens": 0}, {}, {"reserve_outputs": False}]
    reserved, predicted, optimistic = (
        Bare(model, {"policy": "vtc"} | table).scheduler.status.document() for table in tables
    )
    assert reserved["promise"]["charge_max"] == 2 * 16 * 32 - 1
    assert predicted["promise"]["charge_max"] == 2 * 2 * 16 * 32 - 1
    assert optimistic["promise"]["charge_max"] == 512 + 2 * 4 * 256
    assert not optimistic["outputs_reserved"]


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"polcy": "vtc"}, "polcy"),
        ({"policy": "vtcc"}, "did you mean vtc"),
        ({"policy": "vtc", "parameters": {"quantum": 3}}, "quantum"),
        ({"policy": "vtc", "parameters": {"max_running": 3}}, "max_running is vLLM's"),
        ({"policy": "fastserve"}, "preempts"),
        ({"policy": "dlpm-in-batch", "reserve_outputs": False}, "pauses running requests, which needs reserve_outputs"),
        ({"policy": "dlpm", "parameters": {"in_flight_cap_tokens": 255}}, "are over the in-flight cap of 255"),
        ({"certificate": "nowhere"}, "no certificate can be read"),
    ],
)
def test_settings_that_cannot_be_used_stop_the_engine(model: Path, table: dict[str, object], match: str) -> None:
    """With one line that says which."""
    with pytest.raises(ValueError, match=match):
        Bare(model, table)


# --- our model of its scheduler ---------------------------------------------------------------------------------------


def test_each_step_is_vllm_s(model: Path) -> None:
    """Over drawn loads and settings, with shared prefixes, early ends, aborts and too little memory, every step is as
    in vLLM's own scheduler, and its asynchronous one: the same tokens of the same requests in the same order, with the
    same blocks, tokens from the cache, preemptions and order of eviction."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        seen += Both(model, seed).run()
    assert all(seen[what] > 50 for what in ("preempted", "aborted", "cached", "finished"))


@pytest.mark.parametrize(
    "fair",
    [
        *({"policy": name} for name in ("fcfs", "vtc", "dlpm", "dlpm-in-batch")),
        {"policy": "vtc", "reserve_outputs": False},
    ],
)
def test_each_step_with_a_policy_is_as_in_vllm(model: Path, fair: dict[str, Any]) -> None:
    """The same with the queue of a policy, in vLLM and in ours: pauses and what is taken out for others included."""
    seen: Counter[str] = Counter()
    for seed in range(6):
        seen += Both(model, seed, fair).run()
    assert seen["finished"] > 100


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(8))
def test_times_are_those_of_vllm_s_core(model: Path, ahead: bool, seed: int) -> None:
    """Requests that come in time, served by the loop of vLLM's own core with steps of known length in place of a model,
    are scheduled and have each of their tokens at the same nanosecond as in our engine."""
    rng, blocks = random.Random(seed), 40
    options = VllmOptions(blocks + 1, SIZE, 64, 8, async_scheduling=ahead, scheduler_reserve_full_isl=seed % 2 > 0)
    latency = LatencyModel("x", "made up", 9_000, 700, 3, (DecodePiece(1, 7_000, 2, 90),), 1)
    load = []
    for job, tokens in drawn(rng, blocks * SIZE):
        at_ns = rng.randrange(rng.choice((1, 300_000, 3_000_000)))
        load.append((replace(job, request=replace(job.request, arrival_ns=at_ns)), tokens))
    core = Core(model, options, blocks, latency)
    core.run(load)
    jobs = sorted((job for job, _ in load), key=lambda job: job.request.arrival_ns)
    engine = VllmEngine(Workload("load", jobs, tuple(Client(i, str(i)) for i in range(3))), latency, options)
    scheduler, found = engine.scheduler, dict[str, list[int]]()
    update, schedule = scheduler.update, scheduler.schedule

    def updated(step: Step) -> list[VllmCall]:
        produced = update(step)
        for call in produced:
            found[call.request_id].append(engine.now_ns)
        return produced

    def scheduled() -> Step:
        step = schedule()
        for call, _, _ in step:
            found.setdefault(call.request_id, [engine.now_ns])
        return step

    scheduler.update, scheduler.schedule = updated, scheduled  # type: ignore[method-assign]
    engine.run()
    assert found == core.times
    assert len(found) == len(load)


# --- the whole engine -------------------------------------------------------------------------------------------------

SERVE = """
import json, os, sys
from vllm import LLM, SamplingParams

fair = json.loads(sys.argv[2])
ours = {"scheduler_cls": "fairsched.integrations.vllm.FairScheduler", "additional_config": {"fairsched": fair}}
llm = LLM(
    sys.argv[1], load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, dtype="float32", max_model_len=256,
    max_num_seqs=2, num_gpu_blocks_override=9, block_size=32, **({} if fair is None else ours)
)
engine = llm.llm_engine
for i in range(20):
    client, prompt, most = ("heavy", 48, 32) if i < 16 else ("light", 16, 8)
    params = SamplingParams(max_tokens=most, ignore_eos=True, detokenize=False, extra_args={"client": client})
    engine.add_request(str(i), {"prompt_token_ids": [(7 * i + k) % 300 + 5 for k in range(prompt)]}, params)
order, gaps = [], []
while engine.has_unfinished_requests():
    order += [int(output.request_id) for output in engine.step() if output.finished]
    if fair is not None and os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0":
        promise = engine.engine_core.engine_core.scheduler.status.document()["promise"]
        gaps.append([promise["gap"], promise["gap_bound"], promise["bound_violations"]])
engine.engine_core.shutdown(timeout=120)
print(json.dumps({"order": order, "gaps": gaps}))
"""


def served(model: Path, fair: dict[str, object] | None, code: str = SERVE, **environment: str) -> dict[str, Any]:
    """What a vLLM of its own says of 16 heavy and 4 light requests that come at once, in order."""
    command = [sys.executable, "-c", code, str(model), json.dumps(fair)]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_light_requests_finish_early_in_the_real_engine(model: Path) -> None:
    """A real model serves 16 heavy and 4 light requests, two at a time: in vLLM's own order the last light one finishes
    last of 20; under VTC and DLPM it is among the first, and the gap is within its bound at every step."""
    stock = served(model, None)
    assert stock["order"] == list(range(20))
    fairs: list[dict[str, object]] = [{"policy": "vtc"}, {"policy": "dlpm", "parameters": {"quantum": 64}}]
    for fair in fairs:
        found = served(model, fair)
        assert sorted(found["order"]) == list(range(20))
        assert max(found["order"].index(i) for i in range(16, 20)) < 7
        assert len(found["gaps"]) > 100
        assert all(0 <= gap <= bound and not violations for gap, bound, violations in found["gaps"])


def test_the_engine_core_in_its_own_process_is_configured_and_leaves_a_log(model: Path, tmp_path: Path) -> None:
    """As vLLM is served: the settings reach the core's process, its log replays to the last hash, its report is there.
    Prefix caching is off, since a log's replay has another cache than vLLM's."""
    log, report = tmp_path / "run.jsonl", tmp_path / "report.json"
    config = tmp_path / "fair.toml"
    text = f'policy = "vtc"\nlog = "{log}"\nreport = "{report}"\nunreserved_tokens = 0\n[clients]\nlight = 2\n'
    config.write_text(text)
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "FAIRSCHED_VLLM_CONFIG": str(config)}
    code = SERVE.replace('"additional_config": {"fairsched": fair}', '"enable_prefix_caching": False')
    served(model, {}, code, **environment)
    said = json.loads(report.read_bytes())
    assert said["outcomes"] == {"finished": 20, "cancelled": 0}
    assert said["clients"]["light"]["weight"] == 2
    assert said["clients"]["heavy"]["decode_tokens"] == 16 * 32
    replayed = subprocess.run(
        [sys.executable, "-m", "fairsched", "audit", str(log), "--replay"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.parametrize("ahead", [1, 2], ids=["sync", "async"])
def test_a_log_replays_and_is_audited(model: Path, tmp_path: Path, ahead: int) -> None:
    """Our own worker, told the decisions of the log, tells the same events, also where vLLM runs a step ahead; the same
    file can be audited."""
    from fairsched.cli import main

    log = tmp_path / "run.jsonl"
    table = {"policy": "dlpm", "log": str(log), "clients": {"b": 2}, "unreserved_tokens": 0}
    engine = Bare(model, table, budget=64)
    engine.serve(3, 30, ahead)
    engine.scheduler.shutdown()
    assert main(["audit", str(log), "--replay"]) == 0
    assert main(["audit", str(log)]) == 0


def test_data_parallel_ranks_have_files_of_their_own(model: Path, tmp_path: Path) -> None:
    """Engine cores that share their settings do not write into one file; each log is whole."""
    from fairsched.cli import main

    table: dict[str, object] = {"policy": "vtc", "unreserved_tokens": 0}
    table |= {"log": str(tmp_path / "run.jsonl"), "report": str(tmp_path / "report.json")}
    engines = [Bare(model, dict(table), rank=rank) for rank in range(3)]
    for engine in engines:
        engine.serve(4, 10)
    for engine in engines:
        engine.scheduler.shutdown()
    names = ["report.1.json", "report.2.json", "report.json", "run.1.jsonl", "run.2.jsonl", "run.jsonl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [main(["audit", str(path), "--replay"]) for path in tmp_path.glob("run*")] == [0, 0, 0]


def test_a_certified_policy_serves_and_others_do_not(model: Path, tmp_path: Path) -> None:
    """A certificate of the policy as it decides here, on this capacity and model length, is accepted and requests are
    served; another step budget, capacity, weight or a certificate for shorter requests is refused."""
    pytest.importorskip("z3", reason="the solvers are not installed")
    from fairsched.engines.adapters.vllm.settings import VllmSettings, vllm_parameters
    from fairsched.engines.serving.guard.certificate import NotCertifiedError
    from fairsched.policies.registry import LOCAL_POLICIES
    from fairsched.verify.report import certificate
    from fairsched.verify.report.deployment import read
    from fairsched.verify.report.scope import subject
    from fairsched.verify.report.values import run

    own = vllm_parameters(VllmSettings(), 128)

    def certified(name: str, tokens_max: int) -> str:
        sizes = {"kv_capacity_tokens": 16 * BLOCK, "prompt_tokens_max": tokens_max, "max_output_tokens": tokens_max}
        weights = {"gold": 4, "free": 1}
        deployment = read({**sizes, "weights": weights, "policies": {"dlpm": own}})
        whole = subject("dlpm", with_parameters(LOCAL_POLICIES["dlpm"], own))
        few = attrs.evolve(whole, theorems=tuple(each for each in whole.theorems if each.id in ("D-gate", "D-4.1")))
        certificate.write_certificate(tmp_path / name, run("0", [few], deployment, self_checks=False), deployment)
        return str(tmp_path / name)

    fitting, short = certified("fitting", 255), certified("short", 254)
    table: dict[str, object] = {"policy": "dlpm", "certificate": fitting}
    engine = Bare(model, table | {"clients": {"b": 4}})
    engine.serve(5, 20)
    assert len(engine.finished) == 20
    cases: tuple[tuple[dict[str, object], dict[str, Any], str], ...] = (
        (table, {"budget": 64}, "max_batched_tokens"),
        (table, {"blocks": 15}, "kv_capacity_tokens: 512 is certified, and this worker has 480"),
        (table | {"clients": {"b": 3}}, {}, "client 'b' has weight 3; certified are 1, 4"),
        (table | {"reserve_outputs": False}, {}, "reserve"),
        (table | {"policy": "vtc"}, {}, "'vtc' has no certificate here"),
        (table | {"certificate": short}, {}, "254 prompt tokens are certified, and the model takes 255"),
    )
    for refused, options, match in cases:
        with pytest.raises(ValueError, match=match) as caught:
            Bare(model, refused, **options)
        assert isinstance(caught.value, NotCertifiedError | ConfigError)


def test_metrics_are_scraped_from_the_core(model: Path) -> None:
    """Service by client, the gap and its bound, at a port of the engine core."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    engine = Bare(model, {"policy": "vtc", "metrics_port": port})
    engine.serve(2, 10)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        metrics = answer.read().decode()
    engine.scheduler.shutdown()
    assert 'fairsched_requests_total{outcome="finished",worker="0"} 10.0' in metrics
    assert 'fairsched_client_service_tokens_total{client="a",phase="decode",worker="0"}' in metrics
    assert "fairsched_service_gap_bound_tokens" in metrics
    assert 'fairsched_bound_violations_total{worker="0"} 0.0' in metrics
