"""`fairsched serve`: our own engine behind OpenAI's API, with a model that needs no download unless one is named."""

import logging
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
from cyclopts import Parameter

from fairsched.cli import values
from fairsched.cli.options import CacheFloors
from fairsched.cli.output import unexplained, writable
from fairsched.cli.values import address as address_of
from fairsched.cli.values import each
from fairsched.engines.analysis import output_width
from fairsched.engines.simulation import latency_model
from fairsched.model.request import Client
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import ROUTERS, local_policy, parameters, unknown, with_parameters

if TYPE_CHECKING:
    from fairsched.engines.server import ApiServer, Backend
    from fairsched.engines.torch import LlamaConfig

CHUNK_MAX = 512
CLIENT_HEADER = "x-fairsched-client"
"""The header that names a client."""
CPU_KV_TOKENS = 8192


def _client(text: str) -> tuple[str, int]:
    name, weight = values.assignment(text)
    return name, values.positive_int(weight)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BackendOptions:
    """The model and its workers."""

    model: Annotated[str | None, Parameter(metavar="FOLDER|SIZE")] = None
    """a Llama checkpoint, or weights made up in a known size (default: small)"""
    policy: str = "dlpm-in-batch"
    """a name of `fairsched policies`, NAME+GATE, or module:attribute"""
    set: values.Assignments = ()
    """set a parameter (repeat)"""
    workers: values.Count = 1
    """worker processes"""
    router: str = "join-shortest-queue"
    """before several workers"""
    kv_capacity_tokens: values.PositiveInt | None = None
    """KV tokens of a worker (default: 8192)"""
    batch_max: values.PositiveInt = 16
    """most requests that run"""
    latency_model: Annotated[str | None, Parameter(metavar="NAME|FILE")] = None
    """a file of `fairsched calibrate`: waits of clients are held to what is proved of them in seconds"""
    device: Annotated[
        tuple[str, int], values.read(values.torch_device, "cpu[:THREADS]|cuda", show_default=values.joined(":"))
    ] = ("cpu", 1)
    """where torch computes, with how many threads"""
    seed: values.Seed = 0


def serve(
    *,
    listen: Annotated[tuple[str, int], values.read(address_of, "HOST:PORT", show_default=values.joined(":"))] = (
        "127.0.0.1",
        8000,
    ),
    client: Annotated[tuple[tuple[str, int], ...], each(_client, "NAME=WEIGHT")] = (),
    cache_floor: CacheFloors = (),
    api_key: Annotated[str | None, Parameter(metavar="KEY")] = None,
    of_backend: BackendOptions = BackendOptions(),
    metrics: bool = False,
    log: values.Events = None,
    drain_seconds: values.Time = 30 * 10**9,
    report_seconds: Annotated[int, values.read(lambda text: values.span(text, 0), "TIME")] = 10 * 10**9,
) -> int:
    """Serve OpenAI's API with this library's own torch engine.  Without --model it is a small model whose weights are
    made up on the spot: what it says means nothing, and nothing is downloaded.  SIGTERM drains.

    Args:
        listen: where it listens; port 0 is any free one
        client: the weight of a client, which names itself by the header x-fairsched-client (repeat)
        cache_floor: KV tokens of each worker that are a client's own, running or cached (repeat)
        api_key: serve only callers with this key (default: all)
        metrics: serve /metrics for Prometheus, which names clients
        drain_seconds: to finish at the end
        report_seconds: between lines that say how things stand; 0 is none
    """
    weights = dict(client)
    if len(weights) < len(client):
        raise ValueError("--client: a client is named twice")
    if of_backend.router not in ROUTERS:
        raise unknown("router", of_backend.router, ROUTERS)
    policy = _policy(of_backend)
    writable(log=log)
    # Only here, so that everything above works without the extras.
    from fairsched.engines.server import address, listening, run

    sockets = listening(*listen)
    try:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
        server, config = _server(of_backend, policy, weights, log, api_key, dict(cache_floor))

        def started() -> None:
            url = address(listen[0], sockets)
            for line in _banner(of_backend, server, config, weights):
                _say(line)
            print(f"serving {server.reader.model} at {url}/v1, with {url}/status", flush=True)
            print(f'try: curl {url}/v1/completions -d \'{{"prompt": "Hello"}}\'', flush=True)

        run(
            server,
            sockets,
            metrics=metrics,
            drain_seconds=drain_seconds / 1e9,
            report_seconds=report_seconds / 1e9,
            started=started,
            say=_say,
        )
    finally:
        for each in sockets:
            each.close()
    return unexplained(f"worker {worker}" for worker in server.backend.unexplained)


