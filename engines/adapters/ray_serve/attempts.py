"""Which tries of which calls are under way at a handle, and what each of Serve's callbacks means for them.

Serve tries a call again when a replica rejects it or dies before it took it.  A try that was given up still completes,
some time later, and so does one of another call of the same id (calls that a call makes share it); so tries are told
apart by the call's own object where Serve passes it, and by id and replica, oldest first, where it does not.
"""

from collections.abc import Hashable

import attrs


@attrs.define(eq=False)
class Attempt:
    """A try of a call: the connection's ticket, the replica, the id in Serve, and whether the replica took it, and
    whether it is over."""

    call: int
    ticket: int
    replica: Hashable
    name: str
    routed: bool = False
    completed: bool = False


class Attempts:
    """Tries under way.  `certain`: replicas may reject calls, and say when they take one."""

    def __init__(self, *, certain: bool) -> None:
        self.certain = certain
        self._current: dict[int, Attempt] = {}
        self._sent: dict[tuple[str, Hashable], list[Attempt | None]] = {}

    def __len__(self) -> int:
        return sum(len(attempts) for attempts in self._sent.values())

    def sent(self, attempt: Attempt) -> None:
        self._current[attempt.call] = attempt
        self._sent.setdefault((attempt.name, attempt.replica), []).append(attempt)

    def again(self, call: int) -> Attempt | None:
        """Return the try that came to nothing of a call that is tried again.  Its completion means nothing."""
        attempt = self._current.pop(call, None)
        if attempt is not None and not attempt.completed:
            sent = self._sent[attempt.name, attempt.replica]
            sent[sent.index(attempt)] = None
        return attempt

    def routed(self, call: int) -> Attempt | None:
        """Note that the replica took the call; returns its try if that was over already."""
        attempt = self._current.pop(call, None)
        if attempt is None:
            return None
        attempt.routed = True
        return attempt if attempt.completed else None

    def completed(self, name: str, replica: Hashable) -> Attempt | None:
        """End the oldest try of that id at that replica.  None if it had been given up."""
        sent = self._sent.get((name, replica))
        if not sent:
            return None
        attempt = sent.pop(0)
        if not sent:
            del self._sent[name, replica]
        if attempt is not None:
            attempt.completed = True
        return attempt

    def ends(self, attempt: Attempt) -> bool:
        """Return whether the end of a try is the call's; if not, it may be tried again."""
        if attempt.routed or not self.certain:
            self.forget(attempt)
            return True
        return False

    def forget(self, attempt: Attempt) -> bool:
        """End the call if this was its last try; returns whether it was."""
        last = self._current.get(attempt.call) is attempt
        if last:
            del self._current[attempt.call]
        return last
