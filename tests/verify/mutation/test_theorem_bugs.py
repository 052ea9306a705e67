"""Each theorem falls with at least one seeded bug in the text that it is about."""

import inspect
from types import ModuleType

import pytest

from fairsched.model.worker import batch as worker_batch
from fairsched.model.worker import host_memory as worker_host
from fairsched.model.worker import transit as worker_transit
from fairsched.model.worker import transitions as worker
from fairsched.policies.gates import counter, deficit, in_batch
from fairsched.policies.gates.bands import gate as bands
from fairsched.policies.gates.leased import gate as leased
from fairsched.policies.gates.shared import credit_ledger
from fairsched.policies.gates.shared import gate as global_deficit
from fairsched.policies.local import adapters
from fairsched.verify.logic import ArithmeticClaim, Claim, SampledClaim
from fairsched.verify.logic.patching import variant
from fairsched.verify.proofs.gates import changes as change_proofs
from fairsched.verify.proofs.gates import counter as counter_proofs
from fairsched.verify.proofs.gates import counter_waits as counter_wait_proofs
from fairsched.verify.proofs.gates import deficit_progress as deficit_progress_proofs
from fairsched.verify.proofs.gates import deficit_steps as deficit_kernel_proofs
from fairsched.verify.proofs.gates import shared as global_proofs
from fairsched.verify.proofs.gates import shared_workers as global_worker_proofs
from fairsched.verify.proofs.gates.phases import bounds as phase_proofs
from fairsched.verify.proofs.gates.refinements import bands as bands_proofs
from fairsched.verify.proofs.gates.refinements import in_batch as in_batch_proofs
from fairsched.verify.proofs.gates.refinements import lease_holders as lease_holder_proofs
from fairsched.verify.proofs.gates.refinements import lease_messages as lease_message_proofs
from fairsched.verify.proofs.gates.refinements import leases as lease_proofs
from fairsched.verify.proofs.memory import adapters as adapters_proofs
from fairsched.verify.proofs.memory import int64 as int64_proofs
from fairsched.verify.proofs.memory import memory as memory_proofs
from fairsched.verify.proofs.memory import moves as move_proofs
from fairsched.verify.proofs.memory import swap as swap_proofs
from fairsched.verify.proofs.memory import transit as transit_proofs
from fairsched.verify.solvers import Broken, prove
from fairsched.verify.solvers.prover import audit

pytestmark = pytest.mark.kept

