"""Budgets as a value: what each was charged in the windows of now, and what calls under way hold of it.

A call reserves the most that it may come to from all budgets that it counts in, or from none; when it ends it is
charged what it used, and the rest is free again.  A call that does not say what it used, and one that has not ended in
its time, since its gateway died, is charged all that it reserved: a server may have computed it.  A reservation is
known by an id, so that one which comes again changes nothing, nor does an end: each call is charged once.

At every moment, for each budget and each of its windows, what was charged in the window and what is reserved come to at
most the quota, as long as no call used more than it had reserved; what it used beyond that is charged, too, and counted
as `overrun`.  A call counts in the windows in which it ends.  Windows are fixed: a minute that straddles the end of one
may hold the tokens of two.

Time is the store's and never runs back: a clock that was set back stands still here until it is past the time before.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import attrs
import msgspec


@attrs.frozen
class Quota:
    """The most tokens of a minute, a day, a month, and of all calls under way; None: any number."""

    minute: int | None = None
    day: int | None = None
    month: int | None = None
    concurrent: int | None = None

    @property
    def least(self) -> int | None:
        """The most that one call may ever reserve."""
        return min((most for most in attrs.astuple(self) if most is not None), default=None)


class Spent(msgspec.Struct, frozen=True, array_like=True):
    """What a call used, in tokens; `unsaid`: what was charged of calls that did not say."""

    prompt: int = 0
    """Less those from the server's cache."""
    cached: int = 0
    output: int = 0
    unsaid: int = 0

    @property
    def tokens(self) -> int:
        """All of it."""
        return self.prompt + self.cached + self.output + self.unsaid

    def plus(self, other: "Spent") -> "Spent":
        """Return the sum."""
        mine, more = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Spent(*(a + b for a, b in zip(mine, more, strict=True)))


NOTHING = Spent()


class Budget(msgspec.Struct, frozen=True, array_like=True):
    """One budget: tokens charged in its minute, day and month of now, and in those before; tokens that calls under way
    hold; and all that was ever charged."""

    used: tuple[int, int, int] = (0, 0, 0)
    before: tuple[int, int, int] = (0, 0, 0)
    reserved: int = 0
    total: Spent = NOTHING
    calls: int = 0
    overrun: int = 0
    """Tokens that calls used beyond what they had reserved."""


class Held(msgspec.Struct, frozen=True, array_like=True):
    """What a call under way holds of each of these budgets, and when it counts as lost."""

    tokens: int
    budgets: tuple[str, ...]
    until_ns: int


class Ledger(msgspec.Struct, frozen=True):
    """Budgets by name, and calls under way by id."""

    time_ns: int = 0
    budgets: dict[str, Budget] = {}
    held: dict[str, Held] = {}


@attrs.frozen
class Reserve:
    """A call wants to begin: the most tokens that it may come to, the budgets that it counts in with their quotas, and
    how long it may take."""

    id: str
    tokens: int
    quotas: Mapping[str, Quota]
    ttl_ns: int


@attrs.frozen
class End:
    """A call ended; None: it does not say what it used."""

    id: str
    spent: Spent | None


Operation = Reserve | End


@attrs.frozen
class Reserved:
    """A call may begin.  Of the quotas that it counts in, the one of which the least is left: its most, what is left,
    and how long until its window ends (None: it has none)."""

    most: int | None = None
    left: int = 0
    reset_ns: int | None = None


@attrs.frozen
class Refused:
    """A call may not begin: the budget and the window that have no room (`concurrent`: calls under way), what the quota
    is, how much is left, and how long until the window ends.  `never`: the call is larger than the quota.
    `blocked`: what calls under way hold would do, so that it need not be the window's end.
    """

    budget: str
    window: str
    most: int
    left: int
    reset_ns: int | None
    never: bool
    blocked: bool


Answer = Reserved | Refused | None


# --- kernel: plain integers -----------------------------------------------------------------------------------------


def fits(used: int, reserved: int, tokens: int, most: int) -> bool:
    """Whether a call may reserve so many tokens more."""
    return used + reserved + tokens <= most


def charged(used: int, reserved: int, held: int, spent: int) -> tuple[int, int, int]:
    """Return what is used and reserved after a call that held so much has ended, and by how much it overran that."""
    return used + spent, reserved - held, max(spent - held, 0)


# --- the ledger -----------------------------------------------------------------------------------------------------


def advanced(ledger: Ledger, now_ns: int) -> Ledger:
    """Return the ledger at this time, or at its own if that is later: new windows begin, and calls that are lost are
    charged all that they held.  O(budgets + calls under way)."""
    now = max(now_ns, ledger.time_ns)
    windows = [(window_of(window, ledger.time_ns), window_of(window, now)) for window in WINDOWS]
    budgets = dict(ledger.budgets)
    if any(before != after for before, after in windows):
        budgets = {name: _in_new_windows(budget, windows) for name, budget in budgets.items()}
    held = dict(ledger.held)
    for call in [call for call, each in held.items() if each.until_ns <= now]:
        _end(budgets, held, End(call, None))
    return Ledger(now, budgets, held)


