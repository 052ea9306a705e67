"""A second solver decides every obligation, from SMT-LIB text: a proof counts only if both agree.

Each obligation asks two questions: whether its hypotheses can be true at all (they must, or the proof is vacuous), and
whether they can be true while its goal fails (they must not).  cvc5 shares no code with Z3.

Of a goal cvc5 can also write a proof, step by step, in its format CPC: what a checker needs to believe no solver.  The
question is the same text; `fairsched.verify.checker` reads the proof.
"""

import gzip
from collections.abc import Iterable, Iterator
from typing import cast

import attrs
import cvc5
import z3

from fairsched.model.theorem import Assumption, Theorem
from fairsched.verify.checker import check
from fairsched.verify.logic import Answer, ArithmeticClaim, Claim, Seen, SmtScript, WorldClaim, script
from fairsched.verify.solvers.prover import RLIMIT as RLIMIT_Z3
from fairsched.verify.solvers.prover import Obligation, Path, solver_of, to_show

RLIMIT = 5_000_000
"""Budget of one question in cvc5's deterministic resource units."""

CVC5_OPTIONS = {"nl-rlv": "interleave"}
"""Products: look at those that matter to the goal first, which one obligation needs to be decided in seconds."""

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

_ASKED: dict[str, tuple[Answer, str]] = {
    "hypotheses": ("sat", "the hypotheses; sat: they can all be true, the proof is not vacuous"),
    "goal": ("unsat", "the hypotheses, and the goal fails; unsat: they imply it"),
}
"""The expected answer to either question of an obligation, and what is asked."""


@attrs.frozen
class Question:
    """One question of an obligation: `about` is "goal" or "hypotheses", `clients` how many its formulas name."""

    theorem: str
    obligation: str
    about: str
    clients: int
    script: SmtScript


def questions(
    claim: Claim | WorldClaim,
    dropped: frozenset[Assumption] = frozenset(),
    built: Iterable[Obligation | Path] | None = None,
) -> Iterator[Question]:
    """Yield what a solver is asked about a claim, two questions an obligation; nothing about one that is tried in
    worlds.

    `built` are its obligations, or its paths, if they are known.  Whether the hypotheses of an obligation can be true
    is asked about a tiny world if they are true in one.
    """
    made = to_show(claim, dropped) if built is None else built
    match claim:
        case Claim():
            return _of_steps(claim, cast("Iterable[Obligation]", made))
        case ArithmeticClaim():
            return _of_paths(claim, list(cast("Iterable[Path]", made)))
    return iter(())


def _of_steps(claim: Claim, built: Iterable[Obligation]) -> Iterator[Question]:
    for obligation in built:
        clients = len(obligation.algebra.clients)
        known = (*obligation.algebra.instances(), *obligation.hypotheses)
        possible, failing, seen = (*known, obligation.happens), (*known, z3.Not(obligation.goal)), Seen()
        yield _question(claim.theorem, obligation.step.name, "hypotheses", clients, (*possible, *obligation.tiny), seen)
        yield _question(claim.theorem, obligation.step.name, "goal", clients, failing, seen, opaque=claim.system.opaque)


def _of_paths(claim: ArithmeticClaim, paths: list[Path]) -> Iterator[Question]:
    reached = z3.Or([z3.And(path.known) for path in paths if path.shown])
    seen = Seen()
    yield _question(claim.theorem, "conditions", "hypotheses", 0, (reached,), seen)
    for number, path in enumerate(paths, 1):
        for name, known, goal in path.goals():
            obligation = name if len(paths) == 1 else f"{name}, path {number}"
            failing = (*known, z3.Not(goal))
            yield _question(claim.theorem, obligation, "goal", 0, failing, seen, relaxed=claim.relaxed)


def _question(
    theorem: Theorem,
    obligation: str,
    about: str,
    clients: int,
    terms: tuple[z3.ExprRef, ...],
    seen: Seen,
    *,
    opaque: bool = False,
    relaxed: bool = False,
) -> Question:
    expected, meaning = _ASKED[about]
    names = ", ".join(assumption.name for assumption in theorem.assumptions)
    comment = (
        f"theorem {theorem.id}: {theorem.statement}",
        *((f"assumes {names}",) if names else ()),
        f"obligation {obligation}: {meaning}",
    )
    text = script(terms, expected, comment, opaque=opaque, relaxed=relaxed, seen=seen)
    return Question(theorem.id, obligation, about, clients, text)


def versions(quick: bool = False) -> dict[str, str]:
    """Return the solvers and their versions."""
    found = {"z3": str(z3.get_version_string())}
    return found if quick else {**found, "cvc5": str(cvc5.__version__)}


def cvc5_answer(text: str, rlimit: int = RLIMIT, seed: int = 0) -> str:
    """Return cvc5's answer to a script of one question: `sat`, `unsat`, or something that begins with `unknown`.

    Raises `ValueError` for a text that is not SMT-LIB.
    """
    terms = cvc5.TermManager()
    solver = cvc5.Solver(terms)
    for option, value in {**CVC5_OPTIONS, "rlimit": rlimit, "seed": seed}.items():
        solver.setOption(option, str(value))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "question")
    said = []
    try:
        while not (command := parser.nextCommand()).isNull():
            said.append(str(command.invoke(solver, parser.getSymbolManager())).strip())
    except RuntimeError as error:
        raise ValueError(f"not SMT-LIB: {' '.join(str(error).split())}") from error
    answers = [line for line in said if line]
    return answers[0] if len(answers) == 1 else f"unknown ({'; '.join(answers) or 'nothing was asked'})"


def z3_answer(text: str) -> str:
    """Return Z3's answer to the same text, in the same words."""
    solver = solver_of(RLIMIT_Z3)
    try:
        solver.from_string(text)
    except z3.Z3Exception as error:
        raise ValueError(f"not SMT-LIB: {' '.join(str(error).split())}") from error
    return str(solver.check())


def disagreement(question: Question, rlimit: int = RLIMIT) -> str | None:
    """Return what cvc5 says instead of the expected answer, or None if it agrees."""
    answer = cvc5_answer(question.script.text, rlimit)
    if answer == question.script.expected:
        return None
    return f"cvc5 says {answer} about the {question.about} of {question.obligation}, not {question.script.expected}"


# --- proofs to be checked ---------------------------------------------------------------------------------------------


def cpc_proof(text: str) -> str:
    """Return cvc5's proof that a question has no model; raises `ValueError` if it does not say `unsat`."""
    terms = cvc5.TermManager()
    solver = cvc5.Solver(terms)
    for option, value in {**PROOF_OPTIONS, "rlimit": RLIMIT_PROOF}.items():
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
