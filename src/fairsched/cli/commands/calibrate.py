"""`fairsched calibrate` and `fairsched validate`: the torch engine's latency model, and the simulator held against it.

torch is loaded by these commands only.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fairsched import __version__
from fairsched.cli import values
from fairsched.cli.options import Log, ReadingOptions, Source, SourceOptions, Targets, log_name
from fairsched.cli.output import apart, folders, percent, print_files, progress_bar, shown, writable, write_figures
from fairsched.cli.values import each
from fairsched.engines.analysis import Column, print_lines, print_table, print_text
from fairsched.engines.files import write_whole
from fairsched.model.machine import encoded, preset_document
from fairsched.policies.registry import local_policy, parameters, with_parameters

if TYPE_CHECKING:
    from rich.console import Console

    from fairsched.engines.calibration import Calibration, Fidelity, RunFigures, Workbench
    from fairsched.engines.calibration.from_log import LogFit
    from fairsched.model.request import Workload

VALIDATED = "multi-turn:sessions=240,turns=1,output_tokens=96,max_output_tokens=384"
"""The workload that is run unless another is named."""


def _batch(text: str) -> tuple[int, int]:
    """Requests, and tokens of a step."""
    requests, colon, tokens = text.partition(":")
    return values.whole("at least 2 requests", 2)(requests), values.positive_int(tokens) if colon else 256


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The engine, and how it is measured."""

    model: Annotated[str, Parameter(metavar="SIZE|FOLDER")] = "small"
    """a model's size, or a checkpoint"""
    device: Annotated[
        tuple[str, int], values.read(values.torch_device, "cpu[:THREADS]|cuda", show_default=values.joined(":"))
    ] = ("cpu", 1)
    """where torch computes, with how many threads"""
    kv_capacity_tokens: values.PositiveInt | None = None
    """KV tokens of the engine"""
    batch_max: Annotated[tuple[int, int], values.read(_batch, "N[:TOKENS]", show_default=values.joined(":"))] = (
        32,
        256,
    )
    """most requests that run, and most prompt tokens of a step"""
    repeats: values.PositiveInt = 5
    """runs of the grid"""
    clock: Literal["wall", "thread"] = "wall"
    """thread: processor time, which other programs do not lengthen, and waits are skipped"""

    def load(self, seed: int, workload: "Workload | None" = None) -> "Workbench":
        """Load the engine, with pages as large as the blocks of the workload's prompts."""
        from fairsched.engines.calibration import Workbench, page_tokens_of
        from fairsched.engines.torch import PAGE_TOKENS, TorchSpec

        usual = PAGE_TOKENS[self.device[0]]
        page_tokens = usual if workload is None else page_tokens_of(workload, usual)
        spec = TorchSpec(self.model, *self.device, page_tokens, self.batch_max[0], seed)
        print(f"Loading model {self.model} ...", file=sys.stderr)
        return Workbench.load(
            spec, kv_capacity_tokens=self.kv_capacity_tokens, chunk_max=self.batch_max[1], clock=self.clock
        )


def calibrate(
    *logs: Log,
    of_log: ReadingOptions = ReadingOptions(),
    workers: values.PositiveInt | None = None,
    of_engine: EngineOptions = EngineOptions(),
    policy: str = "fcfs",
    seed: values.Seed = 0,
    out: values.File | None = None,
    json: values.Json = None,
) -> int:
    """Time the torch engine over a grid of steps, fit a latency model, judge it by steps that were not fitted, and
    write it as a preset for `compare`, `verify` and `validate`.  With a log, fit a machine to it: step times, workers,
    memory and scheduler from its first half, judged on its second.

    Args:
        workers: how many workers wrote the log (default: found out)
        policy: the policy whose decisions are timed: a name of `fairsched policies`, or module:attribute
        out: write the preset, as JSON
    """
    writable(out=out, json=json)
    if logs:
        return _fit_log(logs, of_log, workers, out, json)
    local_policy(policy)
    from fairsched.engines import calibration

    bench = of_engine.load(seed)
    with progress_bar() as progress:
        found = calibration.calibrate(bench, policy, repeats=of_engine.repeats, seed=seed, progress=progress)
    document = preset_document(found.latency, bench.facts(policy))
    if out is not None:
        write_whole(out, encoded(document))
    figures = {
        "fairsched": __version__,
        "preset": document,
        "residuals": [residual.to_dict() for residual in found.residuals],
        "scheduler_share": found.scheduler_share,
        "decide_share": found.decide_share,
    }
    write_figures(json, figures)
    with shown(json) as console:
        _show_calibration(found, console)
        print_files(console, Preset=out, Figures=json)
    return 0


def _fit_log(
    logs: tuple[str, ...], of_log: ReadingOptions, workers: int | None, out: Path | None, json: Path | None
) -> int:
    """Fit a machine to an access log; returns the exit status."""
    from fairsched.engines.calibration.from_log import fit_log
    from fairsched.engines.logs.access import read_access_log

    apart(logs, out=out, json=json)
    reading = of_log.reading()
    log = read_access_log(logs, reading["columns"], skip=reading["skip_malformed"], filters=reading["filters"])
    with progress_bar() as progress:
        found = fit_log(log, workers=workers, progress=lambda what: progress(f"{log_name(logs)}: {what}", 0, 0))
    if out is not None:
        write_whole(out, encoded(found.document))
    write_figures(json, {"fairsched": __version__, "preset": found.document, **found.to_json()})
    with shown(json) as console:
        _show_log_fit(found, console)
        print_files(console, Preset=out, Figures=json)
    return 0


