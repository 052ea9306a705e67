"""The hook inside SGLang without SGLang: the books, the ranking, the settings, over a stand-in of its loop."""

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.adapters.common.settings import own_file
from fairsched.engines.adapters.sglang import shim
from fairsched.engines.adapters.sglang.settings import VARIABLE, SglangSettings
from fairsched.engines.adapters.sglang.shim import QueueConnection, Shim
from fairsched.engines.adapters.sglang.tracker import ROOM_TOKENS
from fairsched.engines.serving import empty_worker
from fairsched.engines.settings import ConfigError
from fairsched.integrations import sglang as integration
from fairsched.model.events import Admitted, Arrived, Cancelled, Decoded, Finished, Preempted, Prefilled
from tests.support.adapters.sglang_stand_in import StandIn, StandInPolicy, StandInReq, requests

POLICIES: list[tuple[str, dict[str, str | int]]] = [
    ("fcfs", {}),
    ("vtc", {}),
    ("fcfs+deficit", {"quantum": 16}),
    ("shortest-prompt+deficit", {"quantum": 3}),
]


def settings_of(name: str, parameters: dict[str, str | int] | None = None, **more: Any) -> SglangSettings:
    """Settings with a monitor."""
    # A busy machine may take long over a decision.
    return SglangSettings(
        policy=name, parameters=parameters or {}, output_tokens_max=30, decision_budget_ms=20_000, **more
    )


class Again:
    """The policy a second time, told the same events, asked for the order of each queue by itself."""

    def __init__(self, engine: StandIn, within: str) -> None:
        self.engine, self.within = engine, within
        self.policy = engine.chosen.policy
        self.state: Any = self.policy.init()
        self.told = 0
        self.own: list[Any] = []
        sort = engine.policy.calc_priority

        def sorted_first(queue: list[Any]) -> None:
            sort(queue)
            self.own = list(queue)

        engine.policy.calc_priority = sorted_first  # type: ignore[assignment, method-assign]
        engine.before_fill = self.check

    def check(self, queue: list[Any]) -> None:
        """The queue is in the order in which the policy would let everybody in, one after the other."""
        for event in self.engine.events[self.told :]:
            self.state = self.policy.observe(self.state, event)
        self.told = len(self.engine.events)
        self.policy.check(self.state)
        tracker = self.engine.shim.tracker
        call = {c.known.id: c for c in tracker.waiting.values()}
        left = {each.known.id: each for each in tracker.calls(self.own)}
        state, order = self.state, []
        while left:
            plan, after = self.policy.decide(state, empty_worker(tracker.now_ns, ROOM_TOKENS, ROOM_TOKENS))
            (admission,) = plan.admit
            first = call[admission.request_id]
            if self.within == "sglang":
                first = next(each for each in left.values() if each.known.client == first.known.client)
            order.append(first.request)
            del left[first.known.id]
            event = first.admission(tracker.now_ns, first.request.num_matched_prefix_tokens)
            planned = (admission.request_id, admission.extend_tokens, admission.cached_prefix_tokens)
            same = planned == (event.request_id, event.extend_tokens, event.cached_prefix_tokens)
            # Where the plan is what SGLang would do, the policy's own next state says the same.
            state = after if same else self.policy.observe(state, event)
        assert [request.rid for request in queue] == [request.rid for request in order]


@settings(max_examples=60)
@given(
    st.integers(0, 1 << 30),
    st.sampled_from(POLICIES),
    st.sampled_from([5, 16, 64]),
    st.sampled_from(["fcfs", "lpm"]),
    st.sampled_from(["policy", "sglang"]),
    st.booleans(),
)
def test_whatever_happens_the_queue_is_ordered_and_the_books_are_true(
    seed: int, chosen: tuple[str, dict[str, str | int]], budget: int, own: str, within: str, tight: bool
) -> None:
    """Arrivals, aborts, chunks, shared prefixes, retractions: the queue keeps its requests and is in the pure policy's
    order, every request ends once, service is what was computed, and the gate and its bound hold."""
    rng = random.Random(seed)
    engine = StandIn(settings_of(*chosen, within_client=within), tokens=64 if tight else 400, budget=budget, own=own)
    Again(engine, within)
    coming = requests(rng, 25)
    rest, known = list(coming), []
    while rest or engine.running or engine.waiting_queue or engine.chunked:
        for _ in range(rng.randint(0, 2)):
            if rest:
                known.append(rest.pop())
                engine.waiting_queue.append(known[-1])
        if known and rng.random() < 0.1:
            engine.abort(rng.choice(known).rid)
        engine.step()
    engine.order()
    tracker, events = engine.shim.tracker, engine.events
    assert not tracker.waiting
    assert not tracker.running
    assert not tracker.guard.interventions
    ends = Counter(event.request_id for event in events if isinstance(event, Finished | Cancelled))
    came = {event.request.id for event in events if isinstance(event, Arrived)}
    assert set(ends) == came
    assert set(ends.values()) <= {1}
    assert sum(sum(event.tokens) for event in events if isinstance(event, Decoded)) == engine.computed
    assert sum(event.tokens for event in events if isinstance(event, Prefilled)) == sum(r.extended for r in coming)
    if not tight:
        assert not any(isinstance(event, Preempted) for event in events)
    report = engine.shim.status.report()
    if report is not None:
        assert report.bound_violations == 0
        assert set(report.violated()) <= {"NothingRefunded"}


