"""`fairsched gateway`, `endpoint-picker` and `loadtest`: a fair queue before servers that stay as they are, and a load
to try it with."""

import asyncio
import importlib
import logging
import socket
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import ExitStack
from getpass import getpass
from pathlib import Path
from typing import IO

import msgspec

from fairsched import __version__
from fairsched.cli.arguments import add_workload_arguments, job_count, workload_of
from fairsched.cli.output import print_files, shown, unexplained, writable, write_figures
from fairsched.engines.adapters.endpoint_picker import Picker, PickerConfig
from fairsched.engines.adapters.endpoint_picker import read_config as read_picker_config
from fairsched.engines.analysis import print_lines, print_text
from fairsched.engines.gateway import (
    CallerNames,
    GatewayConfig,
    access_lines,
    access_warnings,
    bound_text,
    check_files,
    gateway_policy,
    hashed_key,
    quota_lines,
    read_config,
)
from fairsched.engines.gateway.operations import FORMATS, log_to_stderr
from fairsched.engines.settings import ConfigError, Schema, schema_of
from fairsched.model.request import Client
from fairsched.policies.base import AnyRouter
from fairsched.policies.guarantees import window_limits
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import ROUTERS, unknown

_log = logging.getLogger("fairsched.gateway")

KEY_LENGTH = 20
"""Keys that are shorter can be found by trying."""


def add_gateway(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Queue calls before OpenAI-compatible servers and forward them under a deficit gate with a proved bound.  "
        "SIGHUP reads servers, clients, limits and certificates again; SIGTERM drains."
    )
    command.add_argument("config", type=Path, metavar="CONFIG.toml", nargs="?", help="servers, clients, limits")
    command.add_argument(
        "--check", action="store_true", help="read the configuration, print the bound and who gets in, and stop"
    )
    command.add_argument(
        "--hash-key", action="store_true", help="ask for an API key, print what a configuration has of it, and stop"
    )
    command.add_argument("--schema", action="store_true", help="print the JSON Schema of CONFIG.toml, and stop")
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
    command.add_argument(
        "--log-format",
        choices=FORMATS,
        default="text",
        help="how the log on standard error is written (default: text); json has a line for each call",
    )
    command.add_argument(
        "--processes", type=job_count, metavar="N", help="processes that serve callers (default: the configuration's)"
    )
    command.set_defaults(run=run_gateway)


def add_endpoint_picker(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Serve Envoy's external processing by the endpoint picker protocol of the Gateway API Inference Extension.  "
        "SIGHUP reads endpoints, clients and limits again; SIGTERM drains."
    )
    command.add_argument("config", type=Path, metavar="CONFIG.toml", nargs="?", help="endpoints, clients, limits")
    command.add_argument("--check", action="store_true", help="read the configuration, print the bound, and stop")
    command.add_argument("--schema", action="store_true", help="print the JSON Schema of CONFIG.toml, and stop")
    command.add_argument("--report", type=Path, metavar="FILE", help="write the status as JSON at the end")
    command.set_defaults(run=run_endpoint_picker)


