"""A snapshot: everything about one engine that a restart must not lose, in one file that is whole or is not there.

Losing a policy's state forgives every debt, so a snapshot has it, with the policy's configuration (a state is read by
the policy that kept it), the worker's books, the clients by name and number, and of each open request its tokens.

A first line says how long the rest is and its SHA-256; the rest is one JSON document:

    {"fairsched_snapshot": 1, "fairsched": "0.1.0", "bytes": 12345, "sha256": "..."}
    {"policy": {...}, "state": {...}, "worker": {...}, "clients": [...], "open": [...], ...}

Tokens are four bytes each, little-endian, as base64.  What happened since a snapshot is for
`engines.serving.state.journal`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import msgspec
import numpy as np

from fairsched.engines.serving.executor import Sampling
from fairsched.model.request import Client
from fairsched.model.serialization import StateError, configuration, from_json, to_json
from fairsched.model.worker import WorkerState
from fairsched.policies.base import AnyLocalPolicy

SCHEMA = 1
"""Version of the file; it grows when something in it changes its meaning."""


class SnapshotError(ValueError):
    """A file that is no whole snapshot; the message says what was expected and what is there."""


class OtherPolicyError(SnapshotError):
    """The snapshot of another policy, or of the same with other parameters.

    `configuration` is the one that kept the state.  Build that policy, restore with it, and migrate its state to the
    new one (`fairsched.policies.local.state_transfer`); nothing is forgiven then.
    """

    def __init__(self, message: str, configuration: Any) -> None:
        super().__init__(message)
        self.configuration = configuration


class Open(msgspec.Struct, frozen=True):
    """A request without an end: its prompt, the tokens that it has produced, and how it samples."""

    request_id: int
    prompt_ids: bytes
    sampling: Sampling
    tokens: bytes = b""


class SavedEngine(msgspec.Struct, frozen=True):
    """An engine between two steps, as values.  `next_id` is larger than every request's id so far."""

    policy_state: Any
    worker: WorkerState
    clients: tuple[Client, ...] = ()
    open: tuple[Open, ...] = ()
    next_id: int = 0
    now_ns: int = 0


class _Header(msgspec.Struct, frozen=True):
    fairsched_snapshot: int
    fairsched: str
    bytes: int
    sha256: str


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    policy: dict[str, object]
    state: dict[str, object]
    worker: dict[str, object]
    clients: tuple[Client, ...]
    open: tuple[Open, ...]
    next_id: int
    now_ns: int


def packed(token_ids: Sequence[int]) -> bytes:
    """Return tokens as a snapshot holds them."""
    return np.asarray(token_ids, dtype="<i4").tobytes()


def unpacked(tokens: bytes) -> list[int]:
    """Return the tokens of `packed`."""
    found: list[int] = np.frombuffer(tokens, dtype="<i4").tolist()
    return found


def snapshot(policy: AnyLocalPolicy, saved: SavedEngine) -> bytes:
    """Return the snapshot of an engine that this policy serves.  O(state).

    Raises `ValueError` for a policy whose configuration holds something that is no value.
    """
    body = msgspec.json.encode(
        _Body(
            configuration(policy),
            policy.state_to_json(saved.policy_state),
            to_json(saved.worker),
            saved.clients,
            saved.open,
            saved.next_id,
            saved.now_ns,
        )
    )
    header = _Header(SCHEMA, metadata.version("fairsched"), len(body), hashlib.sha256(body).hexdigest())
    return msgspec.json.encode(header) + b"\n" + body


def restore(data: bytes, policy: AnyLocalPolicy) -> SavedEngine:
    """Return what a snapshot holds.  Raises `OtherPolicyError` if another policy kept it, `SnapshotError` if it is
    broken."""
    body = _body(data)
    here = configuration(policy)
    if body.policy != here:
        raise OtherPolicyError(
            f"this is the state of another policy ({'; '.join(_differences(body.policy, here))}): restore it with the "
            "policy that kept it and migrate it to this one",
            body.policy,
        )
    try:
        state, worker = policy.state_from_json(body.state), from_json(WorkerState, body.worker)
    except StateError as error:
        raise SnapshotError(f"the snapshot's state cannot be read: {error}") from error
    return SavedEngine(state, worker, body.clients, body.open, body.next_id, body.now_ns)


def sha256_of(data: bytes) -> str:
    """Return the hash in a snapshot's first line, by which a journal names the snapshot that it goes on from."""
    return _header(data)[0].sha256


def _body(data: bytes) -> _Body:
    header, raw = _header(data)
    if len(raw) < header.bytes:
        raise SnapshotError(f"the snapshot is cut off: {len(raw)} of {header.bytes} bytes are there")
    if len(raw) > header.bytes or hashlib.sha256(raw).hexdigest() != header.sha256:
        raise SnapshotError("the snapshot was changed: its hash is another than its first line says")
    try:
        return msgspec.json.decode(raw, type=_Body)
    except msgspec.DecodeError as error:
        raise SnapshotError(f"the snapshot breaks its format: {error}") from error


def _header(data: bytes) -> tuple[_Header, bytes]:
    line, _, raw = data.partition(b"\n")
    try:
        header = msgspec.json.decode(line, type=_Header)
    except msgspec.DecodeError as error:
        raise SnapshotError("this is no snapshot of fairsched: its first line names no schema") from error
    if header.fairsched_snapshot != SCHEMA:
        raise SnapshotError(
            f"this library reads snapshots of schema {SCHEMA}, and this one has {header.fairsched_snapshot} "
            f"(written by fairsched {header.fairsched})"
        )
    return header, raw


def _differences(kept: object, here: object, where: str = "") -> list[str]:
    """Return the places in which two configurations differ."""
    if isinstance(kept, Mapping) and isinstance(here, Mapping) and kept.get("class") == here.get("class"):
        keys = sorted(kept.keys() | here.keys())
        return [line for key in keys for line in _differences(kept.get(key), here.get(key), f"{where}{key}.")]
    if isinstance(kept, Mapping) and isinstance(here, Mapping):
        kept, here = kept.get("class"), here.get("class")
    return [] if kept == here else [f"{where.rstrip('.') or 'policy'} is {kept} there and {here} here"]
