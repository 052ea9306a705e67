"""Requests between two phases: from their dispatch to a worker that only computes the prompt until they have arrived
where they decode.

A value that any policy may keep in its state.  It follows the facts: a request is *staged* when its first token is out,
*sent* when the policy named a target, and forgotten when it is there, or over.  A transfer that failed makes a request
staged again, unless its KV is lost: then an engine places it anew.  An event costs O(1), but of workers that drain
or leave O(requests between two phases).
"""

import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model import events as ev
from fairsched.model.request import Request
from fairsched.model.view import WorkerLoad


class Handover(msgspec.Struct, frozen=True, gc=False):
    """A request from its dispatch until it has arrived where it decodes.

    With its first token it is staged at `source` since `since_ns`, and then has `generated_tokens`.  When it is sent to
    `target`, it needs `owed_tokens` of memory there until they are reserved.  An `early` one still computes its prompt.
    """

    request: Request
    source: int = ev.NOWHERE
    generated_tokens: int = 0
    since_ns: int = 0
    target: int = ev.NOWHERE
    owed_tokens: int = 0
    early: bool = False

    @property
    def kv_tokens(self) -> int:
        """KV of a staged request: that of its last token is not computed yet."""
        return self.request.prompt.tokens + self.generated_tokens - 1

    @property
    def output_tokens_left(self) -> int:
        """How much more a staged request may produce."""
        return max(self.request.max_output_tokens - self.generated_tokens, 0)


class Handovers(msgspec.Struct, frozen=True):
    """Requests by id, those of them that are staged and not sent in the order in which they were staged, and by worker
    how many transfers wait there for memory, and for how much."""

    requests: Map[int, Handover] = Map()
    staged: tuple[int, ...] = ()
    owed: Map[int, tuple[int, int]] = Map()

    # --- what a policy decides --------------------------------------------------------------------------------------

    def dispatched(self, request: Request) -> "Handovers":
        """Return a copy with a request that goes to a worker for its prompt; one that was known begins again."""
        return _with(self.without(request.id), Handover(request))

    def begun(self, request_id: int, worker: int, now_ns: int) -> "Handovers":
        """Return a copy with a request that may be sent while its prompt is computed: it is staged as if it had its
        first token.

        Itself if the request is not known, or is further already.
        """
        handover = self.requests.get(request_id)
        if handover is None or handover.source != ev.NOWHERE:
            return self
        return _staged(self, replace(handover, source=worker, generated_tokens=1, since_ns=now_ns, early=True))

    def postponed(self, request_id: int) -> "Handovers":
        """Return a copy with an early request as not to be sent before it has its first token."""
        handover = self.requests[request_id]
        return _with(_unstaged(self, request_id), Handover(handover.request))

    def sent(self, request_id: int, target: int, reserved_tokens: int) -> "Handovers":
        """Return a copy with a staged request on its way to a target, where so many tokens are to be reserved beside
        its KV."""
        handover = self.requests[request_id]
        if target == handover.source:
            # A request that goes on where it is has arrived.
            return self.without(request_id)
        tokens = handover.kv_tokens + reserved_tokens
        after = _owing(_unstaged(self, request_id), target, 1, tokens)
        return _with(after, replace(handover, target=target, owed_tokens=tokens))

    def without(self, request_id: int) -> "Handovers":
        """Return a copy without a request."""
        handover = self.requests.get(request_id)
        if handover is None:
            return self
        after = _settled(_unstaged(self, request_id), handover)
        return replace(after, requests=after.requests.delete(request_id))

    def expected(self, load: WorkerLoad) -> WorkerLoad:
        """Return a worker's load with the transfers that wait there for memory, of which it does not know."""
        requests, tokens = self.owed.get(load.worker, (0, 0))
        if not requests:
            return load
        waiting, free = load.waiting_requests + requests, load.kv_free_tokens - tokens
        return replace(load, waiting_requests=waiting, kv_free_tokens=free)

    # --- what happens -----------------------------------------------------------------------------------------------

    def observed(self, event: ev.Event) -> "Handovers":
        """Observe an event; itself if that is about no request between two phases."""
        match event:
            case ev.Migrated() if event.kv_tokens:
                handover = self.requests.get(event.request_id)
                if handover is not None and handover.target == ev.NOWHERE:
                    done, since_ns = event.generated_tokens, event.time_ns
                    return _staged(self, Handover(handover.request, event.worker, done, since_ns))
            case ev.TransferStarted():
                handover = self.requests.get(event.request_id)
                if handover is not None and handover.target == event.target:
                    return _settled(self, handover)
            case ev.TransferFailed():
                handover = self.requests.get(event.request_id)
                if handover is not None and handover.target == event.target:
                    return _staged(self, handover)
            case ev.Arrived():
                handover = self.requests.get(event.request.id)
                if handover is not None and handover.target == event.worker:
                    return self.without(event.request.id)
            case ev.Finished() | ev.Cancelled() | ev.Rejected():
                return self.without(event.request_id)
            case ev.WorkerLeft():
                return _bereft(self, event.worker)
            case ev.WorkerDraining():
                # What it has not reserved memory for does not go there, whether or not the engine has said so yet.
                return _bereft(self, event.worker, reserved=True)
        return self

    def check(self) -> None:
        """Raise `AssertionError` unless what is staged, sent and owed is what the requests say."""
        # What is staged is known, once, with its place and its tokens, and is not sent.
        assert len(set(self.staged)) == len(self.staged)
        for request_id in self.staged:
            handover = self.requests[request_id]
            assert handover.source != ev.NOWHERE
            assert handover.target == ev.NOWHERE
            assert handover.generated_tokens > 0
        # What is sent was staged, and leaves its worker; what it needs there is owed until it is reserved.
        owed: dict[int, tuple[int, int]] = {}
        for request_id, handover in self.requests.items():
            assert handover.request.id == request_id
            assert handover.target == ev.NOWHERE or handover.source not in (ev.NOWHERE, handover.target)
            assert (handover.source == ev.NOWHERE) == (handover.target == ev.NOWHERE and request_id not in self.staged)
            if handover.owed_tokens:
                requests, tokens = owed.get(handover.target, (0, 0))
                owed[handover.target] = requests + 1, tokens + handover.owed_tokens
        assert owed == dict(self.owed)
        assert ev.NOWHERE not in owed


