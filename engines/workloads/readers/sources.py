"""Where lines come from: a file, standard input or a pipe, packed or not, opened once and read once.

Nothing is asked of a file but its bytes, so `-`, `/dev/fd/3` and `<(...)` are as good as a file.  gzip, bzip2, xz and
zstd are told by their first bytes, and so is UTF-16; everything else is UTF-8.
"""

import bz2
import codecs
import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

from fairsched.engines.workloads.errors import TraceError

STDIN = "-"
_HEAD_BYTES = 6
_BUFFER_BYTES = 1 << 20
LINE_BYTES_MAX = 64 << 20
"""What is longer than any line of a trace is no trace, and would fill the memory."""
_LOOKED_AT = 1_000
"""Lines in which a NUL means that this is no text."""
_NO_TEXT = {b"PK\x03\x04": "a zip archive", b"PAR1": "a Parquet file", b"SQLite": "a database", b"%PDF": "a PDF file"}

Lines = Iterator[tuple[int, str | TraceError]]
"""Each line with its number, without its end; one that is no text as the error that says so."""


class Source:
    """One log, opened; close it, and call `lines` once.

    `size` is its bytes as far as that is known (0: it is not), `done` those that were read.  Raises `TraceError` for
    what cannot be read, or is no text.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._faults: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, lzma.LZMAError)
        try:
            self._file = path.open("rb", buffering=0) if str(path) != STDIN else _standard_input()
        except OSError as error:
            raise self._error(None, "a readable file", (error.strerror or str(error)).lower()) from None
        try:
            status = os.fstat(self._file.fileno())
            self.size = status.st_size if stat.S_ISREG(status.st_mode) else 0
            self._raw = _Raw(self._file)
            self._bytes = io.BufferedReader(self._unpacked(), _BUFFER_BYTES)
            self._wide = self._bytes.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        except BaseException as error:
            self.close()
            if isinstance(error, self._faults):
                raise self._broken(None, error) from None
            raise

    def close(self) -> None:
        self._file.close()

    @property
    def done(self) -> int:
        return self._raw.done

    def lines(self) -> Lines:
        number = 0
        try:
            if self._wide:
                for number, line in enumerate(io.TextIOWrapper(self._bytes, "utf-16"), 1):
                    yield number, line.rstrip("\r\n")
                return
            for number, raw in enumerate(iter(partial(self._bytes.readline, LINE_BYTES_MAX), b""), 1):
                if len(raw) == LINE_BYTES_MAX:
                    raise self._error(number, f"lines of less than {LINE_BYTES_MAX >> 20} MiB", "a longer one")
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    yield number, self._error(number, "UTF-8 text", f"the bytes {raw[error.start :][:8]!r}")
                    continue
                if number <= _LOOKED_AT and "\0" in text:
                    raise self._error(None, "a log in text", "binary data")
                yield number, text.rstrip("\r\n")
        except UnicodeDecodeError:
            raise self._error(number + 1, "UTF-16 text", "bytes that are none") from None
        except self._faults as error:
            yield number + 1, self._broken(number + 1, error)

    def _unpacked(self) -> io.RawIOBase:
        head = self._raw.head
        for magic, what in _NO_TEXT.items():
            if head.startswith(magic):
                raise self._error(None, "a log in text", what)
        if head.startswith(b"\x1f\x8b"):
            return _Pieces(gzip.GzipFile(fileobj=self._packed()))
        if head.startswith(b"BZh"):
            return _Pieces(bz2.BZ2File(self._packed()))
        if head.startswith(b"\xfd7zXZ"):
            return _Pieces(lzma.LZMAFile(self._packed()))
        if head.startswith(b"\x28\xb5\x2f\xfd"):
            zstd = _zstd()
            if zstd is None:
                raise self._error(None, "backports.zstd, which unpacks zstd (pip install backports.zstd)", "none")
            self._faults += (zstd.ZstdError,)
            return _Pieces(zstd.ZstdFile(self._packed()))
        return self._raw

    def _packed(self) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(self._raw, _BUFFER_BYTES))

    def _broken(self, row: int | None, error: BaseException) -> TraceError:
        found = "one that is cut off" if isinstance(error, EOFError) else str(error).lower()
        return self._error(row, "a whole file", found)

    def _error(self, row: int | None, expected: str, found: str) -> TraceError:
        return TraceError(self.path, row, None, expected, found)


class _Raw(io.RawIOBase):
    """The bytes of a file, counted.  `head` is the first of them, which are read at once."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.head = b""
        while len(self.head) < _HEAD_BYTES and (more := file.read(_HEAD_BYTES - len(self.head))):
            self.head += more
        self._left = self.head
        self.done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left:
            count = min(len(self._left), len(buffer))
            buffer[:count], self._left = self._left[:count], self._left[count:]
        else:
            count = self._file.readinto(buffer) or 0
        self.done += count
        return count


class _Pieces(io.RawIOBase):
    """Unpacked bytes, piece by piece: of a file that is cut off nothing is lost that came before."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._file.read1(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


def _standard_input() -> io.FileIO:
    if sys.stdin is None:
        raise OSError("standard input is closed")
    return open(os.dup(sys.stdin.fileno()), "rb", buffering=0)


def _zstd() -> Any:
    """Return the module that unpacks zstd; None where there is none."""
    for name in ("compression.zstd", "backports.zstd"):
        with suppress(ModuleNotFoundError):
            return import_module(name)
    return None
