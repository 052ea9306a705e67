"""Check proofs that SMT-LIB questions have no model: the standard library, and no solver.

    python proof.py DIRECTORY

Each X.cpc.gz there is to prove that X.smt2 beside it has no model.  Exit status: 0 if all are accepted, 1 if not, with
a line that says why.  The proofs are in cvc5's format (CPC), with the conclusion of every step.  A step is accepted if
its conclusion *follows* from its premises by one of the few kinds of reasoning in `rules`; the name of its rule only
chooses which.  A rule without a row there is never accepted, and a step that the solver would have us `trust` has to
follow as well.  What the proof assumes must be an assertion of the question, and the end must be `false`.

A term `@purify t` is a name for t, and `to_real` changes no number, so both are read as what they stand for.
"""

import gzip
import sys
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from fairsched.verify.checker.rules import Premises, Reasoning, reasoning
from fairsched.verify.checker.terms import NotCheckedError, Term, TermTable, expressions

QUESTION, PROOF = ".smt2", ".cpc.gz"
"""Endings of the names of files."""

DEPTH_MAX = 20_000
"""How deep terms may be nested, counted in calls."""


def question_of(proof: Path) -> Path:
    """Return the path of the question of a proof."""
    return proof.with_name(proof.name.removesuffix(PROOF) + QUESTION)


class CheckedProof(NamedTuple):
    """Whether a proof is accepted; if not, why: the first step that is not checked, by its name and rule."""

    accepted: bool
    steps: int
    why: str = ""


def asked(t: TermTable, text: str) -> frozenset[Term]:
    """Return what an SMT-LIB question asserts; raises `NotCheckedError` for anything but one plain question."""
    found, checks = set[Term](), False
    for command in expressions(text):
        if checks:
            raise NotCheckedError("the question goes on after it is asked")
        match command:
            case ["set-info" | "set-logic", *_]:
                pass
            case ["declare-sort", str(name), "0"]:
                t.sorts.add(name)
            case ["declare-fun", str(name), list(domain), str(sort)]:
                t.declare(name, domain, sort)
            case ["declare-const", str(name), str(sort)]:
                t.declare(name, (), sort)
            case ["define-fun", str(name), [], str(), body]:
                t.define(name, t.read(body))
            case ["assert", formula]:
                found.add(t.read(formula))
            case ["check-sat"]:
                checks = True
            case _:
                raise NotCheckedError(f"the question has a command of another kind: {command[:1]}")
    if not checks:
        raise NotCheckedError("the question asks nothing")
    return frozenset(found)


