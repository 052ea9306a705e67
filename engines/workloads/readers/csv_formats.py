"""The CSV formats: Azure's LLM inference trace, BurstGPT, and those whose columns say it plainly: the arena workload of
the VTC paper's artifact, and traces of Vidur and splitwise-sim.

- Azure public dataset, LLM inference trace 2023 (CC-BY 4.0): wall-clock times and lengths, with neither clients nor
  prefixes.  A row without a generated token is refused: the published 2023 conversation trace holds none (its smallest
  is 7).
- The arena workload of the artifact of "Fairness in Serving Large Language Models" (OSDI'24), converted from its pickle
  (Apache-2.0): real clients with a skewed load, and no prefixes.
- BurstGPT (Wang et al., CC-BY-4.0): two years of calls to a campus service, with sessions and failures, without clients
  or prefixes.  Times are seconds on a clock of their own.  `Session ID` is empty for API calls; it and `Elapsed time`
  are missing from the first release's files.  A row without a response token is a call that failed: what it would have
  asked for is unknown, so it is left out and counted.

Times of Azure and BurstGPT are counted from the first row.
"""

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from fairsched.engines.workloads.errors import TraceError
from fairsched.engines.workloads.readers import rows
from fairsched.model.request import TOKENS_MAX, Prompt

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
SINCE_RELEASE_2 = ("Session ID", "Elapsed time")
BURSTGPT_COLUMNS = (
    "Timestamp",
    *SINCE_RELEASE_2,
    "Model",
    "Request tokens",
    "Response tokens",
    "Total tokens",
    "Log Type",
)
FAILED = "calls failed (no response token) and are left out"

_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?", re.ASCII
)


class _FirstRow:
    """Times counted from that of the first row."""

    def __init__(self, path: Path, field: str) -> None:
        self._place = (path, field)
        self._start_ns: int | None = None

    def since(self, row: int, time_ns: int, text: str) -> int:
        """Return a time as counted from the first row's.  Raises `TraceError` for an earlier one."""
        if self._start_ns is None:
            self._start_ns = time_ns
        elif time_ns < self._start_ns:
            path, field = self._place
            raise TraceError(path, row, field, "a time not before the first row's", text)
        return time_ns - self._start_ns


def read_azure(path: Path) -> Iterator[rows.TraceRow]:
    """Read the rows of an Azure trace; ids count from 0.  Raises `TraceError`."""
    first = _FirstRow(path, "TIMESTAMP")
    days: dict[str, int] = {}
    for row, (timestamp, context, generated) in rows.csv_rows(path, AZURE_COLUMNS):
        yield rows.TraceRow(
            row=row,
            id=row - 2,
            arrival_ns=first.since(row, _time_ns(path, row, timestamp, days), timestamp),
            prompt=Prompt(tokens=rows.count(path, row, "ContextTokens", context)),
            output_tokens=rows.count(path, row, "GeneratedTokens", generated),
        )


def _time_ns(path: Path, row: int, text: str, days: dict[str, int]) -> int:
    """Return nanoseconds since year 1; `days` remembers the dates already seen, since parsing one costs more than the
    rest."""
    match = _TIMESTAMP.fullmatch(text)
    if match:
        day, hours, minutes, seconds, fraction = match.groups()
        try:
            ordinal = days.get(day) or days.setdefault(day, date.fromisoformat(day).toordinal())
        except ValueError:
            ordinal = 0
        if ordinal:
            whole = ((ordinal * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
            return whole * rows.NS_PER_S + int(((fraction or "") + "000000000")[:9])
    raise TraceError(path, row, "TIMESTAMP", "a UTC time as in 2023-11-16 18:15:46.680590", repr(text))


def read_burstgpt(path: Path) -> Iterator[rows.TraceRow]:
    """Read the rows of a BurstGPT trace; ids count rows from 0, failures included.  Raises `TraceError`."""
    first = _FirstRow(path, "Timestamp")
    for row, values in rows.csv_rows(path, BURSTGPT_COLUMNS, optional=SINCE_RELEASE_2):
        timestamp, session, elapsed, _, asked, answered, total, _ = values
        arrival_ns = first.since(row, rows.seconds_ns(path, row, "Timestamp", timestamp), timestamp)
        if elapsed:
            rows.seconds_ns(path, row, "Elapsed time", elapsed)
        output_tokens = rows.count(path, row, "Response tokens", answered, low=0)
        prompt_tokens = rows.count(path, row, "Request tokens", asked, low=1 if output_tokens else 0)
        rows.count(path, row, "Total tokens", total, low=0, high=2 * TOKENS_MAX)
        yield rows.TraceRow(
            row=row,
            id=row - 2,
            arrival_ns=arrival_ns,
            prompt=Prompt(tokens=max(prompt_tokens, 1)),
            output_tokens=output_tokens,
            session=session.strip() or None,
            remark=None if output_tokens else FAILED,
        )


AZURE = rows.TraceFormat("azure", "Azure LLM inference trace, CSV", AZURE_COLUMNS, read_azure, "TIMESTAMP", None)
BURSTGPT = rows.TraceFormat("burstgpt", "BurstGPT, CSV", BURSTGPT_COLUMNS, read_burstgpt, "Timestamp", None)


# --- columns that say it plainly --------------------------------------------------------------------------------------


def plain(name: str, summary: str, columns: str, **of: str) -> rows.TraceFormat:
    """Return the format whose header is `columns`, of which `of` says the `arrival` in seconds, `prompt` and `output`,
    and maybe `id` and `client`."""
    header = tuple(columns.split(","))
    at = {field: header.index(column) for field, column in of.items()}

    def read(path: Path) -> Iterator[rows.TraceRow]:
        for row, values in rows.csv_rows(path, header):
            client = values[at["client"]] if "client" in at else None
            if client is not None and not client.strip():
                raise TraceError(path, row, of["client"], "a client's name", repr(client))
            identity = row - 2
            if "id" in at:
                identity = rows.count(path, row, of["id"], values[at["id"]], low=0, high=rows.ID_MAX)
            yield rows.TraceRow(
                row=row,
                id=identity,
                arrival_ns=rows.seconds_ns(path, row, of["arrival"], values[at["arrival"]]),
                prompt=Prompt(tokens=rows.count(path, row, of["prompt"], values[at["prompt"]])),
                output_tokens=rows.count(path, row, of["output"], values[at["output"]]),
                client=client,
            )

    return rows.TraceFormat(name, summary, header, read, of["arrival"], of.get("id"))


ARENA = plain(
    "arena",
    "VTC artifact's arena workload, CSV",
    "req_id,arrival_s,client,input_tokens,output_tokens",
    id="req_id",
    client="client",
    arrival="arrival_s",
    prompt="input_tokens",
    output="output_tokens",
)
VIDUR = plain(
    "vidur",
    "Vidur's traces to replay, CSV",
    "arrived_at,num_prefill_tokens,num_decode_tokens",
    arrival="arrived_at",
    prompt="num_prefill_tokens",
    output="num_decode_tokens",
)
SPLITWISE = plain(
    "splitwise",
    "splitwise-sim's traces, CSV",
    "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size",
    id="request_id",
    arrival="arrival_timestamp",
    prompt="prompt_size",
    output="token_size",
)
