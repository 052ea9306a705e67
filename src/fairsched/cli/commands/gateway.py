"""`fairsched gateway` and `loadtest`: a fair queue before servers that stay as they are, and a load to try it with."""

import asyncio
import importlib.util
import logging
import socket
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from getpass import getpass
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from fairsched import __version__
from fairsched.cli.options import Source, WorkloadOptions
from fairsched.cli.output import print_files, shown, unexplained, writable, write_figures
from fairsched.cli.values import Count, Events, File, Json
from fairsched.engines import gateway as engines_gateway
from fairsched.engines.adapters.endpoint_picker import Picker, PickerConfig
from fairsched.engines.adapters.endpoint_picker import read_config as read_picker_config
from fairsched.engines.analysis import print_lines, print_text
from fairsched.engines.settings import ConfigError, Schema, schema_of
from fairsched.model import installing

_log = logging.getLogger("fairsched.gateway")

KEY_LENGTH = 20
"""Keys that are shorter can be found by trying."""


def gateway(
    config: Annotated[File | None, Parameter(metavar="CONFIG.toml")] = None,
    /,
    *,
    picker: bool = False,
    check: bool = False,
    hash_key: bool = False,
    schema: bool = False,
    report: File | None = None,
    log: Events = None,
    processes: Count | None = None,
) -> int:
    """Queue calls before OpenAI-compatible servers and forward them under a deficit gate with a proved bound; or, with
    --picker, serve Envoy's external processing by the endpoint picker protocol of the Gateway API Inference Extension.
    SIGHUP reads servers or endpoints, clients, limits and certificates again; SIGTERM drains.

    Args:
        config: servers or endpoints, clients, limits
        picker: pick endpoints for Envoy
        check: read the configuration, print the bound and what is dangerous, and stop
        hash_key: ask for an API key, print what a configuration has of it, and stop
        schema: print the JSON Schema of CONFIG.toml, and stop
        report: write the status as JSON at the end
        log: write every event, for `fairsched audit`
        processes: processes that serve callers (default: the configuration's)
    """
    if hash_key:
        print(engines_gateway.hashed_key(_asked_key()))
        return 0
    if schema:
        return _print_schema(schema_of(PickerConfig if picker else engines_gateway.GatewayConfig))
    if config is None:
        raise ConfigError("CONFIG.toml is missing: fairsched gateway CONFIG.toml")
    if picker:
        if log is not None or processes is not None:
            raise ValueError("--picker has no --log and --processes")
        return _pick_endpoints(config, check, report)
    return _serve(config, check, _Run(report, log, processes))


@dataclass(frozen=True)
class _Run:
    """How a gateway runs."""

    report: Path | None
    log: Path | None
    processes: int | None


def _serve(path: Path, check: bool, how: _Run) -> int:
    config = engines_gateway.read_config(path)
    if how.processes is not None:
        try:
            config = msgspec.structs.replace(config, processes=how.processes)
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from None
    policy = engines_gateway.gateway_policy(config.of_process(), path)
    writable(report=how.report, log=how.log)
    _check(config, path)
    if check:
        with shown() as console:
            print_text(console, engines_gateway.bound_text(config.of_process(), policy))
            print_lines(console, engines_gateway.quota_lines(config))
            servers = [(each.url, each.window_requests) for each in config.servers]
            default = engines_gateway.Share(2).requests
            slots = engines_gateway.slot_warnings(servers, default)
            warnings = [*engines_gateway.access_warnings(config), *slots]
            print_lines(console, [f"WARNING: {warning}" for warning in warnings])
        return 0
    # Only here, so that everything above works without the extra.
    from fairsched.engines.gateway import build, listening, log_to_stderr, serve

    log_to_stderr()
    for warning in engines_gateway.access_warnings(config):
        _log.warning("%s", warning)
    with ExitStack() as held:
        sockets = listening(config)
        for each in sockets:
            held.enter_context(each)
        if config.processes > 1:
            return _run_processes(path, how, config, sockets)
        made = build(config, policy, log=how.log)
        broken = serve(made, path, sockets, report=how.report, say=lambda text: print(text, flush=True))
    return unexplained(["the gateway"] if broken else [])


