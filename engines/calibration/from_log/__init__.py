"""A machine fitted to an access log: step times, workers, memory, scheduler. Read `fitting` first, then `machine`."""

from fairsched.engines.calibration.from_log.fitting import SEATS, LogFit, MachineSearch, fit_log
from fairsched.engines.calibration.from_log.machine import UNLIMITED, LogMachine, Simulated
from fairsched.engines.calibration.from_log.observed import Observed, observed

__all__ = [
    "SEATS", "UNLIMITED", "LogFit", "LogMachine", "MachineSearch", "Observed", "Simulated", "fit_log", "observed",
]  # fmt: skip
