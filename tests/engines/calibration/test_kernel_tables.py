"""Kernel tables of LLMServingSim are read as what they are: stairs, two kernels of attention, grids with holes."""

from pathlib import Path

import pytest

from fairsched.engines.calibration.kernel_tables import llmservingsim
from fairsched.model.machine import AllReduce, Kernels, TimeTable


def written(folder: Path, **changed: str) -> Path:
    """Write four small tables into a folder, with some of them changed, and return it."""
    attention = ["0,0,1,100,2", "0,0,1,200,4", "0,0,4,100,5", "0,0,4,200,9"]
    for tokens in (16, 64):
        attention += [f"{tokens},{before},0,0,{tokens + before / 10}" for before in (0, 512, 1024)]
        for batch in (1, 4):
            attention += [
                f"{tokens},{before},{batch},{mean},{tokens + 9 * batch}" for before in (0, 1024) for mean in (100, 200)
            ]
    attention += ["64,512,1,100,3"]
    tables = {
        "dense": "layer,tokens,time_us\nqkv_proj,1,10\nqkv_proj,16,12\nqkv_proj,32,11\nembedding,1,1\nembedding,16,1\n"
        "embedding,32,2\nlayernorm,1,3\nlayernorm,16,3\nlayernorm,32,30\n",
        "per_sequence": "layer,sequences,time_us\nlm_head,1,100\nlm_head,3,120\nsampler,1,10\nsampler,3,10\n",
        "attention": "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n" + "\n".join(attention) + "\n",
        "skew_fit": "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples\n"
        "0,n<=4,sr<=70%,kvB<=1k,kp=0,0.1,4\n16,n<=4,sr<=70%,kvB<=1k,kp=0,0.9,2\n",
    } | changed
    for name, text in tables.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


@pytest.fixture
def kernels(tmp_path: Path) -> Kernels:
    """Return the small tables as kernels of a model of two layers."""
    return llmservingsim(written(tmp_path), 2, graph_sizes=(1, 4))


def test_dense_kernels_are_stairs(kernels: Kernels) -> None:
    """A dense kernel takes what the next larger number of tokens takes; embedding counts once, norms twice a layer."""
    assert kernels.dense.at(1) == 1000 * (2 * 10 + 1 + 4 * 3)
    assert kernels.dense.at(2) == kernels.dense.at(16) == 1000 * (2 * 12 + 1 + 4 * 3)
    assert kernels.dense.at(17) == kernels.dense.at(32) == 1000 * (2 * 11 + 2 + 4 * 30)
    assert kernels.by_tokens_ns(2) == kernels.dense.at(4)


def test_head_and_sampler_are_lines_by_sequences(kernels: Kernels) -> None:
    """Head and sampler count once, and linearly between points."""
    assert kernels.sequences.at(2) == 120_000


def test_decodes_beside_prompts_are_another_kernel(kernels: Kernels) -> None:
    """A step that only decodes has its own times; one token and more of a prompt beside it take the others, and a row
    with few entries of the grid is not read."""
    assert kernels.attention.ns(0, 0, 4, 400, 100, 100) == 2 * 5_000
    assert kernels.attention.ns(2, 4, 4, 400, 100, 100) == 2 * (16 + 36) * 1000
    assert kernels.attention.ns(64, 64 * (2 * 512 + 64), 1, 100, 100, 100) == 2 * (64 + 9) * 1000


def test_skew_is_of_decodes_alone(kernels: Kernels) -> None:
    """Decodes of unequal context take a share of what the longest would, and the same beside a prompt."""
    at_mean, at_longest = 2 * 7_000, 2 * 9_000
    assert kernels.attention.ns(0, 0, 4, 600, 200, 100) == at_mean + (at_longest - at_mean) // 10
    assert kernels.attention.ns(16, 256, 4, 600, 200, 100) == kernels.attention.ns(16, 256, 4, 600, 150, 150)


def test_times_that_fall_by_chance_rise(tmp_path: Path) -> None:
    """A time below an earlier one is a mean of what lies before and after it; beyond the last, times go on so."""
    dense = "layer,tokens,time_us\na,1,10\na,2,20\na,3,16\na,4,30\n"
    table = llmservingsim(written(tmp_path, dense=dense), 1).dense
    assert table == TimeTable((1, 2, 3, 4, 6), (10_000, 18_000, 18_000, 30_000, 42_000))


def test_an_all_reduce_is_added_by_tokens(tmp_path: Path) -> None:
    """The tables leave out the all-reduces, which are added by the padded tokens."""
    reduce = AllReduce(4, 10, TimeTable((0, 100), (7, 107)))
    kernels = llmservingsim(written(tmp_path), 2, reduce=reduce, graph_sizes=(1, 4))
    assert kernels.by_tokens_ns(3) == kernels.dense.at(4) + 4 * (7 + 40)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dense": "layer,tokens\na,1\n"}, "dense.csv: there is no column time_us"),
        ({"dense": "layer,tokens,time_us\na,1,2\na,2,x\n"}, "dense.csv, row 3: time_us is 'x', not a number"),
        ({"dense": "layer,tokens,time_us\na,1,-2\n"}, "dense.csv, row 2: time_us is -2, and no time is negative"),
        ({"dense": "layer,tokens,time_us\na,1,nan\n"}, "dense.csv, row 2: time_us is nan, and no time is negative"),
        ({"attention": "prefill_chunk\n"}, "attention.csv: there is no column kv_prefill"),
        (
            {"attention": "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,1,1\n"},
            "attention.csv: no row of prompts",
        ),
        ({"per_sequence": "layer,sequences,time_us\n"}, "per_sequence.csv: there are no rows"),
    ],
)
def test_a_table_that_cannot_be_read_says_where(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    """File, row and field are named."""
    with pytest.raises(ValueError, match=message):
        llmservingsim(written(tmp_path, **changed), 2)
