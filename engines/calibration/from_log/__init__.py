"""A machine fitted to an access log: step times, workers, memory, scheduler. Read `fitting` first, then `machine`."""

from fairsched.engines.calibration.from_log.fitting import LogFit, MachineSearch, fit_log
from fairsched.engines.calibration.from_log.machine import UNLIMITED, LogMachine, Simulated
from fairsched.engines.calibration.from_log.observed import Observed, observed

__all__ = ["UNLIMITED", "LogFit", "LogMachine", "MachineSearch", "Observed", "Simulated", "fit_log", "observed"]