def test_outputs_that_outgrow_memory_are_taken_out_and_come_back() -> None:
    """The world above does retract; what is computed again is charged again."""
    engine = StandIn(settings_of("vtc"), tokens=40)
    for i in range(4):
        engine.add(f"r{i}", "ab"[i % 2], 4, 24)
    engine.run()
    assert any(isinstance(event, Preempted) for event in engine.events)
    assert sum(isinstance(event, Finished) for event in engine.events) == 4
    charged = sum(event.extend_tokens for event in engine.events if isinstance(event, Admitted))
    assert charged > 4 * 4


def test_what_no_pass_has_begun_is_given_back() -> None:
    """A caller leaves after the first chunk of a prompt: the rest of it is refunded."""
    engine = StandIn(settings_of("vtc"), budget=5)
    engine.add("r", "a", 13, 2)
    engine.step()
    engine.abort("r")
    engine.order()
    (gone,) = (event for event in engine.events if isinstance(event, Cancelled))
    assert gone.was_running
    assert gone.uncomputed_tokens == 8
    assert [event.tokens for event in engine.events if isinstance(event, Prefilled)] == [5]


def test_an_output_that_sglang_begins_anew_is_counted_anew() -> None:
    """A retracted request with embeddings for a prompt loses its output (`reset_for_retract`): what was seen of it
    stays counted, and all of the new one is counted."""
    engine = StandIn(settings_of("vtc"), seats=1)
    request = StandInReq("r", "a", 4, 3)
    engine.waiting_queue.append(request)
    engine.step()
    engine.order()
    engine.step()
    engine.running.clear()
    engine._retract(request)
    request.output_ids.clear()
    engine.run()
    assert sum(sum(event.tokens) for event in engine.events if isinstance(event, Decoded)) == 1 + 3
    (finished,) = (event for event in engine.events if isinstance(event, Finished))
    assert finished.output_tokens == 1 + 3


def test_a_clients_own_order_may_be_sglangs() -> None:
    """Whose turn it is says the policy; which of its requests, SGLang's longest prefix match."""
    firsts = {}
    for within in ("policy", "sglang"):
        engine = StandIn(settings_of("vtc", within_client=within), own="lpm")
        engine.policy.cached.add(8)
        for rid, client, shared in (("a0", "a", 0), ("a1", "a", 8), ("b0", "b", 0)):
            engine.add(rid, client, 10, 1, shared)
        engine.order()
        firsts[within] = [request.rid for request in engine.waiting_queue]
    # a1 costs so little of a's counter that a is next again.
    assert firsts == {"policy": ["a0", "b0", "a1"], "sglang": ["a1", "b0", "a0"]}


def test_only_so_many_are_ranked_and_the_rest_follow_as_they_came() -> None:
    """`ranked_max` bounds the work."""
    engine = StandIn(settings_of("vtc", ranked_max=2))
    for i, client in enumerate("aaaabb"):
        engine.add(f"{client}{i}", client, 4, 1)
    engine.order()
    assert [request.rid for request in engine.waiting_queue] == ["a0", "b4", "a1", "a2", "a3", "b5"]


