"""An executor without a model, for tests: each token is a fixed function of all tokens before it, and every call must
fit what was told before, so that a loop which follows an order of its own is found out."""

import threading
from collections.abc import Sequence

from fairsched.engines.serving import Sampling
from fairsched.engines.serving.state import packed, unpacked
from fairsched.model import events as ev
from fairsched.model.decision import StepPlan

VOCABULARY = 97


def next_token(context: Sequence[int]) -> int:
    """The token after a context."""
    value = len(context)
    for token in context:
        value = (31 * value + token + 7) % 1_000_003
    return value % VOCABULARY


def answer_of(prompt_ids: Sequence[int], output_tokens: int) -> list[int]:
    """The first output tokens after a prompt."""
    context = list(prompt_ids)
    for _ in range(output_tokens):
        context.append(next_token(context))
    return context[len(prompt_ids) :]


class FakeExecutor:
    """Keeps every request's context and how much of it is computed; raises `AssertionError` for what cannot be."""

    def __init__(self) -> None:
        self.contexts: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.decoding: set[int] = set()
        self.paused: set[int] = set()
        self.came: dict[int, int] = {}
        self.closed = False
        self.steps = 0

    def submit(
        self, request_id: int, prompt_ids: Sequence[int], sampling: Sampling, generated: Sequence[int] = ()
    ) -> None:
        if any(not 0 <= token < VOCABULARY for token in prompt_ids):
            raise ValueError(f"request {request_id}: tokens are 0 to {VOCABULARY - 1}")
        assert request_id not in self.contexts
        self.contexts[request_id] = [*prompt_ids, *generated]

    def follow(self, events: Sequence[ev.Event]) -> None:
        for event in events:
            match event:
                case ev.Admitted(request_id=i):
                    assert i not in self.computed
                    ready = len(self.contexts[i]) - event.extend_tokens
                    assert ready <= max(event.cached_prefix_tokens, self.came.pop(i, 0))
                    self.computed[i] = ready
                case ev.Settled(request_id=i):
                    self.computed[i] = len(self.contexts[i]) - event.extend_tokens
                case ev.Paused(request_id=i):
                    self.decoding.remove(i)
                    self.paused.add(i)
                case ev.Resumed(request_id=i):
                    self.paused.remove(i)
                    self.decoding.add(i)
                case ev.Preempted(request_id=i):
                    self.paused.discard(i)
                    del self.computed[i]
                    self.decoding.discard(i)
                case (
                    ev.Finished(request_id=i)
                    | ev.Cancelled(request_id=i)
                    | ev.Rejected(request_id=i)
                    | ev.Migrated(request_id=i)
                ):
                    self.came.pop(i, None)
                    del self.contexts[i]
                    self.computed.pop(i, None)
                    self.decoding.discard(i)
                    self.paused.discard(i)
                case _:
                    pass

    def export_kv(self, request_id: int) -> bytes:
        """All tokens whose KV is here, four bytes each: what came along and what was computed."""
        tokens = self.computed.get(request_id, self.came.get(request_id, 0))
        return packed(self.contexts[request_id][:tokens])

    def import_kv(self, request_id: int, kv: bytes) -> None:
        tokens = unpacked(kv)
        if list(tokens) != self.contexts[request_id][: len(tokens)]:
            raise ValueError(f"request {request_id}: the KV is that of other tokens")
        self.came[request_id] = len(tokens)

    def execute(self, plan: StepPlan) -> dict[int, int]:
        assert not self.closed
        self.steps += 1
        producing = sorted(self.decoding) if plan.decode else []
        for request_id, tokens in plan.chunks:
            assert request_id not in self.decoding | self.paused
            self.computed[request_id] += tokens
            assert self.computed[request_id] <= len(self.contexts[request_id])
            if self.computed[request_id] == len(self.contexts[request_id]):
                producing.append(request_id)
        produced = {}
        for request_id in producing:
            context = self.contexts[request_id]
            if request_id in self.decoding:
                self.computed[request_id] += 1
            assert self.computed[request_id] == len(context)
            self.decoding.add(request_id)
            produced[request_id] = next_token(context)
            context.append(produced[request_id])
        return produced

    def close(self) -> None:
        self.closed = True


class GatedExecutor(FakeExecutor):
    """Computes a step each time that a test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.let = threading.Semaphore(0)

    def lets(self) -> bool:
        """Let it compute another step."""
        self.let.release()
        return True

    def execute(self, plan: StepPlan) -> dict[int, int]:
        self.let.acquire()
        return super().execute(plan)


class ExecutorDiedError(RuntimeError):
    """What a failing executor raises."""


class FailingExecutor(FakeExecutor):
    """Fails at its call number `after` of one kind, and at every call of that kind from then on."""

    def __init__(self, after: int, where: str = "execute") -> None:
        super().__init__()
        self.after = after
        self.where = where
        self.calls = 0

    def _called(self, where: str) -> None:
        self.calls += where == self.where
        if self.calls >= self.after:
            raise ExecutorDiedError("out of memory")

    def submit(
        self, request_id: int, prompt_ids: Sequence[int], sampling: Sampling, generated: Sequence[int] = ()
    ) -> None:
        self._called("submit")
        super().submit(request_id, prompt_ids, sampling, generated)

    def follow(self, events: Sequence[ev.Event]) -> None:
        self._called("follow")
        super().follow(events)

    def execute(self, plan: StepPlan) -> dict[int, int]:
        self._called("execute")
        produced = super().execute(plan)
        if self.where == "tokens" and self.steps >= self.after:
            produced.popitem() if produced else produced.update({-1: 0})
        return produced

    def close(self) -> None:
        self._called("close")
        super().close()
