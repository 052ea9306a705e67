"""`fairsched load`: a workload or trace against an OpenAI-compatible server, measured as `compare` measures."""

import asyncio
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import msgspec

from fairsched import __version__
from fairsched.cli_common import add_workload_arguments, workload_of, writable


def add_load(commands: Any) -> None:
    """Declare the command."""
    command: ArgumentParser = commands.add_parser(
        "load",
        help="replay a workload or trace against an OpenAI-compatible server",
        description="Send every request of a workload at its time to URL/v1/completions and report latencies, rates "
        "and what each client got.",
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
    command.set_defaults(run=load)


def load(arguments: Namespace) -> int:
    """Run the command; returns the exit status: 1 if nothing finished."""
    if not arguments.url.startswith(("http://", "https://")):
        raise ValueError(f"a URL starts with http:// or https://, not {arguments.url!r}")
    writable(json=arguments.json)
    workload = workload_of(arguments)
    # Only here, so that everything above works without the extra.
    from fairsched.engines.figures import rate, time
    from fairsched.engines.load import Replay, Target

    target = Target(
        arguments.url.rstrip("/"), arguments.model, arguments.client_header, arguments.key, arguments.ignore_eos
    )
    replayed = asyncio.run(Replay(workload, target).run())
    for name, measures in {"all": replayed.measures, **replayed.clients}.items():
        print(
            f"{name}: {measures.finished} of {measures.requests} finished, "
            f"TTFT p50 {time(measures.ttft_us.p50)} p99 {time(measures.ttft_us.p99)}, "
            f"latency p50 {time(measures.latency_us.p50)} p99 {time(measures.latency_us.p99)}, "
            f"{rate(measures.output_tokens_per_s)} output tokens/s"
        )
    for reason, count in replayed.errors.items():
        print(f"{reason}: {count}")
    if arguments.json is not None:
        document = {
            "fairsched": __version__,
            "trace": {"name": workload.name, "requests": len(workload.jobs), "notes": list(workload.notes)},
            "runs": [{"policy": target.url, "rate_scale": arguments.rate_scale} | replayed.to_json()],
        }
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2))
    return 0 if replayed.measures.finished else 1
