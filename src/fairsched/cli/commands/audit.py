"""`fairsched audit` and `advise`: which clients of a log waited, starved and gained, why a request waited, whether a
logged run is rebuilt, and what to do."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fairsched.cli import output
from fairsched.cli.options import ClientOptions, Log, ReadingOptions, log_name
from fairsched.cli.values import File, Json, Natural, Report, Time, WorkerCount, read
from fairsched.engines.analysis import audit as analysis_audit
from fairsched.engines.analysis import print_lines, print_text, safe_text
from fairsched.engines.analysis.audit import FIGURES
from fairsched.engines.files import write_whole
from fairsched.engines.logs.access import expanded
from fairsched.engines.logs.access import suggest_map as suggested_map

DIFFERENT = 1
"""Exit status when a replay is not equal to its log."""

_MARKS = {"ok": "ok", "failed": "FAILED", "unknown": "UNKNOWN"}
"""How a verdict on a threshold is told."""

Thresholds = Annotated[
    tuple[analysis_audit.Threshold, ...],
    read(
        analysis_audit.read_thresholds,
        "THRESHOLDS",
        help="figures that must not be, as `starved>0,p99_wait>5s,free.errors>1%`: exit with 1 if one is, with 2 if "
        f"the log cannot tell; of {', '.join(FIGURES)}",
    ),
]


def audit(
    *logs: Log,
    of_log: ReadingOptions = ReadingOptions(),
    of_clients: ClientOptions = ClientOptions(),
    window: Time = 10 * 10**9,
    fail_on: Thresholds = (),
    junit: File | None = None,
    json: Json = None,
    report: Report = None,
    to_frame: Annotated[File | None, Parameter(metavar="DIR|FILE.parquet")] = None,
    suggest_map: bool = False,
    explain: Annotated[Natural | None, Parameter(metavar="ID")] = None,
    replay: bool = False,
) -> int:
    """Audit a log: an event log of `compare --log` or of a live engine, several of gateways before the same servers, or
    an access log of your own (JSON or CSV, a row for each request that ended): service of each client, the largest gap
    and its bound, which clients starved, which gained, and which assumptions failed.

    Args:
        window: how often leads over the fair share are looked at; turns within so long do not count
        junit: write the thresholds as JUnit XML, a test case each
        to_frame: write the requests as a parquet file; into a folder also the events of an event log
        suggest_map: audit nothing: print a map for --map by the names and values of the log's first rows, with the
            reason for each line and what is doubtful
        explain: audit nothing: tell the life of one request of an event log: what kept it waiting (gate, memory, order,
            ...), how long each, and which requests went first
        replay: audit nothing: rebuild every state of an event log and compare every hash; exits with 1 if one differs
    """
    if suggest_map:
        print(suggested_map(_only(logs, "--suggest-map")).toml(), end="")
        return 0
    if explain is not None or replay:
        from fairsched.engines import analysis

        log = _only(logs, "--explain" if explain is not None else "--replay")
        if explain is not None:
            explanation = analysis.explain(log, explain)
            return _print(explanation.to_json, explanation.text, json)
        found = analysis.replay(log)
        _print(found.to_json, lambda width: found.text(), json)
        return (
            DIFFERENT if found.difference is not None else output.unexplained([str(log)] if found.unexplained else [])
        )
    if junit is not None and not fail_on:
        raise ValueError("--junit writes the thresholds of --fail-on, and there are none")
    output.writable(json=json, junit=junit)
    output.folders(report=report)
    output.apart(expanded(logs), json=json, junit=junit)
    return _audit(logs, of_log, of_clients, window, fail_on, junit, json, report, to_frame)


def _only(logs: Sequence[str], option: str) -> Path:
    if len(logs) != 1:
        raise ValueError(f"{option} looks at one log")
    return Path(logs[0])


def _print(document: Callable[[], object], text: Callable[[int], str], json: Path | None) -> int:
    """Print a result as text, and write it as JSON where that is asked for."""
    output.write_figures(json, document())
    with output.shown(json) as console:
        print_text(console, text(console.width))
    return 0


def _audit(
    logs: Sequence[str],
    of_log: ReadingOptions,
    of_clients: ClientOptions,
    window: int,
    fail_on: tuple[analysis_audit.Threshold, ...],
    junit: Path | None,
    json: Path | None,
    report: Path | None,
    to_frame: Path | None,
) -> int:
    from fairsched.engines.analysis.audit import audit_models, print_audit, write_audit_frames

    name = log_name(logs)
    with output.progress_bar() as progress:
        found = audit_models(
            logs,
            weights=of_clients.weights(),
            starved_after_ns=of_clients.starved_after,
            window_ns=window,
            progress=lambda done, total: progress(f"reading {name}", done, total),
            **of_log.reading(),
        )
    judgements = analysis_audit.judged(found, fail_on)
    output.write_figures(json, analysis_audit.audit_document(found, judgements))
    if junit is not None:
        write_whole(junit, analysis_audit.junit(judgements, name))
    pages: list[Path | None] = []
    if report is not None:
        from fairsched.engines.analysis.audit import write_audit

        for i, audit in enumerate(found):
            folder = report if len(found) == 1 else report / f"{i + 1:02}"
            pages.append(write_audit(folder, audit, output.command_line()))
    if to_frame is not None:
        write_audit_frames(to_frame, found)
    with output.shown(json) as console:
        for i, audit in enumerate(found):
            if i:
                console.print()
            print_audit(audit, console)
        if found[0].evidence.kind == "access log":
            print_lines(console, ["", "What policies would have done:"])
            output.print_commands(
                console,
                ["fairsched", "trace", *logs, "--out", "trace.jsonl"],
                ["fairsched", "compare", "trace.jsonl", "--policies", "fcfs,dlpm"],
            )
        if judgements:
            told = [f"{_MARKS[each.verdict]} {each.threshold.text}: {each.said}." for each in judgements]
            print_lines(console, ["", *told])
        output.print_files(console, Figures=json, Thresholds=junit, Frames=to_frame)
        for page in pages:
            output.print_files(console, Report=page)
    return output.unexplained(
        [name] if any(audit.unexplained for audit in found) else []
    ) or analysis_audit.exit_status(judgements)


def advise(
    *logs: Log,
    of_log: ReadingOptions = ReadingOptions(),
    of_clients: ClientOptions = ClientOptions(),
    workers: WorkerCount | None = None,
    json: Json = None,
    report: Report = None,
) -> int:
    """Say what an access log shows, and what to do: which clients wait and starve, between which times a gate would
    bring their waits, and at what cost.  Machines are fitted to the log; of a long log those requests are simulated
    that waited most.

    Args:
        workers: number of servers (default: as many as the log names, or as fit it)
        report: write an HTML report with plots, gateway.toml and vllm.toml
    """
    from fairsched.engines.capacity import advice as engine

    output.writable(json=json)
    output.folders(report=report)
    output.apart(expanded(logs), json=json)
    with output.progress_bar() as progress:
        advice = engine.advise(
            logs,
            weights=of_clients.weights(),
            starved_after_ns=of_clients.starved_after,
            workers=workers,
            progress=progress,
            **of_log.reading(),
        )
    output.write_figures(json, advice.to_json())
    page, files = None, []
    if report is not None:
        page = engine.write_advice(report, advice, output.command_line())
        files = [] if advice.verdict == "leave" else engine.write_configurations(report, advice)
    with output.shown(json) as console:
        print_lines(console, (safe_text(line, None) for line in advice.audit.evidence.opening))
        if advice.fit is not None:
            print_lines(console, [output.machines([advice.fit.latency])])
        print_text(console, advice.paragraph)
        output.print_files(console, Figures=json, Report=page)
        for path in files:
            output.print_files(console, Configuration=path)
        if files:
            print_lines(console, [f"Warning: {warning}" for warning in engine.Windows.of(advice).warnings])
    return 0 if advice.complete else 130
