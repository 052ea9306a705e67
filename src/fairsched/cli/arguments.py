"""What several commands share: how a workload, a cluster and a policy are named in arguments."""

import importlib
import os
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairsched.engines.changes import WorkerSpec
from fairsched.engines.predictors import Predictor, predictor
from fairsched.engines.workloads.clients import GRAMMAR, ClientSpec
from fairsched.engines.workloads.generate import WORKLOADS, generate
from fairsched.engines.workloads.load import load_trace
from fairsched.engines.workloads.saturation import ONE_WORKER
from fairsched.model.latency import LatencyModel
from fairsched.model.preset_document import PresetError, decoded
from fairsched.model.presets import DEFAULT_PRESET, PRESETS
from fairsched.model.workload import Workload
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import local_policy, unknown, with_parameters

DEFAULT_WORKLOAD = "demo"


_TIME = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|min|h)?")
_NS = {"us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_NS_MAX = 2**62


def positive_int(text: str) -> int:
    """A positive whole number."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ArgumentTypeError(f"expected a positive whole number, found {text!r}")
    return value


def names(text: str) -> list[str]:
    """Names separated by commas."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise ArgumentTypeError("expected names separated by commas")
    if len(set(found)) < len(found):
        raise ArgumentTypeError(f"a name is given twice in {text!r}")
    return found


def output_limit(text: str) -> str | int:
    """`trace-max`, `oracle` or a positive whole number."""
    return text if text in ("trace-max", "oracle") else positive_int(text)


def rate_scales(text: str) -> list[float]:
    """Positive numbers separated by commas."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"expected numbers separated by commas, found {text!r}") from None
    if len(set(found)) < len(found):
        raise ArgumentTypeError(f"a rate scale is given twice in {text!r}")
    return found


def span_ns(text: str) -> int:
    """A length of time, as 5s, 500ms, 2min or a number of seconds; in nanoseconds."""
    found = _TIME.fullmatch(text.strip())
    value = float(found[1]) * _NS[found[2] or "s"] if found else 0.0
    if not 1 <= value <= _NS_MAX:
        raise ArgumentTypeError(f"expected a length of time as 5s, 500ms or 2min, found {text!r}")
    return round(value)


def add_model_arguments(command: ArgumentParser) -> None:
    """The arguments that say what a worker is like."""
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
    """The arguments that name a workload; with `several_rates`, `rate_scale` is a list."""
    source = command.add_mutually_exclusive_group()
    source.add_argument(
        "--trace",
        metavar="FILE",
        help="a trace: Azure, BurstGPT or VTC arena CSV; Mooncake, Qwen-Bailian or our JSONL",
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
        "--max-output-tokens",
        type=output_limit,
        default="trace-max",
        metavar="trace-max|N|oracle",
        help="declared output limit of a trace's requests; every bound rests on it (default: %(default)s)",
    )
    command.add_argument("--seed", type=int, default=0, metavar="S", help="seed of whatever is drawn (default: 0)")


def workload_of(
    arguments: Namespace, workers: Sequence[WorkerSpec] = ONE_WORKER, rate_scale: float | None = None
) -> Workload:
    """The workload that the arguments name, at a rate that suits `workers` where it is `auto`.

    `rate_scale` is one of the arguments' where there are several.  Raises `ValueError` on anything that does not fit.
    """
    scale = arguments.rate_scale if rate_scale is None else rate_scale
    if arguments.trace is not None:
        if arguments.misbehave is not None:
            raise ValueError("--misbehave is for generated workloads, not for a trace")
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
    if name == "mixed" and text and "=" not in text.partition(",")[0]:
        text = f"parts={text}"
    return generate(
        name,
        misbehave=arguments.misbehave,
        seed=arguments.seed,
        rate_scale=scale,
        limit=arguments.limit,
        workers=workers,
        **pairs(text),
    )


def writable(**targets: Path | None) -> None:
    """Raise `ValueError` for a file, by its option's name, that cannot be written since its folder is not there: to be
    asked before long work."""
    for option, file in targets.items():
        if file is not None and not file.parent.is_dir():
            raise ValueError(f"--{option}: there is no folder {file.parent}")


def apart(source: Path, **targets: Path | None) -> None:
    """Raise `ValueError` for a file that would be written over what is read; by its option's name."""
    for option, file in targets.items():
        if file is not None and file.exists() and file.samefile(source):
            raise ValueError(f"{option}: {file} is what is read, and would be lost")


def folders(**targets: Path | None) -> None:
    """Make the folders, by their options' names.  Raises `ValueError` for one that cannot be made."""
    for option, folder in targets.items():
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(f"--{option}: {folder} cannot be made: {error.strerror}") from None


def pairs(text: str) -> dict[str, str]:
    """The parameters behind a workload's name, `PARAM=VALUE,...`."""
    found: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or key in found:
            raise ValueError(f"expected PARAM=VALUE once each after the workload's name, found {part!r}")
        of, dot, param = key.rpartition(".")
        found[of + dot + param.replace("-", "_")] = value
    return found


def predictor_of(text: str) -> Predictor:
    """A length predictor, as NAME or NAME:PARAM=VALUE,..."""
    name, _, params = text.partition(":")
    try:
        return predictor(name, pairs(params))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def latency_of(name: str) -> LatencyModel:
    """The latency preset of that name, or of a file that `fairsched calibrate` wrote (a name that ends in .json)."""
    if name.endswith(".json"):
        try:
            return decoded(Path(name).read_bytes()).latency
        except PresetError as error:
            raise ValueError(f"{name}: {error}") from None
    if name not in PRESETS:
        raise unknown("latency model", name, PRESETS)
    return PRESETS[name]


def policy_of(name: str, params: Mapping[str, str]) -> ComposedPolicy:
    """A policy by name, NAME+GATE, or `module:attribute` for one of your own, with parameters set from text."""
    if ":" in name:
        policy = imported(name)
        if not isinstance(policy, ComposedPolicy):
            raise ValueError(f"policy {name!r} is a {type(policy).__name__}, not a composed local policy")
    else:
        policy = local_policy(name)
    return with_parameters(policy, params)


def imported(name: str) -> Any:
    """What `module:attribute` names; a class of policies is called without arguments."""
    module, _, attribute = name.partition(":")
    # A module of one's own lies in the current folder more often than on the path.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"policy {name!r} cannot be imported: {error}") from None
    make: Any = found if isinstance(found, type) and issubclass(found, ComposedPolicy) else None
    return found if make is None else make()
