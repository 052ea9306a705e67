"""Published profiles become latency models: small ones in each format to the nanosecond, real ones where they lie
beside the repository, and what cannot be read is one line with file, row and field."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fairsched.cli import main
from fairsched.engines.calibration import Machine, import_machine
from fairsched.model.machine import MODELS, Kernels, LatencyModel, decoded

REAL = Path(__file__).parents[3].parent / "shared" / "ground-truth" / "kernels"
LLAMA = Machine("llama-3.1-8b", "a100")
MOE = Machine("mixtral-8x7b", "h200")


def kernels_of(latency: LatencyModel) -> Kernels:
    """Return the model's kernels."""
    assert latency.kernels is not None
    return latency.kernels


def table(path: Path, header: str, *rows: str) -> Path:
    """Write a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


LAYERS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "layernorm", "embedding")


def kernel_tables(folder: Path, *, experts: bool = False) -> Path:
    """Tables of LLMServingSim's format: each of six kernels takes 100 us up to 16 tokens, and 1,600 us at 256."""
    dense = [f"{layer},{n},{us}" for layer in LAYERS for n, us in ((1, 100), (16, 100), (256, 1_600))]
    table(folder / "dense.csv", "layer,tokens,time_us", *dense)
    heads = [f"{layer},{n},{us}" for layer in ("lm_head", "sampler") for n, us in ((1, 500), (256, 1_010))]
    table(folder / "per_sequence.csv", "layer,sequences,time_us", *heads)
    decodes = [f"0,0,{n},{k},{n * k / 8}" for n in (1, 8) for k in (16, 1_024)]
    prompts = [
        f"{c},{x},{n},{k},{c * (x + c) / 256 + n * k / 8}"
        for c in (16, 256)
        for x in (0, 512)
        for n, k in ((0, 0), (1, 16), (1, 1_024), (8, 16), (8, 1_024))
    ]
    table(folder / "attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", *decodes, *prompts)
    if experts:
        rows = [f"{n},{e},{50 * e}" for n in (1, 256) for e in (2, 8)]
        table(folder / "moe.csv", "tokens,activated_experts,time_us", *rows)
    return folder


def test_kernel_tables_are_a_step_of_all_layers(tmp_path: Path) -> None:
    """A decode takes each kernel for each of 32 layers, the norm twice, the embedding once, head and sampler, and
    attention of all layers."""
    latency = import_machine("llmservingsim", str(kernel_tables(tmp_path)), LLAMA)
    assert latency.decode_ns(8, 8 * 16) == 1_000 * ((6 * 32 + 1) * 100 + 32 * 16) + kernels_of(latency).sequences.at(8)
    assert kernels_of(latency).sequences.at(1) == 1_000_000
    assert "LLMServingSim" in latency.source


def test_kernel_tables_have_experts(tmp_path: Path) -> None:
    """One token takes two of eight experts, and 256 tokens all of them."""
    experts = kernels_of(import_machine("llmservingsim", str(kernel_tables(tmp_path, experts=True)), MOE)).experts
    assert experts is not None
    assert experts.at(1) == 32 * 100_000
    assert experts.at(256) == pytest.approx(32 * 400_000, rel=1e-6)
    with pytest.raises(ValueError, match=r"moe\.csv has times of experts on one GPU, not of mixtral-8x7b on 2"):
        import_machine("llmservingsim", str(tmp_path), Machine("mixtral-8x7b", "h200", 2))


MLP = (
    *("attn_pre_proj", "attn_rope", "attn_post_proj", "mlp_up_proj", "mlp_act", "mlp_down_proj"),
    *("input_layernorm", "post_attention_layernorm", "add"),
)


def vidur(folder: Path) -> Path:
    """A profile of Vidur's format: nine kernels of 0.1 ms up to 16 tokens and 2 ms at 2,048, on one GPU and two."""
    below = folder / "compute" / "a100" / "meta-llama" / "Llama-3.1-8B"
    names = ",".join(f"time_stats.{kernel}.median" for kernel in MLP)
    rows = [f"{','.join([str(ms)] * 9)},32,{n},{w}" for w in (1, 2) for n, ms in ((1, 0.1), (16, 0.1), (2_048, 2))]
    table(below / "mlp.csv", f"{names},n_head,num_tokens,num_tensor_parallel_workers", *rows)
    header = "time_stats.attn_prefill.median,time_stats.attn_decode.median,n_q_head,num_tensor_parallel_workers,"
    header += "batch_size,prefill_chunk_size,kv_cache_size,is_prefill"
    prompts = [f"{c / 512},,32,{w},1,{c},{x},True" for w in (1, 2) for c in (64, 512) for x in (0, 4_096)]
    decodes = [f",{b * k / 65_536},32,{w},{b},0,{k},False" for w in (1, 2) for b in (1, 8) for k in (64, 4_096)]
    table(below / "attention.csv", header, *prompts, *decodes)
    reduces = [f"{ms},{w},{size}" for w in (2, 4) for size, ms in ((8_192, 0.02), (819_200, 0.12))]
    table(folder / "network" / "a100_dgx" / "all_reduce.csv", "time_stats.all_reduce.median,num_workers,size", *reduces)
    return folder


