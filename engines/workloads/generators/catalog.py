"""The generated workloads by name, with their parameters for help texts, and the one way to make one."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, get_args, get_origin

import attrs
import msgspec
import numpy as np
from msgspec.structs import replace

from fairsched.engines.workloads import sampling
from fairsched.engines.workloads.errors import WorkloadError, unknown
from fairsched.engines.workloads.fleet import WorkerSpec
from fairsched.engines.workloads.generators.demonstrations import ce1, showcase, split, subagents
from fairsched.engines.workloads.generators.dlpm import llm_judge, long_context_qa, multi_turn, tree_of_thoughts
from fairsched.engines.workloads.generators.lengths import arxiv, azure_chat, azure_code, sharegpt
from fairsched.engines.workloads.generators.preble import agent, loogle, programming, toolbench, video_qa
from fairsched.engines.workloads.generators.servegen import servegen
from fairsched.model.request import Client, Job, Workload

COMMON = frozenset({"seed", "misbehave", "of_parts"})
PARTS_MAX = 64


def demo(*, misbehave: sampling.Misbehave = "longer-prefix", seed: int = 0) -> Workload:
    """Return the embedded default: a small `tree-of-thoughts` of four clients, the first of which sends longer
    questions."""
    made = tree_of_thoughts(misbehave=misbehave, seed=seed, clients=4, trees=8, rate=2.0)
    return replace(made, name="demo")


def mixed(
    *,
    seed: int = 0,
    of_parts: Mapping[str, Mapping[str, object]] | None = None,
    parts: Annotated[str, sampling.about("workloads to mix, joined by +")] = "toolbench+video-qa",
    rate: Annotated[sampling.AutoRate, sampling.about("requests a second of all, or auto: near saturation")] = "auto",
    arrivals: sampling.Arrivals = "azure",
    cv: sampling.GapSpread = 2.0,
    gaps: sampling.Gaps = None,
) -> Workload:
    """Several workloads at once, each with its own clients, programs in random order; `of_parts` are their parameters.

    Preble mixes workloads on Azure's arrival times; here those are generated unless `gaps` names the trace.
    """
    chosen = [part.strip() for part in parts.split("+")]
    if len(set(chosen)) < len(chosen) or len(chosen) > PARTS_MAX:
        raise WorkloadError(f"parts {parts!r}: expected at most {PARTS_MAX} workloads, each once")
    for part in of_parts or {}:
        if part not in chosen:
            raise unknown("part of the mix", part, chosen)
    made = []
    for number, part in enumerate(chosen):
        if part == "mixed":
            raise WorkloadError("workload mixed: it cannot be a part of itself")
        if part not in WORKLOADS:
            raise unknown("workload", part, WORKLOADS)
        arguments = dict((of_parts or {}).get(part, {}))
        if WORKLOADS[part].default_rate == "auto":
            arguments["rate"] = 1.0
        # A seed of its own, since equal seeds would give two workloads the same tokens.
        own_seed = {"seed": seed * PARTS_MAX + number} if WORKLOADS[part].takes("seed") else {}
        made.append(WORKLOADS[part].make(**_arguments(WORKLOADS[part], arguments), **own_seed))
    return _mixture(made, chosen, np.random.default_rng((seed, len(chosen))), sampling.Timing(rate, arrivals, cv, gaps))


def _mixture(
    parts: Sequence[Workload], names: Sequence[str], rng: np.random.Generator, timing: sampling.Timing
) -> Workload:
    """Return the mixed workload; programs of one part keep their order, and a client is called after its part."""
    programs = [_programs(part.jobs) for part in parts]
    clients: list[Client] = []
    first_client: list[int] = []
    for name, part in zip(names, parts, strict=True):
        first_client.append(len(clients))
        clients += [Client(len(clients) + one.id, f"{name}/{one.name}", one.weight) for one in part.clients]
    turns = rng.permutation(np.repeat(np.arange(len(parts)), [len(each) for each in programs])).tolist()
    requests = sum(len(part.jobs) for part in parts)
    times = timing.starts_ns(rng, programs=len(turns), requests=requests)
    following = [iter(each) for each in programs]
    jobs: list[Job] = []
    for number, (part, time) in enumerate(zip(turns, times, strict=True)):
        calls = next(following[part])
        ids = {job.request.id: len(jobs) + place for place, job in enumerate(calls)}
        for job in calls:
            request = replace(
                job.request,
                id=ids[job.request.id],
                client=first_client[part] + job.request.client,
                arrival_ns=time,
                session=None if job.request.session is None else f"{names[part]}/{job.request.session}",
            )
            after = tuple(ids[parent] for parent in job.after)
            jobs.append(replace(job, request=request, after=after, program=number))
    shares = ", ".join(
        f"{len(part.jobs):,} of {name} ({len(part.jobs) / requests:.0%})"
        for name, part in zip(names, parts, strict=True)
    )
    own = [f"{name}: {note}" for name, part in zip(names, parts, strict=True) for note in part.notes]
    return Workload(
        "mixed", tuple(jobs), tuple(clients), (f"Mixed: {shares}; the parts' own times are replaced.", *own)
    )


def _programs(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return the jobs of each program, in order; calls that depend on one another are a program even if they name
    none."""
    found: dict[int, list[Job]] = {}
    of_request: dict[int, int] = {}
    for job in jobs:
        # One that names none has a negative number of its own.
        own = -1 - job.request.id if job.program is None else job.program
        program = of_request[job.request.id] = of_request[job.after[0]] if job.after else own
        found.setdefault(program, []).append(job)
    return list(found.values())


