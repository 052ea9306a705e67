"""A comparison: several runs over one trace, and the JSON document that says what came of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from fairsched.engines.metrics import RunResult


@attrs.frozen
class Comparison:
    """What was compared: `trace` holds facts about it (and its notes), `command` the line that repeats it."""

    version: str
    command: str
    trace: Mapping[str, Any]
    runs: Sequence[RunResult]

    def to_json(self) -> dict[str, Any]:
        """The document of `fairsched compare --json`: plain values, None where there was nothing to measure."""
        return {
            "fairsched": self.version,
            "trace": dict(self.trace),
            "runs": [run.to_json() for run in self.runs],
        }
