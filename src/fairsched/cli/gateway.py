"""`fairsched gateway`: a fair queue before OpenAI-compatible servers."""

import importlib
import logging
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fairsched.cli_common import writable
from fairsched.engines.gateway.config import ConfigError, GatewayConfig, read_config
from fairsched.integrations.window_policy import window_policy
from fairsched.policies.hierarchical import HierarchicalGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import ROUTERS, parameters, unknown


def add_gateway(commands: Any) -> None:
    """Declare the command."""
    command: ArgumentParser = commands.add_parser(
        "gateway",
        help="stand before OpenAI-compatible servers and share them fairly",
        description="Queue calls before OpenAI-compatible servers and forward them under a deficit gate with a proved "
        "bound.  SIGHUP reads clients, weights and limits again; SIGTERM drains.",
    )
    command.add_argument("config", type=Path, metavar="CONFIG.toml", help="servers, clients, limits")
    command.add_argument("--check", action="store_true", help="read the configuration, print the bound, and stop")
    command.add_argument(
        "--shadow", action="store_true", help="forward at once in order of arrival, and count what would have changed"
    )
    command.add_argument("--report", type=Path, metavar="FILE", help="write the status as JSON at the end")
    command.add_argument(
        "--log", type=Path, metavar="FILE", help="write every event, for `fairsched replay` and `fairsched audit`"
    )
    command.add_argument(
        "--tokenizer", metavar="MODULE:FUNCTION", help="count the tokens of a text with this instead of its bytes"
    )
    command.set_defaults(run=gateway)


def gateway(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    config = read_config(arguments.config)
    policy, router = policy_of(config, arguments.config), ROUTERS.get(config.router)
    if router is None:
        raise ConfigError(f"{arguments.config}: {unknown('router', config.router, ROUTERS)}")
    writable(report=arguments.report, log=arguments.log)
    if config.state is not None and not Path(config.state).parent.is_dir():
        raise ConfigError(f"{arguments.config}: state: there is no folder {Path(config.state).parent}")
    if arguments.shadow and (config.mode == "priority" or config.state is not None):
        raise ConfigError(f"{arguments.config}: --shadow is for mode window without state: a shadow charges nobody")
    tokenizer = None if arguments.tokenizer is None else _imported(arguments.tokenizer)
    if arguments.check:
        print(_bound_text(config, policy))
        return 0
    # Only here, so that everything above works without the extra.
    from fairsched.engines.gateway.keep import alone
    from fairsched.engines.gateway.server import build, listening, serve
    from fairsched.engines.serving_log import ServingLog

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("fairsched").setLevel(logging.INFO)

    def open_log(windows: tuple[int, ...], state: dict[str, Any] | None) -> ServingLog:
        return ServingLog(
            arguments.log,
            policy.name,
            parameters(policy),
            kv_capacity_tokens=sum(windows),
            router=config.router,
            name="gateway",
            windows=windows,
            state=state,
        )

    log = None if arguments.log is None else open_log
    sockets = listening(config)
    with ExitStack() as held:
        for each in sockets:
            held.enter_context(each)
        lock = None if config.state is None else alone(Path(config.state))
        if lock is not None:
            held.enter_context(lock)
        serve(
            build(config, policy, router, shadow=arguments.shadow, tokenizer=tokenizer, open_log=log),
            arguments.config,
            sockets,
            report=arguments.report,
            say=lambda text: print(text, flush=True),
        )
    return 0


def policy_of(config: GatewayConfig, path: Path) -> ComposedPolicy:
    """The configuration's policy as a gateway needs it: outputs reserved, one request a decision.

    Raises `ConfigError` for one that cannot be used here.
    """
    try:
        policy = window_policy("fcfs" if config.mode == "priority" else config.policy, config.quantum)
    except ValueError as error:
        raise ConfigError(f"{path}: policy: {error}") from None
    if config.organisations and not isinstance(policy.gate, HierarchicalGate):
        raise ConfigError(f'{path}: organisation: only a hierarchical gate knows any: policy = "fcfs+hierarchical"')
    return policy


def _bound_text(config: GatewayConfig, policy: ComposedPolicy) -> str:
    from fairsched.model.request import Client

    if config.mode == "priority":
        return "mode priority: servers order calls by their field priority, and nothing is promised"
    tokens = sum(server.window_tokens or 0 for server in config.servers)
    families: dict[str, list[Client]] = {"": []}
    for name, client in config.clients.items():
        place = config.groups(name)
        path = "/".join(group for group, _ in place)
        families.setdefault(path, []).append(Client(len(families[path]), name, client.weight, place))
    lines = []
    for path, found in families.items():
        clients = tuple(found) if len(found) > 1 else (Client(0, "a"), Client(1, "b"))
        bound = policy.service_gap_bound(clients, policy.limits(tokens, tokens))
        who = f"two clients of {path}" if path else "two clients" if len(families) == 1 else "two clients in none"
        if bound is not None and (path == "" or len(found) > 1):
            lines.append(f"{who} that wait differ by at most {bound:,} cost units (an output token costs 2)")
    groups = tuple(Client(i, name, each.weight) for i, (name, each) in enumerate(config.organisations.items()))
    if len(groups) > 1:
        bound = policy.gate.group_gap_bound(groups, policy.limits(tokens, tokens))
        lines.append(f"two organisations that wait differ by at most {bound:,} cost units")
    text = f"window {tokens:,} tokens, policy {policy.name}: "
    return text + ("\n".join(lines) or "promises nothing")


def _imported(name: str) -> Any:
    module, colon, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--tokenizer: {error}") from None
    if not callable(found):
        raise ValueError(f"--tokenizer is MODULE:FUNCTION, not {name!r}")
    return found
