"""A proof assistant's kernel decides questions too: each goal as a lemma for Coq, about any type of clients.

The lemma is made from the text that the solvers read: vectors are functions from clients to integers, masks too (true
from 1 on), and what is asserted are its hypotheses.  Clients can be told apart, and nothing else is assumed of them.
`coqc` (8.16 or newer; Debian's package `coq`) accepts the file or says where it does not.

`lia` alone does not suffice: it tries every way in which a lemma's hypotheses may hold, hundreds of two or more each.
So the goal is proved conjunct by conjunct, and for each Z3 says which hypotheses it needs, and on which comparisons to
split until `lia` has to refute a conjunction of a dozen linear facts.  These are hints: the lemma keeps all hypotheses,
and the kernel accepts no proof because a solver said so.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import prod
from pathlib import Path
from subprocess import TimeoutExpired, run
from typing import Any

import attrs
import z3

from fairsched.verify.checker import expressions
from fairsched.verify.solvers.prover import RLIMIT, solver_of

_HEADER = """From Coq Require Import ZArith Lia Decidable.
Open Scope Z_scope.
Lemma le_decided a b : decidable (a <= b).
Proof. unfold decidable; lia. Qed.
Lemma eq_decided (a b : Z) : decidable (a = b).
Proof. unfold decidable; lia. Qed.
Create HintDb decided.
#[global] Hint Resolve le_decided eq_decided dec_and dec_or dec_not dec_imp dec_iff dec_True dec_False : decided.
"""
WAIT_S = 900
"""How long `coqc` may take for a lemma."""
UNAIDED_S = 60
"""How long it may look for a contradiction of which Z3 gave no hint."""
_TRUTHS = {"and": "/\\", "or": "\\/", "=>": "->", "iff": "<->"}
_SIGNS = ("+", "-", "*", "<=", "=", "not", "and", "or", "=>", "iff")
_COMPARISONS = {"<=": "Z_le_dec", "=": "Z.eq_dec"}
"""All comparisons of a lemma's facts, and the theorem that says of each that it holds or not."""
_RESERVED = ("same", "tells", "Fails", "if", "then", "else", "in", "at", "as", "let", "fun", "end", "R", "Q", "Z")


class NotWrittenError(ValueError):
    """A question uses what a lemma here cannot say."""


Fact = Any
"""A truth, as nested tuples: "true", "false", a comparison of two integers, or a connective with its parts."""


