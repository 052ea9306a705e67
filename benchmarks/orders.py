"""What a decision costs with 10,000 waiting, for orders that rank all requests anew.

    python benchmarks/orders.py [POLICY ...]

Prints milliseconds of processor time (medians of 15): a decision in which no request can enter, the same asked again on
the same state, one with admissions, and `observe` of an arrival.  The requests are of 100 clients; each prompt begins
with one of 200 documents of 512 tokens, which are cached with three questions each, and has 80 tokens of its own.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from fairsched.model.events import Cached
from fairsched.model.request import Prompt, Request
from fairsched.model.view import WorkerView
from fairsched.model.worker import WorkerState, transitions
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import dfs_weight
from fairsched.policies.registry import local_policy

DEFAULT = (
    *("lpm", "larry", "larry+deficit", "ageing", "ageing+deficit", "edf", "edf+deficit", "dfs-weight"),
    *("dfs-weight+deficit", "s3", "pia"),
)
WAITING, CLIENTS, DOCUMENTS, BLOCK_TOKENS = 10_000, 100, 200, 16
CAPACITY_TOKENS = 2_000_000


def _ms(run: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    times = []
    for _ in range(15):
        before()
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times)


def _keys(rng: np.random.Generator, count: int) -> Any:
    return rng.integers(0, 2**40, count)


def warm(policy: ComposedPolicy) -> tuple[WorkerView, Any, list[float]]:
    """A worker's view and the policy's state with all of them waiting, and how long each arrival took."""
    rng = np.random.default_rng(0)
    documents = [_keys(rng, 32) for _ in range(DOCUMENTS)]
    worker, state = WorkerState(0, CAPACITY_TOKENS), policy.init()
    cache = worker.cache
    for number in range(3 * DOCUMENTS):
        keys = np.concatenate([documents[number % DOCUMENTS], _keys(rng, 4)])
        prompt = Prompt.from_keys(keys, block_tokens=BLOCK_TOKENS)
        cache = cache.complete(WAITING + number, prompt, prompt.blocks, 0)[0].release(WAITING + number)
        state = policy.observe(state, Cached(0, 0, WAITING + number, prompt, prompt.blocks))
    # Both have the same cache, in which nothing is pinned.
    worker, state = msgspec.structs.replace(worker, cache=cache), msgspec.structs.replace(state, cache=cache)
    took = []
    for i in range(WAITING):
        keys = np.concatenate([documents[int(rng.integers(DOCUMENTS))], _keys(rng, 5)])
        prompt = Prompt.from_keys(keys, block_tokens=BLOCK_TOKENS)
        predicted, priority = int(rng.integers(1, 200)), int(rng.integers(5))
        request = Request(i, i % CLIENTS, i * 10**6, prompt, 200, predicted_output_tokens=predicted, priority=priority)
        worker, events = transitions.arrive(worker, request, 100, i * 10**6)
        start = time.process_time()
        for event in events:
            state = policy.observe(state, event)
        took.append(time.process_time() - start)
    return worker.view(10**11), state, took


def main(names: tuple[str, ...]) -> None:
    """Print a line a policy."""
    for name in names:
        policy = local_policy(name)
        view, state, took = warm(policy)
        full = msgspec.structs.replace(view, kv_free_tokens=1)
        none = _ms(lambda: policy.decide(state, full), dfs_weight._walked.cache_clear)  # noqa: B023
        again = _ms(lambda: policy.decide(state, full))  # noqa: B023
        some = _ms(lambda: policy.decide(state, view), dfs_weight._walked.cache_clear)  # noqa: B023
        admitted = len(policy.decide(state, view)[0].admit)
        print(
            f"{name:<20} none {none:6.2f} ms, again {again:5.2f} ms, {admitted:3} admitted {some:6.2f} ms, "
            f"arrival {1e3 * statistics.median(took[-500:]):.3f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or DEFAULT)