BUGS = [
    (deficit, "D-wc", "refill", "(q <= 0)", "(q < 0)"),
    (deficit, "D-wc", "choose", "in_credit(o, q, queued) & ready", "queued & (q > 1)"),
    (deficit, "D-A.2", "refill", "(q <= 0)", "(q < 0)"),
    (deficit, "D-A.2", "decode", "q - charge", "q"),
    (deficit, "D-starvation", "admit", "-charge", "1 - charge"),
    (deficit, "D-price", "admit", "-charge", "-charge - 1"),
    (deficit, "D-price", "refill", "q + quantum", "q + 1"),
    (deficit, "D-cap", "under_cap", "<= cap", "<= cap + 1"),
    (deficit, "D-cap", "reserve", "kv_tokens)", "kv_tokens - 1)"),
    (deficit, "D-in-flight", "choose", "in_credit(o, q, queued) & ready", "queued & ready"),
    (deficit, "D-elastic", "lone", "o.none(", "o.any("),
    (deficit, "D-elastic", "may_hold", "<= 0", "<= 1"),
    (deficit, "D-elastic", "reserve", "kv_tokens)", "kv_tokens - 1)"),
    (deficit, "D-may-hold", "lone", "False)", "True)"),
    (deficit, "D-may-hold", "may_hold", "fits | ", ""),
    (deficit, "D-cap-holds", "refill", " & due", ""),
    (deficit, "D-cap-holds", "refill_due", "o.none(in_credit(o, q, queued))", "(o.any(queued) | o.none(queued))"),
    (deficit, "D-change", "reconfigure", "o.minimum(q, quantum)", "q"),
    (deficit, "D-change", "reconfigure", "o.minimum(q, quantum)", "quantum"),
    (deficit, "D-change-gap", "reconfigure", "o.minimum(q, quantum)", "o.maximum(q, quantum)"),
    (deficit, "D-change-gap", "refill", "known & (q <= 0) & due", "known & (q <= 1) & due"),
    (deficit, "D-int64", "refill", "q + quantum", "q + quantum + quantum + quantum + quantum + quantum"),
    (counter, "V-4.9", "lift", "o.maximum(o.pick(c, p, 0), level(o, c, queued, last))", "o.pick(c, p, 0)"),
    (counter, "V-4.9", "choose", "argmin", "argmax"),
    (counter, "V-4.9-worker", "lift", "o.maximum(o.pick(c, p, 0), level(o, c, queued, last))", "o.pick(c, p, 0)"),
    (counter, "V-4.9", "refund", " - amount", ""),
    (counter, "V-4.11", "level", "argmin", "argmax"),
    (counter, "V-4.11", "admit", "charge)", "charge - 1)"),
    (counter, "V-change", "rescaled", "c * finer", "c"),
    (counter, "V-change", "lifted_to", "queued, last))", "queued, last) + 1)"),
    (
        counter,
        "V-total",
        "lift",
        "o.maximum(o.pick(c, p, 0), level(o, c, queued, last))",
        "o.pick(c, p, 0) + level(o, c, queued, last)",
    ),
    (counter, "V-int64", "decode", "c + charge", "c + charge + charge + charge + charge + charge"),
    (deficit, "D2-global", "admit", "-charge", "1 - charge"),
    (deficit, "D2-global", "refill", "(q <= 0)", "(q <= 1)"),
    (deficit, "D2-lag", "decode", "q - charge", "q"),
    (deficit, "D2-lag", "choose", "in_credit(o, q, queued) & ready", "queued & ready"),
    (deficit, "D2-steal", "choose", "in_credit(o, q, queued) & ready", "queued & (q > 1)"),
    (deficit, "D2-gift", "refill", " & due", ""),
    (deficit, "D2-together", "refill", "(q <= 0)", "(q < 0)"),
    (deficit, "S-gap", "admit", "-charge", "1 - charge"),
    (deficit, "S-gap", "refill", "(q <= 0)", "(q <= 1)"),
    (deficit, "S-gap", "choose", "in_credit(o, q, queued) & ready", "queued & ready"),
    (deficit, "S-prefill", "decode", "q - charge", "q"),
    (deficit, "D2-stale", "admit", "-charge", "charge"),
    (global_deficit, "D2-places", "depart", "-1", "-2"),
    (global_deficit, "D2-places", "waits", "places > 0", "places > 1"),
    (deficit, "D2-global", "refund", "o.bump(q, p, amount)", "q"),
    (deficit, "S-gap", "refund", "o.bump(q, p, amount)", "o.bump(q, p, amount + 1)"),
    (deficit, "D2-stale", "refund", "o.bump(q, p, amount)", "o.put(q, p, amount)"),
    (in_batch, "D-pause-range", "may_decode", "q > -depth", "q >= -depth"),
    (in_batch, "D-pause-range", "forgive", "maximum(q, 1 - depth)", "maximum(q, 1 + depth)"),
    (in_batch, "D-pause-gap", "may_decode", "q > -depth", "q > -depth - 1"),
    (in_batch, "D-pause-gap", "forgive", "known & o.none(queued)", "known"),
    (in_batch, "D-pause-lag", "may_decode", "q > -depth", "q < -depth"),
    (in_batch, "D-pause-weighted", "forgive", "known & o.none(queued)", "known"),
    (in_batch, "D-pause-debt", "may_decode", "q > -depth", "q >= -depth"),
    (in_batch, "D-pause", "deepest_debtor", "holds & (q <= -depth)", "holds"),
    (in_batch, "D-pause", "deepest_debtor", "argmin", "argmax"),
    (in_batch, "D-pause", "may_decode", "q > -depth", "q < -depth"),
    (in_batch, "D-pause-progress", "forgive", "1 - depth", "-depth"),
    (adapters, "LORA-drain", "drains", "o.argmin(left, loaded)", "o.argmax(left, loaded)"),
    (adapters, "LORA-drain", "goes_past", "<= 0)", "<= 1)"),
    (adapters, "LORA-past", "goes_past", "loaded & ", ""),
    (adapters, "LORA-past", "goes_past", "first, 1", "first, 0"),
    (bands, "BAND-range", "charged", "lag + gain", "lag + gain + gain"),
    (bands, "BAND-range", "charged", "o.minimum(lag, 0)", "lag"),
    (bands, "BAND-range", "refunded", "0 - floor", "0 - floor - floor"),
    (bands, "BAND-share", "charged", "lag - cost", "lag - cost - cost"),
    (bands, "BAND-share", "refunded", "lag + cost", "lag"),
    (bands, "BAND-share", "may_go", "lag <= 0", "lag <= 1"),
    (bands, "BAND-first", "charged", "lag - cost", "lag"),
    (bands, "BAND-first", "may_go", "lag <= 0", "lag < 0"),
    (bands, "BAND-first", "choose", "argmax", "argmin"),
    (bands, "BAND-gate", "choose", " & ready", ""),
    (bands, "BAND-gate", "may_go", "alone | (lag <= 0)", "lag <= 0"),
    (in_batch, "D-pause-progress", "forgive", "o.none(queued)", "o.any(queued)"),
    (in_batch, "D-pause-work", "may_decode", "q > -depth", "q > 1 - depth"),
    (in_batch, "D-pause-work", "forgive", "maximum(q, 1 - depth)", "minimum(q, 1 - depth)"),
    (credit_ledger, "D2-unsent", "unsent_after", "owed <= most", "owed <= most + 1"),
    (credit_ledger, "D2-unsent", "unsent_after", "(owed >= 0) & ", ""),
    (credit_ledger, "D2-unsent", "ledger_after", "q + grant", "q"),
    (credit_ledger, "D2-unsent", "seen", "q - unsent", "q"),
    (leased, "L-balance", "leased", "o.minimum(pool, o.where(asks, most, 0))", "pool"),
    (leased, "L-progress", "leased", ", o.minimum(balance, 0))", ", balance)"),
    (
        leased,
        "L-balance",
        "leased",
        "o.maximum(o.minimum(pool, o.where(asks, most, 0)), o.minimum(balance, 0))",
        "o.minimum(pool, o.where(asks, most, 0))",
    ),
    (leased, "L-most", "left_over", "pool - balance", "pool"),
    (leased, "L-account", "pooled", "q + balance", "q + balance + balance"),
    (leased, "L-gap", "left_over", "pool - balance", "pool"),
    (leased, "L-lag", "pooled", "q + balance", "q"),
    (leased, "L-weighted", "left_over", "pool - balance", "pool - balance - balance"),
    (leased, "L-faults", "pooled", "q + balance", "q - balance"),
    (leased, "L-renewal", "topped_up", "waiting & o.any(asks)", "asks"),
    (leased, "L-renewal", "topped_up", " & o.any(asks)", ""),
    (leased, "L-progress", "leased", "o.where(asks, most, 0)", "0"),
    (leased, "L-progress", "topped_up", "rounds(o, pool, waiting & o.any(asks), known, quantum)", "pool"),
    (leased, "L-again", "is_new", "said > serial", "said >= serial"),
    (leased, "L-again", "is_new", "said > serial", "(said > serial) | (said <= serial)"),
    (leased, "L-again", "taken_back", "serial > heard", "serial >= heard"),
    (leased, "L-again", "taken_back", "q + o.where(serial > heard, moved, 0)", "q"),
    (leased, "L-int64", "pooled", "q + balance", "q + balance + balance + balance + balance"),
    (deficit, "L-account", "refill", "(q <= 0)", "(q <= 1)"),
    (deficit, "L-gap", "refill", " & due", ""),
    (deficit, "L-gap", "admit", "-charge", "1 - charge"),
    (deficit, "L-lag", "refill", "(q <= 0)", "(q < 0)"),
    (deficit, "L-balance", "in_credit", "q > 0", "q >= 0"),
    (deficit, "L-most", "refill", "q + quantum", "q + quantum + quantum"),
    (deficit, "L-debt", "decode", "q - charge", "q - charge - charge"),
]


