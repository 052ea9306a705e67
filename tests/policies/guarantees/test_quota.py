"""Budgets of tokens are never exceeded by one, whatever gateways do and whenever they die."""

import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.policies.guarantees import quota
from fairsched.verify.logic import with_names

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
QUOTAS = {
    "client/a": quota.Quota(minute=12, day=20, concurrent=9),
    "client/b": quota.Quota(month=30),
    "client/c": quota.Quota(),
    "organisation/o": quota.Quota(minute=20, month=90, concurrent=15),
}
TTL_NS = 5 * quota.MINUTE_NS


@given(st.datetimes(datetime(1970, 1, 1), datetime(2400, 12, 31)))
def test_windows_are_those_of_the_calendar(time: datetime) -> None:
    """Minutes, days and months begin and end as in Python's calendar, through leap years and centuries."""
    time = time.replace(tzinfo=UTC)
    day = time.replace(hour=0, minute=0, second=0, microsecond=0)
    minute, month = time.replace(second=0, microsecond=0), day.replace(day=1)
    following = (month + timedelta(days=31)).replace(day=1)
    now_ns = _ns(time)
    assert quota.window_of("minute", now_ns) == (_ns(minute), _ns(minute) + quota.MINUTE_NS)
    assert quota.window_of("day", now_ns) == (_ns(day), _ns(day) + quota.DAY_NS)
    assert quota.window_of("month", now_ns) == (_ns(month), _ns(following))


def _ns(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1) * 1_000


@attrs.define
class World:
    """Gateways that reserve and end, with messages that come twice; beside the ledger, plain books of each call.

    `change` is what the store applies.  A call knows what it held and, once charged, what for and when.
    """

    change: Callable[..., Any] = quota.changed
    ledger: quota.Ledger = attrs.field(factory=quota.Ledger)
    now_ns: int = 50 * quota.DAY_NS
    open: dict[str, tuple[str, int, int]] = attrs.field(factory=dict)
    """Calls under way: client, tokens, and when they are lost."""
    ended: list[tuple[str, int, int]] = attrs.field(factory=list)
    """Client, tokens and time of each charge."""
    serial: int = 0
    granted: int = 0
    refused: Counter[str] = attrs.field(factory=Counter)

    def play(self, steps: list[tuple[str, int, int]]) -> "World":
        """Do these steps, and look at every budget after each."""
        for kind, which, tokens in steps:
            match kind:
                case "reserve":
                    self.reserve("abc"[which % 3], tokens % 14 + 1, times=1 + which % 2)
                case "end" if self.open:
                    call = sorted(self.open)[which % len(self.open)]
                    self.end(call, None if tokens == 63 else tokens % (self.open[call][1] + 1))
                case "wait":
                    self.pass_time((1, 5, 60, 6_000)[which % 4] * tokens * 10**9)
                case "set back":
                    # The store's clock, which others still follow.
                    self.say([], self.now_ns - tokens * quota.MINUTE_NS)
            self.check()
        return self

    def say(self, operations: list[Any], now_ns: int | None = None) -> list[Any]:
        """Change the ledger."""
        self.ledger, answers = self.change(self.ledger, operations, self.now_ns if now_ns is None else now_ns)
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(self.ledger), type=quota.Ledger)
        assert decoded == self.ledger
        return list(answers)

    def reserve(self, client: str, tokens: int, times: int) -> None:
        """A call wants to begin, and says so as often."""
        self.serial += 1
        names = (f"client/{client}", "organisation/o")
        asked = quota.Reserve(str(self.serial), tokens, {name: QUOTAS[name] for name in names}, TTL_NS)
        (first, *again) = self.say([asked] * times)
        if isinstance(first, quota.Reserved):
            assert all(isinstance(each, quota.Reserved) for each in again)
            self.open[asked.id] = client, tokens, self.now_ns + TTL_NS
            self.granted += 1
        else:
            assert isinstance(first, quota.Refused)
            self.refused[first.window] += 1
            self.holds(first, tokens)

    def holds(self, refused: quota.Refused, tokens: int) -> None:
        """A refusal is of a window that has no room, and says how much there is; a call that fits is not refused."""
        assert tokens > refused.left == max(refused.most - self.taken(refused.budget, refused.window), 0)
        assert refused.never == (tokens > refused.most)

    def end(self, call: str, tokens: int | None) -> None:
        """A call ends, and says so twice."""
        client, held, _ = self.open.pop(call)
        self.ended.append((client, held if tokens is None else tokens, self.now_ns))
        spent = None if tokens is None else quota.Spent(output=tokens)
        self.say([quota.End(call, spent)])
        self.say([quota.End(call, spent)])

    def pass_time(self, nanoseconds: int) -> None:
        """Gateways that do not end calls in time have died: those are charged whole, then."""
        self.now_ns += nanoseconds
        for call in [call for call, (_, _, until) in self.open.items() if until <= self.now_ns]:
            client, held, _ = self.open.pop(call)
            self.ended.append((client, held, self.now_ns))
        self.say([])

    def taken(self, budget: str, window: str) -> int:
        """What the books say of a budget: charged in the window of now, and reserved."""
        counts = "abc" if budget.startswith("organisation") else budget[-1]
        held = sum(tokens for client, tokens, _ in self.open.values() if client in counts)
        if window == "concurrent":
            return held
        start, _ = quota.window_of(window, self.now_ns)  # type: ignore[arg-type]
        return held + sum(tokens for client, tokens, at in self.ended if client in counts and at >= start)

    def check(self) -> None:
        """No budget is over its quota, and the ledger says what the books do."""
        for name, budget in self.ledger.budgets.items():
            own = QUOTAS[name]
            for window, used in zip(quota.WINDOWS, budget.used, strict=True):
                taken, most = self.taken(name, window), getattr(own, window)
                assert used + budget.reserved == taken
                assert most is None or taken <= most
            assert own.concurrent is None or budget.reserved <= own.concurrent
            assert budget.reserved == self.taken(name, "concurrent")
            counts = "abc" if name.startswith("organisation") else name[-1]
            assert budget.total.tokens == sum(tokens for client, tokens, _ in self.ended if client in counts)
            assert budget.overrun == 0
        assert set(self.ledger.held) == set(self.open)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reserve"] * 4 + ["end"] * 2 + ["wait", "set back"]), st.integers(0, 7), st.integers(0, 63)
    ),
    max_size=60,
)


