"""How long grouping a batch takes, and how much memory.

    python benchmarks/batch.py                  # 8,000 prompts like BatchLLM's industry traffic; the paper takes 1.51 s
    python benchmarks/batch.py --jobs 1000000   # a million prompts of 1,000 tokens, keys of every token, about 5 GB
    python benchmarks/batch.py --file 1000000   # a million jobs through `fairsched trace --batch`, a file of 0.5 GB
    python benchmarks/batch.py --file 1000000 --block-tokens 1     # the same with keys of every token, 6.8 GB

Industry-like is the paper's average: three prompts share 1,570 tokens and have 30 of their own, token by token.  The
million shares two levels, 250 tokens of 1,000 documents and 250 of 10,000 parts of them, in random order.  In the file
each prompt has 62 blocks of 16 tokens.  Times of grouping are CPU seconds, of one core,
and do not count the making of prompts; those from file to file are by the clock.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fairsched.policies.offline import batch_tree, group_places, groups_by

PAPER_S = 1.51
VOCABULARY = 128_000
REPEATS = 5


def industry(count: int) -> list[bytes]:
    """Chains of prompts of which three each share a prefix, shuffled; the last token of each is left out."""
    rng = np.random.default_rng(1)
    made: list[bytes] = []
    while len(made) < count:
        prefix = rng.integers(VOCABULARY, size=int(rng.normal(1_570, 200)), dtype=np.uint32)
        made += [np.concatenate((prefix, rng.integers(VOCABULARY, size=29, dtype=np.uint32))).tobytes() for _ in "abc"]
    return [made[i] for i in rng.permutation(count)]


def two_levels(count: int, keys: int) -> Iterator[np.ndarray]:
    """Keys of prompts that share a quarter with 1,000 documents' askers and another quarter with those of a part."""
    rng = np.random.default_rng(2)
    quarter = keys // 4
    documents = rng.integers(VOCABULARY, size=(1_000, quarter), dtype=np.uint32)
    parts = rng.integers(VOCABULARY, size=(10_000, quarter), dtype=np.uint32)
    for part in rng.integers(10_000, size=count):
        own = rng.integers(VOCABULARY, size=keys - 2 * quarter, dtype=np.uint32)
        yield np.concatenate((documents[part // 10], parts[part], own))


def grouped(chains: list[bytes], block_tokens: int) -> tuple[float, float]:
    """CPU seconds for tree, exact groups and their order, and the saving ratio."""
    tokens = np.array([len(chain) // 4 * block_tokens + 1 for chain in chains], dtype=np.int64)
    begun = time.process_time()
    tree = batch_tree(chains, tokens, np.full(len(chains), block_tokens), 4)
    groups = groups_by(tree, "exact")
    group_places(tree, groups)
    return time.process_time() - begun, groups.saving_ratio


def peak_gib(who: int = resource.RUSAGE_SELF) -> float:
    """Peak resident memory of this process, or of those it waited for."""
    return resource.getrusage(who).ru_maxrss / 2**20


def from_file(count: int, block_tokens: int) -> None:
    """The whole command, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.jsonl"
        with path.open("w") as file:
            for keys in two_levels(count, 1_000 // block_tokens):
                row = {"timestamp": 0, "input_length": 1_000, "output_length": 100, "block_tokens": block_tokens}
                file.write(json.dumps(row | {"hash_ids": keys.tolist()}) + "\n")
        print(f"{count:,} jobs, {path.stat().st_size / 1e9:.2f} GB", flush=True)
        begun = time.perf_counter()
        program = "import sys; from fairsched.cli import main; sys.exit(main(sys.argv[1:]))"
        arguments = ["trace", str(path), "--batch", "exact", "--out", str(Path(folder) / "order.jsonl")]
        subprocess.run([sys.executable, "-c", program, *arguments], check=True)
        print(f"in all {time.perf_counter() - begun:.1f} s, peak {peak_gib(resource.RUSAGE_CHILDREN):.2f} GiB")


def grouping() -> Callable[[], float]:
    """Make the prompts; the work is to group them."""
    chains = industry(8_000)
    return lambda: grouped(chains, 1)[0] * 1e6 / len(chains)


FIGURES = {"BatchLLM: a prompt of 8,000 is grouped": {"ours": grouping}}


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, help="so many prompts of 1,000 tokens in memory")
    parser.add_argument("--file", type=int, help="so many jobs from a file")
    parser.add_argument("--block-tokens", type=int, default=16, help="tokens of a block in the file")
    arguments = parser.parse_args()
    if arguments.file:
        from_file(arguments.file, arguments.block_tokens)
    elif arguments.jobs:
        chains = [keys[:-1].tobytes() for keys in two_levels(arguments.jobs, 1_000)]
        seconds, saving = grouped(chains, 1)
        print(f"{arguments.jobs:,} prompts: {seconds:.1f} s, saving {saving:.1%}, peak {peak_gib():.2f} GiB")
    else:
        chains = industry(8_000)
        runs = sorted(grouped(chains, 1) for _ in range(REPEATS))
        print(f"8,000 prompts: {runs[0][0]:.3f} s (median {runs[REPEATS // 2][0]:.3f}), saving {runs[0][1]:.1%}")
        print(f"the paper's 1.51 s are {PAPER_S / runs[0][0]:.0f} times as long")


if __name__ == "__main__":
    main()