def test_after_a_failure_sglang_finds_its_queue_as_it_left_it() -> None:
    """The order of a pass does not leak into the next one: first come, first served again, retracted requests last."""
    engine = StandIn(settings_of("vtc"))
    names = [("a0", "a"), ("a1", "a"), ("b2", "b")]
    engine.waiting_queue.extend(StandInReq(rid, client, 4, 1) for rid, client in names)
    engine.order()
    assert [request.rid for request in engine.waiting_queue] == ["a0", "b2", "a1"]
    engine.shim.tracker.guard.set_aside = "for a test"
    engine.add("a3", "a", 4, 1)
    engine.order()
    assert [request.rid for request in engine.waiting_queue] == ["a0", "a1", "b2", "a3"]


def test_books_that_meet_the_unforeseen_stop_and_sglang_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Another SGLang, whose requests lack a field: one message, its own order, everybody is served."""
    engine = StandIn(settings_of("vtc"), seats=1)
    for i in range(6):
        engine.add(f"r{i}", "a" if i < 4 else "b", 2, 2)
    del engine.waiting_queue[0].sampling_params.custom_params
    engine.run()
    assert engine.let_in == [f"r{i}" for i in range(6)]
    assert [record.message for record in caplog.records if "stops here" in record.message] == [
        "fairsched stops here, and SGLang's own order holds from now on"
    ]


@pytest.mark.parametrize(
    ("policy", "match"),
    [
        ({"policy": "dlpm"}, "within_client"),
        ({"policy": "nothing"}, "unknown policy"),
        ({"policy": "vtc", "parameters": {"reserve": "static"}}, "reserve is SGLang's"),
        ({"policy": "fcfs+deficit", "parameters": {"in_flight_cap_tokens": 9}}, "holds no request back"),
        ({"policy": "fastserve"}, "preempts"),
    ],
)
def test_what_an_order_cannot_do_is_refused(policy: dict[str, Any], match: str) -> None:
    """Policies that preempt, look at the cache or hold clients back; names that are not there."""
    with pytest.raises(ConfigError, match=match):
        shim.chosen(SglangSettings(**policy))


def test_modes_of_sglang_that_are_not_covered_are_refused() -> None:
    """SGLang's priorities would sort before the policy does; disaggregated schedulers have other queues."""
    settings, scheduling = settings_of("vtc"), StandInPolicy("fcfs", 10, 1)
    policy = shim.chosen(settings)
    with pytest.raises(ConfigError, match="disaggregated decode"):
        Shim(settings, policy, scheduling, QueueConnection(refused="disaggregated decode"))
    scheduling.enable_priority_scheduling = True
    with pytest.raises(ConfigError, match="enable-priority-scheduling"):
        Shim(settings, policy, scheduling, QueueConnection())


@pytest.mark.parametrize(
    ("client_from", "said", "key", "name"),
    [
        ("custom_params", {"client": "gold"}, None, "gold"),
        ("custom_params", {"client": 7}, "other", "7"),
        ("custom_params", None, "other", "default"),
        ("custom_params", {"client": ["x"]}, None, "default"),
        ("routing_key", {"client": "gold"}, "silver", "silver"),
        ("routing_key", None, None, "default"),
        ("gateway", {"client": "gold"}, "J%C3%B6rg", "Jörg"),
        ("gateway", {"client": "gold"}, None, "default"),
    ],
)
def test_a_request_names_its_client(client_from: Any, said: Any, key: str | None, name: str) -> None:
    """In `custom_params`, or by SGLang's routing key; who says neither is the default client."""
    engine = StandIn(SglangSettings(client_from=client_from, clients={"gold": 3}))
    request = StandInReq("r", None, 4, 1)
    request.sampling_params.custom_params, request.routing_key = said, key
    engine.waiting_queue.append(request)
    engine.order()
    tracker = engine.shim.tracker
    (call,) = tracker.waiting.values()
    assert tracker.clients.all[call.known.client].name == name


def test_log_and_report_say_what_was_served(tmp_path: Path) -> None:
    """Files of the rank that speaks; tokens by client, the gap and its bound."""
    report, log = tmp_path / "report.json", tmp_path / "run.jsonl"
    engine = StandIn(settings_of("vtc", report=str(report), log=str(log), clients={"b": 2}))
    for i in range(6):
        engine.add(f"r{i}", "ab"[i % 2], 8, 4)
    engine.run()
    engine.shim._outputs.report()
    written: Any = engine.shim.tracker.bus.log
    written.close()
    said = json.loads(report.read_bytes())
    assert said["clients"]["b"] == {"weight": 2, "prefill_tokens": 24, "decode_tokens": 12, "cached_tokens": 0}
    assert said["outcomes"] == {"finished": 6, "cancelled": 0}
    assert said["outputs_reserved"] is False
    assert 0 < said["promise"]["gap"] <= said["promise"]["gap_bound"]
    assert log.read_text().count("Admitted") == 6
    assert '"max_running":"4"' in log.read_text()
    assert '"reserve":"optimistic"' in log.read_text()


