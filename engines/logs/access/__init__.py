"""The log of a server, proxy or gateway, a row for each request that ended. Read `access_log` first, then `columns`."""

from fairsched.engines.logs.access.access_log import AccessLog, Progress, read_access_log
from fairsched.engines.logs.access.columns import FIELDS, Columns, read_map
from fairsched.engines.logs.access.values import UNKNOWN, Outcome

__all__ = ["FIELDS", "UNKNOWN", "AccessLog", "Columns", "Outcome", "Progress", "read_access_log", "read_map"]