class _Lemma:
    """A question read as a lemma: its variables, its hypotheses in order, and the goal."""

    def __init__(self, text: str) -> None:
        self.variables: list[str] = []
        self.hypotheses: list[Fact] = []
        self.sort = ""
        self.functions: dict[str, tuple[tuple[str, ...], str]] = {}
        self.names: dict[str, str] = {}
        self.meant: dict[str, Any] = {}
        self.chosen: dict[Any, str] = {}
        self.linear = True
        for form in expressions(text):
            match form:
                case ["declare-sort", sort, "0"] if not self.sort:
                    self.sort = sort
                case ["declare-fun", name, arguments, result]:
                    self._declare(name, tuple(arguments), result)
                case ["define-fun", name, [], "Bool", term]:
                    self.functions[name] = ((), "Bool")
                    self.meant[name] = self._truth(term)
                case ["define-fun", name, [], "Int", term]:
                    self._define(name, self._integer(term))
                case ["assert", term]:
                    self.hypotheses.append(_simplified(self._truth(term), {}))
                case ["declare-sort", *_]:
                    raise NotWrittenError("a lemma here has one type of clients")
        last = self.hypotheses[-1] if self.hypotheses else "true"
        self.goal = self.hypotheses.pop()[1] if last[0] == "not" else "false"

    def _declare(self, name: str, arguments: tuple[str, ...], result: str) -> None:
        self.functions[name] = (arguments, result)
        self.variables.append(name)

    def _define(self, name: str, term: Any) -> None:
        """Give a term its name, or the name its meaning where that is as short."""
        if isinstance(term, str) or term[0] in self.functions:
            self.functions[name] = ((), "Int")
            self.meant[name] = term
        else:
            self._declare(name, (), "Int")
            self.hypotheses.append(("=", name, term))

    def written(self, name: str) -> str:
        """Return the name as Coq writes it, the same each time and no other's."""
        if name not in self.names:
            plain = "".join(each if each.isascii() and each.isalnum() else "_" for each in name.strip("|"))
            free = plain if plain[:1].isalpha() else f"x{plain}"
            while free in self.names.values() or free in _RESERVED:
                free += "_"
            self.names[name] = free
        return self.names[name]

    # --- reading ----------------------------------------------------------------------------------------------------

    def _applied(self, term: Any) -> Any:
        """Return a variable, or a function of one, as it stands."""
        name, *arguments = [term] if isinstance(term, str) else term
        if name not in self.functions:
            raise NotWrittenError(f"{name} is nothing that a lemma here can say")
        return self.meant.get(name, name) if not arguments else (name, *map(self._applied, arguments))

    def _sort(self, term: Any) -> str:
        name = term if isinstance(term, str) else term[0]
        if name in self.functions:
            return self.functions[name][1]
        if name == "ite":
            return self._sort(term[2])
        return "Int" if name in ("+", "-", "*") or name.isdigit() else "Bool"

    def _integer(self, term: Any) -> Any:
        match term:
            case str() if term.isdigit():
                return term
            case ["+" | "-" | "*" as sign, *parts]:
                self.linear &= sign != "*" or any(part.isdigit() for part in parts if isinstance(part, str))
                return (sign, *map(self._integer, parts))
            case ["ite", condition, one, other]:
                asked = _simplified(self._truth(condition), {})
                return self._one_of(asked, self._integer(one), self._integer(other))
        return self._applied(term)

    def _one_of(self, condition: Fact, one: Any, other: Any) -> Any:
        """Return a variable that is one of two integers, as the condition says."""
        if condition in ("true", "false"):
            return one if condition == "true" else other
        name = self.chosen.get((condition, one, other))
        if name is None:
            name = self.chosen[condition, one, other] = f"|chosen {len(self.chosen) + 1}|"
            self._declare(name, (), "Int")
            self.hypotheses.append(_either(condition, ("=", name, one), ("=", name, other)))
        return name

    def _truth(self, term: Any) -> Fact:
        match term:
            case "true" | "false":
                return term
            case ["not" | "and" | "or" | "=>" as sign, *parts]:
                return (sign, *map(self._truth, parts))
            case ["<=", one, other] | [">=", other, one]:
                return ("<=", self._integer(one), self._integer(other))
            case [">", one, other] | ["<", other, one]:
                return ("not", ("<=", self._integer(one), self._integer(other)))
            case ["ite", condition, one, other]:
                return _either(self._truth(condition), self._truth(one), self._truth(other))
            case ["=", one, other]:
                match self._sort(one):
                    case "Int":
                        return ("=", self._integer(one), self._integer(other))
                    case "Bool":
                        return ("iff", self._truth(one), self._truth(other))
                return "true" if one == other else _same(one, other)
            case ["distinct", one, other]:
                return ("not", self._truth(["=", one, other]))
            case str() if term in self.meant:
                return self.meant[term]
        return ("<=", "1", self._applied(term))

    # --- writing ----------------------------------------------------------------------------------------------------

    def said(self, term: Any) -> str:
        """Return a fact or an integer as Coq writes it."""
        match term:
            case "true" | "false":
                return str(term).capitalize()
            case str():
                return term if term.isdigit() else self.written(term)
            case ("not" | "-" as sign, one):
                return f"({'~' if sign == 'not' else sign} {self.said(one)})"
            case (sign, *parts) if sign in _TRUTHS or sign in _COMPARISONS or sign in ("+", "-", "*"):
                return f"({f' {_TRUTHS.get(sign, sign)} '.join(map(self.said, parts))})"
        name, *arguments = term
        return f"({' '.join(('same' if name == 'same' else self.written(name), *map(self.said, arguments)))})"

    def text(self, name: str) -> str:
        """Return the lemma and its proof."""
        sort = self.written(self.sort) if self.sort else ""
        told = f" ({sort} : Type) (same : {sort} -> {sort} -> Z) (tells : forall a b, 1 <= same a b <-> a = b)"
        kinds = {
            each: " -> ".join(sort if of == self.sort else "Z" for of in self.kind(each)) for each in self.variables
        }
        variables = "".join(f" ({self.written(each)} : {kind})" for each, kind in kinds.items())
        names = [sort, "same", "tells"] if sort else []
        names += [*map(self.written, self.variables), *map(_known, range(len(self.hypotheses)))]
        lines = [
            f"Lemma {name} : forall{told if sort else ''}{variables},",
            *(f"  {self.said(each)} ->" for each in self.hypotheses),
            f"  {self.said(self.goal)}.",
            "Proof.",
            f"intros {' '.join(names)}.",
            "repeat match goal with |- _ /\\ _ => split end.",
            *_Proof(self).lines(),
            "Qed.",
        ]
        return "\n".join(lines) + "\n"

    def declarations(self) -> Iterator[str]:
        """Yield what a solver has to know before it reads the facts: masks are integers, and clients differ or not."""
        if self.sort:
            yield f"(declare-sort {self.sort} 0)"
            yield f"(define-fun same ((one {self.sort}) (other {self.sort})) Int (ite (= one other) 1 0))"
        for name in self.variables:
            *arguments, result = (of if of == self.sort else "Int" for of in self.kind(name))
            yield f"(declare-fun {name} ({' '.join(arguments)}) {result})"

    def kind(self, name: str) -> tuple[str, ...]:
        """Return the sorts of a function's arguments and result."""
        arguments, result = self.functions[name]
        return (*arguments, result)


