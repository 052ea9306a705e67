"""Hypothesis strategies of what the library is about, shared by its own tests and by those of policy authors.

Everything is small, so that what is rare in the large happens all the time: prompts of few keys share prefixes, end
inside each other and are equal; requests nearly fill a worker.
"""

from collections.abc import Sequence

from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.model.request import Client, Prompt, Request
from fairsched.model.workload import Job, Workload

KEYS_MAX = 2
"""Keys of drawn prompts are 0 to this."""


@st.composite
def prompts(draw: st.DrawFn, block_tokens: int = 1, blocks_max: int = 6, keys_max: int = KEYS_MAX) -> Prompt:
    """A prompt of up to `blocks_max` shareable blocks and a tail of its own, or one that shares nothing.

    With a large `keys_max` prompts share hardly anything.
    """
    blocks = draw(st.integers(0, blocks_max))
    tail = draw(st.integers(0 if blocks else 1, max(block_tokens // 2, 2)))
    keys = draw(st.lists(st.integers(0, keys_max), min_size=blocks, max_size=blocks))
    if draw(st.integers(0, 9)) == 0:
        return Prompt(blocks * block_tokens + tail, block_tokens)
    return Prompt.from_keys(keys, block_tokens=block_tokens, tokens=blocks * block_tokens + tail)


@st.composite
def requests(
    draw: st.DrawFn,
    request_id: int = 0,
    arrival_ns: int = 0,
    clients_max: int = 4,
    block_tokens: int = 1,
    blocks_max: int = 6,
    output_tokens_max: int = 8,
    keys_max: int = KEYS_MAX,
) -> Request:
    """A request of one of `clients_max` clients."""
    return Request(
        request_id,
        draw(st.integers(0, clients_max - 1)),
        arrival_ns,
        draw(prompts(block_tokens, blocks_max, keys_max)),
        draw(st.integers(1, output_tokens_max)),
    )


@st.composite
def bursts(
    draw: st.DrawFn,
    clients_max: int = 4,
    block_tokens: int = 1,
    blocks_max: int = 6,
    output_tokens_max: int = 8,
    count: tuple[int, int] = (6, 12),
) -> list[Request]:
    """Many requests of one client at one instant, `count` of them (least, most), with ids from 0 on."""
    client = draw(st.integers(0, clients_max - 1))
    one = requests(0, 0, 1, block_tokens, blocks_max, output_tokens_max)
    drawn = draw(st.lists(one, min_size=count[0], max_size=count[1]))
    return [replace(request, id=i, client=client) for i, request in enumerate(drawn)]


def clients(count_max: int = 4, weight_max: int = 3) -> st.SearchStrategy[tuple[Client, ...]]:
    """One client or a few, of small weights."""
    weights = st.lists(st.integers(1, weight_max), min_size=1, max_size=count_max)
    return weights.map(lambda drawn: tuple(Client(i, f"client-{i}", weight) for i, weight in enumerate(drawn)))


@st.composite
def jobs(draw: st.DrawFn, request: Request, earlier: Sequence[int] = (), span_ns: int = 0) -> Job:
    """The request with the truth about it: an output, perhaps requests it waits for, perhaps an impatient caller.

    `earlier` are the ids it may depend on, `span_ns` is about how long a caller's patience lasts.
    """
    depends = bool(earlier) and draw(st.integers(0, 3)) == 0
    after = draw(st.lists(st.sampled_from(sorted(earlier)), min_size=1, max_size=2, unique=True)) if depends else ()
    impatient = draw(st.integers(0, 4)) == 0
    return Job(
        request,
        draw(st.integers(1, request.max_output_tokens)),
        after=tuple(sorted(after)),
        think_ns=draw(st.integers(0, span_ns)) if depends else 0,
        cancel_after_ns=draw(st.integers(0, span_ns)) if impatient else None,
    )


@st.composite
def workloads(draw: st.DrawFn, jobs_max: int = 12, span_ns: int = 2_000, block_tokens: int = 1) -> Workload:
    """Up to `jobs_max` jobs within about `span_ns`, several at one instant, with dependencies and cancellations."""
    everybody = draw(clients())
    instants = st.one_of(st.integers(0, span_ns), st.sampled_from([0, span_ns // 2]))
    arrivals = sorted(draw(st.lists(instants, min_size=1, max_size=jobs_max)))
    drawn: list[Job] = []
    for i, arrival_ns in enumerate(arrivals):
        request = draw(requests(i, arrival_ns, len(everybody), block_tokens, output_tokens_max=12))
        drawn.append(draw(jobs(request, range(i), span_ns)))
    return Workload("drawn", tuple(drawn), everybody)
