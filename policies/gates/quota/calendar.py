"""Minutes, days and months of UTC, as spans of nanoseconds since 1970.

Months are those of the Gregorian calendar, by Howard Hinnant's algorithms ("chrono-Compatible Low-Level Date
Algorithms"): policies import no clock and no calendar.
"""

from typing import Literal

Window = Literal["minute", "day", "month"]
WINDOWS: tuple[Window, ...] = ("minute", "day", "month")
MINUTE_NS = 60 * 10**9
DAY_NS = 24 * 60 * MINUTE_NS
_ERA_DAYS = 146_097
"""Days of 400 years."""
_EPOCH_DAYS = 719_468
"""Days from 0000-03-01 to 1970-01-01."""


def window_of(window: Window, time_ns: int) -> tuple[int, int]:
    """Return when the window began that holds a time, and when it ends: the first moment of the next.

    >>> [edge // DAY_NS for edge in window_of("month", 45 * DAY_NS)]  # 1970-02-15
    [31, 59]
    """
    if window != "month":
        length = MINUTE_NS if window == "minute" else DAY_NS
        start = time_ns // length * length
        return start, start + length
    year, month = _month_of(time_ns // DAY_NS)
    following = (year + 1, 1) if month == 12 else (year, month + 1)
    return _first_day(year, month) * DAY_NS, _first_day(*following) * DAY_NS


def _month_of(day: int) -> tuple[int, int]:
    """Return year and month of a day since 1970."""
    era, day_of_era = divmod(day + _EPOCH_DAYS, _ERA_DAYS)
    leap_days = day_of_era // 1460 - day_of_era // 36_524 + day_of_era // 146_096
    year_of_era = (day_of_era - leap_days) // 365
    # Years begin in March, so that the leap day is the last one.
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153
    month = month + 3 if month < 10 else month - 9
    return era * 400 + year_of_era + (month <= 2), month


def _first_day(year: int, month: int) -> int:
    """Return the day since 1970 on which a month begins."""
    years = year - (month <= 2)
    era, year_of_era = divmod(years, 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * _ERA_DAYS + day_of_era - _EPOCH_DAYS
