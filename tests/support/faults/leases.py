"""Worlds in which gateways share an account, and everything between them fails: messages, stores, clocks, gateways.

A world is played from a list of operations, each four small numbers.  The account is the shipped one, kept in a store
that writes a value only over the version that it was made of.  Holders are as the protocol has them: each says renewals
under rising numbers, takes an answer only to the last, and admits a request of a client with a balance.  After every
operation the books are checked: what no fault explains is a `Broken`.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import Any

import attrs

from fairsched.policies.gates.leased import LeaseError, Renewal, Renewed, SharedAccount, Terms, left, renewed

Operation = tuple[int, int, int, int]
Renew = Callable[[SharedAccount, Renewal, int, int], tuple[SharedAccount, Renewed]]
Leave = Callable[[SharedAccount, str], SharedAccount]

CLIENTS = ("f", "g", "h")
QUANTUM, LEASE, CHARGE_MAX, BACK = 5, 4, 7, 2
TTL = 100
KINDS, WITHOUT_FAULTS = 20, 12
"""How many kinds of operations there are, and how many of them are no fault."""


class Broken(AssertionError):
    """A promise that was not kept."""


def claim(holds: bool, what: str) -> None:
    """Raise `Broken` unless it holds."""
    if not holds:
        raise Broken(what)


@attrs.define
class Slot:
    """A gateway, under a name that it has until it ends; by client what it holds, may charge, will give back, and how
    many requests wait."""

    name: str
    serial: int = 0
    heard: int = 0
    balance: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(CLIENTS, 0))
    reserved: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(CLIENTS, 0))
    back: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(CLIENTS, 0))
    waiting: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(CLIENTS, 0))
    active: set[str] = attrs.field(factory=set)
    leaves: bool = False
    answers: list[tuple[int, Mapping[str, int]]] = attrs.field(factory=list)


@attrs.define
class Written:
    """A value that a gateway has made of a version, and has not written yet."""

    version: int
    at: int
    said: Renewal
    after: SharedAccount
    answer: Renewed


class World:
    """Some gateways and their account; `renew` and `leave` are what ships unless a bug is seeded."""

    def __init__(
        self,
        holders: int = 2,
        renew: Renew = renewed,
        leave: Leave = left,
        *,
        stamps: bool = True,
        only_last: bool = True,
    ) -> None:
        self.renew, self.leave, self.stamps, self.only_last = renew, leave, stamps, only_last
        self.terms = Terms(LEASE, holders)
        self.account = SharedAccount(self.terms)
        self.versions = [self.account]
        self.version = 0
        self.now = 1
        self.slots = [Slot(f"gateway {number}") for number in range(holders)]
        self.started = holders
        self.messages: list[Renewal] = []
        self.pending: list[Written] = []
        self.losses = 0
        self.said_before_a_loss = 0
        self.served, self.given, self.made, self.taken, self.spoiled, self.left_with = (
            dict.fromkeys(CLIENTS, 0) for _ in range(6)
        )
        self.gaps = {pair: [0, 0, 0] for pair in combinations(CLIENTS, 2)}
        """The least and the largest lead of the first since both were told to wait, and now."""

    # --- the truth ------------------------------------------------------------------------------------------------

    def truth(self, client: str) -> int:
        """What the account has of a client, its holders have, and what is on the way to them."""
        credit = self.account.clients.get(client)
        units = 0 if credit is None else credit.units
        for slot in self.slots:
            record = self.account.holders.get(slot.name)
            on_the_way = record is not None and record.serial > slot.heard
            units += slot.balance[client] + (record.moved.get(client, 0) if record and on_the_way else 0)
        return units

    def _fault(self, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        for client in CLIENTS:
            change = after[client] - before[client]
            self.made[client] += max(change, 0)
            self.taken[client] += max(-change, 0)

    def _truths(self) -> dict[str, int]:
        return {client: self.truth(client) for client in CLIENTS}

    # --- operations -----------------------------------------------------------------------------------------------

    def play(self, operations: Iterable[Operation]) -> "World":
        """Do them one by one, and check the books after each."""
        kinds = (
            *(self._arrive, self._say_and_hear, self._admit, self._charge, self._refund, self._give_up),
            *(self._say_and_hear, self._admit, self._say_and_hear, self._admit, self._say_and_hear, self._admit),
            *(self._say, self._make, self._write, self._hear, self._leave),
            *(self._end, self._clock, self._lose),
        )
        assert len(kinds) == KINDS
        for kind, number, which, amount in operations:
            slot = self.slots[number % len(self.slots)]
            kinds[kind % len(kinds)](slot, CLIENTS[which % len(CLIENTS)], amount)
            self._check()
        return self

    def _arrive(self, slot: Slot, client: str, amount: int) -> None:
        slot.waiting[client] += 1 + amount % 8
        slot.active = {client} if amount % 3 else slot.active | {client}

    def _give_up(self, slot: Slot, client: str, _: int) -> None:
        slot.waiting[client] = 0

    def _admit(self, slot: Slot, client: str, amount: int) -> None:
        most = CHARGE_MAX - slot.reserved[client]
        if slot.waiting[client] and slot.balance[client] > 0 and most >= 1:
            charge = 1 + amount % most
            # The largest that fits, now and then.
            reserve = most - charge if amount % 2 else (amount // 2) % (most - charge + 1)
            slot.waiting[client] -= 1
            slot.reserved[client] += reserve
            slot.back[client] += min(BACK - slot.back[client], charge, amount % 3)
            self._pay(slot, client, charge)

    def _pay(self, slot: Slot, client: str, units: int) -> None:
        slot.balance[client] -= units
        self.served[client] += units

    def _charge(self, slot: Slot, client: str, amount: int) -> None:
        charge = min(slot.reserved[client], amount)
        self._pay(slot, client, charge)
        slot.reserved[client] -= charge if amount % 3 else slot.reserved[client]

    def _refund(self, slot: Slot, client: str, _: int) -> None:
        self._pay(slot, client, -slot.back[client])
        slot.back[client] = 0

    def _renewal(self, slot: Slot) -> Renewal:
        slot.serial += 1
        balances = {client: units for client, units in slot.balance.items() if units}
        waits = tuple(client for client, count in slot.waiting.items() if count)
        active = () if slot.leaves else tuple(slot.active)
        quanta = dict.fromkeys((*balances, *waits, *active), QUANTUM)
        said = Renewal(slot.name, self.terms, slot.serial, slot.heard, balances, waits, quanta, active)
        self.messages.append(said)
        return said

    def _say(self, slot: Slot, _: str, amount: int) -> None:
        """The renewal is on its way; it may have come, and its answer be on its way."""
        said = self._renewal(slot)
        if amount % 2:
            self._written(self._made(said))

    def _say_and_hear(self, slot: Slot, _: str, __: int) -> None:
        self._written(self._made(self._renewal(slot)))
        self._hear(slot, "", 0)

    def _made(self, said: Renewal) -> Written | None:
        try:
            made = Written(self.version, self.now, said, *self.renew(self.account, said, self.now, TTL))
        except LeaseError:
            return None
        claim(made.answer.noted or made.after is self.account, f"{said.holder} is not noted, and changes something")
        return made

    def _make(self, _: Slot, __: str, which: int) -> None:
        """Some renewal, maybe an old one, comes to where values are made; the value is written later, or never."""
        if self.messages and (made := self._made(self.messages[-1 - which // 2 % len(self.messages)])):
            self.pending.append(made)
            if which % 2:
                self._written(self.pending.pop())

    def _write(self, _: Slot, __: str, which: int) -> None:
        if self.pending:
            self._written(self.pending.pop(which % len(self.pending)))
        elif self.messages:
            self._written(self._made(self.messages[-1 - which % len(self.messages)]))

    def _written(self, made: Written | None) -> None:
        if made is None or not made.answer.noted or (self.stamps and made.version != self.version):
            return
        said, truths, before = made.said, self._truths(), self.account
        self._check_who_is_there(made)
        # Where an old renewal came after its gateway was given up, the account has lost what came between.
        unknown = said.holder not in before.holders and any(slot.name == said.holder for slot in self.slots)
        claim(self.losses > 0 or not (unknown and made.answer.lost_writes), f"{said.holder} hears of a loss, of none")
        self.account = made.after
        self._keep()
        rounds = self._rounds(before, made)
        for client, units in rounds.items():
            self.given[client] += units
            truths[client] += units
        for slot in self.slots:
            if slot.name == said.holder:
                slot.answers.append((said.serial, made.answer.moved))
        now = self._truths()
        if now != truths:
            forgotten = set(before.holders) - set(made.after.holders)
            stray = all(slot.name != said.holder for slot in self.slots)
            late = self.messages.index(said) < self.said_before_a_loss
            known = before.holders.get(said.holder)
            # L-again is about an account that knows the holder, and knows all that the holder heard.
            knows_less = known is None or any(
                slot.name == said.holder and slot.heard > known.serial for slot in self.slots
            )
            claim(bool(forgotten) or stray or late or knows_less, f"a renewal changes what is there: {truths} to {now}")
            self._fault(truths, now)
        if any(rounds.values()):
            self._tell(before, made)

    def _keep(self) -> None:
        self.versions.append(self.account)
        self.version += 1

    def _rounds(self, before: SharedAccount, made: Written) -> dict[str, int]:
        """What the account gave each client when it wrote this."""
        said, record = made.said, before.holders.get(made.said.holder)
        if made.after == before or (record is not None and said.serial <= record.serial):
            return dict.fromkeys(CLIENTS, 0)
        undone = record.moved if record is not None and record.serial > said.heard else {}
        given = {}
        for client in CLIENTS:
            was, now = before.clients.get(client), made.after.clients.get(client)
            units = (now.units if now else 0) - (was.units if was else 0)
            given[client] = units + made.answer.moved.get(client, 0) - undone.get(client, 0)
        return given

    def _tell(self, before: SharedAccount, made: Written) -> None:
        """A round: only if no client that waits has credit, and the same to all that do."""
        told = {client for holder in made.after.holders.values() for client in holder.waits}
        rounds = self._rounds(before, made)
        claim(all(units >= 0 and units % QUANTUM == 0 for units in rounds.values()), f"rounds of {rounds}")
        claim(len({rounds[client] for client in told}) <= 1, f"clients that wait get {rounds}")
        for client in told:
            now = made.after.clients[client].units
            record = made.after.holders[made.said.holder]
            pool = now + record.balances.get(client, 0) - rounds[client]
            claim(pool <= 0, f"a round is given while {client} has {pool}")
        for pair, lead in self.gaps.items():
            if not told.issuperset(pair):
                lead[0] = lead[1] = lead[2]

    def _check_who_is_there(self, made: Written) -> None:
        """A holder counts as gone when its time is over, no sooner and no later, by the account's own clock."""
        for name, holder in self.account.holders.items():
            if name != made.said.holder and made.version == self.version:
                gone = name not in made.after.holders
                repeated = made.said.serial <= getattr(self.account.holders.get(made.said.holder), "serial", 0)
                claim(repeated or gone or holder.until_ns > made.at, f"{name} counts as there too long")
                claim(not gone or holder.until_ns <= made.at, f"{name} counts as gone too soon")
                left = 0 if gone or repeated else made.after.holders[name].until_ns - made.at
                claim(left <= TTL, f"{name} counts as there for {left} more, by a clock that has jumped")

    def _hear(self, slot: Slot, _: str, which: int) -> None:
        if slot.answers:
            serial, moved = slot.answers[-1 - which % len(slot.answers)]
            if slot.heard < serial and (serial == slot.serial or not self.only_last):
                record = self.account.holders.get(slot.name)
                # A version that was lost may have had the same renewal, and moved something else.
                lost = record is None or record.serial != serial or bool(self.losses and record.moved != moved)
                truths = self._truths()
                slot.heard = serial
                for client, units in moved.items():
                    slot.balance[client] += units
                now = self._truths()
                claim(
                    now == truths or (lost and self.only_last), f"an answer moves what is not there: {truths} to {now}"
                )
                self._fault(truths, now)

    def _leave(self, slot: Slot, _: str, __: int) -> None:
        """Return everything, in one change; what still runs is charged no more."""
        slot.waiting, slot.leaves = dict.fromkeys(CLIENTS, 0), True
        made = self._made(self._renewal(slot))
        if made is not None:
            made.after = self.leave(made.after, slot.name)
            truths, before = self._truths(), self.account
            known = slot.name in before.holders or not slot.heard
            self.account = made.after
            self._keep()
            for client, units in made.answer.moved.items():
                self.left_with[client] += max(-(slot.balance[client] + units), 0)
            self._start(slot)
            now = self._truths()
            forgotten = set(before.holders) - set(self.account.holders) - {slot.name}
            claim(bool(forgotten) or not known or now == truths, f"leaving costs credit: {truths} to {now}")
            self._fault(truths, now)

    def _end(self, slot: Slot, _: str, __: int) -> None:
        truths = self._truths()
        for client in CLIENTS:
            lasts = CHARGE_MAX + LEASE + BACK
            claim(-lasts <= slot.balance[client] <= lasts, f"{client} has {slot.balance[client]} where a gateway ends")
        self._start(slot)
        self._fault(truths, self._truths())

    def _start(self, slot: Slot) -> None:
        """Another gateway in its place, under a name of its own."""
        self.slots[self.slots.index(slot)] = Slot(f"gateway {self.started}")
        self.started += 1

    def _clock(self, _: Slot, __: str, amount: int) -> None:
        """Time passes, or the clock jumps, back too."""
        self.now += (1, 7, TTL // 2, TTL + 1, -TTL, 3, 11, 40)[amount % 8]

    def _lose(self, _: Slot, client: str, amount: int) -> None:
        """The account is some older version, or empty."""
        truths = self._truths()
        back = 1 + amount % len(self.versions)
        self.account = SharedAccount(self.terms) if client == "h" else self.versions[-back]
        self.losses += 1
        self.said_before_a_loss = len(self.messages)
        self._keep()
        self._fault(truths, self._truths())

    # --- what is promised -----------------------------------------------------------------------------------------

    def _check(self) -> None:
        n = len(self.slots)
        for slot in self.slots:
            for client in CLIENTS:
                low = 1 - CHARGE_MAX
                claim(slot.balance[client] - slot.reserved[client] >= low, f"{client} owes {slot.balance[client]}")
                held = slot.balance[client] + slot.back[client]
                claim(held <= LEASE + BACK, f"{client} has {held} at one gateway")
        side = QUANTUM + n * (CHARGE_MAX - 1) + (n - 1) * LEASE + n * BACK
        for client in CLIENTS:
            truth = self.truth(client)
            claim(
                truth == self.given[client] - self.served[client] + self.made[client] - self.taken[client],
                f"{client}: {truth} is there of what was given, made and spent",
            )
            reserved = sum(slot.reserved[client] for slot in self.slots)
            back = sum(slot.back[client] for slot in self.slots)
            most = QUANTUM + (n - 1) * LEASE + n * BACK + self.made[client]
            claim(truth + back <= most, f"{client} has {truth}, at most {most}")
            claim(
                truth - reserved >= -n * (CHARGE_MAX - 1) - self.taken[client], f"{client} owes {-truth} and {reserved}"
            )
        for (f, g), lead in self.gaps.items():
            lead[2] = self.served[f] - self.served[g]
            lead[0], lead[1] = min(lead[0], lead[2]), max(lead[1], lead[2])
            faults = sum(counted[client] for counted in (self.made, self.taken) for client in (f, g))
            claim(lead[1] - lead[0] <= 2 * side + faults, f"{f} and {g} are {lead} apart")

    def finish(self) -> None:
        """With no more faults, every request that waits is served: the gateways renew in turns, and have room."""
        # Those that ended are given up.
        self.now += 3 * TTL
        for _ in range(400):
            if not any(count for slot in self.slots for count in slot.waiting.values()):
                return
            for slot in list(self.slots):
                self.now += 1
                self._say_and_hear(slot, "", 0)
                for client in CLIENTS:
                    while slot.waiting[client] and slot.balance[client] > 0:
                        slot.reserved[client] = 0
                        self._admit(slot, client, 1)
                self._check()
        raise Broken(f"requests wait for ever: {[slot.waiting for slot in self.slots]}")


def drawn(random: Any, length: int, kinds: int = KINDS) -> list[Operation]:
    """Return as many operations, of a `random.Random`, after requests of most clients have come."""
    each = (number for number in range(2 * len(CLIENTS)) if random.randrange(8))
    come = [(0, number % 2, number // 2, random.randrange(64)) for number in each]
    below = (kinds, 8, 8, 64)
    later = [tuple(random.randrange(most) for most in below) for _ in range(length)]
    return [*come, *later]
