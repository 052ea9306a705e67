"""The generated workloads by name, with their parameters for help texts, and the one way to make one."""

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import attrs
import msgspec

from fairsched.engines.workloads.ce1 import ce1
from fairsched.engines.workloads.errors import WorkloadError, unknown
from fairsched.engines.workloads.llm_judge import llm_judge
from fairsched.engines.workloads.long_context_qa import long_context_qa
from fairsched.engines.workloads.multi_turn import multi_turn
from fairsched.engines.workloads.programs import Misbehave
from fairsched.engines.workloads.scaling import check_limit, rate_notes, rate_ratio, scaled_ns
from fairsched.engines.workloads.showcase import showcase
from fairsched.engines.workloads.tree_of_thoughts import tree_of_thoughts
from fairsched.model.workload import Workload

COMMON = frozenset({"seed", "misbehave"})


def demo(*, misbehave: Misbehave = "longer-prefix", seed: int = 0) -> Workload:
    """The embedded default: a small `tree-of-thoughts` of four clients, the first of which sends longer questions."""
    made = tree_of_thoughts(misbehave=misbehave, seed=seed, clients=4, trees=8, rate=2.0)
    return msgspec.structs.replace(made, name="demo")


@attrs.frozen
class Parameter:
    """A parameter of a workload: its name, what it means, its default, and the type (with its range) it converts to."""

    name: str
    help: str
    default: Any
    type: Any


@attrs.frozen(slots=False)
class WorkloadSpec:
    """A generated workload: its name, one line about it, and the function that makes it."""

    name: str
    summary: str
    make: Callable[..., Workload]

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """What can be set, besides `seed` and `misbehave`."""
        hints = get_type_hints(self.make, include_extras=True)
        return tuple(
            Parameter(name, _help(hints[name]), found.default, hints[name])
            for name, found in inspect.signature(self.make).parameters.items()
            if name not in COMMON
        )

    @property
    def misbehaves(self) -> bool:
        """Whether a client of it can be told to misbehave."""
        return "misbehave" in inspect.signature(self.make).parameters

    @property
    def random(self) -> bool:
        """Whether its seed matters."""
        return "seed" in inspect.signature(self.make).parameters


WORKLOADS: dict[str, WorkloadSpec] = {
    spec.name: spec
    for spec in (
        WorkloadSpec("demo", "the default: a small tree-of-thoughts with one client of longer questions", demo),
        WorkloadSpec("long-context-qa", "many short questions about a few long documents", long_context_qa),
        WorkloadSpec("tree-of-thoughts", "trees of thoughts, each asked for after its parent", tree_of_thoughts),
        WorkloadSpec("llm-judge", "articles judged by branch, solve and merge", llm_judge),
        WorkloadSpec("multi-turn", "chats with growing histories, clients as in the arena trace", multi_turn),
        WorkloadSpec("showcase", "a flood with one hot prefix that starves the others under LPM", showcase),
        WorkloadSpec("ce1", "the counterexample to forgiving debt at a rejoin", ce1),
    )
}


def generate(
    name: str,
    *,
    misbehave: str | None = None,
    seed: int = 0,
    rate_scale: float = 1.0,
    limit: int | None = None,
    **params: object,
) -> Workload:
    """The workload called `name`; the same arguments give the same workload.

    `misbehave` is `none`, `more-requests` or `longer-prefix` (None: the workload's default).  `rate_scale` multiplies
    the arrival rate, `limit` keeps the first jobs only, and `params` (values or their text) replace the workload's
    defaults.  Raises `WorkloadError` on an unknown name or a value out of range.
    """
    if name not in WORKLOADS:
        raise unknown("workload", name, WORKLOADS)
    spec = WORKLOADS[name]
    ratio = rate_ratio(rate_scale)
    check_limit(limit)
    arguments = _arguments(spec, params)
    if spec.random:
        arguments["seed"] = _converted("seed", seed, Annotated[int, msgspec.Meta(ge=0)])
    if misbehave is not None and spec.misbehaves:
        arguments["misbehave"] = _converted("misbehave", misbehave, Misbehave)
    elif misbehave not in (None, "none"):
        raise WorkloadError(f"workload {name}: nobody in it can misbehave, found misbehave={misbehave}")
    made = spec.make(**arguments)
    jobs, notes = made.jobs, [*made.notes, *rate_notes(ratio)]
    if ratio != 1:
        jobs = tuple(
            msgspec.structs.replace(
                job,
                request=msgspec.structs.replace(job.request, arrival_ns=scaled_ns(job.request.arrival_ns, ratio)),
            )
            for job in jobs
        )
    if limit is not None and limit < len(jobs):
        notes.append(f"Only the first {limit:,} of {len(jobs):,} requests are kept.")
        jobs = jobs[:limit]
    said = "".join(f", {key}={value}" for key, value in arguments.items())
    return Workload(name=made.name, jobs=jobs, clients=made.clients, notes=(f"Generated: {name}{said}.", *notes))


def _arguments(spec: WorkloadSpec, params: dict[str, object]) -> dict[str, Any]:
    known = {parameter.name: parameter for parameter in spec.parameters}
    for name in params:
        if name not in known:
            raise unknown(f"parameter of workload {spec.name}", name, known)
    return {name: _converted(name, value, known[name].type) for name, value in params.items()}


def _converted(name: str, value: object, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise WorkloadError(f"parameter {name}: {str(error).replace('`', '')}, found {value!r}") from None


def _help(hint: Any) -> str:
    if get_origin(hint) is not Annotated:
        return ""
    return " ".join(meta.description for meta in get_args(hint)[1:] if getattr(meta, "description", None))
