"""`fairsched serve`: our own engine behind OpenAI's API, with a model that needs no download unless one is named."""

import logging
import re
import sys
import textwrap
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from fairsched.cli.arguments import assignment, found, job_count, positive_int, seed, span
from fairsched.cli.output import unexplained, writable
from fairsched.engines.analysis import output_width
from fairsched.engines.simulation import latency_model
from fairsched.model.request import Client
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS, local_policy, parameters, unknown, with_parameters

if TYPE_CHECKING:
    from fairsched.engines.server import ApiServer, Backend
    from fairsched.engines.torch import LlamaConfig

BATCH_MAX = 16
CHUNK_MAX = 512
CPU_KV_TOKENS = 8192


def add_serve(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Serve OpenAI's API with this library's own torch engine.  Without --model it is a small model whose weights "
        "are made up on the spot: what it says means nothing, and nothing is downloaded.  SIGTERM drains."
    )
    command.add_argument(
        "--model", metavar="FOLDER|SIZE", help="a Llama checkpoint, or weights made up in a known size (default: small)"
    )
    command.add_argument(
        "--policy",
        default="dlpm",
        metavar="NAME",
        help=f"of {', '.join(LOCAL_POLICIES)}, NAME+GATE, or module:attribute (default: %(default)s)",
    )
    command.add_argument(
        "--set", action="append", type=assignment, default=[], metavar="PARAM=VALUE", help="set a parameter (repeat)"
    )
    command.add_argument("--workers", type=job_count, default=1, metavar="N", help="worker processes (default: 1)")
    command.add_argument(
        "--router", default="join-shortest-queue", metavar="NAME", help="before several workers (default: %(default)s)"
    )
    command.add_argument("--host", default="127.0.0.1", help="(default: %(default)s)")
    command.add_argument("--port", type=_port, default=8000, help="0: any free one (default: %(default)s)")
    command.add_argument(
        "--client", action="append", type=_client, default=[], metavar="NAME=WEIGHT", help="a client's weight (repeat)"
    )
    command.add_argument(
        "--client-header",
        default="x-fairsched-client",
        metavar="NAME",
        help="the header that names a client (default: %(default)s)",
    )
    command.add_argument("--api-key", metavar="KEY", help="serve only callers with this key (default: all)")
    command.add_argument(
        "--kv-capacity-tokens", type=positive_int, metavar="N", help=f"KV tokens of a worker (default: {CPU_KV_TOKENS})"
    )
    command.add_argument(
        "--batch-max", type=positive_int, default=BATCH_MAX, metavar="N", help="most requests that run (default: 16)"
    )
    command.add_argument(
        "--latency-model",
        metavar="NAME|FILE",
        help="a file of `fairsched calibrate`: waits of clients are held to what is proved of them in seconds",
    )
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: %(default)s)")
    command.add_argument("--threads", type=job_count, default=1, metavar="N", help="threads of torch (default: 1)")
    command.add_argument("--seed", type=seed, default=0, metavar="S", help="of made-up weights and draws (default: 0)")
    command.add_argument("--metrics", action="store_true", help="serve /metrics for Prometheus, which names clients")
    command.add_argument(
        "--log", type=Path, metavar="FILE", help="write every event, for `fairsched replay` and `fairsched audit`"
    )
    command.add_argument(
        "--drain-seconds",
        dest="drain_ns",
        type=span(),
        default="30s",
        metavar="TIME",
        help="to finish at the end, as 30s or a number of seconds (default: %(default)s)",
    )
    command.add_argument(
        "--report-seconds",
        dest="report_ns",
        type=span(least_ns=0),
        default="10s",
        metavar="TIME",
        help="between lines that say how things stand, as 1min or a number of seconds; 0: none (default: %(default)s)",
    )
    command.set_defaults(run=run_serve)


def _port(text: str) -> int:
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) > 65535:
        raise ArgumentTypeError(f"expected a port from 0 to 65535, found {found(text)}")
    return int(text)


def _client(text: str) -> tuple[str, int]:
    name, weight = assignment(text)
    return name, positive_int(weight)


