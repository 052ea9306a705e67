"""From a trace file to a workload: what holds for every format is checked, and what no trace says is decided here.

No trace carries `max_output_tokens` and few carry clients, though every bound rests on the first and every fairness
figure on the second.  Whatever is decided is said in the workload's notes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fairsched.engines.workloads.clients import ClientSpec, assign
from fairsched.engines.workloads.errors import TraceError, WorkloadError
from fairsched.engines.workloads.readers import TraceFormat, TraceRow, format_of
from fairsched.engines.workloads.sampling import check_limit, rate_notes, rate_ratio, scaled_ns
from fairsched.model.algebra import Ints
from fairsched.model.request import TOKENS_MAX, Client, Job, Prompt, Request, Workload


def load_trace(
    path: str | Path,
    *,
    format: str | None = None,
    limit: int | None = None,
    rate_scale: float = 1.0,
    clients: ClientSpec | None = None,
    max_output_tokens: str | int = "trace-max",
    seed: int = 0,
) -> Workload:
    """Return the workload of a trace file.

    `format` names the file's format (None: recognised).  `limit` keeps the first requests only.  `rate_scale`
    multiplies the arrival rate.  `clients` is the mix for a trace that names none, or weights for one that does.
    `max_output_tokens` is `"trace-max"` (the largest output of the requests read, for each that does not declare its
    own), a number (for every request; longer outputs are cut, as an engine would) or `"oracle"` (each request's true
    output, which no server knows).  Raises `WorkloadError`, and its kind `TraceError` for what is wrong in the file.

    >>> from tempfile import TemporaryDirectory
    >>> from fairsched.engines.workloads import save_workload
    >>> from fairsched.engines.workloads import generate
    >>> with TemporaryDirectory() as folder:
    ...     save_workload(generate("demo", limit=30), Path(folder, "trace.jsonl"))
    ...     len(load_trace(Path(folder, "trace.jsonl"), limit=20).jobs)
    20
    """
    path = Path(path)
    ratio = rate_ratio(rate_scale)
    check_limit(limit)
    form = format_of(path, format)
    remarks: Counter[str] = Counter()
    rows = list(islice(_checked(path, form, remarks), limit))
    if not rows:
        raise TraceError(path, None, None, "at least one request", "none")
    assigned, the_clients, client_notes = assign(rows, clients, seed)
    declared, output_notes = _declare(rows, max_output_tokens)
    programs = _programs(rows)
    jobs = tuple(
        Job(
            request=Request(
                id=row.id,
                client=client,
                arrival_ns=scaled_ns(row.arrival_ns, ratio),
                prompt=row.prompt,
                max_output_tokens=most,
                predicted_output_tokens=row.predicted_output_tokens,
                slo=row.slo,
                session=row.session,
                priority=row.priority,
                downstream_levels=row.downstream_levels,
                adapter=row.adapter or msgspec.UNSET,
            ),
            output_tokens=min(row.output_tokens, most),
            after=row.parents,
            think_ns=row.think_ns,
            program=program,
            cancel_after_ns=row.cancel_after_ns,
        )
        for row, client, most, program in zip(rows, assigned, declared, programs, strict=True)
    )
    part = f"First {len(rows):,}" if limit is not None else f"{len(rows):,}"
    origin = f"{part} requests of {path.name}, read as {form.name} ({form.summary})."
    odd = [f"{number:,} {remark}." for remark, number in sorted(remarks.items())]
    notes = (origin, *odd, *client_notes, *output_notes, *rate_notes(ratio))
    return Workload(name=path.name, jobs=jobs, clients=the_clients, notes=notes)


def _checked(path: Path, form: TraceFormat, remarks: Counter[str]) -> Iterator[TraceRow]:
    """Yield the file's rows that have an output; counts `remarks`, and refuses times that go back, ids that recur,
    parents that do not stand earlier, rows with and without clients side by side, and a client with two weights.
    """
    seen: set[int] = set()
    clients: set[str | None] = set()
    weights: dict[str | None, int] = {}
    last_ns = 0
    for row in form.read(path):
        if row.arrival_ns < last_ns:
            expected = f"a time not before the previous row's ({last_ns} ns)"
            raise TraceError(path, row.row, form.time_field, expected, f"{row.arrival_ns} ns")
        if row.id in seen:
            raise TraceError(path, row.row, form.id_field, "an id no earlier row has", row.id)
        for parent in row.parents:
            if parent not in seen:
                raise TraceError(path, row.row, "parent", "the id of an earlier row", parent)
        if seen and (row.client is None) != (None in clients):
            expected = "no client, as in the rows before" if row.client else "a client, as in the rows before"
            raise TraceError(path, row.row, "client", expected, row.client)
        if row.weight is not None and weights.setdefault(row.client, row.weight) != row.weight:
            raise TraceError(path, row.row, "weight", f"the client's weight {weights[row.client]}", row.weight)
        clients.add(row.client)
        last_ns = row.arrival_ns
        seen.add(row.id)
        if row.remark is not None:
            remarks[row.remark] += 1
        if row.output_tokens:
            yield row


def _declare(rows: Sequence[TraceRow], rule: str | int) -> tuple[list[int], tuple[str, ...]]:
    """`max_output_tokens` of each row by the rule, and notes on it."""
    if rule == "oracle":
        note = "max_output_tokens is each request's true output (oracle): no server knows that."
        return [row.output_tokens for row in rows], (note,)
    if rule == "trace-max":
        longest = max(row.output_tokens for row in rows)
        own = sum(row.max_output_tokens is not None for row in rows)
        note = f"max_output_tokens is {longest:,}, the largest output read"
        note += f", except for {own:,} requests that declare their own." if own else ", for every request."
        return [row.max_output_tokens or longest for row in rows], (note,)
    text = str(rule)
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= TOKENS_MAX):
        raise WorkloadError(f"max output tokens: expected trace-max, oracle or 1 to {TOKENS_MAX}, found {rule!r}")
    most = int(text)
    cut = sum(row.output_tokens > most for row in rows)
    return [most] * len(rows), (
        f"max_output_tokens is {most:,} for every request; {cut:,} longer outputs were cut to it.",
    )


def _programs(rows: Sequence[TraceRow]) -> list[int | None]:
    """Program of each row: the one it names, else its first parent's; a parent without one lends its own id."""
    programs: list[int | None] = [row.program for row in rows]
    places = {row.id: index for index, row in enumerate(rows)}
    for index, row in enumerate(rows):
        if row.parents and programs[index] is None:
            place = places[row.parents[0]]
            if programs[place] is None:
                programs[place] = rows[place].id
            programs[index] = programs[place]
    return programs


