"""Requests between workers that come, drain and die: each ends once, and KV-move is true of the shipped cluster."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

from fairsched.model import cluster
from fairsched.model.algebra import NUMPY
from fairsched.model.cluster import ClusterState, Move, transitions
from fairsched.model.decision import Migration, Overlap
from fairsched.model.events import NOWHERE
from fairsched.verify.proofs.memory.moves import moves_claim

CLAIM = moves_claim()
WORKERS = 4
picks = st.integers(0, 99)
overlaps: st.SearchStrategy[Overlap] = st.sampled_from(("none", "layers"))


class Site:
    """A worker: requests in queue or batch (and whether their KV is computed), staged KV, and memory kept by number."""

    def __init__(self) -> None:
        self.batch: dict[int, bool] = {}
        self.staged: set[int] = set()
        self.line: list[cluster.ReserveKv] = []
        self.kept: dict[int, int] = {}


class ClusterMachine(RuleBasedStateMachine):
    """A cluster, workers that do what it asks at once, and whatever may happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState()
        self.sites: dict[int, Site] = {}
        self.alone: set[int] = set()
        """Requests that were dispatched for their prefill alone."""
        self.coming: set[int] = set()
        self.way: dict[int, int] = {}
        """Transfers under way, by number."""
        self.over: Counter[int] = Counter()
        self.came = 0
        self.steps = 0
        for worker in range(2):
            self.join(worker)

    def calm(self) -> bool:
        """Whether something may fail now: at every fourth look, so that transfers get far."""
        self.steps += 1
        return self.steps % 4 == 0

    # --- what follows -------------------------------------------------------------------------------------------------

    def do(self, step: cluster.Transition) -> None:
        """Take a transition, and do what follows."""
        self.state, effects = step
        for worker, effect in effects:
            self.follow(self.sites.get(worker, Site()), worker, effect)

    def follow(self, site: Site, worker: int, effect: Any) -> None:
        """Do one thing; a worker that frees, sends or resumes what it does not have raises."""
        request_id = effect.request_id
        match effect:
            case cluster.LeaveBatch(with_kv=with_kv):
                self.leave_batch(worker, request_id, with_kv)
            case cluster.ReserveKv():
                site.line.append(effect)
            case cluster.ReleaseKv(number=number):
                site.line = [asked for asked in site.line if asked.number != number]
                site.kept.pop(request_id, None)
                self.way.pop(number, None)
            case cluster.SendKv(number=number):
                assert request_id in site.staged
                assert request_id in self.sites[self.state.moves[request_id].target].kept
                self.way[number] = request_id
            case cluster.FreeKv():
                site.staged.remove(request_id)
            case cluster.ResumeRequest():
                site.staged.remove(request_id)
                site.batch[request_id] = True
            case cluster.GoWithoutKv():
                self.coming.add(request_id)

    def leave_batch(self, worker: int, request_id: int, with_kv: bool = True, takes: bool = True) -> None:
        """A request leaves queue or batch."""
        kv = self.sites[worker].batch.pop(request_id) and with_kv
        if kv:
            self.sites[worker].staged.add(request_id)
        self.do(cluster.left(self.state, request_id, int(kv), takes=takes))

    def ends(self, request_id: int) -> None:
        """A request is over."""
        self.over[request_id] += 1
        self.alone.discard(request_id)
        self.coming.discard(request_id)
        self.do(cluster.end(self.state, request_id))

    def open(self, *phases: str) -> list[int]:
        """The requests in these phases of a move, in order; all that are open without."""
        if not phases:
            return sorted(self.state.at)
        return [move.request_id for move in self.state.in_order() if move.phase in phases]

    def held(self) -> list[int]:
        """The requests that are held."""
        return [i for i in self.open() if self.state.at[i] == NOWHERE and i not in self.state.moves]

    def placed(self, with_kv: bool | None = None) -> list[tuple[int, int]]:
        """Requests in queues and batches with their workers, those that have KV or have none."""
        found = [(i, worker) for worker, site in sorted(self.sites.items()) for i in sorted(site.batch)]
        return [(i, w) for i, w in found if with_kv is None or self.sites[w].batch[i] == with_kv]

    # --- requests -----------------------------------------------------------------------------------------------------

    @rule(pick=picks, alone=st.booleans(), far=st.integers(0, 6))
    def come(self, pick: int, alone: bool, far: int) -> None:
        """A request comes, and gets so far: held, placed, with its KV, sent for, granted, passed on."""
        request_id, self.came = self.came, self.came + 1
        self.state = cluster.hold(self.state, request_id)
        workers = sorted(self.sites)
        if not far or not workers:
            return
        worker, target = workers[pick % len(workers)], workers[(pick + 1) % len(workers)]
        self.state = cluster.place(self.state, request_id, worker)
        self.sites[worker].batch[request_id] = far > 1
        if alone:
            self.alone.add(request_id)
        plan = Migration(request_id, worker, target, True, 3, "layers" if pick % 2 else "none")
        step = cluster.migrate(self.state, plan, takes=True, prefill_only=alone) if far > 2 else None
        if step is None:
            return
        self.do(step)
        while far > 3 and self.sites[target].line:
            self.grant_at(target)
        if far > 4 and self.state.moves[request_id].number in self.way:
            self.land_it(request_id, told=False)

    @precondition(lambda m: m.held() and m.sites)
    @rule(pick=picks, alone=st.booleans())
    def place(self, pick: int, alone: bool) -> None:
        """A held request is dispatched."""
        held, workers = self.held(), sorted(self.sites)
        if held and workers:
            request_id, worker = held[pick % len(held)], workers[pick % len(workers)]
            self.state = cluster.place(self.state, request_id, worker)
            self.sites[worker].batch[request_id] = False
            (self.alone.add if alone else self.alone.discard)(request_id)

    @precondition(lambda m: m.held() and m.sites and m.calm())
    @rule(pick=picks)
    def fetch(self, pick: int) -> None:
        """A held request comes with KV from a checkpoint."""
        request_id, worker = self.held()[0], sorted(self.sites)[pick % len(self.sites)]
        self.state = cluster.fetch(self.state, request_id, worker, 5)
        self.sites[worker].kept[request_id] = 5
        self.coming.add(request_id)

    @precondition(lambda m: m.coming)
    @rule(pick=picks, takes=st.booleans())
    def arrive(self, pick: int, takes: bool) -> None:
        """A request without a worker's KV is where it goes, if that takes it."""
        request_id = sorted(self.coming)[pick % len(self.coming)]
        self.coming.remove(request_id)
        move = self.state.moves[request_id]
        takes = move.target in self.sites and (takes or bool(move.reserved))
        self.state = cluster.arrive(self.state, request_id, takes)
        if takes:
            self.sites[move.target].kept.pop(request_id, None)
            self.sites[move.target].batch[request_id] = bool(move.reserved)

    @precondition(lambda m: m.placed(with_kv=False))
    @rule(pick=picks, takes=st.sampled_from((True, True, False)))
    def compute(self, pick: int, takes: bool) -> None:
        """A prompt is computed; a request that is there for that alone leaves."""
        request_id, worker = self.placed(with_kv=False)[pick % len(self.placed(with_kv=False))]
        self.sites[worker].batch[request_id] = True
        if request_id in self.alone:
            self.alone.remove(request_id)
            self.leave_batch(worker, request_id, takes=takes)

    @precondition(lambda m: m.open() and m.calm())
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        """A request ends, wherever it is."""
        request_id = self.open()[pick % len(self.open())]
        for site in self.sites.values():
            site.batch.pop(request_id, None)
        self.ends(request_id)

    # --- moves --------------------------------------------------------------------------------------------------------

    @precondition(lambda m: m.open() and m.sites)
    @rule(
        pick=picks,
        at=picks,
        with_kv=st.sampled_from((True, True, False)),
        overlap=overlaps,
        takes=st.sampled_from((True, True, True, False)),
    )
    def migrate(self, pick: int, at: int, with_kv: bool, overlap: Overlap, takes: bool) -> None:
        """A policy wants a request elsewhere; whatever cannot be done changes nothing."""
        able = self.open("staged") or self.open()
        request_id, target = able[pick % len(able)], sorted(self.sites)[at % len(self.sites)]
        move = self.state.moves.get(request_id)
        source = self.state.at[request_id] if move is None else move.source
        plan = Migration(request_id, source, target, with_kv, 3, overlap)
        step = cluster.migrate(self.state, plan, takes=takes, prefill_only=request_id in self.alone)
        if step is not None:
            self.do(step)

    @precondition(lambda m: any(site.line for site in m.sites.values()))
    @rule(pick=picks)
    def grant(self, pick: int) -> None:
        """A worker has room for the first in its line."""
        able = [(worker, site) for worker, site in sorted(self.sites.items()) if site.line]
        self.grant_at(able[pick % len(able)][0])

    def grant_at(self, worker: int) -> None:
        """A worker keeps memory for the first in its line."""
        site = self.sites[worker]
        asked = site.line.pop(0)
        site.kept[asked.request_id] = asked.tokens
        self.do(cluster.grant(self.state, asked.request_id, asked.tokens + 1))

    @precondition(lambda m: m.way)
    @rule(pick=picks, told=st.booleans())
    def land(self, pick: int, told: bool) -> None:
        """KV arrives; the source hears of it now or later."""
        self.land_it(self.way[sorted(self.way)[pick % len(self.way)]], told)

    def land_it(self, request_id: int, told: bool) -> None:
        """The KV of a request arrives."""
        move = self.state.moves[request_id]
        target = self.sites[move.target]
        del self.way[move.number]
        self.state = cluster.pass_on(self.state, request_id)
        target.kept.pop(request_id)
        target.batch[request_id] = True
        if told:
            self.do(cluster.land(self.state, request_id))

    @precondition(lambda m: m.open("landing"))
    @rule(pick=picks)
    def hear(self, pick: int) -> None:
        """The source hears that its KV has arrived."""
        self.do(cluster.land(self.state, self.open("landing")[0]))

    @precondition(lambda m: m.open("reserving", "sending"))
    @rule(pick=picks)
    def fail(self, pick: int) -> None:
        """A transfer fails."""
        moving = self.open("reserving", "sending")
        self.do(cluster.fail(self.state, moving[pick % len(moving)]))

    @precondition(lambda m: m.open("staged", "reserving") and m.calm())
    @rule()
    def unstrand(self) -> None:
        """The first that waits goes on."""
        step = cluster.unstrand(self.state)
        assert step is not None
        self.do(step)

    @precondition(lambda m: any(move.reserved for move in m.state.moves.values() if move.phase == "computing"))
    @rule()
    def release_early(self) -> None:
        """Memory that is kept before a prefill is free."""
        step = cluster.release_early(self.state)
        assert step is not None
        self.do(step)

    # --- workers ------------------------------------------------------------------------------------------------------

    @precondition(lambda m: len(m.sites) < WORKERS)
    @rule(worker=st.integers(0, WORKERS - 1))
    def join(self, worker: int) -> None:
        """A worker comes."""
        if worker not in self.sites:
            self.sites[worker] = Site()
            self.state = cluster.enter(self.state, worker, "serving")

    @precondition(lambda m: m.sites and m.calm())
    @rule(pick=picks)
    def drain(self, pick: int) -> None:
        """A worker takes no more, and leaves if it has nothing."""
        worker = sorted(self.sites)[pick % len(self.sites)]
        self.state = cluster.enter(self.state, worker, "draining")
        for request_id in cluster.unreserved(self.state, worker):
            self.do(cluster.fail(self.state, request_id))
        site = self.sites[worker]
        assert not site.line
        if not (site.batch or site.staged or site.kept):
            del self.sites[worker]
            self.state = cluster.leave(self.state, worker)

    @precondition(lambda m: m.sites and m.calm())
    @rule(pick=picks, keeps_queue=st.booleans())
    def lose(self, pick: int, keeps_queue: bool) -> None:
        """A worker dies, or loses its memory and keeps its queue."""
        worker = sorted(self.sites)[pick % len(self.sites)]
        site = self.sites.pop(worker)
        state, effects, lost = cluster.lose(self.state, worker, () if keeps_queue else site.batch)
        self.way = {number: i for number, i in self.way.items() if i not in site.staged | set(site.kept)}
        if keeps_queue:
            self.sites[worker] = Site()
            self.sites[worker].batch = {i: False for i in site.batch if state.at[i] == worker}
        else:
            state = cluster.leave(state, worker)
        self.do((state, effects))
        assert lost == sorted(lost)
        assert set(lost) <= set(self.held())

    @precondition(lambda m: m.open("staged", "reserving", "sending", "landing") and m.calm())
    @rule(pick=picks)
    def lose_kv(self, pick: int) -> None:
        """A worker loses what it staged, and lives."""
        worker = sorted(self.sites)[pick % len(self.sites)]
        self.do(cluster.lose_kv(self.state, worker, sorted(self.sites[worker].staged)))

    @precondition(lambda m: m.open("computing", "reserving", "sending") and not m.state.cut and m.calm())
    @rule(pick=picks, until_ns=st.sampled_from((5, 5, None)))
    def cut(self, pick: int, until_ns: int | None) -> None:
        """The link of a worker fails between which and others something moves."""
        moving = self.open("computing", "reserving", "sending")
        self.do(cluster.link_fails(self.state, self.state.moves[moving[pick % len(moving)]].target, until_ns))

    @precondition(lambda m: m.state.cut)
    @rule()
    def repair(self) -> None:
        """All links are up."""
        for worker in list(self.state.cut):
            self.state = cluster.link_back(self.state, worker)

    # --- what is always so --------------------------------------------------------------------------------------------

    @invariant()
    def custody(self) -> None:
        """The value is in order, and workers have what it says."""
        cluster.check(self.state)
        moves = self.state.moves.values()
        assert set(self.sites) == set(self.state.workers)
        for worker, site in self.sites.items():
            assert set(site.batch) == {i for i, at in self.state.at.items() if at == worker}
            backup = {move.request_id for move in moves if move.phase == "landing" and move.source == worker}
            assert site.staged == backup | {m.request_id for m in moves if m.is_staged and m.source == worker}
            kept = {m.request_id for m in moves if m.reserved and m.target == worker and m.phase != "landing"}
            assert set(site.kept) == kept
        assert set(self.way.values()) == set(self.open("sending"))

    @invariant()
    def kv_move(self) -> None:
        """What is proved of counts is true of this cluster: KV-move."""
        counts = SimpleNamespace(**{name: np.zeros(max(self.came, 1), np.int64) for name in CLAIM.system.fields})
        counts.held[self.came :] = 1
        for request_id in range(self.came):
            for name in self.counted(request_id):
                getattr(counts, name)[request_id] += 1
        for clause in (*CLAIM.invariants, *CLAIM.conclusions):
            assert np.all(clause.holds(NUMPY, counts)), clause.name

    def counted(self, request_id: int) -> list[str]:
        """What counts of a request.  A copy at a source that has not heard yet is none, nor is a checkpoint."""
        if request_id not in self.state.at:
            return ["over"]
        move, at = self.state.moves.get(request_id, Move(request_id, "computing")), self.state.at[request_id]
        found = ["placed" if at != NOWHERE else "staged" if move.is_staged else "held"]
        found += ["kv"] * (self.sites[at].batch[request_id] if at != NOWHERE else move.is_staged)
        found += ["kept" for site in self.sites.values() if request_id in site.kept and move.phase != "coming"]
        return found + ["way"] * [*self.way.values()].count(request_id)

    def teardown(self) -> None:
        """When nothing more comes every request ends, and each has ended once."""
        if not self.sites:
            self.join(0)
        self.repair()
        for _ in range(40 * (self.came + 1)):
            if not self.open():
                break
            self.go_on()
        assert not self.open(), f"requests {self.open()} never end"
        assert self.over == Counter(range(self.came))
        assert not any(site.staged or site.kept or site.line for site in self.sites.values())

    def go_on(self) -> None:
        """One thing happens that brings requests nearer to their end."""
        placed = self.placed(with_kv=True)
        if self.held():
            self.place(0, alone=False)
        elif self.coming:
            self.arrive(0, takes=True)
        elif self.way:
            self.land(0, told=True)
        elif self.open("landing"):
            self.hear(0)
        elif self.placed(with_kv=False):
            self.compute(0, takes=False)
        elif placed:
            del self.sites[placed[0][1]].batch[placed[0][0]]
            self.ends(placed[0][0])
        else:
            self.unstrand()


