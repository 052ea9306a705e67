"""What the charge rules for shared prefixes cost, beside the default, in one run.

    python benchmarks/sharing.py

100 clients send 3,000 toolbench-like requests (1,500 tools, whose instructions of 1,560 tokens clients share) to one
worker that holds 400,000 tokens.  Only the policy's calls are timed, in processor time: every `decide` and every
`observe`.  Rules take turns, five rounds; printed are the medians a request, and their ratio to `first-toucher`.
"""

import statistics
import time
from itertools import count
from typing import get_args

import numpy as np

from fairsched.model.events import Admitted
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState, transitions
from fairsched.policies.catalog import DLPM
from fairsched.policies.gates import DeficitGate, Sharing

CLIENTS, REQUESTS, ROUNDS = 100, 3_000, 5
TOOLS, SHARED_TOKENS, OWN_TOKENS = 1_500, 1_560, 280


def requests() -> list[Request]:
    """Each with the instructions of a tool, drawn as often as Zipf's law has it, and tokens of its own."""
    rng = np.random.default_rng(0)
    tools = rng.zipf(1.1, REQUESTS) % TOOLS
    made = []
    for i, tool in enumerate(tools.tolist()):
        own = np.arange(OWN_TOKENS) + (i + 1) * 10_000_000_000
        keys = np.concatenate([np.arange(SHARED_TOKENS) + (tool + 1) * 1_000_000, own])
        made.append(Request(i, int(rng.integers(CLIENTS)), 0, Prompt.from_keys(keys), 8))
    return made


def policy_us(policy: DLPM, sent: list[Request]) -> float:
    """Microseconds of the policy's calls a request, over the whole run."""
    state, worker = policy.init(), WorkerState(0, 400_000)
    spent, waiting = 0, iter(sent)
    for step in count():
        happened = []
        for request in [request for request, _ in zip(waiting, range(4), strict=False)]:
            worker, arrived = transitions.arrive(worker, request, 8, step)
            happened += arrived
        begun = time.thread_time_ns()
        for event in happened:
            state = policy.observe(state, event)
        plan, state = policy.decide(state, worker.view(step))
        spent += time.thread_time_ns() - begun
        worker, done = transitions.step(worker, plan, step)
        begun = time.thread_time_ns()
        for event in done:
            if not isinstance(event, Admitted):
                state = policy.observe(state, event)
        spent += time.thread_time_ns() - begun
        if not worker.queue and not worker.running and step > REQUESTS:
            return spent / 1e3 / len(sent)
    raise AssertionError


def main() -> None:
    """Print a line a rule."""
    sent = requests()
    samples: dict[Sharing, list[float]] = {rule: [] for rule in get_args(Sharing)}
    for _ in range(ROUNDS):
        for rule, found in samples.items():
            found.append(policy_us(DLPM(gate=DeficitGate(sharing=rule)), sent))
    default = samples["first-toucher"]
    for rule, found in samples.items():
        ratio = statistics.median([us / base for us, base in zip(found, default, strict=True)])
        print(f"{rule:<16}{statistics.median(found):>8.1f} us a request{ratio:>8.2f} times first-toucher")


if __name__ == "__main__":
    main()
