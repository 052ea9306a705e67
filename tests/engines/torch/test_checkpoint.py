"""Checkpoints: what we write transformers reads, what it writes we read, and both compute the same."""

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file

from fairsched.engines.torch import Llama
from fairsched.engines.torch.checkpoint import load_checkpoint, save_checkpoint
from fairsched.engines.torch.model import SIZES, LlamaConfig, RopeScaling
from tests.support.torch.plain import plain_logits

TIED = SIZES["tiny"]
UNTIED = attrs.evolve(
    TIED, tied_embeddings=False, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 64), stop_tokens=frozenset({3, 7})
)
CONFIGS = pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied-llama3"])
IDS = [(17 * i * i + 5 * i) % TIED.vocab_size for i in range(150)]


@CONFIGS
def test_round_trip(config: LlamaConfig, tmp_path: Path) -> None:
    """What is saved is loaded, configuration and every bit of every tensor."""
    model = Llama.random(config, 1)
    save_checkpoint(model, tmp_path)
    again = load_checkpoint(tmp_path)
    assert again.config == config
    for (name, tensor), (other_name, other) in zip(model.tensors(), again.tensors(), strict=True):
        assert name == other_name
        assert torch.equal(tensor, other)


@pytest.mark.integration
@CONFIGS
def test_transformers_computes_the_same(config: LlamaConfig, tmp_path: Path) -> None:
    """Logits of our checkpoint in transformers, and of its sharded checkpoint in ours, agree to rounding.

    The untied model's contexts reach beyond the original one, so the stretched rotary frequencies count too.
    """
    transformers = pytest.importorskip("transformers")
    model = Llama.random(config, 2)
    save_checkpoint(model, tmp_path / "ours")
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(plain_logits(model, IDS), expected, rtol=1e-4, atol=1e-4)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="50kB")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
    torch.testing.assert_close(plain_logits(load_checkpoint(tmp_path / "theirs"), IDS), expected, rtol=1e-4, atol=1e-4)


def test_scaled_rotation_matters() -> None:
    """The comparison above could fail: without the scaling, logits are others."""
    plain = attrs.evolve(UNTIED, rope_scaling=None)
    difference = plain_logits(Llama.random(UNTIED, 2), IDS) - plain_logits(Llama.random(plain, 2), IDS)
    assert difference.abs().max() > 0.01


def test_bfloat16_keeps_its_type(tmp_path: Path) -> None:
    """A model is saved in its own type, and loaded in the type that is asked for."""
    model = Llama.random(TIED, 1, dtype=torch.bfloat16)
    save_checkpoint(model, tmp_path)
    assert load_file(tmp_path / "model.safetensors")["model.norm.weight"].dtype == torch.bfloat16
    assert load_checkpoint(tmp_path, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert load_checkpoint(tmp_path).dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "the architecture is MistralForCausalLM"),
        ({"architectures": None, "model_type": "gpt2"}, "the architecture is gpt2"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_key_value_heads": 3}, "4 heads do not share 3 KV heads evenly"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rotary embeddings of type 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "need low_freq_factor"),
        ({"hidden_size": 32, "head_dim": 16}, r"has the shape \[256, 64\], not \[256, 32\]"),
        ({"num_hidden_layers": 3}, "9 of 29 tensors are missing, model.layers.2.input_layernorm.weight first"),
        ({"tie_word_embeddings": False}, "1 of 21 tensors are missing, lm_head.weight first"),
    ],
)
def test_what_is_not_understood_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Another architecture, an unknown option, a wrong shape and a missing tensor are errors that say so."""
    save_checkpoint(Llama.random(TIED), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        load_checkpoint(tmp_path)


def test_broken_files_are_named(tmp_path: Path) -> None:
    """No folder, no JSON, no safetensors, a missing shard: each is one error that names the file."""
    with pytest.raises(ValueError, match=r"config\.json: cannot be read"):
        load_checkpoint(tmp_path)
    model = Llama.random(TIED)
    save_checkpoint(model, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"model\.safetensors: cannot be read"):
        load_checkpoint(tmp_path)
    names = dict.fromkeys(dict(model.tensors()), "one.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names | {"model.norm.weight": "two.safetensors"}}))
    save_file({name: tensor.contiguous() for name, tensor in model.tensors()}, tmp_path / "one.safetensors")
    with pytest.raises(ValueError, match=r"two\.safetensors: model\.norm\.weight cannot be read"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: cannot be read"):
        load_checkpoint(tmp_path)
