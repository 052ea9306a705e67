"""What clients owe, kept through restarts in a file: a gateway that is killed forgives no client.

The file is a snapshot of the policy's state, written whole; beside it a journal (`engines.serving.state.journal`) has
every event since, each written before a byte of what it is about goes on to a caller.  A restart goes on from both:
calls in flight are charged the whole estimate of their prompts and the output that passed up to the last tick, and
those that waited never were.  Written without waiting for the disk: what the machine itself loses when it
dies is lost.

A file that is damaged refuses no start: what can be read is gone on from, the damaged file is kept beside it as
`FILE.damaged-1`, and log and status say so.  A disk that takes no more refuses nothing, either: the gateway serves on,
tries again once a minute, and a restart until then goes back to what was written last.
"""

import errno
import hashlib
import logging
import sys
from itertools import count
from pathlib import Path
from typing import IO

import msgspec

from fairsched.engines.gateway.window import WINDOW, Window
from fairsched.engines.serving import Document, StateStore, Tail, read_journal
from fairsched.engines.settings import ConfigError
from fairsched.model import events as ev
from fairsched.model.request import Client
from fairsched.model.serialization import StateError, configuration
from fairsched.policies.base import AnyLocalPolicy

_log = logging.getLogger("fairsched.gateway")

SCHEMA = 1
"""Version of the file."""
EVENTS_MAX = 100_000
"""Events in a journal before the next snapshot."""
AGAIN_NS = 60 * 10**9
"""A disk that took no more is tried again after so long."""


