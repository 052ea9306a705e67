"""What several commands take.  Read `values.py` first: how numbers, sizes and lengths of time are written.

`workload.py` and `cluster.py` declare the arguments of workloads, workers and what happens to them; `processes.py`
those of where runs are computed.
"""

from fairsched.cli.arguments.cluster import add_cluster_arguments, cluster_of
from fairsched.cli.arguments.processes import add_jobs_arguments, jobs_of
from fairsched.cli.arguments.values import (
    WORKERS_MAX,
    assignment,
    found,
    job_count,
    names,
    natural,
    number,
    pairs,
    positive_int,
    positive_number,
    seed,
    span,
    span_ns,
    time_ns,
    whole,
    worker_count,
)
from fairsched.cli.arguments.workload import (
    add_model_arguments,
    add_workload_arguments,
    predictor_of,
    workload_of,
)

__all__ = [
    "WORKERS_MAX", "add_cluster_arguments", "add_jobs_arguments", "add_model_arguments", "add_workload_arguments",
    "assignment", "cluster_of", "found", "job_count", "jobs_of", "names", "natural", "number", "pairs", "positive_int",
    "positive_number", "predictor_of", "seed", "span", "span_ns", "time_ns", "whole", "worker_count", "workload_of"
]  # fmt: skip
