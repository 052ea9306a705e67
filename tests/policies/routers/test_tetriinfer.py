"""TetriInfer: room first, then the mix of outputs; a phase keeps a worker, and one that flips gets nothing."""

import hypothesis.strategies as st
from hypothesis import given
from immutables import Map
from msgspec.structs import replace

from fairsched.engines.simulation import Bucketed, Cluster, Oracle, simulate
from fairsched.engines.workloads import generate
from fairsched.engines.workloads.fleet import WorkerSpec
from fairsched.model.decision import ClusterView, Role, WorkerLoad
from fairsched.model.machine import PRESETS
from fairsched.model.request import Prompt, Request
from fairsched.policies.routers import TetriInfer
from fairsched.policies.routers.phases import HeavyLight
from fairsched.policies.routers.phases.tetriinfer import EMPTY, NO_FLIPS, Flips, Mix, MixState, advanced, as_they_serve

LATENCY = PRESETS["opt-13b-a100-tp2"]
CAPACITY = 1_000


def load(worker: int, role: Role = "decode", waiting: int = 0, used: int = 0) -> WorkerLoad:
    """A worker with that much in use, and so many requests that wait with ten tokens each."""
    return WorkerLoad(worker, waiting, 0, 10 * waiting, CAPACITY - used, CAPACITY, role)


def request(prompt: int, output: int) -> Request:
    """A request that is foreseen to produce so much."""
    return Request(99, 0, 0, Prompt(prompt), 500, predicted_output_tokens=output)


MIXES = st.lists(
    st.builds(
        lambda light, heavy, tokens: Mix(light + heavy, heavy, tokens),
        *[st.integers(0, 9)] * 2,
        st.integers(0, CAPACITY),
    ),
    min_size=1,
    max_size=6,
)


@given(MIXES, st.integers(1, 400), st.integers(1, 400), st.integers(0, 50))
def test_room_comes_first(mixes: list[Mix], prompt: int, output: int, drawn: int) -> None:
    """A request goes where its prompt and predicted output fit beside the peaks of all others, if there is such a
    worker; if there is none, where there is most room."""
    view = ClusterView(0, tuple(load(worker) for worker in range(len(mixes))))
    state = MixState(drawn, mixes=Map(dict(enumerate(mixes))))
    chosen = HeavyLight().route(state, request(prompt, output), view)[0].worker
    rooms = [CAPACITY - mix.tokens for mix in mixes]
    if max(rooms) >= prompt + output:
        assert rooms[chosen] >= prompt + output
    else:
        assert rooms[chosen] == max(rooms)


@given(st.tuples(st.integers(0, 9), st.integers(0, 9)), st.tuples(st.integers(0, 9), st.integers(0, 9)), st.booleans())
def test_the_lighter_mix_wins(one: tuple[int, int], other: tuple[int, int], heavy: bool) -> None:
    """Of two workers with room the one wins whose share of heavy outputs is smaller with the request."""
    mixes = [Mix(light + heavies, heavies, 0) for light, heavies in (one, other)]
    view = ClusterView(0, (load(0), load(1)))
    state = MixState(mixes=Map(dict(enumerate(mixes))))
    chosen = HeavyLight().route(state, request(1, 200 if heavy else 100), view)[0].worker
    shares = [(mix.heavy + heavy) / (mix.requests + 1) for mix in mixes]
    assert shares[chosen] == min(shares)
    if shares[0] == shares[1]:
        assert mixes[chosen].requests == min(mix.requests for mix in mixes)


def test_the_lower_end_lets_more_in() -> None:
    """As printed the lower end of a range counts: a request goes where its upper end does not fit."""
    view = ClusterView(0, (load(0), load(1)))
    state = MixState(mixes=Map({0: Mix(1, 0, CAPACITY - 150), 1: Mix(1, 0, CAPACITY - 140)}))
    asked = request(50, 200)
    printed = HeavyLight(counts="lower", bucket_tokens=200)
    assert printed.foreseen(asked) == 0
    assert HeavyLight().foreseen(asked) == 200
    assert printed.route(state, asked, view)[1].drawn == 2
    assert HeavyLight().route(state, asked, view)[1].drawn == 0
    assert EMPTY.plus(printed.route(state, asked, view)[1].sent[99], 1).tokens == 50


