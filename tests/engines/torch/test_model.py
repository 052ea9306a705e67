"""Weights by seed, and sampling: the same numbers everywhere, and the right distribution."""

import subprocess
import sys
from hashlib import sha256
from math import sqrt
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.serving import Sampling
from fairsched.engines.torch import Llama
from fairsched.engines.torch.executor import sample, sampling_key
from fairsched.engines.torch.model import SIZES
from fairsched.engines.torch.random_bits import fill_uniform, key_of
from tests.support.torch.plain import plain_logits, scores_of


def digest(model: Llama) -> str:
    """A hash of every tensor's name and bytes."""
    whole = sha256()
    for name, tensor in model.tensors():
        whole.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


def test_weights_are_the_same_on_every_machine() -> None:
    """The tiny model of seed 0 has these very bytes; another seed has others."""
    assert digest(Llama.random(SIZES["tiny"])) == "4a79e89d37de1408"
    assert digest(Llama.random(SIZES["tiny"], 1)) != digest(Llama.random(SIZES["tiny"]))


def test_weights_have_the_size_that_they_should() -> None:
    """A projection has mean 0 and variance 1 / inputs, in the open interval of a uniform distribution."""
    weights = fill_uniform(torch.empty(1000, 300), key_of(7), sqrt(3 / 300)).to(torch.float64)
    assert abs(weights.mean()) < 5 / sqrt(300 * weights.numel())
    assert abs(weights.var() * 300 - 1) < 0.01
    assert sqrt(3 / 300) * 0.999 < weights.abs().max() < sqrt(3 / 300)
    # Neighbours along either axis have nothing to do with each other.
    for one, other in ((weights[1:], weights[:-1]), (weights[:, 1:], weights[:, :-1])):
        assert abs((one * other).mean()) * 300 < 0.01


def test_pieces_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that is filled in pieces is the one that is filled at once."""
    whole = fill_uniform(torch.empty(50, 7), 3, 1.0)
    monkeypatch.setattr("fairsched.engines.torch.random_bits.PIECE", 64)
    assert torch.equal(fill_uniform(torch.empty(50, 7), 3, 1.0), whole)


@pytest.mark.parametrize("name", ["1b", "3b", "8b"])
def test_named_sizes_have_their_parameters(name: str) -> None:
    """The named sizes have as many parameters as the Llama models that they are shaped after."""
    config = SIZES[name]
    per_layer = config.hidden_size * config.head_dim * 2 * (config.heads + config.kv_heads)
    per_layer += 3 * config.hidden_size * config.intermediate_size + 2 * config.hidden_size
    tables = 1 if config.tied_embeddings else 2
    total = config.layers * per_layer + tables * config.vocab_size * config.hidden_size + config.hidden_size
    assert total == {"1b": 1_235_814_400, "3b": 3_212_749_824, "8b": 8_030_261_248}[name]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0}, "layers is at least 1, not 0"),
        ({"kv_heads": 3}, "4 heads do not share 3 KV heads evenly"),
        ({"head_dim": 15}, "a rotary head has an even size, not 15"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    """Each has its sentence."""
    with pytest.raises(ValueError, match=message):
        attrs.evolve(SIZES["tiny"], **changes)


@pytest.mark.parametrize("changed", [0, 40, 79])
def test_every_token_matters(changed: int) -> None:
    """A random model is no constant: another token anywhere in the context moves the last logits."""
    model = Llama.random(SIZES["tiny"])
    ids = list(range(80))
    other = [*ids[:changed], 200, *ids[changed + 1 :]]
    assert (plain_logits(model, ids)[-1] - plain_logits(model, other)[-1]).abs().max() > 1e-3


@given(
    st.lists(
        st.builds(
            Sampling,
            temperature=st.sampled_from((0.0, 0.3, 1.0, 5.0)),
            top_k=st.sampled_from((0, 1, 2, 30, 63, 64, 100)),
            seed=st.integers(-(1 << 70), 1 << 70),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 1 << 32),
)
@settings(max_examples=60)
def test_rows_are_sampled_by_their_own_rules(rows: list[Sampling], seed: int) -> None:
    """Each row of a batch gets what its request would get alone, by the definition in plain arithmetic."""
    logits = fill_uniform(torch.empty(len(rows), 64, dtype=torch.float64), seed, 3.0)
    positions = np.arange(len(rows)) * 17
    tokens = sample(
        logits,
        np.array([row.temperature for row in rows], dtype=np.float32),
        np.array([row.top_k for row in rows]),
        np.array([sampling_key(row.seed, i) for i, row in enumerate(rows)], dtype=np.uint64),
        positions,
    )
    expected = [scores_of(logits[i].numpy(), row, i, 17 * i).argmax() for i, row in enumerate(rows)]
    assert tokens.tolist() == expected


def test_draws_follow_the_distribution() -> None:
    """20,000 draws of one request at temperature 0.7, top 3 of 5, come as often as softmax says (five deviations)."""
    count = 20_000
    logits = torch.tensor([0.3, 1.0, -0.5, 0.9, 0.1])
    tokens = sample(
        logits.expand(count, 5),
        np.full(count, 0.7, dtype=np.float32),
        np.full(count, 3),
        np.full(count, sampling_key(5, 9), dtype=np.uint64),
        np.arange(count),
    )
    share = torch.softmax(torch.tensor([0.3, 1.0, -torch.inf, 0.9, -torch.inf]) / 0.7, 0).numpy()
    counts = np.bincount(tokens.numpy(), minlength=5)
    assert (np.abs(counts - count * share) <= 5 * np.sqrt(count * share * (1 - share))).all()


def test_other_engines_do_not_import_torch() -> None:
    """Everything in engines outside the torch worker can be imported where torch is not installed."""
    folder = Path(__file__).parents[3] / "engines"
    own = (
        *(
            folder / each
            for each in ("torch", "adapters", "calibration/workbench.py", "serving/cluster/ray_workers.py")
        ),
    )
    paths = [path for path in folder.rglob("*.py") if not any(path.is_relative_to(each) for each in own)]
    names = [".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    assert len(names) > 100
    imports = "\n".join(f"import fairsched.engines.{name}" for name in names if name != "__init__")
    code = f"import sys\nsys.modules['torch'] = sys.modules['safetensors'] = None\n{imports}\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_sizes_are_configurations() -> None:
    """Each named size is one, from the smallest, which a test can run, to the largest."""
    assert list(SIZES) == ["tiny", "small", "medium", "1b", "3b", "8b"]
    weights = [config.layers * config.hidden_size * config.intermediate_size for config in SIZES.values()]
    assert weights == sorted(set(weights))