def _claims(module: ModuleType, kernel: ModuleType) -> dict[str, Claim]:
    """The claims about a variant of a module of kernels."""
    made: tuple[Claim | ArithmeticClaim | SampledClaim, ...]
    if module is deficit:
        made = deficit_progress_proofs.claims(kernel) + deficit_kernel_proofs.claims(kernel)
        made += change_proofs.claims(deficit_kernel=kernel) + int64_proofs.claims(deficit_kernel=kernel)
        made += global_proofs.claims(gate=kernel) + phase_proofs.kernel_claims(gate=kernel)
        made += lease_holder_proofs.claims(gate=kernel) + lease_proofs.claims(gate=kernel)
    elif module is counter:
        made = counter_proofs.claims(kernel) + counter_wait_proofs.claims(kernel)
        made += change_proofs.claims(counter_kernel=kernel) + int64_proofs.claims(counter_kernel=kernel)
    elif module is bands:
        made = bands_proofs.claims(kernel) + int64_proofs.claims(band_kernel=kernel)
    elif module is adapters:
        made = adapters_proofs.claims(kernel)
    elif module is in_batch:
        made = in_batch_proofs.claims(kernel)
    elif module is leased:
        made = lease_holder_proofs.claims(kernel) + lease_proofs.claims(kernel) + lease_message_proofs.claims(kernel)
        made += int64_proofs.claims(lease_kernel=kernel)
    elif module is credit_ledger:
        made = global_worker_proofs.claims(credit_ledger_kernel=kernel)
    else:
        made = global_worker_proofs.claims(kernel) + global_proofs.claims(kernel) + phase_proofs.kernel_claims(kernel)
    return {claim.theorem.id: claim for claim in made if isinstance(claim, Claim)}


