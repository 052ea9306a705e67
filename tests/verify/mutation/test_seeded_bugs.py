"""A bug in a text that is proved about is refuted by a small world that replays; none passes for proved or stays
undecided.

`kernel_bugs.toml` has those in kernels, each with the theorem that falls.
"""

import inspect
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import z3

from fairsched.cli import main
from fairsched.model import pricing
from fairsched.model.algebra import Algebra
from fairsched.model.worker import batch as worker_batch
from fairsched.model.worker import host_memory as worker_host
from fairsched.model.worker import transit as worker_transit
from fairsched.model.worker import transitions as worker
from fairsched.policies.gates import deficit
from fairsched.verify import proofs
from fairsched.verify.logic import Claim, Need, World, Written, counterexample_document, replay_counterexample
from fairsched.verify.logic.counterexample import ChangedKernel
from fairsched.verify.logic.patching import variant
from fairsched.verify.mutation.kernels import MutationTarget, targets
from fairsched.verify.proofs import SUITE, claims_of
from fairsched.verify.proofs.gates import deficit_steps, shared
from fairsched.verify.proofs.memory import memory, moves, swap, transit
from fairsched.verify.solvers import Broken, Proved, check, prove
from fairsched.verify.solvers.prover import audit, obligations

pytestmark = pytest.mark.kept


class KernelBug(NamedTuple):
    """A change to a kernel's text, and the theorem that falls with it."""

    module: str
    theorem: str
    function: str
    old: str
    new: str

    def kernels(self) -> ModuleType:
        """Return the kernels of the module, this one changed."""
        return variant(import_module(self.module), self.function, self.old, self.new)

    def target(self) -> MutationTarget:
        """Return the module with the proofs about it."""
        return next(target for target in targets() if target.module.__name__ == self.module)


TABLE = tomllib.loads(Path(__file__).with_name("kernel_bugs.toml").read_text(encoding="utf-8"))
BUGS = [KernelBug(f"fairsched.{module}", *row) for module, rows in TABLE.items() for row in rows]


def _saved(bug: KernelBug, verdict: Broken) -> bytes:
    """Return the world as a document that holds the changed text."""
    home = next(m for m in bug.target().proofs if bug.theorem in {each.theorem.id for each in proofs.claims_in(m)})
    text = inspect.getsource(getattr(bug.kernels(), bug.function))
    changed = ChangedKernel(bug.module, bug.function, text)
    document = counterexample_document(verdict.world, home.__name__, changed)
    assert replay_counterexample(document).confirmed
    return document.to_json()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.theorem}: {bug.function} {bug.old} -> {bug.new}")
def test_a_seeded_bug_breaks_the_theorem(bug: KernelBug) -> None:
    """One change to the shipped text, and a world of at most 3 clients breaks the theorem in both interpretations; it
    is saved, and replays."""
    verdict = prove(bug.target().claims(bug.kernels())[bug.theorem])
    assert isinstance(verdict, Broken), verdict
    assert 1 <= verdict.world.clients <= 3
    _saved(bug, verdict)


