"""`fairsched policies` and `fairsched trace`: what commands take, policies with what can be set, and workloads: look at
one, keep a generated one, or make one out of a log."""

import inspect
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import attrs

from fairsched.cli.arguments import (
    add_model_arguments,
    add_workload_arguments,
    assignment,
    positive_int,
    workload_of,
)
from fairsched.cli.commands.logs import add_log_argument, add_reading_arguments, log_name, reading_of
from fairsched.cli.output import apart, as_json, progress_bar, shown, writable, write_figures
from fairsched.engines.analysis import Column, print_lines, print_small, print_table, print_text, safe_text, share
from fairsched.engines.analysis.audit import logged_workload
from fairsched.engines.logs.access import expanded
from fairsched.engines.simulation import RunSpec, latency_model
from fairsched.engines.workloads import CLIENTS_SHOWN_MAX, render_info, save_workload, trace_info
from fairsched.model.latency import PRESETS
from fairsched.model.request import Client, Workload
from fairsched.policies.batching import BATCHINGS
from fairsched.policies.registry import CLUSTER_POLICIES, GATES, LOCAL_POLICIES, parameters, router_parameters

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 110
"""Lines are no longer, however wide the terminal."""
NARROW = 80
"""Below so many columns a text stands below its name."""


def add_policies(command: ArgumentParser) -> None:
    """Declare the command."""
    command.set_defaults(run=run_policies)


def run_policies(arguments: Namespace) -> int:
    """Print every policy with its promise and parameters, then the other names that commands take."""
    with shown() as console:
        for heading, entries in _listed():
            print_lines(console, [heading, ""])
            for name, text in entries:
                _entry(console, name, text)
            console.print()
    return 0


