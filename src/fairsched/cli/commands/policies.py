"""`fairsched policies`: policies with what can be set, and what one of them promises."""

import inspect
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import TYPE_CHECKING

import attrs

from fairsched.cli.options import ModelOptions
from fairsched.cli.output import shown, writable, write_figures
from fairsched.cli.values import Assignments, Json, PositiveInt, settings
from fairsched.engines.analysis import print_lines
from fairsched.engines.simulation import RunSpec, latency_model
from fairsched.model.machine import PRESETS
from fairsched.model.monitor import FirstTokenBound
from fairsched.model.request import Client
from fairsched.policies.base import Limits
from fairsched.policies.batching import BATCHINGS
from fairsched.policies.guarantees import GateGuarantee, LimitedWait, WorstWait
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import CLUSTER_POLICIES, GATES, LOCAL_POLICIES, parameters, router_parameters

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 110
"""Lines are no longer, however wide the terminal."""
PROMPT_TOKENS, OUTPUT_TOKENS = 8_192, 1_024
"""The longest request for which seconds are said where none is stated."""
NARROW = 80
"""Below so many columns a text stands below its name."""


def policies(
    policy: str | None = None,
    /,
    *,
    set: Assignments = (),
    clients: PositiveInt = 2,
    of_model: ModelOptions = ModelOptions(),
    prompt_tokens_max: PositiveInt | None = None,
    max_output_tokens: PositiveInt | None = None,
    json: Json = None,
) -> int:
    """List policies, routers and their parameters; or say what one policy promises its clients on one worker: the gap
    between two that wait, and the longest wait in seconds until a request is let in, has its first token, and ends.
    Nothing is simulated.

    Args:
        policy: the policy whose promise is said (default: all are listed)
        set: a parameter of it (repeat)
        clients: clients of weight 1
        prompt_tokens_max: the longest prompt (default: as the worker holds; for seconds 8,192)
        max_output_tokens: the longest output (default: as the worker holds; for seconds 1,024)
    """
    if policy is not None:
        writable(json=json)
        run = RunSpec.of(policy, params=settings(set))
        return _promise(policy, run, clients, of_model, prompt_tokens_max, max_output_tokens, json)
    with shown() as console:
        for heading, entries in _listed():
            print_lines(console, [heading, ""])
            for name, text in entries:
                _entry(console, name, text)
            console.print()
    return 0


def _promise(
    name: str, run: RunSpec, count: int, model: ModelOptions, prompts: int | None, outputs: int | None, document: Json
) -> int:
    """Print what a configuration promises `count` clients."""
    latency = latency_model(model.latency_model)
    capacity = model.kv_capacity_tokens or latency.kv_capacity_tokens
    guarantee = run.policy.guarantee

    def limited(prompt: int, output: int) -> Limits:
        limits = guarantee.limits(capacity, min(output, capacity - 1))
        return attrs.evolve(limits, prompt_tokens_max=min(prompt, limits.prompt_tokens_max))

    stated = prompts is not None or outputs is not None
    limits = limited(prompts or capacity - 1, outputs or capacity - 1)
    usual = limits if stated else limited(PROMPT_TOKENS, OUTPUT_TOKENS)
    clients = tuple(Client(i, str(i)) for i in range(count))
    promise = guarantee.promise(clients, limits, latency)
    worst = guarantee.worst_wait(clients, usual, latency)
    alone = None if worst is None else worst.with_nothing_in_flight
    late, first, arrivals = dict[str, int](), None, None
    if isinstance(guarantee, GateGuarantee):
        late, first = guarantee.late_costs(clients, usual), guarantee.worst_late(clients, usual, latency)
        arrivals = guarantee.limited_wait(count, usual, latency)
    figures = {
        "policy": name,
        "latency_model": latency.name,
        "kv_capacity_tokens": capacity,
        "clients": count,
        "wait_prompt_tokens_max": usual.prompt_tokens_max,
        "wait_max_output_tokens": usual.output_tokens_max,
        "gap_bound": None if promise is None else promise.gap_bound,
        "late_costs": late,
        "late_ns": None if first is None else first.admission_ns,
        "wait_cost": None if worst is None else worst.cost,
        "wait_ns": None if worst is None else worst.admission_ns,
        "first_token_ns": None if worst is None else worst.first_token_ns(),
        "first_token_alone_ns": None if alone is None else alone.first_token_ns(),
        "first_token_limited_ns": None if arrivals is None else arrivals.first_token_ns,
        "completion_ns": None if worst is None else worst.completion_ns(),
        "parts_ns": {} if worst is None else dict(worst.parts()),
    }
    write_figures(document, figures)
    with shown(document) as console:
        head = f"{name} on {latency.name}, {capacity:,} KV tokens, {count:,} clients"
        print_lines(console, [head])
        if promise is None or promise.gap_bound is None:
            print_lines(console, ["Gap: nothing is promised."])
        else:
            print_lines(console, [f"Gap between two that wait: at most {promise.gap_bound:,} cost units."])
        if not stated:
            longest = f"{usual.prompt_tokens_max:,} tokens and outputs at most {usual.output_tokens_max:,}"
            yours = "--prompt-tokens-max and --max-output-tokens say yours"
            print_lines(console, [f"Where prompts have at most {longest} ({yours}):"])
        if worst is None:
            print_lines(console, [f"Waits: nothing is promised in seconds, since {guarantee.no_wait(usual, latency)}."])
        else:
            print_lines(console, _waits(worst, alone))
        print_lines(console, _late(late, first))
        if arrivals is not None:
            print_lines(console, _limited(arrivals))
        print_lines(console, _lowered(run, worst))
    return 0


