"""Latency presets: coefficients and tables from published profiles, each with its source; others are made by formula.

Conversions: milliseconds a token become integer nanoseconds.  KV capacity is 90 % of the accelerator's memory less the
weights, divided by the bytes of a token, unless the source says otherwise.
"""

from fairsched.model.machine.formula import named
from fairsched.model.machine.kernels import AttentionFormula, Kernels, TimeTable
from fairsched.model.machine.model import Accelerators, DecodePiece, LatencyModel

# GPUs of a worker; tokens of KV, bytes of KV a token on each of its GPUs; prefill: ns, ns a token, ps of attention;
# decode pieces: smallest batch, ns, ns a token of context, ns a request.
_TABLE: dict[str, tuple[int, int, int, tuple[int, int, int], tuple[tuple[int, int, int, int], ...]]] = {
    "llama-3.2-3b-a10g": (1, 132_000, 114_688, (11_500_000, 62_600, 4_400), ((1, 12_600_000, 227, 24_600),)),
    "llama-3.1-8b-a100": (1, 427_000, 131_072, (11_100_000, 62_700, 4_400), ((1, 12_300_000, 100, 23_700),)),
    "llama-3.1-8b-a100-40gb": (1, 150_000, 131_072, (11_100_000, 62_700, 4_400), ((1, 12_300_000, 100, 23_700),)),
    "opt-13b-a100": (
        1,
        56_000,
        819_200,
        (18_100_000, 101_900, 7_120),
        ((1, 19_930_000, 627, 38_500), (95, 7_170_000, 580, 158_300)),
    ),
    "opt-13b-a100-tp2": (2, 144_000, 409_600, (14_740_000, 68_600, 2_450), ((1, 13_290_000, 341, 63_000),)),
    "opt-13b-a100-tp4": (4, 319_000, 204_800, (12_060_000, 38_100, 520), ((1, 10_260_000, 188, 32_700),)),
    "opt-13b-a100-vllm": (
        1,
        56_000,
        819_200,
        (22_052_000, 140_509, 8_077),
        ((1, 23_475_000, 593, 60_727), (95, 20_206_000, 491, 120_003)),
    ),
    "opt-13b-a100-tp2-vllm": (
        2,
        144_000,
        409_600,
        (27_441_000, 90_545, 8_452),
        ((1, 24_541_000, 224, 87_158), (95, 17_948_000, 457, 111_791)),
    ),
    "opt-13b-a100-tp4-vllm": (
        4,
        319_000,
        204_800,
        (30_536_000, 51_506, 423),
        ((1, 25_901_000, 78, 55_281), (95, 23_884_000, 284, 62_765)),
    ),
    "opt-66b-a100-tp2": (
        2,
        5_000,
        1_179_648,
        (43_059_000, 274_229, 22_478),
        ((1, 48_288_000, 942, 127_550), (95, 28_728_000, 474, 296_178)),
    ),
    "opt-66b-a100-tp4": (
        4,
        66_000,
        589_824,
        (29_442_000, 151_352, 8_317),
        ((1, 30_760_000, 452, 63_284), (95, 27_471_000, 405, 124_807)),
    ),
    "opt-66b-a100-tp4-vllm": (
        4,
        66_000,
        589_824,
        (42_965_000, 212_866, 46_010),
        ((1, 39_582_000, 695, 135_809), (95, 40_860_000, 426, 195_084)),
    ),
    "llama-2-70b-h100": (8, 1_330_000, 40_960, (48_800_000, 4_890, 19_100), ((1, 29_400_000, 611, 0),)),
    "llama-2-70b-h100-capped": (8, 1_330_000, 40_960, (63_440_000, 6_357, 24_830), ((1, 29_400_000, 611, 0),)),
    "llama-2-70b-a100": (8, 1_330_000, 40_960, (57_500_000, 67_947, 19_350), ((1, 44_093_000, 886, 0),)),
    "bloom-176b-h100": (8, 55_800, 501_760, (49_667_000, 46_409, 26_744), ((1, 35_274_000, 709, 0),)),
    "bloom-176b-h100-capped": (8, 55_800, 501_760, (64_567_000, 60_331, 34_767), ((1, 35_274_000, 709, 0),)),
    "bloom-176b-a100": (8, 55_800, 501_760, (103_000_000, 127_873, 42_946), ((1, 48_012_000, 965, 0),)),
    "llama-3-70b-h100-tp2": (2, 12_200, 163_840, (26_917_649, 91_650, 4_006), ((1, 26_861_557, 76, 26_715),)),
    "llama-3-70b-fp8-h100-tp2": (2, 225_000, 163_840, (15_812_678, 54_374, 2_687), ((1, 15_772_502, 76, 26_182),)),
    "llama-3-70b-fp8-h100-tp4": (4, 665_000, 81_920, (10_578_538, 44_662, 1_345), ((1, 10_537_022, 38, 34_583),)),
    "mistral-7b-a6000": (1, 219_000, 131_072, (4_667_000, 120_400, 2_200), ((1, 24_400_000, 207, 120_400),)),
}

