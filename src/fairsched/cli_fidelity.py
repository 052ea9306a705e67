"""`fairsched fidelity`: one workload through the torch engine in real time and through the simulator, compared."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from fairsched import __version__
from fairsched.cli_calibrate import (
    Workbench,
    add_engine_arguments,
    engine_facts,
    measured,
    percent,
    progress_bar,
    show_calibration,
    source_of,
    workbench,
)
from fairsched.cli_common import add_workload_arguments, folders, policy_of, positive_int, workload_of, writable
from fairsched.model.latency import LatencyModel
from fairsched.model.preset_document import PresetError, decoded, preset_document
from fairsched.model.request import Slo
from fairsched.model.workload import Workload
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS, parameters

if TYPE_CHECKING:
    from fairsched.engines.fidelity import Fidelity, Figures

DEFAULT_WORKLOAD = "multi-turn:sessions=240,turns=1,output_tokens=96,max_output_tokens=384"
DEFAULT_PAGE_TOKENS = 16


def add_fidelity(commands: Any) -> None:
    """Declare the command."""
    command: ArgumentParser = commands.add_parser(
        "fidelity",
        help="hold the simulator against the torch engine",
        description="Run one workload through the torch engine in real time and through the simulator with a "
        "calibrated latency model, and compare.  Calibrates first if no preset is given.",
    )
    add_workload_arguments(command)
    command.set_defaults(workload=DEFAULT_WORKLOAD)
    add_engine_arguments(command)
    command.add_argument("--preset", type=Path, metavar="FILE", help="what `fairsched calibrate --out` wrote")
    command.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help=f"of {', '.join(LOCAL_POLICIES)}, or module:attribute (repeat for more; default: fcfs)",
    )
    command.add_argument(
        "--set", action="append", default=[], metavar="PARAM=VALUE", help="set a parameter of every policy"
    )
    command.add_argument(
        "--load", type=share, default=0.85, metavar="X", help="share of the engine's capacity (default: %(default)s)"
    )
    command.add_argument("--runs", type=positive_int, default=3, metavar="N", help="real runs (default: %(default)s)")
    command.add_argument("--slo-ttft-ms", type=share, metavar="MS", help="target (default: 90th percentile simulated)")
    command.add_argument("--slo-tpot-ms", type=share, metavar="MS", help="target (default: 90th percentile simulated)")
    command.add_argument("--log", type=Path, metavar="DIR", help="write each real run's event log")
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.set_defaults(run=fidelity)


def share(text: str) -> float:
    """A positive number."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"expected a positive number, found {text!r}")
    return value


def fidelity(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    writable(json=arguments.json)
    folders(log=arguments.log)
    workload = workload_of(arguments)
    names = list(dict.fromkeys(arguments.policy or ["fcfs"]))
    params = _params(arguments.set)
    for name in names:
        running = parameters(policy_of(name, params))["max_running"]
        if "max_running" in params and running > arguments.batch_max:
            raise ValueError(f"--set max_running={running}: the engine has room for --batch-max {arguments.batch_max}")
    bench = workbench(arguments, page_tokens_of(workload))
    latency = _latency(arguments, bench, names[0])
    results = []
    for name in names:
        results.append(_hold(arguments, bench, latency, workload, name, bench.policy(name, params)))
        _show(results[-1])
    if arguments.log is not None:
        print(f"Logs: {arguments.log}")
    if arguments.json is not None:
        document = {
            "fairsched": __version__,
            "workload": {"name": workload.name, "requests": len(workload.jobs), "notes": workload.notes},
            "load": arguments.load,
            "clock": arguments.clock,
            "preset": preset_document(latency, engine_facts(bench, names[0], arguments.clock)),
            "policies": [to_json(result) for result in results],
        }
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2))
        print(f"Figures: {arguments.json}")
    return 0


def _params(texts: Sequence[str]) -> dict[str, str]:
    params: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in params:
            raise ValueError(f"--set {text!r}: expected PARAM=VALUE, each once")
        params[name] = value
    return params


