"""Aladdin in overload: whoever is passed over would have been tried in vain, so plans are those of the plain rule."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import attrs
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.model.events import NOWHERE, Arrived, Decoded, Prefilled
from fairsched.model.machine import Performance
from fairsched.model.request import Prompt, Request
from fairsched.policies.placement import aladdin
from fairsched.policies.placement.aladdin import Aladdin
from fairsched.policies.placement.aladdin import limits as lim
from fairsched.policies.placement.aladdin.placement_batch import CandidateFilter, MemoryTable, Placed
from fairsched.policies.placement.aladdin.placement_state import EMPTY_WORKER, AladdinState

HEARTBEAT_NS = 1_000


def plain(kind: type[Aladdin]) -> type[Aladdin]:
    """The rule as it is written: every held request before every worker, the fullest first."""

    @attrs.frozen
    class Plain(kind):  # type: ignore[misc, valid-type]
        def _placed(
            self, state: AladdinState, batch: aladdin.PlacementBatch, now_ns: int, waiting: Sequence[int]
        ) -> tuple[Placed, ...]:
            placed = []
            for request_id in waiting:
                held = state.held[request_id]
                late = lim.prefill_slack(self.lines, held.prompt_tokens, now_ns, held.due_ns) < 0
                counted = held.output_tokens if self.output == "predicted" else 0
                wanted = aladdin.Wanted(
                    *(held.prompt_tokens, held.output_tokens, counted),
                    *(aladdin.FOREVER_NS if late else held.due_ns, held.declared_tokens),
                )
                row = soonest(batch, wanted) if late and self.splits_phases else chosen(batch, wanted)
                empty = [i for i, count in enumerate(batch.requests.tolist()) if not count]
                if row is None and self.opens == "unchecked" and empty:
                    row = empty[0]
                waited = now_ns - held.request.arrival_ns > 1_000 * self.patience_us
                if row is None and (waited or not self._alone(batch, wanted)):
                    row = batch.least(wanted)
                if row is not None:
                    batch.take(row, wanted)
                    placed.append(Placed(request_id, row, wanted))
            return tuple(placed)

        def _alone(self, batch: aladdin.PlacementBatch, wanted: aladdin.Wanted) -> bool:
            p, context = self.lines, lim.context_cost(wanted.prompt_tokens, wanted.counted_tokens, self.gamma_percent)
            within = lim.decode_slack(p, self.theta_percent, 1_000 * self.tpot_us, 1, context) >= 0
            peak = lim.peak_kv(p, wanted.prompt_tokens, wanted.output_tokens)
            return bool(within and max(peak, wanted.declared_tokens) <= batch.capacity.max())

    return Plain


def chosen(batch: aladdin.PlacementBatch, wanted: aladdin.Wanted) -> int | None:
    """The fullest row, the first of equals, that keeps every constraint, one looked at after the other."""
    rows = sorted(range(len(batch.rows)), key=lambda row: (-batch.norms.item(row), row))
    return next((row for row in rows if fits(batch, row, wanted)), None)


def soonest(batch: aladdin.PlacementBatch, wanted: aladdin.Wanted) -> int | None:
    """The row that keeps every constraint and has computed its new prompts first."""
    rows = [row for row in range(len(batch.rows)) if fits(batch, row, wanted)]
    return min(rows, key=batch.computed.item, default=None)


def fits(batch: aladdin.PlacementBatch, row: int, wanted: aladdin.Wanted) -> bool:
    """(b) to (d) by the functions that theorems are about, and memory."""
    p, rules = batch.performance, batch.rules
    context = lim.context_cost(wanted.prompt_tokens, wanted.counted_tokens, rules.gamma_percent) + batch.context.item(
        row
    )
    new_tokens = batch.new_tokens.item(row) + wanted.prompt_tokens
    due = min(batch.deadline.item(row), wanted.deadline_ns)
    requests = batch.requests.item(row) + 1
    return (
        ("b" not in rules.checks or lim.decode_slack(p, rules.theta_percent, rules.tpot_ns, requests, context) >= 0)
        and ("c" not in rules.checks or lim.prefill_slack(p, new_tokens, batch.begins.item(row), due) >= 0)
        and ("d" not in rules.checks or lim.stall_slack(p, new_tokens, batch.saved.item(row)) >= 0)
        and batch.capacity.item(row) >= wanted.declared_tokens
        and batch.has_memory(row, wanted)
    )


sizes = st.tuples(st.integers(1, 12), st.integers(1, 12))
VARIANTS: tuple[tuple[type[Aladdin], dict[str, Any]], ...] = (
    (Aladdin, {}),
    (Aladdin, {"reserve": "peaks", "slack": "printed"}),
    (Aladdin, {"errors": "rebalance", "norm": "printed"}),
    (aladdin.AladdinPrinted, {}),
    (aladdin.AladdinSplit, {}),
    (aladdin.AladdinGrouped, {"groups": 2}),
)
worlds = st.fixed_dictionaries(
    {
        "variant": st.sampled_from(VARIANTS),
        # So that each constraint now binds and now does not: nanoseconds beside targets of a few thousand.
        "lines": st.builds(Performance, *map(st.integers, [0] * 5, [400, 300, 12, 200, 300]), st.integers(1, 2)),
        "parameters": st.fixed_dictionaries(
            {"tpot_us": st.integers(1, 9), "ttft_us": st.integers(3, 12), "patience_us": st.integers(3, 9)}
        ),
        "capacities": st.lists(st.integers(10, 70), min_size=1, max_size=6),
        "running": st.lists(st.lists(st.tuples(sizes, st.booleans(), st.integers(0, 4)), max_size=4), max_size=6),
        "waiting": st.lists(st.tuples(sizes, st.integers(0, 5)), min_size=1, max_size=24),
        "heartbeats": st.integers(1, 3),
    }
)


@given(worlds)
def test_plans_are_those_of_the_plain_rule(world: dict[str, Any]) -> None:
    """Heartbeat after heartbeat in overload, whatever binds and whichever variant, nobody else goes anywhere else."""
    kind, named = world["variant"]
    parameters = {"heartbeat_us": 1, "performance": world["lines"]} | world["parameters"] | named
    policy, plainly = kind(**parameters), plain(kind)(**parameters)
    state, workers = _begun(policy, world)
    for beat in range(world["heartbeats"]):
        now_ns = (6 + beat) * HEARTBEAT_NS
        view = ClusterView(now_ns, workers)
        expected, _ = plainly.decide(state, view)
        plan, state = policy.decide(state, view)
        assert plan == expected
        policy.check(state)
        for load in workers:
            state = policy.observe(state, Decoded(now_ns, load.worker, 1, (0,), (1,)))


def _begun(policy: Aladdin, world: dict[str, Any]) -> tuple[AladdinState, tuple[WorkerLoad, ...]]:
    """Some requests at workers, of which some have begun, each at another time, and others held."""
    workers = tuple(WorkerLoad(w, 0, 0, 0, capacity, capacity) for w, capacity in enumerate(world["capacities"]))
    state, made = policy.init(), 0
    for load, running in zip(workers, world["running"], strict=False):
        for (prompt, output), begun, iterations in running:
            state = policy.observe(state, Arrived(0, load.worker, Request(made, 0, 0, Prompt(prompt), output)))
            if begun:
                state = policy.observe(state, Prefilled(0, load.worker, made, 0, prompt, 0))
            if iterations:
                state = policy.observe(state, Decoded(0, load.worker, iterations, (0,), (iterations,)))
            made += 1
    for (prompt, output), arrived in world["waiting"]:
        request = Request(made, 0, arrived * HEARTBEAT_NS, Prompt(prompt), output)
        state, made = policy.observe(state, Arrived(request.arrival_ns, NOWHERE, request)), made + 1
    return state, workers


@settings(deadline=None, max_examples=60)
@given(worlds)
def test_memory_side_by_side_leaves_out_nobody_who_fits(world: dict[str, Any]) -> None:
    """Where the table says no, `profile_slack` says no, for requests of all sizes, one by one and together."""
    policy = Aladdin(performance=world["lines"])
    state, workers = _begun(policy, world)
    state = policy._foreseen_anew(state, ClusterView(0, workers))
    rows = policy._rows(state, workers, 0, True)
    memory = MemoryTable(policy.lines, rows)
    prompts, outputs = (np.array(column)[:, None] for column in zip(*product(range(1, 13), repeat=2), strict=True))
    together = memory.has_room(prompts, outputs)
    for prompt, output, may in zip(prompts.ravel().tolist(), outputs.ravel().tolist(), together.tolist(), strict=True):
        assert memory.has_room(prompt, output).tolist() == may
        for row, said in zip(rows, may, strict=True):
            clock = row.believed.clock
            there = lim.profile_of(policy.lines, row.believed.entries)
            slack = lim.profile_slack(policy.lines, row.capacity, there, clock + output, prompt - clock)
            assert said or slack < 0
            assert not said or policy.lines.kv(prompt) <= row.capacity


def test_of_many_who_ask_for_the_same_one_is_tried() -> None:
    """Of 256 equal requests that the constraints allow and memory does not, the first speaks for all."""
    rules = aladdin.Rules(Performance(1, 0, 1, 1, 1), 1_000, 100, 50, "normalised", "lock-step")
    batch = aladdin.PlacementBatch(
        rules,
        [aladdin.Row(worker, 3, EMPTY_WORKER, 0, 0, 0, aladdin.FOREVER_NS, aladdin.FOREVER_NS) for worker in range(4)],
    )
    alike = np.full(256, 5)
    candidates = CandidateFilter(
        batch, aladdin.Wanted(alike, alike, alike, np.full(256, aladdin.FOREVER_NS), 0 * alike), np.zeros(256, np.bool_)
    )
    assert candidates.after(0) == 1
    candidates.failed(0)
    assert candidates.after(0) == 256
