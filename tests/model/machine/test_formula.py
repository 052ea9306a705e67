"""Machines by formula: every one that fits is above its GPUs' floors, and what cannot be is refused by its figures."""

from typing import Any

import attrs
import pytest

from fairsched.model.machine import GPUS, LINKS, MODELS, PRESETS, DecodePiece, by_formula, check, mfu, preset

SOME = [
    (model, gpu, gpus) for model in MODELS for gpu in GPUS for gpus in (1, 2, 4, 8) if not MODELS[model].heads % gpus
][::7]


@pytest.mark.parametrize(("model", "gpu", "gpus"), SOME)
def test_every_machine_that_fits_is_above_its_floors(model: str, gpu: str, gpus: int) -> None:
    """A machine by formula passes the check (which `by_formula` makes), grows with its work, and is what its name says;
    one whose weights do not fit says so."""
    name = f"{model}-{gpu}" + f"-tp{gpus}" * (gpus > 1)
    sizes, kind = MODELS[model], GPUS[gpu]
    if 2 * sizes.parameters > 0.9 * gpus * kind.memory_bytes:
        with pytest.raises(ValueError, match=f"{name}: .* of weights leave no room in {gpus} x {gpu}"):
            by_formula(sizes, kind, gpus)
        return
    latency = by_formula(sizes, kind, gpus)
    assert latency.name == name
    assert latency.decode_ns(1, 100) < latency.decode_ns(64, 64_000) < latency.step_ns([(2_048, 0)], 64, 64_000)
    assert PRESETS.get(name) or preset(name) == latency
    with pytest.raises(
        ValueError, match=f"{name}: a prompt of 1 tokens takes .* at its data sheet's bandwidth and peak"
    ):
        check(attrs.evolve(latency, kernels=None, prefill_constant_ns=1, prefill_token_ns=1))


@pytest.mark.parametrize(
    ("faster", "said"),
    [
        ({"prefill_token_ns": 1, "prefill_attention_ps": 0}, "a prompt of [0-9,]+ tokens takes"),
        ({"decode": (DecodePiece(1, 12_300_000, 1, 23_700),)}, "a batch of 1 over 427,000 tokens of context takes"),
        ({"decode": (DecodePiece(1, 1_000_000, 100, 23_700),)}, "a batch of 1 over 1 tokens of context takes"),
    ],
    ids=["prompts beyond the peak", "KV beyond the bandwidth", "weights beyond the bandwidth"],
)
def test_each_floor_refuses_what_is_below_it(faster: dict[str, Any], said: str) -> None:
    """A machine whose steps are above its floors is refused once it computes, or reads KV or weights, too fast."""
    sound = PRESETS["llama-3.1-8b-a100"]
    assert check(sound) is sound
    with pytest.raises(ValueError, match=said):
        check(attrs.evolve(sound, **faster))


@pytest.mark.parametrize("name", ["mixtral-8x7b-h100-tp2", "llama-3-8b-a100", "llama-3-8b-fp8-a100"])
def test_a_large_prompt_uses_about_the_same_share_of_any_peak(name: str) -> None:
    """A token is multiplied with its experts only, and weights in 8 bits are no faster where the GPU has no such units:
    the share in use is the formula's (0.7 of dense layers), less attention."""
    latency = preset(name)
    assert latency is not None
    assert 0.5 < mfu(latency, 8_192, latency.step_ns([(8_192, 0)], 0, 0)) < 0.7


def test_more_gpus_and_smaller_weights_are_faster() -> None:
    """Two GPUs and weights in 8 bits shorten a batch of Llama-3.1-70B, and 8 bits leave more room for KV."""
    two, four, small = (preset(f"llama-3.1-70b-{kind}") for kind in ("h100-tp2", "h100-tp4", "fp8-h100-tp2"))
    assert two is not None
    assert four is not None
    assert small is not None
    times = [each.decode_ns(32, 32_000) for each in (two, four, small)]
    assert times[1] < times[0]
    assert times[2] < times[0]
    assert two.kv_capacity_tokens < small.kv_capacity_tokens < four.kv_capacity_tokens


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("qwen3-30b-a3b-h100-tp3", "qwen3-30b-a3b has 32 heads, which do not divide by 3 GPUs"),
        ("qwen3-14b-h100-tp5", "qwen3-14b has 8 KV heads, which do not divide by 5 GPUs"),
        ("llama-3.1-70b-rtx-4090", "141.1 GB of weights leave no room in 1 x rtx-4090"),
        ("mixtral-8x7b-a100-tp7", "mixtral-8x7b has 32 heads, which do not divide by 7 GPUs"),
    ],
)
def test_what_gpus_cannot_divide_or_hold_is_refused(name: str, said: str) -> None:
    """Heads that GPUs do not divide, and weights that they do not hold, are refused by the figure."""
    with pytest.raises(ValueError, match=said):
        preset(name)


@pytest.mark.parametrize("name", ["llama-3.1-8b-h1000", "llama-9-h100", "llama-3.1-8b-h100-tp9", "h100"])
def test_a_name_of_no_machine_is_none(name: str) -> None:
    """A model or GPU that is not known, and more than 8 GPUs, are no machine."""
    assert preset(name) is None


def test_experts_that_do_not_divide_are_refused() -> None:
    """Experts divide by the GPUs as well as heads."""
    odd = attrs.evolve(MODELS["qwen3-30b-a3b"], experts=6)
    with pytest.raises(ValueError, match="qwen3-30b-a3b has 6 experts, which do not divide by 4 GPUs"):
        by_formula(odd, GPUS["h100"], 4)


def test_an_all_reduce_takes_its_latency_and_moves_its_bytes() -> None:
    """Two GPUs over PCIe: 37 us, and a megabyte at 16 GB/s; four move half as much again."""
    link = LINKS["pcie"]
    assert link.message(2).at(0) == 37_000
    assert link.message(2).at(10**6) - 37_000 == 62_500
    assert link.message(4).at(10**6) - 37_000 == 93_750


def test_experts_are_read_as_tokens_choose_them() -> None:
    """A step of one token of Mixtral reads two of eight experts, and one of many tokens nearly all: it takes less than
    a dense model of all experts, and more than one of two."""
    latency = preset("mixtral-8x7b-h100-tp2")
    assert latency is not None
    one, many = latency.decode_ns(1, 100), latency.decode_ns(64, 6_400)
    others = 500_000 + 32 * 42_017
    assert 2.5 < (many - others) / (one - others) < 6


def test_the_70b_presets_are_lines_of_their_formula() -> None:
    """Both presets of Llama-3-70B in 8 bits, and the one in 16, have what the formula says, as lines."""
    for name in ("llama-3-70b-h100-tp2", "llama-3-70b-fp8-h100-tp2", "llama-3-70b-fp8-h100-tp4"):
        lines, formula = PRESETS[name], preset(name.replace("llama-3-", "llama-3.1-"))
        assert formula is not None
        for tokens in (1, 1_024, 8_192):
            assert lines.step_ns([(tokens, 0)], 0, 0) == pytest.approx(formula.step_ns([(tokens, 0)], 0, 0), rel=0.005)
        for context in (256, 2_048):
            assert lines.decode_ns(32, 32 * context) == pytest.approx(formula.decode_ns(32, 32 * context), rel=0.005)