def test_the_command_line_shows_the_world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Service is priced by the model, not reported by the gate: charging less is refuted although all books of the
    kernel agree, and the command says so."""
    bug = KernelBug(deficit.__name__, "D-A.1", "admit", "-charge", "1 - charge")
    verdict = prove(bug.target().claims(bug.kernels())[bug.theorem])
    assert isinstance(verdict, Broken)
    path = tmp_path / "world.json"
    path.write_bytes(_saved(bug, verdict))
    assert main(["verify", "--replay", str(path)]) == 0
    assert "W + q = q0 + P" in verdict.world.broken
    assert f"broken afterwards: {'; '.join(verdict.world.broken)}" in capsys.readouterr().out


def test_a_question_that_is_too_hard_may_still_have_a_small_world() -> None:
    """Where the budget runs out on products and quotients, numbers for the parameters show the world all the same."""
    kernel = variant(deficit, "refill_rounds", "-q // quantum + 1", "-q // quantum")
    claim = next(claim for claim in deficit_steps.claims(kernel) if claim.theorem.id == "D-refill")
    last = list(obligations(claim))[2]
    # What a question takes is not quite the same in each process: it depends on what the solver was asked before.
    too_small = (n for n in range(20_000, 60_000, 5_000) if check(last, n, z3.Not(last.goal)) == z3.unknown)
    assert any(isinstance(prove(claim, rlimit=budget), Broken) for budget in too_small)


def test_a_change_that_changes_nothing_is_no_variant() -> None:
    """A variant whose text is not found, or found twice, is an error."""
    with pytest.raises(ValueError, match="0 times"):
        variant(deficit, "admit", "nothing of the kind", "")


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        ("__import__('os').system('true')", "calls"),
        ("o.__class__", "calls"),
        ("[q for q in charge]", "has"),
        ("(lambda: charge)()", "calls"),
    ],
)
def test_a_variant_computes_and_does_nothing_else(new: str, problem: str) -> None:
    """A saved counterexample may hold foreign text; what is no arithmetic of the algebra is not compiled."""
    with pytest.raises(ValueError, match=problem):
        variant(deficit, "admit", "-charge", new)


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        ("charge_max_reserved", lambda rates, memory, longest: rates.output * memory),
        ("charge_max_optimistic", lambda rates, longest, out, k: rates.input * longest + rates.output * k * out + 1),
        ("price", lambda tokens, rate, multiplier=1: tokens * rate * multiplier - 1),
        ("multipliers", lambda weights: tuple(weights)),  # noqa: PLW0108  (its code is read)
    ],
)
def test_a_wrong_price_is_refuted(function: str, wrong: object) -> None:
    """A constant that is too small fails to bound, one that is too large is not attained."""
    functions = ModuleType("pricing")
    vars(functions).update({**vars(pricing), function: wrong})
    verdicts = [prove(claim) for claim in proofs.price_claims(functions)]
    assert any(isinstance(verdict, Broken) for verdict in verdicts)
    assert all(isinstance(verdict, Broken | Proved) for verdict in verdicts)


@pytest.mark.parametrize("assumption", ["MemReserve", "ChargesAtLeastOne"])
def test_without_what_one_worker_promises_the_cluster_promises_nothing(assumption: str) -> None:
    """D2-memory's two assumptions are each worker's: U of the cluster is a sum only while both hold."""
    verdict = next(found for named, found in audit(shared.claims()[0]).items() if named.name == assumption)
    assert isinstance(verdict, Broken)


# --- the worker -----------------------------------------------------------------------------------------------------

WORKER_BUGS = [
    ("KV-admit", "_admit", "need = kv_tokens + cache.tree", "need = cache.tree"),
    ("KV-admit", "_admit", "need > free", "need > free + 1"),
    ("KV-admit", "_admit", "promised=state.promised + kv_tokens", "promised=state.promised + extend"),
    ("KV-prefill", "_prefill", "promised=state.promised - moved", "promised=state.promised"),
    ("KV-release", "release", "promised=state.promised - flight.kv_tokens", "promised=state.promised"),
    ("KV-release", "release", "growing=state.growing - (0 if flight.reserved else decodes)", "growing=0"),
    ("KV-pause", "pause", "growing=state.growing - (not flight.reserved)", "growing=state.growing"),
    ("KV-pause", "unpause", "growing=state.growing + (not flight.reserved)", "growing=state.growing"),
    ("KV-grow", "finish", "state.growing * steps", "steps"),
    ("KV-swap-out", "swap_out", "kv > host.free_tokens", "kv > host.free_tokens + 1"),
    ("KV-swap-out", "swap_out", "promised=left.promised + own", "promised=left.promised"),
    ("KV-swap-out", "swap_out", "used_tokens=host.used_tokens + kv", "used_tokens=host.used_tokens"),
    ("KV-swap-out", "_vacated", "used=state.used - own", "used=state.used"),
    ("KV-swap-in", "_admit", "used=state.used + ready", "used=state.used"),
    ("KV-swap-in", "land", "host.used_tokens - host.vacated_tokens", "host.used_tokens"),
    ("KV-stage", "stage", "state.promised - landed.promised + landed.used", "state.promised - landed.promised"),
    ("KV-stage", "_kept", "promised=state.promised + outgoing.own_tokens", "promised=state.promised"),
    ("KV-sent", "sent", "used=state.used - own", "used=state.used"),
    ("KV-reserve", "reserve", "tokens + under_way > state.free", "tokens > state.free"),
    ("KV-reserve", "unreserve", "transit.incoming[request_id],", "0,"),
    ("KV-receive", "receive", "kv_tokens + under_way - state.room", "kv_tokens - state.room"),
    ("KV-resume", "resume", "Landed(own, own)", "Landed(0, own)"),
    ("KV-landed", "unqueue_landed", "promised=state.promised - landed.promised", "promised=state.promised"),
]


@pytest.mark.parametrize(("theorem", "function", "old", "new"), WORKER_BUGS)
def test_a_seeded_bug_in_the_worker_breaks_its_books(
    theorem: str, function: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text that the simulator runs is the text that is executed on symbolic integers; with a contract all falls
    that rests on it, up to MemReserve."""
    module = next(m for m in (worker_host, worker_batch, worker_transit, worker) if _defines(m, function))
    text = inspect.getsource(getattr(module, function))
    assert text.count(old) == 1
    made = dict(vars(module))
    exec(text.replace(old, new), made)
    monkeypatch.setattr(module, function, made[function])
    for user in (worker_transit, worker):
        if hasattr(user, function):
            monkeypatch.setattr(user, function, made[function])
    claims = [claim for proof in (memory, swap, transit) for claim in proofs.claims_in(proof)]
    assert isinstance(prove(next(claim for claim in claims if claim.theorem.id == theorem)), Broken)
    shown_there = {claim.theorem.id for claim in memory.claims()}
    rests_on = {name for each in claims_of(SUITE).values() for name in each.theorem.rests_on}
    assert theorem not in shown_there or theorem in rests_on