def test_vidurs_profile_is_a_step_of_all_layers(tmp_path: Path) -> None:
    """Kernels and attention of 32 layers, prompts and decodes apart; two GPUs have 64 all-reduces of 8,192 bytes a
    token as well."""
    one = import_machine("vidur", str(vidur(tmp_path)), LLAMA)
    assert one.decode_ns(8, 8 * 64) == 32 * (900_000 + 7_812) + 16
    two = import_machine("vidur", str(tmp_path), Machine("llama-3.1-8b", "a100", 2))
    assert two.decode_ns(1, 64) - one.decode_ns(1, 64) == 64 * 20_000
    both = one.step_ns([(64, 0)], 8, 8 * 64) - kernels_of(one).dense.at(72)
    assert both == pytest.approx(32 * (125_000 + 7_812.5), abs=32)


SPLITWISE = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel"
TIMES = [f"llama2-70b,h100-80gb,{n},{b},128,{50 + n * b / 8},{30 + n * b / 2048},8" for n, b in ((512, 1), (512, 16))]


def test_splitwises_medians_are_a_table_of_prompts_and_a_line_of_decodes(tmp_path: Path) -> None:
    """A prompt takes the median of its tokens, and a decode 30 ms and 1 ms for each 2,048 tokens of context."""
    path = table(tmp_path / "perf_model.csv", SPLITWISE, *TIMES)
    latency = import_machine("splitwise-sim", str(path), Machine("llama-2-70b", "h100", 8))
    assert latency.step_ns([(512, 0)], 0, 0) == 114_000_000
    assert latency.step_ns([(8_192, 0)], 0, 0) == 1_074_000_000
    assert latency.decode_ns(4, 4_096) == pytest.approx(32_000_000, abs=100)
    with pytest.raises(ValueError, match="no rows of llama2-70b on 2 x a100-80gb, but of llama2-70b on 8 x h100-80gb"):
        import_machine("splitwise-sim", str(tmp_path), Machine("llama-2-70b", "a100", 2))


def distserve(path: Path, **changed: object) -> Path:
    """A profile of DistServe's format."""
    sizes = {"prefill": [20.0, 0.1, 7e-6], "decoding_smallbs": [20.0, 6e-4, 0.04], "decoding_largebs": [8, 5e-4, 0.16]}
    path.write_text(
        json.dumps({"facebook/opt-13b": {"1": {"decoding_large_small_bs_threshold": 95, **sizes, **changed}}})
    )
    return path


def test_distserves_lines_are_the_models(tmp_path: Path) -> None:
    """Coefficients in milliseconds become whole nanoseconds, with a piece for large batches."""
    machine = Machine("opt-13b", "a100", kv_capacity_tokens=56_000)
    latency = import_machine("distserve", str(distserve(tmp_path / "vllm.json")), machine)
    assert latency.step_ns([(1_000, 0)], 0, 0) == 20_000_000 + 100_000_000 + 7_000_000
    assert latency.decode_ns(10, 1_000) == 20_000_000 + 600_000 + 400_000
    assert latency.decode_ns(95, 1_000) == 8_000_000 + 500_000 + 95 * 160_000
    assert (latency.gpus, latency.kv_capacity_tokens) == (1, 56_000)


def broken(make: Callable[[Path], Path], file: str, old: str, new: str) -> Callable[[Path], Path]:
    """What `make` writes with a word of one file changed."""

    def made(folder: Path) -> Path:
        path = make(folder)
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1))
        return path

    return made


def splitwise(folder: Path) -> Path:
    """A file of splitwise-sim's format."""
    return table(folder / "perf_model.csv", SPLITWISE, *TIMES)


