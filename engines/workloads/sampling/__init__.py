"""What generators draw from: arrivals, popularity, tokens, programs, and the scale of a workload. Read `arrivals`
first.
"""

from fairsched.engines.workloads.sampling.auto_rate import ONE_WORKER, AutoRate, rate_cautions, saturation
from fairsched.engines.workloads.sampling.distributions import (
    apportioned,
    arrivals_ns,
    lengths,
    spread_lengths,
    uniform_ns,
    zipf_counts,
)
from fairsched.engines.workloads.sampling.programs import (
    Arrivals,
    Clients,
    Gaps,
    GapSpread,
    LlmCall,
    Misbehave,
    Number,
    Program,
    Rate,
    RequestRate,
    Requests,
    Size,
    Timing,
    about,
    check_limit,
    client_names,
    rate_notes,
    rate_ratio,
    scaled_ns,
    streams,
    workload_of,
)
from fairsched.engines.workloads.sampling.tokens import EMPTY_TEXT, Text, Tokens, TokenSource, prompt_of

__all__ = [
    "EMPTY_TEXT", "ONE_WORKER", "Arrivals", "AutoRate", "Clients", "GapSpread", "Gaps", "LlmCall", "Misbehave",
    "Number", "Program", "Rate", "RequestRate", "Requests", "Size", "Text", "Timing", "TokenSource", "Tokens", "about",
    "apportioned", "arrivals_ns", "check_limit", "client_names", "lengths", "prompt_of", "rate_cautions", "rate_notes",
    "rate_ratio", "saturation", "scaled_ns", "spread_lengths", "streams", "uniform_ns", "workload_of", "zipf_counts"
]  # fmt: skip
