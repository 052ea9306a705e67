"""Compositions of every kind decide what they decided before, in one long load each in which everything happens.

The load is the battery's (`verify.conformance.local`), with all that it claims, played to a fixed script; and what is
decided, why each request waits, and what each client owes is compared with a record.  A change to the record has to be
meant: `python -m tests.policies.local.test_decisions` writes it anew, and the log tells who decides otherwise.
"""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import attrs
import msgspec
import pytest

from fairsched.model import worker as transitions
from fairsched.model.decision import StepPlan, WorkerView
from fairsched.model.events import ClientConfigured, Event
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import NoRoomError
from fairsched.policies.batching import BATCHINGS, Reserve
from fairsched.policies.gates import AnyGate, BandGate, DeficitGate, GlobalDeficitGate, HierarchicalGate, InBatchGate
from fairsched.policies.local import AdmissionPass, ComposedPolicy
from fairsched.policies.local.preemption import freed_tokens
from fairsched.policies.local.state_transfer import migrate
from fairsched.policies.orders import QueuedRequest, ShortestPredicted, ShortestRemaining, SkipJoin
from fairsched.policies.registry import local_policy
from fairsched.verify.conformance.local import PolicyMachine, World
from fairsched.verify.conformance.play import CHANGES

RECORD = Path(__file__).parent / "states" / "decisions.json"
"""By composition, four digits for each decision of its load."""
ACTIONS = 28
KINDS = "aaaaassssslllxccwrpumjkkfb"
"""What happens in the load, each as often as it stands here."""
PLACES = ((("acme", 2), ("ann", 1)), (("acme", 2),), (("solo", 1),), ())
"""The groups of the clients."""


