"""Choosing a policy whose first tokens come within a stated time, by theorem: nothing is simulated.

What is promised whatever comes is worth most, and is hours where memory is large.  A client with nothing in flight
waits for little under the gate inside the batch, and under limits of arrivals every client does, under any gate.  In
that order the first configuration is chosen that keeps the target; of several of one kind the one that costs least
throughput: a large quantum before a small one, outputs priced by their time next, and a smaller batch last.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, Literal

import attrs

from fairsched.model.machine import LatencyModel
from fairsched.model.request import Client, Workload
from fairsched.policies.base import Limits
from fairsched.policies.guarantees import T_LIMITED, GateGuarantee, LimitedWait, WorstWait
from fairsched.policies.registry import local_policy, with_parameters

Basis = Literal["whatever comes", "with nothing in flight", "under limits of arrivals"]
BASES: tuple[Basis, ...] = ("whatever comes", "with nothing in flight", "under limits of arrivals")
_INSIDE, _LIMITED = "fcfs+in-batch", "fcfs+deficit"
_QUANTA, _RUNNING = (4_096, 1_024, 512), (None, 128, 64, 32)


@attrs.frozen
class Demand:
    """Who sends what at most: clients of weight 1, and the longest prompt and output in tokens."""

    clients: int
    prompt_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, workload: Workload) -> "Demand":
        """Return that of a workload."""
        requests = [job.request for job in workload.jobs]
        prompts = max((each.prompt.tokens for each in requests), default=1)
        return cls(len(workload.clients), prompts, max((each.max_output_tokens for each in requests), default=1))

    def halved(self) -> "dict[str, Demand]":
        """Return, by the limit's name, what is left with half of it."""
        return {
            f"{name} ({count:,})": attrs.evolve(self, **{field: -(-count // 2)})
            for field, name in (
                ("clients", "clients"),
                ("prompt_tokens", "tokens of the longest prompt"),
                ("output_tokens", "tokens of the longest output"),
            )
            if (count := getattr(self, field)) > (2 if field == "clients" else 1)
        }


@attrs.frozen
class PromisedFirstToken:
    """A policy with what is set, and the longest time to a first token that a theorem says of it; `limits` are those
    of arrivals, if it rests on some."""

    policy: str
    params: tuple[tuple[str, str], ...]
    basis: Basis
    first_token_ns: int
    theorem: str
    limits: LimitedWait | None = None

    @property
    def title(self) -> str:
        """The policy and what is set."""
        return " ".join((self.policy, *(f"--set {name}={value}" for name, value in self.params)))


@attrs.frozen
class FirstTokenTuning:
    """What is promised for each basis, most throughput first, and which configuration keeps the target; where none
    does, `lowered` names the limit of which half would help most, and the least time then."""

    target_ns: int
    demand: Demand
    promised: tuple[PromisedFirstToken, ...]
    lowered: tuple[str, int] | None = None

    @property
    def kept(self) -> tuple[PromisedFirstToken, ...]:
        """Of each basis the first configuration that keeps the target, in order of what it is worth."""
        found: dict[Basis, PromisedFirstToken] = {}
        for each in self.promised:
            if each.first_token_ns <= self.target_ns:
                found.setdefault(each.basis, each)
        return tuple(found[basis] for basis in BASES if basis in found)

    def text(self) -> Iterator[str]:
        """Yield what to set and what that promises, or why nothing keeps the target, a line each."""
        demand, least = self.demand, self.least
        yield (
            f"{demand.clients:,} clients, prompts of at most {demand.prompt_tokens:,} tokens and outputs of at most "
            f"{demand.output_tokens:,}; a first token within {self.target_ns / 1e9:,.3f} s:"
        )
        for each in self.kept:
            yield f"  {each.basis}: {each.title}, {each.first_token_ns / 1e9:,.3f} s ({each.theorem})"
            if each.limits is not None:
                yield f"    {each.limits.text}"
        if self.kept or least is None:
            return
        least_s = f"{least.first_token_ns / 1e9:,.3f} s"
        yield f"  No policy promises it. The least is {least_s}, {least.basis}: {least.title}."
        if self.lowered is not None:
            name, least_ns = self.lowered
            yield f"  Lower the number of {name}: half of it makes that {least_ns / 1e9:,.3f} s."

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `fairsched tune --first-token --json`."""
        return attrs.asdict(self) | {"chosen": None if self.chosen is None else attrs.asdict(self.chosen)}

    @property
    def chosen(self) -> PromisedFirstToken | None:
        return next(iter(self.kept), None)

    @property
    def least(self) -> PromisedFirstToken | None:
        return _least(self.promised)


def tune_first_token(
    target_ns: int, demand: Demand, latency: LatencyModel, kv_capacity_tokens: int | None = None
) -> FirstTokenTuning:
    """Return the configurations that are tried on a worker, and what each of them promises.

    >>> from fairsched.model.machine import PRESETS
    >>> found = tune_first_token(15 * 10**9, Demand(4, 8_192, 1_024), PRESETS["llama-3.1-8b-a100"])
    >>> found.chosen.basis, found.chosen.title
    ('with nothing in flight', 'fcfs+in-batch --set quantum=4096 --set output_rate=12')
    """
    capacity = kv_capacity_tokens or latency.kv_capacity_tokens
    found = FirstTokenTuning(target_ns, demand, tuple(_promised(demand, latency, capacity)))
    if found.chosen is not None:
        return found
    halves = {name: _least(tuple(_promised(half, latency, capacity))) for name, half in demand.halved().items()}
    reached = {name: least.first_token_ns for name, least in halves.items() if least is not None}
    return attrs.evolve(found, lowered=min(reached.items(), key=lambda each: each[1], default=None))


def _least(promised: tuple[PromisedFirstToken, ...]) -> PromisedFirstToken | None:
    return min(promised, key=lambda each: each.first_token_ns, default=None)


def _promised(demand: Demand, latency: LatencyModel, capacity: int) -> Iterator[PromisedFirstToken]:
    """Yield what is promised, in the order in which it is chosen within a basis."""
    clients = tuple(Client(i, f"{i}") for i in range(demand.clients))

    def guaranteed(name: str, params: dict[str, str]) -> tuple[GateGuarantee, Limits]:
        guarantee = with_parameters(local_policy(name), params).guarantee
        assert isinstance(guarantee, GateGuarantee)
        limits = guarantee.limits(capacity, min(demand.output_tokens, capacity - 1))
        longest = min(demand.prompt_tokens, limits.prompt_tokens_max)
        return guarantee, attrs.evolve(limits, prompt_tokens_max=longest)

    def worst(name: str, params: dict[str, str]) -> WorstWait | None:
        guarantee, limits = guaranteed(name, params)
        return guarantee.worst_wait(clients, limits, latency)

    whatever, alone, limited = BASES
    for name in ("dlpm", "fcfs+deficit", "vtc"):
        if (wait := worst(name, {})) is not None:
            yield PromisedFirstToken(name, (), whatever, wait.first_token_ns(), wait.theorem.id)
    for running, dear, quantum in product(_RUNNING, (False, True), _QUANTA):
        params = {"quantum": f"{quantum}"} | ({} if running is None else {"max_running": f"{running}"})
        wait = worst(_INSIDE, params)
        if wait is not None and dear:
            params["output_rate"] = f"{wait.dear_outputs}"
            wait = worst(_INSIDE, params)
        if wait is not None:
            chosen, by = tuple(params.items()), wait.theorem.id
            yield PromisedFirstToken(_INSIDE, chosen, whatever, wait.first_token_ns(), by)
            first = wait.with_nothing_in_flight or wait
            yield PromisedFirstToken(_INSIDE, chosen, alone, first.first_token_ns(), by)
    guarantee, limits = guaranteed(_LIMITED, {})
    if (arrivals := guarantee.limited_wait(demand.clients, limits, latency)) is not None:
        yield PromisedFirstToken(_LIMITED, (), limited, arrivals.first_token_ns, T_LIMITED.id, arrivals)
