"""A machine fitted to an access log: step times, workers, memory and scheduler. Read `fitting` first, then `refine`."""

from fairsched.engines.calibration.from_log.fitting import LIMIT, FigureError, LogFit, Parameter, fit_log
from fairsched.engines.calibration.from_log.machine import COEFFICIENTS, UNLIMITED, Machine

__all__ = ["COEFFICIENTS", "LIMIT", "UNLIMITED", "FigureError", "LogFit", "Machine", "Parameter", "fit_log"]
