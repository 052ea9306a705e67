"""A machine fitted to an access log: step times, workers, memory, scheduler. Read `fitting` first, then `machine`."""

from fairsched.engines.calibration.from_log.fitting import LIMIT, Fitted, LogFit, fit_log
from fairsched.engines.calibration.from_log.machine import COEFFICIENTS, UNLIMITED, LogMachine

__all__ = ["COEFFICIENTS", "LIMIT", "UNLIMITED", "Fitted", "LogFit", "LogMachine", "fit_log"]
