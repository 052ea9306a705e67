"""Latency presets: coefficients fitted from published profiles, each with its source.

Conversions: milliseconds a token become integer nanoseconds.  KV capacity is 90 % of the accelerator's memory less the
weights, divided by the bytes of a token, unless the source says otherwise.
"""

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
    "llama-2-70b-h100": (8, 1_330_000, 40_960, (48_800_000, 4_890, 19_100), ((1, 29_400_000, 611, 0),)),
    "llama-2-70b-h100-capped": (8, 1_330_000, 40_960, (63_440_000, 6_357, 24_830), ((1, 29_400_000, 611, 0),)),
    "llama-2-70b-a100": (8, 1_330_000, 40_960, (57_500_000, 67_947, 19_350), ((1, 44_093_000, 886, 0),)),
    "bloom-176b-h100": (8, 55_800, 501_760, (49_667_000, 46_409, 26_744), ((1, 35_274_000, 709, 0),)),
    "bloom-176b-h100-capped": (8, 55_800, 501_760, (64_567_000, 60_331, 34_767), ((1, 35_274_000, 709, 0),)),
    "bloom-176b-a100": (8, 55_800, 501_760, (103_000_000, 127_873, 42_946), ((1, 48_012_000, 965, 0),)),
    "llama-3-70b-h100-tp2": (2, 12_200, 163_840, (18_700_000, 79_900, 740), ((1, 18_700_000, 2_690, 79_900),)),
    "llama-3-70b-fp8-h100-tp2": (2, 225_000, 163_840, (9_350_000, 39_950, 740), ((1, 9_350_000, 2_690, 39_950),)),
    "llama-3-70b-fp8-h100-tp4": (4, 665_000, 81_920, (7_390_000, 21_970, 407), ((1, 7_390_000, 1_480, 21_970),)),
    "mistral-7b-a6000": (1, 219_000, 131_072, (4_667_000, 120_400, 2_200), ((1, 24_400_000, 207, 120_400),)),
}

_DISTSERVE = "DistServe's published A100 profile of OPT-13B (facts of its profile file), tensor parallel "
_KV_LLAMA_2 = "capacity from 327,680 bytes a token and 90 % of 640 GB less 140 GB"
_KV_BLOOM = "capacity from 4,014,080 bytes a token (70 layers x 14,336) and 90 % of 640 GB less 352 GB"
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
    "llama-2-70b-h100": (
        "Splitwise's published DGX-H100 medians, least squares by us: prefill 54/78/137/390 ms at "
        "512/1,024/2,048/4,096 tokens, token step 30.6 to 50.2 ms at 512 to 32k tokens of context; "
        f"{_KV_LLAMA_2}"
    ),
    "llama-2-70b-h100-capped": (
        "llama-2-70b-h100 with its power capped: Splitwise's published rows have prefill exactly 1.30 times as "
        "long and token steps as they are"
    ),
    "llama-2-70b-a100": (
        "Splitwise's published DGX-A100 medians, least squares by us: prefill 93/155/274/661 ms at "
        "512/1,024/2,048/4,096 tokens, off by +4.4/-7.6/+3.8/-0.5 ms; token step 45 ms at 1,024 tokens of context, "
        f"which grows as on llama-2-70b-h100 (by 45/31, the token steps); {_KV_LLAMA_2}"
    ),
    "bloom-176b-h100": (
        "Splitwise's published DGX-H100 medians, least squares by us: prefill 76/133/253/689 ms at "
        "512/1,024/2,048/4,096 tokens, off by +4.4/-7.8/+3.9/-0.6 ms; token step 36 ms at 1,024 tokens of context, "
        f"which grows as on llama-2-70b-h100 (by 36/31, the token steps); {_KV_BLOOM}"
    ),
    "bloom-176b-h100-capped": (
        "bloom-176b-h100 with its power capped: Splitwise's published rows have prefill exactly 1.30 times as "
        "long and token steps as they are"
    ),
    "bloom-176b-a100": (
        "Splitwise's published DGX-A100 medians, least squares by us: prefill 174/289/540/1,348 ms at "
        "512/1,024/2,048/4,096 tokens, off by +5.7/-10.0/+5.0/-0.7 ms; token step 49 ms at 1,024 tokens of context, "
        f"which grows as on llama-2-70b-h100 (by 49/31, the token steps); {_KV_BLOOM}"
    ),
    "llama-3-70b-h100-tp2": (
        "Preble's published regression for two H100, 18.7 ms + 0.0799 n + 0.00269 x + 7.4e-7 n x for n tokens "
        "behind x, applied with n = 1 a request in decode; capacity from 327,680 bytes a token and 90 % of "
        "160 GB less 140 GB"
    ),
    "llama-3-70b-fp8-h100-tp2": (
        "ours: llama-3-70b-h100-tp2 with weights in 8 bits, of which half the bytes are read and which are multiplied "
        "at twice the rate (constants and terms a token halved), KV in 16 bits (context as it is); capacity from "
        "327,680 bytes a token and 90 % of 160 GB less 70 GB"
    ),
    "llama-3-70b-fp8-h100-tp4": (
        "ours: llama-3-70b-fp8-h100-tp2 by what DistServe's OPT-13B profile changes from tensor parallel 2 to 4: "
        "constants 0.79, terms a token and a context token 0.55; capacity from 327,680 bytes a token and 90 % of "
        "320 GB less 70 GB"
    ),
    "mistral-7b-a6000": (
        "Preble's published regression for an A6000: (4.2 ms + 0.1084 ms a token) / 0.9, attention "
        "1.86e-4 ms a context token and 2.2e-6 ms a product, decode floor 22 ms; capacity from 131,072 bytes a "
        "token and 90 % of 48 GB less 14.5 GB"
    ),
}

# Models on accelerators: the preset's name begins with the model's; parameters, bytes of weights.
_MODELS = {
    "llama-3.2-3b": (3_200_000_000, 6_400_000_000),
    "llama-3.1-8b": (8_000_000_000, 16_000_000_000),
    "opt-13b": (13_000_000_000, 26_000_000_000),
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


PRESETS = {
    name: LatencyModel(
        name,
        _SOURCES[name],
        *prefill,
        tuple(DecodePiece(*piece) for piece in decode),
        kv_tokens,
        gpus,
        deployment=_deployment(name),
    )
    for name, (gpus, kv_tokens, _, prefill, decode) in _TABLE.items()
}
"""Presets by name."""

KV_BYTES = {name: row[2] for name, row in _TABLE.items()}
"""Bytes of KV a token on each accelerator of a preset's worker: of its keys and values in 16 bits, an equal share."""

DEFAULT_PRESET = "llama-3.2-3b-a10g"
"""The latency model of every command that names none."""