_DISTSERVE = "DistServe's published A100 profile of OPT-13B (facts of its profile file), tensor parallel "
_DISTSERVE_66B = _DISTSERVE.replace("13B", "66B")
_VLLM = _DISTSERVE.replace("profile of", "profile of vLLM with")
_MEDIANS = (
    "Splitwise's published medians (splitwise-sim, data/perf_model.csv, MIT), tensor parallel 8: prompts of 128 to "
    "8,192 tokens and batches of up to 32,768, linear between"
)
_KV_LLAMA_2 = "capacity from 327,680 bytes a token and 90 % of 640 GB less 140 GB"
_KV_BLOOM = "capacity from 4,014,080 bytes a token (70 layers x 14,336) and 90 % of 640 GB less 352 GB"
_BY_FORMULA = (
    "the machine by formula (`by_formula`, its shares fitted to published H100 loads), as lines: exact for prompts of "
    "1, 1,024 and 8,192 tokens"
)
_SOURCES = {
    "llama-3.2-3b-a10g": (
        "ours: linear scaling of DistServe's OPT-13B profile by weights (3.2/13) and memory bandwidth "
        "(A10G 600 GB/s, A100 1,555 GB/s), compute 125 against 312 TFLOP/s; capacity from 114,688 bytes a "
        "token and 90 % of 24 GB less 6.4 GB"
    ),
    "llama-3.1-8b-a100": (
        "ours: linear scaling of DistServe's OPT-13B profile by weights (8/13) and by KV bytes a token "
        "(131,072 against 819,200); capacity from 90 % of 80 GB less 16 GB"
    ),
    "llama-3.1-8b-a100-40gb": (
        "ours: the coefficients of llama-3.1-8b-a100; capacity from 131,072 bytes a token and 90 % of 40 GB less 16 GB"
    ),
    "opt-13b-a100": _DISTSERVE + "1; capacity from 90 % of 80 GB less 26 GB at 819,200 bytes a token",
    "opt-13b-a100-tp2": _DISTSERVE + "2; capacity from 90 % of 160 GB less 26 GB at 819,200 bytes a token",
    "opt-13b-a100-tp4": _DISTSERVE + "4; capacity from 90 % of 320 GB less 26 GB at 819,200 bytes a token",
    "opt-13b-a100-vllm": _VLLM + "1; capacity of opt-13b-a100",
    "opt-13b-a100-tp2-vllm": _VLLM + "2; capacity of opt-13b-a100-tp2",
    "opt-13b-a100-tp4-vllm": _VLLM + "4; capacity of opt-13b-a100-tp4",
    "opt-66b-a100-tp2": _DISTSERVE_66B + "2; capacity from 90 % of 160 GB less 132 GB at 2,359,296 bytes a token",
    "opt-66b-a100-tp4": _DISTSERVE_66B + "4; capacity from 90 % of 320 GB less 132 GB at 2,359,296 bytes a token",
    "opt-66b-a100-tp4-vllm": _VLLM.replace("13B", "66B") + "4; capacity of opt-66b-a100-tp4",
    "llama-2-70b-h100": (f"{_MEDIANS}, token step 30.6 to 50.2 ms at 512 to 32k tokens of context; {_KV_LLAMA_2}"),
    "llama-2-70b-h100-capped": (
        "llama-2-70b-h100 with its power capped: Splitwise's published rows have prefill exactly 1.30 times as "
        "long and token steps as they are"
    ),
    "llama-2-70b-a100": (
        f"{_MEDIANS}; token step 45 ms at 1,024 tokens of context, "
        f"which grows as on llama-2-70b-h100 (by 45/31, the token steps); {_KV_LLAMA_2}"
    ),
    "bloom-176b-h100": (
        f"{_MEDIANS}; token step 36 ms at 1,024 tokens of context, "
        f"which grows as on llama-2-70b-h100 (by 36/31, the token steps); {_KV_BLOOM}"
    ),
    "bloom-176b-h100-capped": (
        "bloom-176b-h100 with its power capped: Splitwise's published rows have prefill exactly 1.30 times as "
        "long and token steps as they are"
    ),
    "bloom-176b-a100": (
        f"{_MEDIANS}; token step 49 ms at 1,024 tokens of context, "
        f"which grows as on llama-2-70b-h100 (by 49/31, the token steps); {_KV_BLOOM}"
    ),
    "llama-3-70b-h100-tp2": (
        f"{_BY_FORMULA}, batches of 32 over 256 to 2,048 tokens; capacity from 327,680 bytes a token and 90 % of "
        "160 GB less 140 GB"
    ),
    "llama-3-70b-fp8-h100-tp2": (
        f"{_BY_FORMULA}, weights in 8 bits and KV in 16; capacity from 327,680 bytes a token and 90 % of 160 GB less "
        "70 GB"
    ),
    "llama-3-70b-fp8-h100-tp4": (
        f"{_BY_FORMULA}, weights in 8 bits and KV in 16; capacity from 327,680 bytes a token and 90 % of 320 GB less "
        "70 GB"
    ),
    "mistral-7b-a6000": (
        "Preble's published regression for an A6000: (4.2 ms + 0.1084 ms a token) / 0.9, attention "
        "1.86e-4 ms a context token and 2.2e-6 ms a product, no step below its decode floor of 22 ms / 0.9; capacity "
        "from 131,072 bytes a token and 90 % of 48 GB less 14.5 GB"
    ),
}

