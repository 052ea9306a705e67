"""BurstGPT: a CSV of two years of calls to a campus service, with sessions and failures, without clients or prefixes.

Format and data: BurstGPT (Wang et al., CC-BY-4.0).  Times are seconds on a clock of their own, here counted from the
first row.  `Session ID` is empty for API calls; it and `Elapsed time` are missing from the first release's files.
A row without a response token is a call that failed: nobody knows what it would have asked for, so it is left out
and counted.
"""

from collections.abc import Iterator
from pathlib import Path

from fairsched.engines.workloads.errors import TraceError
from fairsched.engines.workloads.rows import TraceRow, count, csv_rows, seconds_ns
from fairsched.model.request import TOKENS_MAX, Prompt

SINCE_RELEASE_2 = ("Session ID", "Elapsed time")
COLUMNS = ("Timestamp", *SINCE_RELEASE_2, "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
FAILED = "calls failed (no response token) and are left out"


def read(path: Path) -> Iterator[TraceRow]:
    """Rows of a BurstGPT trace; ids count rows from 0, failures included.  Raises `TraceError`."""
    start_ns: int | None = None
    for row, values in csv_rows(path, COLUMNS, optional=SINCE_RELEASE_2):
        timestamp, session, elapsed, _, asked, answered, total, _ = values
        time_ns = seconds_ns(path, row, "Timestamp", timestamp)
        if start_ns is None:
            start_ns = time_ns
        elif time_ns < start_ns:
            raise TraceError(path, row, "Timestamp", "a time not before the first row's", timestamp)
        if elapsed:
            seconds_ns(path, row, "Elapsed time", elapsed)
        output_tokens = count(path, row, "Response tokens", answered, low=0)
        prompt_tokens = count(path, row, "Request tokens", asked, low=1 if output_tokens else 0)
        count(path, row, "Total tokens", total, low=0, high=2 * TOKENS_MAX)
        yield TraceRow(
            row=row,
            id=row - 2,
            arrival_ns=time_ns - start_ns,
            prompt=Prompt(tokens=max(prompt_tokens, 1)),
            output_tokens=output_tokens,
            session=session.strip() or None,
            remark=None if output_tokens else FAILED,
        )
