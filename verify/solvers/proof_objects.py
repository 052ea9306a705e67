"""Proofs that cvc5 writes of the goals, step by step, in its format CPC: what a checker needs to believe no solver.

The question is the text that both solvers are asked; `fairsched.verify.checker` reads the proof.
"""

import gzip

import cvc5

from fairsched.verify.checker import check
from fairsched.verify.solvers.cross_check import CVC5_OPTIONS

PROOF_OPTIONS = {
    **CVC5_OPTIONS,
    "produce-proofs": "true",
    "proof-granularity": "dsl-rewrite",
    "proof-print-conclusion": "true",
    "nl-cov": "false",
    "nl-ext": "full",
}
"""Each step is an application of one small rule, and says what it concludes.

Products are reasoned about by signs, sizes and tangents, which have rules; cylindrical coverings have none.
"""

RLIMIT_PROOF = 2_500_000
"""Budget of one proof in cvc5's deterministic resource units, a minute or two; the hardest took two fifths of it."""


def cpc_proof(text: str, rlimit: int = RLIMIT_PROOF) -> str:
    """Return cvc5's proof that a question has no model; raises `ValueError` if it does not say `unsat`."""
    terms = cvc5.TermManager()
    solver = cvc5.Solver(terms)
    for option, value in {**PROOF_OPTIONS, "rlimit": rlimit}.items():
        solver.setOption(option, str(value))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "question")
    said = ""
    while not (command := parser.nextCommand()).isNull():
        said += str(command.invoke(solver, parser.getSymbolManager())).strip()
    if said != "unsat":
        raise ValueError(f"cvc5 says {said or 'nothing'}, and has no proof")
    (proof,) = solver.getProof(cvc5.ProofComponent.FULL)
    written = solver.proofToString(proof, cvc5.ProofFormat.CPC).decode().strip()
    # The whole is in brackets of its own.
    return str(written.removeprefix("(").removesuffix(")").lstrip())


def checked_proof(text: str) -> tuple[bytes, str]:
    """Return a proof that a question has no model, compressed; without one that the checker accepts b"" and why."""
    try:
        proof = cpc_proof(text)
    except ValueError as error:
        return b"", str(error)
    found = check(text, proof)
    # Without a time in it, the same proof is the same bytes.
    return (gzip.compress(proof.encode(), mtime=0), "") if found.accepted else (b"", found.why)
