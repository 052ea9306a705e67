"""Which requests of an access log are looked at: by model, by time of arrival, and by how they ended."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.logs.access import values
from fairsched.engines.logs.access.access_log import NAMES, AccessLog
from fairsched.engines.workloads import unknown

_CLASS = re.compile(r"[1-5]xx", re.IGNORECASE)
_HTTP = re.compile(r"[1-5](xx|\d\d)", re.IGNORECASE)
_OUTCOMES = {outcome.name.lower(): outcome for outcome in values.Ending}
_length = values.length_reader("s")


@attrs.frozen
class When:
    """A time on a log's clock: a date (in the log's zone, if it has none), or nanoseconds from the log's start."""

    text: str
    date: datetime | None
    after_ns: int = 0

    @classmethod
    def parse(cls, text: str) -> "When":
        """Read a date and time, seconds since 1970, or a length of time from the start (`90`, `10m`, `1h30m`).

        Raises `ValueError` in one line.
        """
        date = values.date_of(text)
        if date is not None and not text.strip().isdecimal():
            return cls(text, date)
        try:
            if text.strip().isdecimal() and int(text) >= values.SINCE_1970_S_MIN:
                ns = values.moment_reader(values.unit_of_moment(text))(text)
                return cls(text, datetime.fromtimestamp(0, UTC) + timedelta(microseconds=ns // 1000))
            return cls(text, None, _length(text))
        except (values.ValueFault, OverflowError):
            expected = "a date and time as 2026-11-21T18:00 or a length of time from the log's start as 10m"
            raise ValueError(f"expected {expected}, found {text!r}") from None

    def ns(self, log: AccessLog) -> int:
        """Return the time in the log, in nanoseconds."""
        if self.date is None:
            return int(log.arrival_ns.min(initial=np.iinfo(np.int64).max)) + self.after_ns
        if log.utc_offset_s is None:
            raise ValueError(f"{self.text}: the log's clock does not say which day it is; give a time from its start")
        date = self.date
        if date.tzinfo is None:
            date = date.replace(tzinfo=timezone(timedelta(seconds=log.utc_offset_s)))
        return (date - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1000


@attrs.frozen
class Filters:
    """The requests that are kept: of one of `models`, that came from `start` on and before `until`, and with one of
    `statuses` (`200`, `5xx`, or an outcome as `cancelled`).  What is empty or None keeps all.
    """

    models: tuple[str, ...] = ()
    start: When | None = None
    until: When | None = None
    statuses: tuple[str, ...] = ()


def kept(log: AccessLog, filters: Filters) -> AccessLog:
    """Return the log with the requests that the filters keep, and a note of how many.

    Raises `ValueError` for a model that the log does not have, for a status that is none, and where no request is left.
    """
    masks: dict[str, npt.NDArray[np.bool_]] = {}
    if filters.models:
        masks["model " + " or ".join(filters.models)] = _of_models(log, filters.models)
    if filters.start is not None:
        masks[f"from {filters.start.text}"] = log.arrival_ns >= filters.start.ns(log)
    if filters.until is not None:
        masks[f"until {filters.until.text}"] = log.arrival_ns < filters.until.ns(log)
    if filters.statuses:
        masks["status " + " or ".join(filters.statuses)] = _of_statuses(log, filters.statuses)
    if not masks:
        return log
    keep = np.all(list(masks.values()), axis=0)
    total, left = len(keep), int(keep.sum())
    if not left:
        each = ", ".join(f"{name} keeps {int(mask.sum()):,}" for name, mask in masks.items())
        raise ValueError(f"{log.path}: none of its {total:,} requests is left: {each}")
    return only(log, keep, f"Only requests with {', '.join(masks)}: {left:,} of {total:,}.")


def _of_models(log: AccessLog, models: Sequence[str]) -> npt.NDArray[np.bool_]:
    for name in models:
        if name not in log.models:
            raise unknown("model", name, log.models)
    return np.isin(log.model, [log.models.index(name) for name in models])


def _of_statuses(log: AccessLog, statuses: Sequence[str]) -> npt.NDArray[np.bool_]:
    keep = np.zeros(len(log.status), dtype=np.bool_)
    for text in statuses:
        if text.lower() in _OUTCOMES:
            keep |= log.outcome == _OUTCOMES[text.lower()]
            continue
        wanted = text[0] if _CLASS.fullmatch(text) else None
        codes = [
            i
            for i, name in enumerate(log.statuses)
            if name == text or (wanted and len(name) == 3 and name.isdecimal() and name[0] == wanted)
        ]
        if not codes and not _HTTP.fullmatch(text):
            raise unknown("status", text, [name for name in log.statuses if name] + list(_OUTCOMES))
        keep |= np.isin(log.status, codes)
    return keep


def only(log: AccessLog, keep: npt.NDArray[np.bool_], *notes: str) -> AccessLog:
    """Return the kept rows of the log with the names that they still have, and with these notes before its own."""
    log, changed = log.rows(keep), dict[str, Any]()
    for column, field in NAMES.items():
        known: tuple[str, ...] = getattr(log, field)
        used, again = np.unique(getattr(log, column), return_inverse=True)
        there = used[used != values.UNKNOWN]
        changed[field] = tuple(known[i] for i in there.tolist())
        changed[column] = again - (len(used) - len(there))
    return attrs.evolve(log, **changed, notes=(*notes, *log.notes))
