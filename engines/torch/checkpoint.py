"""Checkpoints in the layout of Hugging Face: `config.json` beside safetensors files, one or many with an index.

Only the Llama architecture is read; whatever a configuration asks for beyond it is refused by name, since a model that
is computed wrongly answers all the same.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fairsched.engines.torch.model import Llama, LlamaConfig, RopeScaling, tensor_shapes

ARCHITECTURE = "LlamaForCausalLM"
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


def load_checkpoint(folder: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Llama:
    """Return the model in `folder`.  Raises `ValueError`.

    Tensors go to the device one by one, so beside the model only the largest needs memory.
    """
    config = _config(folder / CONFIG)
    shapes = tensor_shapes(config)
    place = _places(folder)
    missing = [name for name in shapes if name not in place]
    if missing:
        raise ValueError(f"{folder}: {len(missing)} of {len(shapes)} tensors are missing, {missing[0]} first")

    def read(name: str) -> Tensor:
        try:
            with safe_open(place[name], framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{place[name]}: {name} cannot be read: {error}") from None
        if tuple(tensor.shape) != shapes[name]:
            raise ValueError(f"{place[name]}: {name} has the shape {list(tensor.shape)}, not {list(shapes[name])}")
        return tensor.to(device=device, dtype=dtype)

    return Llama(config, read)


def save_checkpoint(model: Llama, folder: Path) -> None:
    """Write the model into `folder` (made if it is not there), in one file, in the model's own type."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous().cpu() for name, tensor in model.tensors()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    save_config(model.config, model.dtype, folder)


def save_config(config: LlamaConfig, dtype: torch.dtype, folder: Path) -> None:
    """Write a checkpoint's description without its weights: enough where they are drawn at random."""
    fields = _fields(config) | {"torch_dtype": str(dtype).removeprefix("torch.")}
    (folder / CONFIG).write_text(json.dumps(fields, indent=2) + "\n")


def _places(folder: Path) -> dict[str, Path]:
    if (folder / INDEX).exists():
        names = _document(folder / INDEX).get("weight_map")
        if not isinstance(names, dict):
            raise ValueError(f"{folder / INDEX}: there is no weight_map")
        return {name: folder / str(file) for name, file in names.items()}
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            return dict.fromkeys(file.keys(), folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{folder / WEIGHTS}: cannot be read: {error}") from None


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path}: an object is expected")
    return document


_NAMES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "context_tokens_max": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings",
}
"""Fields of `LlamaConfig` by their names in `config.json`."""
_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""Fields of `RopeScaling` there, in order."""


class _Config(msgspec.Struct):
    """What `config.json` says of a Llama model, under the names and with the defaults of transformers."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    eos_token_id: int | list[int] | None = None
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    # transformers 5 keeps both of the above here.
    rope_parameters: dict[str, Any] | None = None
    quantization_config: dict[str, Any] | None = None


def _config(path: Path) -> LlamaConfig:
    document = _document(path)
    names = document.get("architectures") or [document.get("model_type")]
    if names not in ([ARCHITECTURE], ["llama"]):
        raise ValueError(f"{path}: the architecture is {', '.join(map(str, names))}; only {ARCHITECTURE} is known")
    try:
        config = msgspec.convert(document, _Config)
    except msgspec.ValidationError as error:
        raise ValueError(f"{path}: {error}") from None
    for field, supported in (
        ("hidden_act", "silu"),
        ("attention_bias", False),
        ("mlp_bias", False),
        ("quantization_config", None),
    ):
        if getattr(config, field) != supported:
            raise ValueError(f"{path}: {field} is {getattr(config, field)!r}; only {supported!r} is known")
    try:
        return _llama(config)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def _llama(config: _Config) -> LlamaConfig:
    rope: Mapping[str, Any] = config.rope_parameters or config.rope_scaling or {}
    theta = rope.get("rope_theta", config.rope_theta)
    stop = config.eos_token_id
    said = {ours: getattr(config, theirs) for ours, theirs in _NAMES.items()}
    said["kv_heads"] = config.num_key_value_heads or config.num_attention_heads
    said["head_dim"] = config.head_dim or config.hidden_size // config.num_attention_heads
    return LlamaConfig(
        **said,
        rope_theta=10_000.0 if theta is None else float(theta),
        rope_scaling=_scaling(rope),
        stop_tokens=frozenset(stop if isinstance(stop, list) else () if stop is None else (stop,)),
    )


def _scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"rotary embeddings of type {kind!r}; only 'default' and 'llama3' are known")
    missing = [name for name in _SCALING if name not in rope]
    if missing:
        raise ValueError(f"rotary embeddings of type 'llama3' need {missing[0]}")
    factor, low, high, original = (rope[name] for name in _SCALING)
    return RopeScaling(float(factor), float(low), float(high), int(original))


def _fields(config: LlamaConfig) -> dict[str, Any]:
    """`config.json` of a model, readable by transformers before and after version 5."""
    scaling = config.rope_scaling
    rope: dict[str, Any] = {"rope_type": "default"}
    if scaling is not None:
        rope = {"rope_type": "llama3", **dict(zip(_SCALING, attrs.astuple(scaling), strict=True))}
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        **{theirs: getattr(config, ours) for ours, theirs in _NAMES.items()},
        "eos_token_id": sorted(config.stop_tokens) or None,
        "rope_theta": config.rope_theta,
        "rope_scaling": None if scaling is None else rope,
        "rope_parameters": {**rope, "rope_theta": config.rope_theta},
    }
