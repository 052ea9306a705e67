"""The front of an engine or a cluster for many threads: one serves, and others ask, read tokens as they come, and give
up.

Everything that reaches the engine is a call made in its thread between two steps, in the order in which it was asked
for.  While nothing waits and nothing runs, the thread sleeps.
"""

import asyncio
import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from fairsched.engines.serving.answers import Answer
from fairsched.engines.serving.calls import settle
from fairsched.engines.serving.cluster import LiveCluster
from fairsched.engines.serving.executor import Sampling
from fairsched.engines.serving.loop import Engine

S = TypeVar("S", bound=Engine | LiveCluster)
T = TypeVar("T")
_log = logging.getLogger("fairsched.engine")


class EngineStoppedError(RuntimeError):
    """The engine's thread has ended, and serves no request any more."""


Item = int | Answer | EngineStoppedError
"""What a stream gets: tokens, and at last the whole answer, or why there is none."""


class _Tokens:
    """The tokens of a request as they come; `answer` is the whole of it once they are over."""

    def __init__(self, front: "ServingThread[Any]") -> None:
        self.request_id = -1
        self.answer: Answer | None = None
        self._front = front

    @abstractmethod
    def put(self, item: Item) -> None:
        """Take what comes next; called in the engine's thread."""

    def _token(self, item: Item) -> int | None:
        """Return the token; None at the end."""
        if isinstance(item, EngineStoppedError):
            self.put(item)
            raise item
        if isinstance(item, Answer):
            self.answer = item
            return None
        return item

    def cancel(self) -> None:
        """Give up.  What was produced by then can still be read."""
        self._front.later(lambda engine: engine.cancel(self.request_id))


class Stream(_Tokens):
    """The tokens of a request, to be iterated over in any one thread; `answer` is the whole of it once they are over.

    Raises `EngineStoppedError` if the engine ended before the request.
    """

    def __init__(self, front: "ServingThread[Any]") -> None:
        super().__init__(front)
        self._items: SimpleQueue[Item] = SimpleQueue()

    def put(self, item: Item) -> None:
        self._items.put(item)

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> int:
        token = None if self.answer is not None else self._token(self._items.get())
        if token is None:
            raise StopIteration
        return token

    def result(self) -> Answer:
        """Wait for the end; the answer holds all tokens."""
        for _ in self:
            pass
        assert self.answer is not None
        return self.answer


class AsyncStream(_Tokens):
    """The tokens of a request, to be iterated over by `async for`; otherwise as `Stream`."""

    def __init__(self, front: "ServingThread[Any]") -> None:
        super().__init__(front)
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item] = asyncio.Queue()

    def put(self, item: Item) -> None:
        """Put it, or raise if the caller's loop is gone, and then the request is cancelled."""
        self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    def __aiter__(self) -> "AsyncStream":
        return self

    async def __anext__(self) -> int:
        token = None if self.answer is not None else self._token(await self._items.get())
        if token is None:
            raise StopAsyncIteration
        return token

    async def several(self) -> list[int]:
        """Return the tokens that are there, and wait for one if there are none; empty at the end."""
        tokens: list[int] = []
        async for token in self:
            tokens.append(token)
            if self._items.empty():
                break
        return tokens


class ServingThread(Generic[S]):
    """Serves an engine in a thread of its own, from now until `close`; a context manager, which lets requests finish.

    The engine belongs to the thread: use `call` for whatever is not here (`replace_policy`, a snapshot).
    """

    def __init__(self, engine: S) -> None:
        self._engine = engine
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._streams: set[_Tokens] = set()
        self._lock = threading.Lock()
        self._closing = False
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="fairsched-engine", daemon=True)
        self._thread.start()

    # --- callers ----------------------------------------------------------------------------------------------------

    def ask(
        self, client: str, prompt_ids: Sequence[int], max_output_tokens: int, *, sampling: Sampling | None = None
    ) -> Stream:
        """Submit a prompt; returns once the engine has taken it on.  Raises `ValueError` as `Engine.submit` does."""
        stream = Stream(self)
        ask = partial(self._engine.ask, client, prompt_ids, max_output_tokens, sampling=sampling)
        self.later(lambda _: self._submit(stream, ask)).result()
        return stream

    async def ask_async(
        self, client: str, prompt_ids: Sequence[int], max_output_tokens: int, *, sampling: Sampling | None = None
    ) -> AsyncStream:
        """Submit a prompt from a coroutine."""
        stream = AsyncStream(self)
        ask = partial(self._engine.ask, client, prompt_ids, max_output_tokens, sampling=sampling)
        try:
            await asyncio.wrap_future(self.later(lambda _: self._submit(stream, ask)))
        except asyncio.CancelledError:
            # The engine may be taking it on just now.
            stream.cancel()
            raise
        return stream

    def _submit(self, stream: _Tokens, ask: Callable[..., Answer]) -> None:
        def end(answer: Answer) -> None:
            self._streams.discard(stream)
            stream.put(answer)

        self._streams.add(stream)
        try:
            stream.request_id = ask(on_token=stream.put, on_end=end).request_id
        except ValueError:
            self._streams.discard(stream)
            raise

    @property
    def stopped(self) -> bool:
        return self._stopped

    def configure_client(self, client: str, weight: int) -> None:
        self.call(lambda engine: engine.configure_client(client, weight))

    def later(self, call: Callable[[S], T]) -> "Future[T]":
        """Have something done with the engine between two steps.  Raises `EngineStoppedError` after the end."""
        future: Future[T] = Future()
        with self._lock:
            if self._stopped:
                raise EngineStoppedError("the engine has stopped")
            self._calls.put(lambda: settle(future, lambda: call(self._engine)))
        return future

    def call(self, call: Callable[[S], T]) -> T:
        """Have something done with the engine between two steps, and wait for what comes of it."""
        return self.later(call).result()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while self._run_calls():
                self._engine.step()
        except Exception:
            _log.exception("the engine's thread died")
        finally:
            with self._lock:
                self._stopped = True
            while not self._calls.empty():
                self._calls.get()()
            error = EngineStoppedError("the engine has stopped")
            for stream in list(self._streams):
                stream.put(error)

    def _run_calls(self) -> bool:
        """Make the calls that wait, and wait for one while there is nothing to serve; False: it is over."""
        while not self._calls.empty() or not self._engine.answers:
            if self._closing and self._calls.empty():
                return False
            self._calls.get()()
        return True

    def close(self, *, drain: bool = True) -> None:
        """End the thread: after everything that was asked for so far, or, without `drain`, after this step.

        What is open then is cancelled.  The engine and its executor are closed.
        """

        def closing(engine: S) -> None:
            self._closing = True
            if not drain:
                engine.close()

        try:
            self.call(closing)
        except EngineStoppedError:
            return
        self._thread.join()
        self._engine.close()

    def __enter__(self) -> "ServingThread[S]":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close(drain=error is None)
