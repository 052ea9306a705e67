"""Hypothesis strategies of what the library is about, shared by its own tests and by those of policy authors.

Everything is small, so that what is rare in the large happens all the time: prompts of few keys share prefixes, end
inside each other and are equal; requests nearly fill a worker.
"""

from collections.abc import Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from msgspec import UNSET
from msgspec.structs import replace

from fairsched.model import worker as transitions
from fairsched.model.decision import Admission, Host, StepPlan
from fairsched.model.events import Event, WorkerJoined
from fairsched.model.request import Client, Job, Prompt, Request, Slo, Workload
from fairsched.model.worker import InfeasiblePlanError, Step, WorkerState

KEYS_MAX = 2
"""Keys of drawn prompts are 0 to this."""
KEYS_MANY = 1 << 20
"""So many keys that two prompts hardly share one."""
CLIENTS_FEW = 8
"""Where there are more clients, many of them come together."""
SAVED_MAX = 4
"""How many old states a battery keeps, to decide again from them."""

TARGETS = (None, Slo(ttft_ns=10), Slo(latency_ns=15), Slo(ttft_ns=30, latency_ns=40), Slo(tpot_ns=2))
"""What requests are to be served within, if anything."""
ADAPTERS = (UNSET, "ann", "bob", "cy")
"""What requests run with on a worker with slots for one or two."""


