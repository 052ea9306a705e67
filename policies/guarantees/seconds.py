"""How long a client waits in seconds: what its gate says in cost units, at the rate that a worker keeps.

The gate bounds what a worker charges while a client waits (D-A.2-weighted).  A latency model bounds how long a step
takes.  What joins them is how little a step may do while a client waits, under chunked prefill where outputs are
reserved.  A step either spends its token budget, or leaves some of it; then every running request yields a token, and
there are many of them, since the next request found no room: in a memory of M tokens, of requests of at most X tokens,
`least_batch` of them.  So a worker has a rate-latency service curve (`worker_curve`), and CapacityFloor need not be
assumed.  From its admission on a request gets part of each step, so that its first token and its last one follow after
a number of steps that depends on nothing else (`prefill_steps`).

All is in integers: nanoseconds, tokens and cost units.  Theorems: `verify.proofs.memory.seconds`.
"""

from collections import Counter

import attrs

from fairsched.model.machine import LatencyModel, Performance
from fairsched.model.pricing import Rates
from fairsched.model.service import ServiceCurve
from fairsched.model.theorem import (
    CAPACITY_FLOOR,
    FITS_ALONE,
    NOTHING_REFUNDED,
    QUANTUM_POSITIVE,
    STEPS_IN_TIME,
    Theorem,
)
from fairsched.policies.base import Guarantee, Limits
from fairsched.policies.gates import BoundTerms
from fairsched.policies.guarantees.window import SECOND_NS, WindowTerms

_SOURCE = "this library; the shipped text on unknown integers"

