"""An account whose calls are within quotas: another account, and beside it what its calls have reserved.

A call reserves what it may come to before it waits, and each try of it anew.  It ends as it ends at the account within.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set

import msgspec

from fairsched.engines.gateway.account.local import CLIENTS_SHOWN, LocalAccount
from fairsched.engines.gateway.account.protocol import Account, Placed
from fairsched.engines.gateway.account.quota.budgets import Budgets, Reservation
from fairsched.engines.gateway.config import GatewayConfig
from fairsched.engines.gateway.openai import CallError
from fairsched.engines.gateway.servers import Upstream, Why
from fairsched.engines.gateway.window.leases import MemoryStore, Store, open_store
from fairsched.engines.serving import ClientLabels, Document, Sample
from fairsched.policies.gates.quota import NOTHING, Quota, Spent


def under_quotas(account: LocalAccount, store: Store | None = None) -> Account:
    """Return the account under the quotas of its configuration, or itself where there are none, or in shadow.

    Budgets are in `store`; unless one is given, where the configuration says.  Raises `ConfigError` for an address that
    cannot be used.
    """
    config = account.config
    if config.quota is None or account.shadow is not None:
        return account
    if store is None:
        address = config.quota.store or config.store
        store = MemoryStore() if address is None else open_store(address)
    return QuotaAccount(account, store)


class QuotaAccount:
    """The account `within`, under the quotas of its configuration, whose budgets are in `store`."""

    def __init__(self, within: LocalAccount, store: Store) -> None:
        self.within = within
        self.budgets = Budgets(within.config, store)
        self._reserved: dict[int, tuple[int, Reservation]] = {}
        self._tokens: Counter[tuple[int, str]] = Counter()
        self._labels = ClientLabels(CLIENTS_SHOWN)
        within.more_samples = self.samples

    @property
    def config(self) -> GatewayConfig:
        """The configuration in force."""
        return self.within.config

    @property
    def hung(self) -> Callable[[int], object]:
        """Called with a server that does not answer."""
        return self.within.hung

    @hung.setter
    def hung(self, hung: Callable[[int], object]) -> None:
        self.within.hung = hung

    async def run(self) -> None:
        """Look after servers and leases, until cancelled; then say what ended."""
        try:
            await self.within.run()
        finally:
            await self.budgets.close()

    # --- a call -----------------------------------------------------------------------------------------------------

    async def place(
        self,
        name: str,
        prompt_tokens: int,
        max_output_tokens: int,
        *,
        declared: bool,
        wait_seconds: float,
        avoid: Set[int] = frozenset(),
        program: str = "",
        quota_tokens: int = 0,
    ) -> Placed:
        """Return where the call of a client goes, once it may.  Raises `CallError`, (429) also where it is over a
        quota."""
        within, reserved = self.within, None
        if within.window.refuses(prompt_tokens, max_output_tokens if declared else 1) is None:
            client = within.client(name)
            quotas = self.budgets.quotas_of(client.name)
            if quotas:
                if not declared:
                    # What a caller leaves open is made to fit, here as in the window.
                    ample = within.window.ample_outputs(client.id, prompt_tokens, max_output_tokens)
                    least = min((most.least for most in quotas.values() if most.least is not None), default=None)
                    max_output_tokens = ample if least is None else max(min(ample, least - quota_tokens), 1)
                    declared = True
                reserved = await self._reserve(client.name, quota_tokens + max_output_tokens, quotas)
        try:
            placed = await within.place(
                name,
                prompt_tokens,
                max_output_tokens,
                declared=declared,
                wait_seconds=wait_seconds,
                avoid=avoid,
                program=program,
            )
        except BaseException:
            if reserved is not None:
                self.budgets.end(reserved, NOTHING)
            raise
        if reserved is None:
            return placed
        self._reserved[placed.request_id] = (client.id, reserved)
        return msgspec.structs.replace(placed, headers=dict(reserved.headers))

    async def _reserve(self, client: str, tokens: int, quotas: Mapping[str, Quota]) -> Reservation | None:
        try:
            return await self.budgets.reserve(client, tokens, quotas)
        except CallError:
            self.count("over quota")
            raise
        except asyncio.CancelledError:
            self.count("left")
            raise

    def _end(self, request_id: int, spent: Spent | None) -> None:
        found = self._reserved.pop(request_id, None)
        if found is None:
            return
        client, reserved = found
        self.budgets.end(reserved, spent)
        said = Spent(unsaid=reserved.tokens) if spent is None else spent
        for kind, tokens in msgspec.structs.asdict(said).items():
            if tokens:
                self._tokens[client, kind] += tokens

    def produced(self, request_id: int, tokens: int) -> None:
        """Count output tokens that passed by."""
        self.within.produced(request_id, tokens)

    def finish(
        self, request_id: int, computed_tokens: int | None, output_tokens: int | None, cached_tokens: int = 0
    ) -> None:
        """End a call whose answer is whole; one of which the server does not say all is charged whole."""
        said = computed_tokens is not None and output_tokens is not None
        self._end(request_id, Spent(computed_tokens or 0, cached_tokens, output_tokens or 0) if said else None)
        self.within.finish(request_id, computed_tokens, output_tokens, cached_tokens)

    def cancel(self, request_id: int, outcome: str) -> None:
        """End a call that was sent, and whose usage is not known: it is charged whole."""
        self._end(request_id, None)
        self.within.cancel(request_id, outcome)

    def give_back(self, request_id: int, outcome: str) -> None:
        """End a call of which the server computed nothing."""
        self._end(request_id, NOTHING)
        self.within.give_back(request_id, outcome)

    # --- as the account within does ---------------------------------------------------------------------------------

    def count(self, outcome: str, calls: int = 1) -> None:
        """Count calls that ended before they had a place."""
        self.within.count(outcome, calls)

    def failed(
        self,
        server: int,
        name: str,
        why: Why,
        message: str,
        *,
        retry_after_seconds: float | None = None,
        waited_seconds: float = 0.0,
    ) -> None:
        """Tell that a server failed a call of the client."""
        self.within.failed(
            server, name, why, message, retry_after_seconds=retry_after_seconds, waited_seconds=waited_seconds
        )

    def worked(self, server: int, name: str) -> None:
        """Tell that a server gave the client an answer."""
        self.within.worked(server, name)

    def upstreams(self) -> tuple[Upstream, ...]:
        """Return the servers that take calls."""
        return self.within.upstreams()

    def configure(self, config: GatewayConfig) -> None:
        """Take clients, weights, limits and quotas from this configuration from now on."""
        self.within.configure(config)
        self.budgets.configure(config)

    def close(self) -> None:
        """Write what remains to be written: no call is left."""
        self.within.close()

    # --- what is told -----------------------------------------------------------------------------------------------

    async def status(self) -> Document:
        """Return plain JSON values."""
        return {**await self.within.status(), "quota": self.budgets.status()}

    async def usage(self) -> Document:
        """Return plain JSON values: what clients, users and organisations used, and their quotas."""
        return await self.budgets.usage()

    async def metrics(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return await self.within.metrics()

    def samples(self) -> Iterator[Sample]:
        """Yield the samples for Prometheus that are of quotas."""
        yield from self.budgets.samples()
        for _, labels, count in self._labels.samples(self._tokens, lambda client: self.within.clients.all[client].name):
            yield "quota_tokens_total", {"client": labels["client"], "kind": labels["phase"]}, count
