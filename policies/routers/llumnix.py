"""Llumnix: requests go to the freest worker, and move from workers with little freeness to those with much.

Paper: "Llumnix: Dynamic Scheduling for Large Language Model Serving" (OSDI'24); rule and defaults are those of its
released code, read in a snapshot of August 2025.  There a worker's load is minus its freeness, in blocks of 16 tokens a
request, and workers of a load above -3 give requests away; here that is freeness below `migrate_out_tokens` = 48.
Workers are paired, the least free with the most free and so on, and a pair moves one request if the gap between them
shrinks and keeps its sign.  The released code compares loads with `>=` where `<` is meant, which orders nothing
(F-LL-1), and predicts the gap with an average request; here ratios are compared exactly, and the gap is predicted for
the request that would move.

What a request holds is known between two numbers: it takes at least what it had to compute when it was admitted (its
context while it waits), and never more than prompt and longest output.  The gap shrinks if it is the least, and keeps
its sign if it is the most, so both hold whatever it is (P-LL-1).

Assumptions: reports are of now (ReportsFresh), and each worker counts the request between the two (SizeWithin).
Theorem: P-LL-1.  State: what runs or waits where, from events, and what is on its way.  A worker takes part in one
migration at a time.
"""

from functools import cmp_to_key
from typing import ClassVar, Literal

import attrs
import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model import events as ev
from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch, Migration
from fairsched.model.prefix_cache import SortedTuple
from fairsched.model.request import Request
from fairsched.model.theorem import Assumption, Theorem
from fairsched.policies.base import Router
from fairsched.policies.routers.load_based import freeness, freest
from fairsched.policies.validators import not_negative, one_of, positive

SIZE_WITHIN = Assumption(
    "SizeWithin", "What a moved request holds at either worker is between the least and the most that were foreseen."
)
P_LL_1 = Theorem(
    "P-LL-1",
    "a migration that is accepted leaves the target freer than the source, with a smaller gap between their freeness "
    "than before",
    "Llumnix (OSDI'24), the check in its released code, for an average request; here for the request itself",
    (SIZE_WITHIN,),
)

P_LL_2 = Theorem(
    "P-LL-2",
    "no request is moved from a worker to one that is not freer, so what was moved does not come back at once",
    "this library; follows from P-LL-1's check",
)

Ratio = tuple[int, int]
"""Free tokens and requests; infinite if there are none of the latter."""
PATIENCE = 10
"""After so many rhythms a migration that was requested and not reported is forgotten."""


class MovableRequest(msgspec.Struct, frozen=True, gc=False):
    """A request at a worker: the tokens that it holds or waits for at least, and at most; `key` ranks the candidates to
    move (None: it is none)."""

    worker: int
    prompt_tokens: int
    least: int
    most: int
    key: int | None


class Moving(msgspec.Struct, frozen=True, gc=False):
    """A migration that was asked for."""

    source: int
    target: int
    since_ns: int


class LlumnixState(msgspec.Struct, frozen=True):
    """Requests by id, each worker's candidates as (key, request id), and migrations under way by request id."""

    held: Map[int, MovableRequest] = Map()
    candidates: Map[int, SortedTuple[tuple[int, int]]] = Map()
    moving: Map[int, Moving] = Map()


_NO_CANDIDATES: SortedTuple[tuple[int, int]] = SortedTuple()


def _freer(one: tuple[Ratio, int], other: tuple[Ratio, int]) -> int:
    """Negative if the first of two workers is the freer one; of equals, if its id is lower."""
    (free, requests), (other_free, others) = one[0], other[0]
    if not requests or not others:
        return (requests > 0) - (others > 0) or one[1] - other[1]
    return other_free * requests - free * others or one[1] - other[1]


_BY_FREENESS = cmp_to_key(_freer)