def test_each_data_parallel_rank_has_files_of_its_own() -> None:
    """So that none overwrites another's."""
    assert [str(own_file("out/run.jsonl", worker)) for worker in (0, 3)] == ["out/run.jsonl", "out/run.3.jsonl"]


class Registry:
    """SGLang's registry, in small."""

    hooks: list[tuple[str, Any, str]]

    @classmethod
    def register(cls, target: str, hook: Any, kind: str) -> None:
        """Keep a hook."""
        cls.hooks.append((target, hook, kind))


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> type[Registry]:
    """An SGLang of which there is no more than a version, a registry, and requests."""
    Registry.hooks = []
    package, module = ModuleType("sglang"), ModuleType("sglang.srt.plugins.hook_registry")
    package.__version__ = "0.5.23"  # type: ignore[attr-defined]
    module.HookRegistry = Registry  # type: ignore[attr-defined]
    module.HookType = SimpleNamespace(AFTER="after", AROUND="around")  # type: ignore[attr-defined]
    requests = ModuleType("sglang.srt.managers.schedule_batch")
    requests.Req = StandInReq  # type: ignore[attr-defined]
    for name, each in (("sglang", package), (module.__name__, module), (requests.__name__, requests)):
        monkeypatch.setitem(sys.modules, name, each)
    for name in ("sglang.srt", "sglang.srt.plugins", "sglang.srt.managers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.delenv(VARIABLE, raising=False)
    return Registry


@pytest.fixture
def asked(sglang: type[Registry], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str | None], None]:
    """Register with a file of that text; None: a file that is not there."""

    def register(text: str | None) -> None:
        file = tmp_path / "fair.toml"
        if text is not None:
            file.write_text(text)
        monkeypatch.setenv(VARIABLE, str(file))
        integration.register()

    return register


def test_nothing_happens_unless_asked(sglang: type[Registry]) -> None:
    """An installation alone changes nothing."""
    integration.register()
    assert sglang.hooks == []


def test_asked_it_hooks_the_policy_and_its_order(
    sglang: type[Registry], asked: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hooks of one class, which together order a queue."""
    monkeypatch.setattr(shim, "_place", QueueConnection)
    asked('policy = "vtc"\n')
    (made_at, made, after), (ordered_at, ordered, around) = sglang.hooks
    assert (made_at.rsplit(".", 1)[1], after) == ("__init__", "after")
    assert (ordered_at.rsplit(".", 1)[1], around) == ("calc_priority", "around")
    scheduling: Any = StandInPolicy("fcfs", 10, 1)
    made(None, scheduling, "fcfs")
    queue = [StandInReq(rid, rid[0], 4, 1) for rid in ("a0", "a1", "b2")]
    ordered(lambda policy, waiting, *rest: policy.calc_priority(waiting), scheduling, queue, None)
    assert [request.rid for request in queue] == ["a0", "b2", "a1"]


@pytest.mark.parametrize(
    ("text", "match"),
    [("polcy = 1", "polcy"), ('policy = "dlpm"', "dlpm looks at"), (None, "cannot be read")],
)
def test_what_cannot_be_followed_stops_the_engine(
    sglang: type[Registry], asked: Callable[[str | None], None], text: str | None, match: str
) -> None:
    """SGLang goes on without a plugin that raises, so this leaves with one line instead."""
    with pytest.raises(SystemExit, match=match) as stopped:
        asked(text)
    assert str(stopped.value).startswith("fairsched")
    assert sglang.hooks == []


def test_a_release_without_what_the_hook_reads_is_refused(
    sglang: type[Registry], asked: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, when the scheduler starts, whatever the release calls itself."""
    asked('policy = "vtc"\n')
    monkeypatch.setattr(sys.modules["sglang.srt.managers.schedule_batch"], "Req", type("Req", (), {"rid": ""}))
    with pytest.raises(ConfigError, match=r"SGLang 0\.5\.23, which lacks Req\.origin_input_ids, .*Req\.finished_len"):
        sglang.hooks[0][1](None, StandInPolicy("fcfs", 10, 1))
