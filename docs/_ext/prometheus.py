"""The directive `metrics`: the Prometheus metrics of live engines, with their labels."""

import re
from collections.abc import Sequence
from typing import Any

from markdown import directive, escaped, table

from fairsched.engines.serving import metrics

_NAMED = re.compile(r"fairsched_(\w+)\{([\w,]*)\}")


def metrics_table(_: Sequence[str]) -> str:
    """Every metric with its labels and what it counts; the labels are those of the module's docstring."""
    labels = dict(_NAMED.findall(metrics.__doc__ or ""))
    meant = {"decision_seconds": "Time of a decision, in policy and guard (histogram).", **metrics.HELP}
    rows = [
        (f"`fairsched_{name}`", escaped(labels.get(name, "").replace(",", ", ")), escaped(meant[name]))
        for name in meant
    ]
    return table(("metric", "labels", "meaning"), rows)


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("metrics", directive(metrics_table))
    return {"parallel_read_safe": True}
