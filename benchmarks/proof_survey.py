"""How far proofs without solvers reach: every goal of every theorem is proved by cvc5, and its proof is read.

    python benchmarks/proof_survey.py --json out/proofs.jsonl
    python benchmarks/proof_survey.py --theorem D-4.1 V-4.4 --json out/proofs.jsonl
    fairsched verify --json out/verdicts.json
    python benchmarks/proof_survey.py --from out/proofs.jsonl --verdicts out/verdicts.json --record docs/measured.json

The file has a line for each goal, written when it is done.  A run that was cut short goes on after the last one, and
proves goals again whose text has changed; with `--again` also those without an accepted proof.  Each goal has a process
of its own, and so much CPU time (`--limit-s`) for the solver and the checker together; one that takes more has no
proof.

Columns: theorems and their goals; goals whose proof the checker accepts; steps of these proofs, and how many of them
cvc5 asks to `trust` (the checker accepts none unless it follows); CPU seconds of the solver and of the checker;
compressed bytes.
"""

import argparse
import gzip
import json
import multiprocessing
import resource
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from time import process_time

import attrs

from fairsched.verify import proofs
from fairsched.verify.checker import check
from fairsched.verify.logic import SampledClaim
from fairsched.verify.proofs import MODULES, claims_in
from fairsched.verify.solvers.cross_check import cpc_proof, questions

HEAD = ("proofs of", "theorems", "goals", "accepted", "steps", "trusted", "solver, s", "checker, s", "MB")
LIMIT_S = 60
"""CPU seconds that a goal may take."""


@attrs.frozen
class Row:
    """What came of one goal: `why` it has no accepted proof, or what its proof is like; `sha256` is of its text."""

    family: str
    theorem: str
    obligation: str
    sha256: str
    accepted: bool = False
    why: str = ""
    steps: int = 0
    trusted: int = 0
    solver_s: float = 0.0
    checker_s: float = 0.0
    bytes: int = 0


# --- goals ------------------------------------------------------------------------------------------------------------


def goals(wanted: frozenset[str]) -> Iterator[tuple[Row, str]]:
    """Each goal of the theorems that are wanted (of all, if none is named), not yet proved, and its text."""
    for module in MODULES:
        name = module.__name__.removeprefix(f"{proofs.__name__}.")
        for claim in claims_in(module):
            if isinstance(claim, SampledClaim) or (wanted and claim.theorem.id not in wanted):
                continue
            for question in questions(claim):
                if question.about == "goal":
                    text = question.script.text
                    yield Row(name, claim.theorem.id, question.obligation, sha256(text.encode()).hexdigest()), text


def surveyed(goal: Row, text: str, limit_s: int) -> Row:
    """Prove a goal and read the proof, in a process of its own."""
    context = multiprocessing.get_context("fork")
    said, heard = context.Pipe(duplex=False)
    process = context.Process(target=_prove, args=(goal, text, limit_s, heard))
    process.start()
    heard.close()
    row = attrs.evolve(goal, why="the solver has no proof in time", solver_s=float(limit_s))
    try:
        while True:
            row = said.recv()
    except EOFError:
        # It is done, or it was stopped after what it said last.
        process.join()
    return row


