"""`fairsched calibrate` and `fairsched validate`: the torch engine's latency model, and the simulator held against it.

torch is loaded by these commands only.
"""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from fairsched import __version__
from fairsched.cli.arguments import (
    add_workload_arguments,
    assignment,
    job_count,
    positive_int,
    positive_number,
    seed,
    span,
    workload_of,
)
from fairsched.cli.commands.logs import add_reading_arguments, log_name, reading_of
from fairsched.cli.output import apart, folders, percent, print_files, progress_bar, shown, writable, write_figures
from fairsched.engines.analysis import Column, print_lines, print_table, print_text
from fairsched.engines.files import write_whole
from fairsched.model.latency import encoded, preset_document
from fairsched.policies.registry import LOCAL_POLICIES, local_policy, parameters, with_parameters

if TYPE_CHECKING:
    from rich.console import Console

    from fairsched.engines.calibration import Calibration, Fidelity, RunFigures, Workbench
    from fairsched.engines.calibration.from_log import LogFit
    from fairsched.model.request import Workload

DEFAULT_MODEL = "small"
DEFAULT_REPEATS = 5
SCRIPT_BATCH_MIN = 2
VALIDATED = "multi-turn:sessions=240,turns=1,output_tokens=96,max_output_tokens=384"
"""The workload that is run unless another is named."""


def add_calibrate(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Time the torch engine over a grid of steps, fit a latency model, judge it by steps that were not fitted, and "
        "write it as a preset for `compare`, `verify` and `validate`.  With --log, fit a machine to an access log: "
        "step times, workers, memory and scheduler from its first half, judged on its second."
    )
    command.add_argument(
        "--log", nargs="+", metavar="LOG", help="fit to this access log (or its files), and time no engine"
    )
    add_reading_arguments(
        command, model=f"a model's size, or a checkpoint (default: {DEFAULT_MODEL}); of a log, only requests for these"
    )
    command.add_argument(
        "--workers", type=positive_int, metavar="N", help="how many workers wrote the log (default: found out)"
    )
    _add_engine_arguments(command)
    command.add_argument(
        "--policy",
        default="fcfs",
        metavar="NAME",
        help=f"the policy whose decisions are timed: of {', '.join(LOCAL_POLICIES)}, or module:attribute (default: "
        "%(default)s)",
    )
    command.add_argument("--seed", type=seed, default=0, metavar="S", help="of weights and lengths (default: 0)")
    command.add_argument("--name", help="the preset's name (default: after the model and the device)")
    command.add_argument("--dated", metavar="TEXT", help="a date that the preset shall say")
    command.add_argument("--out", type=Path, metavar="FILE", help="write the preset, as JSON")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the coefficients and every residual")
    command.set_defaults(run=run_calibrate)


def add_validate(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Run one workload through the torch engine in real time and through the simulator with a calibrated latency "
        "model, and compare.  Calibrates first if no preset is given."
    )
    add_workload_arguments(command)
    command.set_defaults(workload=VALIDATED)
    command.add_argument(
        "--model", metavar="SIZE|FOLDER", help=f"a model's size, or a checkpoint (default: {DEFAULT_MODEL})"
    )
    _add_engine_arguments(command)
    command.add_argument("--preset", type=Path, metavar="FILE", help="what `fairsched calibrate --out` wrote")
    command.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help=f"of {', '.join(LOCAL_POLICIES)}, or module:attribute (repeat for more; default: fcfs)",
    )
    command.add_argument(
        "--set",
        action="append",
        type=assignment,
        default=[],
        metavar="PARAM=VALUE",
        help="set a parameter of every policy",
    )
    command.add_argument(
        "--load",
        type=positive_number,
        default=0.85,
        metavar="X",
        help="share of the engine's capacity (default: %(default)s)",
    )
    command.add_argument("--runs", type=positive_int, default=3, metavar="N", help="real runs (default: %(default)s)")
    for name in ("ttft", "tpot"):
        command.add_argument(
            f"--slo-{name}-ms",
            dest=f"slo_{name}_ns",
            type=span("ms"),
            metavar="TIME",
            help="target, as 2s or a number of milliseconds (default: 90th percentile simulated)",
        )
    command.add_argument("--log", type=Path, metavar="DIR", help="write each real run's event log")
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.set_defaults(run=run_validate)


