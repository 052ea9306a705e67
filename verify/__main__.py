"""``python -m fairsched.verify``: every theorem about the shipped gates, decided now, as a table."""

import sys
from collections.abc import Iterator

import z3

from fairsched.verify import pricing_proofs, prover
from fairsched.verify.prover import Proved, Refuted, Verdict
from fairsched.verify.suite import gate_claims
from fairsched.verify.witness import attained, witnesses

_ROW = "{:13} {:8} {:6} {:>14} {:>6}  {}\n"


def _verdicts() -> Iterator[Verdict]:
    yield from (pricing_proofs.prove(claim) for claim in pricing_proofs.claims())
    yield from (prover.prove(claim) for claim in gate_claims())


def _said(verdict: Verdict) -> tuple[str, str]:
    """The verdict as a word, and what there is to explain."""
    match verdict:
        case Proved():
            return "proved", ""
        case Refuted(world=world):
            return "REFUTED", str(world)
        case _:
            return "unknown", f"{verdict.obligation}: {verdict.reason}"


def main() -> int:
    """Prints the table; 1 if anything is not proved."""
    tightness = {witness.theorem.id: f"{attained(witness)}/{witness.bound_cost}" for witness in witnesses()}
    sys.stdout.write(_ROW.format("theorem", "verdict", "scope", "attained/bound", "ms", "statement and assumptions"))
    failures = 0
    for verdict in _verdicts():
        theorem, (said, why) = verdict.theorem, _said(verdict)
        failures += bool(why)
        tight = tightness.get(theorem.id, "")
        sys.stdout.write(
            _ROW.format(theorem.id, said, theorem.scope.value, tight, f"{verdict.ms:.0f}", theorem.statement)
        )
        names = ", ".join(assumption.name for assumption in theorem.assumptions)
        for line in filter(None, (f"needs {names}" if names else "", why)):
            sys.stdout.write(" " * 53 + line + "\n")
    sys.stdout.write(f"Z3 {z3.get_version_string()}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
