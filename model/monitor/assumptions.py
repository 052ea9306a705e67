"""The named assumptions of `model.theorem` on a stream of events: which of them hold, and what broke one first.

Each event costs O(1), a decode run O(its clients), and an admission O(clients that run) more where a theorem shares one
memory (MemShared).  What no event shows is said to be so, with the reason; nothing passes in silence.
"""

from collections import defaultdict

import attrs

from fairsched.model import events as ev
from fairsched.model import theorem
from fairsched.model.monitor.gap import GapWatch
from fairsched.model.monitor.guarantee import Breach, Finding, Promise
from fairsched.model.pricing import charged_tokens
from fairsched.model.theorem import Assumption

_ELSEWHERE = (
    theorem.BACKLOGGED_EVERYWHERE,
    theorem.BACKLOGGED_TOGETHER,
    theorem.EQUAL_WORKERS,
    theorem.BOTH_SERVE,
    theorem.GLOBAL_REFILL,
    theorem.STALE_READS,
    theorem.PHASES_APART,
)
"""What is about several workers."""


@attrs.define(eq=False)
class WatchedRequest:
    """A request as the monitor knows it; `most` is its declared output (None: it came before the monitor did).

    While it runs: `extend` of its `context` tokens are to be computed, of which `uncomputed` are left, it had
    `generated` output tokens before this admission, and `reserved` output tokens and `kv` tokens in all are promised to
    it.
    """

    client: int
    most: int | None = None
    generated: int = 0
    context: int = 0
    extend: int = 0
    uncomputed: int = 0
    reserved: int = 0
    kv: int = 0
    running: bool = False


@attrs.define(eq=False)
class WatchedClient:
    """A client: its requests in the queue and since when it waits, and what is promised to those that run.

    `reserved` output tokens may come of its running requests, which produced `produced`; `since` cost units were
    charged since its last admission, `last` for that admission alone, and `held` output tokens for holding memory.
    `uncomputed` input tokens of its running requests are left to compute.  `back` has for each of them, in the order of
    admission, the most cost units that requests in flight at one time were given back later, as known so far: of all
    times from its admission to that of the next.
    """

    waiting: int = 0
    wait_start: int = 0
    total_start: int = 0
    reserved: int = 0
    produced: int = 0
    since: int = 0
    last: int = 0
    held: int = 0
    kv: int = 0
    uncomputed: int = 0
    back: dict[int, int] = attrs.Factory(dict)


