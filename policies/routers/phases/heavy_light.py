"""TetriInfer's dispatcher: of two workers with room for a request, the one with the smaller share of heavy outputs.

Source: TetriInfer, section 3.3.  A request's output is predicted as a range.  Of the workers with enough room for it,
two are drawn, and the one with the lower ratio of heavy to light outputs wins, heavy being more than 128 tokens (more
than 512 in the paper's motivation; T4).  If no worker has room, the one with the most room gets it.

What the paper leaves open, and here: a worker's room is what is left of its memory beside the peaks of all requests
that were sent there; the ratio is the share of heavy ones after the request came, so that it is never a division by 0;
of equal shares the worker with fewer requests wins, then the lower id.  As printed the lower end of the range counts
(`counts="lower"`, T1), which lets every request be up to a bucket longer than was foreseen.
"""

from typing import ClassVar, Literal

import attrs
import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model.events import NOWHERE, Arrived, Cancelled, Event, Finished, Migrated, Rejected, WorkerLeft
from fairsched.model.plan import Dispatch
from fairsched.model.request import Request
from fairsched.model.view import ClusterView
from fairsched.policies.base import Router
from fairsched.policies.draw import draw
from fairsched.policies.orders import predicted
from fairsched.policies.validators import not_negative, one_of, positive

Counts = Literal["upper", "lower"]


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A request that was sent to a worker, with the most that it is foreseen to hold there, and whether it is heavy."""

    worker: int
    tokens: int
    heavy: bool


class Mix(msgspec.Struct, frozen=True, gc=False):
    """A worker's requests, how many of them are heavy, and the most that they are foreseen to hold, in tokens."""

    requests: int = 0
    heavy: int = 0
    tokens: int = 0

    def plus(self, sent: Sent, count: int) -> "Mix":
        """Return a copy with one more request (or one less)."""
        return Mix(self.requests + count, self.heavy + count * sent.heavy, self.tokens + count * sent.tokens)


EMPTY = Mix()


class MixState(msgspec.Struct, frozen=True):
    """How many numbers were drawn, the requests that were sent, and the mix of each worker."""

    drawn: int = 0
    sent: Map[int, Sent] = Map()
    mixes: Map[int, Mix] = Map()


def lighter(first: Mix, second: Mix, heavy: int) -> int:
    """Return which of two workers has the smaller share of heavy outputs with one more request: below 0 the first,
    above 0 the second, 0 neither.  Exact, by cross multiplication."""
    one, other = first.heavy + heavy, second.heavy + heavy
    return one * (second.requests + 1) - other * (first.requests + 1)


@attrs.frozen
class HeavyLight(Router[MixState]):
    """Two of the workers with room, and of those the one with the smaller share of heavy outputs.  O(workers)."""

    name: ClassVar[str] = "heavy-light"
    state_type: ClassVar[type[MixState]] = MixState
    follows_decoding: ClassVar[bool] = False

    heavy_tokens: int = attrs.field(default=128, validator=positive)
    """An output that is foreseen to be longer is heavy."""
    counts: Counts = attrs.field(default="upper", validator=one_of("upper", "lower"))
    """Which end of a predicted range counts; a prediction is its upper end."""
    bucket_tokens: int = attrs.field(default=200, validator=positive)
    """How long a range is, where the lower end counts."""
    seed: int = attrs.field(default=0, validator=not_negative)
    """Seed of the draws."""

    def foreseen(self, request: Request) -> int:
        """Return the output tokens that are counted."""
        upper = predicted(request)
        return upper if self.counts == "upper" else max(upper - self.bucket_tokens, 0)

    def route(self, state: MixState, request: Request, view: ClusterView) -> tuple[Dispatch, MixState]:
        state = _without(state, request.id)
        output = self.foreseen(request)
        tokens, heavy = request.prompt.tokens + output, output > self.heavy_tokens
        rooms = [
            (load.kv_capacity_tokens - state.mixes.get(load.worker, EMPTY).tokens, load.worker) for load in view.workers
        ]
        able, drawn = [worker for room, worker in rooms if room >= tokens], state.drawn
        if not able:
            chosen = min(rooms, key=lambda each: (-each[0], each[1]))[1]
        elif len(able) == 1:
            chosen = able[0]
        else:
            chosen = self._better(state, able, int(heavy))
            drawn += 2
        sent = Sent(chosen, tokens, heavy)
        mixes = state.mixes.set(chosen, state.mixes.get(chosen, EMPTY).plus(sent, 1))
        return Dispatch(request.id, chosen), MixState(drawn, state.sent.set(request.id, sent), mixes)

    def _better(self, state: MixState, able: list[int], heavy: int) -> int:
        """Return the better of two different workers that are drawn."""
        one = draw(self.seed, state.drawn, len(able))
        other = draw(self.seed, state.drawn + 1, len(able) - 1)
        other += other >= one
        first, second = able[min(one, other)], able[max(one, other)]
        mixes = state.mixes.get(first, EMPTY), state.mixes.get(second, EMPTY)
        sign = lighter(*mixes, heavy) or mixes[0].requests - mixes[1].requests
        return second if sign > 0 else first

    def observe(self, state: MixState, event: Event) -> MixState:
        match event:
            case Finished() | Cancelled() | Rejected():
                return _without(state, event.request_id)
            case Migrated():
                sent = state.sent.get(event.request_id)
                return _without(state, event.request_id) if sent and sent.worker == event.worker else state
            case Arrived():
                sent = state.sent.get(event.request.id)
                if sent is None or event.worker == sent.worker:
                    return state
                return _without(state, event.request.id)
            case WorkerLeft():
                for request_id in [i for i, sent in state.sent.items() if sent.worker == event.worker]:
                    state = _without(state, request_id)
                return state
        return state

    def check(self, state: MixState) -> None:
        mixes: dict[int, Mix] = {}
        for sent in state.sent.values():
            mixes[sent.worker] = mixes.get(sent.worker, EMPTY).plus(sent, 1)
        # Each worker's mix is that of the requests that were sent there.
        assert mixes == {worker: mix for worker, mix in state.mixes.items() if mix != EMPTY}
        assert NOWHERE not in mixes


def _without(state: MixState, request_id: int) -> MixState:
    """Return the state without a request, which may be unknown."""
    sent = state.sent.get(request_id)
    if sent is None:
        return state
    mix = state.mixes[sent.worker].plus(sent, -1)
    mixes = state.mixes.set(sent.worker, mix) if mix.requests else state.mixes.delete(sent.worker)
    return replace(state, sent=state.sent.delete(request_id), mixes=mixes)
