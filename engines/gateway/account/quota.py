"""The budgets of callers, in a store that gateways share.

A call reserves from the budgets of its client, that of its user and that of its organisation, in one change of one
value: that of the organisation, or of the client that is in none.  What comes while a change is under way is one change
together, so that a thousand calls at a time are a few.  An end is said until the store has taken it, and once: a
reservation has an id.

Beside these values is a list of all groups, so that any gateway can tell what every client used.

While the store is away, no call reserves.  A reservation whose answer was lost is taken back by the next change.
"""

import asyncio
import hashlib
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import msgspec

from fairsched.engines.gateway.config import EACH_OTHER, GatewayConfig, QuotaConfig
from fairsched.engines.gateway.openai import INSUFFICIENT, CallError
from fairsched.engines.gateway.window.leases import MemoryStore, Store, StoreError, open_store
from fairsched.engines.serving import Document, Sample
from fairsched.policies.guarantees import (
    NOTHING,
    SECOND_NS,
    WINDOWS,
    Answer,
    Budget,
    End,
    Ledger,
    Operation,
    Quota,
    Refused,
    Reserve,
    Reserved,
    Spent,
    advanced,
    changed,
)

T = TypeVar("T")

_log = logging.getLogger("fairsched.gateway")

AGAIN_SECONDS = 0.5
"""A store that is away is asked again after so long."""
CLOSE_SECONDS = 5.0
"""Ends that the store does not take for so long at the end of a gateway are not said: their calls are charged whole."""
SPARE_SECONDS = 60.0
"""A reservation outlives the longest call by so much."""
RETRIED_SECONDS = 60
"""OpenAI's clients do not wait longer before they try again; they are told not to."""
_HEAD = b"fairsched quotas 1\n"
"""What a value begins with; another number is another format."""
_NAMES = {
    "minute": "tokens a minute",
    "day": "tokens a day",
    "month": "tokens a month",
    "concurrent": "tokens at a time",
}


@attrs.define(eq=False)
class _Group:
    """Budgets that are one value, and what is to be changed in it."""

    name: str
    key: str
    listed: bool = False
    """Whether the store knows that there is such a group."""
    ledger: Ledger = attrs.field(factory=Ledger)
    """As it was last seen."""
    pending: "list[tuple[Operation, asyncio.Future[Answer] | None]]" = attrs.field(factory=list)
    why: str = ""
    """Why the store is away, if it is."""
    task: "asyncio.Task[None] | None" = None


@attrs.frozen
class Reservation:
    """What a call has reserved, and what its caller is told of it."""

    id: str
    group: _Group = attrs.field(repr=False)
    tokens: int
    headers: Mapping[str, str]


