"""Queueing times by prefix, which tell E2 when one worker for a prefix is no longer enough.

Time is cut into halves of the window, and the mean wait of the half under way is compared with that of the half before
it.  A prefix is a node of the index; it is forgotten when no request of the window was brought anywhere by it.
"""

import msgspec
from immutables import Map


class Waits(msgspec.Struct, frozen=True, gc=False):
    """How long requests of one prefix waited in half `half` and the half before; it has `requests` in the window."""

    requests: int = 0
    half: int = 0
    count: int = 0
    wait_ns: int = 0
    count_before: int = 0
    wait_before_ns: int = 0

    def at(self, half: int) -> "Waits":
        """The same in a later half.  O(1)."""
        if half <= self.half:
            return self
        if half == self.half + 1:
            return Waits(self.requests, half, 0, 0, self.count, self.wait_ns)
        return Waits(self.requests, half)

    def doubled(self, half: int, floor_ns: int) -> bool:
        """Whether the mean wait of this half is at least twice that of the half before, and at least `floor_ns`.

        Both halves must have seen somebody; means are compared exactly.  O(1).
        """
        now = self.at(half)
        if not now.count or not now.count_before:
            return False
        doubled = now.wait_ns * now.count_before >= 2 * now.wait_before_ns * now.count
        return doubled and now.wait_ns >= floor_ns * now.count


NO_WAITS = Waits()
ByPrefix = Map[int, Waits]


def sent(waits: ByPrefix, prefix: int) -> ByPrefix:
    """With a request more that the prefix brought to a worker.  O(log n)."""
    old = waits.get(prefix, NO_WAITS)
    return waits.set(prefix, msgspec.structs.replace(old, requests=old.requests + 1))


def gone(waits: ByPrefix, prefix: int) -> ByPrefix:
    """With one less in the window; a prefix without any is forgotten.  O(log n)."""
    old = waits[prefix]
    if old.requests == 1:
        return waits.delete(prefix)
    return waits.set(prefix, msgspec.structs.replace(old, requests=old.requests - 1))


def waited(waits: ByPrefix, prefix: int, half: int, wait_ns: int) -> ByPrefix:
    """With a request that was admitted in this half after `wait_ns`.  O(log n)."""
    old = waits.get(prefix)
    if old is None:
        return waits
    now = old.at(half)
    count, total = now.count + 1, now.wait_ns + wait_ns
    return waits.set(prefix, Waits(now.requests, now.half, count, total, now.count_before, now.wait_before_ns))


def begun_anew(waits: ByPrefix, prefix: int) -> ByPrefix:
    """The prefix has a worker more: what was measured without it no longer counts.  O(log n)."""
    return waits.set(prefix, Waits(waits[prefix].requests)) if prefix in waits else waits
