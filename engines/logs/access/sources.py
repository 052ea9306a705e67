"""The files of a log: names, patterns for several, and `-` for standard input."""

import os
from collections.abc import Sequence
from glob import glob
from pathlib import Path

from fairsched.engines.workloads import STDIN, Lines, Source

__all__ = ["Lines", "Source", "expanded", "title"]


def expanded(names: Sequence[str | Path]) -> tuple[Path, ...]:
    """Return the files that the names and patterns stand for.  Raises `ValueError` for a pattern that matches none."""
    found: list[Path] = []
    for name in map(str, names):
        if name == STDIN or not any(sign in name for sign in "*?[") or os.path.lexists(name):
            found.append(Path(name))
            continue
        matches = sorted(each for each in glob(name, recursive=True) if not os.path.isdir(each))
        if not matches:
            raise ValueError(f"{name}: no file matches")
        found += map(Path, matches)
    if not found:
        raise ValueError("no log is named")
    for path in found:
        if found.count(path) > 1:
            raise ValueError(f"{path}: named twice, and its requests would count twice")
    return tuple(found)


def title(files: Sequence[Path]) -> Path:
    """Return what a log in these files is called: the first and how many more, or what pipes are."""
    first = str(files[0])
    name = "standard input" if first == STDIN else "pipe" if first.startswith(("/dev/fd/", "/proc/")) else first
    return Path(name if len(files) == 1 else f"{name} and {len(files) - 1} more")
