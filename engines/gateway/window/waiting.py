"""The requests that wait at a window: those that the policy may choose, and those that are set aside for a while."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from fairsched.model.decision import Admission
from fairsched.model.request import Request
from fairsched.policies.guarantees import charged_at_once


class WaitingRequests:
    """Requests in order of arrival."""

    def __init__(self) -> None:
        self._all: dict[int, Request] = {}
        self._count_of: Counter[int] = Counter()
        self._aside: dict[int, dict[int, Request]] = {}
        self._aside_count = 0
        self._only: dict[int, set[int]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._all.values())

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._all

    def __getitem__(self, request_id: int) -> Request:
        return self._all[request_id]

    def count_of(self, client: int) -> int:
        return self._count_of[client]

    def add(self, request: Request) -> bool:
        """Add a request that comes: returns whether the policy may choose it: others of its client are not set
        aside."""
        self._all[request.id] = request
        self._count_of[request.client] += 1
        aside = self._aside.get(request.client)
        if aside is not None:
            aside[request.id] = request
            self._aside_count += 1
        return aside is None

    def remove(self, request: Request) -> set[int] | None:
        """Remove a request that waits no more: returns the servers that it was for, None for any."""
        del self._all[request.id]
        self._count_of[request.client] -= 1
        if self.is_aside(request):
            self.back(request)
        return self._only.pop(request.id, None)

    # --- requests that are for some servers only --------------------------------------------------------------------

    def only(self, request_id: int, places: Iterable[int]) -> None:
        """Keep a request for these servers."""
        self._only[request_id] = set(places)

    def part(self, place: int) -> None:
        """Part from a server that is there no more."""
        for places in self._only.values():
            places.discard(place)

    def stranded(self) -> list[int]:
        """Return requests for servers of which none is there any more."""
        return [request_id for request_id, places in self._only.items() if not places]

    # --- requests that are set aside --------------------------------------------------------------------------------

    @property
    def choosable(self) -> int:
        return len(self._all) - self._aside_count

    @property
    def choosable_clients(self) -> list[int]:
        return sorted(client for client, count in self._count_of.items() if count > len(self._aside.get(client, ())))

    def is_choosable(self, request_id: int) -> bool:
        request = self._all.get(request_id)
        return request is not None and not self.is_aside(request)

    def may_be_let_in(self, admission: Admission) -> bool:
        """Return whether an admission is one of a request that may be chosen, as it is."""
        if not self.is_choosable(admission.request_id):
            return False
        request = self._all[admission.request_id]
        wanted = request.client, charged_at_once(request.prompt_tokens), request.max_output_tokens
        return (admission.client, admission.extend_tokens, admission.reserved_output_tokens) == wanted

    def oldest(self) -> Request:
        return next(request for request in self._all.values() if not self.is_aside(request))

    def is_aside(self, request: Request) -> bool:
        return request.id in self._aside.get(request.client, ())

    def set_aside(self, client: int) -> tuple[Request, ...]:
        """Set aside all of a client; returns those that were not."""
        before = self._aside.get(client, {})
        self._aside[client] = {each.id: each for each in self._all.values() if each.client == client}
        fresh = tuple(each for each in self._aside[client].values() if each.id not in before)
        self._aside_count += len(fresh)
        return fresh

    def aside(self, alike: Callable[[int], bool]) -> tuple[Request, ...]:
        """Return such clients' requests that are set aside, if the policy has no other of the client to choose."""
        whole = [each for client, each in self._aside.items() if alike(client) and len(each) == self._count_of[client]]
        return tuple(request for each in whole for request in each.values())

    def back(self, request: Request) -> None:
        aside = self._aside[request.client]
        del aside[request.id]
        self._aside_count -= 1
        if not aside:
            del self._aside[request.client]
