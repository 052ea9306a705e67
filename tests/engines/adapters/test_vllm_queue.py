"""The scheduler inside vLLM without vLLM: a policy's queue, the books, the settings, over a stand-in of its loop."""

import json
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.adapters.common import TrackerStatus, probe
from fairsched.engines.adapters.vllm.memory import KvMemory, Prefixes
from fairsched.engines.adapters.vllm.protocol import VllmRequest
from fairsched.engines.adapters.vllm.settings import VARIABLE, VllmSettings, read_settings
from fairsched.engines.serving import client_name
from fairsched.engines.settings import ConfigError
from fairsched.model import events as ev
from fairsched.model.monitor import Monitor
from fairsched.model.request import KEY_BYTES, Client
from tests.support.adapters import vllm_stand_in as stand
from tests.support.policies.pausing import pauses_in_turns

POLICIES = [
    *(("fcfs", {}), ("vtc", {}), ("dlpm", {"quantum": 16}), ("shortest-prompt+deficit", {"quantum": 3})),
    ("dlpm-in-batch", {"quantum": 16}),
]


def monitor_of(engine: stand.StandIn, unreserved: int, ahead: int) -> Monitor | None:
    """The promise of the engine's policy, to be held to its events; what pauses, learns of steps `ahead` later."""
    policy = engine.tracker.guard.policy
    limits = policy.guarantee.limits(engine.tracker.memory.capacity_tokens, 30)
    running_max = 4 * (ahead if engine.tracker.guard.pauses else 1)
    limits = attrs.evolve(limits, running_max=running_max, unreserved_tokens=unreserved)
    promise = policy.guarantee.promise((Client(0, "a"), Client(1, "b")), limits)
    return None if promise is None else Monitor(promise, policy.guarantee.gate_monitor())


@given(st.integers(0, 1 << 30), st.integers(1, 3), st.sampled_from([0, 20]), st.sampled_from([5, 16, 64]))
@settings(max_examples=12)
def test_a_paused_request_keeps_its_blocks_and_is_not_scheduled(
    seed: int, ahead: int, unreserved: int, budget: int
) -> None:
    """With clients that are paused in turns every request ends once, charged tokens are computed tokens, paused ones
    produce nothing, and each admission is the one that the pure policy decides; also with steps ahead and aborts."""
    rng = random.Random(seed)
    policy = pauses_in_turns(stand.policy_of("vtc"))
    engine = stand.StandIn(policy, budget=budget, unreserved=unreserved)
    rest = stand.requests(rng, 20)
    while rest or engine.running or len(engine.waiting):
        for _ in range(rng.randint(0, 2)):
            if rest:
                engine.add(rest.pop())
        if rng.random() < 0.05 and engine.known:
            engine.abort(rng.choice(list(engine.known)))
        assert engine.steps < 10_000
        engine.run(1, ahead)
    counts = stand.check_pauses(engine.events)
    assert counts[ev.Finished] + counts[ev.Cancelled] == 20
    assert stand.decisions_differ(engine.tracker, engine.events) == []
    produced = sum(sum(event.tokens) for event in engine.events if isinstance(event, ev.Decoded))
    assert produced == sum(
        event.output_tokens if isinstance(event, ev.Finished) else event.generated_tokens
        for event in engine.events
        if isinstance(event, ev.Finished | ev.Cancelled)
    )


def test_paused_requests_make_room_for_the_next() -> None:
    """The worlds of the test before this one have pauses, requests that go on, and ones that are taken out."""
    policy = pauses_in_turns(stand.policy_of("vtc"))
    counts: Counter[type] = Counter()
    for seed in range(3):
        engine = stand.StandIn(policy, budget=16)
        for request in stand.requests(random.Random(seed), 30):
            engine.add(request)
        engine.run(5_000)
        counts += stand.check_pauses(engine.events)
    assert counts[ev.Finished] == 3 * 30
    assert counts[ev.Paused] > 0
    assert counts[ev.Preempted] > 0
    assert counts[ev.Resumed] > counts[ev.Preempted]


