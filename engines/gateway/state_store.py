"""What clients owe, kept through restarts in a file: a gateway that is killed forgives no client.

The file is a snapshot of the policy's state, written whole; beside it a journal (`engines.serving.state.journal`) has
every event since, each written before a byte of what it is about goes on to a caller.  A restart goes on from both:
calls in flight are charged the whole estimate of their prompts and the output that passed, as calls are whose caller
leaves, and those that waited never were.  Written without waiting for the disk: what the machine itself loses when it
dies is lost.
"""

import hashlib
import logging
import sys
from pathlib import Path
from typing import IO

import msgspec

from fairsched.engines.gateway.config import ConfigError
from fairsched.engines.gateway.window import WINDOW, Window
from fairsched.engines.serving import JournalError, StateStore, Tail, read_journal
from fairsched.model.events import (
    Admitted,
    Arrived,
    Cancelled,
    ClientConfigured,
    Event,
    Finished,
    Settled,
    WorkerLeft,
)
from fairsched.model.request import Client
from fairsched.model.serialization import StateError, configuration
from fairsched.policies.base import AnyLocalPolicy

_log = logging.getLogger("fairsched.gateway")

SCHEMA = 1
"""Version of the file."""
EVENTS_MAX = 100_000
"""Events in a journal before the next snapshot."""


def alone(path: Path) -> IO[str] | None:
    """Take the file at `path` for this process, until what is returned is closed or the process ends, however it does.

    Raises `ConfigError` if another gateway has it, and `OSError` where nothing can be written beside it.  None where
    files cannot be locked (Windows).
    """
    if sys.platform == "win32":
        return None
    import fcntl

    lock = path.with_name(f"{path.name}.lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(f"state: another gateway is using {path}") from None
    return lock


class _Call(msgspec.Struct, frozen=True):
    """An open call: its prompt's estimate, and what of it was charged (0: it waits)."""

    request_id: int
    client: int
    prompt_tokens: int
    charged: int


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fairsched_gateway_state: int
    policy: dict[str, object]
    state: dict[str, object]
    clients: tuple[Client, ...]
    calls: tuple[_Call, ...]


class UsageStore(StateStore):
    """The file at `path`.  `state` and `clients` (by number) are what it holds, None and none if there is no such
    file.

    Raises `ConfigError` for a file that is broken or of another policy, and `OSError` where it cannot be read.
    """

    def __init__(self, path: Path, policy: AnyLocalPolicy) -> None:
        super().__init__(_log)
        self.path = path
        self.state: object = None
        self.clients: dict[int, Client] = {}
        self._journal = path.with_name(f"{path.name}.journal")
        self._policy = policy
        self._window: Window | None = None
        self._events = 0
        if path.exists():
            try:
                self._read()
            except (msgspec.DecodeError, UnicodeDecodeError, StateError, JournalError) as error:
                raise ConfigError(f"state: {path} cannot be read: {error}") from None

    def _read(self) -> None:
        data = self.path.read_bytes()
        file = msgspec.json.decode(data, type=_File)
        if file.fairsched_gateway_state != SCHEMA or file.policy != configuration(self._policy):
            raise ConfigError(
                f"state: {self.path} is of another policy or version: go back to what kept it, or name another file "
                "and begin without debts"
            )
        state = self._policy.state_from_json(file.state)
        tail = read_journal(self._journal)
        if tail.after != _sha256(data):
            tail = Tail()  # The snapshot was written after it, and has it all.
        clients = {client.id: client for client in (*file.clients, *tail.clients)}
        calls = {call.request_id: call for call in file.calls}
        for event in tail.events:
            try:
                state = self._policy.observe(state, event)
                _follow(calls, event)
                if isinstance(event, ClientConfigured):
                    clients[event.client] = _configured(clients[event.client], event)
            except Exception as error:
                # A file is input; and an event at which the policy was set aside is in it, too.
                raise JournalError(
                    f"{self._journal}: {type(event).__name__} at {event.time_ns} ns cannot be followed "
                    f"({type(error).__name__}: {error}); name another file and begin without debts"
                ) from None
        for call in calls.values():
            if call.charged not in (0, call.prompt_tokens):
                settled = Settled(0, WINDOW, call.request_id, call.client, call.prompt_tokens)
                state = self._policy.observe(state, settled)
        self.state = self._policy.observe(state, WorkerLeft(0, WINDOW))
        self.clients = dict(sorted(clients.items()))

    # --- what happens -----------------------------------------------------------------------------------------------

    def begin(self, window: Window) -> None:
        """Keep this window from now on.  Raises `OSError` where the file cannot be written."""
        self._window = window
        self._snapshot(window)

    def client(self, client: Client) -> None:
        """Write the next client."""
        self.clients.setdefault(client.id, client)
        self.append("client", client)

    def record(self, event: Event) -> None:
        """Write the window's next event."""
        if isinstance(event, ClientConfigured):
            self.clients[event.client] = _configured(self.clients[event.client], event)
        if self.is_open and self._window is not None:
            self.append("events", (event,))
            self._events += 1
            if self.is_open and self._events >= EVENTS_MAX and isinstance(event, Finished | Cancelled):
                try:
                    self._snapshot(self._window)
                except OSError as error:
                    self.failed(error)

    def _snapshot(self, window: Window) -> None:
        if window.guard.set_aside is not None:
            return  # Its state is of an earlier time; the journal goes on.
        calls = [_Call(each.id, each.client, each.prompt_tokens, 0) for each in window.queue]
        calls += [_Call(each.id, each.client, each.prompt_tokens, charged) for each, charged in window.flights]
        state = self._policy.state_to_json(window.guard.state)
        clients = tuple(self.clients.values())
        data = msgspec.json.encode(_File(SCHEMA, configuration(self._policy), state, clients, tuple(calls)))
        self.save(self.path, data, self._journal, _sha256(data))
        self._events = 0

    def drain(self, window: Window) -> None:
        """Close it with one snapshot that has it all: the gateway has drained."""
        if self.is_open:
            self._snapshot(window)
        self.close()


def _follow(calls: dict[int, _Call], event: Event) -> None:
    """The open calls after an event."""
    match event:
        case Arrived(request=request):
            calls[request.id] = _Call(request.id, request.client, request.prompt_tokens, 0)
        case Admitted():
            calls[event.request_id] = msgspec.structs.replace(calls[event.request_id], charged=event.extend_tokens)
        case Settled():
            known = calls[event.request_id]
            whole = max(event.extend_tokens, 1)
            calls[event.request_id] = _Call(known.request_id, known.client, whole, whole)
        case Finished() | Cancelled():
            calls.pop(event.request_id, None)


def _configured(client: Client, event: ClientConfigured) -> Client:
    return Client(client.id, client.name, event.weight, event.groups or client.place)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