T_STEP = Theorem(
    "T-step",
    "no step of the latency model takes longer than c + k_e n + k_q b, for n tokens of prompts and b requests that "
    "decode, each of at most X tokens",
    f"{_SOURCE}, two chunks for any number",
    (),
    bound="c + k_e n + k_q b",
)
T_BATCH = Theorem(
    "T-batch",
    "if a request of at most X tokens finds no room in M, at least m = ceil((M - X + 1) / X) requests of at most X "
    "tokens run, or all that may",
    _SOURCE,
    (FITS_ALONE,),
    bound="ceil((M - X + 1) / X)",
)
T_PACE = Theorem(
    "T-pace",
    "a step that spends its budget of B tokens, or yields a token of m requests, takes at most k_q + ceil(c / m) for "
    "each output token and k_e + ceil(c / B) for each token of a prompt",
    _SOURCE,
    (),
    rests_on=("T-step", "T-batch"),
)
T_CURVE = Theorem(
    "T-curve",
    "while f waits and is not let in, and all steps but h spend their budget or yield a token of m requests, W cost "
    "units are charged within c (1 + h) + (k_e + ceil(c / B)) (B - 1 + L) + W s, where s is the larger of "
    "(k_q + ceil(c / m)) / w_q and (k_e + ceil(c / B)) / w_e",
    f"{_SOURCE}, one step beside any others: CapacityFloor, with a delay",
    (STEPS_IN_TIME,),
    bound="c (1 + h) + (k_e + ceil(c / B)) (B - 1 + L) + W s",
    rests_on=("T-pace",),
)
T_REFILLS = Theorem(
    "T-refills",
    "while f waits under the gate inside the batch, at most h = 1 + floor((U - 1) / Q_f) refills are made, and no "
    "admission pauses its own client: only in a step with a refill may a request that was taken out be next",
    f"{_SOURCE}, one refill beside any others",
    (QUANTUM_POSITIVE,),
    bound="1 + floor((U - 1) / Q_f)",
    rests_on=("D-pause-range",),
)
T_FIRST = Theorem(
    "T-first",
    "a request of e tokens to compute has its first token within 1 + ceil((e - 1) / (B - k + 1)) steps of its "
    "admission, where at most k requests run",
    f"{_SOURCE}, one step after any others",
    (),
    bound="1 + ceil((e - 1) / (B - k + 1))",
)
T_LONGEST = Theorem(
    "T-longest",
    "no step takes longer than c + k_e B + max(k_q - k_e, 0) k, where at most k requests run",
    _SOURCE,
    (),
    bound="c + k_e B + max(k_q - k_e, 0) k",
    rests_on=("T-step",),
)
T_WAIT = Theorem(
    "T-wait",
    "a client that waits is let in within the delay of the worker's service curve and W s, for the W of D-A.2-weighted "
    "summed over all other clients; its first token follows within T-first's steps, each of T-longest, and each "
    "further one within a step",
    "this library; D-A.2-time on a service curve, which T-curve says",
    (CAPACITY_FLOOR, STEPS_IN_TIME, NOTHING_REFUNDED),
    bound="delay + W s",
    rests_on=("T-curve", "T-first", "T-longest", "D-A.2-weighted"),
)
T_LATE = Theorem(
    "T-late",
    "the same of a request that ranks first of all that wait, of which none is passed over, with the W of D-late: a "
    "quantum less of each other client",
    "this library; D-late on a service curve, which T-curve says",
    (CAPACITY_FLOOR, STEPS_IN_TIME, NOTHING_REFUNDED),
    bound="delay + W s",
    rests_on=("T-curve", "T-first", "T-longest", "D-late"),
)
T_PAUSED_COST = Theorem(
    "T-paused-cost",
    "while one of n clients of equal quanta waits under the gate inside the batch, with at most R_f still to be "
    "charged for its requests in flight (none: 0), 2(n - 1)(Q + U - 1) + n R_f are charged to all at most",
    "this library; D-pause-lag summed over all other clients",
    (NOTHING_REFUNDED,),
    bound="2(n - 1)(Q + U - 1) + n R_f",
    rests_on=("D-pause-lag",),
)
T_WAIT_PAUSED = Theorem(
    "T-wait-paused",
    "under the gate inside the batch a client that waits is let in within the delay of the worker's service curve and "
    "W s, for the W of T-paused-cost; its first token follows within T-first's steps, each of T-longest",
    "this library; T-paused-cost on a service curve",
    (CAPACITY_FLOOR, STEPS_IN_TIME),
    bound="delay + W s",
    rests_on=("T-curve", "T-refills", "T-first", "T-longest", "T-paused-cost"),
)
T_COUNTED_COST = Theorem(
    "T-counted-cost",
    "while one of n clients of equal weights waits under the counter gate, (2n - 1) U are charged to all at most",
    "this library; V-4.9-worker summed over all other clients",
    (NOTHING_REFUNDED,),
    bound="(2n - 1) U",
    rests_on=("V-4.9-worker",),
)
T_WAIT_COUNTED = Theorem(
    "T-wait-counted",
    "under the counter gate a client that waits is let in within the delay of the worker's service curve and W s, for "
    "the W of T-counted-cost; its first token and each further one follow as T-wait says",
    "this library; T-counted-cost on a service curve",
    (CAPACITY_FLOOR, STEPS_IN_TIME),
    bound="delay + W s",
    rests_on=("T-curve", "T-first", "T-longest", "T-counted-cost"),
)
T_FIT = Theorem(
    "T-fit",
    "if at most R = min(floor(M / X), k) requests of at most X tokens are under way, any of them has room in M and in "
    "the batch, and a step leaves nothing of their prompts or computes B - R + 1 tokens",
    f"{_SOURCE}, two chunks for any number",
    bound="B - R + 1",
)
T_LIMITED = Theorem(
    "T-limited",
    "if all requests under way fit (T-fit), a request is let in whenever one waits in a step with budget left, and "
    "prompts of at most b + r j tokens of all clients come in the time of any j longest steps, r < E = B - R + 1, each "
    "first token comes within 1 + floor((b + E - 1) / (E - r)) longest steps of its request",
    "this library; a busy period under arrival curves, as in network calculus",
    (STEPS_IN_TIME,),
    bound="1 + floor((b + E - 1) / (E - r))",
    rests_on=("T-fit", "T-longest"),
)
T_WINDOW = Theorem(
    "T-window",
    "before servers that do at least a cost units of work a second while a client waits, whose window holds at most M "
    "tokens, the client is let in within ((w_e + w_q) M + W) / a, for the W of D-A.2-weighted summed over all other "
    "clients, or of T-counted-cost: a prompt may be charged before it is computed, and outputs after they are",
    f"{_SOURCE}; for a gateway before servers, whose steps are not seen",
    (CAPACITY_FLOOR, NOTHING_REFUNDED),
    bound="((w_e + w_q) M + W) / a",
    rests_on=("D-A.2-weighted", "T-counted-cost"),
)
_STEPS = (T_STEP, T_BATCH, T_PACE, T_CURVE, T_FIRST, T_LONGEST)
TURNS: tuple[Theorem, ...] = (T_WAIT,)
LATE: tuple[Theorem, ...] = (T_LATE,)
COUNTED, PAUSED = (T_COUNTED_COST, T_WAIT_COUNTED), (T_REFILLS, T_PAUSED_COST, T_WAIT_PAUSED)
"""What says a wait under a deficit gate, there of the first in order, under a counter gate, and inside the batch."""
SECONDS_THEOREMS = (*_STEPS, *TURNS, *LATE, *PAUSED, *COUNTED, T_FIT, T_LIMITED, T_WINDOW)