def _add_engine_arguments(command: ArgumentParser) -> None:
    """Declare the arguments that name an engine, and how it is measured."""
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: %(default)s)")
    command.add_argument("--threads", type=job_count, default=1, metavar="N", help="threads of torch (default: 1)")
    command.add_argument("--kv-capacity-tokens", type=positive_int, metavar="N", help="KV tokens of the engine")
    command.add_argument(
        "--batch-max", type=_batch_size, default=32, metavar="N", help="most requests that run (default: %(default)s)"
    )
    command.add_argument(
        "--chunk-max",
        type=positive_int,
        default=256,
        metavar="N",
        help="most prompt tokens of a step (default: %(default)s)",
    )
    command.add_argument(
        "--repeats", type=positive_int, default=DEFAULT_REPEATS, metavar="N", help="runs of the grid (default: 5)"
    )
    command.add_argument(
        "--clock",
        choices=("wall", "thread"),
        default="wall",
        help="thread: processor time, which other programs do not lengthen, and waits are skipped (default: wall)",
    )


def _batch_size(text: str) -> int:
    """A number of requests of which there are at least two."""
    value = positive_int(text)
    if value < SCRIPT_BATCH_MIN:
        raise ArgumentTypeError(f"expected at least {SCRIPT_BATCH_MIN}, found {text}")
    return value


def _workbench(arguments: Namespace, workload: "Workload | None" = None) -> "Workbench":
    """Load the engine that the arguments name, with pages as large as the blocks of the workload's prompts."""
    from fairsched.engines.calibration import Workbench, page_tokens_of
    from fairsched.engines.torch import PAGE_TOKENS, TorchSpec

    model = arguments.model or DEFAULT_MODEL
    usual = PAGE_TOKENS[arguments.device]
    page_tokens = usual if workload is None else page_tokens_of(workload, usual)
    spec = TorchSpec(model, arguments.device, arguments.threads, page_tokens, arguments.batch_max, arguments.seed)
    print(f"Loading model {model} ...", file=sys.stderr)
    return Workbench.load(
        spec, kv_capacity_tokens=arguments.kv_capacity_tokens, chunk_max=arguments.chunk_max, clock=arguments.clock
    )