def run_serve(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    weights = dict(arguments.client)
    if len(weights) < len(arguments.client):
        raise ValueError("--client: a client is named twice")
    if arguments.router not in ROUTERS:
        raise unknown("router", arguments.router, ROUTERS)
    policy = _policy(arguments)
    writable(log=arguments.log)
    # Only here, so that everything above works without the extras.
    from fairsched.engines.server import address, listening, run

    sockets = listening(arguments.host, arguments.port)
    try:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
        server, config = _server(arguments, policy, weights)

        def started() -> None:
            url = address(arguments.host, sockets)
            for line in _banner(arguments, server, config, weights):
                _say(line)
            print(f"serving {server.reader.model} at {url}/v1, with {url}/status", flush=True)
            print(f'try: curl {url}/v1/completions -d \'{{"prompt": "Hello"}}\'', flush=True)

        run(
            server,
            sockets,
            metrics=arguments.metrics,
            drain_seconds=arguments.drain_ns / 1e9,
            report_seconds=arguments.report_ns / 1e9,
            started=started,
            say=_say,
        )
    finally:
        for each in sockets:
            each.close()
    return unexplained(f"worker {worker}" for worker in server.backend.unexplained)


def _policy(arguments: Namespace) -> ComposedPolicy:
    """Return the policy with the parameters that are set, in batches that the engine has room for."""
    given = dict(arguments.set)
    if len(given) < len(arguments.set):
        raise ValueError("--set: a parameter is set twice")
    policy = local_policy(arguments.policy)
    known = parameters(policy)
    for name, most in (("max_running", arguments.batch_max), ("max_batched_tokens", CHUNK_MAX)):
        if isinstance(value := known.get(name), int):
            given.setdefault(name, str(min(value, most)))
    policy = with_parameters(policy, given)
    running = parameters(policy)["max_running"]
    if isinstance(running, int) and running > arguments.batch_max:
        raise ValueError(f"--set max_running={running}: the engine has room for --batch-max {arguments.batch_max}")
    return policy


def _server(arguments: Namespace, policy: ComposedPolicy, weights: dict[str, int]) -> "tuple[ApiServer, LlamaConfig]":
    """Load the model and start the workers."""
    from fairsched.engines.server import Access, ApiServer, Backend, CallReader, ExecutorMaker, tokenizer_of
    from fairsched.engines.serving import ServingLog
    from fairsched.engines.torch import BABBLE, SIZES, TorchSpec

    name = BABBLE if arguments.model is None else arguments.model
    spec = TorchSpec(name, arguments.device, arguments.threads, batch_max=arguments.batch_max, seed=arguments.seed)
    model = spec.load()
    config, facts = model.config, spec.facts
    tokenizer = tokenizer_of(None if name in SIZES or name == BABBLE else Path(name))
    capacity = arguments.kv_capacity_tokens
    if capacity is None:
        capacity = CPU_KV_TOKENS if arguments.device == "cpu" else spec.kv_capacity_tokens(model)
    reader = CallReader(
        str(facts["model"]), tokenizer, config.vocab_size, min(config.context_tokens_max, capacity), config.stop_tokens
    )
    log = None
    if arguments.log is not None:
        router = arguments.router if arguments.workers > 1 else "none"
        log = ServingLog(
            *(arguments.log, policy.name, parameters(policy)),
            kv_capacity_tokens=capacity,
            router=router,
            workers=arguments.workers,
            name="serve",
        )
    del model
    backend = Backend(
        policy,
        ExecutorMaker(spec, capacity),
        kv_capacity_tokens=capacity,
        output_tokens_max=reader.context_tokens,
        workers=arguments.workers,
        router=ROUTERS[arguments.router],
        weights=weights,
        log=log,
        latency=None if arguments.latency_model is None else latency_model(arguments.latency_model),
    )
    access = Access(arguments.client_header, weights, arguments.api_key)
    return ApiServer(backend, reader, access, seed=arguments.seed), config


# --- what is shown --------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    """Print a sentence in lines that fit the terminal."""
    width = output_width()
    print(text if width is None else textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False))
    sys.stdout.flush()


def _banner(arguments: Namespace, server: "ApiServer", config: "LlamaConfig", weights: dict[str, int]) -> list[str]:
    """Return what serves, and what it promises."""
    backend, reader = server.backend, server.reader
    from fairsched.engines.torch import SIZES

    made_up = arguments.model is None or arguments.model in SIZES
    model = f"model {reader.model}: {config.layers} layers, {reader.context_tokens:,} tokens of context"
    lines = [f"{model}, weights made up by seed {arguments.seed}: what it says means nothing" if made_up else model]
    if not made_up and reader.tokenizer.name == "bytes":
        lines.append(
            "tokens are bytes, which is not how this model was trained: its folder has no tokenizer.json, or the "
            "package tokenizers is missing"
        )
    lines.append(_promise(backend, arguments.workers, weights))
    lines += backend.policy.guarantee.cautions(backend.kv_capacity_tokens)
    return lines


def _promise(backend: "Backend", workers: int, weights: dict[str, int]) -> str:
    clients = tuple(Client(i, name, weight) for i, (name, weight) in enumerate(weights.items()))
    clients = clients if len(clients) > 1 else (Client(0, "a"), Client(1, "b"))
    guarantee = backend.policy.guarantee
    bound = guarantee.service_gap_bound(
        clients, guarantee.limits(backend.kv_capacity_tokens, backend.kv_capacity_tokens)
    )
    what = f"{workers} worker{'s' if workers > 1 else ''} of {backend.kv_capacity_tokens:,} KV tokens"
    of_each = " of a worker" if workers > 1 else ""
    if bound is None:
        return f"policy {backend.policy.name}, {what}: it promises nothing"
    return (
        f"policy {backend.policy.name}, {what}: two clients{of_each} that wait differ by at most {bound:,} cost units "
        "(an output token costs 2)"
    )
