"""Axes over time: the time of day on a log's own clock, or seconds, minutes or hours since a run began."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import ceil, floor
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MINUTE, HOUR, DAY = 60, 3_600, 86_400
_STEPS = (
    *(1, 2, 5, 10, 15, 30),
    *(MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(HOUR * n for n in (1, 2, 3, 6, 12)),
    *(DAY * n for n in (1, 2, 7, 14, 28, 91, 182, 364)),
)
"""Seconds between two ticks."""
_ROUND = (1, 2, 5, 10, 20, 50, 100, 200)
"""The same of a run that is told in seconds."""
_LEAST_S = 5
"""Shorter spans have ticks between whole seconds."""


@attrs.frozen
class TimeAxis:
    """How seconds since the first arrival are written along an axis.

    `start` is the first arrival on the log's clock, with its zone; None where there is no such clock, as in a run that
    was simulated.  What is drawn is in seconds in both cases.
    """

    span_s: float
    start: datetime | None = None

    @property
    def unit_s(self) -> int:
        """Seconds in one unit of an axis without a clock."""
        return HOUR if self.span_s > 3 * HOUR else MINUTE if self.span_s > 5 * MINUTE else 1

    def _at(self, seconds: float) -> datetime:
        """The moment on the log's clock; by way of UTC, since a local clock may be put back on the way."""
        assert self.start is not None
        return (self.start.astimezone(UTC) + timedelta(seconds=seconds)).astimezone(self.start.tzinfo)

    def label(self) -> str:
        """What stands at the axis: the day and the zone, or the unit."""
        if self.start is None:
            name = {1: "seconds", MINUTE: "minutes", HOUR: "hours"}[self.unit_s]
            return f"{name} since the first arrival"
        end = self._at(self.span_s)
        zone = self.start.tzname() or "no zone"
        if self.span_s < _LEAST_S:
            return f"seconds after {self.start:%Y-%m-%d %H:%M:%S} {zone}"
        days = f"{self.start:%Y-%m-%d}" + (f" to {end:%Y-%m-%d}" if end.date() != self.start.date() else "")
        return f"time on {days}, {zone}"

    def ticks(self, low: float, high: float, most: int) -> list[float]:
        """Return at most so many round times from `low` to `high`, in seconds."""
        # Round on the clock of the log, whose day does not begin with the first arrival.
        ahead = 0.0 if self.start is None else (self.start.replace(tzinfo=None) - datetime(1970, 1, 5)).total_seconds()
        steps = _ROUND if self.start is None and self.unit_s == 1 else _STEPS
        found: list[float] = []
        for step in steps:
            first, last = ceil((low + ahead) / step), floor((high + ahead) / step)
            if last - first < most:
                found = [k * step - ahead for k in range(first, last + 1)]
                break
        return found

    def text(self, seconds: float) -> str:
        """Return what stands at a tick."""
        if self.start is None:
            return f"{seconds / self.unit_s:,.10g}"
        # Ticks are whole seconds of the clock; the start may not be.
        moment = self._at(seconds)
        moment = (moment + timedelta(milliseconds=1)).replace(microsecond=0)
        if self.span_s > 5 * DAY:
            return f"{moment:%d %b}"
        if self.span_s > 1.5 * DAY:
            return f"{moment:%d %b %H:%M}"
        return f"{moment:%H:%M:%S}" if self.span_s < 10 * MINUTE else f"{moment:%H:%M}"

    def put_on(self, panels: "Sequence[Axes]", most: int = 5) -> None:
        """Write at most so many times along the axes; their limits may be set before or after."""
        if self.span_s < _LEAST_S:
            return
        from matplotlib.ticker import FuncFormatter, Locator

        class TimeLocator(Locator):
            """Ticks at round times, whatever part is shown."""

            def __init__(self, axis: TimeAxis) -> None:
                self.of = axis

            def __call__(self) -> list[float]:
                assert self.axis is not None
                low, high = sorted(self.axis.get_view_interval())
                return self.tick_values(low, high)

            def tick_values(self, vmin: float, vmax: float) -> list[float]:
                return self.of.ticks(vmin, vmax, most)

        for axes in panels:
            axes.xaxis.set_major_locator(TimeLocator(self))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: self.text(x)))