def _in_new_windows(budget: Budget, windows: Iterable[tuple[tuple[int, int], tuple[int, int]]]) -> Budget:
    used, before = list(budget.used), list(budget.before)
    for i, (then, now) in enumerate(windows):
        if then != now:
            before[i] = used[i] if then[1] == now[0] else 0
            used[i] = 0
    return msgspec.structs.replace(budget, used=(used[0], used[1], used[2]), before=(before[0], before[1], before[2]))


def changed(ledger: Ledger, operations: Iterable[Operation], now_ns: int) -> tuple[Ledger, list[Answer]]:
    """Return the ledger after these, one after the other, and the answer to each `Reserve` (None to an `End`).

    O(budgets + calls under way + operations).
    """
    ledger = advanced(ledger, now_ns)
    budgets, held = ledger.budgets, ledger.held
    answers: list[Answer] = []
    for each in operations:
        if isinstance(each, End):
            _end(budgets, held, each)
            answers.append(None)
        else:
            answers.append(_reserve(budgets, held, each, ledger.time_ns))
    return ledger, answers


def _reserve(budgets: dict[str, Budget], held: dict[str, Held], asked: Reserve, now_ns: int) -> Reserved | Refused:
    """Reserve from all budgets or none."""
    if asked.id not in held:
        refused = [each for name in asked.quotas for each in _refusals(budgets, name, asked, now_ns)]
        if refused:
            return max(refused, key=lambda each: (each.never, not each.blocked, each.reset_ns or 0))
        for name in asked.quotas:
            budget = budgets.get(name, Budget())
            budgets[name] = msgspec.structs.replace(budget, reserved=budget.reserved + asked.tokens)
        held[asked.id] = Held(asked.tokens, tuple(asked.quotas), now_ns + asked.ttl_ns)
    rows = [row for name, quota in asked.quotas.items() for row in _rows(budgets[name], quota, now_ns)]
    if not rows:
        return Reserved()
    _, most, used, reserved, reset_ns = min(rows, key=lambda row: row[1] - row[2] - row[3])
    return Reserved(most, max(most - used - reserved, 0), reset_ns)


_Row = tuple[str, int, int, int, int | None]


def _rows(budget: Budget, quota: Quota, now_ns: int) -> list[_Row]:
    """Return each quota that there is: its window, the most, what is used and reserved, and when the window ends."""
    rows: list[_Row] = []
    for window, used, most in zip(WINDOWS, budget.used, (quota.minute, quota.day, quota.month), strict=True):
        if most is not None:
            rows.append((window, most, used, budget.reserved, window_of(window, now_ns)[1] - now_ns))
    if quota.concurrent is not None:
        rows.append(("concurrent", quota.concurrent, 0, budget.reserved, None))
    return rows


def _refusals(budgets: Mapping[str, Budget], name: str, asked: Reserve, now_ns: int) -> Iterator[Refused]:
    """Yield the windows of a budget that have no room for a call."""
    for window, most, used, reserved, reset_ns in _rows(budgets.get(name, Budget()), asked.quotas[name], now_ns):
        if not fits(used, reserved, asked.tokens, most):
            left, blocked = max(most - used - reserved, 0), used + asked.tokens <= most
            yield Refused(name, window, most, left, reset_ns, never=asked.tokens > most, blocked=blocked)


def _end(budgets: dict[str, Budget], held: dict[str, Held], end: End) -> None:
    """Charge a call to all budgets that it counts in, unless it has ended."""
    call = held.pop(end.id, None)
    if call is None:
        return
    spent = Spent(unsaid=call.tokens) if end.spent is None else end.spent
    for name in call.budgets:
        budget = budgets[name]
        rows = [charged(used, budget.reserved, call.tokens, spent.tokens) for used in budget.used]
        minute, day, month = (used for used, _, _ in rows)
        _, reserved, overrun = rows[0]
        budgets[name] = Budget(
            (minute, day, month),
            budget.before,
            reserved,
            budget.total.plus(spent),
            budget.calls + (spent != NOTHING),
            budget.overrun + overrun,
        )


# --- calendar ---------------------------------------------------------------------------------------------------------
# Minutes, days and months of UTC, as spans of nanoseconds since 1970.
#
# Months are those of the Gregorian calendar, by Howard Hinnant's algorithms ("chrono-Compatible Low-Level Date
# Algorithms"): policies import no clock and no calendar.

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