def _waits(worst: FirstTokenBound, alone: FirstTokenBound | None) -> Iterator[str]:
    """Yield what is said of waits whatever comes."""
    let_in = f"Let in after at most {worst.admission_ns / 1e9:,.3f} s ({worst.cost:,} cost units), first token after "
    completion_ns, by = worst.completion_ns(), f"({worst.theorem.id}); of that"
    complete = "" if completion_ns is None else f", the longest request complete after {completion_ns / 1e9:,.3f} s"
    yield f"{let_in}{worst.first_token_ns() / 1e9:,.3f} s{complete} {by}"
    yield from (f"  {name}: {ns / 1e9:,.3f} s" for name, ns in worst.parts())
    if alone is not None:
        yield (
            f"A client with nothing in flight: let in after {alone.admission_ns / 1e9:,.3f} s ({alone.cost:,} cost "
            f"units), first token after {alone.first_token_ns() / 1e9:,.3f} s."
        )


def _late(costs: dict[str, int], first: FirstTokenBound | None) -> Iterator[str]:
    """Yield what is said of a request that is first in order."""
    in_time = "" if first is None else f": for at most {first.admission_ns / 1e9:,.3f} s (T-late)"
    for band, cost in costs.items():
        where, by = (f", in its band {band}", "BAND-late") if band else ("", "D-late")
        yield f"First in order{where}: let in before others are charged {cost:,} cost units more ({by}){in_time}"


def _limited(limited: LimitedWait) -> Iterator[str]:
    """Yield what is said where arrivals are limited."""
    yield f"Under limits of arrivals: first token after at most {limited.first_token_ns / 1e9:,.3f} s (T-limited); of"
    yield f"  {limited.text}"


def _lowered(run: RunSpec, worst: FirstTokenBound | None) -> Iterator[str]:
    """Yield what to set so that less is promised."""
    if not isinstance(run.policy, ComposedPolicy) or not isinstance(worst, WorstWait):
        return
    if worst.own_cost is None and parameters(run.policy).get("in_flight_cap_tokens", 0) is None:
        yield "--set in_flight_cap_tokens=N lowers what other clients may have in flight, and the gap."
    elif worst.own_cost is None and "max_running" in parameters(run.policy):
        yield "--set max_running=N lowers what clients may have in flight, which is charged meanwhile."
    dear = worst.dear_outputs
    if worst.pace.least == 1:
        yield "The order passes over requests, or one fills memory, so that one may run alone: fcfs may run more."
    elif worst.own_cost is not None and dear > run.policy.gate.charging.rates.output:
        yield f"--set output_rate={dear} prices outputs as they take time; --set quantum and max_running lower it too."


def _listed() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield headings with names and what is said of each; an entry without a name goes on about the one above."""
    entries = []
    for name, policy in LOCAL_POLICIES.items():
        promise = "promises a bound" if policy.promises_bound else "promises nothing"
        entries += [
            (name, f"{_summary(policy)}  Order {policy.order.name}, gate {policy.gate.name}; {promise}."),
            ("", _values(parameters(policy))),
        ]
    yield "Policies (compare --policies; set a parameter with --set POLICY.PARAM=VALUE)", entries
    for title, things in (
        ("Gates (compare --policies NAME+GATE: a policy's order and batching rule under that gate)", GATES),
        ("Batching rules (a policy's parameter `batching`)", BATCHINGS),
    ):
        yield title, [(name, _summary(thing)) for name, thing in things.items()]
    entries = []
    for name, router in CLUSTER_POLICIES.items():
        entries.append((name, _summary(router)))
        if values := router_parameters(router):
            entries.append(("", _values(values)))
    yield "Routers (compare --routers; set a parameter with --set ROUTER.PARAM=VALUE)", entries
    models = [(name, f"{each.kv_capacity_tokens:,} tokens of KV; {each.source}") for name, each in PRESETS.items()]
    yield "Latency models (compare --latency-model)", models


def _values(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={'none' if value is None else value}" for key, value in values.items())


def _summary(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def _entry(console: "Console", name: str, text: str) -> None:
    """Print a name and beside it, or below it in a narrow terminal, what is said of it."""
    indent = 26 if console.width >= NARROW else 6
    first, *others = wrap(text, min(console.width, WIDTH) - indent, break_on_hyphens=False)
    if console.width < NARROW or len(name) + 4 > indent:
        lines = [f"  {name}"] if name else []
        lines.append(" " * indent + first)
    else:
        lines = [f"  {name:<{indent - 2}}{first}"]
    print_lines(console, [*lines, *(" " * indent + line for line in others)])
