"""Another try: how many there may be, and when a server wants to be asked again."""

import math
from collections.abc import Hashable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

SAVED = 100
"""Retries that a client has saved up at the start, and at most."""


class RetryBudget:
    """Retries as a share of calls, for each client: a server that fails is not given several times the load.

    In any time a client has at most `SAVED` retries and `percent` of its calls then, whatever others do.  O(1).
    """

    def __init__(self, percent: int) -> None:
        self.percent = percent
        self._saved: dict[Hashable, int] = {}

    def called(self, client: Hashable) -> None:
        """Take in a call of the client."""
        saved = self._saved.get(client)
        if saved is not None:
            saved += self.percent
            if saved >= SAVED * 100:
                # As for a client of which nothing is known, which needs no entry.
                del self._saved[client]
            else:
                self._saved[client] = saved

    def allows(self, client: Hashable) -> bool:
        """Return whether the client may try again, and take that retry from its budget."""
        saved = self._saved.get(client, SAVED * 100)
        if saved < 100 or not self.percent:
            return False
        self._saved[client] = saved - 100
        return True


def retry_after_seconds(value: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds that a `Retry-After` says, as a number or a date; None for what is neither.

    >>> retry_after_seconds("7"), retry_after_seconds("soon")
    (7.0, None)
    """
    if value is None:
        return None
    text = value.strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            when = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        seconds = (when - (now or datetime.now(UTC))).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else None