class Proof:
    """What has been shown so far: of each step its formula, and the assumptions of open scopes under which it holds."""

    def __init__(self, question: str) -> None:
        self.terms = TermTable()
        self.asserted = asked(self.terms, question)
        self.shown: dict[str, tuple[Term, frozenset[str]]] = {}
        self.open: list[str] = []
        self.steps = 0
        self.done = False

    def follow(self, command: Any) -> None:
        """Check one command of the proof; raises `NotCheckedError` if it does not follow."""
        t = self.terms
        match command:
            case ["declare-type" | "declare-sort", str(name), *_]:
                if name not in t.sorts:
                    raise NotCheckedError(f"the question has no sort {name}")
            case ["declare-const" | "declare-fun", str(name), *kind]:
                if name not in t.functions:
                    raise NotCheckedError(f"the question has no {name}")
                self._same_kind(name, kind)
            case ["define", str(name), [], body, *_]:
                t.define_later(name, body)
            case ["assume", str(name), formula]:
                if (term := t.read(formula)) not in self.asserted:
                    raise NotCheckedError(f"{name} assumes what the question does not assert")
                self._show(name, term, frozenset())
            case ["assume-push", str(name), formula]:
                self._show(name, t.read(formula), frozenset({name}))
                self.open.append(name)
            case ["step-pop", str(name), ":rule", "scope", ":premises", [str(premise)]]:
                if not self.open:
                    raise NotCheckedError(f"{name} closes no scope")
                closed = self.open.pop()
                term, under = self._premise(premise)
                self._show(name, t.make("=>", (self._premise(closed)[0], term)), under - {closed})
            case ["step", str(name), conclusion, ":rule", str(rule), *rest]:
                self._step(name, t.read(conclusion), rule, rest)
            case _:
                raise NotCheckedError(f"a command of another kind: {str(command)[:60]}")

    def _step(self, name: str, conclusion: Term, rule: str, rest: list[Any]) -> None:
        if name in self.shown and self.shown[name][0] == conclusion and self.shown[name][1] <= set(self.open):
            # It was shown before, and what it assumes is still assumed.
            return
        match rest:
            case [":premises", list(given), *_]:
                premises = [self._premise(each) for each in given]
            case [] | [":args", _]:
                premises = []
            case _:
                raise NotCheckedError(f"{name} is written in a way that is not known")
        how = reasoning(rule)
        if how is None:
            raise NotCheckedError(f"{name} is by {rule}, a rule that is not known")
        if not self.follows(rule, how, conclusion, tuple(term for term, _ in premises)):
            raise NotCheckedError(f"{name} does not follow by {rule}")
        self._show(name, conclusion, frozenset().union(*(under for _, under in premises)))

    def follows(self, rule: str, how: Reasoning, conclusion: Term, premises: Premises) -> bool:
        """Return whether a step follows."""
        return how(self.terms, conclusion, premises)

    def _premise(self, name: Any) -> tuple[Term, frozenset[str]]:
        if not isinstance(name, str) or name not in self.shown:
            raise NotCheckedError(f"{name} has not been shown")
        return self.shown[name]

    def _show(self, name: str, term: Term, under: frozenset[str]) -> None:
        if self.shown.get(name, (term,))[0] != term:
            raise NotCheckedError(f"{name} is shown twice")
        self.shown[name] = (term, under)
        self.steps += 1
        self.done = self.done or (term == self.terms.false and not under)

    def _same_kind(self, name: str, kind: list[Any]) -> None:
        match kind:
            case [["->", *domain, sort]] | [list(domain), sort]:
                said = (tuple(domain), sort)
            case [sort]:
                said = ((), sort)
            case _:
                raise NotCheckedError(f"{name} is declared in a way that is not known")
        if self.terms.functions[name] != said:
            raise NotCheckedError(f"{name} is not what it is in the question")


def check(question: str, proof: str) -> CheckedProof:
    """Check that a proof shows that the assertions of an SMT-LIB question cannot all be true."""
    followed, at, depth = None, "the question", sys.getrecursionlimit()
    sys.setrecursionlimit(max(depth, DEPTH_MAX))
    try:
        followed = Proof(question)
        at = "the proof"
        for command in expressions(proof):
            followed.follow(command)
    except (NotCheckedError, RecursionError) as error:
        return CheckedProof(False, followed.steps if followed else 0, f"{at}: {error}")
    finally:
        sys.setrecursionlimit(depth)
    return CheckedProof(followed.done, followed.steps, "" if followed.done else "the proof does not end in false")


def check_files(question: Path, proof: Path) -> CheckedProof:
    """Check a compressed proof; a file that cannot be read is not checked."""
    try:
        return check(question.read_text(), gzip.decompress(proof.read_bytes()).decode())
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        return CheckedProof(False, 0, f"not to be read: {error}")


def main(arguments: list[str]) -> int:
    """Check each proof in a folder against the question beside it, and print what came of it."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python proof.py DIRECTORY\n")
        return 2
    proofs = sorted(Path(arguments[0]).rglob(f"*{PROOF}"))
    refused = 0
    for proof in proofs:
        found = check_files(question_of(proof), proof)
        if not found.accepted:
            refused += 1
            sys.stderr.write(f"{proof}: not checked: {found.why}\n")
    sys.stdout.write(f"{len(proofs)} proofs, {refused} refused\n")
    return 1 if refused or not proofs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
