"""`fairsched plan`: how many workers of which size keep the targets."""

from typing import Annotated

from cyclopts import Parameter

from fairsched.cli import values
from fairsched.cli.options import Jobs, OnePredictor, Source, Targets, WorkloadOptions, processes
from fairsched.cli.output import folders, progress_bar, show, writable, write_figures
from fairsched.cli.values import number
from fairsched.engines.capacity import BESIDE, Per, plan_sheet, worker_sizes
from fairsched.engines.capacity import plan as planned
from fairsched.engines.simulation import router_of
from fairsched.model.machine import DEFAULT_PRESET
from fairsched.policies.registry import CLUSTER_POLICIES, local_policy, unknown

EVERY = "all"
"""In place of routers: every one that there is."""


def _attainment(text: str) -> float:
    """Return a share above 0, at most 1."""
    return number(text, "a share above 0 and at most 1", lambda value: 0 < value <= 1)


def plan(
    workload: Source = "demo",
    /,
    *,
    slo: Targets | None = None,
    attainment: Annotated[float, values.read(_attainment, "X")] = 0.99,
    latency_model: Annotated[values.Names, Parameter(metavar="NAME|FILE[:GPUS],...")] = (DEFAULT_PRESET,),
    scaled_to: values.Counts = (),
    kv_capacity_tokens: values.PositiveInt | None = None,
    routers: values.Names = BESIDE,
    set: Annotated[values.Texts, Parameter(metavar="ROUTER.PARAM=VALUE")] = (),
    predictor: OnePredictor = None,
    policy: str = "fcfs",
    workers_max: values.WorkerCount = 64,
    per: Per = "gpu",
    of_workload: WorkloadOptions = WorkloadOptions(),
    jobs: Jobs = None,
    json: values.Json = None,
    report: values.Report = None,
) -> int:
    """Choose a worker size by Aladdin's equations, then simulate ever more workers of it until enough requests keep
    their targets, with Aladdin's placement and with other routers.  Exits with 1 if that many were not found.

    Args:
        workload: a trace, or a generated workload
        slo: targets of every request that names none, as ttft=2s,tpot=50ms (without a unit: seconds); needed
        attainment: share of requests that shall keep them
        latency_model: worker sizes to choose from: presets, or files of `fairsched calibrate`; a worker has as many
            GPUs as its model says, or GPUS
        scaled_to: weigh workers of so many GPUs too, which were not timed, by equation 5 through the sizes given
        kv_capacity_tokens: KV tokens of a worker (default: the model's)
        routers: what is compared with aladdin, or `all`
        set: set a parameter of aladdin or of a router (repeat)
        predictor: what predicts outputs: oracle, bucketed, history or none (default: bucketed)
        policy: the workers' own policy; they compute new prompts at once, as Aladdin's do
        workers_max: look no further
        per: choose the size with the most tokens a second and GPU, or a joule
    """
    if routers == (EVERY,):
        routers = tuple(name for name in CLUSTER_POLICIES if name != "aladdin")
    for name in routers:
        router_of(name)
    settings = values.settings_by_name(set, "ROUTER.PARAM=VALUE")
    for name in settings:
        if name not in {"aladdin", *routers}:
            raise unknown("router in --set (it is not among --routers)", name, ["aladdin", *routers])
    writable(json=json)
    folders(report=report)
    sizes = worker_sizes(latency_model, scaled_to=scaled_to, kv_capacity_tokens=kv_capacity_tokens)
    requests = of_workload.workload(workload, [sizes[0].spec])
    local_policy(policy)
    if slo is None:
        raise ValueError("a plan needs targets: --slo ttft=2s,tpot=50ms")
    with progress_bar() as progress:
        found = planned(
            requests,
            slo,
            sizes=sizes,
            attainment=attainment,
            routers=routers,
            settings=settings,
            predictor=predictor,
            policy=policy,
            workers_max=workers_max,
            per=per,
            progress=progress,
            **processes(jobs, len(routers) * len(requests.jobs)),
        )
    write_figures(json, found.to_dict())
    show(plan_sheet(found), report, json, (size.spec.latency for size in sizes))
    return 0 if found.workers is not None else 1
