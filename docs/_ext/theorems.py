"""The directives `theorems`, `counts`, `assumptions` and `refutations`: what is decided, read from the claims."""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from markdown import anchor, directive, escaped, formula, sentence, table
from measured import FIGURES

import fairsched.model.theorem as theorem_values
from fairsched.model.theorem import Assumption, Scope, Theorem
from fairsched.policies.registry import CLUSTER_POLICIES, LOCAL_POLICIES
from fairsched.verify.proofs import SUITE, claims_of
from fairsched.verify.report.binding import APART, BindingLevel, Bound, bound_of
from fairsched.verify.report.refutations import Refutation, refutations
from fairsched.verify.report.scope import Subject, subject
from fairsched.verify.report.values import tightness

SCOPES = {
    Scope.ALL_N: "any number of clients and events",
    Scope.BOUNDED: "every world up to a size",
    Scope.TESTED: "drawn worlds only: tested, not proved",
}


@cache
def every() -> dict[str, Theorem]:
    """Every theorem about what ships, by id, in the order of the report."""
    return {claim.theorem.id: claim.theorem for claim in claims_of(SUITE).values()}


@cache
def subjects() -> dict[str, Subject]:
    """What is proved about each policy and router, by name."""
    return {name: subject(name, policy) for name, policy in {**LOCAL_POLICIES, **CLUSTER_POLICIES}.items()}


@cache
def bounds() -> dict[str, Bound]:
    """The level and the scope of every theorem, by id."""
    return {name: bound_of(SUITE, name) for name in every()}


LEVELS = {
    BindingLevel.CODE: "the proof runs shipped functions",
    BindingLevel.FOLLOWS: "it follows from such theorems, as a solver checked",
    **APART,
}


def counts(_: Sequence[str]) -> str:
    """How many theorems there are of each level and scope."""
    lines = ["| | " + " | ".join(SCOPES.values()) + " |", "|---|" + "---|" * len(SCOPES)]
    for level, words in LEVELS.items():
        found = [sum(each == Bound(level, scope) for each in bounds().values()) for scope in SCOPES]
        lines.append(f"| {words} | " + " | ".join(map(str, found)) + " |")
    return "\n".join(lines)


@cache
def _attained() -> dict[str, tuple[int, int]]:
    return tightness()[0]


@cache
def _keeping() -> dict[str, tuple[str, ...]]:
    """The policies and routers of which a theorem is true, by its id."""
    found: dict[str, tuple[str, ...]] = {}
    for name, about in subjects().items():
        for theorem in about.theorems:
            if not about.broken.intersection(about.assumptions(theorem)):
                found[theorem.id] = (*found.get(theorem.id, ()), name)
    return found


def evidence(_: Sequence[str]) -> str:
    """What each theorem is believed for: who decided it, and of its goals those whose proofs a checker or Coq read."""
    figures = json.loads(FIGURES.read_text())
    decided = {name: cells for name, *cells in figures["evidence"][1:]}
    coq = {name: f"{accepted} of {goals}, {seconds} s" for name, goals, accepted, seconds in figures["coq-goals"][1:]}
    rows = []
    for name, bound in bounds().items():
        by, seconds, goals, accepted = decided.get(name, ("", "", "", ""))
        checked = f"{accepted} of {goals}" if goals else ""
        rows.append((link(name), bound.level.value, bound.scope.value, by, checked, coq.get(name, ""), seconds))
    return table(("theorem", "about", "scope", "decided by", "checked", "Coq", "CPU, s"), rows)


def link(theorem_id: str) -> str:
    """A link to a theorem."""
    return f"[{escaped(theorem_id)}](#{anchor('theorem', theorem_id)})"


def assumption_link(assumption: Assumption) -> str:
    """A link to an assumption."""
    return f"[{assumption.name}](#{anchor('assumption', assumption.name)})"


