"""Scheduling policies for LLM serving whose fairness and latency bounds are proved about the code that ships.

    import fairsched as fs

    workload = fs.generate("demo")                  # or fs.load_trace("azure.csv")
    comparison = fs.compare(workload, ["fcfs", fs.LPM(), fs.DLPM()])
    print(comparison.table())

`simulate`, `compare`, `audit`, `plan`, `tune`, `order_batch` and `verify` do what the commands of the same name do, and
return values.  Policies and routers are classes, or names where a function takes one.  The usual policies are here;
`fs.catalog` has all of them, `fs.orders`, `fs.gates`, `fs.routers` and `fs.placement` what they are made of and stand
behind, and `fs.printed` those of papers that are there for comparison.

Importing `fairsched` loads none of these and nothing from outside the standard library: a name is loaded when it is
first used, and solvers or torch only where they are needed.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairsched import printed
    from fairsched.engines.analysis import Comparison, Run
    from fairsched.engines.analysis.audit import Audit
    from fairsched.engines.analysis.audit import audit_log as audit
    from fairsched.engines.analysis.report import requests_frame
    from fairsched.engines.capacity import CapacityPlan, Tuning, order_batch, plan, tune, worker_sizes
    from fairsched.engines.capacity.advice import Advice, advise
    from fairsched.engines.simulation import Cluster, compare, latency_model, simulate
    from fairsched.engines.workloads import ClientSpec, generate, load_trace, save_workload
    from fairsched.model.request import Client, Job, Prompt, Request, Slo, Workload
    from fairsched.policies import catalog, gates, orders, placement, routers
    from fairsched.policies.catalog import (
        DLPM,
        EDF,
        FCFS,
        LARRY,
        LPM,
        VTC,
        Ageing,
        DLPMHierarchical,
        LeastSlackFirst,
        ShortestPromptFirst,
    )
    from fairsched.policies.local import ComposedPolicy
    from fairsched.policies.routers import D2LPM, RoundRobin
    from fairsched.verify.report import Deployment, Report, verify

__all__ = [
    "D2LPM", "DLPM", "EDF", "FCFS", "LARRY", "LPM", "VTC", "Advice", "Ageing", "Audit", "CapacityPlan", "Client",
    "ClientSpec", "Cluster", "Comparison", "ComposedPolicy", "DLPMHierarchical", "Deployment", "Job", "LeastSlackFirst",
    "Prompt", "Report", "Request", "RoundRobin", "Run", "ShortestPromptFirst", "Slo", "Tuning", "Workload", "advise",
    "audit", "catalog", "compare", "gates", "generate", "latency_model", "load_trace", "order_batch", "orders",
    "placement", "plan", "printed", "requests_frame", "routers", "save_workload", "simulate", "tune", "verify",
    "worker_sizes"
]  # fmt: skip

__version__: str
"""The installed distribution's version, looked up when first asked for."""

# Hidden from the type checker, for which a module with `__getattr__` has every attribute.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            return version(__name__)
        if name in __all__:
            from importlib import import_module

            from fairsched.model import extra_named, imported_names

            with extra_named():
                if name in ("verify", "printed"):  # the first is a package that can be called
                    return import_module(f"fairsched.{name}")
                module, own_name = imported_names(__name__)[name]
                home = import_module(module)
                # A room is a folder, which is no attribute of the one above before it is imported.
                found = getattr(home, own_name, None) or import_module(f"{module}.{own_name}")
            globals()[name] = found
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_near(name)}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, "__version__"})


def _near(name: str) -> str:
    from difflib import get_close_matches

    near = [] if name.startswith("_") else get_close_matches(name, __all__, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else ""
