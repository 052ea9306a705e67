"""What a request costs at each worker: L of what was sent there, M of what it would evict, P of what is missed of it.

Source: Preble, algorithm 2.  All costs are integer nanoseconds of work, rounded down once in each of L, M and P.
"""

from collections.abc import Sequence
from typing import Self

import attrs
import msgspec

from fairsched.model.decision import WorkerLoad
from fairsched.model.machine import LatencyModel
from fairsched.model.prefix_cache import ROOT, IndexMatch, PrefixIndex, Victim
from fairsched.model.request import Prompt
from fairsched.policies.routers.e2.choice import cheapest
from fairsched.policies.routers.prefix_based import mask_of

# --- prices of work ---------------------------------------------------------------------------------------------------


@attrs.frozen
class Prices:
    """What work costs E2, in integer nanoseconds: the prefill of some tokens, and the decoding of outputs.

    Preble prices work by regressions over profiles of one request at a time.  Here the workers' own latency model
    serves, which is such a regression.  With `decode_batch` = 1 a request decodes alone, as printed, which makes a
    worker of short prompts look busier than it is: a batch shares its steps.  So `E2` charges an output token the share
    of one of 32 requests in a step.

    Coefficients: a prefill of n tokens after x takes constant + token n + attention n (x + n) / 1000 (rounded down),
    an output token of each of b = `decode_batch` requests `step_ns` + b `context_ns` times its context, divided by b.
    """

    prefill_constant_ns: int
    prefill_token_ns: int
    prefill_attention_ps: int
    decode_batch: int
    step_ns: int
    context_ns: int

    @classmethod
    def of(cls, latency: LatencyModel, decode_batch: int) -> "Prices":
        """Return the prices of a worker with this latency model."""
        step_ns = latency.decode_ns(decode_batch, 0)
        context_ns = latency.decode_ns(decode_batch, 1) - step_ns
        prefill = latency.prefill_constant_ns, latency.prefill_token_ns, latency.prefill_attention_ps
        return cls(*prefill, decode_batch, step_ns, context_ns)

    def prefill_ns(self, tokens: int, context_tokens: int) -> int:
        """Return a prefill of `tokens` tokens after `context_tokens`; nothing to compute costs nothing.  O(1)."""
        if not tokens:
            return 0
        attention = self.prefill_attention_ps * tokens * (context_tokens + tokens) // 1000
        return self.prefill_constant_ns + self.prefill_token_ns * tokens + attention

    def decode_ns(self, requests: int, prompt_tokens: int, output_tokens: int, outputs: int) -> int:
        """Decoding `requests` requests with `prompt_tokens` of prompts in all, with outputs as long as the mean of
        `outputs` outputs with `output_tokens` in all.  Rounded down.  O(1)."""
        batch = self.decode_batch
        token_ns = requests * self.step_ns + batch * self.context_ns * prompt_tokens
        return token_ns * output_tokens // (batch * outputs)


# --- costs ----------------------------------------------------------------------------------------------------


