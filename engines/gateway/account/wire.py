"""A connection between a process and the account: frames out once a turn of the loop, messages in as they come.

All that is said in one turn of the event loop goes out as one frame.  While the other end does not read, nothing is
written: what is said waits here, and `writable` says when it may go on.  Both ends say an empty frame every second, and
one that heard nothing for `SILENCE_BEATS` of its own beats ends the connection; a process that was itself stopped has
not counted.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import msgspec

from fairsched.engines.gateway.account.messages import FRAME_MAX, frame

_log = logging.getLogger("fairsched.gateway")

BEAT_SECONDS = 1.0
SILENCE_BEATS = 30
BACKLOG_MAX = 16 << 20
"""Bytes of answers that wait for a process; one that does not read them is cut off."""


class Wire(asyncio.Protocol):
    """One end.  `heard` gets each message, in order; what it raises ends the connection.  `lost` is called once."""

    def __init__(
        self, decoder: "msgspec.msgpack.Decoder[Any]", heard: Callable[[Any], None], lost: Callable[[], None]
    ) -> None:
        self._decoder = decoder
        self._heard = heard
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._in = bytearray()
        self._out: list[Any] = []
        self._scheduled = self._spoke = False
        self._silent = 0
        self._beats: asyncio.TimerHandle | None = None
        self.writable = asyncio.Event()
        """Set while the other end reads."""
        self.why = ""
        """Why this end closed the connection, if it did."""
        self.silent = False
        """Whether that is because nothing was heard."""

    # --- out --------------------------------------------------------------------------------------------------------

    def say(self, message: Any) -> None:
        """Send a message with what else is said in this turn of the loop.  After the end nothing is sent."""
        self._out.append(message)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    @property
    def backlog(self) -> int:
        """Bytes that wait for the other end to read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def flush(self) -> None:
        """Send what was said, if the other end reads."""
        self._scheduled = False
        if self._out and self._transport is not None and self.writable.is_set():
            messages, self._out = self._out, []
            self._write(frame(messages))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._spoke = True
            self._transport.write(data)

    def close(self, why: str) -> None:
        """Send what was said, and end the connection."""
        if self._transport is not None:
            self.why = self.why or why
            self.flush()
            self._transport.close()

    def abort(self, why: str) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self.why = self.why or why
            self._transport.abort()

    # --- what the loop calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.resume_writing()
        self._beats = self._loop.call_later(BEAT_SECONDS, self._beat)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._out.clear()
        if self._beats is not None:
            self._beats.cancel()
        # Nothing is written any more, so nothing has to wait for it.
        self.writable.set()
        self._lost()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._silent = 0
        self._in += data
        at = 0
        try:
            while len(self._in) - at >= 4 and self._transport is not None:
                length = int.from_bytes(self._in[at : at + 4], "big")
                if length > FRAME_MAX:
                    raise ValueError(f"a frame of {length} bytes, and {FRAME_MAX} may be")
                if len(self._in) - at - 4 < length:
                    break
                messages = self._decoder.decode(memoryview(self._in)[at + 4 : at + 4 + length])
                at += 4 + length
                for message in messages:
                    self._heard(message)
        except (ValueError, msgspec.MsgspecError) as error:
            self.close(str(error))
            return
        del self._in[:at]

    def _beat(self) -> None:
        if not self._spoke and self.writable.is_set():
            self._write(frame([]))
        self._spoke = False
        self._silent += 1
        if self._silent > SILENCE_BEATS:
            self.silent = True
            self.abort(f"nothing was heard for {SILENCE_BEATS * BEAT_SECONDS:.0f} s")
        else:
            self._beats = self._loop.call_later(BEAT_SECONDS, self._beat)