NO_HANDOVERS = Handovers()


def _with(handovers: Handovers, handover: Handover) -> Handovers:
    return replace(handovers, requests=handovers.requests.set(handover.request.id, handover))


def _unstaged(handovers: Handovers, request_id: int) -> Handovers:
    if request_id not in handovers.staged:
        return handovers
    return replace(handovers, staged=tuple(each for each in handovers.staged if each != request_id))


def _owing(handovers: Handovers, worker: int, requests: int, tokens: int) -> Handovers:
    """Count so many more requests (or fewer) that wait for memory at a worker."""
    requests_before, tokens_before = handovers.owed.get(worker, (0, 0))
    requests, tokens = requests_before + requests, tokens_before + tokens
    owed = handovers.owed.set(worker, (requests, tokens)) if requests else handovers.owed.delete(worker)
    return replace(handovers, owed=owed)


def _settled(handovers: Handovers, handover: Handover) -> Handovers:
    """Settle what is owed to the request: its memory is reserved, or it does not go there."""
    if not handover.owed_tokens:
        return handovers
    handovers = _owing(handovers, handover.target, -1, -handover.owed_tokens)
    return _with(handovers, replace(handover, owed_tokens=0))


def _staged(handovers: Handovers, handover: Handover) -> Handovers:
    """Let the request wait to be sent, behind those that wait already."""
    request_id = handover.request.id
    handovers = _with(_settled(handovers, handover), replace(handover, target=ev.NOWHERE, owed_tokens=0))
    if request_id in handovers.staged:
        return handovers
    return replace(handovers, staged=(*handovers.staged, request_id))


def _bereft(handovers: Handovers, worker: int, reserved: bool = False) -> Handovers:
    """Forget what was staged at a worker that left, and stage what was on its way there.

    With `reserved` the worker drains: it keeps what it has, and what it has reserved memory for.
    """
    for request_id, handover in sorted(handovers.requests.items()):
        if handover.source == worker and not reserved:
            handovers = handovers.without(request_id)
        elif handover.target == worker and (handover.owed_tokens or not reserved):
            handovers = _staged(handovers, handover)
    return handovers
