"""Workloads: traces that are read, and workloads that are generated. Read `loading` and `generators/catalog` first.

`fleet` says on what they run: workers, links between them, and what happens to them.
"""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.workloads import fleet
    from fairsched.engines.workloads.accounts import Account, with_account
    from fairsched.engines.workloads.clients import ClientSpec, with_floors
    from fairsched.engines.workloads.errors import TraceError, WorkloadError, unknown
    from fairsched.engines.workloads.fleet import Change, Join, KvLink, WorkerSpec, described
    from fairsched.engines.workloads.generators import WORKLOADS, generate
    from fairsched.engines.workloads.info import CLIENTS_SHOWN_MAX, render_info, trace_info
    from fairsched.engines.workloads.loading import at_rate, load_trace, workload_of_columns
    from fairsched.engines.workloads.readers import (
        FORMATS,
        STDIN,
        BatchJobs,
        Lines,
        Progress,
        Source,
        read_batch,
        save_workload,
    )
    from fairsched.engines.workloads.sampling import ONE_WORKER, rate_cautions
    from fairsched.engines.workloads.sharing import shared_blocks
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "CLIENTS_SHOWN_MAX", "FORMATS", "ONE_WORKER", "STDIN", "WORKLOADS", "Account", "BatchJobs", "Change", "ClientSpec",
    "Join", "KvLink", "Lines", "Progress", "Source", "TraceError", "WorkerSpec", "WorkloadError", "at_rate",
    "described", "fleet", "generate", "load_trace", "rate_cautions", "read_batch", "render_info", "save_workload",
    "shared_blocks", "trace_info", "unknown", "with_account", "with_floors", "workload_of_columns"
]  # fmt: skip
