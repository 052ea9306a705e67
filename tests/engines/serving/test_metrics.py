"""What Prometheus reads is what happened: tokens by client, gaps within their bounds, interventions, bounded labels."""

from collections import Counter
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fairsched.engines.serving import Engine, monitor_of
from fairsched.engines.serving.metrics import EngineMetrics
from fairsched.model.events import Admitted, Decoded, Prefilled
from fairsched.model.machine import DecodePiece, LatencyModel
from fairsched.policies.catalog import FCFS, VTC
from fairsched.policies.registry import local_policy, with_parameters
from tests.engines.serving.test_loop import Ends, engine_of
from tests.support.policies import misbehaving
from tests.support.policies.misbehaving import Misbehaving

Sample = tuple[str, frozenset[tuple[str, str]]]


def samples_of(text: str) -> dict[Sample, float]:
    """Every sample of a scrape, by name and labels."""
    families = text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def scrape(registry: CollectorRegistry) -> dict[Sample, float]:
    """Every sample of a registry."""
    return samples_of(generate_latest(registry).decode())


def sample(samples: dict[Sample, float], name: str, *, worker: str = "0", **labels: str) -> float:
    """One sample of a worker."""
    return samples[f"fairsched_{name}", frozenset({"worker": worker, **labels}.items())]


def watched(policy: Any, clients_shown: int = 20) -> tuple[Engine, CollectorRegistry, Ends]:
    """An engine with metrics."""
    registry, ends = CollectorRegistry(), Ends()
    engine = engine_of(policy, kv_capacity_tokens=60, fallback=FCFS(), listeners=[ends])
    EngineMetrics(registry, clients_shown).watch(engine, monitor_of(policy, 60, 12))
    return engine, registry, ends


def test_metrics_are_what_happened() -> None:
    """Tokens by client and phase are the sums of the events; gap, queue, decisions and outcomes agree with the run."""
    engine, registry, ends = watched(VTC())
    for i in range(12):
        engine.ask("hog" if i % 3 else "light", [i % 2] * 20, 4 + i % 5)
    for _ in range(5):
        engine.step()
    samples = scrape(registry)
    assert sample(samples, "waiting_requests") == len(engine.state.queue) > 0
    assert sample(samples, "running_requests") == len(engine.state.in_flight) > 0
    engine.ask("hog", [1] * 100, 5)
    engine.cancel(11)
    engine.run_until_idle()
    samples, tokens = scrape(registry), Counter[tuple[str, str]]()
    for event in ends.events:
        if isinstance(event, Prefilled):
            tokens[engine.clients.all[event.client].name, "prefill"] += event.tokens
        elif isinstance(event, Admitted):
            tokens[engine.clients.all[event.client].name, "cached"] += event.cached_prefix_tokens
        elif isinstance(event, Decoded):
            for client, count in zip(event.clients, event.tokens, strict=True):
                tokens[engine.clients.all[client].name, "decode"] += count
    assert tokens["hog", "cached"] > 0
    for (name, phase), count in tokens.items():
        if count:
            assert sample(samples, "client_service_tokens_total", client=name, phase=phase) == count
    assert 0 < sample(samples, "service_gap_tokens") <= sample(samples, "service_gap_bound_tokens")
    assert sample(samples, "bound_violations_total") == 0
    assert sample(samples, "assumption_violations_total", assumption="GateRespected") == 0
    assert sample(samples, "decision_seconds_count") == engine.times.decisions
    assert sample(samples, "requests_total", outcome="finished") == 11
    assert sample(samples, "requests_total", outcome="cancelled") == 1
    assert sample(samples, "requests_total", outcome="rejected") == 1
    assert sample(samples, "waiting_requests") == 0
    assert sample(samples, "step_seconds_total", part="execute") > 0


