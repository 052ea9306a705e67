"""A quantum that fits the traffic: Q of DLPM, Q_w of D2LPM, the match threshold and an in-flight cap.

**What is at stake.**  A client that runs out of credit waits while others are served, and what it had in the cache may
be evicted meanwhile.  With a quantum Q a client runs out at most (W - 1) / Q + 1 times while it is served W (D-price),
and each time it may have to compute its prefix of P tokens again.  So at most about P/Q of what it is charged is such
work (an argument that no solver has seen): with Q < P that may be all.  D2LPM's quantum Q_w does the same to the worker
that a client's requests go to: a client without credit where its prefix is goes on elsewhere, computes it there, and
evicts what others had there.

**The rule.**  Prefixes of up to two default quanta are short, and need no more than the defaults; nor does traffic of
which half or less can come from a cache, since most of what is computed is new.  Otherwise Q = 2P, so that a turn pays
for a prefix and for as much again by requests that share it, and Q_w = 8P, since leaving a worker costs others as well,
and Q_w is in no bound between clients (D2-5.1).  P is the upper quartile over clients of the prefix that a client uses
again, so a quarter of the clients may send what they like and cannot raise it.  The gap's bound 2(Q + U - 1) pays for
the larger Q with a cap on each client's tokens in flight, which lowers U from that of the whole memory.  The factors
were found by experiment, and so was it that matches of less than half a prompt are better ignored
(docs/how-to/tune.md).

**Drift.**  `followed` says when to change what is set: a larger quantum at once, since it cuts no credit and the gap's
bound is that of the largest (D-change-gap); a smaller one only when half would do, since what is cut adds to the gap.
"""

from collections import defaultdict
from collections.abc import Iterable

import attrs

from fairsched.engines.workloads import shared_blocks
from fairsched.model.pricing import Rates, price
from fairsched.model.request import Job
from fairsched.policies.routers import D2LPM

STEP_TOKENS = 2_048
"""What a step computes at most, unless the policy says so."""
SHORT = 2
"""So many default quanta are a short prefix."""
PREFIXES_A_TURN = 2
PREFIXES_A_WORKER = 8
CAP_SHARE = 4
"""A cap leaves a client at least this part of the memory, one in four: less would leave it idle."""


