"""The arena workload of the VTC paper's artifact as CSV: real clients with a skewed load, and no prefixes.

Source: the artifact of "Fairness in Serving Large Language Models" (OSDI'24), converted from its pickle (Apache-2.0).
"""

from collections.abc import Iterator
from pathlib import Path

from fairsched.engines.workloads.errors import TraceError
from fairsched.engines.workloads.rows import ID_MAX, TraceRow, count, csv_rows, seconds_ns
from fairsched.model.request import Prompt

COLUMNS = ("req_id", "arrival_s", "client", "input_tokens", "output_tokens")


def read(path: Path) -> Iterator[TraceRow]:
    """Rows of an arena trace, with the ids of its `req_id`.  Raises `TraceError`."""
    for row, (identity, arrival, client, prompt, output) in csv_rows(path, COLUMNS):
        if not client.strip():
            raise TraceError(path, row, "client", "a client's name", repr(client))
        yield TraceRow(
            row=row,
            id=count(path, row, "req_id", identity, low=0, high=ID_MAX),
            arrival_ns=seconds_ns(path, row, "arrival_s", arrival),
            prompt=Prompt(tokens=count(path, row, "input_tokens", prompt)),
            output_tokens=count(path, row, "output_tokens", output),
            client=client,
        )