class Scripted(PolicyMachine):
    """The battery's machine, played by a script; it notes what is decided, and why each request waits."""

    policy: ComposedPolicy

    def __init__(self, policy: ComposedPolicy, world: World, seed: int) -> None:
        self.policy, self.world = policy, world
        super().__init__()
        self.random = Random(seed)
        self.notes: list[str] = []

    def pick(self, count: int) -> int:
        """A number below `count`."""
        return int(self.random.random() * count)

    def play(self, host: int, slots: int, then: ComposedPolicy | None = None) -> str:
        """Play the script to its end, from the middle on under another policy, if any; what was noted."""
        self._open(self.pick(1_000), self.pick(3), host, slots)
        if isinstance(self.policy.gate, HierarchicalGate | BandGate):
            self.tell(*(ClientConfigured(0, 0, client, 1, groups) for client, groups in enumerate(PLACES)))
        for count in range(ACTIONS):
            if then is not None and count == ACTIONS // 2:
                self.policy, self.state, self.saved = then, migrate(self.policy, self.state, then), []
                self.monitor = None
            self.act(KINDS[self.pick(len(KINDS))] if count else "a")
            self.check()
        self.restart()
        self.serve()
        return "".join(self.notes)

    def act(self, kind: str) -> None:
        """What this letter stands for happens, or a few steps where it cannot."""
        some, worker = self.pick(1_000), self.worker
        acts: dict[str, tuple[object, Callable[[], None]]] = {
            "a": (True, lambda: self.arrive(self.came(), self.pick(4))),
            "s": (True, lambda: self.step(1 + some % 3)),
            "l": (True, lambda: self.leap(1 + some % 4, 9)),
            "x": (worker.decoding, lambda: self.stop(some)),
            "c": (self.alive, lambda: self.cancel(some)),
            "w": (True, lambda: self.configure(some, 1 + some % 3)),
            "r": (True, lambda: self.refuse(CHANGES[some % len(CHANGES)])),
            "p": (worker.decoding, lambda: self.pause_past_policy(some, some % 3 > 0)),
            "u": (worker.running, lambda: self.swap_past_policy(some)),
            "m": (worker.queue, lambda: self.admit_past_policy(some, some % 3 > 0)),
            "j": (worker.queue, lambda: self.misjudge(some % 3 - 1 or 2)),
            "k": (True, self.land),
            "f": (some % 3 == 0 and not worker.transit.landed, lambda: self.fail(some % 2 == 0)),
            "b": (self.saved, lambda: self.look_back(some)),
        }
        can, happens = acts[kind]
        (happens if can else acts["s"][1])()

    def came(self) -> list[Request]:
        """A few requests of several clients, or many of one, with prompts that share prefixes or nothing."""
        flood, client, block = self.pick(3) == 0, self.pick(self.world.clients), self.world.block_tokens
        drawn = []
        for _ in range(3 + self.pick(4 if flood else 3)):
            blocks, tail = self.pick(3 if flood else 6), self.pick(3)
            keys = [self.pick(2) for _ in range(blocks)]
            tokens = max(blocks * block + tail, 1)
            prompt = (
                Prompt(tokens, block)
                if self.pick(9) == 0
                else Prompt.from_keys(keys, block_tokens=block, tokens=tokens)
            )
            drawn.append(Request(0, client if flood else self.pick(self.world.clients), 0, prompt, 1 + self.pick(12)))
        return drawn

    def land(self) -> None:
        """A request comes with its KV from another worker, if there is room."""
        number = len(self.requests)
        prompt = Prompt.from_keys([self.pick(2) for _ in range(1 + self.pick(4))], block_tokens=self.world.block_tokens)
        request = Request(number, self.pick(self.world.clients), self.now_ns, prompt, 4 + self.pick(9))
        generated = 1 + self.pick(2)
        kv_tokens = prompt.tokens + generated - 1
        kept = kv_tokens + (0 if self.policy.batching.grows else request.max_output_tokens - generated)
        if self.policy.refuses(request) is not None or not self.worker.fits_alone(request):
            return
        try:
            self.worker = transitions.reserve(self.worker, number, kept)
        except NoRoomError:
            return
        self.requests[number] = request
        self.alive.add(number)
        self.ledger.staged[number], self.ledger.sent[number] = (1, kv_tokens), 0
        self.ledger.decoded[request.client] += generated
        output_tokens = request.max_output_tokens - self.pick(2)
        self.follow(transitions.receive(self.worker, request, output_tokens, self.now_ns, generated, kv_tokens))

    def make_room(self) -> None:
        """An idle worker that can admit no request drops the KV of the youngest that waits with it."""
        state = self.worker
        while not state.in_flight and state.transit.landed:
            if self.policy.decide(self.state, state.view(self.now_ns))[0].admit:
                return
            self.follow(transitions.again(state, state.queue[transitions.youngest_landed(state)], self.now_ns))
            state = self.worker

    def decide(self) -> tuple[StepPlan, Any]:
        """The policy's decision, noted."""
        view = self.worker.view(self.now_ns)
        self.check_freed(view)
        plan, decided = super().decide()
        self.note(plan, decided, view)
        return plan, decided

    def check_freed(self, view: WorkerView) -> None:
        """Whoever is taken out frees what the policy counts on, and the token of a step in which it would decode."""
        for request_id, flight in self.worker.in_flight.items():
            out, _ = transitions.begin(self.worker, StepPlan((request_id,), decode=False), self.now_ns)
            freed = out.free - self.worker.free
            assert freed_tokens(self.state, view, request_id, False) == freed
            grows = not flight.reserved and flight.clock_paused is None
            assert freed_tokens(self.state, view, request_id, True) == freed + grows

    def begin_decided(self) -> tuple[StepPlan, list[Event]]:
        """Decide and execute, when an idle worker has made room."""
        self.make_room()
        return super().begin_decided()

    def _begin_unchecked(self) -> tuple[StepPlan, list[Event]]:
        self.make_room()
        plan, decided = self.policy.decide(self.state, view := self.worker.view(self.now_ns))
        self.note(plan, decided, view)
        return plan, self._execute(plan, decided)

    def note(self, plan: StepPlan, decided: Any, view: WorkerView) -> None:
        """Add four digits to the notes."""
        why = [self.policy.wait_reason(self.state, view, request_id) for request_id in sorted(self.worker.queue)]
        owed = self.policy.state_to_json(decided)["state"]["gate"]
        self.notes.append(f"{crc32(msgspec.json.encode((plan, why, owed))) & 0xFFFF:04x}")