def _policy(options: BackendOptions) -> ComposedPolicy:
    """Return the policy with the parameters that are set, in batches that the engine has room for."""
    given = values.settings(options.set)
    policy = local_policy(options.policy)
    known = parameters(policy)
    for name, most in (("max_running", options.batch_max), ("max_batched_tokens", CHUNK_MAX)):
        if isinstance(value := known.get(name), int):
            given.setdefault(name, str(min(value, most)))
    policy = with_parameters(policy, given)
    running = parameters(policy)["max_running"]
    if isinstance(running, int) and running > options.batch_max:
        raise ValueError(f"--set max_running={running}: the engine has room for --batch-max {options.batch_max}")
    return policy


def _server(
    options: BackendOptions,
    policy: ComposedPolicy,
    weights: dict[str, int],
    log: Path | None,
    api_key: str | None,
    floors: dict[str, int],
) -> "tuple[ApiServer, LlamaConfig]":
    """Load the model and start the workers."""
    from fairsched.engines.server import Access, ApiServer, Backend, CallReader, ExecutorMaker, tokenizer_of
    from fairsched.engines.serving import ServingLog
    from fairsched.engines.torch import BABBLE, SIZES, TorchSpec

    name = BABBLE if options.model is None else options.model
    spec = TorchSpec(name, *options.device, batch_max=options.batch_max, seed=options.seed)
    model = spec.load()
    config, facts = model.config, spec.facts
    tokenizer = tokenizer_of(None if name in SIZES or name == BABBLE else Path(name))
    capacity = options.kv_capacity_tokens
    if capacity is None:
        capacity = CPU_KV_TOKENS if options.device[0] == "cpu" else spec.kv_capacity_tokens(model)
    reader = CallReader(
        str(facts["model"]), tokenizer, config.vocab_size, min(config.context_tokens_max, capacity), config.stop_tokens
    )
    events = None
    if log is not None:
        events = ServingLog(
            *(log, policy.name, parameters(policy)),
            kv_capacity_tokens=capacity,
            router=options.router if options.workers > 1 else "none",
            workers=options.workers,
            name="serve",
        )
    del model
    backend = Backend(
        policy,
        ExecutorMaker(spec, capacity),
        kv_capacity_tokens=capacity,
        context_tokens=reader.context_tokens,
        workers=options.workers,
        router=ROUTERS[options.router],
        weights=weights,
        floors=floors,
        log=events,
        latency=None if options.latency_model is None else latency_model(options.latency_model),
    )
    access = Access(CLIENT_HEADER, weights, api_key)
    return ApiServer(backend, reader, access, seed=options.seed), config


# --- what is shown --------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    """Print a sentence in lines that fit the terminal."""
    width = output_width()
    print(text if width is None else textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False))
    sys.stdout.flush()


def _banner(options: BackendOptions, server: "ApiServer", config: "LlamaConfig", weights: dict[str, int]) -> list[str]:
    """Return what serves, and what it promises."""
    backend, reader = server.backend, server.reader
    from fairsched.engines.torch import SIZES

    made_up = options.model is None or options.model in SIZES
    model = f"model {reader.model}: {config.layers} layers, {reader.context_tokens:,} tokens of context"
    lines = [f"{model}, weights made up by seed {options.seed}: what it says means nothing" if made_up else model]
    if not made_up and reader.tokenizer.name == "bytes":
        lines.append(
            "tokens are bytes, which is not how this model was trained: its folder has no tokenizer.json, or the "
            "package tokenizers is missing"
        )
    lines.append(_promise(backend, options.workers, weights, reader.context_tokens))
    lines += backend.policy.guarantee.cautions(backend.kv_capacity_tokens)
    return lines


def _promise(backend: "Backend", workers: int, weights: dict[str, int], context: int) -> str:
    clients = tuple(Client(i, name, weight) for i, (name, weight) in enumerate(weights.items()))
    clients = clients if len(clients) > 1 else (Client(0, "a"), Client(1, "b"))
    guarantee = backend.policy.guarantee
    limits = guarantee.limits(backend.kv_capacity_tokens, context)
    bound = guarantee.service_gap_bound(clients, attrs.evolve(limits, request_tokens_max=context))
    what = f"{workers} worker{'s' if workers > 1 else ''} of {backend.kv_capacity_tokens:,} KV tokens"
    of_each = " of a worker" if workers > 1 else ""
    if bound is None:
        return f"policy {backend.policy.name}, {what}: it promises nothing"
    return (
        f"policy {backend.policy.name}, {what}: two clients{of_each} that wait differ by at most {bound:,} cost units "
        "(an output token costs 2)"
    )