def at_rate(workload: Workload, rate: float, start_ns: int = 0) -> Workload:
    """Return the workload with its arrivals stretched, so that requests over the span of arrivals are `rate` a second.

    The first comes at `start_ns`, and gaps keep their shares of the span.  A generator's rate is what it comes to in
    the long run, and some minutes of bursts bring more or less.  Times are exact, rounded down to a nanosecond.  Raises
    `ValueError` if all requests come at once.
    """
    times = [job.request.arrival_ns for job in workload.jobs]
    first, last = min(times, default=0), max(times, default=0)
    if first == last:
        raise ValueError("arrivals at one time have no span that could be stretched")
    span_ns = round(len(times) * 10**9 / Fraction(rate))

    def moved(job: Job) -> Job:
        arrival_ns = start_ns + (job.request.arrival_ns - first) * span_ns // (last - first)
        return replace(job, request=replace(job.request, arrival_ns=arrival_ns))

    note = f"Arrivals are stretched: {rate:g} requests a second from the first to the last."
    return replace(workload, jobs=tuple(moved(job) for job in workload.jobs), notes=(*workload.notes, note))


def workload_of_columns(
    name: str, clients: tuple[Client, ...], columns: Sequence[Ints], notes: tuple[str, ...] = ()
) -> Workload:
    """Return requests given as columns, as a log has them: client, arrival in nanoseconds, tokens of the prompt (which
    no other shares), tokens of the output, and the most that was asked for."""
    jobs = tuple(
        Job(Request(i, client, arrival, Prompt(tokens=prompt), most), output)
        for i, (client, arrival, prompt, output, most) in enumerate(zip(*(c.tolist() for c in columns), strict=True))
    )
    return Workload(name, jobs, clients, notes)
