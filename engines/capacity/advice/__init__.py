"""Advice on a log: what it shows, what a gate would change, how sure that is, and configurations that do it. Read
`advising` first, then `effects`.
"""

from fairsched.engines.capacity.advice.advice import Advice
from fairsched.engines.capacity.advice.advising import advise
from fairsched.engines.capacity.advice.configuration import Windows, gateway_toml, write_configurations
from fairsched.engines.capacity.advice.effects import Effects
from fairsched.engines.capacity.advice.page import write_advice
from fairsched.engines.capacity.advice.window import REQUESTS, busiest_window

__all__ = [
    "REQUESTS",
    "Advice",
    "Effects",
    "Windows",
    "advise",
    "busiest_window",
    "gateway_toml",
    "write_advice",
    "write_configurations",
]