@given(STEPS)
def test_no_quota_is_exceeded_by_a_token(steps: list[tuple[str, int, int]]) -> None:
    """Calls of several gateways reserve, end, come twice and are lost, clocks are set back, windows begin: what is
    charged in a window and what is reserved never come to more than a quota; each call is charged once,
    and one is refused only where a window has no room for it."""
    World().play(steps)


def drawn(random: random.Random) -> list[tuple[str, int, int]]:
    """Steps of a long world, most of them of calls."""
    kinds = ["reserve"] * 6 + ["end"] * 5 + ["wait"] * 2 + ["set back"]
    return [(random.choice(kinds), random.randrange(8), random.randrange(64)) for _ in range(80)]


def test_most_worlds_let_calls_in_and_windows_of_each_kind_refuse() -> None:
    """The property speaks of something."""
    refused, granted = Counter[str](), 0
    for seed in range(100):
        world = World().play(drawn(random.Random(seed)))
        refused += world.refused
        granted += world.granted
    assert granted > 1_000
    assert set(refused) == {*quota.WINDOWS, "concurrent"}


def test_a_call_that_uses_more_than_it_reserved_is_charged_and_counted() -> None:
    """The one way over a quota, and it says by how much."""
    asked = quota.Reserve("1", 5, {"client/a": quota.Quota(minute=6)}, TTL_NS)
    kept, _ = quota.changed(quota.Ledger(), [asked, quota.End("1", quota.Spent(prompt=4, cached=2, output=3))], 0)
    budget = kept.budgets["client/a"]
    assert (budget.used, budget.reserved, budget.overrun) == ((9, 9, 9), 0, 4)
    assert budget.total == quota.Spent(prompt=4, cached=2, output=3)