@pytest.mark.parametrize(("module", "theorem", "function", "old", "new"), BUGS)
def test_a_seeded_bug_breaks_the_theorem(module: ModuleType, theorem: str, function: str, old: str, new: str) -> None:
    """One change to the shipped text, and a world of at most 3 clients breaks the theorem in both interpretations."""
    verdict = prove(_claims(module, variant(module, function, old, new))[theorem])
    assert isinstance(verdict, Broken), verdict
    assert 1 <= verdict.world.clients <= 3


@pytest.mark.parametrize("assumption", ["MemReserve", "ChargesAtLeastOne"])
def test_without_what_one_worker_promises_the_cluster_promises_nothing(assumption: str) -> None:
    """D2-memory's two assumptions are each worker's: U of the cluster is a sum only while both hold."""
    claim = global_worker_proofs.claims()[0]
    verdict = next(found for named, found in audit(claim).items() if named.name == assumption)
    assert isinstance(verdict, Broken)


WORKER_BUGS = [
    ("KV-admit", "_admit", "need = kv_tokens + cache.tree", "need = cache.tree"),
    ("KV-admit", "_admit", "need > state.free", "need > state.free + 1"),
    ("KV-admit", "_admit", "promised=state.promised + kv_tokens", "promised=state.promised + extend"),
    ("KV-prefill", "_prefill", "promised=state.promised - moved", "promised=state.promised"),
    ("KV-release", "release", "promised=state.promised - flight.kv_tokens", "promised=state.promised"),
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
    """The text that the simulator runs is the text that is executed on symbolic integers."""
    module = next(m for m in (worker_host, worker_batch, worker_transit, worker) if _defines(m, function))
    text = inspect.getsource(getattr(module, function))
    assert text.count(old) == 1
    made = dict(vars(module))
    exec(text.replace(old, new), made)
    monkeypatch.setattr(module, function, made[function])
    for user in (worker_transit, worker):
        if hasattr(user, function):
            monkeypatch.setattr(user, function, made[function])
    claims = (
        *memory_proofs.arithmetic_claims(),
        *swap_proofs.arithmetic_claims(),
        *transit_proofs.arithmetic_claims(),
    )
    claim = next(claim for claim in claims if claim.theorem.id == theorem)
    assert isinstance(prove(claim), Broken)


@pytest.mark.parametrize("error", move_proofs.wrong_moves())
def test_an_error_in_the_order_of_a_transfer_is_found(error: str) -> None:
    """KV-move falls with each, for a single request."""
    verdict = prove(move_proofs.wrong_moves()[error])
    assert isinstance(verdict, Broken), error
    assert verdict.world.clients == 1


def _defines(module: ModuleType, function: str) -> bool:
    return hasattr(module, function) and getattr(module, function).__module__ == module.__name__