def _defines(module: ModuleType, function: str) -> bool:
    return hasattr(module, function) and getattr(module, function).__module__ == module.__name__


def _wrong_moves() -> dict[str, Claim]:
    """KV-move about protocols with one error each: all of them have to be refuted."""
    right = {event.name: event for event in moves.move_events()}

    def instead(name: str, step: Callable[[Algebra, World], Written], need: Need) -> Claim:
        return moves.moves_claim(tuple({**right, name: moves._happens(name, step, need)}.values()))

    def twice(o: Algebra, w: World) -> Written:
        return moves._all(o, w, placed=1, kv=1, kept=-1, way=-1)

    return {
        "the source frees before it has arrived": instead(
            "its KV is sent", lambda o, w: moves._all(o, w, way=1, kv=-1), moves._each("staged", "kept", zero=("way",))
        ),
        "memory is kept after the KV was sent": instead(
            "its KV is sent", lambda o, w: moves._all(o, w, way=1), moves._each("staged", zero=("way",))
        ),
        "it lands, and the source keeps its own": instead("its KV arrives", twice, moves._each("way")),
        "a transfer lands that was called off": instead("its KV arrives", moves._arrives, moves._each("staged")),
        "what is kept is forgotten when the source fails": instead(
            "the worker fails where it is staged",
            lambda o, w: {**moves._all(o, w, staged=-1, held=1), **moves._none(o, w, "kv", "way")},
            moves._each("staged"),
        ),
        "a request is placed anew, and its transfer goes on": instead(
            "leaves without its KV",
            lambda o, w: {**moves._all(o, w, staged=-1, held=1), **moves._none(o, w, "kv")},
            moves._each("staged"),
        ),
    }


@pytest.mark.parametrize("error", _wrong_moves())
def test_an_error_in_the_order_of_a_transfer_is_found(error: str) -> None:
    """KV-move falls with each, for a single request."""
    verdict = prove(_wrong_moves()[error])
    assert isinstance(verdict, Broken), error
    assert verdict.world.clients == 1
