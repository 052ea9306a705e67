"""vLLM's queue of waiting requests, in which a policy says who is at the front.

It keeps the protocol of `vllm.v1.core.sched.request_queue.RequestQueue`.  vLLM asks whether there is anybody, looks at
the front, and either lets that one in (pops it, and then it runs) or puts it off (pops it and gives it back at the end
of the step).  "Nobody" is also the answer while the policy lets nobody in, or the one who is next has no room: nobody
passes the one who is next, and so nobody passes one that vLLM puts off, until the next step.

Requests that are not ready (a grammar is being compiled, outputs of a preempted one are still in flight) are beside the
queue.  What the desk cannot describe goes first, as it came, and is counted.
"""

import logging
from collections.abc import Callable, Iterable, Iterator

from fairsched.engines.vllm.desk import Desk
from fairsched.engines.vllm.protocol import VllmRequest, runs

_log = logging.getLogger("vllm.fairsched")


class FairQueue:
    """The queue.  `is_ready` says whether vLLM could take a request on now; it may change the request's status."""

    def __init__(self, desk: Desk, is_ready: Callable[[VllmRequest], bool]) -> None:
        self.uncovered = 0
        self._desk = desk
        self._is_ready = is_ready
        self._waiting: dict[str, VllmRequest] = {}
        self._unready: dict[str, VllmRequest] = {}
        self._plain: dict[str, VllmRequest] = {}
        self._popped: VllmRequest | None = None
        self._closed = False

    # --- steps ------------------------------------------------------------------------------------------------------

    def open_step(self, seats: int) -> None:
        """vLLM is about to fill a step, in which `seats` more requests may run: without any, nobody need be asked."""
        self.settle()
        self._closed = seats <= 0
        self._desk.look_again()
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
        elif self._desk.knows(request):
            self._desk.enter(request)

    def _join(self, request: VllmRequest) -> None:
        """The request waits from now on, for the first time or again."""
        if not request.resumable:
            try:
                if self._desk.knows(request):
                    self._desk.requeue(request)
                else:
                    self._desk.arrive(request)
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
        return self._desk.next()

    # --- vLLM's protocol --------------------------------------------------------------------------------------------

    def add_request(self, request: VllmRequest) -> None:
        """A request comes."""
        if self._is_ready(request):
            self._join(request)
        else:
            self._unready[request.request_id] = request

    def peek_request(self) -> VllmRequest:
        """Who is at the front.  Raises `IndexError` if nobody is."""
        request = self._front()
        if request is None:
            raise IndexError("nobody is let in now")
        return request

    def pop_request(self) -> VllmRequest:
        """Take out who is at the front: what `peek_request` says."""
        request = self.peek_request()
        name = request.request_id
        del (self._plain if name in self._plain else self._waiting)[name]
        self._popped = request
        return request

    def prepend_request(self, request: VllmRequest) -> None:
        """A request was taken out of the batch."""
        self.settle()
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[VllmRequest]) -> None:
        """Requests that were put off are back."""
        self.settle()
        for request in requests:
            known = self._desk.knows(request) and not request.resumable
            (self._waiting if known else self._plain)[request.request_id] = request

    def remove_request(self, request: VllmRequest) -> None:
        """A request is over."""
        self.remove_requests((request,))

    def remove_requests(self, requests: Iterable[VllmRequest]) -> None:
        """Requests are over; those that are not here are left alone."""
        for request in requests:
            for place in (self._waiting, self._unready, self._plain):
                place.pop(request.request_id, None)

    def __bool__(self) -> bool:
        """Whether somebody may be let in now."""
        return self._front() is not None

    def __len__(self) -> int:
        """How many wait, let in or not."""
        return len(self._waiting) + len(self._unready) + len(self._plain)

    def __iter__(self) -> Iterator[VllmRequest]:
        """Who waits, in the order in which they came."""
        for place in (self._plain, self._waiting, self._unready):
            yield from place.values()