VIDUR_AT = "compute/a100/meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    ("format", "make", "machine", "said"),
    [
        ("llmservingsim", broken(kernel_tables, "dense.csv", "o_proj,16,100\n", ""), LLAMA,
         "dense.csv: o_proj has no row of 16 tokens, as other layers have"),
        ("llmservingsim", broken(kernel_tables, "dense.csv", "o_proj,16,100", "o_proj,16,-100"), LLAMA,
         "dense.csv, row 6: time_us is -100, and no time is negative"),
        ("llmservingsim", broken(kernel_tables, "dense.csv", "qkv_proj,16,100", "qkv_proj,16,99000"), LLAMA,
         r"dense.csv: tokens 256 take .* us, and fewer take .* us"),
        ("llmservingsim", broken(kernel_tables, "dense.csv", "time_us", "time_ms"), LLAMA,
         "dense.csv: there is no column time_us, but layer, tokens, time_ms"),
        ("llmservingsim", broken(kernel_tables, "attention.csv", "0,0,1,16,2.0", "0,0,1,16,fast"), LLAMA,
         "attention.csv, row 2: time_us is 'fast', not a number"),
        ("llmservingsim", kernel_tables, Machine("llama-3.1-8b", "h1000"), "gpu h1000 is not known: known are a100"),
        ("llmservingsim", kernel_tables, Machine("llama-9", "h100"), "model llama-9 is not known: known are llama"),
        ("llmservingsim", kernel_tables, Machine("llama-3.1-8b", "h100", 3), "has 32 heads, which do not divide by 3"),
        ("llmservingsim", kernel_tables, Machine("llama-3.1-70b", "rtx-4090"), "leave no room in 1 x rtx-4090"),
        ("vidur", broken(vidur, f"{VIDUR_AT}/attention.csv", "0.125,,", "slow,,"), LLAMA,
         "attention.csv, row 2: time_stats.attn_prefill.median is 'slow', not a time"),
        ("vidur", vidur, Machine("llama-3.1-8b", "a100", 4), r"mlp.csv: no row of 32 heads on 4 GPUs, of \[1, 2\]"),
        ("splitwise-sim", broken(splitwise, "perf_model.csv", "1074.0", "74.0"), Machine("llama-2-70b", "h100", 8),
         "perf_model.csv: prompts of llama2-70b .* 8192 take 74,000 us, and fewer take 114,000 us"),
        ("splitwise-sim", broken(splitwise, "perf_model.csv", "114.0", "4.0"), Machine("llama-2-70b", "h100", 8),
         "a prompt of 1 tokens takes 4.000 ms, and 8 x h100 at its data sheet's"),
        ("splitwise-sim", splitwise, Machine("bloom-3b", "h100", 8), "no rows of bloom-3b on 8 x h100-80gb"),
        ("distserve", lambda folder: distserve(folder / "a.json", prefill=[1, -2, 3]), Machine("opt-13b", "a100"),
         r"a.json, facebook/opt-13b, 1: prefill has -2, and no time is negative"),
        ("distserve", lambda folder: distserve(folder / "a.json", prefill=[1]), Machine("opt-13b", "a100"),
         r"prefill is \[1\], not three numbers"),
        ("distserve", lambda folder: distserve(folder / "a.json"), Machine("opt-66b", "a100"),
         "no profile of opt-66b, but of facebook/opt-13b"),
        ("distserve", lambda folder: distserve(folder / "a.json"), Machine("opt-13b", "a100", 8),
         "facebook/opt-13b: no tensor parallelism 8, but 1"),
        ("distserve", lambda folder: distserve(folder / "a.json"), Machine("opt-13b", "a100"),
         "model opt-13b is not known, so its KV is to be given in tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line(
    format: str, make: Callable[[Path], Path], machine: Machine, said: str, tmp_path: Path
) -> None:
    """A hole, a negative or falling time, other units, an unknown GPU or model, one that the GPUs do not divide, and
    times below the GPU's floor are refused with file, row and field."""
    path = make(tmp_path)
    with pytest.raises(ValueError, match=said):
        import_machine(format, str(path), machine)  # type: ignore[arg-type]


def test_aiconfigurator_says_that_it_is_not_there() -> None:
    """The package's tables are asked for through the package alone."""
    with pytest.raises(ValueError, match="aiconfigurator is not installed"):
        import_machine("aiconfigurator", "h100_sxm", Machine("qwen3-8b", "h100"))


def test_the_command_writes_a_model_that_others_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`fairsched machine import` writes a document with its source, which `--latency-model` takes."""
    path, out = kernel_tables(tmp_path), tmp_path / "machine.json"
    arguments = ["machine", "import", "llmservingsim", str(path), "--model", "llama-3.1-8b", "--gpu", "a100"]
    assert main([*arguments, "--out", str(out)]) == 0
    assert "a prompt of 1,000 tokens" in capsys.readouterr().out
    latency = decoded(out.read_bytes()).latency
    assert latency == import_machine("llmservingsim", str(path), LLAMA)
    assert main(["compare", "azure-chat:requests=20", "--policies", "fcfs", "--latency-model", str(out)]) == 0


@pytest.mark.skipif(not REAL.exists(), reason="no kernel tables of others beside the repository")
@pytest.mark.parametrize(
    ("prefix", "machine", "floor_ms"),
    [
        ("rtx4090-llama-3.1-8b", Machine("llama-3.1-8b", "rtx-4090"), 15),
        ("rtxpro6000-qwen3-32b-tp2", Machine("qwen3-32b", "rtx-pro-6000", 2), 18),
    ],
)
def test_real_kernel_tables_are_machines(prefix: str, machine: Machine, floor_ms: int) -> None:
    """Tables of an RTX 4090 and of two RTX PRO 6000 are above their floors, grow with their work, and a decode takes no
    less than reading the weights."""
    latency = import_machine("llmservingsim", str(REAL / prefix), machine)
    assert latency.decode_ns(1, 100) > floor_ms * 1_000_000
    assert latency.decode_ns(1, 100) < latency.decode_ns(64, 64_000) < latency.step_ns([(2_048, 0)], 64, 64_000)
    assert kernels_of(latency).dense.at(513) == kernels_of(latency).dense.at(528) > kernels_of(latency).dense.at(512)
    assert MODELS[machine.model].layers == 32 * machine.gpus
