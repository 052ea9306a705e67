"""A live engine: it runs a policy behind a guard on an executor. Read `loop` first."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.serving.answers import Answer
    from fairsched.engines.serving.clients import OTHERS, ClientRegistry, client_name
    from fairsched.engines.serving.cluster import InProcess, LiveCluster, Processes, Recipe, WorkerStatus, split_roles
    from fairsched.engines.serving.executor import Executor, Sampling
    from fairsched.engines.serving.guard import (
        BUDGET_MS,
        AdmissionCause,
        AdmissionChoice,
        AdmissionGuard,
        NoDecisionError,
        RouterGuard,
        Trial,
        empty_worker,
        require_certificate,
    )
    from fairsched.engines.serving.log import EventBus, EventLog, ServingLog
    from fairsched.engines.serving.loop import Engine
    from fairsched.engines.serving.metrics import ClusterMetrics, EngineMetrics, Samples, decision_seconds, serve
    from fairsched.engines.serving.request import BlockKeys
    from fairsched.engines.serving.state import EngineStore, resume
    from fairsched.engines.serving.status import (
        PHASES,
        TWO_CLIENTS,
        ClientLabels,
        Document,
        Sample,
        ServiceStatus,
        monitor_of,
        promise_document,
        promise_samples,
        step_samples,
        worker_samples,
    )
    from fairsched.engines.serving.thread import AsyncStream, EngineStoppedError, ServingThread
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "BUDGET_MS", "OTHERS", "PHASES", "TWO_CLIENTS", "AdmissionCause", "AdmissionChoice", "AdmissionGuard", "Answer",
    "AsyncStream", "BlockKeys", "ClientLabels", "ClientRegistry", "ClusterMetrics", "Document", "Engine",
    "EngineMetrics", "EngineStoppedError", "EngineStore", "EventBus", "EventLog", "Executor", "InProcess",
    "LiveCluster", "NoDecisionError", "Processes", "Recipe", "RouterGuard", "Sample", "Samples", "Sampling",
    "ServiceStatus", "ServingLog", "ServingThread", "Trial", "WorkerStatus", "client_name", "decision_seconds",
    "empty_worker", "monitor_of", "promise_document", "promise_samples", "require_certificate", "resume", "serve",
    "split_roles", "step_samples", "worker_samples"
]  # fmt: skip
