# written by hand
"""Scheduling policies for LLM serving whose fairness and latency bounds are proved about the code that ships.

    import fairsched as fs

    workload = fs.generate("demo")                  # or fs.load_trace("azure.csv")
    comparison = fs.compare(workload, ["fcfs", fs.LPM(), fs.DLPM()])
    print(comparison.table())

`simulate`, `compare`, `audit`, `plan`, `tune`, `order_batch` and `verify` do what the commands of the same name do, and
return values.  Policies and routers are classes here, or names where a function takes one.  `fairsched.model` says what
exists, `fairsched.policies` what is decided, `fairsched.verify` what is shown and `fairsched.engines` what is done.

Importing `fairsched` loads none of these and nothing from outside the standard library: a name is loaded when it is
first used, and solvers or torch only where they are needed.
"""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairsched.engines.analysis import Comparison, Run
    from fairsched.engines.analysis.audit import Audit
    from fairsched.engines.analysis.audit import audit_log as audit
    from fairsched.engines.analysis.report import requests_frame
    from fairsched.engines.capacity import CapacityPlan, Tuning, order_batch, plan, tune, worker_sizes
    from fairsched.engines.capacity.advice import Advice, advise
    from fairsched.engines.simulation import Cluster, compare, latency_model, simulate
    from fairsched.engines.workloads import ClientSpec, generate, load_trace, save_workload
    from fairsched.model.request import Client, Job, Prompt, Request, Slo, Workload
    from fairsched.policies.catalog import (
        DLPM,
        EDF,
        FCFS,
        LARRY,
        LPM,
        S3,
        TRAIL,
        VTC,
        Ageing,
        BatchLLM,
        DfsWeight,
        DistServeLocal,
        DistServeLocalReleased,
        DLPMBands,
        DLPMGlobal,
        DLPMHierarchical,
        DLPMInBatch,
        DLPMPrinted,
        Equinox,
        FairLARRY,
        FastServe,
        FCFSOptimistic,
        HybridBatchLLM,
        JITServe,
        LARRYPrinted,
        LearningToRank,
        LeastSlackFirst,
        NoPreempt,
        PiA,
        Preble,
        PreblePrinted,
        ShortestPromptFirst,
        SplitwiseMachine,
        TetriInferLocal,
        TetriInferLocalPrinted,
        UpstreamFirst,
        VirtualFinishFirst,
    )
    from fairsched.policies.local import ComposedPolicy
    from fairsched.policies.placement import Aladdin, AladdinGrouped, AladdinPrinted, AladdinSplit
    from fairsched.policies.routers import (
        D2LPM,
        E2,
        SAL,
        CentralDLPM,
        D2LPMPrinted,
        DistServe,
        DistServeReleased,
        E2Printed,
        Freeness,
        JoinShortestQueue,
        Llumnix,
        LongestPrefixRouter,
        OraclePartition,
        PerClientRoundRobin,
        PowerOfTwo,
        Random,
        RoundRobin,
        SALPrinted,
        SplitD2LPM,
        SplitJSQ,
        SplitP2C,
        SplitPhases,
        Splitwise,
        SplitwisePrinted,
        SplitwiseReleased,
        TetriInfer,
        TetriInferPrinted,
    )
    from fairsched.verify.report import Deployment, Report, verify

__all__ = [
    "D2LPM",
    "DLPM",
    "E2",
    "EDF",
    "FCFS",
    "LARRY",
    "LPM",
    "S3",
    "SAL",
    "TRAIL",
    "VTC",
    "Advice",
    "Ageing",
    "Aladdin",
    "AladdinGrouped",
    "AladdinPrinted",
    "AladdinSplit",
    "Audit",
    "BatchLLM",
    "CapacityPlan",
    "CentralDLPM",
    "Client",
    "ClientSpec",
    "Cluster",
    "Comparison",
    "ComposedPolicy",
    "D2LPMPrinted",
    "DLPMBands",
    "DLPMGlobal",
    "DLPMHierarchical",
    "DLPMInBatch",
    "DLPMPrinted",
    "Deployment",
    "DfsWeight",
    "DistServe",
    "DistServeLocal",
    "DistServeLocalReleased",
    "DistServeReleased",
    "E2Printed",
    "Equinox",
    "FCFSOptimistic",
    "FairLARRY",
    "FastServe",
    "Freeness",
    "HybridBatchLLM",
    "JITServe",
    "Job",
    "JoinShortestQueue",
    "LARRYPrinted",
    "LearningToRank",
    "LeastSlackFirst",
    "Llumnix",
    "LongestPrefixRouter",
    "NoPreempt",
    "OraclePartition",
    "PerClientRoundRobin",
    "PiA",
    "PowerOfTwo",
    "Preble",
    "PreblePrinted",
    "Prompt",
    "Random",
    "Report",
    "Request",
    "RoundRobin",
    "Run",
    "SALPrinted",
    "ShortestPromptFirst",
    "Slo",
    "SplitD2LPM",
    "SplitJSQ",
    "SplitP2C",
    "SplitPhases",
    "Splitwise",
    "SplitwiseMachine",
    "SplitwisePrinted",
    "SplitwiseReleased",
    "TetriInfer",
    "TetriInferLocal",
    "TetriInferLocalPrinted",
    "TetriInferPrinted",
    "Tuning",
    "UpstreamFirst",
    "VirtualFinishFirst",
    "Workload",
    "advise",
    "audit",
    "compare",
    "generate",
    "latency_model",
    "load_trace",
    "order_batch",
    "plan",
    "requests_frame",
    "save_workload",
    "simulate",
    "tune",
    "verify",
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

            if name == "verify":  # a package that can be called
                return import_module("fairsched.verify")
            from fairsched.model.lazy import imported_names

            module, own_name = imported_names(__name__)[name]
            found = globals()[name] = getattr(import_module(module), own_name)
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_near(name)}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, "__version__"})


def _near(name: str) -> str:
    from difflib import get_close_matches

    near = [] if name.startswith("_") else get_close_matches(name, __all__, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else ""


class _Moved:
    """Comes last among the finders of modules: finds nothing, and says of a module that moved where it is now."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Raise `ModuleNotFoundError` for a module that is named in `moved.txt`."""
        if not name.startswith("fairsched."):
            return
        from pkgutil import get_data

        moved = dict(line.split() for line in (get_data("fairsched", "moved.txt") or b"").decode().splitlines())
        if any(new == name or new.startswith(f"{name}.") for new in moved.values()):
            return  # It is here; only the place that was searched is another.
        inside = sorted({new.rpartition(".")[0] for old, new in moved.items() if old.startswith(f"{name}.")})
        if name in moved or inside:
            # Without `name=`, or `from fairsched.old import module` would not show the message.
            now = moved[name] if name in moved else f"in {' and '.join(inside)}"
            raise ModuleNotFoundError(f"{name} has moved: it is now {now}")


sys.meta_path.append(_Moved)
