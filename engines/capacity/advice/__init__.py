"""Advice on a log: what it shows, what a gate would change, how sure that is, and configurations that do it. Read
`advising` first, then `effects`.
"""

from fairsched.engines.capacity.advice.advice import Advice
from fairsched.engines.capacity.advice.advising import advise
from fairsched.engines.capacity.advice.configuration import Windows, write_configurations
from fairsched.engines.capacity.advice.page import write_advice

__all__ = ["Advice", "Windows", "advise", "write_advice", "write_configurations"]
