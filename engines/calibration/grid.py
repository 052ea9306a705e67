"""What a calibration runs: short scripts of an engine's life that together cover the steps it may take.

A prompt that is computed alone in chunks of one size gives pure prefill behind several contexts.  A ramp lets a batch
grow request by request, so that every batch size is seen.  A walk goes up and down, several prompts at a time, as
serving does; some walks are held out to judge the fit.  Lengths are as unequal as those of conversations, since a
batch of unequal contexts costs more than one of equal ones.  Everything is drawn from a seed, so that a script is the
same steps each time it is run.
"""

import random
from collections.abc import Sequence

import attrs

CHUNKS = (16, 32, 64, 128, 256, 512)
DECODE_STEPS = 2
"""Pure decode steps at each batch size of a ramp."""
RAMPS = (0.04, 0.12, 0.4)
"""Prompts of a ramp's full batch, as shares of the KV capacity; what they decode meanwhile needs room too."""
WALKS = (0.07, 0.2, 0.4)
HELD_OUT = (0.1, 0.3)
SPREAD = 0.6
"""Standard deviation of the logarithm of a prompt's length."""
_LONGEST = 4
_CHUNKS_IN_A_ROW = 2
_STEPS_A_SUBMIT = 4
_WALK_LENGTH = 12


@attrs.frozen
class Submit:
    """New requests with prompts of these lengths; they decode until they are dropped."""

    prompts: tuple[int, ...]


@attrs.frozen
class Run:
    """So many steps (None: until no prompt is left to compute) with `chunk` tokens of prompts in a step."""

    chunk: int
    steps: int | None = None


@attrs.frozen
class Drop:
    """So many of the requests leave, the oldest first."""

    requests: int


Action = Submit | Run | Drop


@attrs.frozen
class Scenario:
    """A script, from an empty batch to an empty batch.  What was `held_out` is not fitted."""

    title: str
    actions: tuple[Action, ...]
    held_out: bool = False


def scenarios(kv_capacity_tokens: int, batch_max: int, chunk_max: int, seed: int) -> list[Scenario]:
    """The scripts for an engine that holds so much, runs so many requests and prefills so many tokens in a step."""
    draw = random.Random(seed)
    chunks = sorted({min(chunk, chunk_max) for chunk in (*CHUNKS, chunk_max)})
    longest = kv_capacity_tokens // 2
    made = [Scenario(f"prefill {chunk}", _prefill(chunk, chunks, longest)) for chunk in chunks]
    for fill in RAMPS:
        mean = max(int(kv_capacity_tokens * fill) // batch_max, 1)
        made.append(Scenario(f"ramp {batch_max} x {mean}", _ramp(draw, _batches(batch_max), mean, chunks)))
    few = max(batch_max // 8, 2)
    mean = int(kv_capacity_tokens * RAMPS[-1]) // few
    made.append(Scenario(f"ramp {few} x {mean}", _ramp(draw, _batches(few), mean, chunks)))
    for fill in (*WALKS, *HELD_OUT):
        mean = max(int(kv_capacity_tokens * fill) // batch_max, 1)
        walk = _walk(draw, batch_max, mean, chunks)
        made.append(Scenario(f"walk {batch_max} x {mean}", walk, held_out=fill in HELD_OUT))
    return made


def _prefill(chunk: int, chunks: Sequence[int], longest: int) -> tuple[Action, ...]:
    """Chunks of one size behind growing contexts, between which the longest chunk goes ahead."""
    ahead = chunks[-1]
    rounds = max(min(4, longest // (ahead + _CHUNKS_IN_A_ROW * chunk)), 1)
    prompt = rounds * (ahead + _CHUNKS_IN_A_ROW * chunk)
    actions: list[Action] = [Submit((min(prompt, longest),))]
    for _ in range(rounds):
        actions += [Run(chunk, _CHUNKS_IN_A_ROW), Run(ahead, 1)]
    return tuple(actions)


def _batches(batch_max: int) -> list[int]:
    """Every size up to 32, then steps of a sixteenth."""
    sizes = [1]
    while sizes[-1] < batch_max:
        sizes.append(min(sizes[-1] + max(sizes[-1] // 16, 1), batch_max))
    return sizes


def _chunk(draw: random.Random, chunks: Sequence[int], prompts: Sequence[int]) -> int:
    """Return a size for which the prompts are a few steps: requests that decode meanwhile grow by a token in each."""
    return draw.choice([chunk for chunk in chunks if chunk * _STEPS_A_SUBMIT >= sum(prompts)] or [chunks[-1]])


def _lengths(draw: random.Random, count: int, mean: int) -> tuple[int, ...]:
    """Log-normal, cut off where few would not fit."""
    drawn = [draw.lognormvariate(-SPREAD * SPREAD / 2, SPREAD) for _ in range(count)]
    return tuple(max(round(mean * min(length, _LONGEST)), 1) for length in drawn)


def _ramp(draw: random.Random, batches: Sequence[int], mean: int, chunks: Sequence[int]) -> tuple[Action, ...]:
    actions: list[Action] = []
    running = 0
    for batch in batches:
        prompts = _lengths(draw, batch - running, mean)
        actions += [Submit(prompts), Run(_chunk(draw, chunks, prompts)), Run(chunks[-1], DECODE_STEPS)]
        running = batch
    return tuple(actions)


def _walk(draw: random.Random, batch_max: int, mean: int, chunks: Sequence[int]) -> tuple[Action, ...]:
    """Up and down, with a batch of any size at any time."""
    actions: list[Action] = []
    running = 0
    for step in range(_WALK_LENGTH):
        target = draw.randint(1, batch_max) if step % 4 else 0
        if target > running:
            prompts = _lengths(draw, target - running, mean)
            actions += [Submit(prompts), Run(_chunk(draw, chunks, prompts))]
        elif target < running:
            actions.append(Drop(running - target))
        if target:
            actions.append(Run(chunks[-1], DECODE_STEPS))
        running = target
    return tuple(actions)