# Models on accelerators: the preset's name begins with the model's; parameters, bytes of weights.
_MODELS = {
    "llama-3.2-3b": (3_200_000_000, 6_400_000_000),
    "llama-3.1-8b": (8_000_000_000, 16_000_000_000),
    "opt-13b": (13_000_000_000, 26_000_000_000),
    "opt-66b": (66_000_000_000, 132_000_000_000),
    "llama-2-70b": (70_000_000_000, 140_000_000_000),
    "llama-3-70b-fp8": (70_000_000_000, 70_000_000_000),
    "llama-3-70b": (70_000_000_000, 140_000_000_000),
    "bloom-176b": (176_000_000_000, 352_000_000_000),
    "mistral-7b": (7_250_000_000, 14_500_000_000),
}
_GPUS = ("a10g", "a6000", "a100-40gb", "a100", "h100-capped", "h100")


def _deployment(name: str) -> Accelerators:
    model = next(model for model in _MODELS if name.startswith(model + "-"))
    gpu = next(gpu for gpu in _GPUS if name.removeprefix(model).startswith("-" + gpu))
    return Accelerators(gpu, *_MODELS[model], kv_token_bytes=_TABLE[name][0] * _TABLE[name][2])


# Splitwise's medians: microseconds of a prompt of so many tokens, and beyond 8,192 of batches of 512 each.
_TOKENS = (128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768)
_PROMPTS_US = {
    "llama-2-70b-h100": (54_567, 54_567, 54_567, 77_913, 136_797, 390_291, 844_885, 1_551_726, 2_936_330),
    "llama-2-70b-h100-capped": (70_937, 70_937, 70_937, 101_287, 177_837, 507_378, 1_098_351, 2_017_244, 3_817_229),
    "llama-2-70b-a100": (65_347, 66_757, 93_016, 154_458, 274_222, 661_222, 1_549_820, 3_524_541, 7_553_993),
    "bloom-176b-h100": (48_284, 51_179, 76_142, 132_618, 253_113, 688_695, 1_535_395, 2_521_909, 4_996_451),
    "bloom-176b-h100-capped": (62_770, 66_533, 98_984, 172_403, 329_047, 895_304, 1_996_014, 3_278_482, 6_495_386),
    "bloom-176b-a100": (79_668, 99_164, 174_382, 289_191, 540_412, 1_348_173, 3_593_167, 5_782_003, 11_251_828),
}


def _preset(name: str) -> LatencyModel:
    gpus, kv_tokens, _, prefill, decode = _TABLE[name]
    pieces = tuple(DecodePiece(*piece) for piece in decode)
    lines = LatencyModel(name, _SOURCES[name], *prefill, pieces, kv_tokens, gpus, deployment=_deployment(name))
    floor, context_ps = pieces[0].constant_ns, 1000 * pieces[0].context_token_ns
    if name in _PROMPTS_US:
        prompts = TimeTable(_TOKENS, tuple(1000 * us - floor for us in _PROMPTS_US[name]))
        dense, attention = TimeTable((0,), (floor,)), AttentionFormula(0, context_ps, prompts)
    elif name == "mistral-7b-a6000":
        constant, token, product = prefill
        reached = (floor - constant) // token
        dense = TimeTable((0, reached, reached + 1000), (floor, floor, floor + 1000 * token))
        attention = AttentionFormula(product // 2, context_ps)
    else:
        return lines
    kernels = Kernels(dense, attention, TimeTable((0,), (0,)))
    return LatencyModel.of_kernels(name, _SOURCES[name], kernels, kv_tokens, gpus=gpus, deployment=lines.deployment)


PRESETS = {name: _preset(name) for name in _TABLE}
"""Presets by name."""


def preset(name: str) -> LatencyModel | None:
    """Return the preset of a name, or the machine by formula of a model, GPU and tensor parallelism, as
    `qwen3-32b-h100-tp2` or `llama-3.1-8b-fp8-l40s`; None for any other name.

    Raises `ValueError` where the GPUs cannot divide the model or have no room for it.
    """
    return PRESETS.get(name) or named(name)


DEFAULT_PRESET = "llama-3.2-3b-a10g"
"""The latency model of every command that names none."""
