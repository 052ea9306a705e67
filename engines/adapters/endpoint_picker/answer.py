"""A call that has its place: its answer is read as it passes, and the picker is told its end once."""

from collections.abc import Mapping

from fairsched.engines.adapters.endpoint_picker.picker import Picked, Picker
from fairsched.engines.gateway import StreamReader, Usage
from fairsched.engines.gateway.openai import Form, UnreadableReader, WholeReader, unpacked

_LATE = (408, 499, 504)
"""Statuses of calls that were given up while a server may have worked on them."""


class PickedCall:
    """A call at its endpoint, from `Picker.pick` to the end of its answer, whose stream has this form.

    `most_output` tokens are declared.
    """

    def __init__(self, picker: Picker, picked: Picked, most_output: int, form: Form = "choices") -> None:
        self.status = 0
        self._picker = picker
        self._picked: Picked | None = picked
        self._most_output = most_output
        self._form = form
        self._unpack = unpacked("")
        self._reader: StreamReader | WholeReader | UnreadableReader | None = None

    def served(self, endpoint: str) -> None:
        """Count which endpoint answers."""
        if self._picked is not None:
            self._picker.served(self._picked, endpoint)

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Read the head of the answer; names of headers are lower-case."""
        self.status = status
        length = headers.get("content-length", "")
        if length.isdecimal() and len(length) < 12:
            # A token has a byte at least.
            self._most_output = min(self._most_output, int(length))
        if headers.get("content-type", "").startswith("text/event-stream"):
            self._reader = StreamReader(self._form)
        else:
            self._reader = WholeReader(self._most_output, self._picker.config.bytes_per_token)
        self._unpack = unpacked(headers.get("content-encoding", ""))

    def read(self, chunk: bytes) -> None:
        """Count what bytes of the answer bring."""
        if self._unpack is not None:
            try:
                chunk = self._unpack(chunk)
            except ValueError:
                self._unpack, self._reader = None, UnreadableReader(self._most_output)
        tokens = 0 if self._reader is None else self._reader.pass_on(chunk)[0]
        if tokens and self._picked is not None:
            self._picker.produced(self._picked, tokens)

    def finish(self, *, seen: bool = True) -> None:
        """End a call whose answer is whole; where that was not `seen`, it came to all that it may be."""
        if self.status in _LATE:
            self.close()
        picked, self._picked = self._picked, None
        if picked is None:
            return
        if self.status >= 400:
            self._picker.give_back(picked)
        else:
            unseen = Usage(None, self._most_output)
            self._picker.finish(picked, self._reader.usage if seen and self._reader is not None else unseen)

    def close(self) -> None:
        """End a call whose answer broke off, unless it has ended."""
        picked, self._picked = self._picked, None
        if picked is not None:
            self._picker.leave(picked, None if self._reader is None else self._reader.usage)
