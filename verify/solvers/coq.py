"""A proof assistant's kernel decides questions too: each goal as a lemma for Coq, about any type of clients.

The lemma is made from the text that the solvers read, word by word: vectors are functions from clients to integers,
masks too (true from 1 on), and what is asserted are its hypotheses.  Clients can be told apart, and nothing else is
assumed of them.  `coqc` (8.16 or newer; Debian's package `coq`) accepts the file or says where it does not.
"""

from pathlib import Path
from subprocess import TimeoutExpired, run
from typing import Any

from fairsched.verify.checker import expressions

_HEADER = """From Coq Require Import ZArith Lia Bool.
Open Scope Z_scope.
"""
_BY_CASES = """  repeat match goal with
  | H : context [same ?a ?b] |- _ =>
    lazymatch goal with
    | _ : 1 <= same a b |- _ => fail
    | _ : ~ 1 <= same a b |- _ => fail
    | _ => destruct (Z_le_dec 1 (same a b)); [assert (a = b) by (apply tells; lia); subst | ]; try contradiction
    end
  end;
  repeat match goal with
  | H : _ /\\ _ |- _ => destruct H
  | H : ?a /\\ _ \\/ ~ ?a /\\ _ |- _ => destruct H as [[? ?] | [? ?]]; try contradiction
  end; subst; lia."""
"""Which clients are the same, then the choices one after the other; what remains of each case is linear."""
WAIT_S = 900
"""How long `lia` may search a lemma's cases: there is no other bound on its work."""
_TRUTHS = {"and": "/\\", "or": "\\/", "=>": "->"}


class NotWrittenError(ValueError):
    """A question uses what a lemma here cannot say."""


class _Lemma:
    """A question read as a lemma: its variables, and its hypotheses in order."""

    def __init__(self, text: str) -> None:
        self.variables: list[str] = []
        self.hypotheses: list[str] = []
        self.sorts: dict[str, str] = {}
        self.functions: dict[str, tuple[tuple[str, ...], str]] = {}
        self.names: dict[str, str] = {}
        self.made = 0
        for form in expressions(text):
            match form:
                case ["declare-sort", sort, "0"]:
                    self.sorts[sort] = self._name(sort)
                case ["declare-fun", name, arguments, result]:
                    self.functions[name] = (tuple(arguments), result)
                    kinds = " -> ".join(map(self._kind, (*arguments, result)))
                    self.variables.append(f"({self._name(name)} : {kinds})")
                case ["define-fun", name, [], "Int", term]:
                    self._define(name, "Int", f"{self._name(name)} = {self._integer(term)}")
                case ["define-fun", name, [], "Bool", term]:
                    self._define(name, "Bool", f"(1 <= {self._name(name)} <-> {self._truth(term)})")
                case ["assert", term]:
                    self.hypotheses.append(self._truth(term))

    def _define(self, name: str, sort: str, law: str) -> None:
        self.functions[name] = ((), sort)
        self.variables.append(f"({self._name(name)} : {self._kind(sort)})")
        self.hypotheses.append(law)

    def _kind(self, sort: str) -> str:
        return {"Int": "Z", "Bool": "Z"}.get(sort) or self.sorts[sort]

    def _name(self, name: str) -> str:
        """Return the name as Coq writes it, the same each time and no other's."""
        if name not in self.names:
            plain = "".join(each if each.isascii() and each.isalnum() else "_" for each in name.strip("|"))
            taken = set(self.names.values())
            free = plain if plain[:1].isalpha() else f"x{plain}"
            while free in taken or free in ("same", "if", "then", "else", "in", "at", "as", "R", "Q") or not free:
                free += "_"
            self.names[name] = free
        return self.names[name]

    # --- terms ------------------------------------------------------------------------------------------------------

    def _applied(self, term: Any) -> str:
        """Return a variable, or a function of one, as it stands."""
        name, *arguments = [term] if isinstance(term, str) else term
        if name not in self.functions:
            raise NotWrittenError(f"{name} is nothing that a lemma here can say")
        return " ".join((self._name(name), *(f"({self._applied(each)})" for each in arguments)))

    def _sort(self, term: Any) -> str:
        name = term if isinstance(term, str) else term[0]
        if name in self.functions:
            return self.functions[name][1]
        if name == "ite":
            return self._sort(term[2])
        return "Int" if name in ("+", "-", "*") or name.lstrip("-").isdigit() else "Bool"

    def _integer(self, term: Any) -> str:
        match term:
            case str() if term.lstrip("-").isdigit():
                return f"({term})"
            case ["-", one]:
                return f"(- {self._integer(one)})"
            case ["+" | "-" | "*" as sign, *parts]:
                return f"({f' {sign} '.join(map(self._integer, parts))})"
            case ["ite", condition, one, other]:
                return self._chosen(self._truth(condition), self._integer(one), self._integer(other))
        return f"({self._applied(term)})"

    def _chosen(self, condition: str, one: str, other: str) -> str:
        """Return a variable that is one of two integers, as the condition says."""
        self.made += 1
        name = f"chosen{self.made}"
        self.variables.append(f"({name} : Z)")
        self.hypotheses.append(f"({condition} /\\ {name} = {one} \\/ ~ {condition} /\\ {name} = {other})")
        return name

    def _truth(self, term: Any) -> str:
        match term:
            case "true":
                return "True"
            case "false":
                return "False"
            case ["not", one]:
                return f"(~ {self._truth(one)})"
            case ["and" | "or" | "=>" as sign, *parts]:
                return f"({f' {_TRUTHS[sign]} '.join(map(self._truth, parts))})"
            case ["<=" | "<" | ">=" | ">" as sign, one, other]:
                return f"({self._integer(one)} {sign} {self._integer(other)})"
            case ["ite", condition, one, "true"]:
                return f"({self._truth(condition)} -> {self._truth(one)})"
            case ["ite", condition, one, other]:
                asked = self._truth(condition)
                return f"({asked} /\\ {self._truth(one)} \\/ ~ {asked} /\\ {self._truth(other)})"
            case ["=" | "distinct" as sign, one, other]:
                sort = self._sort(one)
                if sort == "Int":
                    said = f"({self._integer(one)} = {self._integer(other)})"
                elif sort == "Bool":
                    said = f"({self._truth(one)} <-> {self._truth(other)})"
                else:
                    said = f"(1 <= same {self._name(one)} {self._name(other)})"
                return said if sign == "=" else f"(~ {said})"
        return f"(1 <= {self._applied(term)})"

    # --- text -------------------------------------------------------------------------------------------------------

    def text(self, name: str) -> str:
        """Return the lemma and its proof."""
        told = "".join(f" ({sort} : Type)" for sort in self.sorts.values())
        if self.sorts:
            sort = next(iter(self.sorts.values()))
            told += f" (same : {sort} -> {sort} -> Z) (tells : forall a b, 1 <= same a b <-> a = b)"
        lines = [f"Lemma {name} : forall{told}{''.join(f' {each}' for each in self.variables)},"]
        lines += [f"  {each} ->" for each in self.hypotheses]
        lines += ["  False.", "Proof.", "  intros."]
        return "\n".join([*lines, _BY_CASES, "Qed."]) + "\n"


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
        return f"`lia` is not done after {WAIT_S} s"
    return "" if done.returncode == 0 else " ".join(done.stderr.split()) or f"coqc ended with {done.returncode}"
