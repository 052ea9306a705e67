"""The log of a server, proxy or gateway, a row for each request that ended. Read `access_log` first, then `reading`."""

from fairsched.engines.logs.access.access_log import AccessLog
from fairsched.engines.logs.access.columns import FIELDS, Columns, read_map
from fairsched.engines.logs.access.filters import Filters, When, only
from fairsched.engines.logs.access.presets import PRESETS
from fairsched.engines.logs.access.reading import Paths, Progress, looks_like_access_log, read_access_log
from fairsched.engines.logs.access.row_reader import NO_NAME
from fairsched.engines.logs.access.rows import expanded
from fairsched.engines.logs.access.suggest import suggest_map
from fairsched.engines.logs.access.values import UNKNOWN, Ending, ValueFault, length_reader

__all__ = [
    "FIELDS", "NO_NAME", "PRESETS", "UNKNOWN", "AccessLog", "Columns", "Ending", "Filters", "Paths", "Progress",
    "ValueFault", "When", "expanded", "length_reader", "looks_like_access_log", "only", "read_access_log", "read_map",
    "suggest_map"
]  # fmt: skip
