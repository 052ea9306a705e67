"""How many workers of which size, which quantum and cap, and what a log says to do. Read `sizing` first."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.capacity.batch import BatchSummary, order_batch
    from fairsched.engines.capacity.first_token import (
        Demand,
        FirstTokenTuning,
        PromisedFirstToken,
        tune_first_token,
    )
    from fairsched.engines.capacity.highest_rate import (
        DELAY,
        METRICS,
        RESOLUTION,
        Goodput,
        RateTrial,
        SloTarget,
        bisected,
        goodput,
        nine_slos,
        outcomes_of,
        trial,
    )
    from fairsched.engines.capacity.pages import Sheet, plan_sheet, tuning_sheet
    from fairsched.engines.capacity.planning import BESIDE, CapacityPlan, plan, slo_text, worker_sizes
    from fairsched.engines.capacity.point import TunedPoint
    from fairsched.engines.capacity.quantum import Quanta, Traffic, fitting, followed
    from fairsched.engines.capacity.sizing import Sizing, fewest, line, measured
    from fairsched.engines.capacity.tuning import Tuning, fitting_to, tune
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "BESIDE", "DELAY", "METRICS", "RESOLUTION", "BatchSummary", "CapacityPlan", "Demand", "FirstTokenTuning", "Goodput",
    "PromisedFirstToken", "Quanta", "RateTrial", "Sheet", "Sizing", "SloTarget", "Traffic", "TunedPoint", "Tuning",
    "bisected", "fewest", "fitting", "fitting_to", "followed", "goodput", "line", "measured", "nine_slos",
    "order_batch", "outcomes_of", "plan", "plan_sheet", "slo_text", "trial", "tune", "tune_first_token", "tuning_sheet",
    "worker_sizes"
]  # fmt: skip