# --- facts ------------------------------------------------------------------------------------------------------------


def _either(condition: Fact, one: Fact, other: Fact) -> Fact:
    if other == "true":
        return ("=>", condition, one)
    return ("or", ("and", condition, one), ("and", ("not", condition), other))


def _same(one: str, other: str) -> Fact:
    return ("<=", "1", ("same", *sorted((one, other))))


def _known(number: int) -> str:
    return f"H'{number}"


def _conjuncts(fact: Fact) -> Iterator[Fact]:
    if fact[0] == "and":
        for part in fact[1:]:
            yield from _conjuncts(part)
    else:
        yield fact


def _terms(term: Any) -> Iterator[Any]:
    """Yield all that a fact is made of, itself first."""
    yield term
    if isinstance(term, tuple):
        for part in term[1:]:
            yield from _terms(part)


def _comparisons(fact: Fact) -> Iterator[Fact]:
    return (each for each in _terms(fact) if each[0] in _COMPARISONS)


def _simplified(fact: Fact, known: Mapping[Fact, bool]) -> Fact:
    """Return what a fact says where it is known of some comparisons whether they hold."""
    if fact in known:
        return "true" if known[fact] else "false"
    if isinstance(fact, str) or fact[0] in _COMPARISONS:
        return fact
    sign, *parts = (fact[0], *(_simplified(part, known) for part in fact[1:]))
    match sign:
        case "not":
            return {"true": "false", "false": "true"}.get(parts[0], ("not", parts[0]))
        case "iff":
            for one, other in (parts, parts[::-1]):
                if one in ("true", "false"):
                    return other if one == "true" else _simplified(("not", other), {})
            return ("iff", *parts)
        case "=>":
            *conditions, last = parts
            asked = _simplified(("and", *conditions), {})
            if asked in ("true", "false"):
                return last if asked == "true" else "true"
            return {"true": "true", "false": ("not", asked)}.get(last, ("=>", asked, last))
    unit, zero = ("true", "false") if sign == "and" else ("false", "true")
    parts = [part for part in parts if part != unit]
    if zero in parts or not parts:
        return zero if parts else unit
    return (sign, *parts) if len(parts) > 1 else parts[0]


def _ways(fact: Fact, holds: bool = True) -> int:
    """Return in how many ways a fact may hold, or fail, each a conjunction of linear facts."""
    match fact:
        case "true" | "false":
            return int((fact == "true") == holds)
        case ("=", *_):
            return 1 if holds else 2
        case ("<=", *_):
            return 1
        case ("not", one):
            return _ways(one, not holds)
        case ("=>", one, other):
            return _ways(("or", ("not", one), other), holds)
        case ("iff", one, other):
            return sum(_ways(one, said) * _ways(other, said == holds) for said in (True, False))
    parts = [_ways(part, holds) for part in fact[1:]]
    return prod(parts) if (fact[0] == "and") == holds else sum(parts)


def _laws(facts: Iterable[Fact]) -> Iterator[Fact]:
    """Yield what follows for the terms of these facts from whether clients are the same."""
    applied = dict[str, set[str]]()
    for fact in facts:
        for term in _terms(fact):
            match term:
                case (name, *arguments) if name not in _SIGNS:
                    applied.setdefault(name, set()).update(arguments)
    for name, clients in applied.items():
        for one, other in combinations(sorted(clients) if name != "same" else (), 2):
            yield ("=>", _same(one, other), ("=", (name, one), (name, other)))
    for three in combinations(sorted(set().union(*applied.values())), 3):
        for one, two, other in (three, (three[1], three[0], three[2]), (three[0], three[2], three[1])):
            yield ("=>", _same(one, two), ("=>", _same(two, other), _same(one, other)))