def test_the_window_before_is_kept_until_it_is_older() -> None:
    """A month that has ended can still be billed; after a month without calls it is nothing."""
    asked = quota.Reserve("1", 5, {"client/a": quota.Quota()}, TTL_NS)
    kept, _ = quota.changed(quota.Ledger(), [asked, quota.End("1", quota.Spent(output=5))], 10 * quota.DAY_NS)
    kept, _ = quota.changed(kept, [], 40 * quota.DAY_NS)
    assert kept.budgets["client/a"].used == (0, 0, 0)
    assert kept.budgets["client/a"].before == (0, 0, 5)
    kept, _ = quota.changed(kept, [], 200 * quota.DAY_NS)
    assert kept.budgets["client/a"].before == (0, 0, 0)


def test_a_call_that_is_given_back_is_free() -> None:
    """And counts as no call."""
    asked = quota.Reserve("1", 5, {"client/a": quota.Quota(minute=6)}, TTL_NS)
    kept, _ = quota.changed(quota.Ledger(), [asked, quota.End("1", quota.NOTHING)], 0)
    assert kept.budgets["client/a"] == quota.Budget()


# --- bugs -------------------------------------------------------------------------------------------------------------


def _with(**names: Any) -> Callable[[], World]:
    return lambda: World(with_names(quota.changed, **names))


def _reserves_twice(budgets: Any, held: Any, asked: quota.Reserve, now_ns: int) -> Any:
    held.pop(asked.id, None)
    return quota._reserve(budgets, held, asked, now_ns)


def _forgets_the_lost(kept: quota.Ledger, now_ns: int) -> quota.Ledger:
    there = {call: each for call, each in kept.held.items() if each.until_ns > now_ns}
    return quota.advanced(msgspec.structs.replace(kept, held=there), now_ns)


def _runs_back(kept: quota.Ledger, now_ns: int) -> quota.Ledger:
    return quota.advanced(msgspec.structs.replace(kept, time_ns=min(kept.time_ns, now_ns)), now_ns)


def _frees_at_a_new_minute(kept: quota.Ledger, now_ns: int) -> quota.Ledger:
    after = quota.advanced(kept, now_ns)
    if quota.window_of("minute", kept.time_ns) == quota.window_of("minute", after.time_ns):
        return after
    budgets = {name: msgspec.structs.replace(budget, reserved=0) for name, budget in after.budgets.items()}
    return msgspec.structs.replace(after, budgets=budgets)


def _fits(fits: Callable[..., bool]) -> Callable[[], World]:
    refusals = with_names(quota._refusals, fits=fits)
    return _with(_reserve=with_names(quota._reserve, _refusals=refusals))


def _charges(charged: Callable[..., Any]) -> Callable[[], World]:
    end = with_names(quota._end, charged=charged)
    return _with(_end=end, advanced=with_names(quota.advanced, _end=end))


BUGS: dict[str, Callable[[], World]] = {
    "one token too many": _fits(lambda used, reserved, tokens, most: used + reserved + tokens <= most + 1),
    "one token too few": _fits(lambda used, reserved, tokens, most: used + reserved + tokens < most),
    "what is reserved does not count": _fits(lambda used, reserved, tokens, most: used + tokens <= most),
    "an end frees all that there is": _charges(lambda used, reserved, held, spent: (used + spent, 0, 0)),
    "an end frees what was used": _charges(lambda used, reserved, held, spent: (used + spent, reserved - spent, 0)),
    "an end charges nothing": _charges(lambda used, reserved, held, spent: (used, reserved - held, 0)),
    "a reservation that comes again reserves again": _with(_reserve=_reserves_twice),
    "a call of a dead gateway is free": _with(advanced=_forgets_the_lost),
    "time runs back": _with(advanced=_runs_back),
    "a new minute frees what is reserved": _with(advanced=_frees_at_a_new_minute),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_found(bug: str) -> None:
    """Each error that such books might have breaks the property."""

    def worlds() -> None:
        for seed in range(200):
            BUGS[bug]().play(drawn(random.Random(seed)))

    with pytest.raises(AssertionError):
        worlds()
