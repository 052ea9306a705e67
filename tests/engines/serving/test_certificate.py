"""Certified policies only: what matches serves within its limits; for anything else the message says what differs."""

from pathlib import Path

import attrs
import msgspec
import pytest

from fairsched.engines.serving import Engine, require_certificate
from fairsched.engines.serving.guard.certificate import NotCertifiedError
from fairsched.model.theorem import Certificate
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM, VTC
from fairsched.policies.gates import DeficitGate, KernelGate
from fairsched.policies.local import ComposedPolicy
from fairsched.verify.report import certificate
from fairsched.verify.report.deployment import read
from fairsched.verify.report.scope import subject
from fairsched.verify.report.values import run
from tests.support.engines.fake_executor import FakeExecutor

CAPACITY = 400
POLICY = DLPM()
DEPLOYMENT = read(
    {
        "kv_capacity_tokens": CAPACITY,
        "prompt_tokens_max": 50,
        "max_output_tokens": 20,
        "weights": {"gold": 4, "free": 1},
    }
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of two theorems about DLPM, as `fairsched verify` writes it."""
    directory = tmp_path_factory.mktemp("certificate") / "dlpm"
    whole = subject("dlpm", POLICY)
    few = attrs.evolve(whole, theorems=tuple(each for each in whole.theorems if each.id in ("D-gate", "D-4.1")))
    certificate.write_certificate(directory, run("0", [few], DEPLOYMENT, self_checks=False), DEPLOYMENT)
    return directory


def engine(policy: ComposedPolicy, held: Certificate | Path, capacity: int = CAPACITY) -> Engine:
    """An engine that serves certified policies only."""
    return Engine(policy, FakeExecutor(), kv_capacity_tokens=capacity, certificate=held)


def test_what_is_certified_serves(written: Path, tmp_path: Path) -> None:
    """The directory, the certificate as a file and as a value are accepted, and requests are served."""
    (made,) = certificate.read(written).certificates
    (tmp_path / "dlpm.json").write_bytes(made.to_json())
    for held in (written, tmp_path / "dlpm.json", made):
        serving = engine(DLPM(), held)
        answer = serving.ask("somebody", [1, 2, 3], 5)
        serving.run_until_idle()
        assert answer.outcome == "finished"
        assert serving.certified is not None
        assert serving.certified.certificate == made


def test_limits_of_the_certificate_hold(written: Path) -> None:
    """Longer prompts and outputs than those that the constants rest on are rejected, and other weights refused."""
    serving = engine(DLPM(), written)
    long = serving.ask("somebody", [1] * 51, 5)
    assert long.reason == "request 0 has 51 prompt tokens, and 50 are certified"
    assert serving.ask("somebody", [1], 21).reason == "request 1 has 21 max_output tokens, and 20 are certified"
    serving.configure_client("somebody", 4)
    for name in ("somebody", "somebody else"):
        with pytest.raises(NotCertifiedError, match=rf"client '{name}' has weight 3; certified are 1, 4"):
            serving.configure_client(name, 3)
    assert [client.weight for client in serving.clients.all] == [4]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (VTC(), "policy 'vtc' has no certificate here; there are certificates of dlpm"),
        (DLPM(gate=DeficitGate(quantum=7)), "gate.quantum: 4096 is certified, and here it is 7"),
        (DLPM(gate=DeficitGate(rejoin="reset")), "gate.rejoin: 'keep' is certified, and here it is 'reset'"),
        (DLPM(batching=Chunked(64)), "batching.max_batched_tokens: 2048 is certified, and here it is 64"),
    ],
    ids=["policy", "quantum", "rejoin", "batching"],
)
def test_another_policy_is_refused(written: Path, policy: ComposedPolicy, message: str) -> None:
    """Another policy, and each other parameter, is refused with what differs."""
    with pytest.raises(NotCertifiedError) as refused:
        engine(policy, written)
    assert message in str(refused.value)
    serving = engine(DLPM(), written)
    with pytest.raises(NotCertifiedError):
        serving.replace_policy(policy)
    assert serving.policy == DLPM()


def test_a_class_of_somebodys_own_is_refused(written: Path) -> None:
    """A subclass that calls itself by the certified name is not what was proved about."""

    @attrs.frozen
    class Mine(DLPM):
        pass

    with pytest.raises(NotCertifiedError, match="Mine"):
        engine(Mine(), written)


def test_another_worker_is_refused(written: Path) -> None:
    """Constants rest on the KV capacity."""
    with pytest.raises(NotCertifiedError, match="kv_capacity_tokens: 400 is certified, and this worker has 4096"):
        engine(DLPM(), written, 4096)


def test_other_code_is_refused(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that changed since it was proved about, code that is gone, and an edited certificate are all named."""
    (made,) = certificate.read(written).certificates
    with monkeypatch.context() as patched:
        patched.setattr(KernelGate, "decoded", lambda self, state, clients, tokens: state)
        with pytest.raises(NotCertifiedError) as refused:
            engine(DLPM(), made)
    name = "fairsched.policies.gates.authoring.KernelGate.decoded"
    assert str(refused.value).splitlines()[1:] == [f"  {name}: changed since it was proved about"]
    gone = msgspec.structs.replace(made, code={**made.code, "fairsched.gone.kernel": "0"})
    with pytest.raises(NotCertifiedError, match=r"fairsched.gone.kernel: was proved about, and does not run here"):
        engine(DLPM(), gone)
    edited = msgspec.convert(msgspec.to_builtins(made), Certificate)
    edited.configuration["policy"]["gate"]["quantum"] = 7
    with pytest.raises(NotCertifiedError, match="the certificate was changed"):
        engine(DLPM(gate=DeficitGate(quantum=7)), edited)
    nothing = msgspec.structs.replace(made, theorems=(), code={})
    with pytest.raises(NotCertifiedError, match="proves no theorem"):
        engine(DLPM(), nothing)


def test_what_is_no_certificate_is_named(tmp_path: Path) -> None:
    """A missing file and one that holds something else are errors of one line."""
    with pytest.raises(ValueError, match="no certificate can be read"):
        require_certificate(DLPM(), tmp_path, CAPACITY)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match=r"manifest\.json"):
        require_certificate(DLPM(), tmp_path, CAPACITY)
