"""The page of advice: the paragraph, what clients waited for today and with the gate, and what to put in place.

Needs the `cli` extra (jinja2, matplotlib), imported when a page is written.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairsched.engines.analysis import count, rate, report, share, time
from fairsched.engines.analysis.audit import LEGEND, audit_plots, audit_scope
from fairsched.engines.capacity.advice.advice import Advice, names, next_steps
from fairsched.engines.capacity.advice.configuration import gateway_toml, vllm_toml
from fairsched.engines.capacity.advice.effects import AdvisedCase, Effects
from fairsched.engines.capacity.tuning import Tuning
from fairsched.engines.logs.access import UNKNOWN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIENTS_SHOWN = 32
_LEAST_S = 1e-3
_STYLES: tuple[dict[str, Any], ...] = (
    {"color": report.COLOURS[5], "linewidth": 3.2},
    {"color": report.COLOURS[1], "linestyle": (0, (5, 1.5))},
    {"color": report.COLOURS[2]},
)
"""The stretch as it was logged, as it is today, and with the gate."""
_FROM_THE_AUDIT = ("Requests that wait", "When clients starved")


def write_advice(directory: Path, advice: Advice, command: str) -> Path:
    """Write `index.html` into a folder, which is made if need be, and return its path.  Raises `OSError`."""
    return page_of(advice, command).write(directory)


def page_of(advice: Advice, command: str) -> report.Page:
    """Return the page."""
    parts: list[report.Part] = []
    if advice.effects is not None:
        effects = advice.effects
        parts += [report.plot_part(_first_tokens(advice, effects, "harmed", effects.harmed))]
        if effects.others:
            parts += [report.plot_part(_first_tokens(advice, effects, "others", effects.others))]
        parts += [
            report.Part("Each client: times to the first token, and starvation", [_clients(advice, effects)]),
            report.Part("What was simulated", [_runs(effects)]),
        ]
    if advice.tuning is not None:
        parts += [report.Part("The quantum", [_quanta(advice.tuning)])]
    if advice.fit is not None:
        parts += [report.Part("The machine that was fitted", [report.Sentences(advice.fit.sentences())])]
    parts += [report.plot_part(plot) for plot in audit_plots(advice.audit) if plot.title in _FROM_THE_AUDIT]
    parts += [report.Part("What to do", [report.Sentences(next_steps(advice)), *_files(advice)])]
    tone = {"gate": "bad", "capacity": "bad", "unknown": "", "leave": "good"}[advice.verdict]
    return report.Page(
        title="Advice on a log",
        subtitle=advice.log.path.name,
        verdict=advice.sentences(),
        tone=tone,  # type: ignore[arg-type]
        parts=parts,
        command=command,
        small=[*LEGEND, *audit_scope(advice.audit)],
    )


def _first_tokens(advice: Advice, effects: Effects, group: str, clients: Sequence[int]) -> report.Plot:
    """Return distributions of times to the first token in all three cases."""

    def sample(case: AdvisedCase) -> np.ndarray:
        rows = np.flatnonzero(np.isin(case.log.client, np.array(clients)) & (case.log.first_ns != UNKNOWN))
        seconds = np.sort(case.log.first_ns[rows] - case.log.arrival_ns[rows]) / 1e9
        return np.maximum(seconds, _LEAST_S)

    shown = [
        (sample(case), style, name)
        for case, style, name in zip(
            (effects.logged, effects.today, effects.gated),
            _STYLES,
            ("as it was logged", "as it is today, simulated", "with the gate, simulated"),
            strict=True,
        )
    ]
    shown = [each for each in shown if len(each[0])]

    def picture(figure: "Figure") -> None:
        report.distribution(
            figure, "time to the first token, seconds (log)", [(each, style) for each, style, _ in shown]
        )

    whose = names(advice, clients)
    return report.drawn(
        f"ttft-{group}",
        "How long the clients that had to wait would wait" if group == "harmed" else "What it costs the others",
        f"Requests of {whose}. Further left is faster. Where the first two lines lie on each other, the simulation is "
        "as the server was; the third is what the gate changes.",
        3.6,
        picture,
        [report.Key(name, style) for _, style, name in shown],
    )


def _clients(advice: Advice, effects: Effects) -> report.Table:
    """Return a row for each client: first tokens and starvation in the three cases."""
    cases = (effects.logged, effects.today, effects.gated)
    order = [*effects.harmed, *sorted(effects.others, key=lambda i: -effects.logged.audit.clients[i].service)]
    rows = []
    for client in order[:CLIENTS_SHOWN]:
        groups = [case.group([client]) for case in cases]
        rows.append(
            [
                advice.audit.who(client),
                f"{groups[0].requests:,}",
                share(effects.logged.audit.clients[client].service_share),
                *(time(group.ttft_us.p50) for group in groups),
                *(time(group.ttft_us.p99) for group in groups),
                *(f"{group.starved:,}" for group in groups),
            ]
        )
    hidden = len(order) - CLIENTS_SHOWN
    heads = [
        report.Heading(figure, case) for figure in ("p50", "p99", "starved") for case in ("logged", "today", "gate")
    ]
    return report.Table(
        ["client", "requests", report.Heading("share", "of service"), *heads],
        rows,
        f"{hidden:,} more clients are in the JSON document." if hidden > 0 else "",
    )


def _runs(effects: Effects) -> report.Table:
    rows = [
        [
            f"{label} (today)" if not i else label,
            rate(run.measures.throughput_rps),
            rate(run.measures.output_tokens_per_s),
            time(run.measures.ttft_us.p50),
            time(run.measures.ttft_us.p99),
            time(run.measures.latency_us.p99),
            count(run.gap.cost),
        ]
        for i, (label, run) in enumerate(effects.comparison.named())
    ]
    heads = ["policy", "requests/s", "output tokens/s", "TTFT p50", "TTFT p99", "latency p99", "largest gap"]
    return report.Table(heads, rows, "Requests of all clients; counter is the gate of VTC, deficit that of DLPM.")


def _quanta(tuning: Tuning) -> report.Table:
    chosen = tuning.chosen or tuning.nearest
    rows = [
        [
            f"{point.quantum:,}" + (" (advised)" if point == chosen else ""),
            rate(point.throughput),
            time(point.wait_us.p99),
            time(point.measures.ttft_us.p99),
        ]
        for point in sorted(tuning.points, key=lambda point: point.quantum)
    ]
    return report.Table(
        ["quantum", "requests/s", "p99 wait of a client", "TTFT p99"],
        rows,
        f"A client waits until it is admitted (again). Wanted: at most {time(tuning.max_wait_us)}, and of equal "
        "throughput the quantum that promises most.",
    )


def _files(advice: Advice) -> list[report.Block]:
    if advice.verdict == "leave":
        return []
    return [
        report.Folded("gateway.toml", [report.Code(gateway_toml(advice))], is_open=True),
        report.Folded("vllm.toml", [report.Code(vllm_toml(advice))]),
    ]