class Case(msgspec.Struct, frozen=True, gc=False):
    """A request before the workers that can hold it, which are named by position, in ascending order of ids.

    `loads` has the load L of each, and `light` is the position with the least.  The bits of `much` say by id for which
    decoding is much of its work.  `cached` has workers, as bits by id, with the tokens of the prompt that they need not
    compute and the node where what they hold of it ends, the most first.  The best hold `blocks` blocks, down to
    `node`, of which `most` tokens need not be computed; the workers with so many tokens are the bits of `holders`.  (If
    there are no such tokens, these are 0 and the root.)
    """

    index: PrefixIndex
    prompt: Prompt
    match: IndexMatch
    workers: Sequence[WorkerLoad]
    prices: Prices
    loads: Sequence[int]
    light: int = 0
    much: int = 0
    cached: Sequence[tuple[int, int, int]] = ()
    most: int = 0
    blocks: int = 0
    node: int = ROOT
    holders: int = 0

    @classmethod
    def of(
        cls, index: PrefixIndex, prompt: Prompt, match: IndexMatch, workers: Sequence[WorkerLoad], prices: Prices,
        loads: Sequence[int], light: int, much: int,
    ) -> Self:  # fmt: skip
        """Return the request before these workers.  O(levels of the match), and O(workers) where ids are not
        positions."""
        most, blocks, node, holders, cached = 0, 0, ROOT, 0, []
        known = mask_of(workers)
        if match.levels:
            reusable, size = prompt.reusable_blocks, prompt.block_tokens
            for level in match.levels:
                if here := level.workers & known:
                    # As `cached_tokens`, of which there are fewer in every later level.
                    tokens = min(level.blocks, reusable) * size
                    cached.append((here, tokens, level.node))
                    if tokens and tokens >= most:
                        if not holders:
                            most, blocks, node = tokens, level.blocks, level.node
                        holders |= here
        return cls(
            index, prompt, match, workers, prices, loads, light, much & known, cached, most, blocks, node, holders
        )

    def held(self, i: int) -> tuple[int, int]:
        """Return the tokens that a position has cached of the prompt, and the node where what it holds ends.
        O(levels)."""
        worker = self.workers[i].worker
        for holders, tokens, node in self.cached:
            if holders >> worker & 1:
                return tokens, node
        return 0, ROOT

    def prefill(self, i: int) -> int:
        """P at a position.  O(levels)."""
        cached, _ = self.held(i)
        return self.prices.prefill_ns(self.prompt.tokens - cached, cached)

    def eviction(self, i: int) -> int:
        """M at a position: each part that it would evict, by the share of the window's requests that hit it.

        O(v log v) for v parts.
        """
        index, load = self.index, self.workers[i]
        worker = load.worker
        cached, spared = self.held(i)
        room = load.kv_capacity_tokens - index.held_tokens(worker)
        needed = self.prompt.tokens - cached - (room if room > 0 else 0)
        if needed <= 0:
            return 0
        prefill_ns, total = self.prices.prefill_ns, 0
        for victim in index.victims(worker, needed, (spared,)):
            if hits := self.hits(worker, victim):
                total += prefill_ns(victim.tokens, victim.context_tokens) * hits
        return total // (self.requests(worker) or 1) if total else 0

    def hits(self, worker: int, victim: Victim) -> int:
        """Return the window's requests on the worker through a part that it would evict."""
        return victim.hits

    def requests(self, worker: int) -> int:
        """Return the window's requests among which the worker's evictions are shared out: its own."""
        return self.index.hits(worker)

    def cost(self, i: int) -> int:
        """L + M + P at a position."""
        return self.loads[i] + self.prefill(i) + self.eviction(i)

    def cheapest(self, among: Sequence[int]) -> int:
        """Return which of these positions has the least L + M + P, the first of equals.

        Costs are asked for only where L alone, with the least P of all, is not more than the lightest costs.
        """
        if len(among) == 1:
            return among[0]
        loads, most = self.loads, self.most
        light = self.light if len(among) == len(loads) else min(among, key=loads.__getitem__)
        evictions = {light: self.eviction(light)}
        limit = loads[light] + self.prefill(light) + evictions[light]
        limit -= self.prices.prefill_ns(self.prompt.tokens - most, most)
        may = [i for i in among if loads[i] <= limit]
        if len(may) == 1:
            return light

        def eviction(i: int) -> int:
            if i not in evictions:
                evictions[i] = self.eviction(i)
            return evictions[i]

        return cheapest({i: loads[i] + self.prefill(i) for i in may}, eviction, may)


class PrintedCase(Case, frozen=True, gc=False):
    """The same with algorithm 2's shares: of the requests of all workers, those that hit a part anywhere."""

    def hits(self, worker: int, victim: Victim) -> int:
        """Return the window's requests through a part, on whatever worker."""
        return self.index.hits(None, victim.node)

    def requests(self, worker: int) -> int:
        """Return the window's requests on all workers."""
        return self.index.hits(None)
