"""The rows, a paper a file. Read `queueing` first: the shortest, with results that any reader can check."""

from fairsched.reproduce.papers import (
    aladdin,
    batchllm,
    distserve,
    dlpm,
    energy,
    field,
    larry,
    ours,
    preble,
    queueing,
    splitwise,
    tetriinfer,
    vidur,
)

__all__ = [
    "aladdin", "batchllm", "distserve", "dlpm", "energy", "field", "larry", "ours", "preble", "queueing",
    "splitwise", "tetriinfer", "vidur"
]  # fmt: skip
