"""Service that clients received and the times at which they were backlogged, as columns. Read `received` first."""

from fairsched.model.service.columns import Ints, Table, Tables, concatenate, tables
from fairsched.model.service.received import (
    CLIENTS_MAX,
    Charging,
    Gap,
    anywhere,
    backlogs,
    busiest,
    charges,
    corrections,
    overlap,
    prompt_hits,
    service,
    service_gap,
)
from fairsched.model.service.servers import ServiceCurve, ideal_finishes

__all__ = [
    "CLIENTS_MAX", "Charging", "Gap", "Ints", "ServiceCurve", "Table", "Tables", "anywhere", "backlogs", "busiest",
    "charges", "concatenate", "corrections", "ideal_finishes", "overlap", "prompt_hits", "service", "service_gap",
    "tables"
]  # fmt: skip
