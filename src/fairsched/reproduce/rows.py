"""All rows, by id."""

import re

from fairsched.reproduce import aladdin, batchllm, d2lpm, dlpm, floods, larry, preble, sal
from fairsched.reproduce.row import Row


def _place(row: Row) -> tuple[int, str]:
    """Ids are numbers, some with a letter."""
    number, letter = re.fullmatch(r"(\d+)([a-z]?)", row.id).groups()  # type: ignore[union-attr]
    return int(number), letter


ROWS: dict[str, Row] = {
    row.id: row
    for row in sorted(
        (*aladdin.ROWS, *batchllm.ROWS, *d2lpm.ROWS, *dlpm.ROWS, *floods.ROWS, *larry.ROWS, *preble.ROWS, *sal.ROWS),
        key=_place,
    )
}
"""In the order of their ids."""
