"""An engine that goes on where its last process stopped."""

from pathlib import Path
from tempfile import mkdtemp

from fairsched.engines.serving import Engine, EngineStore, resume
from fairsched.engines.torch import SIZES, Llama, TorchExecutor
from fairsched.policies.catalog import DLPM
from fairsched.policies.gates import DeficitGate

model = Llama.random(SIZES["tiny"])
folder, policy = Path(mkdtemp()), DLPM(gate=DeficitGate(quantum=8))


def start():
    """A process begins: where the last one stopped, if there was one."""
    store = EngineStore(folder)
    executor, recovery = store.executor(TorchExecutor(model, 100)), store.recover(policy)
    if recovery is None:
        engine = Engine(policy, executor, kv_capacity_tokens=100, log=store)
    else:
        engine = resume(recovery.saved, policy, executor, log=store)
    store.snapshot(engine)
    return store, engine


store, engine = start()
for i in range(6):
    engine.ask("gold" if i % 2 else "free", [1, 2, 3, i], 9)
for _ in range(4):
    engine.step()
owed = engine.policy_state.gate.q.tolist()
store.close()  # As good as killed: nothing is written here.

store, engine = start()
assert engine.policy_state.gate.q.tolist() == owed
assert min(owed) < 0
assert sorted(engine.answers) == [0, 1, 2, 3, 4, 5]
answers = list(engine.answers.values())
engine.run_until_idle()
assert all(answer.outcome == "finished" and len(answer.tokens) == 9 for answer in answers)
store.close()
