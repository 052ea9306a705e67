"""The workers of a cluster and the links between them: specifications, crashes, drains, transfers of KV. Read
`workers` first.
"""

from typing import TYPE_CHECKING

from fairsched.model.lazy import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.fleet.transfer import Counters, KvLink, Transfer
    from fairsched.engines.fleet.workers import (
        Change,
        Crash,
        Drain,
        Join,
        Restart,
        WorkerSpec,
        checked_changes,
        checked_workers,
        described,
    )
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "Change", "Counters", "Crash", "Drain", "Join", "KvLink", "Restart", "Transfer", "WorkerSpec",
    "checked_changes", "checked_workers", "described"
]  # fmt: skip
