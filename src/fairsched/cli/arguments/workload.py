"""How workloads, latency models and predictors are named in arguments."""

import shlex
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fairsched.cli.arguments.values import output_limit, pairs, positive_int, rate_scales, seed
from fairsched.engines.fleet import WorkerSpec
from fairsched.engines.simulation import Predictor, predictor
from fairsched.engines.workloads import (
    ACCOUNTS,
    GRAMMAR,
    ONE_WORKER,
    WORKLOADS,
    ClientSpec,
    TraceError,
    generate,
    load_trace,
    with_account,
)
from fairsched.model.latency import DEFAULT_PRESET, PRESETS
from fairsched.model.request import Workload

DEFAULT_WORKLOAD = "demo"


def add_model_arguments(command: ArgumentParser) -> None:
    """Declare the arguments that say what a worker is like."""
    command.add_argument(
        "--latency-model",
        default=DEFAULT_PRESET,
        metavar="NAME|FILE",
        help=f"of {', '.join(PRESETS)}, or a file of `fairsched calibrate` (default: %(default)s)",
    )
    command.add_argument(
        "--kv-capacity-tokens", type=positive_int, metavar="N", help="KV tokens of a worker (default: the model's)"
    )


def add_workload_arguments(command: ArgumentParser, several_rates: bool = False) -> None:
    """Declare the arguments that name a workload; with `several_rates`, `rate_scale` is a list."""
    source = command.add_mutually_exclusive_group()
    source.add_argument(
        "--trace", metavar="FILE", help="a trace: Azure, BurstGPT or VTC arena CSV; Mooncake, Qwen-Bailian or our JSONL"
    )
    source.add_argument(
        "--workload",
        metavar="NAME[:PARAM=VALUE,...]",
        default=DEFAULT_WORKLOAD,
        help=f"a generated workload: {', '.join(WORKLOADS)} (default: %(default)s)",
    )
    command.add_argument(
        "--misbehave",
        choices=("none", "more-requests", "longer-prefix"),
        help="how client 0 of a generated workload misbehaves (default: the workload's own)",
    )
    command.add_argument("--format", help="the trace's format, if it should not be recognised")
    if several_rates:
        of_each = "multiply the arrival rate by X; several are runs of their own"
        command.add_argument("--rate-scale", type=rate_scales, default=[1.0], metavar="X[,X...]", help=of_each)
    else:
        command.add_argument(
            "--rate-scale", type=float, default=1.0, metavar="X", help="multiply the arrival rate by X"
        )
    command.add_argument("--limit", type=positive_int, metavar="N", help="only the first N requests")
    command.add_argument(
        "--clients", metavar="SPEC", help=f"client mix of a trace without clients, or weights: {GRAMMAR}"
    )
    command.add_argument(
        "--account",
        choices=ACCOUNTS,
        default="client",
        help="what a call is charged to: its client, or an account of its program or session (default: %(default)s)",
    )
    command.add_argument(
        "--max-output-tokens",
        type=output_limit,
        default="trace-max",
        metavar="trace-max|N|oracle",
        help="declared output limit of a trace's requests; every bound rests on it (default: %(default)s)",
    )
    command.add_argument("--seed", type=seed, default=0, metavar="S", help="seed of all random draws (default: 0)")


def workload_of(
    arguments: Namespace, workers: Sequence[WorkerSpec] = ONE_WORKER, rate_scale: float | None = None
) -> Workload:
    """Return the workload that the arguments name, at a rate that suits `workers` where it is `auto`.

    `rate_scale` is one of the arguments' where there are several.  Raises `ValueError` on anything that does not fit.
    """
    return with_account(_workload(arguments, workers, rate_scale), arguments.account)


def _workload(arguments: Namespace, workers: Sequence[WorkerSpec], rate_scale: float | None) -> Workload:
    scale = arguments.rate_scale if rate_scale is None else rate_scale
    if arguments.trace is not None:
        if arguments.misbehave is not None:
            raise ValueError("--misbehave is for generated workloads, not for a trace")
        with _logs_are_no_traces(arguments.trace):
            return load_trace(
                arguments.trace,
                format=arguments.format,
                limit=arguments.limit,
                rate_scale=scale,
                clients=None if arguments.clients is None else ClientSpec.parse(arguments.clients),
                max_output_tokens=arguments.max_output_tokens,
                seed=arguments.seed,
            )
    if arguments.clients is not None or arguments.max_output_tokens != "trace-max" or arguments.format is not None:
        raise ValueError("--clients, --max-output-tokens and --format are for traces; a generated workload has its own")
    name, _, text = arguments.workload.partition(":")
    first = WORKLOADS[name].first if name in WORKLOADS else None
    if first and text and "=" not in text.partition(",")[0]:
        text = f"{first}={text}"
    return generate(
        name,
        misbehave=arguments.misbehave,
        seed=arguments.seed,
        rate_scale=scale,
        limit=arguments.limit,
        workers=workers,
        **pairs(text),
    )


@contextmanager
def _logs_are_no_traces(path: str) -> Iterator[None]:
    """Say how a log becomes a trace, where one was given for a trace."""
    try:
        yield
    except TraceError:
        from fairsched.engines.analysis.audit import is_log

        if not is_log(Path(path)):
            raise
        convert = f"fairsched trace convert {shlex.quote(path)} trace.jsonl"
        raise ValueError(f"{path} is a log and no trace; {convert} makes a trace of it") from None


def predictor_of(text: str) -> Predictor:
    """Return a length predictor, given as NAME or NAME:PARAM=VALUE,..."""
    name, _, params = text.partition(":")
    try:
        return predictor(name, pairs(params))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
