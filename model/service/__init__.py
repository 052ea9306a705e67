"""Service that clients received and the times at which they were backlogged, as columns. Read `received` first."""

from fairsched.model.service.columns import Ints, Table, Tables, concatenate, tables
from fairsched.model.service.curve import ServiceCurve
from fairsched.model.service.ideal import IdealFinish, ideal_finishes
from fairsched.model.service.received import (
    CLIENTS_MAX,
    Charging,
    Gap,
    anywhere,
    backlogs,
    busiest,
    charges,
    corrections,
    service,
    service_gap,
)

__all__ = [
    "CLIENTS_MAX", "Charging", "Gap", "IdealFinish", "Ints", "ServiceCurve", "Table", "Tables", "anywhere", "backlogs",
    "busiest", "charges", "concatenate", "corrections", "ideal_finishes", "service", "service_gap", "tables"
]  # fmt: skip
