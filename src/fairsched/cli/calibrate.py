"""`fairsched calibrate`: time the torch engine on this machine, fit its latency model, and write it as a preset.

torch is loaded by this command and by `fairsched fidelity` only.
"""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from fairsched import __version__
from fairsched.cli_common import policy_of, positive_int, writable
from fairsched.model.preset_document import EngineFacts, encoded, preset_document
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES

if TYPE_CHECKING:
    from fairsched.engines.calibrate import Calibration, Residual
    from fairsched.engines.clock import Clock
    from fairsched.engines.torch_model import Llama
    from fairsched.engines.torch_spec import TorchSpec

DEFAULT_REPEATS = 5
SCRIPT_BATCH_MIN = 2


def add_calibrate(commands: Any) -> None:
    """Declare the command."""
    command: ArgumentParser = commands.add_parser(
        "calibrate",
        help="time the torch engine here and fit a latency model",
        description="Time the torch engine over a grid of steps, fit a latency model, judge it by steps that were not "
        "fitted, and write it as a preset for `compare`, `verify` and `fidelity`.",
    )
    add_engine_arguments(command)
    command.add_argument(
        "--policy",
        default="fcfs",
        metavar="NAME",
        help=f"whose decisions are timed: of {', '.join(LOCAL_POLICIES)}, or module:attribute (default: %(default)s)",
    )
    command.add_argument("--seed", type=int, default=0, metavar="S", help="of weights and lengths (default: 0)")
    command.add_argument("--name", help="the preset's name (default: after the model and the device)")
    command.add_argument("--dated", metavar="TEXT", help="a date that the preset shall say")
    command.add_argument("--out", type=Path, metavar="FILE", help="write the preset, as JSON")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the coefficients and every residual")
    command.set_defaults(run=calibrate)


def add_engine_arguments(command: ArgumentParser) -> None:
    """The arguments that name an engine, and how it is measured."""
    command.add_argument(
        "--model", default="small", metavar="SIZE|FOLDER", help="a model's size, or a checkpoint (default: %(default)s)"
    )
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: %(default)s)")
    command.add_argument("--threads", type=positive_int, default=1, metavar="N", help="threads of torch (default: 1)")
    command.add_argument("--kv-capacity-tokens", type=positive_int, metavar="N", help="KV tokens of the engine")
    command.add_argument(
        "--batch-max", type=batch_size, default=32, metavar="N", help="most requests that run (default: %(default)s)"
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


def batch_size(text: str) -> int:
    """A number of requests of which there are at least two."""
    value = positive_int(text)
    if value < SCRIPT_BATCH_MIN:
        raise ArgumentTypeError(f"expected at least {SCRIPT_BATCH_MIN}, found {text}")
    return value


@attrs.frozen
class Workbench:
    """A model in memory, and how an engine of it is made and timed."""

    spec: "TorchSpec"
    model: "Llama"
    kv_capacity_tokens: int
    chunk_max: int
    clock: "Callable[[], Clock]"

    def policy(self, name: str, params: Mapping[str, str] | None = None) -> ComposedPolicy:
        """A policy within the engine's limits, unless `params` say otherwise."""
        limits = {"max_batched_tokens": str(self.chunk_max), "max_running": str(self.spec.batch_max)}
        return policy_of(name, limits | dict(params or {}))


def workbench(arguments: Namespace, page_tokens: int = 16) -> Workbench:
    """The engine that the arguments name; raises `ValueError` where there is none."""
    from fairsched.engines.clock import ThreadClock, WallClock
    from fairsched.engines.torch_spec import TorchSpec

    if arguments.clock == "thread" and (arguments.device != "cpu" or arguments.threads > 1):
        raise ValueError("--clock thread counts one thread of the processor: use --device cpu --threads 1")
    spec = TorchSpec(
        arguments.model, arguments.device, arguments.threads, page_tokens, arguments.batch_max, arguments.seed
    )
    print(f"Loading model {arguments.model} ...", file=sys.stderr)
    model = spec.load()
    capacity = arguments.kv_capacity_tokens or spec.kv_capacity_tokens(model)
    if capacity < 8 * arguments.batch_max:
        raise ValueError(f"--kv-capacity-tokens {capacity} is less than 8 for each of {arguments.batch_max} requests")
    clock = ThreadClock if arguments.clock == "thread" else WallClock
    return Workbench(spec, model, capacity, arguments.chunk_max, clock)


def measured(bench: Workbench, policy: str, repeats: int, seed: int, name: str, source: str) -> "Calibration":
    """Run the grid and fit, with progress on standard error."""
    from fairsched.engines.calibrate import Calibrator, calibrated
    from fairsched.engines.calibrate_grid import scenarios

    scripts = scenarios(bench.kv_capacity_tokens, bench.spec.batch_max, bench.chunk_max, seed)
    calibrator = Calibrator(
        bench.spec.executor(bench.model, bench.kv_capacity_tokens),
        lambda tokens: bench.policy(policy, {"max_batched_tokens": str(tokens), "reserve": "optimistic"}),
        bench.clock(),
        kv_capacity_tokens=bench.kv_capacity_tokens,
        vocab_size=bench.model.config.vocab_size,
        page_tokens=bench.spec.page_tokens,
        seed=seed,
    )
    with progress_bar("calibrating", len(scripts) * repeats) as progress:
        steps = calibrator.measure(scripts, repeats, progress)
    calibrator.close()
    return calibrated(steps, name=name, source=source, kv_capacity_tokens=bench.kv_capacity_tokens)


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error that is told how much is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)