def test_waits_are_held_to_what_is_proved() -> None:
    """With a latency model that no step exceeds, the longest wait of a live engine stands beside its bound; one that
    every step exceeds names StepsInTime, so that no wait over its bound is unexplained."""
    policy = with_parameters(local_policy("fcfs+deficit"), {"max_running": "2", "max_batched_tokens": "8"})
    for step_ns, kept in ((10**12, True), (0, False)):
        latency = LatencyModel("made up", "made up", step_ns, 0, 0, (DecodePiece(1, step_ns, 0, 0),), 60)
        engine = engine_of(policy, kv_capacity_tokens=60, fallback=FCFS())
        monitor, registry = monitor_of(policy, 60, 12, latency=latency), CollectorRegistry()
        assert monitor is not None
        EngineMetrics(registry).watch(engine, monitor)
        for i in range(12):
            engine.ask("hog" if i % 3 else "light", [i % 2] * 20, 4 + i % 5)
        engine.run_until_idle()
        samples = scrape(registry)
        assert (0 < sample(samples, "wait_longest_seconds") <= sample(samples, "wait_bound_seconds")) is kept
        assert (sample(samples, "bound_violations_total") == 0) is kept
        assert (sample(samples, "assumption_violations_total", assumption="StepsInTime") == 0) is kept
        assert monitor.report().unexplained is None


def test_the_guard_is_seen() -> None:
    """Interventions are counted by cause, a policy that was set aside is one, and broken assumptions are named."""
    engine, registry, _ = watched(Misbehaving(VTC(), (misbehaving.raises,)))
    for i in range(40):
        engine.ask("hog" if i % 3 else "light", [1, 2], 8)
    engine.run_until_idle()
    samples = scrape(registry)
    assert sample(samples, "guard_interventions_total", cause="exception") == 8
    counted = engine.guard.interventions["set-aside"]
    assert sample(samples, "guard_interventions_total", cause="set-aside") == counted > 0
    assert sample(samples, "guard_interventions_total", cause="late") == 0
    assert sample(samples, "policy_set_aside") == 1
    # It promises nothing, so nothing is said of a gap.
    assert not any(name.startswith("fairsched_service_gap") for name, _ in samples)


def test_a_fallback_shows_in_the_assumptions() -> None:
    """While the fallback serves for a policy that promises something, admissions past the gate are counted."""
    engine, _, _ = watched(Misbehaving(VTC(), (misbehaving.raises,)))
    registry = CollectorRegistry()
    EngineMetrics(registry).watch(engine, monitor_of(VTC(), 60, 12))
    for i in range(40):
        engine.ask("hog", [1, 2], 8)
        if i == 39:
            engine.ask("light", [3], 8)
    engine.run_until_idle()
    assert sample(scrape(registry), "assumption_violations_total", assumption="GateRespected") > 0


def test_labels_are_bounded_and_no_series_falls() -> None:
    """Of many clients the most served have labels; whoever comes or goes, no series that stays ever falls."""
    engine, registry, ends = watched(VTC(), clients_shown=3)
    before: dict[Sample, float] = {}
    for i in range(60):
        engine.ask(f"client-{i * i % 17}", [1, 2, i % 7], 3 + i % 9)
        engine.step()
        if i % 4 == 0:
            samples = scrape(registry)
            ours = {key: value for key, value in samples.items() if "client_service" in key[0]}
            assert len({dict(labels)["client"] for _, labels in ours} - {"other"}) <= 3
            assert all(value >= before.get(key, 0) for key, value in ours.items())
            before = {**before, **ours}
    engine.run_until_idle()
    samples = scrape(registry)
    total = sum(value for (name, _), value in {**before, **samples}.items() if "client_service_tokens_total" in name)
    served = sum(e.tokens for e in ends.events if isinstance(e, Prefilled))
    served += sum(sum(e.tokens) for e in ends.events if isinstance(e, Decoded))
    served += sum(e.cached_prefix_tokens for e in ends.events if isinstance(e, Admitted))
    # Series of clients that lost their label were read before.
    assert total == served


def test_several_engines_have_one_registry() -> None:
    """Each worker has its own series; an engine that has served already is refused."""
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry)
    engines = [engine_of(FCFS(), worker=worker) for worker in range(2)]
    for engine in engines:
        metrics.watch(engine)
    engines[1].ask("a", [1, 2], 5)
    engines[1].run_until_idle()
    text = generate_latest(registry).decode()
    assert 'fairsched_requests_total{outcome="finished",worker="0"} 0.0' in text
    assert 'fairsched_requests_total{outcome="finished",worker="1"} 1.0' in text
    with pytest.raises(ValueError, match="worker 1 has served already"):
        metrics.watch(engines[1])