def play(examples: int, steps: int = 50) -> None:
    """Play the machine so often."""
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )
    run_state_machine_as_test(ClusterMachine, settings=how)


def test_every_request_ends_once_and_kv_is_at_one_place() -> None:
    """Placing, staging, transferring, losing, draining, cancelling in any order; KV-move after each."""
    play(200)


def keeps_kv(state: ClusterState, request_id: int) -> cluster.Transition:
    """`land` without telling the source."""
    return transitions.land(state, request_id)[0], []


def keeps_memory(state: ClusterState, request_id: int) -> cluster.Transition:
    """`end` without freeing anything."""
    return transitions.end(state, request_id)[0], []


def loses_requests(state: ClusterState, worker: int, requests: Any = ()) -> Any:
    """`lose` as if staged requests were over."""
    after, effects, lost = transitions.lose(state, worker, requests)
    return replace(after, at=after.at.update(dict.fromkeys(lost, worker))), effects, lost


def stays_sent(state: ClusterState, request_id: int) -> cluster.Transition:
    """`fail` that leaves the target's memory as it is."""
    after, effects = transitions.fail(state, request_id)
    return after, [each for each in effects if not isinstance(each[1], cluster.ReleaseKv)]


@pytest.mark.parametrize(
    ("name", "bug"), [("land", keeps_kv), ("end", keeps_memory), ("lose", loses_requests), ("fail", stays_sent)]
)
def test_the_machine_finds_errors(name: str, bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that is never told, memory that is kept for what is over or called off, and requests that are lost."""
    monkeypatch.setattr(cluster, name, bug)
    with pytest.raises((AssertionError, KeyError)):
        play(100)