def alone(path: Path) -> IO[str] | None:
    """Take the file at `path` for this process, until what is returned is closed or the process ends, however it does.

    Raises `ConfigError` if another gateway has it, and `OSError` where nothing can be written beside it.  None where
    files cannot be locked (Windows), or the disk is full.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        lock = path.with_name(f"{path.name}.lock").open("a")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _log.error("state: %s is not locked: %s", path, error)
        return None
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
    file; `damage` says what of it could not be read.

    Raises `ConfigError` for a file of another policy or version, and `OSError` where it cannot be read at all.
    """

    def __init__(self, path: Path, policy: AnyLocalPolicy) -> None:
        super().__init__(_log)
        self.path = path
        self.state: object = None
        self.clients: dict[int, Client] = {}
        self.damage: str | None = None
        self._damaged: list[Path] = []
        self._journal = path.with_name(f"{path.name}.journal")
        self._policy = policy
        self._window: Window | None = None
        self._events = 0
        self._now_ns = self._failed_ns = 0
        if path.exists():
            try:
                self._read()
            except (msgspec.DecodeError, UnicodeDecodeError, StateError) as error:
                self._damage(path, f"{path} cannot be read, and every debt in it is forgotten: {error}")
                if self._journal.exists():
                    self._damaged.append(self._journal)

    def _damage(self, path: Path, why: str) -> None:
        _log.error("state: %s", why)
        self.damage = why
        self._damaged.append(path)

    def _read(self) -> None:
        data = self.path.read_bytes()
        file = msgspec.json.decode(data, type=_File)
        if file.fairsched_gateway_state != SCHEMA or file.policy != configuration(self._policy):
            raise ConfigError(
                f"state: {self.path} is of another policy or version: go back to what kept it, or name another file "
                "and begin without debts"
            )
        state = self._policy.state_from_json(file.state)
        tail = read_journal(self._journal, lenient=True)
        if tail.damage is not None and tail.after in ("", _sha256(data)):
            self._damage(self._journal, f"{tail.damage}; what clients were charged from there on is forgotten")
        if tail.after != _sha256(data):
            tail = Tail()  # The snapshot was written after it, and has it all.
        clients = {client.id: client for client in (*file.clients, *tail.clients)}
        calls = {call.request_id: call for call in file.calls}
        for event in tail.events:
            try:
                after = self._policy.observe(state, event)
                _follow(calls, event)
                if isinstance(event, ev.ClientConfigured):
                    clients[event.client] = _configured(clients[event.client], event)
            except Exception as error:
                # A file is input; and an event at which the policy was set aside is in it, too.
                what = f"{type(event).__name__} at {event.time_ns} ns cannot be followed"
                why = f"{self._journal}: {what} ({type(error).__name__}: {error})"
                self._damage(self._journal, f"{why}; what clients were charged from there on is forgotten")
                break
            state = after
        for call in calls.values():
            if call.charged not in (0, call.prompt_tokens):
                settled = ev.Settled(0, WINDOW, call.request_id, call.client, call.prompt_tokens)
                state = self._policy.observe(state, settled)
        self.state = self._policy.observe(state, ev.WorkerLeft(0, WINDOW))
        self.clients = dict(sorted(clients.items()))

    # --- what happens -----------------------------------------------------------------------------------------------

    def begin(self, window: Window) -> None:
        """Keep this window from now on."""
        self._window = window
        try:
            self._snapshot(window)
        except OSError as error:
            self.failed(error)

    def status(self) -> Document:
        """Return what went wrong with the file as plain JSON values."""
        failure = None if self.failure is None else str(self.failure)
        return {"state": {"written": self.is_open, "failure": failure, "damage": self.damage}}

    def client(self, client: Client) -> None:
        """Write the next client."""
        self.clients.setdefault(client.id, client)
        self.append("client", client)

    def record(self, event: ev.Event) -> None:
        """Write the window's next event."""
        if isinstance(event, ev.ClientConfigured):
            self.clients[event.client] = _configured(self.clients[event.client], event)
        self._now_ns = event.time_ns
        if self._window is None:
            return
        if self.is_open:
            self.append("events", (event,))
            self._events += 1
        due = self._events >= EVENTS_MAX if self.is_open else self._now_ns >= self._failed_ns + AGAIN_NS
        if due and isinstance(event, ev.Finished | ev.Cancelled):
            try:
                self._snapshot(self._window)
            except OSError as error:
                self.failed(error)

    def failed(self, error: OSError) -> None:
        """Write no more for a while, since the disk takes no more."""
        super().failed(error)
        self._failed_ns = self._now_ns

    def _snapshot(self, window: Window) -> None:
        if window.guard.set_aside is not None:
            return  # Its state is of an earlier time; the journal goes on.
        calls = [_Call(each.id, each.client, each.prompt_tokens, 0) for each in window.queue]
        calls += [_Call(each.id, each.client, each.prompt_tokens, charged) for each, charged in window.flights]
        state = self._policy.state_to_json(window.guard.state)
        clients = tuple(self.clients.values())
        data = msgspec.json.encode(_File(SCHEMA, configuration(self._policy), state, clients, tuple(calls)))
        aside = {each: _free_name(each) for each in dict.fromkeys(self._damaged)}
        try:
            for each, name in aside.items():
                each.rename(name)
            self.save(self.path, data, self._journal, _sha256(data))
        except OSError:
            # A restart goes on from them as this one did.
            for each, name in aside.items():
                if name.exists() and not each.exists():
                    name.rename(each)
            raise
        for name in aside.values():
            _log.error("state: a damaged file is kept as %s", name)
        self._events, self._damaged = 0, []

    def drain(self, window: Window) -> None:
        """Close it with one snapshot that has it all: the gateway has drained."""
        if self.is_open or self.failure is not None:
            try:
                self._snapshot(window)
            except OSError as error:
                self.failed(error)
        self.close()


def _follow(calls: dict[int, _Call], event: ev.Event) -> None:
    """Follow an event with the open calls."""
    match event:
        case ev.Arrived(request=request):
            calls[request.id] = _Call(request.id, request.client, request.prompt_tokens, 0)
        case ev.Admitted():
            calls[event.request_id] = msgspec.structs.replace(calls[event.request_id], charged=event.extend_tokens)
        case ev.Settled():
            known = calls[event.request_id]
            whole = max(event.extend_tokens, 1)
            calls[event.request_id] = _Call(known.request_id, known.client, whole, whole)
        case ev.Finished() | ev.Cancelled():
            calls.pop(event.request_id, None)


def _configured(client: Client, event: ev.ClientConfigured) -> Client:
    return Client(client.id, client.name, event.weight, event.groups or client.place)


def _free_name(path: Path) -> Path:
    """Return a name beside the file that no file has."""
    names = (path.with_name(f"{path.name}.damaged-{i}") for i in count(1))
    return next(name for name in names if not name.exists())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
