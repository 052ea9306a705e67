"""A comparison: several runs over one trace, and the JSON document that says what came of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from fairsched.engines.metrics import RunResult


def number(value: object) -> float | None:
    """A parameter's value as a number, if it is one; a command line's are texts.

    >>> number("512"), number(0.5), number("static")
    (512.0, 0.5, None)
    """
    try:
        return float(value) if isinstance(value, str | int | float) else None
    except ValueError:
        return None


@attrs.frozen
class Comparison:
    """What was compared: `trace` holds facts about it (and its notes), `command` the line that repeats it."""

    version: str
    command: str
    trace: Mapping[str, Any]
    runs: Sequence[RunResult]

    def labels(self) -> list[str]:
        """A short name for each run: its policy, the parameters that were set, and of router, predictor and rate those
        of which there are several."""
        scales = {run.rate_scale for run in self.runs}
        rates = [f" rate x{run.rate_scale:g}" if len(scales) > 1 else "" for run in self.runs]
        return self._told_apart([name + rate for name, rate in zip(self.families(), rates, strict=True)])

    def families(self) -> list[str]:
        """The same without the rate: runs that differ in nothing else have one name."""
        routers, predictors = ({getattr(run, name) for run in self.runs} for name in ("router", "predictor"))
        return [
            " ".join(
                (
                    run.policy,
                    *((run.router,) if len(routers) > 1 else ()),
                    *(f"{name}={value}" for name, value in run.params.items()),
                    *((run.predictor or "own predictions",) if len(predictors) > 1 else ()),
                )
            )
            for run in self.runs
        ]

    @staticmethod
    def _told_apart(names: list[str]) -> list[str]:
        twice = Counter(names)
        return [f"{name} #{i + 1}" if twice[name] > 1 else name for i, name in enumerate(names)]

    def swept(self) -> str | None:
        """The parameter that was given several numbers, if there is exactly one."""
        values: dict[str, set[float | None]] = {}
        for run in self.runs:
            for name, value in run.params.items():
                if number(value) is not None:
                    values.setdefault(name, set()).add(number(value))
        several = [name for name, found in values.items() if len(found) > 1]
        return several[0] if len(several) == 1 else None

    def to_json(self) -> dict[str, Any]:
        """The document of `fairsched compare --json`: plain values, None where there was nothing to measure."""
        return {
            "fairsched": self.version,
            "trace": dict(self.trace),
            "runs": [run.to_json() for run in self.runs],
        }
