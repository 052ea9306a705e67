"""What a gateway or picker has on lease of the account that it shares with others, and how it renews that.

The window admits calls on what is on lease (`policies.gates.leased`); nothing here is on the way of a call that has
credit.  Leases are renewed when a client has spent half of one or waits without credit, and when it begins to wait for
room, which the account has to know before it gives others credit; and every half second, which tells the others what
clients owe here, and that this gateway is there.

While the store is away the leases are spent.  Then, as configured, no call is let in until it is back (`closed`), or
the window's gate shares what this gateway has between its own clients, as one without a store does (`local`).  When the
store is back, what clients owe here counts again, and credit that this gateway gave them does not.
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from fairsched.engines.gateway.config import StoreAddress, StoreConfig
from fairsched.engines.gateway.window import LeasedWindow, Window
from fairsched.engines.gateway.window.leases.store import FileStore, Store, StoreError
from fairsched.engines.serving import ClientRegistry, Document, Sample
from fairsched.engines.settings import ConfigError
from fairsched.model import installing
from fairsched.model.request import Client
from fairsched.policies.gates import LeaseError, Renewal, Renewed, SharedAccount, Terms, left, renewed
from fairsched.policies.guarantees import SECOND_NS

_log = logging.getLogger("fairsched.gateway")

RENEW_SECONDS = 0.5
"""Leases are renewed so often, whether a client waits or not."""
AGAIN_SECONDS = 0.02
"""Where a client waits and the account had nothing for it, it is asked again after so long: clients of other gateways
have credit that they use first.  Also, a client that has begun to wait is told to the account after so long."""
ACTIVE_SECONDS = 1.0
"""A client keeps its lease for so long after its last request has come."""
_GROUP = "\0"
"""What the name of a group begins with, and no client's."""
_HEAD = b"fairsched account 1\n"
"""What a value begins with; another number is another format."""


def open_store(config: StoreAddress) -> Store:
    """Return the store at an address.  Raises `ConfigError` for one that cannot be used."""
    parts = urlsplit(config.url)
    if parts.scheme == "file":
        return FileStore(Path(unquote(parts.path)))
    try:
        from fairsched.engines.gateway.window.leases.redis_store import RedisStore
    except ImportError:
        raise ConfigError(f"store.url: Redis needs another package: {installing('redis')}") from None
    try:
        return RedisStore(config.url, password=config.password, timeout_seconds=config.timeout_seconds)
    except ValueError as error:
        raise ConfigError(f"store.url: {error}") from None


def leasing_of(
    config: StoreConfig | None,
    window: Window,
    clients: ClientRegistry,
    pump: Callable[[], None],
    now_ns: Callable[[], int],
    *,
    store: Store | None = None,
) -> "Leasing | None":
    """Return the leases of a window that has its credit on lease, None for another.

    They are from the account in `store`; unless one is given, in that of the configuration.  Raises `ConfigError` for
    an address that cannot be used.
    """
    if config is None or not isinstance(window, LeasedWindow):
        return None
    store = open_store(config) if store is None else store
    return Leasing(config, store, window, clients, pump, now_ns)


