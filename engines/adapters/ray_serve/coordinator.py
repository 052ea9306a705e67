"""What the actor knows: which calls wait at which handle, what is in flight where, and which call is let in next.

No I/O, no clock and no Ray.  Choosing and booking are one step (`_pump`), so two handles cannot be given the same
place.  A handle that was not heard of for too long is forgotten with all that it held; a replica is there while a
handle sees it, until one says that it died.

After a restart the coordinator gathers for a while what the handles keep, before it lets a call in: the latest accounts
of any of them are its own, what is in flight is adopted, and calls that waited wait again.
"""

import logging
from collections import Counter
from collections.abc import Sequence

import attrs
import msgspec

from fairsched.engines.adapters.ray_serve import messages as msg
from fairsched.engines.adapters.ray_serve.settings import RouterSettings, settings_of
from fairsched.engines.gateway import Share, Window, request_of, window_policy, window_router
from fairsched.engines.serving import ClientRegistry, Document
from fairsched.model.request import Client
from fairsched.model.serialization import StateError, configuration, document_sha256
from fairsched.policies.base import AnyLocalPolicy, AnyRouter
from fairsched.policies.guarantees import held_tokens

_log = logging.getLogger("fairsched.ray_serve")

_SECOND_NS = 1_000_000_000
_GATHER_HEARTBEATS = 2.5
"""From the first handle on; a handle tries again at every heartbeat."""


@attrs.define
class _Handle:
    """A handle: when it was heard of, the replicas that it sees, its open calls, and placements that it must learn."""

    heard_ns: int
    replicas: dict[str, int] = attrs.field(factory=dict)
    open: dict[int, int] = attrs.field(factory=dict)
    outbox: list[msg.PlacedCall] = attrs.field(factory=list)
    stale: bool = False
    """It said things while the coordinator gathered, and must say `HandleHello` again."""


@attrs.define
class _Call:
    """An open call; `replica` is None while it waits."""

    id: int
    handle: str
    ask: msg.AskPlace
    replica: str | None = None
    number: int = 0
    since_ns: int = 0
    used: tuple[int | None, int] | None = None
    """Prompt tokens that were computed, and output tokens, if its replica said so."""


def parts(settings: RouterSettings) -> tuple[AnyLocalPolicy, AnyRouter]:
    """Return the policy and the router of settings.  Raises `ValueError` for names that are not there."""
    return window_policy(settings.policy, settings.quantum), window_router(settings.router)