def _prove(goal: Row, text: str, limit_s: int, heard: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    begun = process_time()
    try:
        proof = cpc_proof(text)
    except ValueError as error:
        heard.send(attrs.evolve(goal, why=str(error), solver_s=process_time() - begun))
        return
    wrote = process_time()
    row = attrs.evolve(
        goal,
        trusted=proof.count(" :rule trust "),
        solver_s=wrote - begun,
        bytes=len(gzip.compress(proof.encode(), mtime=0)),
    )
    heard.send(attrs.evolve(row, why="the checker has not read it in time", checker_s=limit_s - row.solver_s))
    found = check(text, proof)
    heard.send(
        attrs.evolve(row, accepted=found.accepted, why=found.why, steps=found.steps, checker_s=process_time() - wrote)
    )


def survey(wanted: frozenset[str], limit_s: int, file: Path, again: bool) -> list[Row]:
    """Prove what the file does not have yet, and add it; prints a line a theorem."""
    file.parent.mkdir(parents=True, exist_ok=True)
    had = {_key(row): row for row in read(file) if row.accepted or not again}
    file.write_text("".join(f"{json.dumps(attrs.asdict(row))}\n" for row in had.values()))
    rows = list[Row]()
    with file.open("a") as written:
        for goal, text in goals(wanted):
            row = had.get(_key(goal))
            if row is None:
                row = surveyed(goal, text, limit_s)
                written.write(f"{json.dumps(attrs.asdict(row))}\n")
                written.flush()
            if rows and rows[-1].theorem != row.theorem:
                report(rows)
            rows.append(row)
    report(rows)
    return rows


def _key(row: Row) -> tuple[str, ...]:
    return row.theorem, row.obligation, row.sha256


def read(file: Path) -> list[Row]:
    """The goals of a file, none if there is no file."""
    return [Row(**json.loads(line)) for line in file.read_text().splitlines()] if file.is_file() else []


# --- table ------------------------------------------------------------------------------------------------------------


def report(rows: list[Row]) -> None:
    """Print a line for the last theorem, and one for each of its goals without a proof."""
    of = [row for row in rows if row.theorem == rows[-1].theorem] if rows else []
    if of:
        sys.stdout.write(f"{of[0].theorem:<22}{' '.join(f'{each:>10}' for each in _figures(of)[1:])}\n")
        sys.stdout.writelines(f"    {row.obligation}: {row.why}\n" for row in of if not row.accepted)
        sys.stdout.flush()


def _figures(rows: Iterable[Row]) -> tuple[str, ...]:
    of = list(rows)
    counts = (
        len({row.theorem for row in of}),
        len(of),
        sum(row.accepted for row in of),
        sum(row.steps for row in of),
        sum(row.trusted for row in of),
    )
    solver, checker = (f"{sum(getattr(row, name) for row in of):,.0f}" for name in ("solver_s", "checker_s"))
    return (*(f"{each:,}" for each in counts), solver, checker, f"{sum(row.bytes for row in of) / 1e6:.2f}")


def table(rows: list[Row]) -> list[tuple[str, ...]]:
    """Return the table by folder of proofs, the head first."""
    families = defaultdict[str, list[Row]](list)
    for row in rows:
        families[row.family.partition(".")[0]].append(row)
    return [HEAD, *((name, *_figures(of)) for name, of in families.items()), ("all", *_figures(rows))]


def evidence(rows: list[Row], verdicts: Path) -> list[tuple[str, ...]]:
    """Return by theorem the solvers or worlds that decided it, their CPU time, its goals and how many of them have an
    accepted proof."""
    goals = defaultdict[str, list[Row]](list)
    for row in rows:
        goals[row.theorem].append(row)
    said = {}
    for each in json.loads(verdicts.read_text())["theorems"]:
        by = " + ".join(each["solvers"]) if each["worlds"] is None else f"{each['worlds']:,} worlds"
        of = goals[each["id"]]
        figures = (str(len(of)), str(sum(row.accepted for row in of))) if of else ("", "")
        said[each["id"]] = (each["id"], by, f"{each['ms'] / 1e3:.1f}", *figures)
    return [("theorem", "decided by", "CPU, s", "goals", "accepted"), *said.values()]


def record(path: Path, rows: list[Row], verdicts: Path | None) -> None:
    """Replace these tables among the measured ones."""
    found = json.loads(path.read_text()) | {"proof-survey": table(rows)}
    if verdicts is not None:
        found["evidence"] = evidence(rows, verdicts)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    """Survey what is asked, or print the table of a former run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--theorem", nargs="+", default=[], help="theorems (default: all)")
    parser.add_argument("--limit-s", type=int, default=LIMIT_S, help="CPU seconds of a goal (default: %(default)s)")
    parser.add_argument(
        "--json", type=Path, default=Path("out", "proofs.jsonl"), help="file of goals (default: %(default)s)"
    )
    parser.add_argument("--again", action="store_true", help="also goals of the file that have no accepted proof")
    parser.add_argument("--from", dest="former", type=Path, help="file of a former run, in place of running")
    parser.add_argument("--verdicts", type=Path, help="what `fairsched verify --json` wrote, for the table of evidence")
    parser.add_argument("--record", type=Path, help="file of measured tables in which these are replaced")
    asked = parser.parse_args()
    if asked.former is not None:
        rows = read(asked.former)
    else:
        rows = survey(frozenset(asked.theorem), asked.limit_s, asked.json, asked.again)
    if asked.record is not None:
        record(asked.record, rows, asked.verdicts)
    for line in table(rows):
        print(" | ".join(line))
    for row in rows:
        if not row.accepted:
            print(f"{row.theorem}, {row.obligation}: no proof: {row.why}")


if __name__ == "__main__":
    main()
