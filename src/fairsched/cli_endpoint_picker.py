"""`fairsched endpoint-picker`: which endpoint of a pool takes a call, said to Envoy."""

import logging
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from fairsched.cli_common import writable
from fairsched.engines.endpoint_picker.config import ConfigError, read_config
from fairsched.integrations.endpoint_picker import picker_of
from fairsched.model.request import Client


def add_endpoint_picker(commands: Any) -> None:
    """Declare the command."""
    command: ArgumentParser = commands.add_parser(
        "endpoint-picker",
        help="pick endpoints of an inference pool for Envoy, by a fair policy",
        description="Serve Envoy's external processing by the endpoint picker protocol of the Gateway API Inference "
        "Extension.  SIGHUP reads endpoints, clients and limits again; SIGTERM drains.",
    )
    command.add_argument("config", type=Path, metavar="CONFIG.toml", help="endpoints, clients, limits")
    command.add_argument("--check", action="store_true", help="read the configuration, print the bound, and stop")
    command.add_argument("--report", type=Path, metavar="FILE", help="write the status as JSON at the end")
    command.set_defaults(run=endpoint_picker)


def endpoint_picker(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    config = read_config(arguments.config)
    try:
        picker = picker_of(config)
    except ValueError as error:
        raise ConfigError(f"{arguments.config}: {error}") from None
    writable(report=arguments.report)
    if arguments.check:
        policy, count = picker.window.policy, max(len(config.pool.endpoints), 1)
        tokens = count * config.pool.window_tokens
        clients = tuple(Client(i, name, each.weight) for i, (name, each) in enumerate(config.client.items()))
        clients = clients if len(clients) > 1 else (Client(0, "a"), Client(1, "b"))
        bound = policy.service_gap_bound(clients, policy.limits(tokens, tokens))
        promise = "nothing" if bound is None else f"{bound:,} cost units between two clients that wait"
        print(f"policy {config.policy}, {tokens:,} tokens in {count} endpoints: it promises {promise}")
        return 0
    # Only here, so that everything above works without the extra.
    from fairsched.engines.endpoint_picker.server import serve

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("fairsched").setLevel(logging.INFO)
    serve(picker, arguments.config, report=arguments.report, say=lambda text: print(text, flush=True))
    return 0
