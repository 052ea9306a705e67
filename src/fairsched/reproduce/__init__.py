# written by hand
"""Results of papers, each run again with our code: what the paper says, what comes out here, and why where it differs.

A row (`row.py`, read it first) is a figure of a paper with a band in which ours should lie.  Rows are grouped in files
by paper or subject; `ROWS` holds all of them.
"""

import re

from fairsched.reproduce import aladdin, batchllm, d2lpm, dlpm, floods, larry, routers
from fairsched.reproduce.row import Ours, Row, Say

__all__ = ["ROWS", "Ours", "Row", "Say"]


def _place(row: Row) -> tuple[int, str]:
    """Ids are numbers, some with a letter."""
    number, letter = re.fullmatch(r"(\d+)([a-z]?)", row.id).groups()  # type: ignore[union-attr]
    return int(number), letter


_FILES = (aladdin, batchllm, d2lpm, dlpm, floods, larry, routers)
_FOUND = (each for file in _FILES for each in vars(file).values() if isinstance(each, Row))
ROWS: dict[str, Row] = {row.id: row for row in sorted(_FOUND, key=_place)}
"""In the order of their ids."""