@given(
    st.integers(0, 1 << 30),
    st.sampled_from(POLICIES),
    st.integers(1, 3),
    st.sampled_from([None, 0, 7, 20, 64]),
    st.sampled_from([5, 16, 64]),
)
def test_whatever_happens_nobody_is_lost_and_the_policy_decides(
    seed: int, chosen: tuple[str, dict[str, int]], ahead: int, unreserved: int | None, budget: int
) -> None:
    """Arrivals, aborts, grammars, requests that are put off, preemptions, steps ahead: every request ends once, vLLM's
    batch and the books agree, each admission is the one that the pure policy decides, charged tokens are computed
    tokens, and the promise holds, without reservations (None) and with any number of outputs unreserved."""
    rng, (name, parameters) = random.Random(seed), chosen
    reserve = unreserved is not None or name == "dlpm-in-batch"
    engine = stand.StandIn(
        stand.policy_of(name, reserve, **parameters), budget=budget, reserve=reserve, unreserved=unreserved or 0
    )
    coming = stand.requests(rng, 30)
    for request in coming:
        request.status = rng.choice([stand.Status.WAITING] * 4 + [stand.Status.WAITING_FOR_GRAMMAR])
        request.puts_off = rng.choice([0, 0, 0, 1])
    rest = list(coming)
    while rest or engine.running or len(engine.waiting):
        for _ in range(rng.randint(0, 2)):
            if rest:
                engine.add(rest.pop())
        if rng.random() < 0.1 and engine.known:
            engine.abort(rng.choice(list(engine.known)))
        engine.ready = set(engine.known) if rng.random() < 0.5 else engine.ready
        engine.run(1, ahead)
        late = set(engine.waiting._unready)
        run = {call.request.request_id for call in engine.tracker.running.values()}
        assert run | late == {request.request_id for request in engine.running} | late
        assert len(engine.waiting) == len(list(engine.waiting)) == len(engine.tracker.waiting) + len(late)
        engine.tracker.guard.policy.check(engine.tracker.guard.state)
    ends = Counter(event.request_id for event in engine.events if isinstance(event, ev.Finished | ev.Cancelled))
    assert set(ends.values()) == {1}
    assert engine.pool.free == 16
    assert not engine.tracker.guard.interventions
    assert stand.decisions_differ(engine.tracker, engine.events) == []
    if unreserved == 0 and not engine.tracker.guard.pauses:
        assert not any(isinstance(event, ev.Preempted) for event in engine.events)
    assert not engine.tracker.unreserved_tokens
    produced = sum(sum(event.tokens) for event in engine.events if isinstance(event, ev.Decoded))
    assert produced == sum(request.num_output_tokens for request in coming)
    monitor = monitor_of(engine, unreserved or 0, ahead)
    if monitor is not None:
        monitor.observe_all(engine.events)
        report = monitor.report()
        assert report.bound_violations == 0
        # vLLM learns of what it is to pause after the step in which that is decided.
        assert set(report.violated()) <= {"NothingRefunded", *(["PausesObeyed"] * engine.tracker.guard.pauses)}


def test_without_reservation_requests_are_preempted_and_come_back() -> None:
    """The world above does preempt: outputs that outgrow memory take the youngest out, which goes on later."""
    engine = stand.StandIn(stand.policy_of("vtc", False), blocks=8, reserve=False)
    for i in range(4):
        engine.add(stand.StandInRequest(f"r{i}", "ab"[i % 2], 4, 24, 24))
    engine.run(ahead=2)
    assert any(isinstance(event, ev.Preempted) for event in engine.events)
    assert sum(isinstance(event, ev.Finished) for event in engine.events) == 4
    assert stand.decisions_differ(engine.tracker, engine.events) == []


def test_outputs_that_are_declared_and_do_not_come_cost_little() -> None:
    """1,500 outputs declared for 32: when all are reserved a sixth of the requests runs at a time, in almost six times
    the steps; predicted, all that have room run, in about as many steps as with 32 declared."""
    steps = {}
    for declared, unreserved in ((32, 0), (1500, 0), (1500, 16_000)):
        engine = stand.StandIn(stand.policy_of("vtc"), blocks=4000, seats=64, budget=2048, unreserved=unreserved)
        for i in range(400):
            engine.add(stand.StandInRequest(f"r{i}", "abcd"[i % 4], 100, declared, 32))
        steps[declared, unreserved] = 0
        while engine.running or len(engine.waiting):
            engine.run(1)
            steps[declared, unreserved] += 1
        assert not any(isinstance(event, ev.Preempted) for event in engine.events)
    assert steps[1500, 0] > 5 * steps[32, 0]
    assert steps[1500, 16_000] < 1.5 * steps[32, 0]


