"""Files that are whole or not there: what a run writes takes the place of an older file when it is complete."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO

_numbers = count()


class Unwritable(OSError):
    """An output cannot be written."""


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to write.  It takes its name when the block ends; after an exception the older one is as it was.

    A pipe or device, as `/dev/stdout` or a process substitution, is written to as it is, and so is a file whose folder
    takes no more files.  Raises `Unwritable`, with the file's name.
    """
    try:
        target = path.resolve() if path.is_symlink() else path
        older = target.stat() if target.exists() else None
        if older is not None and (not stat.S_ISREG(older.st_mode) or not os.access(target.parent, os.W_OK)):
            with target.open("wb") as file:
                yield file
            return
        part = target.parent / f".fairsched-{os.getpid()}-{next(_numbers)}.part"
        try:
            with part.open("xb") as file:
                yield file
            if older is not None:
                part.chmod(stat.S_IMODE(older.st_mode))
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unwritable(f"{path} cannot be written: {error.strerror or error}") from None


def write_whole(path: Path, content: bytes | str, *, sync: bool = False) -> None:
    """Write a file that is whole or not there; with `sync` also after a crash of the machine.  Raises `Unwritable`."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    if sync:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def check_file(path: Path) -> None:
    """Raise `Unwritable` for a file that could not be written, before the work that it is for."""
    folder = path.parent
    if path.is_dir():
        raise Unwritable(f"{path} is a folder")
    if not folder.is_dir():
        raise Unwritable(f"there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise Unwritable(f"{path} may not be written")


def make_folder(path: Path) -> None:
    """Make a folder and those above it.  Raises `Unwritable` where that fails, or no file can be made in it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unwritable(f"{path} cannot be made: {error.strerror}") from None
    if not os.access(path, os.W_OK):
        raise Unwritable(f"no file can be made in {path}")