class AssumptionWatch:
    """The assumptions of one worker.  It tells `gaps` which clients wait and what they are charged, in cost units of
    multiplier 1.
    """

    def __init__(self, promise: Promise, worker: int, asks_gate: bool, gaps: GapWatch) -> None:
        self.position = 0
        self._gaps = gaps
        self._worker = worker
        self._asks_gate = asks_gate
        self._accounts = defaultdict[int, WatchedClient](WatchedClient)
        self._calls: dict[int, WatchedRequest] = {}
        self._holding: set[int] = set()
        """Clients that may be charged or given back something for running requests."""
        self._broken: dict[str, tuple[int, Breach]] = {}
        self._capacity: int | None = None
        self._running = 0
        self._total = 0
        self._waiting = 0
        self._together_ns = 0
        self._least: tuple[int, int, int] | None = None
        self._rates = promise.charging.rates
        self._percent = promise.charging.percent
        self._needed = promise.needed_by()
        # Then U is about a batch, and what is reserved in memory is not held against it.
        self._pauses = theorem.PAUSES_OBEYED.name in self._needed
        self._shared = theorem.MEM_SHARED.name in self._needed
        self.configure(promise, 0)

    def configure(self, promise: Promise, time_ns: int) -> None:
        """Hold the run to a promise from now on, and count what its configuration breaks."""
        self.promise = self._gaps.promise = promise
        self._times_max = max(promise.charging.multipliers, default=1)
        for assumption, text in promise.defects():
            self.breach(assumption, time_ns, text)

    def breach(self, assumption: Assumption, time_ns: int, text: str) -> None:
        """Count a violation by the present event; the first is kept."""
        count, first = self._broken.get(assumption.name, (0, None))
        if first is None:
            first = Breach(time_ns, self._worker, self.position, text)
        self._broken[assumption.name] = (count + 1, first)

    def _call(self, request_id: int, client: int) -> WatchedRequest:
        call = self._calls.get(request_id)
        if call is None:
            call = self._calls[request_id] = WatchedRequest(client)
        return call

    # --- queue and charges ------------------------------------------------------------------------------------------

    def _joins(self, client: int, time_ns: int) -> None:
        """Count one more waiting request of the client."""
        account = self._accounts[client]
        account.waiting += 1
        if account.waiting > 1:
            return
        account.wait_start, account.total_start = time_ns, self._total
        self._waiting += 1
        if self._waiting == 2:
            self._together_ns -= time_ns
        self._gaps.join(client)

    def _leaves(self, client: int, time_ns: int) -> bool:
        """Count one waiting request of the client less; whether it was the last."""
        account = self._accounts[client]
        account.waiting -= 1
        if account.waiting:
            return False
        if self._waiting == 2:
            self._together_ns += time_ns
        self._waiting -= 1
        self._gaps.leave(client)
        return True

    def _served(self, account: WatchedClient, client: int, time_ns: int) -> None:
        """End a wait with an admission: how fast clients were charged meanwhile, this admission included."""
        span, charged = time_ns - account.wait_start, self._total - account.total_start
        if span > 0 and (self._least is None or charged * self._least[1] < self._least[0] * span):
            self._least = (charged, span, client)
        floor = self.promise.capacity_floor
        if floor is not None and charged * 1e9 < floor * span:
            text = f"client {client} waited {span} ns, and {charged} cost units were charged to all meanwhile"
            self.breach(theorem.CAPACITY_FLOOR, time_ns, text)

    @property
    def total(self) -> int:
        """What all clients were charged so far, less what was given back, in cost units of multiplier 1."""
        return self._total

    def _charge(self, event: ev.Admitted | ev.Settled | ev.Cancelled | ev.Migrated, cost: int) -> None:
        """Charge the event to its client (a refund is negative)."""
        self._total += cost
        self._gaps.charge((event.client,), (cost,), event.time_ns, self.position)

    # --- events -----------------------------------------------------------------------------------------------------

    def joined(self, event: ev.WorkerJoined) -> None:
        """Note the worker's capacity."""
        self._capacity = event.kv_capacity_tokens

    def draining(self, event: ev.WorkerDraining) -> None:
        self.breach(theorem.BOTH_SERVE, event.time_ns, f"worker {self._worker} takes no more requests")

    def left(self, event: ev.WorkerLeft) -> None:
        self.breach(theorem.BOTH_SERVE, event.time_ns, f"worker {self._worker} left")
        waiting = [client for client, account in self._accounts.items() if account.waiting]
        if waiting and self.promise.capacity_floor is not None:
            text = f"worker {self._worker} left, and client {min(waiting)} waits for nothing"
            self.breach(theorem.CAPACITY_FLOOR, event.time_ns, text)
        for client in waiting:
            self._accounts[client].waiting = 1
            self._leaves(client, event.time_ns)
        self._accounts.clear()
        self._holding.clear()
        self._calls.clear()
        self._running = 0

    def arrived(self, event: ev.Arrived) -> None:
        request = event.request
        self._calls[request.id] = WatchedRequest(request.client, request.max_output_tokens, event.generated_tokens)
        need = request.prompt.tokens + request.max_output_tokens
        if self._capacity is not None and need > self._capacity:
            text = f"request {request.id} needs {need} tokens, and the worker holds {self._capacity}"
            self.breach(theorem.FITS_ALONE, event.time_ns, text)
        self._joins(request.client, event.time_ns)

    def admitted(self, event: ev.Admitted) -> None:
        waited, account = event.request_id in self._calls, self._accounts[event.client]
        call = self._call(event.request_id, event.client)
        tokens = charged_tokens(event.extend_tokens, event.cached_prefix_tokens, self._percent)
        cost = tokens * self._rates.input
        call.running = True
        call.context = event.extend_tokens + event.cached_prefix_tokens
        call.extend, call.reserved = event.extend_tokens, event.reserved_output_tokens
        account.back[event.request_id] = 0
        self._holding.add(event.client)
        self._computes(call, account, event.extend_tokens)
        if self.promise.unreserved_tokens and call.most is not None and not self.promise.outputs_predicted:
            # What may come beyond what is reserved is charged, too.
            call.reserved = max(call.reserved, call.most - call.generated)
        account.reserved += call.reserved
        account.since = account.last = cost
        account.held = 0
        self._charge(event, cost)
        self._running += 1
        if tokens < 1:
            text = f"request {event.request_id} is admitted for {tokens} tokens"
            self.breach(theorem.CHARGES_AT_LEAST_ONE, event.time_ns, text)
        if call.most is not None:
            self._check_reserved(event, call, account)
        self._check_room(event.time_ns, event.request_id, call, account)
        self._check_batch(event, cost)
        if waited and self._leaves(event.client, event.time_ns):
            self._served(account, event.client, event.time_ns)

    def _check_batch(self, event: ev.Admitted, cost: int) -> None:
        """Check that no more run than may, and under a gate that pauses that an admission leaves room in U for a step
        of them."""
        running_max, most = self.promise.running_max, self.promise.charge_max
        if running_max is not None and self._running > running_max:
            text = f"{self._running} requests run, and {running_max} may"
            self.breach(theorem.OUTPUTS_BOUNDED, event.time_ns, text)
            self.breach(theorem.BATCH_BOUNDED, event.time_ns, text)
        if self._pauses and most is not None and self._capacity is not None:
            step = self._rates.output * min(running_max or self._capacity, self._capacity)
            if cost + step > most:
                text = f"request {event.request_id} is charged {cost}, a step may cost {step}, and U is {most}"
                self.breach(theorem.BATCH_BOUNDED, event.time_ns, text)

    def _check_reserved(self, event: ev.Admitted, call: WatchedRequest, account: WatchedClient) -> None:
        """Check that what the request may still produce is promised to it, and that the cap holds what its client is
        promised."""
        assert call.most is not None
        left = call.most - call.generated
        call.kv = call.extend + left
        account.kv += call.kv
        reserved = event.reserved_output_tokens
        if self._reserves_all and reserved < left - self.promise.unreserved_tokens:
            text = f"request {event.request_id} may produce {left} tokens and {reserved} are reserved"
            self.breach(theorem.MEM_RESERVE, event.time_ns, text)
        cap = self.promise.in_flight_cap_tokens
        if cap is not None and account.kv > cap:
            text = f"client {event.client} has {account.kv} tokens in flight, over the cap of {cap}"
            self.breach(theorem.CAPPED, event.time_ns, text)

    @property
    def _reserves_all(self) -> bool:
        return self.promise.outputs_reserved and not self.promise.outputs_predicted

    def _since(self, client: int, account: WatchedClient, time_ns: int, broken: theorem.Assumption) -> None:
        """Check that what a client was charged since its last admission is at most U, but for what it held."""
        if self.promise.charge_max is None or self._pauses:
            return
        output = self._rates.output
        most, since = self.promise.charge_max - output * self.promise.hold_tokens, account.since - output * account.held
        if since > most:
            text = f"client {client} was charged {since} since its last admission, and U is {most}"
            self.breach(broken, time_ns, text)

    def _owed(self, account: WatchedClient) -> int:
        """Return what may still be charged to a client for the outputs reserved for it: R."""
        return self._rates.output * max(account.reserved - account.produced, 0)

    def _computes(self, call: WatchedRequest, account: WatchedClient, tokens: int) -> None:
        """Charge a running request for so many input tokens more (negative: fewer) left to compute."""
        call.uncomputed += tokens
        account.uncomputed += tokens

    def prefilled(self, event: ev.Prefilled) -> None:
        call = self._calls.get(event.request_id)
        if call is not None:
            self._computes(call, self._accounts[event.client], -min(event.tokens, call.uncomputed))

    def _check_room(self, time_ns: int, request_id: int, call: WatchedRequest, account: WatchedClient) -> None:
        """Check that what the last admission was charged and all that may follow is at most U."""
        most, client = self.promise.charge_max, call.client
        if most is None or not self.promise.outputs_reserved or self._pauses:
            return
        whole, produce = account.last + self._owed(account), most - self._rates.output * self.promise.hold_tokens
        if whole > produce:
            text = f"client {client} may be charged {whole} after request {request_id} was admitted, and U is {produce}"
            self.breach(theorem.MEM_RESERVE, time_ns, text)
        if self._shared:
            # What its other requests may be given back lies in the same memory.
            whole += self._rates.input * (account.uncomputed - call.uncomputed)
            self._check_shared(time_ns, client, whole, most)

    def _check_shared(self, time_ns: int, client: int, whole: int, most: int) -> None:
        """Check the same together with what any one other client may be charged and given back; each at its own
        multiplier."""
        times, bound = self.promise.charging.times, most * self._times_max
        others = ((self._in_memory(self._accounts[g]) * times(g), g) for g in self._holding if g != client)
        beside, other = max(others, default=(0, client))
        together = whole * times(client) + beside
        if together > bound:
            text = f"clients {client} and {other} may be charged or given back {together} together, and U is {bound}"
            self.breach(theorem.MEM_SHARED, time_ns, text)

    def _in_memory(self, account: WatchedClient) -> int:
        """Return what may still be charged to a client, and what it may be given back: R + K."""
        return self._owed(account) + self._rates.input * account.uncomputed

    def settled(self, event: ev.Settled) -> None:
        call, account = self._calls.get(event.request_id), self._accounts[event.client]
        if call is None or not call.running:
            return
        before = charged_tokens(call.extend, call.context - call.extend, self._percent)
        more = event.extend_tokens - call.extend
        call.extend = event.extend_tokens
        after = charged_tokens(call.extend, call.context - call.extend, self._percent)
        cost = (after - before) * self._rates.input
        self._computes(call, account, max(more, -call.uncomputed))
        self._gives_back(event, account, max(-cost, 0))
        self._charge(event, cost)
        if more > 0:
            text = f"request {event.request_id} computes {more} tokens more than planned"
            self.breach(theorem.EXTEND_AS_PLANNED, event.time_ns, text)
        if self._percent == 100:
            return
        account.last += cost
        account.since += cost
        if more < 0:
            self._refund(event, cost, "was settled for less")
        if event.extend_tokens < 1:
            text = f"request {event.request_id} is settled for {event.extend_tokens} tokens"
            self.breach(theorem.CHARGES_AT_LEAST_ONE, event.time_ns, text)
        if more > 0 and self.promise.outputs_predicted:
            self._since(event.client, account, event.time_ns, theorem.MEM_RESERVE)
        elif more > 0:
            self._check_room(event.time_ns, event.request_id, call, account)

    def decoded(self, event: ev.Decoded) -> None:
        output = self._rates.output
        reserved, predicted = self.promise.outputs_reserved, self.promise.outputs_predicted
        costs = []
        for client, tokens in zip(event.clients, event.tokens, strict=True):
            cost = tokens * output
            account = self._accounts[client]
            account.produced += tokens
            account.since += cost
            if predicted:
                self._since(client, account, event.time_ns, theorem.MEM_RESERVE)
            elif not reserved:
                self._since(client, account, event.time_ns, theorem.OUTPUTS_BOUNDED)
            elif account.produced > account.reserved:
                text = f"client {client} decoded {account.produced - account.reserved} tokens more than are reserved"
                self.breach(theorem.MEM_RESERVE, event.time_ns, text)
            costs.append(cost)
        self._total += sum(costs)
        self._gaps.charge(event.clients, costs, event.time_ns, self.position)

    def held(self, event: ev.Held) -> None:
        """Count the memory that clients held for some time."""
        most = self.promise.hold_tokens
        costs = [tokens * self._rates.output for tokens in event.tokens]
        for client, tokens, cost in zip(event.clients, event.tokens, costs, strict=True):
            account = self._accounts[client]
            account.held += tokens
            account.since += cost
            if account.held > most:
                text = f"client {client} is charged {account.held} tokens for what it holds, and U has {most} for it"
                self.breach(theorem.MEM_RESERVE, event.time_ns, text)
        self._total += sum(costs)
        self._gaps.charge(event.clients, costs, event.time_ns, self.position)

    def _out(self, event: ev.Preempted | ev.Finished | ev.Cancelled | ev.Migrated, generated: int) -> WatchedRequest:
        """Take a request out of the batch after `generated` output tokens in all."""
        call, account = self._call(event.request_id, event.client), self._accounts[event.client]
        here = generated - call.generated
        if call.running:
            account.reserved -= call.reserved
            account.produced -= here
            account.kv -= call.kv
            self._computes(call, account, -call.uncomputed)
            self._ends(event.request_id, account)
            if not (account.back or self._in_memory(account)):
                self._holding.discard(event.client)
            call.running = False
            self._running -= 1
        if call.most is not None and generated > call.most:
            text = f"request {event.request_id} produced {generated} tokens and had declared {call.most}"
            self.breach(theorem.OUTPUTS_BOUNDED, event.time_ns, text)
            if self._reserves_all and here > call.reserved:
                self.breach(theorem.MEM_RESERVE, event.time_ns, text)
        call.generated = generated
        return call

    def _ends(self, request_id: int, account: WatchedClient) -> None:
        """Let the time of a request count for the one admitted before it, beside which it was in flight."""
        before = None
        for each in account.back:
            if each == request_id:
                break
            before = each
        most = account.back.pop(request_id)
        if before is not None:
            account.back[before] = max(account.back[before], most)

    def preempted(self, event: ev.Preempted) -> None:
        call = self._out(event, event.generated_tokens)
        self._joins(call.client, event.time_ns)

    def finished(self, event: ev.Finished) -> None:
        self._out(event, event.output_tokens)
        del self._calls[event.request_id]

    def cancelled(self, event: ev.Cancelled | ev.Migrated) -> None:
        """Take out a request, and give back what was not computed for it."""
        cost = event.uncomputed_tokens * self._rates.input
        self._gives_back(event, self._accounts[event.client], cost)
        self._charge(event, -cost)
        if not event.was_running:
            self.gone(event)
            return
        self._out(event, event.generated_tokens)
        del self._calls[event.request_id]
        if cost:
            self._accounts[event.client].since -= cost
            self._refund(event, cost, f"{'was cancelled' if isinstance(event, ev.Cancelled) else 'left'} while it ran")

    def gone(self, event: ev.Cancelled | ev.Migrated | ev.Rejected) -> None:
        """Take out a waiting request without an admission; one that never arrived changes nothing."""
        call = self._calls.pop(event.request_id, None)
        if call is not None:
            self._leaves(call.client, event.time_ns)

    def _gives_back(self, event: ev.Settled | ev.Cancelled | ev.Migrated, account: WatchedClient, cost: int) -> None:
        """Give back to a running request a part of its charge: it was in flight at all times since its admission."""
        since = False
        for request_id in account.back:
            since = since or request_id == event.request_id
            if since:
                account.back[request_id] += cost
        self._gaps.gave_back(event.client, max(account.back.values(), default=0))

    def _refund(self, event: ev.Settled | ev.Cancelled | ev.Migrated, cost: int, why: str) -> None:
        text = f"request {event.request_id} {why}: {abs(cost)} cost units are given back to client {event.client}"
        self.breach(theorem.NOTHING_REFUNDED, event.time_ns, text)

    # --- report -----------------------------------------------------------------------------------------------------

    def findings(self, now_ns: int) -> dict[str, Finding]:
        """Return all assumptions by name, with what was seen so far."""
        reasons, notes = self._reasons(), self._notes(now_ns)
        found: dict[str, Finding] = {}
        for assumption in theorem.ASSUMPTIONS:
            name = assumption.name
            count, first = self._broken.get(name, (0, None))
            why = None if first is not None else reasons.get(name)
            theorems = self._needed.get(name, ())
            found[name] = Finding(None if why else count, first, why, notes.get(name), theorems)
        return found

    def _reasons(self) -> dict[str, str]:
        """Return the assumptions that cannot be watched here, and why."""
        promise = self.promise
        reasons = {theorem.BACKLOGGED_DURING.name: "it selects the intervals that count, and is never broken"}
        if not promise.outputs_reserved:
            reasons[theorem.MEM_RESERVE.name] = "outputs are not reserved: OutputsBounded stands for it"
            reasons[theorem.MEM_SHARED.name] = (
                "outputs are not reserved, so that no memory bounds what may still be charged"
            )
        elif promise.charge_max is None:
            reasons[theorem.MEM_SHARED.name] = "the policy names no U"
        reasons |= {each.name: "it is about several workers, and this monitor sees one" for each in _ELSEWHERE}
        unwatched = (theorem.BATCH_BOUNDED, theorem.PAUSES_OBEYED) if not self._pauses else ()
        for assumption in (*unwatched, theorem.MEM_SHARED, theorem.REJOIN_KEEPS_DEBT, theorem.LIFT_ON_JOIN):
            if assumption.name not in self._needed:
                reasons[assumption.name] = "no theorem of the policy rests on it"
        if not self._asks_gate:
            for assumption in (theorem.GATE_RESPECTED, theorem.PAUSES_OBEYED):
                reasons.setdefault(assumption.name, "no gate check was given")
        for assumption in (theorem.CAPPED_TOGETHER, theorem.OUTPUTS_LIKELY):
            reasons[assumption.name] = "this monitor does not follow what an elastic cap counts"
        unbounded = promise.worst_wait is None
        absent = (
            (
                promise.in_flight_cap_tokens is None,
                theorem.CAPPED,
                "no in-flight cap is set, so nothing is promised under it",
            ),
            (unbounded, theorem.STEPS_IN_TIME, "no wait is bounded in time: no latency model, or no such theorem"),
            (
                unbounded and promise.capacity_floor is None,
                theorem.CAPACITY_FLOOR,
                "no rate is claimed; the least observed is reported",
            ),
            (self._capacity is None, theorem.FITS_ALONE, "the worker did not say what it holds"),
        )
        reasons |= {assumption.name: why for missing, assumption, why in absent if missing}
        if not promise.quanta:
            reasons[theorem.QUANTUM_POSITIVE.name] = reasons[theorem.EQUAL_QUANTA.name] = "the gate has no quanta"
        return reasons

    def _notes(self, now_ns: int) -> dict[str, str]:
        """Return what was measured beside."""
        together = self._together_ns + (now_ns if self._waiting > 1 else 0)
        notes = {theorem.BACKLOGGED_DURING.name: f"two or more clients waited together for {together} ns"}
        if self._least is not None:
            charged, span, client = self._least
            rate = charged * 1e9 / span
            notes[theorem.CAPACITY_FLOOR.name] = (
                f"least {rate:.6g} cost units a second, while client {client} waited {span} ns"
            )
        return notes
