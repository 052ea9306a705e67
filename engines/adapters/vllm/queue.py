"""vLLM's queue of waiting requests, in which a policy says which is at the front.

It keeps the protocol of `vllm.v1.core.sched.request_queue.RequestQueue`.  vLLM asks whether the queue is empty, looks
at the front, and either lets that request in (pops it, and then it runs) or puts it off (pops it and gives it back at
the end of the step).  The queue also says that it is empty while the policy lets no request in, or the next one has no
room: no request passes the next one, and so none passes one that vLLM puts off, until the next step.

Requests that are not ready (a grammar is being compiled, outputs of a preempted one are still in flight) are beside the
queue.  A request that the tracker cannot describe goes first, as it came, and is counted.
"""

import logging
from collections.abc import Callable, Iterable, Iterator

from fairsched.engines.adapters.vllm.protocol import VllmRequest, runs
from fairsched.engines.adapters.vllm.tracker import VllmTracker

_log = logging.getLogger("vllm.fairsched")


class FairQueue:
    """The queue.  `is_ready` says whether vLLM could take a request on now; it may change the request's status."""

    def __init__(self, tracker: VllmTracker, is_ready: Callable[[VllmRequest], bool]) -> None:
        self.uncovered = 0
        self._tracker = tracker
        self._is_ready = is_ready
        self._waiting: dict[str, VllmRequest] = {}
        self._unready: dict[str, VllmRequest] = {}
        self._plain: dict[str, VllmRequest] = {}
        self._popped: VllmRequest | None = None
        self._closed = False

    # --- steps ------------------------------------------------------------------------------------------------------

    def open_step(self, seats: int) -> None:
        """vLLM is about to fill a step, in which `seats` more requests may run: without any, no decision is needed."""
        self.settle()
        self._closed = seats <= 0
        self._tracker.look_again()
        for request in list(self._unready.values()):
            if self._is_ready(request):
                del self._unready[request.request_id]
                self._join(request)

    def settle(self) -> None:
        """Say what became of the request that was popped last.  Before vLLM counts the step's tokens as computed."""
        request, self._popped = self._popped, None
        if request is None:
            return
        if not runs(request):
            self._closed = True
        elif self._tracker.knows(request):
            self._tracker.enter(request)

    def _join(self, request: VllmRequest) -> None:
        """Let the request wait from now on, for the first time or again."""
        if not request.resumable:
            try:
                if self._tracker.knows(request):
                    self._tracker.requeue(request)
                else:
                    self._tracker.arrive(request)
                self._waiting[request.request_id] = request
                return
            except ValueError as error:
                _log.warning("request %s is served outside of the policy: %s", request.request_id, error)
        self.uncovered += 1
        self._plain[request.request_id] = request

    def _front(self) -> VllmRequest | None:
        self.settle()
        if self._closed:
            return None
        if self._plain:
            return next(iter(self._plain.values()))
        return self._tracker.next()

    # --- vLLM's protocol --------------------------------------------------------------------------------------------

    def add_request(self, request: VllmRequest) -> None:
        if self._is_ready(request):
            self._join(request)
        else:
            self._unready[request.request_id] = request

    def peek_request(self) -> VllmRequest:
        """Return the request at the front.  Raises `IndexError` if there is none."""
        request = self._front()
        if request is None:
            raise IndexError("no request is let in now")
        return request

    def pop_request(self) -> VllmRequest:
        """Take out the request at the front: what `peek_request` says."""
        request = self.peek_request()
        name = request.request_id
        del (self._plain if name in self._plain else self._waiting)[name]
        self._popped = request
        return request

    def prepend_request(self, request: VllmRequest) -> None:
        """Put back a request that was taken out of the batch."""
        self.settle()
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[VllmRequest]) -> None:
        """Put back requests that were put off."""
        self.settle()
        for request in requests:
            known = self._tracker.knows(request) and not request.resumable
            (self._waiting if known else self._plain)[request.request_id] = request

    def remove_request(self, request: VllmRequest) -> None:
        self.remove_requests((request,))

    def remove_requests(self, requests: Iterable[VllmRequest]) -> None:
        """Remove requests that are over; those that are not here are left alone."""
        for request in requests:
            for place in (self._waiting, self._unready, self._plain):
                place.pop(request.request_id, None)

    def __bool__(self) -> bool:
        """Return whether a request may be let in now."""
        return self._front() is not None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._unready) + len(self._plain)

    def __iter__(self) -> Iterator[VllmRequest]:
        """Iterate over the requests that wait, in the order in which they came."""
        for place in (self._plain, self._waiting, self._unready):
            yield from place.values()
