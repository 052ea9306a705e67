"""The composed policy of one worker: its queue, the rules of admission, what may be done about a refusal (displacing,
swapping, pausing), and what changes while it runs. Read `policy` first, then `admission` and `state`.
"""

from fairsched.policies.local.adapters import LORA_DRAIN, LORA_PAST, AdapterSlots
from fairsched.policies.local.admission import AdmissionPass
from fairsched.policies.local.parameters import Value, changed, parameters, parts_with, settable
from fairsched.policies.local.policy import ComposedPolicy
from fairsched.policies.local.predicted_batches import P_S3_1, PredictedBatches, SimilarLength
from fairsched.policies.local.preemption import displaced
from fairsched.policies.local.programs import P_PROG_FITS, P_PROG_SERVES, P_PROG_SHARE, ProgramPlaces
from fairsched.policies.local.reservation import Foreseen
from fairsched.policies.local.state import AnyLocalState, LocalState
from fairsched.policies.local.state_transfer import MigrationError, keep_debts, migrate
from fairsched.policies.local.swapping import swapping_step

__all__ = [
    "LORA_DRAIN", "LORA_PAST", "P_PROG_FITS", "P_PROG_SERVES", "P_PROG_SHARE", "P_S3_1", "AdapterSlots",
    "AdmissionPass", "AnyLocalState", "ComposedPolicy", "Foreseen", "LocalState", "MigrationError", "PredictedBatches",
    "ProgramPlaces", "SimilarLength", "Value", "changed", "displaced", "keep_debts", "migrate", "parameters",
    "parts_with", "settable", "swapping_step"
]  # fmt: skip