@attrs.frozen
class Traffic:
    """What a deployment knows of its requests: how many, the prefix that its clients use again, and its longest
    request with its output, in tokens; of how many prompt tokens a cache without end would have had how many."""

    requests: int
    clients: int
    prefix_tokens: int
    largest_tokens: int
    prompt_tokens: int
    reused_tokens: int

    @classmethod
    def of(cls, jobs: Iterable[Job]) -> "Traffic":
        """Return the traffic of jobs in order of arrival, such as those of the last hour.  O(tokens).

        >>> from fairsched.engines.workloads import generate
        >>> Traffic.of(generate("azure-chat", requests=80).jobs).prefix_tokens
        0
        """
        requests = [job.request for job in jobs]
        prompts = [request.prompt for request in requests]
        used: dict[int, list[int]] = defaultdict(list)
        for request, prompt, blocks in zip(requests, prompts, shared_blocks(prompts), strict=True):
            used[request.client].append(min(blocks, prompt.reusable_blocks) * prompt.block_tokens)
        typical = sorted(-(-sum(each * each for each in tokens) // max(sum(tokens), 1)) for tokens in used.values())
        return cls(
            requests=len(requests),
            clients=len(used),
            prefix_tokens=typical[-(-3 * len(typical) // 4) - 1] if typical else 0,
            largest_tokens=max((each.prompt.tokens + each.max_output_tokens for each in requests), default=0),
            prompt_tokens=sum(prompt.tokens for prompt in prompts),
            reused_tokens=sum(map(sum, used.values())),
        )

    @property
    def mostly_reused(self) -> bool:
        """Whether more than half of the prompt tokens can come from a cache."""
        return 2 * self.reused_tokens > self.prompt_tokens


@attrs.frozen
class Quanta:
    """What to set: DLPM's `quantum` and `in_flight_cap_tokens` (None: no cap), D2LPM's quantum and match threshold.

    `long_prefixes` says that the defaults would not fit.
    """

    quantum: int
    router_quantum: int
    match_percent_min: int
    in_flight_cap_tokens: int | None
    long_prefixes: bool = False

    @property
    def params(self) -> dict[str, object]:
        cap: dict[str, object] = {"in_flight_cap_tokens": self.in_flight_cap_tokens}
        return {"quantum": self.quantum, **(cap if self.in_flight_cap_tokens is not None else {})}

    @property
    def router_params(self) -> dict[str, object]:
        return {"quantum": self.router_quantum, "match_percent_min": self.match_percent_min}

    def reasons(self, traffic: Traffic, kv_capacity_tokens: int) -> tuple[str, ...]:
        """Return sentences that say why these fit the traffic."""
        prefix = f"Prefix: {traffic.prefix_tokens:,} tokens; what three clients in four use again is no longer."
        if traffic.prefix_tokens == 0:
            return ("No client uses a prefix again, as far as the trace names prefixes: the defaults fit.",)
        if not traffic.mostly_reused:
            return (prefix, "Half of the prompt tokens or more are new, whatever is cached: the defaults fit.")
        if not self.long_prefixes:
            return (prefix, f"That is at most {SHORT} default quanta: the defaults fit.")
        cap = self.in_flight_cap_tokens
        return (
            prefix,
            f"Q: {PREFIXES_A_TURN} prefixes, so that a client pays at most half a turn for a prefix that was evicted.",
            f"Q_w: {PREFIXES_A_WORKER} prefixes, so that few requests leave the worker that has theirs.",
            "Match: a cached part of less than half the prompt is no reason to go to a worker.",
            "No cap: the longest request needs a worker's whole memory."
            if cap is None
            else f"Cap: the longest request has {traffic.largest_tokens:,} tokens; it lowers the gap's bound by "
            f"{2 * (kv_capacity_tokens - cap) * Rates().output:,} cost units at the default rates.",
        )


def fitting(
    traffic: Traffic, kv_capacity_tokens: int, *, step_tokens: int = STEP_TOKENS, input_rate: int = Rates().input
) -> Quanta:
    """Return the quanta that fit the traffic on workers of so much memory, whose steps compute `step_tokens`.

    >>> fitting(Traffic(900, 8, 24_000, 40_000, prompt_tokens=21_600_000, reused_tokens=20_000_000), 132_000)
    Quanta(quantum=48000, router_quantum=192000, match_percent_min=50, in_flight_cap_tokens=40000, long_prefixes=True)
    >>> fitting(Traffic(900, 8, 1_200, 40_000, prompt_tokens=1_800_000, reused_tokens=1_000_000), 132_000)
    Quanta(quantum=4096, router_quantum=20000, match_percent_min=50, in_flight_cap_tokens=None, long_prefixes=False)
    """
    least, router = 2 * step_tokens, D2LPM()
    prefix = price(traffic.prefix_tokens, input_rate)
    if prefix <= SHORT * least or not traffic.mostly_reused:
        return Quanta(least, router.quantum, router.match_percent_min, None)
    cap = max(traffic.largest_tokens, kv_capacity_tokens // CAP_SHARE)
    return Quanta(
        max(PREFIXES_A_TURN * prefix, least),
        max(PREFIXES_A_WORKER * prefix, router.quantum),
        router.match_percent_min,
        cap if cap < kv_capacity_tokens else None,
        long_prefixes=True,
    )


def followed(present: Quanta, wanted: Quanta) -> Quanta:
    """Return what to set where `present` is set and `wanted` would fit the traffic of today.

    >>> small, large = (fitting(Traffic(9, 3, prefix, 50_000, 9, 9), 132_000) for prefix in (15_000, 20_000))
    >>> followed(small, large) == large, followed(large, small) == large
    (True, True)
    """
    return attrs.evolve(
        wanted,
        quantum=_followed(present.quantum, wanted.quantum),
        router_quantum=_followed(present.router_quantum, wanted.router_quantum),
    )


def _followed(present: int, wanted: int) -> int:
    return present if present < 2 * wanted and wanted < present else wanted