# --- proofs


@attrs.frozen
class _Tree:
    """Facts that contradict each other: at once, or after a split on a comparison, whether it holds or not.

    `known` are the comparisons that were split on further up, as far as it rests on them.
    """

    facts: frozenset[int]
    known: Mapping[Fact, bool]
    on: Fact = None
    branches: tuple["_Tree", ...] = ()


class _Solver:
    """Z3, told facts: it says which of them contradict each other.  With `laws`, it is told when clients are the same
    by facts; otherwise it knows."""

    def __init__(self, lemma: _Lemma, facts: Sequence[Fact], *, laws: bool) -> None:
        self.facts = facts
        self.compared = list(dict.fromkeys(each for fact in facts for each in _comparisons(fact)))
        lines = list(_numbers(facts) if laws else lemma.declarations())
        for number, fact in enumerate(facts):
            lines.append(f"(declare-fun |fact {number}| () Bool)(assert (=> |fact {number}| {_smtlib(fact, laws)}))")
        for number, fact in enumerate(self.compared):
            lines.append(f"(declare-fun |holds {number}| () Bool)(assert (= |holds {number}| {_smtlib(fact, laws)}))")
        self.numbers = {fact: number for number, fact in enumerate(self.compared)}
        self.solver = solver_of(RLIMIT)
        self.solver.set("core.minimize", True)
        self.solver.from_string("\n".join(lines))

    def contradiction(self, among: Iterable[int], known: Mapping[Fact, bool]) -> tuple[list[int], dict[Fact, bool]]:
        """Return which of some facts contradict each other where these comparisons hold or fail, and which of those
        that takes; no facts if Z3 finds none."""
        asked = [z3.Bool(f"fact {number}") for number in among]
        for fact, holds in known.items():
            word = z3.Bool(f"holds {self.numbers[fact]}")
            asked.append(word if holds else z3.Not(word))
        if self.solver.check(*asked) != z3.unsat:
            return [], {}
        facts, needed = list[int](), dict[Fact, bool]()
        for word in self.solver.unsat_core():
            kind, number = str(word.arg(0) if z3.is_not(word) else word).split()
            if kind == "fact":
                facts.append(int(number))
            else:
                needed[self.compared[int(number)]] = not z3.is_not(word)
        return sorted(facts), needed

    def tree(self, among: Iterable[int], known: Mapping[Fact, bool]) -> _Tree | None:
        """Return how some facts contradict each other where these comparisons hold or fail, if Z3 finds it."""
        facts, needed = self.contradiction(among, known)
        if not facts and not needed:
            return None
        open_to = defaultdict[Fact, float](float)
        for number in facts:
            left = _simplified(self.facts[number], known)
            if (ways := _ways(left)) > 1:
                for each in sorted(set(_comparisons(left)), key=str):
                    open_to[each] += 1 - 1 / ways
        if not open_to:
            inside = {each for number in facts for each in _comparisons(self.facts[number])}
            return _Tree(frozenset(facts), needed | {each: known[each] for each in known if each in inside})
        on = min(open_to, key=lambda each: (each[0] == "=", -open_to[each], str(each)))
        branches = list[_Tree]()
        for holds in (True, False):
            branch = self.tree(facts if holds else among, {**known, on: holds})
            if branch is None or on not in branch.known:
                return branch
            branches.append(branch)
        one, other = branches
        return _Tree(one.facts | other.facts, {**one.known, **other.known}, on, (one, other))


def _smtlib(term: Any, flat: bool) -> str:
    """Return a term as Z3 reads it; a `flat` one has a number in place of each function of clients."""
    if isinstance(term, str):
        return term
    sign, *parts = term
    if flat and sign not in _SIGNS:
        return f"|{' '.join(term).replace('|', '')}|"
    return f"({' '.join(('=' if sign == 'iff' else sign, *(_smtlib(part, flat) for part in parts)))})"