def _check(config: engines_gateway.GatewayConfig, path: Path) -> None:
    """Raise `ConfigError` for files that cannot be used."""
    try:
        if config.metrics and importlib.util.find_spec("prometheus_client") is None:
            raise ConfigError(f"metrics = true needs another package: {installing('metrics')}")
        engines_gateway.check_files(config)
        engines_gateway.CallerNames(config)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _run_processes(path: Path, how: _Run, config: engines_gateway.GatewayConfig, sockets: list[socket.socket]) -> int:
    from fairsched.engines.gateway import UNEXPLAINED, Spec, supervise

    spec = Spec(
        config=str(path),
        processes=config.processes,
        report=None if how.report is None else str(how.report),
        log=None if how.log is None else str(how.log),
    )
    status = supervise(spec, sockets, drain_seconds=config.limits.leave_seconds + config.limits.drain_seconds)
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


def _print_schema(schema: Schema) -> int:
    print(msgspec.json.format(msgspec.json.encode(schema), indent=2).decode())
    return 0


def _pick_endpoints(path: Path, check: bool, report: Path | None) -> int:
    """Serve Envoy."""
    config = read_picker_config(path)
    try:
        picker = Picker(config)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    writable(report=report)
    if check:
        with shown() as console:
            servers = [
                (f"http://{each}", config.pool.window_requests) for each in config.pool.endpoints or (config.pool.dns,)
            ]
            default = engines_gateway.Share(2).requests
            slots = engines_gateway.slot_warnings(servers, default)
            print_lines(console, [*picker.promises(), *(f"WARNING: {each}" for each in slots)])
        return 0
    # Only here, so that everything above works without the extra.
    from fairsched.engines.adapters.endpoint_picker import serve

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("fairsched").setLevel(logging.INFO)
    serve(picker, path, report=report, say=lambda text: print(text, flush=True))
    return 0


def loadtest(
    url: str,
    workload: Source = "demo",
    /,
    *,
    model: str | None = None,
    client_header: Annotated[str, Parameter(metavar="NAME")] = "x-client",
    key: str | None = None,
    ignore_eos: bool = False,
    of_workload: WorkloadOptions = WorkloadOptions(),
    json: Json = None,
) -> int:
    """Send every request of a workload at its time to URL/v1/completions and report latencies, rates and what each
    client got.  Exits with 1 if nothing finished.

    Args:
        url: the server's address, without /v1
        workload: a trace, or a generated workload
        model: the model's name (default: the first that the server lists)
        client_header: the header that names a client
        key: an API key for all requests
        ignore_eos: ask for outputs of exactly the trace's length (vLLM, SGLang)
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"a URL starts with http:// or https://, not {url!r}")
    writable(json=json)
    requests = of_workload.workload(workload)
    # Only here, so that everything above works without the extra.
    from fairsched.engines.analysis import rate, safe_text, time
    from fairsched.engines.conformance import LoadReplay, LoadTarget

    target = LoadTarget(url.rstrip("/"), model, client_header, key, ignore_eos)
    replayed = asyncio.run(LoadReplay(requests, target).run())
    document = {
        "fairsched": __version__,
        "trace": {"name": requests.name, "requests": len(requests.jobs), "notes": list(requests.notes)},
        "runs": [{"policy": target.url, "rate_scale": of_workload.rate_scale} | replayed.to_json()],
    }
    write_figures(json, document)
    lines = [
        f"{safe_text(name)}: {measures.finished} of {measures.requests} finished, "
        f"TTFT p50 {time(measures.ttft_us.p50)} p99 {time(measures.ttft_us.p99)}, "
        f"latency p50 {time(measures.latency_us.p50)} p99 {time(measures.latency_us.p99)}, "
        f"{rate(measures.output_tokens_per_s)} output tokens/s"
        for name, measures in {"all": replayed.measures, **replayed.clients}.items()
    ]
    with shown(json) as console:
        print_lines(console, [*lines, *(f"{reason}: {count}" for reason, count in replayed.errors.items())])
        print_files(console, Figures=json)
    return 0 if replayed.measures.finished else 1