@attrs.frozen
class Parameter:
    """A parameter of a workload: its name, what it means, its default, and the type (with its range) it converts to."""

    name: str
    help: str
    default: Any
    type: object


@attrs.frozen(slots=False)
class WorkloadSpec:
    """A generated workload: its name, one line about it, and the function that makes it.

    `first` is the parameter that may stand first without its name, as in `mixed:toolbench+loogle`.
    """

    name: str
    summary: str
    make: Callable[..., Workload]
    first: str | None = None

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """What can be set, besides `seed` and `misbehave`."""
        return tuple(
            Parameter(name, _help(found.annotation), found.default, found.annotation)
            for name, found in inspect.signature(self.make).parameters.items()
            if name not in COMMON
        )

    @property
    def default_rate(self) -> object:
        """Its arrival rate where none is given, `auto` or a number; None if it has no such parameter."""
        return next((parameter.default for parameter in self.parameters if parameter.name == "rate"), None)

    def takes(self, name: str) -> bool:
        """Return whether it has that parameter: a `seed`, a client told to `misbehave`, parameters `of_parts`."""
        return name in inspect.signature(self.make).parameters


WORKLOADS: dict[str, WorkloadSpec] = {
    spec.name: spec
    for spec in (
        WorkloadSpec("demo", "the default: a small tree-of-thoughts with one client of longer questions", demo),
        WorkloadSpec("long-context-qa", "many short questions about a few long documents", long_context_qa),
        WorkloadSpec("tree-of-thoughts", "trees of thoughts, each asked for after its parent", tree_of_thoughts),
        WorkloadSpec("llm-judge", "articles judged by branch, solve and merge", llm_judge),
        WorkloadSpec("multi-turn", "chats with growing histories, clients as in the arena trace", multi_turn),
        WorkloadSpec("toolbench", "Preble's tool use: instructions of tools, some far more popular", toolbench),
        WorkloadSpec("agent", "Preble's embodied agent: long chains of steps, each repeating the history", agent),
        WorkloadSpec(
            "programming",
            "Preble's programming: a demonstration, a problem, and parallel samples of one prompt",
            programming,
        ),
        WorkloadSpec("video-qa", "Preble's questions about videos, short answers", video_qa),
        WorkloadSpec("loogle", "Preble's questions about long documents", loogle),
        WorkloadSpec("mixed", "several workloads at once, by default on arrivals like Azure's", mixed, "parts"),
        WorkloadSpec("azure-chat", "lengths of Azure's conversations on bursty arrivals, no prefixes", azure_chat),
        WorkloadSpec("azure-code", "lengths of Azure's code completions on bursty arrivals, no prefixes", azure_code),
        WorkloadSpec("arxiv", "lengths of summaries of papers, as Vidur publishes them, no prefixes", arxiv),
        WorkloadSpec("sharegpt", "lengths as of ShareGPT, or one class of light and heavy phases", sharegpt),
        WorkloadSpec("servegen", "ServeGen's clients of a production cluster, servegen:DIR", servegen, "folder"),
        WorkloadSpec("showcase", "clients that ask about documents, one of which floods the server", showcase),
        WorkloadSpec("split", "organisations that ask for the same, one of which comes as many clients", split),
        WorkloadSpec("subagents", "a harness of many agents beside programs of few", subagents),
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
    workers: int | Sequence[WorkerSpec] = 1,
    **params: object,
) -> Workload:
    """Return the workload called `name`; the same arguments give the same workload.

    `misbehave` is `none`, `more-requests` or `longer-prefix` (None: the workload's default).  `rate_scale` multiplies
    the arrival rate, `limit` keeps the first jobs only, and `params` (values or their text) replace the workload's
    defaults; of `mixed`, `PART.PARAM` are those of a part.  A rate of `auto` is near the saturation of `workers`: so
    many of the default model, or the specs of a cluster (`Cluster.specs`).  Raises `WorkloadError` on an unknown name
    or a value out of range.

    >>> workload = generate("toolbench", requests=50, documents=10, clients=5, seed=1)
    >>> len(workload.jobs), len(workload.clients)
    (50, 5)
    """
    if name not in WORKLOADS:
        raise unknown("workload", name, WORKLOADS)
    spec = WORKLOADS[name]
    ratio = sampling.rate_ratio(rate_scale)
    sampling.check_limit(limit)
    arguments = _arguments(spec, params)
    if spec.takes("seed"):
        arguments["seed"] = _converted("seed", seed, Annotated[int, msgspec.Meta(ge=0)])
    if misbehave is not None and spec.takes("misbehave"):
        arguments["misbehave"] = _converted("misbehave", misbehave, sampling.Misbehave)
    elif misbehave not in (None, "none"):
        raise WorkloadError(f"workload {name}: no client of it can misbehave, found misbehave={misbehave}")
    made = spec.make(**arguments)
    notes = [*made.notes]
    if arguments.get("rate", spec.default_rate) == "auto":
        found = sampling.saturation(made, sampling.ONE_WORKER * workers if isinstance(workers, int) else workers)
        notes.append(found.note)
        # It was made at one request a second.
        ratio *= Fraction(repr(found.near_rps))
    jobs = made.jobs
    notes += sampling.rate_notes(sampling.rate_ratio(rate_scale))
    if ratio != 1:
        jobs = tuple(
            replace(job, request=replace(job.request, arrival_ns=sampling.scaled_ns(job.request.arrival_ns, ratio)))
            for job in jobs
        )
    if limit is not None and limit < len(jobs):
        notes.append(f"Only the first {limit:,} of {len(jobs):,} requests are kept.")
        jobs = jobs[:limit]
    of_parts = {
        f"{part}.{key}": value for part, given in arguments.pop("of_parts", {}).items() for key, value in given.items()
    }
    said = "".join(f", {key}={value}" for key, value in (arguments | of_parts).items())
    return Workload(name=made.name, jobs=jobs, clients=made.clients, notes=(f"Generated: {name}{said}.", *notes))


def _arguments(spec: WorkloadSpec, params: dict[str, object]) -> dict[str, Any]:
    known = {parameter.name: parameter for parameter in spec.parameters}
    found: dict[str, Any] = {}
    for name, value in params.items():
        part, dot, param = name.partition(".")
        if dot and spec.takes("of_parts"):
            found.setdefault("of_parts", {}).setdefault(part, {})[param] = value
        elif name in known:
            found[name] = _converted(name, value, known[name].type)
        else:
            raise unknown(f"parameter of workload {spec.name}", name, known)
    return found


def _converted(name: str, value: object, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise WorkloadError(f"parameter {name}: {str(error).replace('`', '')}, found {value!r}") from None


def _help(hint: object) -> str:
    if get_origin(hint) is not Annotated:
        return ""
    return " ".join(meta.description for meta in get_args(hint)[1:] if getattr(meta, "description", None))
