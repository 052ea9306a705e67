"""An engine with a guard, a log and metrics, that serves two clients."""

import tempfile
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from fairsched.engines.serving import Engine, EngineMetrics, Sampling, ServingLog, ServingThread, monitor_of
from fairsched.engines.torch import SIZES, Llama, TorchExecutor
from fairsched.policies.catalog import FCFS, VTC
from fairsched.policies.local import keep_debts
from fairsched.policies.registry import parameters

policy, capacity = VTC(), 4096
path, registry = Path(tempfile.mkdtemp()) / "live.jsonl", CollectorRegistry()
log = ServingLog(path, policy.name, parameters(policy), kv_capacity_tokens=capacity)
model = Llama.random(SIZES["tiny"])
engine = Engine(
    policy,
    TorchExecutor(model, capacity),
    kv_capacity_tokens=capacity,
    fallback=FCFS(),  # who decides where the policy fails
    make_executor=lambda: TorchExecutor(model, capacity),  # who computes after an executor failed
    rebuild=keep_debts,
    log=log,
)
EngineMetrics(registry).watch(engine, monitor_of(policy, capacity, output_tokens_max=64))
engine.configure_client("gold", weight=2)

with ServingThread(engine) as serving:
    stream = serving.ask("gold", [72, 101, 108, 108, 111], max_output_tokens=8)
    other = serving.ask("free", [72, 105], 8, sampling=Sampling(temperature=0.7, seed=1, stop_tokens=frozenset({0})))
    tokens = list(stream)  # as they come
    assert tokens == stream.answer.tokens
    assert len(tokens) == 8
    assert other.result().outcome == "finished"
    scraped = generate_latest(registry).decode()
log.complete(engine.policy_state)

assert 'fairsched_bound_violations_total{worker="0"} 0.0' in scraped
assert 'fairsched_client_service_tokens_total{client="gold",phase="decode",worker="0"} 8.0' in scraped