def validate(
    workload: Source = VALIDATED,
    /,
    *,
    of_workload: SourceOptions = SourceOptions(),
    of_engine: EngineOptions = EngineOptions(),
    preset: values.File | None = None,
    policy: Annotated[tuple[str, ...], each(str, "NAME")] = ("fcfs",),
    set: values.Assignments = (),
    load: values.PositiveNumber = 0.85,
    runs: values.PositiveInt = 3,
    slo: Targets | None = None,
    log: values.Folder | None = None,
    truth: values.Folder | None = None,
    json: values.Json = None,
) -> int:
    """Run one workload through the torch engine in real time and through the simulator with a calibrated latency model,
    and compare.  Calibrates first if no preset is given.  With --truth, hold the simulator against what others measured
    on GPUs instead.

    Args:
        truth: a folder of published measurements, which docs/explanation/validation.md names
        workload: a trace, or a generated workload
        preset: what `fairsched calibrate --out` wrote
        policy: a name of `fairsched policies`, or module:attribute (repeat)
        set: set a parameter of every policy (repeat)
        load: share of the engine's capacity
        runs: real runs
        slo: targets, as ttft=2s,tpot=50ms (default: 90th percentiles simulated)
        log: write each real run's event log
    """
    writable(json=json)
    if truth is not None:
        return _validate_truth(truth, json)
    folders(log=log)
    requests = of_workload.at_rate(workload, 1.0)
    names = list(dict.fromkeys(policy))
    params = values.settings(set)
    for name in names:
        running = parameters(with_parameters(local_policy(name), params))["max_running"]
        most = of_engine.batch_max[0]
        if "max_running" in params and isinstance(running, int) and running > most:
            raise ValueError(f"--set max_running={running}: the engine has room for --batch-max {most}")
    from fairsched.engines import calibration

    bench = of_engine.load(of_workload.seed, requests)
    results = []
    with progress_bar() as progress:
        if preset is None:
            found = calibration.calibrate(
                bench, names[0], repeats=of_engine.repeats, seed=of_workload.seed, progress=progress
            )
            with shown(json) as console:
                _show_calibration(found, console)
            latency = found.latency
        else:
            latency = bench.latency_of(preset, names[0])
        for result in calibration.validate(
            bench,
            latency,
            requests,
            names,
            params=params,
            load=load,
            runs=runs,
            ttft_ns=None if slo is None else slo.ttft_ns,
            tpot_ns=None if slo is None else slo.tpot_ns,
            logs=log,
            progress=progress,
        ):
            results.append(result)
            with shown(json) as console:
                _show_validation(result, console)
    document = {
        "fairsched": __version__,
        "workload": {"name": requests.name, "requests": len(requests.jobs), "notes": requests.notes},
        "load": load,
        "clock": of_engine.clock,
        "preset": preset_document(latency, bench.facts(names[0])),
        "policies": [result.to_dict() for result in results],
    }
    write_figures(json, document)
    with shown(json) as console:
        print_files(console, Logs=log, Figures=json)
    return 0


def _validate_truth(folder: Path, json: Path | None) -> int:
    """Hold the simulator against published measurements; returns the exit status."""
    from fairsched.engines.calibration import hold, read_experiments

    experiments = read_experiments(folder)
    found = []
    columns = [Column("figure", kind="word"), Column("measured"), Column("simulated"), Column("error")]
    with progress_bar() as progress:
        for i, experiment in enumerate(experiments):
            progress(experiment.name, i, len(experiments))
            held = hold(experiment)
            found.append(held.to_dict())
            with shown(json) as console:
                constants = f"fitted: {experiment.fitted}" if experiment.fitted else "predicted"
                print_lines(
                    console,
                    [
                        f"{experiment.name} ({constants}; {held.simulated_s:,.0f} s simulated in {held.cpu_s:,.1f} s)",
                        experiment.about,
                    ],
                )
                for k, stage in enumerate(experiment.stages):
                    errors = held.errors(k)
                    rows = [
                        [
                            f"{stage.name}, {key}",
                            f"{real:.4g}",
                            f"{held.simulated[k][key]:.4g}",
                            _error(key, errors[key]),
                        ]
                        for key, real in stage.measured.items()
                    ]
                    print_table(console, columns, rows)
    write_figures(json, {"fairsched": __version__, "experiments": found})
    return 0


def _error(key: str, error: float) -> str:
    return f"{100 * error:+.1f} points" if key == "lost" else percent(error, sign=True)


# --- what is shown --------------------------------------------------------------------------------------------------


def _show_calibration(found: "Calibration", console: "Console") -> None:
    """Show coefficients, residuals and the scheduler's share on the terminal."""
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
    """Show sentences, and observed against simulated percentiles of the half that was held out."""
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
