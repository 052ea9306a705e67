"""One worker as a value: what it holds, and the pure transitions that arrivals and steps make of it. Read
`transitions` first; `feasibility` says which plans a worker can execute.
"""

from fairsched.model.worker import theorems
from fairsched.model.worker.batch import generated, kv_tokens
from fairsched.model.worker.feasibility import violations
from fairsched.model.worker.host_memory import land, lose_host
from fairsched.model.worker.state import Outgoing, Running, Step, Transit, Waiting, WorkerState
from fairsched.model.worker.transit import (
    NoRoomError,
    growth,
    receive,
    reserve,
    resume,
    sent,
    stage,
    unreserve,
    youngest_landed,
)
from fairsched.model.worker.transitions import (
    InfeasiblePlanError,
    again,
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
    "InfeasiblePlanError", "NoRoomError", "Outgoing", "Running", "Step", "Transit", "Waiting", "WorkerState", "again",
    "arrive", "begin", "cancel", "change_batch", "depart", "finish", "generated", "growth", "kv_tokens", "land", "lose",
    "lose_host", "receive", "reject", "reserve", "resume", "sent", "stage", "step", "stop", "theorems", "unreserve",
    "violations", "youngest_landed"
]  # fmt: skip