class Budgets:
    """Budgets by the quotas of a configuration.  Belongs to one event loop."""

    def __init__(self, config: GatewayConfig, store: Store) -> None:
        self.refused: Counter[str] = Counter()
        """Calls by the window that had no room; `never`: larger than a quota; `store`: it was away."""
        self.unchecked = 0
        """Calls that passed while the store was away."""
        self.overrun_tokens = 0
        self._store = store
        self._groups: dict[str, _Group] = {}
        self._name = secrets.token_hex(8)
        self._serial = 0
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        assert config.quota is not None
        self._config = config
        self._quota = config.quota
        address = config.quota.store or config.store
        self._prefix = f"fairsched.{'default' if address is None else address.name}.quota."
        # A call waits, and is tried again, within the first; each try is within the second.
        self._ttl_ns = round((config.limits.wait_seconds + config.call_seconds + SPARE_SECONDS) * SECOND_NS)

    def quotas_of(self, client: str) -> dict[str, Quota]:
        """Return the budgets that a client's calls count in, with their quotas; none for a client that has none."""
        groups = [name for name, _ in self._config.groups(client)]
        named = [("client", client, self._quota.client)]
        if groups:
            named.append(("organisation", groups[0], self._quota.organisation))
        if len(groups) > 1:
            named.append(("user", "/".join(groups[:2]), self._quota.user))
        found = {f"{kind}/{name}": table.get(name, table.get(EACH_OTHER)) for kind, name, table in named}
        return {name: _quota(each) for name, each in found.items() if each is not None}

    # --- a call -----------------------------------------------------------------------------------------------------

    @staticmethod
    def fitted(quotas: Mapping[str, Quota], prompt_tokens: int, max_output_tokens: int) -> int:
        """Return how many outputs a call may have whose caller leaves that open: what fits into every quota."""
        least = min((each.least for each in quotas.values() if each.least is not None), default=None)
        return max_output_tokens if least is None else max(min(max_output_tokens, least - prompt_tokens), 1)

    async def reserve(self, client: str, tokens: int, quotas: Mapping[str, Quota]) -> Reservation | None:
        """Reserve so many tokens; None where calls pass while the store is away.

        Raises `CallError` (429) where a quota has no room, (503) where the store is away.
        """
        group = self._group(client)
        if group.why:
            self._pass()
            return None
        self._serial += 1
        asked = Reserve(f"{self._name}.{self._serial}", tokens, quotas, self._ttl_ns)
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._add(group, asked, answered)
        try:
            answer = await answered
        except StoreError:
            self._pass()
            return None
        except asyncio.CancelledError:
            self._add(group, End(asked.id, NOTHING))
            raise
        if isinstance(answer, Refused):
            self.refused["never" if answer.never else answer.window] += 1
            raise self._refusal(answer, tokens)
        assert answer is not None
        return Reservation(asked.id, group, tokens, _headers(answer))

    def end(self, reservation: Reservation, spent: Spent | None) -> None:
        """Charge a call what it used; None: it does not say, and is charged all that it had reserved."""
        if spent is not None:
            self.overrun_tokens += max(spent.tokens - reservation.tokens, 0)
        self._add(reservation.group, End(reservation.id, spent))

    def _pass(self) -> None:
        """Let a call pass uncounted, or raise `CallError`."""
        if self._quota.store_away == "open":
            self.unchecked += 1
            return
        self.refused["store"] += 1
        raise CallError(503, "quotas cannot be looked up now", self._config.limits.retry_after_seconds)

    def _refusal(self, refused: Refused, tokens: int) -> CallError:
        kind, what = refused.budget.partition("/")[0], _NAMES[refused.window]
        headers = _headers(refused)
        if refused.never:
            message = f"this call may come to {tokens} tokens, and your {kind} may have {refused.most} {what}"
            return CallError(429, message, code=INSUFFICIENT, headers={**headers, "x-should-retry": "false"})
        retry = self._config.limits.retry_after_seconds
        if refused.reset_ns is not None and not refused.blocked:
            retry = max(math.ceil(refused.reset_ns / SECOND_NS), 1)
        if retry > RETRIED_SECONDS:
            headers["x-should-retry"] = "false"
        left = f"{refused.left} of your {kind}'s {refused.most} {what} are left"
        return CallError(429, f"this call may come to {tokens} tokens, and {left}", retry, headers=headers)

    # --- the store --------------------------------------------------------------------------------------------------

    def _group(self, client: str) -> _Group:
        places = self._config.groups(client)
        return self._group_of(f"organisation/{places[0][0]}" if places else f"client/{client}")

    def _group_of(self, name: str) -> _Group:
        if name not in self._groups:
            key = self._prefix + hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]
            self._groups[name] = _Group(name, key)
        return self._groups[name]

    def _add(self, group: _Group, operation: Operation, answered: "asyncio.Future[Answer] | None" = None) -> None:
        group.pending.append((operation, answered))
        if group.task is None:
            group.task = asyncio.ensure_future(self._change(group))

    async def _change(self, group: _Group) -> None:
        """Say all that is to be said, until the store has taken it."""
        try:
            while group.pending:
                batch, group.pending = group.pending, []
                try:
                    answers = await self._changed(group, [operation for operation, _ in batch])
                except Exception as error:
                    # Whatever it is, no caller waits for ever.
                    self._is_away(group, batch, error)
                    await asyncio.sleep(AGAIN_SECONDS)
                    continue
                if group.why:
                    _log.warning("quotas: the store is back")
                group.why = ""
                for (_, answered), answer in zip(batch, answers, strict=True):
                    if answered is not None and not answered.done():
                        answered.set_result(answer)
        finally:
            group.task = None

    async def _changed(self, group: _Group, operations: Sequence[Operation]) -> list[Answer]:
        def change(value: bytes | None, now_ns: int) -> tuple[bytes, tuple[Ledger, list[Answer], bool]]:
            ledger, answers = changed(Ledger() if value is None else _decoded(value, Ledger), operations, now_ns)
            return _HEAD + msgspec.msgpack.encode(ledger), (ledger, answers, value is not None)

        if not group.listed:
            await self._names(group.name)
            group.listed = True
        # A store that began anew has lost the list, too.
        group.ledger, answers, group.listed = await self._store.change(group.key, change)
        return answers

    async def _names(self, *more: str) -> list[str]:
        """Return the names of all groups that the store knows, these among them."""

        def change(value: bytes | None, _: int) -> tuple[bytes, list[str]]:
            names = [] if value is None else _decoded(value, list[str])
            names = sorted({*names, *more})
            return _HEAD + msgspec.msgpack.encode(names), names

        return await self._store.change(f"{self._prefix}groups", change)

    def _is_away(self, group: _Group, batch: "list[tuple[Operation, Any]]", error: Exception) -> None:
        """Fail what wants to reserve, and keep what ends for the next time: with what may have been reserved."""
        if not isinstance(error, StoreError):
            _log.error("quotas: %s", error, exc_info=error)
        elif not group.why:
            then = "lets calls pass uncounted" if self._quota.store_away == "open" else "refuses calls"
            _log.error("quotas: %s; until the store is back this gateway %s", error, then)
        group.why = str(error) or type(error).__name__
        ends = [End(each.id, NOTHING) if isinstance(each, Reserve) else each for each, _ in batch]
        later = [each for each, _ in group.pending if isinstance(each, End)]
        for _, answered in (*batch, *group.pending):
            if answered is not None and not answered.done():
                answered.set_exception(StoreError(group.why))
        group.pending = [(each, None) for each in (*ends, *later)]

    async def close(self) -> None:
        """Say the ends that were not said yet, and end connections."""
        tasks = [group.task for group in self._groups.values() if group.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            if late:
                unsaid = sum(len(group.pending) for group in self._groups.values())
                _log.error("quotas: the store did not take the ends of %d calls, which are charged whole", unsaid)
        await self._store.close()

    # --- what is told -----------------------------------------------------------------------------------------------

    @property
    def why(self) -> str:
        """Why the store is away, if it is."""
        return next((group.why for group in self._groups.values() if group.why), "")

    async def usage(self) -> Document:
        """Return every budget, as all gateways have charged it.  O(budgets).

        Raises `CallError` (503) while the store is away.
        """
        budgets: Document = {}
        try:
            for name in await self._names():
                group = self._group_of(name)
                await self._changed(group, ())
                budgets |= {name: self._told(name, budget) for name, budget in sorted(group.ledger.budgets.items())}
        except StoreError as error:
            raise CallError(503, f"quotas cannot be looked up now: {error}", 1) from None
        return {"budgets": budgets}

    def _told(self, name: str, budget: Budget) -> Document:
        kind, _, of = name.partition("/")
        table: Mapping[str, QuotaConfig] = getattr(self._quota, kind)
        quota = table.get(of, table.get(EACH_OTHER))
        return {
            "quota": {}
            if quota is None
            else {key: most for key, most in msgspec.structs.asdict(quota).items() if most},
            "used": dict(zip(WINDOWS, budget.used, strict=True)),
            "before": dict(zip(WINDOWS, budget.before, strict=True)),
            "reserved": budget.reserved,
            "calls": budget.calls,
            "overrun_tokens": budget.overrun,
            **{f"{key}_tokens": tokens for key, tokens in msgspec.structs.asdict(budget.total).items()},
        }

    def status(self) -> Document:
        return {
            "up": not self.why,
            "why": self.why,
            "refused": dict(sorted(self.refused.items())),
            "unchecked": self.unchecked,
            "overrun_tokens": self.overrun_tokens,
        }

    def samples(self) -> Iterator[Sample]:
        yield "quota_store_up", {}, not self.why
        for reason in (*WINDOWS, "concurrent", "never", "store"):
            yield "quota_refused_total", {"reason": reason}, self.refused[reason]
        yield "quota_unchecked_total", {}, self.unchecked
        yield "quota_overrun_tokens_total", {}, self.overrun_tokens
        named = {f"{kind}/{name}": _quota(quota) for kind, name, quota in self._quota.named()}
        for group in self._groups.values():
            for name, budget in advanced(group.ledger, time.time_ns()).budgets.items():
                if (quota := named.get(name)) is None:
                    continue
                mosts = (quota.minute, quota.day, quota.month, quota.concurrent)
                used = (*budget.used, budget.reserved)
                for window, most, tokens in zip((*WINDOWS, "concurrent"), mosts, used, strict=True):
                    if most is not None:
                        yield "quota_used_tokens", {"budget": name, "window": window}, tokens
                        yield "quota_most_tokens", {"budget": name, "window": window}, most


def _quota(config: QuotaConfig) -> Quota:
    return Quota(config.tokens_per_minute, config.tokens_per_day, config.tokens_per_month, config.concurrent_tokens)


def _headers(said: Reserved | Refused) -> dict[str, str]:
    """Return the headers by which OpenAI tells its clients of limits; none where there is no limit."""
    if said.most is None:
        return {}
    told = {"x-ratelimit-limit-tokens": str(said.most), "x-ratelimit-remaining-tokens": str(said.left)}
    if said.reset_ns is not None:
        minutes, seconds = divmod(math.ceil(said.reset_ns / SECOND_NS), 60)
        told["x-ratelimit-reset-tokens"] = f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
    return told


def _decoded(value: bytes, kind: type[T]) -> T:
    """Decode budgets, and raise `StoreError` for what are none of this version."""
    if not value.startswith(_HEAD):
        raise StoreError(f"the value there is none of this version: it begins with {value[: len(_HEAD)]!r}")
    try:
        return msgspec.msgpack.decode(value[len(_HEAD) :], type=kind)
    except msgspec.MsgspecError as error:
        raise StoreError(f"the budgets there cannot be read: {error}") from None


def quota_store(config: GatewayConfig) -> Store:
    """Return where a configuration says that budgets are.  Raises `ConfigError` for an address that cannot be used."""
    address = None if config.quota is None else config.quota.store or config.store
    return MemoryStore() if address is None else open_store(address)