def add_promise(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Say what a policy promises its clients on one worker: the gap between two that wait, and the longest wait in "
        "seconds until a request is let in, has its first token, and ends. Nothing is simulated."
    )
    command.add_argument("--policy", default="dlpm", metavar="NAME", help="the policy (default: %(default)s)")
    command.add_argument(
        "--set",
        action="append",
        dest="params",
        type=assignment,
        default=[],
        metavar="PARAM=VALUE",
        help="a parameter of it (repeat)",
    )
    command.add_argument(
        "--clients", type=positive_int, default=2, metavar="N", help="clients of weight 1 (default: %(default)s)"
    )
    add_model_arguments(command)
    command.add_argument(
        "--prompt-tokens-max", type=positive_int, metavar="N", help="the longest prompt (default: as the worker holds)"
    )
    command.add_argument(
        "--max-output-tokens", type=positive_int, metavar="N", help="the longest output (default: as the worker holds)"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.set_defaults(run=run_promise)


def run_promise(arguments: Namespace) -> int:
    """Print what a configuration promises; returns the exit status."""
    writable(json=arguments.json)
    run = RunSpec.of(arguments.policy, params=dict(arguments.params))
    latency = latency_model(arguments.latency_model)
    capacity = arguments.kv_capacity_tokens or latency.kv_capacity_tokens
    outputs, prompts = arguments.max_output_tokens or capacity - 1, arguments.prompt_tokens_max or capacity - 1
    guarantee = run.policy.guarantee
    limits = guarantee.limits(capacity, outputs)
    limits = attrs.evolve(limits, prompt_tokens_max=min(prompts, limits.prompt_tokens_max))
    clients = tuple(Client(i, str(i)) for i in range(arguments.clients))
    promise = guarantee.promise(clients, limits, latency)
    worst = guarantee.worst_wait(clients, limits, latency)
    figures: dict[str, Any] = {
        "policy": arguments.policy,
        "latency_model": latency.name,
        "kv_capacity_tokens": capacity,
        "clients": arguments.clients,
        "gap_bound": None if promise is None else promise.gap_bound,
        "wait_cost": None if worst is None else worst.cost,
        "wait_ns": None if worst is None else worst.admission_ns,
        "first_token_ns": None if worst is None else worst.first_token_ns(),
        "completion_ns": None if worst is None else worst.completion_ns(),
        "parts_ns": {} if worst is None else dict(worst.parts()),
    }
    write_figures(arguments.json, figures)
    with shown() as console:
        head = f"{arguments.policy} on {latency.name}, {capacity:,} KV tokens, {arguments.clients:,} clients"
        print_lines(console, [head])
        if promise is None or promise.gap_bound is None:
            print_lines(console, ["Gap: nothing is promised."])
        else:
            print_lines(console, [f"Gap between two that wait: at most {promise.gap_bound:,} cost units."])
        if worst is None:
            why = guarantee.no_wait(limits, latency)
            print_lines(console, [f"Waits: nothing is promised in seconds, since {why}."])
            return 0
        lines = [
            f"Let in after at most {worst.admission_ns / 1e9:,.3f} s ({worst.cost:,} cost units), first token after "
            f"{worst.first_token_ns() / 1e9:,.3f} s, the longest request complete after "
            f"{worst.completion_ns() / 1e9:,.3f} s (T-wait); of that",
            *(f"  {name}: {ns / 1e9:,.3f} s" for name, ns in worst.parts()),
        ]
        print_lines(console, lines)
    return 0


def _listed() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Headings with names and what is said of each; an entry without a name goes on about the one above."""
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


# --- workloads --------------------------------------------------------------------------------------------------------


def add_trace(command: ArgumentParser) -> None:
    """Declare the commands."""
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    info = actions.add_parser("info", help="counts, rates, lengths, clients, and how much of the prompts is shared")
    info.add_argument("file", nargs="?", metavar="FILE", help="a trace file (or use --trace or --workload)")
    info.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_workload_arguments(info)
    info.set_defaults(run=run_info)
    save = actions.add_parser("save", help="write a workload in our JSONL format")
    save.add_argument("file", type=Path, metavar="FILE", help="the file to write")
    add_workload_arguments(save)
    save.set_defaults(run=run_save)
    into = actions.add_parser(
        "convert", help="make a trace out of a log: an access log of yours, or an event log of ours"
    )
    add_log_argument(into)
    into.add_argument("file", type=Path, metavar="FILE", help="the file to write, in our JSONL format")
    add_reading_arguments(into)
    into.set_defaults(run=run_convert)


_CLIENT_COLUMNS = (
    Column("client", kind="name"),
    Column("requests"),
    Column("share"),
    Column("weight", 2),
    Column("prompt\ntokens", 1),
    Column("output\ntokens", 1),
)


def run_info(arguments: Namespace) -> int:
    """Print what there is to know about a workload."""
    if arguments.file is not None:
        arguments.trace = arguments.file
    info = trace_info(workload_of(arguments))
    with shown() as console:
        if arguments.json:
            print(as_json(info))
        else:
            print_text(console, render_info(info))
            rows = [
                [
                    safe_text(name),
                    f"{each['requests']:,}",
                    share(each["share"]),
                    f"{each['weight']}",
                    f"{each['prompt_tokens']:,}",
                    f"{each['output_tokens']:,}",
                ]
                for name, each in list(info["clients"].items())[:CLIENTS_SHOWN_MAX]
            ]
            console.print()
            print_table(console, _CLIENT_COLUMNS, rows)
            if (more := len(info["clients"]) - len(rows)) > 0:
                print_lines(console, [f"{more:,} more clients are in the document of --json."])
            print_small(console, info["notes"])
    return 0


def run_save(arguments: Namespace) -> int:
    """Write a workload."""
    writable(FILE=arguments.file)
    return _save(workload_of(arguments), arguments.file)


def run_convert(arguments: Namespace) -> int:
    """Write a log's requests as a trace."""
    writable(FILE=arguments.file)
    apart(expanded(arguments.log), FILE=arguments.file)
    name = log_name(arguments.log)
    with progress_bar() as progress:
        workload = logged_workload(
            arguments.log,
            progress=lambda done, total: progress(f"reading {name}", done, total),
            **reading_of(arguments),
        )
    return _save(workload, arguments.file, workload.notes)


def _save(workload: Workload, file: Path, notes: Sequence[str] = ()) -> int:
    save_workload(workload, file)
    with shown() as console:
        print_lines(console, [*notes, f"{len(workload.jobs)} requests: {file}"])
    return 0