class Coordinator:
    """One for a deployment.  `now_ns` is a clock that does not go back; `again`: there was one before.

    A message costs what the policy and the router do, and O(replicas).
    """

    def __init__(self, settings: RouterSettings, *, again: bool = False) -> None:
        policy, router = parts(settings)
        self.settings = settings
        self.outcomes: Counter[str] = Counter()
        self.router = router
        self._policy, self._policy_hash = policy, document_sha256(configuration(policy))
        self.gathers = again
        """Whether the coordinator still gathers what handles kept, and lets no call in."""
        self._gather_until_ns: int | None = None
        self._gathered: list[tuple[str, msg.HandleHello]] = []
        self._handles: dict[str, _Handle] = {}
        self._calls: dict[int, _Call] = {}
        self._named: dict[str, list[int]] = {}
        self._places: dict[str, int] = {}
        self._next_id = 0
        self._placements = 0
        self._covered = 0
        """Placements up to this one are in the accounts that the window began with."""
        self._kept: tuple[int, msg.Accounts | None] = (-1, None)
        self._changes = 0
        self._begin(None)

    def _begin(self, accounts: msg.Accounts | None) -> None:
        """Begin with what handles kept of the accounts of an earlier life, or (None) with nothing."""
        state = None if accounts is None else self._policy.state_from_json(accounts.state)
        self.window = Window(self._policy, self.router, state=state, budget_ms=self.settings.decision_budget_ms)
        known = () if accounts is None else accounts.clients
        clients = [Client(i, name, weight) for i, (name, weight) in enumerate(known)]
        self.clients = ClientRegistry(known=clients, unknown_max=self.settings.clients)
        # The state has the weights of the accounts already; the usage account has not.
        for client in clients:
            if client.weight != 1:
                self.window.configure(client, 0)
        self._weigh(self.settings.weights, 0)
        if accounts is not None:
            self._placements = accounts.number

    def _weigh(self, weights: dict[str, int], now_ns: int) -> None:
        for client in self.clients.configure(weights):
            self.window.configure(client, now_ns)

    # --- handles ----------------------------------------------------------------------------------------------------

    def knows(self, handle: str) -> bool:
        """Return whether the coordinator has all that the handle said; otherwise it must say `HandleHello`."""
        there = self._handles.get(handle)
        return there is not None and (not there.stale or self.gathers)

    def has(self, handle: str) -> bool:
        return handle in self._handles

    @property
    def handles(self) -> int:
        return len(self._handles)

    def hello(self, handle: str, hello: msg.HandleHello, now_ns: int) -> None:
        """Take all that is open at the handle; what it does not name any more was answered."""
        self.outcomes["around the policy"] += hello.around
        if self.gathers:
            if self._gather_until_ns is None:
                self._gather_until_ns = now_ns + int(_GATHER_HEARTBEATS * self.settings.heartbeat_seconds * _SECOND_NS)
            self._gathered = [each for each in self._gathered if each[0] != handle] + [(handle, hello)]
            self._handles[handle] = _Handle(now_ns)
            return
        self._take_over(handle, hello, now_ns)
        self._pump(now_ns)

    def _take_over(self, handle: str, hello: msg.HandleHello, now_ns: int) -> None:
        there = self._handles.setdefault(handle, _Handle(now_ns))
        there.heard_ns, there.stale = now_ns, False
        named = {ask.ticket for ask in hello.waiting} | {held.ask.ticket for held in hello.held}
        for ticket in [ticket for ticket in there.open if ticket not in named]:
            self._end(there.open[ticket], "answered", now_ns)
        self._sees(there, hello.replicas, now_ns)
        there.outbox.clear()
        for held in hello.held:
            self._hold(handle, there, held, now_ns)
        for ask in hello.waiting:
            known = self._calls.get(there.open.get(ask.ticket, -1))
            if known is None:
                self._ask(handle, there, ask, now_ns)
            elif known.replica is not None:
                there.outbox.append(msg.PlacedCall(ask.ticket, known.replica, known.number))

    def tell(self, handle: str, messages: Sequence[msg.Message], now_ns: int) -> None:
        """Take the messages of a known handle, in order."""
        there = self._handles[handle]
        there.heard_ns = now_ns
        if self.gathers:
            there.stale = True
            return
        for message in messages:
            match message:
                case msg.AskPlace():
                    self._ask(handle, there, message, now_ns)
                case msg.HeldPlace():
                    self._hold(handle, there, message, now_ns)
                case msg.Replicas():
                    self._sees(there, message.replicas, now_ns)
                case msg.Died():
                    self._died(message.replica, now_ns)
                case msg.EndedCall():
                    request_id = there.open.get(message.ticket)
                    if request_id is not None:
                        self._end(request_id, message.outcome, now_ns)
        self._pump(now_ns)

    def take(self, handle: str) -> tuple[msg.PlacedCall, ...]:
        """Return the placements that the handle must learn, once."""
        there = self._handles[handle]
        placed, there.outbox = tuple(there.outbox), []
        return placed

    def has_news(self, handle: str) -> bool:
        """Return whether `take` would return anything."""
        return bool(self._handles[handle].outbox)

    def heard(self, handle: str, now_ns: int) -> None:
        """Note that the handle is still there."""
        self._handles[handle].heard_ns = now_ns

    def tick(self, now_ns: int) -> None:
        """Let time pass: gathering ends; handles that fell silent, and calls whose lease is over, are forgotten."""
        if self.gathers and self._gather_until_ns is not None and now_ns >= self._gather_until_ns:
            self.gathers = False
            self._go_on(now_ns)
        patience = int(self.settings.handle_timeout_seconds * _SECOND_NS)
        for name, handle in list(self._handles.items()):
            if now_ns - handle.heard_ns > patience:
                _log.warning("handle %s is gone; %d calls that it held are given back", name, len(handle.open))
                for request_id in list(handle.open.values()):
                    self._end(request_id, "lost with its handle", now_ns)
                self._sees(handle, {}, now_ns)
                del self._handles[name]
                self._forget_replicas(now_ns)
        lease = int(self.settings.lease_seconds * _SECOND_NS)
        for call in [call for call in self._calls.values() if call.replica and now_ns - call.since_ns > lease]:
            self._end(call.id, "lease over", now_ns)
        self.window.charge(now_ns)
        self._pump(now_ns)

    def _go_on(self, now_ns: int) -> None:
        """Begin with what the handles kept; calls are let in when what is in flight at all of them is adopted."""
        gathered, self._gathered = self._gathered, []
        for accounts in sorted(
            (hello.accounts for _, hello in gathered if hello.accounts is not None), key=lambda each: -each.number
        ):
            try:
                if accounts.policy == self._policy_hash:
                    self._begin(accounts)
                    break
            except (StateError, ValueError):
                _log.exception("accounts that a handle kept cannot be read; others may do")
        # The numbers of placements go on, too, so that no two have one.
        numbers = [held.number for _, hello in gathered for held in hello.held]
        self._covered = self._placements
        self._placements = max([self._placements, *numbers])
        for handle, hello in gathered:
            there = self._handles.get(handle)
            if there is not None:
                stale = there.stale
                self._take_over(handle, hello, now_ns)
                there.stale = stale

    # --- replicas ---------------------------------------------------------------------------------------------------

    def _sees(self, handle: _Handle, replicas: dict[str, int], now_ns: int) -> None:
        handle.replicas = replicas
        for replica, requests in replicas.items():
            share = Share(self.settings.window_tokens, max(requests, 1))
            if replica not in self._places:
                self._places[replica] = self.window.join(share, now_ns)
            else:
                self.window.resize(self._places[replica], share, now_ns)
        self._forget_replicas(now_ns)

    def _forget_replicas(self, now_ns: int) -> None:
        """Send no more to replicas that no handle sees; what they have goes on."""
        seen = {replica for handle in self._handles.values() for replica in handle.replicas}
        for replica in [replica for replica in self._places if replica not in seen]:
            self.window.part(self._places.pop(replica), now_ns)

    def _died(self, replica: str, now_ns: int) -> None:
        """End the calls of a dead replica, whichever handle held them."""
        if replica in self._places:
            self.window.part(self._places.pop(replica), now_ns)
        for call in [call for call in self._calls.values() if call.replica == replica]:
            self._end(call.id, "lost with its replica", now_ns)

    # --- calls ------------------------------------------------------------------------------------------------------

    def _ask(self, handle: str, there: _Handle, ask: msg.AskPlace, now_ns: int) -> None:
        if ask.ticket in there.open:
            return
        refusal = self._refuses(ask)
        if refusal is not None:
            self.outcomes["too large"] += 1
            there.outbox.append(msg.PlacedCall(ask.ticket, "", 0, refusal))
            return
        call = self._open(handle, there, ask)
        client = self.clients.resolve(ask.client)[0].id
        self.window.arrive(call.id, client, ask.prompt_tokens, ask.max_output_tokens, now_ns)

    def _refuses(self, ask: msg.AskPlace) -> str | None:
        """Return why no replica could ever take the call, whether or not one is there; None if one could."""
        need, most = held_tokens(ask.prompt_tokens, ask.max_output_tokens), self.settings.window_tokens
        return None if need <= most else f"{need} prompt and output tokens are over the window of {most}"

    def _hold(self, handle: str, there: _Handle, held: msg.HeldPlace, now_ns: int) -> None:
        """Take a call that is in flight at a replica: one that is known, or one to be adopted."""
        known = self._calls.get(there.open.get(held.ask.ticket, -1))
        if known is not None and known.replica == held.replica:
            return
        if known is not None:
            self._end(known.id, "moved", now_ns)
        place = self._places.get(held.replica)
        if place is None or self._refuses(held.ask) is not None:
            return
        call = self._open(handle, there, held.ask)
        call.replica, call.number, call.since_ns = held.replica, held.number, now_ns
        client = self.clients.resolve(held.ask.client)[0].id
        request = request_of(call.id, client, held.ask.prompt_tokens, held.ask.max_output_tokens, now_ns)
        self.window.adopt(request, place, now_ns, charged=0 < held.number <= self._covered)
        self.outcomes["adopted"] += 1

    def _open(self, handle: str, there: _Handle, ask: msg.AskPlace) -> _Call:
        call = _Call(self._next_id, handle, ask)
        self._next_id += 1
        there.open[ask.ticket] = call.id
        self._calls[call.id] = call
        self._named.setdefault(ask.name, []).append(call.id)
        return call

    def used(self, name: str, output_tokens: int, computed_tokens: int | None) -> bool:
        """Record what a replica says that a call in flight used, all of it; returns whether such a call is there."""
        for request_id in self._named.get(name, ()):
            call = self._calls[request_id]
            if call.replica is not None and call.used is None:
                call.used = (computed_tokens, output_tokens)
                return True
        return False

    def _end(self, request_id: int, outcome: str, now_ns: int) -> None:
        """End a call; what is not known of it is taken from what was declared."""
        call = self._calls.pop(request_id)
        if call.replica is None and outcome == "given back":
            outcome = "left"
        self._changes += 1
        self.outcomes[outcome] += 1
        self._handles[call.handle].open.pop(call.ask.ticket, None)
        named = self._named[call.ask.name]
        named.remove(request_id)
        if not named:
            del self._named[call.ask.name]
        if outcome == "answered" and call.replica is not None:
            computed, output = call.used or (None, call.ask.max_output_tokens)
            self.window.finish(request_id, computed, output, now_ns)
        elif call.replica is not None and outcome in ("given back", "moved"):
            self.window.give_back(request_id, now_ns)
        else:
            self.window.cancel(request_id, now_ns)

    def _pump(self, now_ns: int) -> None:
        """Let in and book all that may go now."""
        if self.gathers:
            return
        replica_at = {place: replica for replica, place in self._places.items()}
        for placement in self.window.admit(now_ns):
            call = self._calls[placement.request_id]
            self._placements += 1
            self._changes += 1
            call.replica, call.number, call.since_ns = replica_at[placement.server], self._placements, now_ns
            self._handles[call.handle].outbox.append(msg.PlacedCall(call.ask.ticket, call.replica, call.number))

    # --- accounts ---------------------------------------------------------------------------------------------------

    def configure(self, weights: dict[str, int], now_ns: int) -> None:
        """Set the weights; a client that is not named has 1.  Raises `ValueError` for what is no weight."""
        self.settings = settings_of(msgspec.structs.asdict(self.settings) | {"weights": weights})
        self._weigh(weights, now_ns)
        self._changes += 1

    def status(self) -> Document:
        """Return plain JSON values: handles and replicas that are there, how calls ended, and the window's own."""
        return {
            "router": self.router.name,
            "handles": self.handles,
            "replicas": len(self._places),
            "outcomes": dict(sorted(self.outcomes.items())),
            **self.window.status(self.clients.all),
        }

    def accounts(self, now_ns: int) -> msg.Accounts | None:
        """Return what handles keep, the same object while nothing changed; None while nothing can be trusted."""
        if self._kept[0] != self._changes and not self.gathers:
            state = self.window.accounts(now_ns)
            kept = None
            if state is not None:
                clients = tuple((client.name, client.weight) for client in self.clients.all)
                document = self._policy.state_to_json(state)
                kept = msg.Accounts(self._placements, self._policy_hash, clients, document)
            self._kept = (self._changes, kept)
        return self._kept[1]