def test_a_client_that_declares_far_too_much_is_limited_alone() -> None:
    """What one client leaves unreserved is no more than its limit, whatever others do; what it declares beyond that is
    reserved."""
    engine = stand.StandIn(stand.policy_of("vtc"), blocks=1000, seats=64, budget=2048, unreserved=400)
    for i in range(60):
        client, declared = ("greedy", 300) if i % 2 else ("modest", 20)
        engine.add(stand.StandInRequest(f"r{i}", client, 10, declared, 5))
    most = Counter[int]()
    while engine.running or len(engine.waiting):
        engine.run(1)
        most |= engine.tracker.unreserved_tokens
    greedy, modest = (engine.tracker.clients.resolve(name)[0].id for name in ("greedy", "modest"))
    assert 300 <= most[greedy] <= 400
    assert most[modest] <= 400
    assert sum(isinstance(event, ev.Finished) for event in engine.events) == 60


def test_what_is_being_computed_is_not_given_back() -> None:
    """A caller leaves while a chunk is in flight: only what was not scheduled is refunded."""
    engine = stand.StandIn(stand.policy_of("vtc"), budget=5)
    engine.add(stand.StandInRequest("r", "a", 13, 2, 2))
    engine.schedule()
    engine.abort("r")
    engine.update()
    (gone,) = (event for event in engine.events if isinstance(event, ev.Cancelled))
    assert gone.was_running
    assert gone.uncomputed_tokens == 8
    assert [event.tokens for event in engine.events if isinstance(event, ev.Prefilled)] == [5]


def test_a_chunk_of_an_earlier_stint_is_not_one_of_this() -> None:
    """A request that was taken out and is back while a step of before is in flight (vLLM drops its results): what that
    step computed is not taken for the prompt that is computed again."""
    engine = stand.StandIn(stand.policy_of("vtc"), budget=5)
    request = stand.StandInRequest("r", "a", 13, 2, 2)
    engine.add(request)
    first = engine.schedule()
    engine.in_flight.clear()
    engine.running.clear()
    engine.pool.release("r")
    request.status, request.num_computed_tokens = stand.Status.PREEMPTED, 0
    engine.tracker.requeue(request)
    engine.waiting.prepend_requests([request])
    engine.schedule()
    engine.tracker.delivered(id(first), first)
    assert not any(isinstance(event, ev.Prefilled) for event in engine.events)


def test_nobody_passes_who_has_no_room() -> None:
    """The one who is next waits for memory, and a small request behind it waits too: then large ones do not starve."""
    engine = stand.StandIn(stand.policy_of("fcfs"), blocks=4)
    for i, most in enumerate((8, 15, 1)):
        engine.add(stand.StandInRequest(f"r{i}", "a", 1, most, most))
    engine.schedule()
    assert engine.let_in == ["r0"]
    assert not engine.waiting
    assert len(engine.waiting) == 2
    with pytest.raises(IndexError):
        engine.waiting.peek_request()
    engine.update()
    engine.run()
    assert engine.let_in == ["r0", "r1", "r2"]


def test_whoever_is_put_off_keeps_its_place_and_nobody_passes() -> None:
    """A request that vLLM puts off (a LoRA slot is missing) goes first again in the next step."""
    engine = stand.StandIn(stand.policy_of("fcfs"))
    first = stand.StandInRequest("r0", "a", 1, 4, 4)
    first.puts_off = 2
    engine.add(first)
    engine.add(stand.StandInRequest("r1", "b", 1, 4, 4))
    engine.schedule()
    engine.schedule()
    assert engine.let_in == []
    engine.run()
    assert engine.let_in == ["r0", "r1"]


def test_what_the_books_cannot_describe_is_served_first_and_counted() -> None:
    """A streaming session waits beside the policy; so does a prompt that is too long for the library."""
    engine = stand.StandIn(stand.policy_of("vtc"))
    engine.add(stand.StandInRequest("r0", "a", 2, 2, 2))
    session = stand.StandInRequest("s", "a", 2, 2, 2)
    session.resumable = True
    engine.add(session)
    engine.waiting.add_request(stand.StandInRequest("huge", "a", 1 << 30, 2, 2))
    assert engine.waiting.uncovered == 2
    engine.waiting.remove_request(stand.StandInRequest("huge", "a", 1, 1, 1))
    engine.run()
    assert engine.let_in == ["s", "r0"]


