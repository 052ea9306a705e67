"""`fairsched policies`: what there is, and what can be set."""

import inspect
from argparse import ArgumentParser, Namespace
from textwrap import fill
from typing import Any

from fairsched.model.presets import PRESETS
from fairsched.policies.batching import BATCHINGS
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS, parameters

WIDTH = 110


def add_policies(commands: Any) -> None:
    """Declare the command."""
    command: ArgumentParser = commands.add_parser("policies", help="list policies, routers and their parameters")
    command.set_defaults(run=policies)


def policies(arguments: Namespace) -> int:
    """Print every policy with its promise and parameters, then the other names that commands take."""
    print("Policies (compare --policies; set a parameter with --set POLICY.PARAM=VALUE)\n")
    for name, policy in LOCAL_POLICIES.items():
        promise = "promises a bound" if policy.promises_bound else "promises nothing"
        _entry(name, f"{_summary(policy)}  Order {policy.order.name}, gate {policy.gate.name}; {promise}.")
        values = parameters(policy).items()
        _entry("", ", ".join(f"{key}={'none' if value is None else value}" for key, value in values))
    for title, things in (
        ("Batching rules (a policy's parameter `batching`)", BATCHINGS),
        ("Routers (compare --routers)", ROUTERS),
    ):
        print(f"\n{title}\n")
        for name, thing in things.items():
            _entry(name, _summary(thing))
    print("\nLatency models (compare --latency-model)\n")
    for name, model in PRESETS.items():
        _entry(name, f"{model.kv_capacity_tokens:,} tokens of KV; {model.source}")
    return 0


def _summary(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def _entry(name: str, text: str) -> None:
    print(f"  {name:<24}" + fill(text, WIDTH - 26, subsequent_indent=" " * 26))