class Leasing:
    """Leases of one window.  Belongs to one event loop.

    `clients` knows their names, `pump` lets in what may go, `now_ns` is the window's clock.
    """

    def __init__(
        self,
        config: StoreConfig,
        store: Store,
        window: LeasedWindow,
        clients: ClientRegistry,
        pump: Callable[[], None],
        now_ns: Callable[[], int],
    ) -> None:
        self.config = config
        self.counts: Counter[str] = Counter()
        """Renewals by outcome: renewed, away, refused; and lost_writes and given_up, which were renewed, too."""
        self.why = ""
        """Why the store is away, if it is."""
        self._store = store
        self._window = window
        self._gate = window.gate
        self._terms = Terms(self._gate.lease, self._gate.holders)
        self._clients = clients
        self._pump = pump
        self._now_ns = now_ns
        self._key = f"fairsched.{config.name}.account"
        self._name = secrets.token_hex(8)
        self._serial = self._heard = 0
        self._due = asyncio.Event()
        self._urgent = asyncio.Event()
        """It is due, and not only so that clients need not wait later."""
        self._active: dict[int, float] = {}
        self._told: frozenset[int] = frozenset()
        self._met: list[str] = []
        """What each client so far is called in the account, which stays, by its number."""
        self._firsts: dict[str, int] = {}
        """The first client of each name there."""
        self._news: asyncio.TimerHandle | None = None
        self._said_quanta: dict[str, int] = {}
        self._differs: dict[str, tuple[int, int]] = {}

    @property
    def away(self) -> bool:
        """Whether the store did not take the last renewal."""
        return bool(self.why)

    @property
    def gives_none(self) -> bool:
        """Whether no client is given credit at present: the store is away, and the window gives none by itself."""
        return self.away and not self._window.alone

    def arrived(self, client: int) -> None:
        """Renew soon if a client whose request has come has spent half of its lease; in a moment if it waits then, and
        the account does not know that it waits here.

        Not at once: most that wait for room at a busy gateway wait for less.
        """
        loop = asyncio.get_running_loop()
        self._active[client] = loop.time()
        if 2 * self._window.balance(client) <= self._gate.lease:
            self._due.set()
        if client not in self._told and self._news is None:
            self._news = loop.call_later(AGAIN_SECONDS, self._tell)

    def _tell(self) -> None:
        self._news = None
        if not self._told.issuperset(self._window.choosable_clients()):
            self._due.set()
            self._urgent.set()

    def pumped(self) -> None:
        """Renew soon if requests wait and none was let in for want of credit."""
        if self._window.starved:
            self._due.set()
            self._urgent.set()

    async def run(self) -> None:
        """Renew leases until cancelled; then return them.

        Every `AGAIN_SECONDS` at most, but at once where a renewal moved credit and no client has any left: with each
        call some client has spent half of a lease, and others write to the store, too.
        """
        task = asyncio.current_task()
        assert task is not None
        try:
            # Redis' client may answer in spite of a cancellation, and swallow it.
            while not task.cancelling():
                if await self.renew():
                    await self._until(self._urgent, AGAIN_SECONDS)
                else:
                    await asyncio.sleep(AGAIN_SECONDS)
                await self._until(self._due, RENEW_SECONDS)
        finally:
            await self._leave()

    @staticmethod
    async def _until(event: asyncio.Event, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    async def renew(self) -> bool:
        """Renew the leases once; returns whether any balance grew."""
        self._due.clear()
        self._urgent.clear()
        said, given = self._said()

        def renews(value: bytes | None, now_ns: int) -> tuple[bytes, tuple[SharedAccount, Renewed]]:
            before = self._read(value)
            account, answer = self._renewed(before, now_ns, said)
            return value if value and not answer.noted else _encoded(account), (before, answer)

        try:
            before, answer = await self._store.change(self._key, renews)
        except (StoreError, LeaseError) as error:
            self._told = frozenset()
            self._is_away(error)
            return False
        if answer.noted:
            self._heard = said.serial
        self._is_back(given)
        self._compare(before, said.quanta)
        self.counts["renewed"] += 1
        if answer.lost_writes:
            self.counts["lost_writes"] += 1
            _log.warning("store %s: it has lost what was written last; credit may be wrong by what it had", self._key)
        if answer.given_up:
            self.counts["given_up"] += 1
            _log.warning("store %s: this gateway had counted as gone, and is back with what it has", self._key)
        self._window.lend({self._firsts[name]: units for name, units in answer.moved.items()}, self._now_ns())
        self._pump()
        return any(units > 0 for units in answer.moved.values())

    def _said(self) -> tuple[Renewal, dict[int, int]]:
        """Return what the next renewal says, and credit that is not the account's: what this gateway gave on its own,
        beyond a lease.  O(clients that have a balance, wait or are active), however many are known."""
        self._serial += 1
        clients = self._clients.all
        for client in clients[len(self._met) :]:
            self._met.append(_name(client))
            self._firsts.setdefault(self._met[-1], client.id)
        names = self._met
        balances, lease = self._window.balances(), self._gate.lease
        given = {client: units - lease for client, units in balances.items() if units > lease and self._window.alone}
        balances = {client: units - given.get(client, 0) for client, units in balances.items()}
        self._told = frozenset(self._window.choosable_clients())
        waits = tuple(sorted({names[client] for client in self._told}))
        told = {names[client]: units for client, units in balances.items()}
        since = asyncio.get_running_loop().time() - ACTIVE_SECONDS
        self._active = active = {client: at for client, at in self._active.items() if at > since}
        quanta = {names[i]: self._gate.quantum * _weight(clients[i]) for i in {*balances, *self._told, *active}}
        expected = tuple(sorted({names[client] for client in active}))
        said = Renewal(self._name, self._terms, self._serial, self._heard, told, waits, quanta, expected)
        return said, given

    def _read(self, value: bytes | None) -> SharedAccount:
        return SharedAccount(self._terms) if value is None else _decoded(value)

    def _renewed(self, account: SharedAccount, now_ns: int, said: Renewal) -> tuple[SharedAccount, Renewed]:
        return renewed(account, said, now_ns, round(self.config.gone_seconds * SECOND_NS))

    def _compare(self, account: SharedAccount, quanta: Mapping[str, int]) -> None:
        """Log, once, what another gateway has said of a client's quantum since this one said the same as now."""
        for name, quantum in quanta.items():
            credit = account.clients.get(name)
            if credit is None or credit.quantum == quantum or self._said_quanta.get(name) != quantum:
                continue
            if self._differs.get(name) != (pair := (credit.quantum, quantum)):
                self._differs[name] = pair
                _log.warning(
                    "store %s: client %s has %d credit a round by another gateway, and %d by this one: the last to "
                    "renew decides; let them have the same weights and quantum",
                    *(self._key, name.removeprefix(_GROUP), *pair),
                )
        self._said_quanta |= quanta

    # --- the store comes and goes -----------------------------------------------------------------------------------

    def _is_away(self, error: Exception) -> None:
        refused = isinstance(error, LeaseError)
        self.counts["refused" if refused else "away"] += 1
        if not self.away:
            then = "what is here is shared by itself" if self.config.away == "local" else "no call is let in here"
            _log.error("store %s: %s; when the leases are spent %s", self.config.url, error, then)
        self.why = str(error)
        if self.config.away == "local" and not refused:
            self._window.alone = True
            self._pump()

    def _is_back(self, given: dict[int, int]) -> None:
        if self.away:
            _log.warning("store %s: it is back", self.config.url)
        self.why = ""
        self._window.alone = False
        self._window.lend({client: -units for client, units in given.items()}, self._now_ns())

    async def _leave(self) -> None:
        """Return all credit to the account, and leave what is owed there."""
        said, _ = self._said()
        said = msgspec.structs.replace(said, waits=(), active=())

        def gone(value: bytes | None, now_ns: int) -> tuple[bytes, None]:
            account, _ = self._renewed(self._read(value), now_ns, said)
            return _encoded(left(account, self._name)), None

        try:
            await self._store.change(self._key, gone)
        except (StoreError, LeaseError) as error:
            _log.warning("store %s: the leases are not returned: %s", self.config.url, error)
        await self._store.close()

    # --- what is told -----------------------------------------------------------------------------------------------

    def status(self) -> Document:
        return {"up": not self.away, "why": self.why, "renewals": dict(sorted(self.counts.items()))}

    def samples(self) -> Iterator[Sample]:
        yield "store_up", {}, not self.away
        for outcome in ("away", "given_up", "lost_writes", "refused", "renewed"):
            yield "lease_renewals_total", {"outcome": outcome}, self.counts[outcome]


def _name(client: Client) -> str:
    """Return what a client is called in the account: credit is that of its outermost group, if it is in one."""
    return _GROUP + client.place[0][0] if client.place else client.name


def _weight(client: Client) -> int:
    return client.place[0][1] if client.place else client.weight


def _encoded(account: SharedAccount) -> bytes:
    return _HEAD + msgspec.msgpack.encode(account)


def _decoded(value: bytes) -> SharedAccount:
    """Decode an account, and raise `StoreError` for what is none of this version."""
    if not value.startswith(_HEAD):
        raise StoreError(f"the value there is none of this version: it begins with {value[: len(_HEAD)]!r}")
    try:
        return msgspec.msgpack.decode(value[len(_HEAD) :], type=SharedAccount)
    except msgspec.MsgspecError as error:
        raise StoreError(f"the account there cannot be read: {error}") from None