def test_a_request_fits_if_all_outputs_do() -> None:
    """Free blocks less what the running ones may still need, in whole blocks; without reservation everybody fits."""
    pool = stand.StandIn(stand.policy_of("vtc"), blocks=10).pool
    memory = KvMemory(pool, stand.BLOCK)
    assert memory.capacity_tokens == 40
    pool.allocate("r", 5)
    running = [("r", 17)]
    assert memory.promised_blocks(running) == 3
    request: Any = stand.StandInRequest("q", "a", 1, 1, 1)
    assert memory.fits(request, 20, running)
    assert not memory.fits(request, 21, running)
    assert KvMemory(pool, stand.BLOCK, reserves=False).fits(request, 1000, running)
    assert KvMemory(pool, stand.BLOCK, lookahead_tokens=4).blocks_of(20) == 6


def test_a_cached_block_that_nobody_uses_is_no_longer_free() -> None:
    """What is cached need not be found again; of that, what others use costs nothing, and the rest is taken out of
    what is free."""
    pool: Any = stand.StandIn(stand.policy_of("vtc"), blocks=4).pool
    pool.allocate("r", 4)
    memory = KvMemory(pool, stand.BLOCK)
    request: Any = stand.StandInRequest("q", "a", 1, 1, 1)

    def fits(*users: int) -> bool:
        """Whether a request of five blocks fits beside one of a block, with cached blocks that so many others use."""
        cached = [SimpleNamespace(ref_cnt=count) for count in users]
        pool.get_computed_blocks = lambda _: (SimpleNamespace(blocks=(cached,)), stand.BLOCK * len(cached), 0)
        return memory.fits(request, 5 * stand.BLOCK, [("r", stand.BLOCK)])

    assert not fits()
    assert fits(1, 1)
    assert fits(1, 1, 0)
    assert not fits(1, 0)
    assert not fits(0, 0, 0)


def test_a_policy_is_told_of_what_it_believes_to_be_cached_and_is_not() -> None:
    """Before it decides: from the first block on that is gone; nothing where it believes no more than there is."""
    cache: Any = Cache(3)
    prefixes, request = Prefixes(cache, True), stand.StandInRequest("q", "a", 6 * stand.BLOCK + 1, 1, 1)
    request.block_hashes = [k.to_bytes(32, "little") for k in range(6)]
    cache.put(request)
    prompt = prefixes.prompt(request)
    assert prefixes.corrected(request, 7, prompt, 6 * stand.BLOCK, 9) == ev.Evicted(9, 0, 7, prompt, 3, 3)
    for believed in (0, 2 * stand.BLOCK, 3 * stand.BLOCK):
        assert prefixes.corrected(request, 7, prompt, believed, 9) is None


@pytest.mark.parametrize(
    ("client", "name"),
    [
        ("gold", "gold"),
        (7, "7"),
        (None, "default"),
        ({"no": "name"}, "default"),
        ("", "default"),
        ("x" * 999, "x" * 256),
        ("a\ud800", "a?"),
    ],
)
def test_a_request_names_its_client(client: object, name: str) -> None:
    """By a string or a number; anything else is the default client."""
    found, new = VllmSettings(clients={"gold": 3}).registry().resolve(client_name(client))
    assert found.name == name
    assert new == (name not in ("gold", "default"))
    assert found.weight == (3 if name == "gold" else 1)


def test_unknown_clients_beyond_the_limit_share_the_default_client() -> None:
    """So that no caller can make the tables grow without end."""
    registry = VllmSettings(clients={"gold": 3}, clients_max=2).registry()
    found = [registry.resolve(f"c{i}")[0].name for i in range(4)]
    assert found == ["c0", "c1", "default", "default"]


def test_settings_come_from_the_command_line_or_a_file(tmp_path: Path) -> None:
    """One of the two, every key known, every value of its type; the error says where."""
    file = tmp_path / "fair.toml"
    file.write_text('policy = "vtc"\n[clients]\ngold = 4\n')
    assert read_settings({}, {}) == VllmSettings()
    assert read_settings({"other": 1}, {VARIABLE: str(file)}) == VllmSettings(policy="vtc", clients={"gold": 4})
    assert read_settings({"fairsched": {"reserve_outputs": False}}, {}).reserve_outputs is False
    with pytest.raises(ConfigError, match="both"):
        read_settings({"fairsched": {}}, {VARIABLE: str(file)})
    for table, match in (
        ({"polcy": "vtc"}, "polcy"),
        ({"clients": {"a": 0}}, "clients"),
        ({"reserve_outputs": "yes"}, "reserve_outputs"),
        ("vtc", "expected a table"),
    ):
        with pytest.raises(ConfigError, match=match):
            read_settings({"fairsched": table}, {})
    with pytest.raises(ConfigError, match=r"nowhere\.toml cannot be read"):
        read_settings({}, {VARIABLE: str(tmp_path / "nowhere.toml")})
    file.write_text("policy = ")
    with pytest.raises(ConfigError, match=r"fair\.toml"):
        read_settings({}, {VARIABLE: str(file)})