def add_loadtest(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Send every request of a workload at its time to URL/v1/completions and report latencies, rates and what each "
        "client got."
    )
    command.add_argument("url", metavar="URL", help="the server's address, without /v1")
    add_workload_arguments(command)
    command.add_argument("--model", help="the model's name (default: the first that the server lists)")
    command.add_argument(
        "--client-header", default="x-client", metavar="NAME", help="the header that names a client (default: x-client)"
    )
    command.add_argument("--key", metavar="KEY", help="an API key for all requests")
    command.add_argument(
        "--ignore-eos", action="store_true", help="ask for outputs of exactly the trace's length (vLLM, SGLang)"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.set_defaults(run=run_loadtest)


def run_gateway(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    if arguments.hash_key:
        print(hashed_key(_asked_key()))
        return 0
    if arguments.schema:
        return _print_schema(schema_of(GatewayConfig))
    if arguments.config is None:
        raise ConfigError("CONFIG.toml is missing: fairsched gateway CONFIG.toml")
    config = read_config(arguments.config)
    policy, router = gateway_policy(config, arguments.config), ROUTERS.get(config.router)
    if router is None:
        raise ConfigError(f"{arguments.config}: {unknown('router', config.router, ROUTERS)}")
    writable(report=arguments.report, log=arguments.log)
    _check(config, arguments)
    tokenizer = None if arguments.tokenizer is None else _imported(arguments.tokenizer)
    if arguments.check:
        with shown() as console:
            print_text(console, bound_text(config, policy))
            print_lines(console, [*quota_lines(config), *access_lines(config)])
            print_lines(console, [f"WARNING: {warning}" for warning in access_warnings(config)])
        return 0
    # Only here, so that everything above works without the extra.
    from fairsched.engines.gateway import alone, listening

    log_to_stderr(arguments.log_format)
    for warning in access_warnings(config):
        _log.warning("%s", warning)
    with ExitStack() as held:
        sockets = listening(config)
        for each in sockets:
            held.enter_context(each)
        lock = None if config.state is None else alone(Path(config.state))
        if lock is not None:
            held.enter_context(lock)
        if (arguments.processes or config.processes) > 1:
            return _run_processes(arguments, config, sockets, lock)
        broken = _run_process(arguments, config, policy, router, tokenizer, sockets)
    return unexplained(["the gateway"] if broken else [])


def _check(config: GatewayConfig, arguments: Namespace) -> None:
    """Raise `ConfigError` for files that cannot be used, and for a shadow of what has none."""
    path = arguments.config
    if config.state is not None and not Path(config.state).parent.is_dir():
        raise ConfigError(f"{path}: state: there is no folder {Path(config.state).parent}")
    if arguments.shadow and (config.mode == "priority" or config.state is not None):
        raise ConfigError(f"{path}: --shadow is for mode window without state: a shadow charges no client")
    try:
        check_files(config)
        CallerNames(config)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _run_process(
    arguments: Namespace,
    config: GatewayConfig,
    policy: ComposedPolicy,
    router: AnyRouter,
    tokenizer: Callable[[str], int] | None,
    sockets: list[socket.socket],
) -> bool:
    from fairsched.engines.gateway import build, log_opener, serve

    open_log = None if arguments.log is None else log_opener(arguments.log, config, policy)
    return serve(
        build(config, policy, router, shadow=arguments.shadow, tokenizer=tokenizer, open_log=open_log),
        arguments.config,
        sockets,
        report=arguments.report,
        say=lambda text: print(text, flush=True),
    )


def _run_processes(
    arguments: Namespace, config: GatewayConfig, sockets: list[socket.socket], lock: IO[str] | None
) -> int:
    from fairsched.engines.gateway import UNEXPLAINED, Spec, serving_text, supervise

    processes = arguments.processes or config.processes
    spec = Spec(
        config=str(arguments.config),
        processes=processes,
        said=serving_text(config, sockets, shadow=arguments.shadow, processes=processes),
        shadow=arguments.shadow,
        tokenizer=arguments.tokenizer,
        report=None if arguments.report is None else str(arguments.report),
        log=None if arguments.log is None else str(arguments.log),
        log_format=arguments.log_format,
    )
    held = () if lock is None else (lock.fileno(),)
    drain_seconds = config.limits.leave_seconds + config.limits.drain_seconds
    status = supervise(spec, sockets, drain_seconds=drain_seconds, held=held)
    return unexplained(["the gateway"]) if status == UNEXPLAINED else status


def _asked_key() -> str:
    """Return a key from the terminal, where it is not shown, or from the first line of the input."""
    key = (getpass("API key: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if not key:
        raise ValueError("there is no key: type it, or send it as a line to standard input")
    if len(key) < KEY_LENGTH:
        short = (
            f"a key of {len(key)} characters can be guessed from its hash: take a random one of {KEY_LENGTH} or more"
        )
        print(f"fairsched gateway: {short}", file=sys.stderr)
    return key


def _imported(name: str) -> Callable[[str], int]:
    module, colon, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--tokenizer: {error}") from None
    if not callable(found):
        raise ValueError(f"--tokenizer is MODULE:FUNCTION, not {name!r}")
    tokenizer: Callable[[str], int] = found
    return tokenizer


def _print_schema(schema: Schema) -> int:
    print(msgspec.json.format(msgspec.json.encode(schema), indent=2).decode())
    return 0


def run_endpoint_picker(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    if arguments.schema:
        return _print_schema(schema_of(PickerConfig))
    if arguments.config is None:
        raise ConfigError("CONFIG.toml is missing: fairsched endpoint-picker CONFIG.toml")
    config = read_picker_config(arguments.config)
    try:
        picker = Picker(config)
    except ValueError as error:
        raise ConfigError(f"{arguments.config}: {error}") from None
    writable(report=arguments.report)
    if arguments.check:
        policy, count = picker.window.guard.policy, max(len(config.pool.endpoints), 1)
        tokens = count * config.pool.window_tokens
        clients = tuple(Client(i, name, each.weight) for i, (name, each) in enumerate(config.client.items()))
        clients = clients if len(clients) > 1 else (Client(0, "a"), Client(1, "b"))
        limits = window_limits(policy.guarantee, tokens, picker.window.terms.of(config.pool.window_tokens))
        bound = policy.guarantee.service_gap_bound(clients, limits)
        promise = "nothing" if bound is None else f"{bound:,} cost units between two clients that wait"
        with shown() as console:
            said = f"policy {config.policy}, {tokens:,} tokens in {count} endpoints: it promises {promise}"
            print_lines(console, [said, *policy.guarantee.cautions(tokens)])
        return 0
    # Only here, so that everything above works without the extra.
    from fairsched.engines.adapters.endpoint_picker import serve

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("fairsched").setLevel(logging.INFO)
    serve(picker, arguments.config, report=arguments.report, say=lambda text: print(text, flush=True))
    return 0


def run_loadtest(arguments: Namespace) -> int:
    """Run the command; returns the exit status: 1 if nothing finished."""
    if not arguments.url.startswith(("http://", "https://")):
        raise ValueError(f"a URL starts with http:// or https://, not {arguments.url!r}")
    writable(json=arguments.json)
    workload = workload_of(arguments)
    # Only here, so that everything above works without the extra.
    from fairsched.engines.analysis import rate, safe_text, time
    from fairsched.engines.gateway import LoadReplay, LoadTarget

    target = LoadTarget(
        arguments.url.rstrip("/"), arguments.model, arguments.client_header, arguments.key, arguments.ignore_eos
    )
    replayed = asyncio.run(LoadReplay(workload, target).run())
    document = {
        "fairsched": __version__,
        "trace": {"name": workload.name, "requests": len(workload.jobs), "notes": list(workload.notes)},
        "runs": [{"policy": target.url, "rate_scale": arguments.rate_scale} | replayed.to_json()],
    }
    write_figures(arguments.json, document)
    lines = [
        f"{safe_text(name)}: {measures.finished} of {measures.requests} finished, "
        f"TTFT p50 {time(measures.ttft_us.p50)} p99 {time(measures.ttft_us.p99)}, "
        f"latency p50 {time(measures.latency_us.p50)} p99 {time(measures.latency_us.p99)}, "
        f"{rate(measures.output_tokens_per_s)} output tokens/s"
        for name, measures in {"all": replayed.measures, **replayed.clients}.items()
    ]
    with shown(arguments.json) as console:
        print_lines(console, [*lines, *(f"{reason}: {count}" for reason, count in replayed.errors.items())])
        print_files(console, Figures=arguments.json)
    return 0 if replayed.measures.finished else 1