@st.composite
def prompts(draw: st.DrawFn, block_tokens: int = 1, blocks_max: int = 6, keys_max: int = KEYS_MAX) -> Prompt:
    """Return a prompt of up to `blocks_max` shareable blocks and a tail of its own, or one that shares nothing.

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
    """Return a request of one of `clients_max` clients."""
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


def arrivals(
    clients_max: int = 4, block_tokens: int = 1, output_tokens_max: int = 8
) -> st.SearchStrategy[list[Request]]:
    """Return what comes at once: a few, many short requests of one client, or a few whose prompts share nothing with
    others, so that whatever is cached must go; of many clients a few, or one of each."""
    some = requests(0, 0, clients_max, block_tokens, output_tokens_max=output_tokens_max)
    several = st.lists(some, min_size=2, max_size=6)
    if clients_max > CLIENTS_FEW:
        one = requests(0, 0, 1, block_tokens, blocks_max=2, output_tokens_max=output_tokens_max)
        return st.one_of(several, st.lists(one, min_size=clients_max, max_size=clients_max).map(_one_of_each))
    alone = requests(0, 0, clients_max, block_tokens, output_tokens_max=2, keys_max=KEYS_MANY)
    flood = bursts(clients_max, block_tokens, blocks_max=2, output_tokens_max=3, count=(6, 9))
    return st.one_of(several, flood, st.lists(alone, min_size=2, max_size=5))


def _one_of_each(drawn: list[Request]) -> list[Request]:
    """Return the requests, each of another client."""
    return [replace(request, client=client) for client, request in enumerate(drawn)]


def clients(count_max: int = 4, weight_max: int = 3) -> st.SearchStrategy[tuple[Client, ...]]:
    """Return one client or a few, of small weights."""
    weights = st.lists(st.integers(1, weight_max), min_size=1, max_size=count_max)
    return weights.map(lambda drawn: tuple(Client(i, f"client-{i}", weight) for i, weight in enumerate(drawn)))


@st.composite
def jobs(draw: st.DrawFn, request: Request, earlier: Sequence[int] = (), span_ns: int = 0) -> Job:
    """Return the request with the truth about it: an output, perhaps requests it waits for, perhaps an impatient
    caller.

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
    drawn_clients = draw(clients())
    instants = st.one_of(st.integers(0, span_ns), st.sampled_from([0, span_ns // 2]))
    arrivals = sorted(draw(st.lists(instants, min_size=1, max_size=jobs_max)))
    drawn: list[Job] = []
    for i, arrival_ns in enumerate(arrivals):
        request = draw(requests(i, arrival_ns, len(drawn_clients), block_tokens, output_tokens_max=12))
        drawn.append(draw(jobs(request, range(i), span_ns)))
    return Workload("drawn", tuple(drawn), drawn_clients)


# --- workers at work --------------------------------------------------------------------------------------------------

ACTIONS = ("arrive", "step", "step", "step", "leap", "cancel", "stop", "lose")
"""What may happen next; most of the time the worker works."""


@st.composite
def step_plans(draw: st.DrawFn, state: WorkerState) -> StepPlan:
    """Return a plan that this worker can execute: some of what waits enters, some prefills go on, a request may be
    preempted or swapped out, some may pause or go on, and who comes back from the host may count on its KV there.

    The plan counts on exactly what is cached.
    """
    entering = draw(st.lists(st.sampled_from(sorted(state.queue)), max_size=3, unique=True)) if state.queue else []
    leaving = draw(st.lists(st.sampled_from(sorted(state.running)), max_size=1)) if state.running else []
    swaps = bool(state.host.capacity_tokens) and draw(st.booleans())
    chunks = [(i, draw(_chunks(left))) for i, left in state.prefilling if i not in leaving]
    admissions, coming = [], []
    for request_id in entering:
        waiting = state.queue[request_id]
        request = waiting.request
        cached_tokens = state.cache.cached_tokens(request.prompt)
        extend_tokens = request.prompt.tokens + waiting.generated_tokens - cached_tokens
        kept = state.host.kept(request_id)
        reserved = request.max_output_tokens - waiting.generated_tokens if draw(st.booleans()) else 0
        if kept and draw(st.booleans()):
            coming.append(request_id)
            extend_tokens = min(extend_tokens, waiting.context_tokens - kept)
        else:
            chunks.append((request_id, draw(_chunks(extend_tokens))))
        admissions.append(Admission(request_id, request.client, extend_tokens, cached_tokens, reserved))
    leave, swap = ((), tuple(leaving)) if swaps else (tuple(leaving), ())
    decode = draw(st.sampled_from([True, True, False]))
    pause, resume = _stop_and_go(draw, state, leaving)
    plan = StepPlan(leave, tuple(admissions), tuple(chunks), decode, 1, swap, tuple(coming), 0, pause, resume)
    known = tuple(chunk for chunk in plan.chunks if chunk[0] not in entering)
    for possible in (plan, StepPlan(leave, (), known, decode, swap_out=swap, pause=pause)):
        try:
            transitions.begin(state, possible, 0)
        except InfeasiblePlanError:
            continue
        return possible
    return StepPlan(decode=False)


def _stop_and_go(draw: st.DrawFn, state: WorkerState, leaving: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Pause some of those that decode, and let some that are paused go on."""
    decoding = sorted(i for i, flight in state.in_flight.items() if flight.decodes and i not in leaving)
    paused = sorted(set(state.paused) - set(leaving))
    stop, go = (
        tuple(draw(st.lists(st.sampled_from(some), max_size=2, unique=True))) if some else ()
        for some in (decoding, paused)
    )
    return stop, go


def _chunks(tokens: int) -> st.SearchStrategy[int]:
    """Return all that is left to prefill, or a part."""
    return st.one_of(st.just(tokens), st.integers(1, tokens))


@st.composite
def plays(draw: st.DrawFn, actions_max: int = 20, clients_max: int = 4) -> tuple[WorkerState, list[Event]]:
    """Return a worker after up to `actions_max` things happened to it, and all that it told, from `WorkerJoined` on.

    A millisecond passes with each.  Requests have ids 0, 1, 2, ... in order of arrival.
    """
    capacity = draw(st.integers(8, 30))
    host = draw(st.sampled_from([0, 0, capacity // 2, 3 * capacity]))
    state = WorkerState(0, capacity, host=Host(host))
    events: list[Event] = [WorkerJoined(0, 0, capacity, host)]
    came = 0
    for now_ms, action in enumerate(draw(st.lists(st.sampled_from(ACTIONS), max_size=actions_max)), 1):
        now_ns = now_ms * 1_000_000
        if action == "arrive" or not (state.queue or state.running):
            for request in draw(st.lists(requests(0, now_ns, clients_max), min_size=1, max_size=4)):
                output_tokens = draw(st.integers(1, request.max_output_tokens))
                state, more = transitions.arrive(state, replace(request, id=came), output_tokens, now_ns)
                events += more
                came += 1
            continue
        state, more = _happens(draw, state, action, now_ns)
        events += more
    return state, events


def _happens(draw: st.DrawFn, state: WorkerState, action: str, now_ns: int) -> Step:
    """Return the transition of this name where it can happen, and else a step."""
    if action == "lose":
        return transitions.lose(state, now_ns)
    if action == "cancel":
        return transitions.cancel(state, draw(st.sampled_from(sorted({*state.queue, *state.running}))), now_ns)
    if action == "stop" and state.decoding:
        decoding = sorted(i for i, flight in state.in_flight.items() if flight.clock_start is not None)
        return transitions.stop(state, draw(st.sampled_from(decoding)), now_ns)
    if action == "leap" and state.decoding and state.decode_steps_max() > 0:
        return transitions.step(state, StepPlan(), now_ns, draw(st.integers(1, state.decode_steps_max())))
    return transitions.step(state, draw(step_plans(state)), now_ns)


def worker_states() -> st.SearchStrategy[WorkerState]:
    """Return workers as they are between two transitions: empty, full, decoding, prefilling, with a cache or
    without."""
    return plays().map(lambda play: play[0])


# --- profiles ---------------------------------------------------------------------------------------------------------

REDUCED = "fairsched-reduced"
"""The same examples on every run, so that a change is what turns a test red."""
FULL = "fairsched-full"
"""Many, and fresh ones on every run: for the night."""


def run_battery(machine: type[RuleBasedStateMachine], chosen: settings | None) -> None:
    """Play a state machine as often as the settings say (default: the Hypothesis profile that is loaded).

    No run is judged by the time that it takes.
    """
    timeless = settings(chosen, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=timeless)


settings.register_profile(REDUCED, max_examples=50, derandomize=True, deadline=None, print_blob=True)
settings.register_profile(FULL, max_examples=2_000, deadline=None, print_blob=True)