def test_a_release_is_refused_for_what_it_lacks() -> None:
    """By name: attributes set when a request is made, and the arguments of methods."""
    probe("vLLM 1", (stand.StandInRequest, VllmRequest), (stand.StandInRequest, "is_finished/0"))
    with pytest.raises(ConfigError, match=r"this vLLM 1, which lacks StandInRequest\.is_finished/1, .*\.priority$"):
        probe("vLLM 1", (stand.StandInRequest, "is_finished/1 request_id priority"))


def test_the_report_is_json_and_says_what_was_served(tmp_path: Path) -> None:
    """Tokens by client, outcomes, the gap and its bound; the metrics say the same."""
    engine = stand.StandIn(stand.policy_of("vtc"), settings=VllmSettings(clients={"b": 2}))
    for i in range(6):
        engine.add(stand.StandInRequest(f"r{i}", "ab"[i % 2], 8, 4, 4))
    engine.run()
    report = TrackerStatus(monitor_of(engine, 0, 1))
    report.tracker = engine.tracker
    report.record(engine.events)
    report.write(tmp_path / "report.json")
    said = json.loads((tmp_path / "report.json").read_bytes())
    assert said["clients"]["b"] == {"weight": 2, "prefill_tokens": 24, "decode_tokens": 12, "cached_tokens": 0}
    assert said["outcomes"] == {"finished": 6, "cancelled": 0}
    assert 0 < said["promise"]["gap"] <= said["promise"]["gap_bound"]
    samples = {(name, *labels.values()): value for name, labels, value in report.samples()}
    assert samples["client_service_tokens_total", "b", "decode"] == 12
    assert samples["service_gap_tokens",] <= samples["service_gap_bound_tokens",]


class Cache:
    """vLLM's prefix cache: chained blocks, the least recently used goes first, and of a prompt its end."""

    def __init__(self, blocks: int) -> None:
        self.block_tokens = stand.BLOCK
        self._blocks = blocks
        self._used: dict[bytes, None] = {}

    def cached_tokens(self, request: Any) -> int:
        """Tokens of the longest prefix that is there, less the last one of the request."""
        names = request.block_hashes[: (request.num_tokens - 1) // stand.BLOCK]
        return stand.BLOCK * next((k for k, name in enumerate(names) if name not in self._used), len(names))

    def put(self, request: stand.StandInRequest) -> None:
        """The request is computed."""
        for name in reversed(request.block_hashes):
            self._used.pop(name, None)
            self._used[name] = None
        while len(self._used) > self._blocks:
            del self._used[next(iter(self._used))]


@pytest.mark.parametrize(("blocks", "shared", "tail"), [(1, 0, 0), (4, 3, 0), (4, 3, 1), (10, 0, 1), (10, 0, 0)])
def test_what_is_believed_stays_about_as_large_as_the_cache(blocks: int, shared: int, tail: int) -> None:
    """Prompts of whole blocks and others, with and without a beginning that they share, of which the cache drops the
    end first: what the policy believes and the requests that are kept for it do not grow with what was served."""
    cache: Any = Cache(47)
    prefixes, believed = Prefixes(cache, True), {b"": 0}
    for i in range(1_000):
        request = stand.StandInRequest(f"r{i}", "a", blocks * stand.BLOCK + tail, 1, 1)
        request.num_output_tokens = 1
        mine = [(k if k < shared else 100 + i * blocks + k).to_bytes(32, "little") for k in range(blocks)]
        request.block_hashes = mine
        prompt = prefixes.prompt(request)
        cache.put(request)
        for event in prefixes.computed(i, prompt, request, i):
            assert isinstance(event, ev.Cached | ev.Evicted)
            names = [event.prompt.keys[k : k + KEY_BYTES] for k in range(0, len(event.prompt.keys), KEY_BYTES)]
            if isinstance(event, ev.Evicted):
                for name in names[event.keep_blocks :]:
                    believed.pop(name, None)
            else:
                believed |= dict.fromkeys(names, 0)
        assert {name[:KEY_BYTES] for name in mine} <= set(believed)
        assert len(prefixes._told) <= 2 * 50
        assert len(believed) <= 2 * 50 + blocks
