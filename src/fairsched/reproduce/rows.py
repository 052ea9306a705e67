"""All rows, by id."""

from fairsched.reproduce import dlpm, larry, sal
from fairsched.reproduce.row import Row

ROWS: dict[str, Row] = {
    row.id: row for row in sorted((*dlpm.ROWS, *larry.ROWS, *sal.ROWS), key=lambda row: int(row.id))
}
"""In the order of their ids, which are numbers."""
