"""The page of advice: the paragraph, what clients waited for today and with the gate, and what to put in place.

Needs the `cli` extra (jinja2, matplotlib), imported when a page is written.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairsched.engines.analysis import report, share, summary, time
from fairsched.engines.analysis.audit import LEGEND, audit_courses, audit_scope
from fairsched.engines.capacity.advice.advice import Advice, names, next_steps
from fairsched.engines.capacity.advice.configuration import gateway_toml, vllm_toml
from fairsched.engines.capacity.advice.effects import Effects

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


def write_advice(directory: Path, advice: Advice, command: str) -> Path:
    """Write `index.html` into a folder, which is made if need be, and return its path.  Raises `OSError`."""
    return page_of(advice, command).write(directory)


def page_of(advice: Advice, command: str) -> report.Page:
    """Return the page."""
    parts: list[report.Part] = []
    if (effects := advice.effects) is not None:
        groups = {"helped": effects.helped, "waiting": (*effects.unsure, *effects.waiting), "others": effects.others}
        parts += [
            report.plot_part(_first_tokens(advice, effects, name, clients))
            for name, clients in groups.items()
            if len(effects.rows(clients))
        ]
        parts += [
            report.Part("Each client: times to the first token", [_clients(advice, effects)]),
            report.Part("The machines that explain the log", [_machines(effects)]),
        ]
    if advice.fit is not None:
        parts += [report.Part("The machine that was fitted", [report.Sentences(advice.fit.sentences())])]
    parts += audit_courses(advice.audit)
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


_TITLES = {
    "helped": "How long the clients that a gate helps would wait",
    "waiting": "How long the clients would wait that wait nevertheless",
    "others": "What it costs the others",
}


def _first_tokens(advice: Advice, effects: Effects, group: str, clients: Sequence[int]) -> report.Plot:
    """Return distributions of times to the first token: logged, and as the first machine has them."""
    rows, member = effects.rows(clients), effects.members[0]
    shown = [
        (np.maximum(np.sort(times[rows]) / 1e9, _LEAST_S), style, name)
        for times, style, name in zip(
            (effects.window.seen.ttft, member.today.ttft, member.gated.ttft),
            _STYLES,
            ("as it was logged", "as it is today, simulated", "with the gate, simulated"),
            strict=True,
        )
    ]

    def picture(figure: "Figure") -> None:
        report.distribution(
            figure, "time to the first token, seconds (log)", [(each, style) for each, style, _ in shown]
        )

    return report.drawn(
        f"ttft-{group}",
        _TITLES[group],
        f"Requests of {names(advice, clients)}. Further left is faster. Where the first two lines lie on each other, "
        "the simulation is as the server was; the third is what the gate changes.",
        3.6,
        picture,
        [report.Key(name, style) for _, style, name in shown],
    )


def _clients(advice: Advice, effects: Effects) -> report.Table:
    """Return a row for each client: first tokens as logged and with the gate."""
    rows = []
    for client in effects.clients[:CLIENTS_SHOWN]:
        logged, known = effects.logged([client]), len(effects.rows([client]))
        low, high = effects.gated([client]) if known else (None, None)
        part = advice.audit.clients[client].service_share
        most = None if high == float("inf") else high
        rows.append(
            [advice.audit.who(client), f"{known:,}", share(part), *map(time, (logged.p50, logged.p99, low, most))]
        )
    hidden = len(effects.clients) - CLIENTS_SHOWN
    heads = [report.Heading("p50", "logged"), report.Heading("p99", "logged")]
    heads += [report.Heading("p99", "gate, least"), report.Heading("p99", "gate, most")]
    return report.Table(
        ["client", "requests", report.Heading("share", "of service"), *heads],
        rows,
        f"{hidden:,} more clients are left out." if hidden > 0 else "",
    )


def _machines(effects: Effects) -> report.Table:
    """Return a row for each machine: its settings, and the p99 of all clients that waited, today and with the gate."""
    rows = effects.rows((*effects.helped, *effects.unsure, *effects.waiting))
    found = []
    for member in effects.members:
        machine = member.machine
        times = (summary(run.ttft[rows]).p99 for run in (member.today, member.gated))
        decode = f"{machine.times[3] / 1e6:.2f} ms"
        rule = f"{machine.rule}, let in ahead" if machine.ahead else machine.rule
        found.append([f"{machine.workers}", rule, f"{machine.max_running:,}", decode, *map(time, times)])
    heads = ["servers", "prompts", "requests at once", "a step that decodes", "TTFT p99 today", "with the gate"]
    return report.Table(heads, found, "Of the clients that waited; the gate is DLPM's, with the default quantum.")


def _files(advice: Advice) -> list[report.Block]:
    if advice.verdict == "leave":
        return []
    return [
        report.Folded("gateway.toml", [report.Code(gateway_toml(advice))], is_open=True),
        report.Folded("vllm.toml", [report.Code(vllm_toml(advice))]),
    ]
