"""All rows, by id."""

from fairsched.reproduce import dlpm
from fairsched.reproduce.row import Row

ROWS: dict[str, Row] = {row.id: row for row in sorted(dlpm.ROWS, key=lambda row: int(row.id))}
"""In the order of their ids, which are numbers."""
