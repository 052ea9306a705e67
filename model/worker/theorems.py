"""What is proved of one worker: its memory is never promised twice, on the device, on the host, or while KV moves."""

from fairsched.model.theorem import Theorem

_CODE = (
    "this library; the shipped text of model/worker/transitions.py on symbolic integers, one request beside any others"
)
_TRANSIT = (
    "this library; the shipped text of model/worker/transit.py on symbolic integers, one request beside any others"
)
_HOST = (
    "this library; the shipped text of model/worker/host_memory.py and model/worker/transitions.py on symbolic integers"
)
KV_SUM = Theorem(
    "KV-sum",
    "the KV promised to all running requests and the protected part of the prefix cache never exceed the capacity",
    "this library; for any number of requests, each step known by what the worker's text is shown to do",
    bound="kv_capacity_tokens",
    rests_on=("KV-takers", "KV-admit", "KV-prefill", "KV-grow", "KV-leap", "KV-pause", "KV-release"),
)
KV_TAKERS = Theorem(
    "KV-takers",
    "the worker's count of requests that take a token a step is how many there are",
    "this library; for any number of requests, each step known by what the worker's text is shown to do",
    rests_on=("KV-prefill", "KV-pause", "KV-release"),
)
KV_ADMIT = Theorem("KV-admit", "an admission that does not fit is refused, and another promises what it says", _CODE)
KV_PREFILL = Theorem("KV-prefill", "the last chunk moves the prompt from the request's promise into the cache", _CODE)
KV_GROW = Theorem(
    "KV-grow",
    "a step begins only if there is room for the token that each request without a reservation may take, and decoding "
    "takes one for each of these that decode",
    _CODE,
)
KV_LEAP = Theorem(
    "KV-leap",
    "each step of the longest leap over decode steps has room for what it takes, and takes what one step does",
    _CODE,
)
KV_PAUSE = Theorem(
    "KV-pause",
    "a request that is paused keeps what it was promised and takes nothing more, until it is resumed",
    _CODE,
)
KV_RELEASE = Theorem("KV-release", "a request that leaves gives back all that it was promised", _CODE)
MEMORY = (KV_SUM, KV_TAKERS, KV_ADMIT, KV_PREFILL, KV_GROW, KV_LEAP, KV_PAUSE, KV_RELEASE)
"""What is proved of a worker whose requests stay."""

KV_TRANSIT = Theorem(
    "KV-transit",
    "what is promised to requests that run, are staged, are to come and have landed, with the protected part of the "
    "prefix cache, never exceeds the capacity",
    "this library; for any number of requests and transfers of a worker: KV-sum where KV moves",
    bound="kv_capacity_tokens",
)
KV_MOVE = Theorem(
    "KV-move",
    "for any number of requests, transfers and workers, whichever worker or link fails at whatever moment: a request "
    "is at one place, its KV is nowhere twice, KV under way is still at its source and memory is kept for it, and "
    "nothing stays kept for a request that is over",
    "this library; the order in which memory is claimed and freed, each step of which the shipped text takes",
)
KV_STAGE = Theorem("KV-stage", "a staged request keeps the memory of its KV and nothing more", _TRANSIT)
KV_SENT = Theorem("KV-sent", "what has arrived elsewhere is given back in full", _TRANSIT)
KV_RESERVE = Theorem("KV-reserve", "memory is kept only where it fits, and a failure gives all of it back", _TRANSIT)
KV_RECEIVE = Theorem("KV-receive", "KV that comes fits into what was kept for it, beside a step under way", _TRANSIT)
KV_RESUME = Theorem("KV-resume", "a staged request that goes on where it is holds what it held", _TRANSIT)
KV_LANDED = Theorem("KV-landed", "the admission of a request that came with its KV counts what it holds once", _TRANSIT)
KV_HOST = Theorem(
    "KV-host",
    "the KV of all requests on the host, with what is leaving it, never exceeds its capacity",
    "this library; for any number of requests, under the worker's check of each that is swapped out",
    bound="host_capacity_tokens",
)
KV_SWAP_OUT = Theorem(
    "KV-swap-out",
    "a request that is swapped out keeps on the device what it computed and promises no more, until the transfer is "
    "over; all but its last token is on the host",
    _HOST,
)
KV_SWAP_IN = Theorem(
    "KV-swap-in",
    "a request that is swapped in is promised its memory as at any admission, and computes just what is neither cached "
    "nor on the host",
    _HOST,
)
HOST = (KV_HOST, KV_SWAP_OUT, KV_SWAP_IN)
"""What is proved of a worker that swaps."""
