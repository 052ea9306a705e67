"""All rows and all panels, from a file for each paper."""

import re

from fairsched.reproduce import aladdin, batchllm, distserve, dlpm, larry, ours, preble, queueing, splitwise, tetriinfer
from fairsched.reproduce.row import PAPERS, Panel, Row

_FILES = {
    "dlpm": dlpm,
    "preble": preble,
    "larry": larry,
    "aladdin": aladdin,
    "batchllm": batchllm,
    "distserve": distserve,
    "splitwise": splitwise,
    "tetriinfer": tetriinfer,
    "queueing": queueing,
    "fairsched": ours,
}


def _place(row: Row) -> tuple[int, int, str]:
    """By paper in the order of the page, then by number: ids are numbers, some with letters."""
    number, letter = re.fullmatch(r"(\d+)([a-z]*)", row.id).groups()  # type: ignore[union-attr]
    return list(PAPERS).index(row.paper), int(number), letter


_FOUND = (each for file in _FILES.values() for each in vars(file).values() if isinstance(each, Row))
ROWS: dict[str, Row] = {row.id: row for row in sorted(_FOUND, key=_place)}
"""By id, paper by paper."""
PANELS: dict[str, tuple[Panel, ...]] = {name: file.PANELS for name, file in _FILES.items()}
"""All figures and tables of each paper's evaluation, by the paper's key."""
