"""Ray Serve's request router whose policy is in one actor for all handles of a deployment.

Each call asks the actor for a place and waits in its queue, not in the handle's; the answer is a replica where the call
is booked already.  Serve says when a replica took the call and when it is over.  `_choose_replica_for_request` is what
Serve awaits for a place, as its own `CapacityQueueRouter` uses it: `choose_replicas` sees only a few calls at a time.

When the actor is not there, calls go around the policy: to the less busy of two replicas chosen at random, as Serve
does by default.  They are counted, and charged once the actor is back.
"""

import asyncio
import logging
import pickle
import random
import uuid
import weakref
from typing import Any

import attrs
from ray.serve.request_router import (
    FIFOMixin,
    LocalityMixin,
    MultiplexMixin,
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

from fairsched.engines.adapters.ray_serve.actor import actor_name, found_or_made
from fairsched.engines.adapters.ray_serve.attempts import Attempt, Attempts
from fairsched.engines.adapters.ray_serve.connection import Actor, ActorConnection, UnreachableError
from fairsched.engines.adapters.ray_serve.coordinator import parts
from fairsched.engines.adapters.ray_serve.extract import Extractor, Wanted, extractor_of
from fairsched.engines.adapters.ray_serve.messages import Died
from fairsched.engines.adapters.ray_serve.settings import settings_of
from fairsched.engines.serving import OTHERS

_log = logging.getLogger("ray.serve")

_GRACE_SECONDS = 0.2
"""Serve may tell that a try is over shortly before it tells that its replica took it, or that it is tried again."""
_REPLICA_SECONDS = 2.0
"""How long a handle may take to hear of a replica that others see."""


class FairRouter(FIFOMixin, LocalityMixin, MultiplexMixin, RequestRouter):
    """`RequestRouterConfig(request_router_class="fairsched.integrations.ray_serve.FairRouter", ...)`."""

    def initialize_state(self, **kwargs: Any) -> None:
        """The settings (`RouterSettings`).  Bad ones are logged, and all calls go around the policy: an error here
        would leave them waiting for ever."""
        self._connection: ActorConnection | None = None
        self._attempts = Attempts(certain=self._use_replica_queue_len_cache)
        self._by_name: dict[str, ReplicaID] = {}
        try:
            self._settings = settings_of(kwargs)
            self._extract: Extractor = extractor_of(self._settings)
            parts(self._settings)
        except ValueError as error:
            _log.error("fairsched: %s: calls of %s go around the policy", error, self._deployment_id)
            return
        actor = self.actor_name()
        settings = self._settings

        async def connect() -> Actor:
            return await asyncio.get_running_loop().run_in_executor(None, found_or_made, actor, settings)

        self._connection = ActorConnection(settings, f"{actor}:{uuid.uuid4().hex[:12]}", connect)

    def actor_name(self) -> str:
        return actor_name(self._deployment_id.app_name, self._deployment_id.name)

    # --- places -----------------------------------------------------------------------------------------------------

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        """Return the replica for a request, once the policy lets it in.  Raises `TooLargeError` for one that fits
        nowhere."""
        connection = self._connection
        if connection is None:
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        if is_retry and (attempt := self._attempts.again(id(pending_request))) is not None:
            connection.end(attempt.ticket, "given back")
        wanted = self._wanted(pending_request)
        name = pending_request.metadata.internal_request_id
        size = (name, wanted.client, wanted.prompt_tokens, wanted.max_output_tokens)
        while True:
            try:
                placed = await connection.place(*size)
            except UnreachableError:
                replica = await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
                ticket = connection.went_around(*size, replica.replica_id.unique_id)
            else:
                ticket, found = placed.ticket, await self._replica(placed.replica, placed.ticket)
                if found is None:
                    connection.end(ticket, "given back")
                    continue
                replica = found
            self._attempts.sent(Attempt(id(pending_request), ticket, replica.replica_id, name))
            return replica

    async def _replica(self, name: str, ticket: int) -> RunningReplica | None:
        """Return the replica of that name, if it is there or comes soon."""
        assert self._connection is not None
        try:
            async with asyncio.timeout(_REPLICA_SECONDS):
                while name not in self._by_name or (replica := self._replicas.get(self._by_name[name])) is None:
                    self._replicas_updated_event.clear()
                    await self._replicas_updated_event.wait()
        except TimeoutError:
            return None
        except asyncio.CancelledError:
            self._connection.end(ticket, "given back")
            raise
        return replica

    def _wanted(self, pending_request: PendingRequest) -> Wanted:
        try:
            # Only what this process's proxy has packed is unpacked.
            packed = self._handle_source == "PROXY" and pending_request.metadata.is_http_request
            return self._extract(_unpacked(pending_request) if packed else pending_request)
        except Exception as error:
            _log.warning("fairsched: a call of %s could not be read: %s", self._deployment_id, error)
            return Wanted(OTHERS, 1, self._settings.default_output_tokens)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return two replicas at random, of which Serve takes the less busy: for calls that go around the policy."""
        return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]

    # --- what Serve tells -------------------------------------------------------------------------------------------

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: object) -> None:
        attempt = self._attempts.routed(id(pending_request))
        if attempt is not None and self._connection is not None:
            self._connection.end(attempt.ticket)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        connection, attempt = self._connection, self._attempts.completed(internal_request_id, replica_id)
        if connection is None or attempt is None:
            return
        if self._attempts.ends(attempt):
            connection.end(attempt.ticket)
        else:
            self._event_loop.call_later(_GRACE_SECONDS, self._over, attempt)

    def _over(self, attempt: Attempt) -> None:
        """End a try that no replica was said to have taken, and of which nothing came: its caller left."""
        if self._attempts.forget(attempt) and self._connection is not None:
            self._connection.end(attempt.ticket, "left")

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """End what was in flight there, whichever handle sent it."""
        super().on_replica_actor_died(replica_id)
        self._by_name.pop(replica_id.unique_id, None)
        if self._connection is not None:
            self._connection.tell(Died(replica_id.unique_id))

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take these replicas as those that are there."""
        super().update_replicas(replicas)
        self._by_name = {replica.replica_id.unique_id: replica.replica_id for replica in replicas}
        if self._connection is not None:
            self._connection.sees({r.replica_id.unique_id: r.max_ongoing_requests for r in replicas})
            self._begin(self._connection)

    def _begin(self, connection: ActorConnection) -> None:
        """Talk to the actor, for as long as this router is there."""
        if connection.start():
            loop = self._event_loop
            weakref.finalize(self, _stop, loop, connection).atexit = False


def _stop(loop: asyncio.AbstractEventLoop, connection: ActorConnection) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(connection.stop)


@attrs.frozen
class _Opened:
    """A call whose HTTP request, which the proxy has packed, can be read."""

    args: list[object]
    kwargs: dict[str, object]
    metadata: Any


def _unpacked(pending_request: PendingRequest) -> _Opened:
    """Return the call with its HTTP request as an object."""
    args = [pickle.loads(each) if isinstance(each, bytes) else each for each in pending_request.args]
    return _Opened(args, pending_request.kwargs, pending_request.metadata)