SMALL: dict[str, Any] = {"max_batched_tokens": 7, "max_running": 4}
LEVELS = SkipJoin(quantum_us=2, promote_ms=1, step_us=250, prefill_token_ns=1_000, prefill_constant_us=0)
REMAINING, STARVING = ShortestRemaining(60), ShortestPredicted(starve_steps=3, period_steps=2)


def made(name: str, batching: str = "chunked", reserve: Reserve = "optimistic", **parts: Any) -> ComposedPolicy:
    """The policy of that name with credit, budgets and caps of the size of a small world."""
    policy = local_policy(name)
    gate = parts.pop("gate", policy.gate)
    if isinstance(gate, DeficitGate | HierarchicalGate):
        gate = attrs.evolve(gate, quantum=gate.quantum if gate.quantum < 100 else 5)
    return attrs.evolve(policy, gate=gate, batching=BATCHINGS[batching](**SMALL, reserve=reserve), **parts)


CAPPED = DeficitGate(quantum=9, in_flight_cap_tokens=14)
BANDS: AnyGate = BandGate(quantum=5, bands="acme:50,solo:40,rest:10", kept=20)
COMPOSED: dict[str, ComposedPolicy] = {
    "fcfs": made("fcfs"),
    "fcfs, reserved": made("fcfs", reserve="static"),
    "lpm": made("lpm"),
    "lpm, reserved": made("lpm", reserve="static"),
    "vtc": made("vtc"),
    "dlpm": made("dlpm"),
    "dlpm, reserved": made("dlpm", "iteration-level", "static"),
    "dlpm, eager": made("dlpm", "eager-prefill"),
    "capped": made("dlpm", gate=CAPPED),
    "elastic": made("dlpm", gate=attrs.evolve(CAPPED, cap_holds="contended")),
    "per use": made("dlpm", gate=DeficitGate(quantum=5, cached_percent=30)),
    "tree": made("dlpm-hierarchical"),
    "bands": made("dlpm-bands", gate=BANDS),
    "shared": made("dlpm-global", gate=GlobalDeficitGate(quantum=5)),
    "shared, capped": made(
        "dlpm-global", "chunked", "static", gate=GlobalDeficitGate(quantum=9, in_flight_cap_tokens=14)
    ),
    "in batch": made("dlpm-in-batch", gate=InBatchGate(quantum=5)),
    "in batch, reserved": made("dlpm-in-batch", "chunked", "static", gate=InBatchGate(quantum=5)),
    "in batch, eager": made("dlpm-in-batch", "eager-prefill", gate=InBatchGate(quantum=3)),
    "levels": made("fastserve", order=LEVELS),
    "levels, reserved": made("fastserve", "eager-prefill", "static", order=LEVELS),
    "levels x deficit": made("fastserve", order=LEVELS, gate=DeficitGate(quantum=5)),
    "levels x bands": made("fastserve", order=LEVELS, gate=BANDS),
    "swaps": made("fastserve", order=attrs.evolve(LEVELS, swap_free_percent=20, swap_step_tokens=9)),
    "swaps x deficit": made("fastserve", reserve="static", order=LEVELS, gate=DeficitGate(quantum=5)),
    "remaining": made("trail", order=REMAINING),
    "remaining x capped": made("trail", "iteration-level", "static", order=REMAINING, gate=CAPPED),
    "starving": made("learning-to-rank", order=STARVING),
    "starving x counter": made("learning-to-rank+counter", "iteration-level", order=STARVING),
    "larry x counter": made("larry+counter"),
    "ageing x deficit": made("ageing+deficit"),
    "edf x deficit": made("edf+deficit"),
    "preble x deficit": made("preble+deficit"),
    "s3": made("s3", "request-level"),
    "s3, reserved": made("s3", "request-level", "static"),
    "pia x deficit": made("pia+deficit", "request-level"),
    "tetriinfer": made("tetriinfer", "padded", "profile"),
    "first finish": made("tetriinfer+deficit", "chunked", "first-finish"),
    "predicted": made("tetriinfer", "eager-prefill", "predicted"),
    "predicted, printed": made("dlpm", "chunked", "predicted-printed"),
    "profile": made("dlpm", "chunked", "profile"),
    "batchllm": made("batchllm", "memory-centric"),
    "batchllm x deficit": made("batchllm-hybrid+deficit", "memory-centric"),
    "splitwise": made("splitwise-machine", "whole-prompts"),
    "capped prefill": made("dlpm", "capped-prefill"),
}