def _numbers(facts: Iterable[Fact]) -> Iterator[str]:
    """Yield declarations of all numbers in flat facts."""
    inside = {term for fact in facts for term in _terms(fact) if term[0] not in _SIGNS}
    names = {_smtlib(term, True) for term in inside if term not in ("true", "false") and not term[0].isdigit()}
    yield from (f"(declare-fun {name} () Int)" for name in sorted(names))


class _Proof:
    """The proof of a lemma, as Z3's hints have it."""

    def __init__(self, lemma: _Lemma) -> None:
        self.lemma = lemma
        self.refute = "lia" if lemma.linear else "nia"
        self.names = 0

    def lines(self) -> Iterator[str]:
        """Yield the proof of each conjunct of the goal."""
        stated = self.lemma.hypotheses
        fail = [_simplified(("not", part), {}) for part in _conjuncts(self.lemma.goal)]
        solver = _Solver(self.lemma, [*stated, *fail], laws=False)
        for number, fails in enumerate(fail, len(stated)):
            needed, _ = solver.contradiction((*range(len(stated)), number), {})
            yield "{ apply dec_not_not; [auto 30 with decided | intros Fails]."
            yield from self._contradiction({_known(i): stated[i] for i in needed if i < number} | {"Fails": fails})
            yield "}"

    def _contradiction(self, facts: dict[str, Fact]) -> Iterator[str]:
        """Yield how these facts contradict each other, or a try without a hint."""
        laws = {f"C'{number}": law for number, law in enumerate(_laws(facts.values()))}
        every = facts | laws
        needed, _ = _Solver(self.lemma, list(every.values()), laws=True).contradiction(range(len(every)), {})
        every = {name: fact for number, (name, fact) in enumerate(every.items()) if number in needed}
        tree = _Solver(self.lemma, list(every.values()), laws=True).tree(range(len(every)), {})
        if tree is None:
            yield f"timeout {UNAIDED_S} {self.refute}."
            return
        used = [name for number, name in enumerate(every) if number in tree.facts]
        yield f"clear - {' '.join(['tells'] * bool(self.lemma.sort) + [name for name in used if name in facts])}."
        for name in used:
            if name in laws:
                yield f"assert ({name} : {self.lemma.said(laws[name])}) by (rewrite !tells; congruence)."
        yield from self._steps(tree, dict(enumerate(every.items())), {})

    def _steps(self, tree: _Tree, facts: dict[int, tuple[str, Fact]], known: dict[Fact, str]) -> Iterator[str]:
        """Yield a contradiction of facts with the names that they have here, as those of comparisons are `known`."""
        if not tree.branches:
            names = [*(facts[number][0] for number in sorted(tree.facts)), *(known[each] for each in tree.known)]
            yield f"clear - {' '.join(names)}; {self.refute}."
            return
        decided = self._fresh()
        sides = " ".join(map(self.lemma.said, tree.on[1:]))
        yield f"destruct ({_COMPARISONS[tree.on[0]]} {sides}) as [{decided}|{decided}]."
        for holds, branch in zip((True, False), tree.branches, strict=True):
            yield "{"
            here = dict(facts)
            for number in sorted(branch.facts):
                name, fact = facts[number]
                if (left := _simplified(fact, {tree.on: holds})) != fact:
                    here[number] = (self._fresh(), left)
                    said = f"{here[number][0]} : {self.lemma.said(left)}"
                    yield f"assert ({said}) by (clear - {name} {decided}; tauto)."
            yield from self._steps(branch, here, {**known, tree.on: decided})
            yield "}"

    def _fresh(self) -> str:
        self.names += 1
        return f"D'{self.names}"


def lemma(text: str, name: str) -> str:
    """Return a question in SMT-LIB, which is to be without a model, as a file for Coq: a lemma with its proof.

    Raises `NotWrittenError` for words that a lemma here cannot say.
    """
    return f"{_HEADER}\n{_Lemma(text).text(name)}"


def refused(goal: Path, file: Path) -> str:
    """Write the lemma of a goal into a file and return what `coqc` says against it; empty if it accepts the lemma.

    Raises `FileNotFoundError` where there is no `coqc`.
    """
    try:
        file.write_text(lemma(goal.read_text(), "goal"))
        done = run(
            ["coqc", "-q", file.name], cwd=file.parent, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
    except NotWrittenError as error:
        return str(error)
    except TimeoutExpired:
        return f"coqc is not done after {WAIT_S} s"
    return "" if done.returncode == 0 else " ".join(done.stderr.split()) or f"coqc ended with {done.returncode}"