# --- flips ------------------------------------------------------------------------------------------------------------


def test_an_idle_worker_flips_to_the_phase_with_load() -> None:
    """It is blocked at once, drains, serves the other phase after the switch, and stays if all are idle."""
    idle = (load(0, "prefill"), load(1, "prefill"), load(2, "decode", waiting=3))
    flips = advanced(NO_FLIPS, idle, 0, 0, 60, 6)
    assert flips == Flips(since_ns=Map({0: 0, 1: 0}))
    flips = advanced(flips, idle, 60, 0, 60, 6)
    assert [each.worker for each in as_they_serve(flips, idle)] == [1, 2]
    flips = advanced(flips, idle, 65, 0, 60, 6)
    assert [each.worker for each in as_they_serve(flips, idle)] == [1, 2]
    flips = advanced(flips, idle, 66, 0, 60, 6)
    assert [each.role for each in as_they_serve(flips, idle)] == ["decode", "prefill", "decode"]
    quiet = (*idle[:2], load(2, "decode"))
    assert not advanced(Flips(since_ns=Map({0: 0, 1: 0, 2: 0})), quiet, 99, 0, 60, 6).under_way


def test_a_worker_with_little_load_drains_first() -> None:
    """As printed a worker below 10 % flips; while it has something to do it neither switches nor gets more."""
    busy = (load(0, "prefill", used=50), load(1, "prefill"), load(2, "decode", used=900))
    flips = advanced(Flips(since_ns=Map({0: 0, 1: 5})), busy, 70, 10, 60, 6)
    assert flips.under_way[0].ready_ns is None
    flips = advanced(flips, busy, 1_000, 10, 60, 6)
    assert flips.under_way[0].ready_ns is None
    done = (load(0, "prefill"), *busy[1:])
    flips = advanced(flips, done, 1_001, 10, 60, 6)
    assert flips.under_way[0].ready_ns == 1_007


def test_a_fleet_with_flips_serves_everything() -> None:
    """Prefill workers flip when all prompts are computed, so that decoding ends earlier than without, and nothing is
    lost."""
    work = generate("sharegpt", phases="LPHD", requests=60, seed=3)
    work = replace(work, jobs=tuple(replace(j, request=replace(j.request, arrival_ns=0)) for j in work.jobs))
    roles: tuple[Role, ...] = ("prefill", "prefill", "decode")
    cluster = Cluster(workers=tuple(WorkerSpec(LATENCY, 8_000, role=role) for role in roles))
    ends = {}
    for after_us in (100_000, 10**12):
        router = TetriInfer(flip_after_us=after_us)
        result = simulate(work, "tetriinfer", router, cluster=cluster, predictor=Oracle())
        assert result.measures.finished == 60
        ends[after_us] = result.measures.makespan_us
    assert ends[100_000] < ends[10**12]


def test_kv_is_sent_while_prompts_are_computed() -> None:
    """A prompt of several chunks is named its target after the first one, and its KV is there earlier."""
    work = generate("sharegpt", phases="HPLD", requests=1, seed=1)
    specs = tuple(WorkerSpec(LATENCY, 8_000, role=role) for role in ("prefill", "decode"))
    latencies = []
    for chunk in (256, 4_096):
        run = simulate(
            work, "tetriinfer", "tetriinfer", cluster=Cluster(workers=specs), params={"max_batched_tokens": chunk}
        )
        assert run.moves["migrated"] == 1
        latencies.append((run.measures.latency_us.mean or 0) - (run.measures.ttft_us.mean or 0))
    assert latencies[0] < latencies[1]


def test_predictions_name_an_end() -> None:
    """A bucket's lower end is a bucket below its upper end, and never nothing."""
    job = generate("sharegpt", requests=1, seed=2).jobs[0]
    job = replace(job, output_tokens=250)
    ends = [Bucketed(accuracy=1.0, width_tokens=200, buckets=6, end=end).of(job) for end in ("lower", "upper")]
    assert ends == [200, 400]
    assert Bucketed(accuracy=1.0, end="lower").of(replace(job, output_tokens=5)) == 1