@attrs.frozen
class Llumnix(Router[LlumnixState]):
    """Dispatch and migration by freeness.  `route` O(workers), an event O(log n), `decide` O(w log w) for w workers."""

    name: ClassVar[str] = "llumnix"
    state_type: ClassVar[type[LlumnixState]] = LlumnixState
    follows_decoding: ClassVar[bool] = False
    theorems: ClassVar[tuple[Theorem, ...]] = (P_LL_1, P_LL_2)

    migrate_out_tokens: int = attrs.field(default=48, validator=not_negative)
    """Workers with less freeness, in tokens a request, give requests away to those with at least that."""
    rhythm_us: int = attrs.field(default=100_000, validator=positive)
    """How often migrations are decided."""
    moves: Literal["running", "waiting"] = attrs.field(default="running", validator=one_of("running", "waiting"))
    """Which request of a worker moves: the running one that had the least to compute, with its KV, or the one that
    waits longest."""

    @property
    def decide_every_us(self) -> int:
        return self.rhythm_us

    def route(self, state: LlumnixState, request: Request, view: ClusterView) -> tuple[Dispatch, LlumnixState]:
        return Dispatch(request.id, freest(view)), state

    # --- requests and workers ---------------------------------------------------------------------------------------

    def observe(self, state: LlumnixState, event: ev.Event) -> LlumnixState:
        match event:
            case ev.Arrived(worker=worker, request=request) if worker != ev.NOWHERE:
                prompt, context = request.prompt.tokens, request.prompt.tokens + event.generated_tokens
                most = prompt + request.max_output_tokens
                held = MovableRequest(worker, prompt, context, most, self._key(False, context, event.time_ns))
                return _landed(_with(_without(state, request.id), request.id, held), request.id)
            case ev.Admitted(request_id=request_id):
                return self._changed(state, request_id, True, event.extend_tokens, event.time_ns)
            case ev.Preempted(request_id=request_id):
                known = state.held.get(request_id)
                least = event.generated_tokens + (0 if known is None else known.prompt_tokens)
                return self._changed(state, request_id, False, least, event.time_ns)
            case ev.Migrated():
                return _without(state, event.request_id)
            case ev.Finished() | ev.Cancelled() | ev.Rejected():
                return _landed(_without(state, event.request_id), event.request_id)
            case ev.WorkerLeft(worker=worker):
                for request_id in [i for i, held in state.held.items() if held.worker == worker]:
                    state = _landed(_without(state, request_id), request_id)
        return state

    def _changed(self, state: LlumnixState, request_id: int, runs: bool, least: int, now_ns: int) -> LlumnixState:
        """Note that the request runs or waits now.  One that is to move is no candidate, nor an unknown one."""
        known = state.held.get(request_id)
        if known is None:
            return state
        key = None if request_id in state.moving else self._key(runs, least, now_ns)
        held = MovableRequest(known.worker, known.prompt_tokens, least, known.most, key)
        return _with(_without(state, request_id), request_id, held)

    def _key(self, runs: bool, tokens: int, now_ns: int) -> int | None:
        """Return where the request stands among those that may move."""
        if self.moves == "running":
            return tokens if runs else None
        return None if runs else now_ns

    # --- what moves -------------------------------------------------------------------------------------------------

    def decide(self, state: LlumnixState, view: ClusterView) -> tuple[ClusterPlan, LlumnixState]:
        """Return one request for each pair of workers whose gap it narrows."""
        state = self._forgotten(state, view.now_ns)
        sources, targets = self._sides(state, view)
        migrations: list[Migration] = []
        for (source_ratio, source), (target_ratio, target) in zip(sources, targets, strict=False):
            _, request_id = state.candidates[source].first()
            held = state.held[request_id]
            if self.narrows(source_ratio, target_ratio, held.least, held.most):
                migrations.append(Migration(request_id, source, target, with_kv=self.moves == "running"))
                state = _with(_without(state, request_id), request_id, replace(held, key=None))
                moving = state.moving.set(request_id, Moving(source, target, view.now_ns))
                state = replace(state, moving=moving)
        return ClusterPlan((), tuple(migrations)), state

    @staticmethod
    def narrows(source: Ratio, target: Ratio, least: int, most: int) -> bool:
        """Return whether moving a request of `least` to `most` tokens leaves the target freer, and by less than it is
        now.

        Free tokens may be below 0; the source has the request.
        """
        (free, requests), (more_free, others) = source, target
        stay, come = requests - 1, others + 1
        if stay < 1 or (more_free - most) * stay <= (free + most) * come:
            return False
        if not others:
            return True
        before = more_free * requests - free * others
        after = (more_free - least) * stay - (free + least) * come
        return after * requests * others < before * stay * come

    def _sides(self, state: LlumnixState, view: ClusterView) -> tuple[list[tuple[Ratio, int]], list[tuple[Ratio, int]]]:
        """Return the sources, the least free first, and the targets, the freest first."""
        busy = {worker for move in state.moving.values() for worker in (move.source, move.target)}
        sources, targets = [], []
        for load in view.workers:
            free, requests = ratio = freeness(load)
            if load.worker in busy:
                continue
            if free >= self.migrate_out_tokens * requests:
                targets.append((ratio, load.worker))
            elif load.worker in state.candidates:
                sources.append((ratio, load.worker))
        if not sources or not targets:
            return [], []
        return sorted(sources, key=_BY_FREENESS, reverse=True), sorted(targets, key=_BY_FREENESS)

    def _forgotten(self, state: LlumnixState, now_ns: int) -> LlumnixState:
        """Drop migrations that stayed unreported for long: an engine may refuse one, or a report may be lost."""
        patience_ns = PATIENCE * self.rhythm_us * 1_000
        for request_id in [i for i, move in state.moving.items() if now_ns - move.since_ns > patience_ns]:
            state = _landed(state, request_id)
        return state

    def check(self, state: LlumnixState) -> None:
        """Check that candidates are those held with a key, each at its worker; nothing that moves is one."""
        ranked = {(held.worker, held.key, i) for i, held in state.held.items() if held.key is not None}
        listed = [(worker, key, i) for worker, those in state.candidates.items() for key, i in those]
        assert set(listed) == ranked
        assert len(listed) == len(ranked)
        assert all(those.size for those in state.candidates.values())
        assert not set(state.moving) & {i for _, _, i in ranked}
        assert all(1 <= held.least <= held.most for held in state.held.values())


def _with(state: LlumnixState, request_id: int, held: MovableRequest) -> LlumnixState:
    candidates = state.candidates
    if held.key is not None:
        those = candidates.get(held.worker, _NO_CANDIDATES).add((held.key, request_id))
        candidates = candidates.set(held.worker, those)
    return LlumnixState(state.held.set(request_id, held), candidates, state.moving)


def _without(state: LlumnixState, request_id: int) -> LlumnixState:
    held = state.held.get(request_id)
    if held is None:
        return state
    candidates = state.candidates
    if held.key is not None:
        those = candidates[held.worker].remove((held.key, request_id))
        candidates = candidates.set(held.worker, those) if those.size else candidates.delete(held.worker)
    return LlumnixState(state.held.delete(request_id), candidates, state.moving)


def _landed(state: LlumnixState, request_id: int) -> LlumnixState:
    return replace(state, moving=state.moving.delete(request_id)) if request_id in state.moving else state
