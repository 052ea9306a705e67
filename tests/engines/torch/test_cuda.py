"""The torch worker on CUDA computes what it computes on a CPU; each test runs on both, where there is a CUDA device.

On the CPU the kernel and the capture have stand-ins, so that the tests themselves are tested everywhere.
"""

from pathlib import Path

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from fairsched.engines.serving import BlockKeys, Engine, Sampling
from fairsched.engines.torch import PAGE_TOKENS, SIZES, Llama, TorchExecutor, TorchSpec
from fairsched.engines.torch import attention as torch_attention
from fairsched.engines.torch import cuda as torch_cuda
from fairsched.engines.torch import executor as torch_executor
from fairsched.engines.torch.checkpoint import load_checkpoint, save_checkpoint
from fairsched.model.decision import StepPlan
from fairsched.model.events import Admitted, Arrived
from fairsched.model.request import Prompt, Request
from fairsched.policies.registry import local_policy, with_parameters
from tests.support.torch.kernel import slow_varlen, stand_in
from tests.support.torch.plain import plain_logits, ties_of
from tests.support.torch.scenarios import MODEL, World, executor_for, served, worlds

PAGE = PAGE_TOKENS["cuda"]
NEAR = 0.25
"""What bfloat16 may lose of a logit (their deviation is about 1)."""

EACH_DEVICE = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])


@pytest.fixture
def in_place(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel and graphs of that device; skips where this torch has none for CUDA."""
    if device == "cpu":
        stand_in(monkeypatch)
    elif not torch_cuda.reads_pages(torch.device(device), torch.bfloat16, PAGE):
        pytest.skip(f"torch {torch.__version__} has no attention through block tables")


def near_plain(model: Llama, ids: list[int], got: list[int], near: float = NEAR) -> None:
    """Each token is, in a plain pass, within `near` of the best logit."""
    logits = plain_logits(model, [*ids, *got])[len(ids) - 1 : -1].float().cpu()
    for row, token in zip(logits, got, strict=True):
        assert row[token] >= row.max() - near


def begun(executor: TorchExecutor, prompts: list[list[int]], output_tokens: int) -> None:
    """The requests are in the batch, and nothing of them is computed."""
    for i, ids in enumerate(prompts):
        executor.submit(i, ids, Sampling())
        request = Request(i, 0, 0, Prompt(len(ids)), output_tokens)
        executor.follow([Arrived(0, 0, request), Admitted(0, 0, i, 0, len(ids), 0, output_tokens)])


@EACH_DEVICE
@pytest.mark.parametrize("size", ["tiny", "small"])
def test_weights_by_seed_are_the_same_on_every_device(device: str, size: str) -> None:
    """Before they are rounded, random weights are equal bit by bit."""
    here, there = (Llama.random(SIZES[size], 7, device=where) for where in ("cpu", device))
    for (name, mine), (_, other) in zip(here.tensors(), there.tensors(), strict=True):
        assert torch.equal(mine, other.cpu()), name


@EACH_DEVICE
@given(world=worlds())
@settings(max_examples=15)
def test_gathered_copies_give_the_tokens_of_a_plain_pass(device: str, world: World) -> None:
    """In float64, under every policy and random load, each request's tokens are those of a plain pass alone."""
    model = Llama.random(SIZES["tiny"], device=device, dtype=torch.float64)
    drive = served(world, executor_for(world, model))
    for i, call in enumerate(world.calls):
        assert ties_of(model, call.ids, drive.answers[i], call.sampling, i, near=1e-9) == 0


@EACH_DEVICE
@pytest.mark.usefixtures("in_place")
def test_block_tables_and_graphs_stay_near_a_plain_pass(device: str) -> None:
    """In bfloat16, under every policy and random load with a page of 256 tokens, greedy tokens stay near a plain
    pass's: mixed steps go through block tables and decode steps through graphs."""
    model = Llama.random(SIZES["tiny"], device=device, dtype=torch.bfloat16)

    @given(worlds())
    @settings(max_examples=15)
    def check(world: World) -> None:
        calls = tuple(attrs.evolve(call, sampling=Sampling()) for call in world.calls)
        world = attrs.evolve(world, calls=calls, page_tokens=PAGE)
        drive = served(world, executor_for(world, model))
        for i, call in enumerate(world.calls):
            near_plain(model, list(call.ids), drive.answers[i])

    check()


@EACH_DEVICE
@pytest.mark.usefixtures("in_place")
def test_contexts_of_several_pages(device: str) -> None:
    """Prompts of one to four pages, in chunks beside requests that decode over the end of a page, stay near a plain
    pass; what is compared is several tokens of each."""
    model = Llama.random(SIZES["tiny"], device=device, dtype=torch.bfloat16)
    executor = TorchExecutor(model, 8 * PAGE, page_tokens=PAGE, running_max=5)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 256, length).tolist() for length in (PAGE - 2, PAGE, 3 * PAGE + 5, 2 * PAGE - 1)]
    begun(executor, prompts, 8)
    got: list[list[int]] = [[] for _ in prompts]
    plans = [StepPlan(chunks=((0, PAGE - 2), (1, 200))), StepPlan(chunks=((1, PAGE - 200), (2, 700)))]
    plans += [StepPlan(chunks=((2, 3 * PAGE + 5 - 700), (3, 2 * PAGE - 1)))] + [StepPlan()] * 5
    for plan in plans:
        for request, token in executor.execute(plan).items():
            got[request].append(token)
    assert [len(tokens) for tokens in got] == [8, 7, 6, 6]
    for ids, tokens in zip(prompts, got, strict=True):
        near_plain(model, ids, tokens)


