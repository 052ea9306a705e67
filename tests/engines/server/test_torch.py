"""The server over the torch worker: its tokens are those of the engine called directly, and come again by seed."""

import asyncio
from pathlib import Path

import torch

from fairsched.engines.server import Access, ApiServer, Backend, CallReader, ExecutorMaker
from fairsched.engines.server.text import ByteTokenizer
from fairsched.engines.serving import Engine, Sampling
from fairsched.engines.torch import BABBLE, TorchExecutor, TorchSpec
from fairsched.engines.torch.model import BABBLE_CONFIG, BABBLE_END, BABBLE_TOKENS, babbling
from fairsched.policies.catalog import DLPM, FCFS
from tests.support.adapters.loops import in_loop
from tests.support.engines.serving import served

CAPACITY = 4096
PROMPTS = ("Hello", "What is fair?", "one two three four five six seven eight nine ten", "x")
STOPS = frozenset({BABBLE_END})


def direct(prompt: str, max_tokens: int, sampling: Sampling) -> list[int]:
    """The tokens of the engine for one prompt alone."""
    engine = Engine(FCFS(), TorchExecutor(babbling(), CAPACITY), kv_capacity_tokens=CAPACITY)
    answer = engine.ask("a", list(prompt.encode()), max_tokens, sampling=sampling)
    engine.run_until_idle()
    return answer.tokens


def babbler(workers: int = 1) -> ApiServer:
    """The built-in model behind the API."""
    spec = TorchSpec(BABBLE, batch_max=8)
    backend = Backend(
        *(DLPM(), ExecutorMaker(spec, CAPACITY)),
        kv_capacity_tokens=CAPACITY,
        context_tokens=CAPACITY,
        workers=workers,
    )
    reader = CallReader(
        BABBLE, ByteTokenizer(), BABBLE_CONFIG.vocab_size, BABBLE_CONFIG.context_tokens_max, BABBLE_CONFIG.stop_tokens
    )
    return ApiServer(backend, reader, Access())


@in_loop
async def test_tokens_are_those_of_the_engine_called_directly() -> None:
    """All prompts at once, streamed or not, most likely tokens or drawn by a seed: each says what it says alone."""
    async with served(babbler()) as caller:
        for fields, sampling in (
            ({"temperature": 0}, [Sampling(stop_tokens=STOPS)]),
            ({"seed": 7}, [Sampling(1.0, seed=7, stop_tokens=STOPS, variant=0)]),
            ({"seed": -3, "n": 2, "top_k": 5}, [Sampling(1.0, 5, -3, STOPS, i) for i in range(2)]),
            ({"seed": 7, "ignore_eos": True}, [Sampling(1.0, seed=7, variant=0)]),
        ):
            answers = await asyncio.gather(*(caller.complete(prompt, max_tokens=150, **fields) for prompt in PROMPTS))
            for prompt, answer in zip(PROMPTS, answers, strict=True):
                expected = [direct(prompt, 150, each) for each in sampling]
                assert answer["usage"]["completion_tokens"] == sum(map(len, expected))
                for choice, tokens in zip(answer["choices"], expected, strict=True):
                    ended = tokens[-1] == BABBLE_END and "ignore_eos" not in fields
                    said = bytes(tokens[:-1] if ended else [min(token, 255) for token in tokens])
                    assert choice["text"] == said.decode(errors="replace")
                    assert choice["finish_reason"] == ("stop" if ended else "length")
            *chunks, _ = await caller.chunks(
                "/v1/completions",
                {"prompt": PROMPTS[1], "max_tokens": 150, "stream": True, **fields}
                | {"stream_options": {"include_usage": True}},
            )
            texts = [""] * len(sampling)
            for chunk in chunks:
                texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
            assert texts == [choice["text"] for choice in answers[1]["choices"]]


@in_loop
async def test_a_seed_repeats_an_answer_and_none_does_not() -> None:
    """Two calls with one seed say the same, and so do its outputs one by one; without a seed they differ."""
    async with served(babbler()) as caller:
        one, two = [await caller.complete("Hello", max_tokens=60, seed=5, n=2) for _ in range(2)]
        assert one["choices"] == two["choices"]
        first, second = (choice["text"] for choice in one["choices"])
        assert first != second
        texts = {(await caller.complete("Hello", max_tokens=60))["choices"][0]["text"] for _ in range(3)}
        assert len(texts) == 3


def test_the_built_in_model_says_letters_and_comes_to_an_end() -> None:
    """At temperature 1 every byte is a common one, outputs end by themselves, and the prompt matters."""
    engine = Engine(FCFS(), TorchExecutor(babbling(), 1 << 16), kv_capacity_tokens=1 << 16)
    answers = [
        engine.ask("a", list(f"prompt {i}".encode()), 1000, sampling=Sampling(1.0, stop_tokens=STOPS))
        for i in range(24)
    ]
    engine.run_until_idle()
    said = [bytes(token for token in answer.tokens if token != BABBLE_END).decode("ascii") for answer in answers]
    assert len(set(said)) == 24
    assert all(character.islower() or character in " .,\n" for text in said for character in text)
    lengths = sorted(len(answer.tokens) for answer in answers)
    assert 8 <= lengths[12] <= 8 * BABBLE_TOKENS
    assert lengths[-1] < 1000


def test_the_built_in_model_is_the_same_everywhere(tmp_path: Path) -> None:
    """By its seed, in every process; another seed is another model."""
    spec = TorchSpec(BABBLE, seed=3)
    first, second, other = spec.load(), babbling(3), babbling(4)
    for (name, one), (_, two), (_, three) in zip(first.tensors(), second.tensors(), other.tensors(), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three) == name.endswith("norm.weight")
    assert spec.facts["model"] == BABBLE