def chosen(families: Sequence[str]) -> list[Theorem]:
    """The theorems of families: each an id, or the beginning of ids and `*`; a `-` before it leaves them out."""
    for family in families:
        if not any(_is_of(name, family.removeprefix("-")) for name in every()):
            raise ValueError(f"no theorem {family}")
    wanted = [family for family in families if family[0] != "-"]
    left_out = [family[1:] for family in families if family[0] == "-"]
    return [
        theorem
        for name, theorem in every().items()
        if any(_is_of(name, each) for each in wanted) and not any(_is_of(name, each) for each in left_out)
    ]


def _is_of(theorem_id: str, family: str) -> bool:
    return theorem_id.startswith(family[:-1]) if family.endswith("*") else theorem_id == family


def theorems(families: Sequence[str]) -> str:
    """The theorems of some families, each with its bound, assumptions, scope, source and policies."""
    return "\n\n".join("\n".join(_theorem(theorem)) for theorem in chosen(families))


def _theorem(theorem: Theorem) -> Iterator[str]:
    yield f"({anchor('theorem', theorem.id)})="
    yield f"**{escaped(theorem.id)}**"
    yield f": {formula(sentence(theorem.statement))}"
    facts: list[str] = []
    if theorem.bound:
        facts.append(f"Bound: {formula(theorem.bound)}{_reached(theorem)}.")
    if theorem.assumptions:
        facts.append(f"Assumes {', '.join(map(assumption_link, theorem.assumptions))}.")
    if theorem.rests_on:
        facts.append(f"Rests on {', '.join(map(link, theorem.rests_on))}.")
    facts.append(f"Scope: {SCOPES[bounds()[theorem.id].scope]}.")
    if words := APART.get(bounds()[theorem.id].level):
        facts.append(f"{sentence(words)}")
    if keeping := _keeping().get(theorem.id):
        facts.append(f"Policies: {', '.join(f'`{name}`' for name in keeping)}.")
    facts.append(f"Source: {formula(theorem.source)}.")
    yield "  "
    yield "  {.facts}"
    yield "  " + " ".join(facts)


def _reached(theorem: Theorem) -> str:
    reached, bound = _attained().get(theorem.id, (0, 0))
    return f", attained by a replayed run ({reached:,} of {bound:,})" if bound else ""


def assumptions(_: Sequence[str]) -> str:
    """Every assumption, with its sentence and the theorems that need it."""
    known = [each for each in vars(theorem_values).values() if isinstance(each, Assumption)]
    named: dict[str, tuple[Assumption, list[str]]] = {each.name: (each, []) for each in known}
    for theorem in every().values():
        for assumption in theorem.assumptions:
            named.setdefault(assumption.name, (assumption, []))[1].append(theorem.id)
    blocks = []
    for name in sorted(named):
        assumption, needing = named[name]
        lines = [f"({anchor('assumption', name)})=", f"**{name}**", f": {formula(sentence(assumption.sentence))}"]
        if needing:
            lines += ["  ", "  {.facts}", f"  Needed by {', '.join(map(link, needing))}."]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def refuted(_: Sequence[str]) -> str:
    """Every statement that is false, of which variant, and what is true instead."""
    return "\n\n".join(map(_refutation, refutations()))


def _refutation(each: Refutation) -> str:
    shipped: Any = each.shipped
    instead = f" True instead: {link(shipped)}." if shipped in every() else ""
    return (
        f"({anchor('refuted', each.id)})=\n**{escaped(each.id)}**\n: {formula(sentence(each.claim))}\n  \n"
        f"  {{.facts}}\n  False of: {formula(sentence(each.variant))} Shown by: {formula(sentence(each.text))}{instead}"
    )


def setup(app: Any) -> dict[str, bool]:
    """Register the directives."""
    for name, making in (
        ("theorems", theorems),
        ("counts", counts),
        ("evidence", evidence),
        ("assumptions", assumptions),
        ("refutations", refuted),
    ):
        app.add_directive(name, directive(making))
    return {"parallel_read_safe": True}
