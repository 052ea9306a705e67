"""The front for many threads: each caller reads its own tokens, and the end is clean whatever happens."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fairsched.engines.serving import Engine
from fairsched.engines.serving.thread import EngineStoppedError, ServingThread
from fairsched.policies.catalog import FCFS, VTC
from tests.support.adapters.loops import in_loop
from tests.support.engines.fake_executor import VOCABULARY, FakeExecutor, GatedExecutor, answer_of


def front(executor: FakeExecutor | None = None, **options: Any) -> ServingThread[Engine]:
    """A front of an engine of four thousand tokens."""
    return ServingThread(Engine(VTC(), executor or FakeExecutor(), kv_capacity_tokens=4000, fallback=FCFS(), **options))


def test_many_threads_read_their_own_tokens() -> None:
    """Twenty callers at once, each streams what its prompt alone yields."""
    with front() as serving, ThreadPoolExecutor(20) as pool:

        def caller(i: int) -> None:
            prompt = [i % 7] * (1 + i)
            stream = serving.ask(f"client-{i % 3}", prompt, 5 + i)
            assert list(stream) == answer_of(prompt, 5 + i)
            assert stream.answer is not None
            assert stream.answer.outcome == "finished"
            assert list(stream) == []

        for done in [pool.submit(caller, i) for i in range(20)]:
            done.result()


@in_loop
async def test_coroutines_read_their_own_tokens() -> None:
    """Ten coroutines at once on one loop."""

    async def caller(serving: ServingThread[Engine], i: int) -> None:
        prompt = [i, 1, 2]
        stream = await serving.ask_async("a", prompt, 50)
        assert [token async for token in stream] == answer_of(prompt, 50)
        assert stream.answer is not None
        assert stream.answer.outcome == "finished"
        assert [token async for token in stream] == []
        with pytest.raises(ValueError, match="tokens are 0 to 96"):
            await serving.ask_async("a", [VOCABULARY], 5)

    with front() as serving:
        await asyncio.gather(*(caller(serving, i) for i in range(10)))


class SlowToTake(FakeExecutor):
    """Takes a request on when a test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.let = threading.Event(), threading.Event()

    def submit(self, *request: Any) -> None:
        self.asked.set()
        self.let.wait()
        super().submit(*request)


@in_loop
async def test_a_coroutine_that_is_cancelled_while_it_asks_leaves_no_request() -> None:
    """The engine is just taking it on: it is cancelled before a step is computed for it."""
    executor = SlowToTake()
    with front(executor) as serving:
        asking = asyncio.ensure_future(serving.ask_async("a", [1], 50))
        await asyncio.to_thread(executor.asked.wait)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        executor.let.set()
    assert (executor.steps, executor.contexts) == (0, {})


def test_tokens_come_while_the_request_runs() -> None:
    """A token can be read after the step that made it, and a caller who gives up ends after the step under way."""
    executor = GatedExecutor()
    serving = front(executor)
    stream = serving.ask("a", [1, 2, 3], 50)
    for token in answer_of([1, 2, 3], 3):
        executor.let.release()
        assert next(stream) == token
    stream.cancel()
    executor.let.release()
    answer = stream.result()
    assert answer.outcome == "cancelled"
    assert answer.tokens in (answer_of([1, 2, 3], 3), answer_of([1, 2, 3], 4))
    serving.close()


def test_bad_requests_and_calls_raise_in_their_thread() -> None:
    """An error of a call is its caller's, and the engine serves on."""
    with front() as serving:
        with pytest.raises(ValueError, match="tokens are 0 to 96"):
            serving.ask("a", [VOCABULARY], 5)
        with pytest.raises(ValueError, match="weight"):
            serving.configure_client("a", 0)
        with pytest.raises(ZeroDivisionError):
            serving.call(lambda engine: 1 // 0)
        rejected = serving.ask("a", [1] * 5000, 5).result()
        assert rejected.outcome == "rejected"
        assert serving.ask("a", [1], 5).result().tokens == answer_of([1], 5)
        assert serving.call(lambda engine: engine.next_id) == 2


def test_closing_drains_or_cancels() -> None:
    """A context lets requests finish; closing without that cancels them; afterwards nothing is taken on."""
    with front() as serving:
        stream = serving.ask("a", [1, 2], 300)
    assert stream.result().outcome == "finished"
    executor = GatedExecutor()
    serving = front(executor)
    stream = serving.ask("a", [1, 2], 300)
    executor.let.release(2)
    serving.close(drain=False)
    assert stream.result().outcome == "cancelled"
    assert executor.closed
    with pytest.raises(EngineStoppedError):
        serving.ask("a", [1], 1)
    serving.close()


def test_an_engine_that_dies_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the loop itself fail, whoever reads is told, and whoever comes is told too."""
    executor = GatedExecutor()
    engine = Engine(VTC(), executor, kv_capacity_tokens=4000)
    serving = ServingThread(engine)
    stream = serving.ask("a", [1, 2], 300)

    def fails() -> bool:
        raise RuntimeError("a bug in the loop")

    monkeypatch.setattr(engine, "step", fails)
    executor.let.release()
    with pytest.raises(EngineStoppedError):
        stream.result()
    with pytest.raises(EngineStoppedError):
        serving.ask("a", [1], 1)
    serving.close()
