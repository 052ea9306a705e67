"""The directives `metrics` and `alerts`: what Prometheus sees of live engines, and the alerts that ship."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from markdown import directive, escaped, table

from fairsched.engines.serving import metrics


def metrics_table(_: Sequence[str]) -> str:
    """Every metric with its labels and what it counts."""
    rows = [
        (f"`fairsched_{name}`", escaped(labels.replace(",", ", ")), escaped(meant))
        for name, (labels, meant) in metrics.HELP.items()
    ]
    return table(("metric", "labels", "meaning"), rows)


RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yaml"
_TEMPLATE = re.compile(r"\{\{\s*\$(?:labels\.)?(\w+)[^}]*\}\}")
"""What Prometheus fills in: a label or the value, shown by its name in capitals."""


def alerts_table(_: Sequence[str]) -> str:
    """Return the alerts of `deploy/prometheus/rules.yaml`: how long until each fires, and what it means."""
    rows = []
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            told = " ".join(rule["annotations"][each] for each in ("summary", "description"))
            rows.append(
                (
                    f"`{rule['alert']}`",
                    rule.get("for", "at once"),
                    escaped(_TEMPLATE.sub(lambda found: found[1].upper(), told)),
                )
            )
    return table(("alert", "after", "meaning"), rows)


def setup(app: Any) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("metrics", directive(metrics_table))
    app.add_directive("alerts", directive(alerts_table))
    return {"parallel_read_safe": True}
