"""What any run's events must add up to, whatever produced them: tokens are computed once and every request ends
once."""

from collections import Counter
from collections.abc import Iterable

from fairsched.model import events as ev


class EventLedger:
    """Follows a run event by event and raises `AssertionError` at the first that cannot be."""

    def __init__(self) -> None:
        self.waiting: dict[int, int] = {}
        """Client of each waiting request."""
        self.running: dict[int, int] = {}
        self.paused: set[int] = set()
        self.left: dict[int, int] = {}
        """Extend tokens of each running request that are still to be computed."""
        self.generated: Counter[int] = Counter()
        """Output tokens that requests reported, by client."""
        self.decoded: Counter[int] = Counter()
        """Output tokens that steps produced, by client."""
        self.ended: dict[int, type[ev.Event]] = {}
        self.kept: dict[int, int] = {}
        """KV tokens on the host of each waiting request that has some."""
        self.staged: dict[int, tuple[int, int]] = {}
        """Worker and tokens of the KV of each request that is between workers."""
        self.sent: dict[int, int] = {}
        """Target of each transfer under way."""
        self._moving: Counter[tuple[int, bool]] = Counter()
        """KV tokens on their way, by worker, out (True) and in."""
        self._at: dict[int, int] = {}
        """Worker of each request that waits or runs."""
        self._ran: set[int] = set()
        self._lost: set[int] = set()
        """Clients of requests that were rejected after they had run: what they had generated is not recorded."""

    def record(self, event: ev.Event) -> None:
        match event:
            case ev.Arrived():
                self._arrived(event)
            case ev.Admitted():
                self._admitted(event)
            case ev.Settled() | ev.Prefilled():
                self._computes(event)
            case ev.Decoded() | ev.Held():
                self._produced(event)
            case ev.SwappedOut() | ev.SwappedIn() | ev.Transferred() | ev.HostLost():
                self._swaps(event)
            case ev.Paused() | ev.Resumed() | ev.Preempted():
                self._stops(event)
            case ev.Finished():
                assert self._leaves(event.request_id, event.client) == 0
                self._ends(event, event.request_id)
                self.generated[event.client] += event.output_tokens
            case ev.Cancelled() | ev.Migrated():
                self._goes(event)
            case ev.TransferStarted() | ev.TransferFailed():
                self._transfers(event)
            case ev.Rejected():
                self._rejected(event)
            case ev.WorkerLeft():
                self._left(event)

    def _produced(self, event: ev.Decoded | ev.Held) -> None:
        assert list(event.clients) == sorted(set(event.clients))
        assert min(event.tokens) >= 1
        if isinstance(event, ev.Decoded):
            assert event.steps >= 1
            # Only clients with something in the batch that is not paused produce.
            assert set(event.clients) <= {client for i, client in self.running.items() if i not in self.paused}
            self.decoded.update(dict(zip(event.clients, event.tokens, strict=True)))

    def check_over(self, request_ids: Iterable[int]) -> None:
        """Check the end of a run: exactly these requests came, every one has ended, and no token was lost or made
        up."""
        assert not self.waiting
        assert not self.running
        assert not self.staged
        assert not self.sent
        assert set(self.ended) == set(request_ids)
        for client in self.decoded.keys() | self.generated.keys():
            if client in self._lost:
                assert self.decoded[client] >= self.generated[client]
            else:
                assert self.decoded[client] == self.generated[client]

    def _stops(self, event: ev.Paused | ev.Resumed | ev.Preempted) -> None:
        """Check that what decodes is paused, what is paused goes on, and what runs waits again."""
        if isinstance(event, ev.Preempted):
            assert self._leaves(event.request_id, event.client) == event.uncomputed_tokens
            self.waiting[event.request_id] = event.client
            return
        assert self.running[event.request_id] == event.client
        if isinstance(event, ev.Resumed):
            self.paused.remove(event.request_id)
            return
        assert self.left[event.request_id] == 0
        assert event.request_id not in self.paused
        assert event.generated_tokens >= 1
        self.paused.add(event.request_id)

    def _computes(self, event: ev.Settled | ev.Prefilled) -> None:
        if isinstance(event, ev.Settled):
            self.left[event.request_id] = event.extend_tokens
            return
        self.left[event.request_id] -= event.tokens
        assert event.tokens >= 1
        assert self.left[event.request_id] == event.remaining_tokens >= 0

    def _arrived(self, event: ev.Arrived) -> None:
        request = event.request
        assert request.id not in self.ended
        target, (source, kv) = self.sent.pop(request.id, None), self.staged.pop(request.id, (ev.NOWHERE, 0))
        if event.kv_tokens:
            # KV comes from where it was, all of it, to where it was sent; or it stayed.
            assert event.worker == (source if target is None else target)
            assert event.kv_tokens == kv
        else:
            assert target is None
        if event.worker != ev.NOWHERE:
            assert request.id not in self.waiting
            assert request.id not in self.running
            self.waiting[request.id] = request.client
            self._at[request.id] = event.worker

    def _swaps(self, event: ev.SwappedOut | ev.SwappedIn | ev.Transferred | ev.HostLost) -> None:
        """Check that only KV of running requests goes out, only what went out comes back, and what was said to go has
        gone."""
        match event:
            case ev.SwappedOut():
                assert self.running[event.request_id] == event.client
                assert event.kv_tokens >= 1
                self.kept[event.request_id] = event.kv_tokens
                self._moving[event.worker, True] += event.kv_tokens
            case ev.SwappedIn():
                assert self.waiting[event.request_id] == event.client
                assert event.kv_tokens <= self.kept[event.request_id]
                self._moving[event.worker, False] += event.kv_tokens
            case ev.Transferred():
                assert self._moving.pop((event.worker, True), 0) == event.out_tokens
                assert self._moving.pop((event.worker, False), 0) == event.in_tokens
            case ev.HostLost():
                self._stops_moving(event.worker)
                for request_id in [i for i in self.kept if self._at[i] == event.worker]:
                    del self.kept[request_id]

    def _transfers(self, event: ev.TransferStarted | ev.TransferFailed) -> None:
        """Check that only KV that is at its source is sent, to one target at a time, into memory that holds it."""
        if isinstance(event, ev.TransferFailed):
            # A transfer may be called off before it began.
            assert self.sent.pop(event.request_id, event.target) == event.target
            return
        assert event.request_id not in self.sent
        assert self.staged[event.request_id] == (event.worker, event.kv_tokens)
        assert 1 <= event.kv_tokens <= event.reserved_tokens
        assert event.target != event.worker
        self.sent[event.request_id] = event.target

    def _stops_moving(self, worker: int) -> None:
        for out in (True, False):
            self._moving.pop((worker, out), None)

    def _admitted(self, event: ev.Admitted) -> None:
        self.kept.pop(event.request_id, None)
        assert self.waiting.pop(event.request_id) == event.client
        self.running[event.request_id] = event.client
        self._ran.add(event.request_id)
        # Every admission computes something, so every admission is charged.
        assert event.extend_tokens >= 1
        assert event.cached_prefix_tokens >= 0
        self.left[event.request_id] = event.extend_tokens

    def _forget(self, request_id: int) -> None:
        self.staged.pop(request_id, None)
        self.sent.pop(request_id, None)

    def _rejected(self, event: ev.Rejected) -> None:
        self._forget(event.request_id)
        self.waiting.pop(event.request_id, None)
        self._ends(event, event.request_id)
        if event.request_id in self._ran:
            self._lost.add(event.client)

    def _goes(self, event: ev.Cancelled | ev.Migrated) -> None:
        if event.was_running:
            assert self._leaves(event.request_id, event.client) == event.uncomputed_tokens
        else:
            # A call whose predecessor failed is cancelled without ever having come.
            assert self.waiting.pop(event.request_id, event.client) == event.client
            assert not event.uncomputed_tokens
            self.kept.pop(event.request_id, None)
        if isinstance(event, ev.Migrated):
            if event.kv_tokens:
                self.staged[event.request_id] = event.worker, event.kv_tokens
        else:
            self._forget(event.request_id)
            self.generated[event.client] += event.generated_tokens
            self._ends(event, event.request_id)

    def _left(self, event: ev.WorkerLeft) -> None:
        """Forget whatever waited or ran there."""
        gone = [i for i, worker in self._at.items() if worker == event.worker and i not in self.ended]
        for request_id in gone:
            for requests in (self.waiting, self.running, self.left, self.kept):
                requests.pop(request_id, None)
            self.paused.discard(request_id)
        for request_id in [i for i, (worker, _) in self.staged.items() if worker == event.worker]:
            assert request_id not in self.sent
            del self.staged[request_id]
        assert event.worker not in self.sent.values()
        self._stops_moving(event.worker)

    def _leaves(self, request_id: int, client: int) -> int:
        assert self.running.pop(request_id) == client
        self.paused.discard(request_id)
        return self.left.pop(request_id)

    def _ends(self, event: ev.Event, request_id: int) -> None:
        assert request_id not in self.ended
        self.ended[request_id] = type(event)
