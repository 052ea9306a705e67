"""The simulator held against a machine: step times measured, fitted and validated. Read `workbench` first."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.calibration.calibrator import Calibration
    from fairsched.engines.calibration.ground_truth import hold, read_experiments
    from fairsched.engines.calibration.imports import Format, Machine, import_machine
    from fairsched.engines.calibration.performance_fit import (
        Estimate,
        PerformanceFit,
        asked,
        fit_performance,
        scaled_latency,
    )
    from fairsched.engines.calibration.validation import Fidelity, RunFigures, with_slo
    from fairsched.engines.calibration.workbench import Workbench, calibrate, page_tokens_of, validate
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "Calibration", "Estimate", "Fidelity", "Format", "Machine", "PerformanceFit", "RunFigures", "Workbench", "asked",
    "calibrate", "fit_performance", "hold", "import_machine", "page_tokens_of", "read_experiments", "scaled_latency",
    "validate", "with_slo"
]  # fmt: skip