def engine_facts(bench: Workbench, policy: str, clock: str, dated: str | None = None) -> EngineFacts:
    """What a preset says of the engine."""
    facts = bench.spec.facts | {"chunk_max": bench.chunk_max, "policy": policy, "clock": clock, "dated": dated}
    return msgspec.convert(facts, EngineFacts)


def source_of(facts: EngineFacts) -> str:
    """Where the coefficients come from, in a sentence."""
    threads = f"{facts.threads} thread{'s' * (facts.threads != 1)}"
    when = f", {facts.dated}" if facts.dated else ""
    return (
        f"measured by `fairsched calibrate`: model {facts.model}, {facts.dtype}, torch {facts.torch} on "
        f"{facts.device} with {threads}, policy {facts.policy}, {facts.clock} clock{when}"
    )


def calibrate(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    writable(out=arguments.out, json=arguments.json)
    policy_of(arguments.policy, {})
    bench = workbench(arguments)
    facts = engine_facts(bench, arguments.policy, arguments.clock, arguments.dated)
    name = arguments.name or f"{facts.model}-{facts.device}"
    found = measured(bench, arguments.policy, arguments.repeats, arguments.seed, name, source_of(facts))
    document = preset_document(found.latency, facts)
    show_calibration(found)
    if arguments.out is not None:
        arguments.out.write_bytes(encoded(document))
        print(f"Preset: {arguments.out}")
    if arguments.json is not None:
        figures = {
            "fairsched": __version__,
            "preset": document,
            "residuals": [_residual_json(residual) for residual in found.residuals],
            "scheduler_share": found.scheduler_share,
            "decide_share": found.decide_share,
        }
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2))
        print(f"Figures: {arguments.json}")
    return 0


def _residual_json(residual: "Residual") -> dict[str, Any]:
    shape = residual.worst_shape
    return attrs.asdict(residual) | {"worst_shape": None if shape is None else shape._asdict()}


def show_calibration(found: "Calibration") -> None:
    """Coefficients, residuals and the scheduler's share on the terminal."""
    from rich.console import Console
    from rich.table import Table

    latency = found.latency
    print(f"{latency.name}: {latency.source}")
    print(
        f"  prefill  {latency.prefill_constant_ns / 1e6:.3f} ms + {latency.prefill_token_ns / 1e3:.2f} us a token "
        f"+ {latency.prefill_attention_ps / 1e3:.3f} ns a token and token of context"
    )
    piece = latency.decode[0]
    constants = [piece.constant_ns / 1e6 for piece in latency.decode]
    of_size = (
        f"{min(constants):.3f} to {max(constants):.3f} ms by batch size" if constants[1:] else f"{constants[0]:.3f} ms"
    )
    print(
        f"  decode   {of_size} + {piece.request_ns / 1e3:.2f} us a request "
        f"+ {piece.context_token_ns / 1e3:.3f} us a token of context"
    )
    table = Table("steps", "points", "MAPE", "worst point", "at", "steps", "MAPE of single steps", box=None)
    for residual in found.residuals:
        shape = residual.worst_shape
        at = ""
        if shape is not None:
            prompts = f"{sum(n for n, _ in shape.chunks)} prompt tokens, " if shape.chunks else ""
            at = f"{prompts}{shape.batch} requests over {shape.context_tokens}"
        table.add_row(
            residual.kind,
            str(residual.points),
            percent(residual.mape),
            percent(residual.worst, sign=True),
            at,
            str(residual.steps),
            percent(residual.steps_mape),
        )
    print("Error on scripts that were not fitted (a point is the median of a step over the repeats):")
    Console(width=120).print(table)
    print(
        f"Scheduler's share of a step: {percent(found.scheduler_share)} "
        f"(deciding and guarding {percent(found.decide_share)}, books {percent(found.books_share)})"
    )


def percent(value: float | None, *, sign: bool = False) -> str:
    """A share as text."""
    if value is None:
        return "-"
    return f"{100 * value:+.1f} %" if sign else f"{100 * value:.1f} %"