TAKEN_OVER = (
    *(("dlpm", "dlpm, eager"), ("levels", "levels, reserved"), ("dlpm", "dlpm"), ("elastic", "elastic")),
    *(("shared", "shared"), ("in batch", "in batch"), ("tree", "tree"), ("bands", "bands")),
)
"""Which composition takes over from which, in the middle of a load; or itself with another quantum."""
LOADS = (*COMPOSED, *(f"{old}, then {new}" for old, new in TAKEN_OVER))


def notes_of(name: str) -> str:
    """Return what is noted of that load."""
    number, (old, _, new) = crc32(name.encode()), name.partition(", then ")
    world, then = World(block_tokens=1 + number % 2, capacity_blocks=(9, 22)), None
    if new:
        then = COMPOSED[new]
        gate: Any = then.gate
        gate = attrs.evolve(gate, quantum=3) if new == old else gate
        batching = attrs.evolve(then.batching, reserve=COMPOSED[old].batching.reserve)
        then = attrs.evolve(then, gate=gate, batching=batching)
    script = Scripted(COMPOSED[old], world, number)
    return script.play(host=(0, 1, 3)[number % 3], slots=(0, 2, 1, 0)[number % 4], then=then)


@pytest.mark.parametrize("name", LOADS)
def test_decisions_are_those_on_record(name: str) -> None:
    """Every plan, every reason to wait and every account of the load is the recorded one."""
    assert notes_of(name) == json.loads(RECORD.read_text(encoding="utf-8"))[name]


@pytest.mark.parametrize("name", ["fcfs", "shared, capped", "levels, reserved", "remaining x capped", "tetriinfer"])
def test_who_is_refused_does_not_wait_for_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request at which a decision without admissions ends waits for memory, its place or the budget, and not for
    those that it was passed by: their caps, adapters and prefixes keep only them out."""
    admit, note, refused = AdmissionPass.admit, Scripted.note, list[int]()

    def admits(self: AdmissionPass, entry: QueuedRequest, asks: bool = False) -> bool:
        enters = admit(self, entry, asks)
        refused.extend([] if asks or enters else [entry.request.id])
        return enters

    def noted(self: Scripted, plan: StepPlan, decided: Any, view: WorkerView) -> None:
        refused.clear()
        if not self.policy.decide(self.state, view)[0].admit and refused:
            assert self.policy.wait_reason(self.state, view, refused[-1]) != "order"
        note(self, plan, decided, view)

    monkeypatch.setattr(AdmissionPass, "admit", admits)
    monkeypatch.setattr(Scripted, "note", noted)
    notes_of(name)


if __name__ == "__main__":
    RECORD.write_text(json.dumps({name: notes_of(name) for name in LOADS}, indent=1) + "\n", encoding="utf-8")
