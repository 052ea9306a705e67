"""One worker as a value: what it holds, and the pure transitions that arrivals and steps make of it. Read
`transitions` first; `feasibility` says which plans a worker can execute.
"""

from fairsched.model.worker.batch import generated, kv_tokens
from fairsched.model.worker.feasibility import violations
from fairsched.model.worker.host_memory import land, lose_host
from fairsched.model.worker.state import Running, Waiting, WorkerState
from fairsched.model.worker.transitions import (
    InfeasiblePlanError,
    Step,
    arrive,
    begin,
    cancel,
    change_batch,
    depart,
    finish,
    lose,
    reject,
    step,
    stop,
)

__all__ = [
    "InfeasiblePlanError", "Running", "Step", "Waiting", "WorkerState", "arrive", "begin", "cancel", "change_batch",
    "depart", "finish", "generated", "kv_tokens", "land", "lose", "lose_host", "reject", "step", "stop",
    "violations"
]  # fmt: skip
