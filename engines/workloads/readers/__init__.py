"""Readers of trace files, one format a file. `formats` lists them; `rows` is what all of them yield."""

from fairsched.engines.workloads.readers.formats import FORMATS, BatchJobs, Progress, format_of, read_batch, recognise
from fairsched.engines.workloads.readers.json_formats import save_workload
from fairsched.engines.workloads.readers.rows import TraceFormat, TraceRow
from fairsched.engines.workloads.readers.sources import STDIN, Lines, Source

__all__ = [
    "FORMATS", "STDIN", "BatchJobs", "Lines", "Progress", "Source", "TraceFormat", "TraceRow", "format_of",
    "read_batch", "recognise", "save_workload"
]  # fmt: skip
