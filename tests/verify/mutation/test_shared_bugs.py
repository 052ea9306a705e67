"""Each theorem about one deficit for all workers falls with a bug in the text that it is about."""

from types import ModuleType

import pytest

from fairsched.policies.gates.deficit import gate as deficit
from fairsched.policies.gates.shared import credit_ledger
from fairsched.policies.gates.shared import gate as global_deficit
from fairsched.verify.logic import Claim
from fairsched.verify.logic.patching import variant
from fairsched.verify.proofs.gates import shared as global_proofs
from fairsched.verify.proofs.gates import shared_workers as global_worker_proofs
from fairsched.verify.solvers import Refuted, prove
from fairsched.verify.solvers.prover import audit

BUGS = [
    (deficit, "D2-global", "admit", "-charge", "1 - charge"),
    (deficit, "D2-global", "refill", "(q <= 0)", "(q <= 1)"),
    (deficit, "D2-lag", "decode", "q - charge", "q"),
    (deficit, "D2-lag", "choose", "in_credit(o, q, queued) & ready", "queued & ready"),
    (deficit, "D2-steal", "choose", "in_credit(o, q, queued) & ready", "queued & (q > 1)"),
    (deficit, "D2-gift", "refill", " & due", ""),
    (deficit, "D2-together", "refill", "(q <= 0)", "(q < 0)"),
    (deficit, "D2-stale", "correct", "-charge", "charge"),
    (global_deficit, "D2-places", "depart", "-1", "-2"),
    (global_deficit, "D2-places", "waits", "places > 0", "places > 1"),
    (global_deficit, "D2-global", "refund", "o.maximum(o.pick(q, p, 0), given)", "o.pick(quantum, p, 0)"),
    (global_deficit, "D2-stale", "refund", "o.maximum(o.pick(q, p, 0), given)", "given"),
    (credit_ledger, "D2-unsent", "unsent_after", "owed <= most", "owed <= most + 1"),
    (credit_ledger, "D2-unsent", "unsent_after", "(owed >= 0) & ", ""),
    (credit_ledger, "D2-unsent", "ledger_after", "q + grant", "q"),
    (credit_ledger, "D2-unsent", "seen", "q - unsent", "q"),
]


def _claims(module: ModuleType, kernel: ModuleType) -> dict[str, Claim]:
    """The claims about a variant of one of the three modules."""
    if module is credit_ledger:
        made = global_worker_proofs.claims(credit_ledger_kernel=kernel)
    elif module is deficit:
        made = global_proofs.claims(gate=kernel)
    else:
        made = global_worker_proofs.claims(kernel) + global_proofs.claims(kernel)
    return {claim.theorem.id: claim for claim in made}


@pytest.mark.parametrize(("module", "theorem", "function", "old", "new"), BUGS)
def test_a_seeded_bug_breaks_the_theorem(module: ModuleType, theorem: str, function: str, old: str, new: str) -> None:
    """One change to the shipped text, and a world of at most 3 clients breaks the theorem in both interpretations."""
    verdict = prove(_claims(module, variant(module, function, old, new))[theorem])
    assert isinstance(verdict, Refuted), verdict
    assert 1 <= verdict.world.clients <= 3


@pytest.mark.parametrize("assumption", ["MemReserve", "ChargesAtLeastOne"])
def test_without_what_one_worker_promises_the_cluster_promises_nothing(assumption: str) -> None:
    """D2-memory's two assumptions are each worker's: U of the cluster is a sum only while both hold."""
    claim = global_worker_proofs.claims()[0]
    verdict = next(found for named, found in audit(claim).items() if named.name == assumption)
    assert isinstance(verdict, Refuted)