def page_tokens_of(workload: Workload) -> int:
    """The size of a page: that of the prompts' blocks, of which there is one."""
    sizes = {job.request.prompt.block_tokens for job in workload.jobs if job.request.prompt.keys}
    if len(sizes) > 1:
        raise ValueError(f"prompts have blocks of {', '.join(map(str, sorted(sizes)))} tokens, and a page has one size")
    return sizes.pop() if sizes else DEFAULT_PAGE_TOKENS


def _latency(arguments: Namespace, bench: Workbench, policy: str) -> LatencyModel:
    """The preset's model, or a calibration's."""
    facts = engine_facts(bench, policy, arguments.clock)
    if arguments.preset is None:
        name = f"{facts.model}-{facts.device}"
        found = measured(bench, policy, arguments.repeats, arguments.seed, name, source_of(facts))
        show_calibration(found)
        return found.latency
    try:
        document = decoded(arguments.preset.read_bytes())
    except PresetError as error:
        raise ValueError(f"{arguments.preset}: {error}") from None
    if document.engine is None:
        raise ValueError(f"{arguments.preset} does not say which engine was measured")
    said, here = msgspec.structs.asdict(document.engine), msgspec.structs.asdict(facts)
    for key in ("policy", "dated"):
        del said[key], here[key]
    said["kv_capacity_tokens"], here["kv_capacity_tokens"] = document.kv_capacity_tokens, bench.kv_capacity_tokens
    for key, value in here.items():
        if said[key] != value:
            raise ValueError(f"{arguments.preset} was measured with {key} {said[key]}, and this engine has {value}")
    return document.latency


def _hold(
    arguments: Namespace, bench: Workbench, latency: LatencyModel, workload: Workload, name: str, policy: ComposedPolicy
) -> "Fidelity":
    """One policy: simulate once, then run for real."""
    from fairsched.engines import fidelity as held
    from fairsched.engines.drive import tokens_of
    from fairsched.engines.simulator import simulate

    router, capacity = ROUTERS["round-robin"], bench.kv_capacity_tokens
    offered = arguments.load * held.capacity_rps(workload, policy, router, latency, capacity)
    timed = held.at_rate(workload, offered)
    events = simulate(timed, policy, router, latency, kv_capacity_tokens=capacity)
    typical = held.typical_slo(timed, events)
    slo = Slo(
        ttft_ns=_ns(arguments.slo_ttft_ms) or typical.ttft_ns, tpot_ns=_ns(arguments.slo_tpot_ms) or typical.tpot_ns
    )
    timed = held.with_slo(timed, slo)
    ids = tokens_of(timed, bench.model.config.vocab_size)
    # The first requests once before: what is made when it is first used is there then.
    _real(arguments, bench, latency, _first(timed), name, policy, ids, None)
    runs, at_speed = [], []
    for number in range(arguments.runs):
        run = _real(arguments, bench, latency, timed, name, policy, ids, number)
        as_fast = held.slowed(latency, 1 / (1 + run.step_bias))
        at_speed.append(held.figures(timed, simulate(timed, policy, router, as_fast, kv_capacity_tokens=capacity)))
        runs.append(run)
    said = held.figures(timed, events)
    return held.Fidelity(name, slo.ttft_ns, slo.tpot_ns, offered, said, tuple(at_speed), tuple(runs))


def _first(workload: Workload) -> Workload:
    jobs = tuple(job for job in workload.jobs if not job.after)[:16]
    return msgspec.structs.replace(workload, jobs=jobs)