def run_calibrate(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    writable(out=arguments.out, json=arguments.json)
    if arguments.log is not None:
        return _fit_log(arguments)
    local_policy(arguments.policy)
    from fairsched.engines.calibration import calibrate

    bench = _workbench(arguments)
    with progress_bar() as progress:
        found = calibrate(
            bench,
            arguments.policy,
            repeats=arguments.repeats,
            seed=arguments.seed,
            name=arguments.name,
            dated=arguments.dated,
            progress=progress,
        )
    document = preset_document(found.latency, bench.facts(arguments.policy, arguments.dated))
    if arguments.out is not None:
        write_whole(arguments.out, encoded(document))
    figures = {
        "fairsched": __version__,
        "preset": document,
        "residuals": [residual.to_dict() for residual in found.residuals],
        "scheduler_share": found.scheduler_share,
        "decide_share": found.decide_share,
    }
    write_figures(arguments.json, figures)
    with shown(arguments.json) as console:
        _show_calibration(found, console)
        print_files(console, Preset=arguments.out, Figures=arguments.json)
    return 0


def _fit_log(arguments: Namespace) -> int:
    """Fit a machine to an access log; returns the exit status."""
    from fairsched.engines.calibration.from_log import fit_log
    from fairsched.engines.logs.access import read_access_log

    apart(arguments.log, out=arguments.out, json=arguments.json)
    reading = reading_of(arguments)
    log = read_access_log(arguments.log, reading["columns"], skip=reading["skip_malformed"], filters=reading["filters"])
    with progress_bar() as progress:
        found = fit_log(
            log, workers=arguments.workers, progress=lambda what: progress(f"{log_name(arguments.log)}: {what}", 0, 0)
        )
    if arguments.out is not None:
        write_whole(arguments.out, encoded(found.document))
    write_figures(arguments.json, {"fairsched": __version__, "preset": found.document, **found.to_json()})
    with shown(arguments.json) as console:
        _show_log_fit(found, console)
        print_files(console, Preset=arguments.out, Figures=arguments.json)
    return 0


def run_validate(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    writable(json=arguments.json)
    folders(log=arguments.log)
    workload = workload_of(arguments)
    names = list(dict.fromkeys(arguments.policy or ["fcfs"]))
    params = dict(arguments.set)
    if len(params) < len(arguments.set):
        raise ValueError("--set: a parameter is set twice")
    for name in names:
        running = parameters(with_parameters(local_policy(name), params))["max_running"]
        if "max_running" in params and running > arguments.batch_max:
            raise ValueError(f"--set max_running={running}: the engine has room for --batch-max {arguments.batch_max}")
    from fairsched.engines.calibration import calibrate, validate

    bench = _workbench(arguments, workload)
    results = []
    with progress_bar() as progress:
        if arguments.preset is None:
            found = calibrate(bench, names[0], repeats=arguments.repeats, seed=arguments.seed, progress=progress)
            with shown(arguments.json) as console:
                _show_calibration(found, console)
            latency = found.latency
        else:
            latency = bench.latency_of(arguments.preset, names[0])
        for result in validate(
            bench,
            latency,
            workload,
            names,
            params=params,
            load=arguments.load,
            runs=arguments.runs,
            ttft_ns=arguments.slo_ttft_ns,
            tpot_ns=arguments.slo_tpot_ns,
            logs=arguments.log,
            progress=progress,
        ):
            results.append(result)
            with shown(arguments.json) as console:
                _show_validation(result, console)
    document = {
        "fairsched": __version__,
        "workload": {"name": workload.name, "requests": len(workload.jobs), "notes": workload.notes},
        "load": arguments.load,
        "clock": arguments.clock,
        "preset": preset_document(latency, bench.facts(names[0])),
        "policies": [result.to_dict() for result in results],
    }
    write_figures(arguments.json, document)
    with shown(arguments.json) as console:
        print_files(console, Logs=arguments.log, Figures=arguments.json)
    return 0


# --- what is shown --------------------------------------------------------------------------------------------------


def _show_calibration(found: "Calibration", console: "Console") -> None:
    """Coefficients, residuals and the scheduler's share on the terminal."""
    latency = found.latency
    piece = latency.decode[0]
    constants = [piece.constant_ns / 1e6 for piece in latency.decode]
    of_size = (
        f"{min(constants):.3f} to {max(constants):.3f} ms by batch size" if constants[1:] else f"{constants[0]:.3f} ms"
    )
    print_text(
        console,
        f"{latency.name}: {latency.source}\n"
        f"  prefill  {latency.prefill_constant_ns / 1e6:.3f} ms + {latency.prefill_token_ns / 1e3:.2f} us a token "
        f"+ {latency.prefill_attention_ps / 1e3:.3f} ns a token and token of context\n"
        f"  decode   {of_size} + {piece.request_ns / 1e3:.2f} us a request "
        f"+ {piece.context_token_ns / 1e3:.3f} us a token of context",
    )
    rows = []
    for residual in found.residuals:
        shape = residual.worst_shape
        at = ""
        if shape is not None:
            prompts = f"{sum(n for n, _ in shape.chunks)} prompt tokens, " if shape.chunks else ""
            at = f"{prompts}{shape.batch} requests over {shape.context_tokens}"
        rows.append(
            [
                residual.kind,
                str(residual.points),
                percent(residual.mape),
                percent(residual.worst, sign=True),
                at,
                str(residual.steps),
                percent(residual.steps_mape),
            ]
        )
    columns = [
        Column("steps", kind="word"),
        Column("points", 2),
        Column("MAPE"),
        Column("worst\npoint"),
        Column("at", 4, "word"),
        Column("steps", 3),
        Column("MAPE of\nsingle steps", 1),
    ]
    print_lines(console, ["Error on scripts that were not fitted (a point is the median of a step over the repeats):"])
    print_table(console, columns, rows)
    print_lines(
        console,
        [
            f"Scheduler's share of a step: {percent(found.scheduler_share)} "
            f"(deciding and guarding {percent(found.decide_share)}, accounting {percent(found.books_share)})"
        ],
    )


def _show_log_fit(found: "LogFit", console: "Console") -> None:
    """Sentences, and observed against simulated percentiles of the half that was held out."""
    print_lines(console, found.sentences())
    columns = [
        Column("held-out half", kind="word"),
        Column("percentile"),
        Column("observed"),
        Column("simulated"),
        Column("error"),
    ]
    rows = [
        [
            each.figure,
            f"p{each.percent}",
            f"{each.observed_ms:,.1f} ms",
            f"{each.simulated_ms:,.1f} ms",
            percent(each.error, sign=True),
        ]
        for each in found.errors
    ]
    print_table(console, columns, rows)


def _show_validation(result: "Fidelity", console: "Console") -> None:
    runs = result.runs
    print_lines(
        console, [f"{result.policy}: {result.offered_rps:.3f} requests a second offered, {len(runs)} real runs"]
    )
    rows: list[list[str]] = []
    at_speed = result.all_errors(at_speed=True)
    for key, errors in result.all_errors().items():
        said = _figure(result.simulated, key)
        real = [value for run in runs if (value := _figure(run.figures, key)) is not None]
        if said is not None and real and errors:
            each = ", ".join(percent(error, sign=True) for error in errors)
            typical, steady = percent(median(errors), sign=True), percent(median(at_speed[key]), sign=True)
            rows.append([key.replace("_us", ""), _ms(said), _ms(median(real)), typical, steady, each])
    attained = [run.figures.slo_attainment for run in runs if run.figures.slo_attainment is not None]
    points = result.attainment_errors()
    if points:
        each = ", ".join(f"{100 * point:+.1f}" for point in points)
        said_share, real_share = percent(result.simulated.slo_attainment), percent(median(attained))
        typical, steady = (
            f"{100 * median(found):+.1f} points" for found in (points, result.attainment_errors(at_speed=True))
        )
        rows.append(["SLO attainment", said_share, real_share, typical, steady, each])
    columns = [
        Column("figure", kind="word"),
        Column("simulated"),
        Column("real"),
        Column("error"),
        Column("at speed", 1),
        Column("errors of the runs", 2),
    ]
    print_table(console, columns, rows)
    targets = (("TTFT", result.slo_ttft_ns), ("TPOT", result.slo_tpot_ns))
    step_times = ", ".join(percent(run.step_mape) for run in runs)
    together = ", ".join(percent(run.step_bias, sign=True) for run in runs)
    print_text(
        console,
        "  Real figures and errors are medians; at speed: with the machine as fast as it was in each run.\n"
        f"  SLO: {' and '.join(f'{name} at most {ns / 1e6:.1f} ms' for name, ns in targets if ns is not None)}\n"
        f"  step time MAPE {step_times}; of all steps together {together}\n"
        f"  scheduler's share of a step {', '.join(percent(run.scheduler_share) for run in runs)}",
    )


def _figure(figures: "RunFigures", key: str) -> float | None:
    return figures.makespan_us if key == "makespan_us" else figures.latencies[key]


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:,.2f} ms"
