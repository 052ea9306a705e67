"""`fairsched policies`: what there is, and what can be set."""

import inspect
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from textwrap import fill

from fairsched.model.latency import PRESETS
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