def _ns(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else max(round(milliseconds * 1e6), 1)


def _real(
    arguments: Namespace,
    bench: Workbench,
    latency: LatencyModel,
    workload: Workload,
    name: str,
    policy: ComposedPolicy,
    ids: dict[int, list[int]],
    number: int | None,
) -> Any:
    """One real run, with its log if it is to be written."""
    from fairsched.engines.fidelity import real_run
    from fairsched.engines.serving_log import ServingLog

    title = "warming up" if number is None else f"{name}, run {number + 1} of {arguments.runs}"
    with ExitStack() as stack:
        log = None
        if arguments.log is not None and number is not None:
            path = arguments.log / f"{name.replace(':', '_')}-{number + 1}.jsonl"
            capacity = bench.kv_capacity_tokens
            log = ServingLog(path, name, parameters(policy), kv_capacity_tokens=capacity, latency=latency)
            stack.enter_context(log)
        progress = stack.enter_context(progress_bar(title, len(workload.jobs)))
        run, engine = real_run(
            workload,
            policy,
            latency,
            bench.spec.executor(bench.model, bench.kv_capacity_tokens),
            bench.clock,
            ids,
            kv_capacity_tokens=bench.kv_capacity_tokens,
            log=log,
            progress=progress,
        )
        if log is not None:
            log.complete(engine.policy_state)
    engine.close()
    return run


# --- what is shown --------------------------------------------------------------------------------------------------


def to_json(result: "Fidelity") -> dict[str, Any]:
    """A policy's entry: simulated and real figures, and the error of each run."""
    entry = attrs.asdict(result)
    entry["errors"] = dict(_errors(result)) | {
        "slo_attainment": result.attainment_errors(),
        "step_mape": [run.step_mape for run in result.runs],
    }
    entry["errors_at_speed"] = dict(_errors(result, at_speed=True)) | {
        "slo_attainment": result.attainment_errors(at_speed=True)
    }
    return entry


def _errors(result: "Fidelity", *, at_speed: bool = False) -> list[tuple[str, list[float]]]:
    def latency(key: str) -> "Callable[[Figures], float | None]":
        return lambda figures: figures.latencies[key]

    rows = [(key, result.errors(latency(key), at_speed=at_speed)) for key in result.simulated.latencies]
    return [*rows, ("makespan_us", result.errors(lambda figures: figures.makespan_us, at_speed=at_speed))]


def _show(result: "Fidelity") -> None:
    from rich.console import Console
    from rich.table import Table

    runs = result.runs
    print(f"{result.policy}: {result.offered_rps:.3f} requests a second offered, {len(runs)} real runs")
    table = Table("figure", "simulated", "real", "error", "at speed", "errors of the runs", box=None)
    at_speed = dict(_errors(result, at_speed=True))
    for key, errors in _errors(result):
        said = _figure(result.simulated, key)
        real = [value for run in runs if (value := _figure(run.figures, key)) is not None]
        if said is not None and real and errors:
            each = ", ".join(percent(error, sign=True) for error in errors)
            typical, steady = percent(median(errors), sign=True), percent(median(at_speed[key]), sign=True)
            table.add_row(key.replace("_us", ""), _ms(said), _ms(median(real)), typical, steady, each)
    attained = [run.figures.slo_attainment for run in runs if run.figures.slo_attainment is not None]
    points = result.attainment_errors()
    if points:
        each = ", ".join(f"{100 * point:+.1f}" for point in points)
        said_share, real_share = percent(result.simulated.slo_attainment), percent(median(attained))
        typical, steady = (
            f"{100 * median(found):+.1f} points" for found in (points, result.attainment_errors(at_speed=True))
        )
        table.add_row("SLO attainment", said_share, real_share, typical, steady, each)
    Console(width=120).print(table)
    print("  Real figures and errors are medians; at speed: with the machine as fast as it was in each run.")
    targets = (("TTFT", result.slo_ttft_ns), ("TPOT", result.slo_tpot_ns))
    print("  SLO: " + " and ".join(f"{name} at most {ns / 1e6:.1f} ms" for name, ns in targets if ns is not None))
    print(
        "  step time MAPE "
        + ", ".join(percent(run.step_mape) for run in runs)
        + "; of all steps together "
        + ", ".join(percent(run.step_bias, sign=True) for run in runs)
    )
    print("  scheduler's share of a step " + ", ".join(percent(run.scheduler_share) for run in runs))


def _figure(figures: "Figures", key: str) -> float | None:
    return figures.makespan_us if key == "makespan_us" else figures.latencies[key]


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:,.2f} ms"
