"""Latency presets: coefficients fitted from published profiles, each with its source.

Conversions: milliseconds a token become integer nanoseconds.  KV capacity is 90 % of the accelerator's memory less the
weights, divided by the bytes of a token, unless the source says otherwise.
"""

from fairsched.model.latency.model import DecodePiece, LatencyModel

_DISTSERVE = "DistServe's published A100 profile of OPT-13B (facts of its profile file), tensor parallel "

PRESETS: dict[str, LatencyModel] = {
    model.name: model
    for model in (
        LatencyModel(
            name="llama-3.2-3b-a10g",
            source=(
                "ours: linear scaling of DistServe's OPT-13B profile by weights (3.2/13) and memory bandwidth "
                "(A10G 600 GB/s, A100 1,555 GB/s), compute 125 against 312 TFLOP/s; capacity from 114,688 bytes a "
                "token and 90 % of 24 GB less 6.4 GB"
            ),
            prefill_constant_ns=11_500_000,
            prefill_token_ns=62_600,
            prefill_attention_ps=4_400,
            decode=(DecodePiece(1, 12_600_000, 227, 24_600),),
            kv_capacity_tokens=132_000,
        ),
        LatencyModel(
            name="llama-3.1-8b-a100",
            source=(
                "ours: linear scaling of DistServe's OPT-13B profile by weights (8/13) and by KV bytes a token "
                "(131,072 against 819,200); capacity from 90 % of 80 GB less 16 GB"
            ),
            prefill_constant_ns=11_100_000,
            prefill_token_ns=62_700,
            prefill_attention_ps=4_400,
            decode=(DecodePiece(1, 12_300_000, 100, 23_700),),
            kv_capacity_tokens=427_000,
        ),
        LatencyModel(
            name="opt-13b-a100",
            source=_DISTSERVE + "1; capacity from 90 % of 80 GB less 26 GB at 819,200 bytes a token",
            prefill_constant_ns=18_100_000,
            prefill_token_ns=101_900,
            prefill_attention_ps=7_120,
            decode=(DecodePiece(1, 19_930_000, 627, 38_500), DecodePiece(95, 7_170_000, 580, 158_300)),
            kv_capacity_tokens=56_000,
        ),
        LatencyModel(
            name="opt-13b-a100-tp2",
            source=_DISTSERVE + "2; capacity from 90 % of 160 GB less 26 GB at 819,200 bytes a token",
            prefill_constant_ns=14_740_000,
            prefill_token_ns=68_600,
            prefill_attention_ps=2_450,
            decode=(DecodePiece(1, 13_290_000, 341, 63_000),),
            kv_capacity_tokens=144_000,
        ),
        LatencyModel(
            name="opt-13b-a100-tp4",
            source=_DISTSERVE + "4; capacity from 90 % of 320 GB less 26 GB at 819,200 bytes a token",
            prefill_constant_ns=12_060_000,
            prefill_token_ns=38_100,
            prefill_attention_ps=520,
            decode=(DecodePiece(1, 10_260_000, 188, 32_700),),
            kv_capacity_tokens=319_000,
        ),
        LatencyModel(
            name="llama-2-70b-h100",
            source=(
                "Splitwise's published DGX-H100 medians, least squares by us: prefill 54/78/137/390 ms at "
                "512/1,024/2,048/4,096 tokens, token step 30.6 to 50.2 ms at 512 to 32k tokens of context; capacity "
                "from 327,680 bytes a token and 90 % of 640 GB less 140 GB"
            ),
            prefill_constant_ns=48_800_000,
            prefill_token_ns=4_890,
            prefill_attention_ps=19_100,
            decode=(DecodePiece(1, 29_400_000, 611, 0),),
            kv_capacity_tokens=1_330_000,
        ),
        LatencyModel(
            name="llama-3-70b-h100-tp2",
            source=(
                "Preble's published regression for two H100, 18.7 ms + 0.0799 n + 0.00269 x + 7.4e-7 n x for n tokens "
                "behind x, applied with n = 1 a request in decode; capacity from 327,680 bytes a token and 90 % of "
                "160 GB less 140 GB"
            ),
            prefill_constant_ns=18_700_000,
            prefill_token_ns=79_900,
            prefill_attention_ps=740,
            decode=(DecodePiece(1, 18_700_000, 2_690, 79_900),),
            kv_capacity_tokens=12_200,
        ),
        LatencyModel(
            name="mistral-7b-a6000",
            source=(
                "Preble's published regression for an A6000: (4.2 ms + 0.1084 ms a token) / 0.9, attention "
                "1.86e-4 ms a context token and 2.2e-6 ms a product, decode floor 22 ms; capacity from 131,072 bytes a "
                "token and 90 % of 48 GB less 14.5 GB"
            ),
            prefill_constant_ns=4_667_000,
            prefill_token_ns=120_400,
            prefill_attention_ps=2_200,
            decode=(DecodePiece(1, 24_400_000, 207, 120_400),),
            kv_capacity_tokens=219_000,
        ),
    )
}
"""Presets by name."""

KV_BYTES: dict[str, int] = {
    "llama-3.2-3b-a10g": 114_688,
    "llama-3.1-8b-a100": 131_072,
    "opt-13b-a100": 819_200,
    "opt-13b-a100-tp2": 409_600,
    "opt-13b-a100-tp4": 204_800,
    "llama-2-70b-h100": 40_960,
    "llama-3-70b-h100-tp2": 163_840,
    "mistral-7b-a6000": 131_072,
}
"""Bytes of KV a token on each accelerator of a preset's worker: of its keys and values in 16 bits, an equal share."""

DEFAULT_PRESET = "llama-3.2-3b-a10g"
"""The latency model of every command that names none."""
