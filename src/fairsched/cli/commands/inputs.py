"""`fairsched policies` and `fairsched trace`: what commands take, policies with what can be set, and workloads: look at
one, keep a generated one, or make one out of a log."""

import inspect
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill

from fairsched.cli.arguments import add_workload_arguments, workload_of
from fairsched.cli.commands.logs import add_reading_arguments, columns_of
from fairsched.cli.output import apart, as_json, progress_bar
from fairsched.engines.analysis.audit import logged_workload
from fairsched.engines.workloads import render_info, save_workload, trace_info
from fairsched.model.latency import PRESETS
from fairsched.model.request import Workload
from fairsched.policies.batching import BATCHINGS
from fairsched.policies.registry import CLUSTER_POLICIES, GATES, LOCAL_POLICIES, parameters, router_parameters

WIDTH = 110


def add_policies(command: ArgumentParser) -> None:
    """Declare the command."""
    command.set_defaults(run=run_policies)


def run_policies(arguments: Namespace) -> int:
    """Print every policy with its promise and parameters, then the other names that commands take."""
    print("Policies (compare --policies; set a parameter with --set POLICY.PARAM=VALUE)\n")
    for name, policy in LOCAL_POLICIES.items():
        promise = "promises a bound" if policy.promises_bound else "promises nothing"
        _entry(name, f"{_summary(policy)}  Order {policy.order.name}, gate {policy.gate.name}; {promise}.")
        _entry("", _values(parameters(policy)))
    for title, things in (
        ("Gates (compare --policies NAME+GATE: a policy's order and batching rule under that gate)", GATES),
        ("Batching rules (a policy's parameter `batching`)", BATCHINGS),
    ):
        print(f"\n{title}\n")
        for name, thing in things.items():
            _entry(name, _summary(thing))
    print("\nRouters (compare --routers; set a parameter with --set ROUTER.PARAM=VALUE)\n")
    for name, router in CLUSTER_POLICIES.items():
        _entry(name, _summary(router))
        if values := router_parameters(router):
            _entry("", _values(values))
    print("\nLatency models (compare --latency-model)\n")
    for name, model in PRESETS.items():
        _entry(name, f"{model.kv_capacity_tokens:,} tokens of KV; {model.source}")
    return 0


def _values(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={'none' if value is None else value}" for key, value in values.items())


def _summary(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def _entry(name: str, text: str) -> None:
    print(f"  {name:<24}" + fill(text, WIDTH - 26, subsequent_indent=" " * 26))


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
    save.set_defaults(run=lambda arguments: _save(workload_of(arguments), arguments.file))
    into = actions.add_parser(
        "convert", help="make a trace out of a log: an access log of yours, or an event log of ours"
    )
    into.add_argument("log", type=Path, metavar="LOG", help="the log, as for `fairsched audit`")
    into.add_argument("file", type=Path, metavar="FILE", help="the file to write, in our JSONL format")
    add_reading_arguments(into)
    into.set_defaults(run=run_convert)


def run_info(arguments: Namespace) -> int:
    """Print what there is to know about a workload."""
    if arguments.file is not None:
        arguments.trace = arguments.file
    info = trace_info(workload_of(arguments))
    print(as_json(info) if arguments.json else render_info(info))
    return 0


def run_convert(arguments: Namespace) -> int:
    """Write a log's requests as a trace."""
    apart(arguments.log, FILE=arguments.file)
    with progress_bar() as progress:
        workload = logged_workload(
            arguments.log,
            columns=columns_of(arguments),
            skip_malformed=arguments.skip_malformed,
            progress=lambda done, total: progress(f"reading {arguments.log.name}", done, total),
        )
    for note in workload.notes:
        print(note)
    return _save(workload, arguments.file)


def _save(workload: Workload, file: Path) -> int:
    save_workload(workload, file)
    print(f"{len(workload.jobs)} requests: {file}")
    return 0
