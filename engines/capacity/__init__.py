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
        SloTarget,
        goodput,
        nine_slos,
        outcomes_of,
        trial,
    )
    from fairsched.engines.capacity.pages import Sheet, plan_sheet, tuning_sheet
    from fairsched.engines.capacity.planning import BESIDE, CapacityPlan, Per, plan, worker_sizes
    from fairsched.engines.capacity.quantum import Traffic, fitting, followed
    from fairsched.engines.capacity.sizing import fewest, line, measured
    from fairsched.engines.capacity.tuning import Tuning, fitting_to, tune
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "BESIDE", "DELAY", "METRICS", "RESOLUTION", "BatchSummary", "CapacityPlan", "Demand", "FirstTokenTuning", "Goodput",
    "Per", "PromisedFirstToken", "Sheet", "SloTarget", "Traffic", "Tuning", "fewest", "fitting", "fitting_to",
    "followed", "goodput", "line", "measured", "nine_slos", "order_batch", "outcomes_of", "plan", "plan_sheet",
    "trial", "tune", "tune_first_token", "tuning_sheet", "worker_sizes"
]  # fmt: skip