# --- what a step does and takes ---------------------------------------------------------------------------------------


@attrs.frozen
class Pace:
    """A worker's steps: c, k_e and k_q of `T-step` in nanoseconds, B, k (`running`) and m (`least`)."""

    constant_ns: int
    token_ns: int
    row_ns: int
    step_tokens: int
    running: int
    least: int


def pace_on(line: Performance, context_tokens: int, step_tokens: int, running_max: int, least: int) -> Pace:
    """Return the pace of a worker whose steps are no longer than a line says, for requests of so many tokens."""
    constant_ns = max(line.prefill_constant_ns, line.decode_constant_ns)
    row_ns = line.request_ns + line.context_token_ns * context_tokens
    return Pace(constant_ns, line.prefill_token_ns, row_ns, step_tokens, running_max, least)


def step_ns_max(pace: Pace, tokens: int, rows: int) -> int:
    """Return the longest step that computes so many tokens of prompts and decodes so many requests."""
    return pace.constant_ns + pace.token_ns * tokens + pace.row_ns * rows


def least_batch(memory_tokens: int, context_tokens: int, running_max: int) -> int:
    """Return how many requests run at least where one more, of at most `context_tokens`, finds no room.

    >>> least_batch(132_000, 9_216, 256), least_batch(1_000, 1_000, 256)
    (14, 1)
    """
    return max(min(-(-(memory_tokens - context_tokens + 1) // context_tokens), running_max), 1)


def output_ns(pace: Pace) -> int:
    """Return the most time that an output token takes while a client waits, its share of the step included."""
    return pace.row_ns - (-pace.constant_ns // pace.least)


def input_ns(pace: Pace) -> int:
    """Return the most time that a token of a prompt takes while a client waits, its share of the step included."""
    return pace.token_ns - (-pace.constant_ns // pace.step_tokens)


def begun_tokens(pace: Pace, prompt_tokens_max: int) -> int:
    """Return the most tokens of prompts that are charged and not computed: a request enters only into a step that
    computes all others before it."""
    return pace.step_tokens - 1 + prompt_tokens_max


def worker_curve(pace: Pace, rates: Rates, prompt_tokens_max: int, short_steps: int = 0) -> ServiceCurve:
    """Return what a worker charges at least while a client waits there and is not let in.

    The delay is for the step under way when it begins to wait, for prompts that were charged before that, and for
    steps that neither spend their budget nor yield many tokens.
    """
    delay_ns = pace.constant_ns * (1 + short_steps) + input_ns(pace) * begun_tokens(pace, prompt_tokens_max)
    if output_ns(pace) * rates.input >= input_ns(pace) * rates.output:
        return ServiceCurve(delay_ns, output_ns(pace), rates.output)
    return ServiceCurve(delay_ns, input_ns(pace), rates.input)


def prefill_steps(extend_tokens: int, step_tokens: int, running_max: int) -> int:
    """Return the most steps from an admission to its first token.

    >>> prefill_steps(1, 2_048, 256), prefill_steps(2_048, 2_048, 256)
    (1, 3)
    """
    return 1 - (-(extend_tokens - 1) // (step_tokens - running_max + 1))


def longest_step_ns(pace: Pace) -> int:
    """Return the longest step of all."""
    return step_ns_max(pace, pace.step_tokens, 0) + max(pace.row_ns - pace.token_ns, 0) * pace.running


def refills_max(quantum: int, charge_max: int) -> int:
    """Return how often a client that waits is topped up at most before it has credit."""
    return 1 + (charge_max - 1) // quantum


def paused_costs(clients: int, quantum: int, charge_max: int, own_cost: int) -> tuple[int, int, int]:
    """Return what is charged while a client waits whose own requests in flight are charged at most `own_cost`: in
    turns of others, for what is in flight of them, and on account of its own requests (D-pause-lag)."""
    others = 2 * (clients - 1)
    return others * quantum, others * (charge_max - 1), clients * own_cost


def counted_costs(clients: int, charge_max: int) -> tuple[int, int]:
    """Return what is charged while a client waits that has been charged no less than others (V-4.9-worker): until they
    have caught up, and for what is in flight, its own included."""
    return (clients - 1) * charge_max, clients * charge_max


def calls_that_fit(memory_tokens: int, context_tokens: int, running_max: int) -> int:
    """Return how many requests of at most so many tokens always have room."""
    return min(memory_tokens // context_tokens, running_max)


def limited_steps(share: int, burst_tokens: int, step_tokens: int) -> int:
    """Return the most steps to a first token, if each computes `share` tokens of prompts or all, and no more come than
    a burst and `step_tokens`, which are fewer, in the time of each."""
    return 1 + (burst_tokens + share - 1) // (share - step_tokens)


# --- what a configuration comes to ------------------------------------------------------------------------------------


@attrs.frozen
class WorstWait:
    """The longest that a client waits on one worker, and what it is made of.

    While the client waits, `turns_cost` units are charged in turns of others, which its own debt prolongs, and
    `in_flight_cost` for what runs or is let in at their end; `curve` says how long both take.
    """

    turns_cost: int
    in_flight_cost: int
    curve: ServiceCurve
    pace: Pace
    prompt_tokens_max: int
    output_tokens_max: int
    own_cost: int | None = None
    """Under a gate that pauses: what is charged on account of the client's own requests in flight.  Then no end of a
    request is promised."""
    said_by: tuple[Theorem, ...] = TURNS

    @property
    def theorem(self) -> Theorem:
        """The theorem that says it."""
        return self.said_by[-1]

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """The theorem that says it, after those that it rests on here."""
        return (*_STEPS, *self.said_by)

    @property
    def dear_outputs(self) -> int:
        """How many tokens of a prompt take the time of one output token while a client waits, rounded up."""
        return -(-output_ns(self.pace) // max(input_ns(self.pace), 1))

    @property
    def with_nothing_in_flight(self) -> "WorstWait | None":
        """The same of a client with nothing in flight, where that is less."""
        return attrs.evolve(self, own_cost=0) if self.own_cost else None

    @property
    def cost(self) -> int:
        """Cost units that are charged to all while the client waits."""
        return self.turns_cost + self.in_flight_cost + (self.own_cost or 0)

    @property
    def admission_ns(self) -> int:
        """Until one of the client's waiting requests is let in, if the client is given nothing back."""
        return self.curve.time_ns(self.cost)

    def prefill_ns(self, extend_tokens: int) -> int:
        """Return the time from an admission to the first token of a request with so many tokens to compute."""
        return prefill_steps(extend_tokens, self.pace.step_tokens, self.pace.running) * longest_step_ns(self.pace)

    def first_token_ns(self, extend_tokens: int | None = None) -> int:
        """Return the time from the beginning of a wait to the first token of the request that ends it (None: of the
        longest prompt)."""
        return self.admission_ns + self.prefill_ns(self.prompt_tokens_max if extend_tokens is None else extend_tokens)

    def decode_ns(self, output_tokens: int) -> int | None:
        """Return the time from the first token of a request with so many output tokens to the last; None if it may be
        paused."""
        return None if self.own_cost is not None else (output_tokens - 1) * longest_step_ns(self.pace)

    def completion_ns(self, extend_tokens: int | None = None, output_tokens: int | None = None) -> int | None:
        """Return the time from the beginning of a wait to the end of the request that ends it (None: the longest);
        None if it may be paused."""
        decode_ns = self.decode_ns(self.output_tokens_max if output_tokens is None else output_tokens)
        return None if decode_ns is None else self.first_token_ns(extend_tokens) + decode_ns

    def parts(self) -> tuple[tuple[str, int], ...]:
        """Return what the time to the last token of the longest request is made of, in nanoseconds; to the first where
        it may be paused."""
        turns_ns = self.curve.time_ns(self.turns_cost) - self.curve.delay_ns
        decode_ns = self.decode_ns(self.output_tokens_max)
        return (
            ("gate: turns of other clients", turns_ns),
            ("memory: requests in flight", self.admission_ns - self.curve.delay_ns - turns_ns),
            ("queue: prompts begun, and the step under way", self.curve.delay_ns),
            ("prefill", self.prefill_ns(self.prompt_tokens_max)),
            *(() if decode_ns is None else (("decode", decode_ns),)),
        )


def work_curve(rates: Rates, held_tokens: int, rate: int) -> ServiceCurve:
    """Return what is charged at least while a client waits before servers that do so many cost units of work a second,
    where calls hold at most so many tokens: work is charged a window of prompts early, or a window of outputs late.

    >>> work_curve(Rates(1, 2), 1_000, 5_000).delay_ns
    600000000
    """
    return ServiceCurve(-(-(rates.input + rates.output) * held_tokens * SECOND_NS // rate), SECOND_NS, rate)


def window_curve(guarantee: Guarantee, held_tokens: int, terms: WindowTerms) -> ServiceCurve | None:
    """Return the curve of servers that yield as many tokens as the terms say; None where they say nothing."""
    rule, tokens_per_s = guarantee.charging, terms.tokens_per_s
    if rule is None or tokens_per_s is None:
        return None
    return work_curve(rule.rates, held_tokens, rule.rates.output * tokens_per_s)


@attrs.frozen
class WindowWait:
    """The longest wait before servers that are said to work at a rate (T-window); of their steps nothing is known."""

    cost: int
    curve: ServiceCurve
    said_by: tuple[Theorem, ...] = ()

    @property
    def theorem(self) -> Theorem:
        """The theorem that says it."""
        return T_WINDOW

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """The same, after those that it rests on here."""
        return (*self.said_by, T_WINDOW)

    @property
    def admission_ns(self) -> int:
        """Until one of the client's waiting calls is let in, if others are given nothing back."""
        return self.curve.time_ns(self.cost)

    def prefill_ns(self, extend_tokens: int) -> None:
        """Promise nothing of a server's steps."""

    def decode_ns(self, output_tokens: int) -> None:
        """Promise nothing of a server's steps."""


@attrs.frozen
class LimitedWait:
    """What n clients have under any gate that lets a request in whenever one waits (T-limited), if each keeps to this:
    at most `calls` requests under way, and at most a burst and `tokens_per_s` of prompts in any time."""

    burst_tokens: int
    tokens_per_s: int
    calls: int
    first_token_ns: int

    @property
    def text(self) -> str:
        """What a client keeps to."""
        return (
            f"each client at most {self.calls:,} requests under way, and of prompts {self.burst_tokens:,} tokens at "
            f"once and {self.tokens_per_s:,} a second"
        )


_LOAD = 5
"""Prompts may take one part in so many of a worker's time."""


def limited_wait(latency: LatencyModel, limits: Limits, step_tokens: int, clients: int) -> LimitedWait | None:
    """Return a first token's longest time under limits of arrivals: as many requests as fit, bursts of one longest
    prompt, and a fifth of the worker's time for prompts; None where not one request of each client fits."""
    memory, running = limits.kv_capacity_tokens, min(limits.running_max, limits.kv_capacity_tokens)
    context = min(limits.prompt_tokens_max + limits.output_tokens_max, memory)
    calls = min(calls_that_fit(memory, context, running), step_tokens) // clients
    pace = pace_of(latency, attrs.evolve(limits, running_max=calls * clients), step_tokens) if calls else None
    if pace is None:
        return None
    share = step_tokens - pace.running + 1
    each, longest_ns = share // (clients * _LOAD), longest_step_ns(pace)
    steps = limited_steps(share, clients * limits.prompt_tokens_max, clients * each)
    return LimitedWait(limits.prompt_tokens_max, each * 10**9 // max(longest_ns, 1), calls, steps * longest_ns)


def pace_of(latency: LatencyModel, limits: Limits, step_tokens: int, memory_tokens: int | None = None) -> Pace | None:
    """Return the steps of a worker; None if decoding alone may spend the budget of a step, so that prompts wait for
    ever.

    `memory_tokens` is what requests share that find no room (None: nothing is known of it, and one may run alone).
    """
    context = min(limits.prompt_tokens_max + limits.output_tokens_max, limits.kv_capacity_tokens)
    running = min(limits.running_max, limits.kv_capacity_tokens)
    if running > step_tokens:
        return None
    least = 1 if memory_tokens is None else least_batch(memory_tokens, context, running)
    return pace_on(Performance.of(latency, context, running), context, step_tokens, running, least)


def turns_cost(quantum_f: int, charge_max_f: int, quantum_g: int, quanta: int = 2) -> int:
    """Return what g may be charged in turns while f waits: two quanta (one, if f's request is first in order), and one
    for each round in which f's debt is paid."""
    return quanta * quantum_g + quantum_g * (charge_max_f - 1) // quantum_f


def wait_costs(terms: tuple[BoundTerms, ...], quanta: int = 2) -> tuple[int, int]:
    """Return what is charged while a client waits, for the client that fares worst: in turns of others, and for what is
    in flight at their end (D-A.2-weighted, or with one quantum D-late, every term at its largest).  O(kinds of clients
    squared)."""
    kinds = Counter(terms)
    turns = [
        sum((count - (g == f)) * turns_cost(f.quantum, f.charge_max, g.quantum, quanta) for g, count in kinds.items())
        for f in kinds
    ]
    # What is in flight, its own included, is the same for each.
    return max(turns, default=0), sum(count * (each.charge_max - 1) for each, count in kinds.items())