@EACH_DEVICE
@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize("size", ["tiny", "small"])
def test_the_kernel_computes_what_it_is_documented_to(device: str, size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens that a batch of every size gets by the kernel are near those of the same model by its definition."""
    model = Llama.random(SIZES[size], device=device, dtype=torch.bfloat16)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, 256, int(rng.integers(1, 2 * PAGE))).tolist() for _ in range(7)]
    # Made before the definition takes the kernel's place, which no graph could capture.
    executors = [TorchExecutor(model, 16 * PAGE, page_tokens=PAGE, running_max=len(prompts)) for _ in range(2)]
    logits = []
    for executor in executors:
        begun(executor, prompts, 2)
        chunks = [(executor.sequences[i].seat, np.array(ids)) for i, ids in enumerate(prompts)]
        batch = executor.seats.batch(np.array([], dtype=np.int64), chunks)
        with torch.inference_mode():
            attend = torch_cuda.varlen(executor.cache, batch, model.dtype)
            ids, positions = (torch_attention.on_device(x, model.device) for x in (batch.ids, batch.positions))
            logits.append(model.forward(ids, positions, attend).float().cpu())
        monkeypatch.setattr(torch_cuda, "varlen_attn", slow_varlen)
    assert (logits[0] - logits[1]).abs().max() < NEAR


@EACH_DEVICE
def test_noise_draws_the_same_token_on_every_device(device: str) -> None:
    """From the same logits in float64 the same tokens are drawn, whatever the temperature and the cut."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(32, 500, generator=generator, dtype=torch.float64)
    temperature = np.linspace(0, 2, 32, dtype=np.float32)
    top_k = np.array([0, 1, 5, 1000] * 8)
    keys = np.array([torch_executor.sampling_key(seed, seed + 1) for seed in range(32)], dtype=np.uint64)
    drawn = [
        torch_executor.sample(logits.to(where), temperature, top_k, keys, np.arange(32)).tolist()
        for where in ("cpu", device)
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != logits.argmax(dim=-1).tolist()


@EACH_DEVICE
def test_keys_and_values_move(device: str) -> None:
    """A request whose KV came from a worker on a CPU goes on as if it had stayed there."""
    ids, answers = [5, 9, 200, 17, 3], []
    source, other = MODEL, Llama.random(SIZES["tiny"], device=device)
    first = TorchExecutor(source, 64, page_tokens=4, running_max=2)
    begun(first, [ids], 8)
    tokens = [first.execute(StepPlan(chunks=((0, 5),)))[0], first.execute(StepPlan())[0]]
    kv = first.export_kv(0)
    answers.append([first.execute(StepPlan())[0] for _ in range(4)])
    second = TorchExecutor(other, 64, page_tokens=4, running_max=2)
    second.submit(0, ids, Sampling(), tokens)
    second.import_kv(0, kv)
    request = Request(0, 0, 0, Prompt(5), 8)
    second.follow([Arrived(0, 0, request), Admitted(0, 0, 0, 0, 1, 0, 6)])
    answers.append([second.execute(StepPlan(chunks=((0, 1),)))[0], *(second.execute(StepPlan())[0] for _ in range(3))])
    assert answers[0] == answers[1]


@EACH_DEVICE
def test_a_checkpoint_is_read_to_the_device(device: str, tmp_path: Path) -> None:
    """What was written from a device is read back to it, bit by bit."""
    model = Llama.random(SIZES["tiny"], device=device)
    save_checkpoint(model, tmp_path)
    again = load_checkpoint(tmp_path, device=device)
    assert again.device.type == device
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(model.tensors(), again.tensors(), strict=True))


@EACH_DEVICE
def test_an_engine_serves(device: str) -> None:
    """The serving loop with a policy answers every request in full, with the device's own numbers and page."""
    spec = TorchSpec("tiny", device, page_tokens=PAGE_TOKENS[device], batch_max=4)
    model = spec.load()
    policy = with_parameters(local_policy("dlpm"), {"max_running": "4"})
    keys = BlockKeys(PAGE_TOKENS[device])
    engine = Engine(policy, spec.executor(model, 2048), kv_capacity_tokens=2048, block_keys=keys)
    answers = [engine.ask(f"client {i % 3}", [i + 1] * (10 * i + 1), 6) for i in range(9)]
    while engine.step():
        pass
    assert [(answer.outcome, len(answer.tokens)) for answer in answers] == [("finished", 6)] * 9
    assert not engine.executor_failures
    engine.close()
