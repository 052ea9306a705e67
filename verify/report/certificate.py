"""The evidence as a directory: every question to a solver as a file, a manifest, and a script that asks again.

manifest.json   policies with their theorems, constants and assumptions, hashes of configurations and of all code that
                runs, and of every file the hash and the answer that proves
*/*.smt2        one question each (see `fairsched.verify.solvers.cross_check`), a folder a theorem
*/*.cpc.gz      beside a goal: a proof of it, step by step, which no solver is needed to believe
checksums.txt   SHA-256 of these, as `sha256sum -c` reads them
expected.txt    the expected answer to each question
check.sh        checks the sums, then asks any SMT solver; needs neither Python nor this library
cvc5_file.py    for `check.sh python cvc5_file.py`: the solver cvc5 as PyPI has it, which is no command
coq/            if they were asked for: the goals as lemmas for `coqc`, which nothing else here rests on
checker/        for `python checker/proof.py .`: reads every proof; needs Python alone (see `fairsched.verify.checker`)

A theorem's evidence is a proof that was read step by step, two solvers' word, or samples: no better than the weakest of
all that it rests on.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import attrs
import msgspec

from fairsched.model import pricing
from fairsched.model.serialization import code_changes, code_sha256, configuration, document_sha256
from fairsched.model.theorem import Certificate, ProvedTheorem
from fairsched.verify import checker
from fairsched.verify import solvers as verify_solvers
from fairsched.verify.checker import PROOF, check_files, question_of
from fairsched.verify.logic import Claim, SampledClaim, SavedDocument, closure, decoded
from fairsched.verify.proofs import SUITE, claims_of, holder_of
from fairsched.verify.report import deployment as deployments
from fairsched.verify.report.deployment import Deployment, constant
from fairsched.verify.report.scope import PARTS, Subject, below, part
from fairsched.verify.report.values import Outcome, Planned, plan, slug
from fairsched.verify.solvers import files

MANIFEST, CHECKSUMS, EXPECTED, SCRIPT, CVC5 = (
    "manifest.json",
    "checksums.txt",
    "expected.txt",
    "check.sh",
    "cvc5_file.py",
)
SCHEMA = 3

CHECK_SH = """\
#!/bin/sh
# Re-checks this certificate with any solver that reads SMT-LIB 2:
#     sh check.sh z3
#     sh check.sh cvc5 --nl-rlv=interleave
#     sh check.sh python cvc5_file.py
# Exit status: 0 if every sum and every answer is as it should be, 1 if not, 2 without a solver.
if [ $# -eq 0 ]; then
    echo "usage: sh check.sh SOLVER [ARGUMENT...]" >&2
    exit 2
fi
cd "$(dirname "$0")" || exit 2
if command -v sha256sum >/dev/null 2>&1; then
    sha256sum -c checksums.txt >/dev/null || exit 1
elif command -v shasum >/dev/null 2>&1; then
    shasum -a 256 -c checksums.txt >/dev/null || exit 1
else
    echo "neither sha256sum nor shasum is here: the sums are not checked" >&2
fi
asked=0
wrong=0
while read -r expected file; do
    answer=$("$@" "$file" </dev/null 2>&1)
    asked=$((asked + 1))
    if [ "$answer" != "$expected" ]; then
        echo "$file: expected $expected, and the solver says: $answer" >&2
        wrong=$((wrong + 1))
    fi
done <expected.txt
echo "$asked questions, $wrong wrong"
[ "$asked" -gt 0 ] && [ "$wrong" -eq 0 ]
"""

CVC5_FILE = '''\
"""Asks the cvc5 of PyPI about one SMT-LIB file: python cvc5_file.py FILE"""

import sys

import cvc5

solver = cvc5.Solver(cvc5.TermManager())
solver.setOption("nl-rlv", "interleave")
parser = cvc5.InputParser(solver)
parser.setFileInput(cvc5.InputLanguage.SMT_LIB_2_6, sys.argv[1])
while not (command := parser.nextCommand()).isNull():
    print(command.invoke(solver, parser.getSymbolManager()), end="")
'''


@attrs.frozen
class Goals:
    """How many goals a theorem has, and how many of them a proof that was accepted."""

    asked: int = 0
    proved: int = 0


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file: what it asks, the answer that proves, and its hash."""

    theorem: str
    obligation: str
    about: str
    expected: str
    sha256: str


class Manifest(SavedDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the directory is evidence for.

    `evidence` names, by policy and theorem, the folder of its questions, `proofs` the hash of each proof.
    """

    order = "sorted"
    schema = SCHEMA
    fairsched_certificate: int = SCHEMA
    fairsched: str
    solvers: dict[str, str]
    deployment: dict[str, Any]
    certificates: tuple[Certificate, ...]
    evidence: dict[str, dict[str, str]]
    files: dict[str, Asked]
    proofs: dict[str, str]


def read(directory: Path) -> Manifest:
    """Return the manifest of a directory; raises `ValueError` if it holds no certificate that this version reads."""
    path = directory / MANIFEST
    if not path.is_file():
        raise ValueError(f"{directory} holds no certificate: there is no {MANIFEST}")
    said = decoded(path, Manifest, "certificate")
    if odd := [name for name in said.files if Path(name).is_absolute() or ".." in Path(name).parts]:
        raise ValueError(f"{path}: {odd[0]!r} is outside the certificate")
    goals = {proof_of(name) for name, asked in said.files.items() if asked.about == "goal"}
    if odd := [name for name in said.proofs if name not in goals]:
        raise ValueError(f"{path}: {odd[0]!r} is beside no goal")
    return said


def check_free(directory: Path) -> None:
    """Raise `ValueError` unless a certificate may be written there: a new or empty folder, or a certificate."""
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is no folder")
    if directory.is_dir() and any(directory.iterdir()):
        read(directory)


def _kept(directory: Path, made: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the proofs, with their hashes, of an earlier certificate that are of goals of this one."""
    said = read(directory) if (directory / MANIFEST).is_file() else made
    for path, value in said.proofs.items():
        goal = question_of(Path(path)).as_posix()
        same = goal in made.files and made.files[goal].sha256 == said.files[goal].sha256
        if same and (directory / path).is_file() and sha256((directory / path).read_bytes()) == value:
            yield path, value


def _clear(directory: Path, kept: Mapping[str, str]) -> None:
    """Remove the files of an earlier certificate but for the proofs that are kept, and nothing else."""
    if (directory / MANIFEST).is_file():
        said = read(directory)
        paths = {*said.files, *said.proofs, *companions(said)} - kept.keys()
        for path in paths:
            (directory / path).unlink(missing_ok=True)
        for folder in {(directory / path).parent for path in paths} - {directory}:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def write_certificate(directory: Path, outcome: Outcome, deployment: Deployment) -> int:
    """Write what was proved, in place of an earlier certificate; returns the number of questions.

    Proofs of an earlier one stay beside goals that are asked in the same words.
    """
    check_free(directory)
    # What was tried in worlds left no question to ask again.
    proved = [row for row in outcome.rows if row.decision.verdict == "proved" and row.decision.files]
    files = {path: file for row in proved for path, file in files_of(row.task, row.decision.files).items()}
    made = manifest(outcome.report.fairsched, proved, deployment, outcome.report.solvers, files, {})
    made = msgspec.structs.replace(made, proofs=dict(_kept(directory, made)))
    _clear(directory, made.proofs)
    directory.mkdir(parents=True, exist_ok=True)
    for path, file in files.items():
        (directory / path).parent.mkdir(exist_ok=True)
        (directory / path).write_text(file.script.text)
    _write_companions(directory, made)
    return len(files)


def _write_companions(directory: Path, made: Manifest) -> None:
    for path, content in companions(made).items():
        (directory / path).parent.mkdir(exist_ok=True)
        (directory / path).write_bytes(content)


def write_proofs(
    directory: Path, jobs: int = 1, progress: verify_solvers.Progress = verify_solvers.silent
) -> tuple[Goals, dict[str, str]]:
    """Write a proof beside each goal that has none; returns how many have one then, and why others have not.

    A proof is there only if the checker accepts it.  Those that were written stay if this is interrupted.
    """
    said = read(directory)
    goals = [path for path, asked in said.files.items() if asked.about == "goal"]
    asked = [goal for goal in goals if proof_of(goal) not in said.proofs]
    proofs, without = dict(said.proofs), dict[str, str]()
    try:
        with verify_solvers.pool(jobs) as executor:
            found = executor.map(verify_solvers.checked_proof, ((directory / goal).read_text() for goal in asked))
            for goal, (proof, why) in zip(asked, verify_solvers.followed(asked, found, progress), strict=True):
                if proof:
                    proofs[proof_of(goal)] = sha256(proof)
                    (directory / proof_of(goal)).write_bytes(proof)
                else:
                    without[goal] = why
    finally:
        _write_companions(directory, msgspec.structs.replace(said, proofs=proofs))
    return Goals(len(goals), len(proofs)), without


def ask_coq(
    directory: Path, jobs: int = 1, progress: verify_solvers.Progress = verify_solvers.silent
) -> tuple[Goals, dict[str, str]]:
    """Write each goal of a certificate as a lemma for Coq into its folder `coq`, and let `coqc` check it; returns how
    many goals it accepts, and why it does not accept the others."""
    goals = [path for path, asked in read(directory).files.items() if asked.about == "goal"]
    into = directory / "coq"
    into.mkdir(exist_ok=True)
    lemmas = [into / f"{re.sub('[^A-Za-z0-9]+', '_', Path(goal).with_suffix('').as_posix())}.v" for goal in goals]
    with verify_solvers.pool(jobs) as executor:
        found = executor.map(verify_solvers.refused, (directory / goal for goal in goals), lemmas)
        without = {
            goal: why for goal, why in zip(goals, verify_solvers.followed(goals, found, progress), strict=True) if why
        }
    return Goals(len(goals), len(goals) - len(without)), without


def proof_of(goal: str) -> str:
    """Return the path of the proof of a goal."""
    return str(Path(goal).with_suffix(PROOF))


def manifest(
    version: str,
    proved: Sequence[Planned],
    deployment: Deployment,
    solvers: dict[str, str],
    asked: Mapping[str, verify_solvers.Question],
    proofs: Mapping[str, str],
) -> Manifest:
    """Return the manifest of proved theorems."""
    rows: dict[str, list[Planned]] = {}
    for row in proved:
        rows.setdefault(row.subject.name, []).append(row)
    return Manifest(
        fairsched=version,
        solvers=solvers,
        deployment=deployments.document(deployment),
        certificates=tuple(certificate(of[0].subject, of, deployment, solvers) for of in rows.values()),
        evidence={name: {row.theorem.id: folder(row.task) for row in of} for name, of in rows.items()},
        files={
            path: Asked(q.theorem, q.obligation, q.about, q.script.expected, sha256(q.script.text.encode()))
            for path, q in asked.items()
        },
        proofs=dict(proofs),
    )


def companions(made: Manifest) -> dict[str, bytes]:
    """Return the files beside the questions, by name."""
    raw = made.to_json()
    sums = {MANIFEST: sha256(raw)}
    files = dict(sorted(made.files.items()))
    expected = "".join(f"{question.expected} {path}\n" for path, question in files.items()).encode()
    sums[EXPECTED] = sha256(expected)
    sums |= {path: question.sha256 for path, question in files.items()} | dict(sorted(made.proofs.items()))
    return {
        MANIFEST: raw,
        EXPECTED: expected,
        CHECKSUMS: "".join(f"{value}  {path}\n" for path, value in sums.items()).encode(),
        SCRIPT: CHECK_SH.encode(),
        CVC5: CVC5_FILE.encode(),
        **_checker(),
    }


def _checker() -> dict[str, bytes]:
    """Return the checker of proofs, as files that import each other and nothing of this library."""
    texts = {path.name: path.read_text() for path in sorted(Path(checker.__file__).parent.glob("[a-z]*.py"))}
    return {f"checker/{name}": text.replace(f"{checker.__name__}.", "").encode() for name, text in texts.items()}


def certificate(
    subject: Subject, proved: Sequence[Planned], deployment: Deployment, solvers: dict[str, str]
) -> Certificate:
    """Return what was proved about one policy, as an engine reads it."""
    theorems = []
    for row in proved:
        number = subject.policy and constant(row.theorem, subject.policy, deployment)
        theorems.append(
            ProvedTheorem(
                row.theorem.id,
                row.theorem.statement,
                row.theorem.scope.value,
                tuple(assumption.name for assumption in subject.assumptions(row.theorem)),
                row.theorem.bound,
                number.cost_units if number else None,
            )
        )
    rests_on = configured(subject, deployment)
    return Certificate(
        subject.name, rests_on, document_sha256(rests_on), code_of(subject, proved), tuple(theorems), solvers
    )


def configured(subject: Subject, deployment: Deployment) -> dict[str, Any]:
    """Return all that the policy's constants rest on: its parts with their parameters, and the deployment."""
    rests_on = {key: value for key, value in deployments.document(deployment).items() if key != "policies"}
    return {"policy": configuration(subject.policy or subject.router), "deployment": rests_on}


def code_of(subject: Subject, rows: Sequence[Planned]) -> dict[str, str]:
    """Hash of all code that runs when the policy decides, of the kernels that were proved about, and of the prices.

    That is its gate, order and batching rule with all that these call: admission, queue, and the algebra's words.
    """
    runs = [part for part in (subject.policy, subject.router) if part is not None]
    if not runs and subject.source != SUITE:
        runs = [holder_of(subject.source)]
    prices = [each for each in vars(pricing).values() if getattr(each, "__module__", "") == pricing.__name__]
    return code_sha256(*runs, *(kernel for row in rows for kernel in _kernels(row)), *prices)


def _kernels(row: Planned) -> tuple[Any, ...]:
    claim = claims_of(row.subject.source)[row.theorem.id]
    return closure(claim.system.kernels()) if isinstance(claim, Claim) else ()


def folder(task: verify_solvers.Task) -> str:
    """Return the folder of a task's questions."""
    variant = "".join(f"-without-{name}" for name in sorted(task.dropped))
    return slug(f"{task.source}-{task.theorem}{variant}" if task.source else f"{task.theorem}{variant}")


def files_of(task: verify_solvers.Task, files: Iterable[verify_solvers.Question]) -> dict[str, verify_solvers.Question]:
    """Return the questions of a task by path."""
    return {f"{folder(task)}/{slug(file.obligation)}.{file.about}.smt2": file for file in files}


def sha256(raw: bytes) -> str:
    """Return a hash as hexadecimal digits."""
    return hashlib.sha256(raw).hexdigest()


# --- checking ---------------------------------------------------------------------------------------------------------


class Evidence(Enum):
    """What there is to believe a theorem by, from the strongest on."""

    PROOF = "checked proof"
    """Each goal has a proof that the checker accepts: no solver need be believed about it."""
    SOLVERS = "two solvers"
    """Both say so of each goal, and one goal at least has no such proof."""
    SAMPLED = "sampled"
    """It was tried in worlds: those that were drawn, or all of a size, as its scope says."""


@attrs.frozen
class TheoremEvidence:
    """The evidence for a theorem, its own goals, and if it rests on what is shown less well, on which theorems."""

    theorem: str
    evidence: Evidence
    goals: Goals
    because_of: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = f"{self.theorem:<24}{self.evidence.value}"
        if self.goals.asked:
            said = f"{said:<40}{self.goals.proved} of {self.goals.asked} goals"
        return f"{said}, rests on {', '.join(self.because_of)}" if self.because_of else said


def standings(rows: Iterable[Planned], goals: Mapping[tuple[str, str], Goals]) -> Iterator[TheoremEvidence]:
    """Yield the evidence for each theorem once, whichever policies have it; `goals` are by policy and theorem."""
    found = dict[TheoremEvidence, None]()
    for row in rows:
        own = {name: _own(row, name, goals) for name in (row.theorem.id, *below(row.theorem, row.subject.theorems))}
        weakest = max(own.values(), key=_STRONGEST.index)
        weaker = () if weakest is own[row.theorem.id] else tuple(name for name in own if own[name] is weakest)
        found[
            TheoremEvidence(row.theorem.id, weakest, goals.get((row.subject.name, row.theorem.id), Goals()), weaker)
        ] = None
    yield from found


_STRONGEST = tuple(Evidence)


def _own(row: Planned, theorem: str, goals: Mapping[tuple[str, str], Goals]) -> Evidence:
    """Return the evidence for a theorem of the same subject, apart from what it rests on."""
    if isinstance(claims_of(row.subject.source)[theorem], SampledClaim):
        return Evidence.SAMPLED
    had = goals.get((row.subject.name, theorem), Goals())
    return Evidence.PROOF if had.asked == had.proved > 0 else Evidence.SOLVERS


SubjectOf = Callable[[str, Deployment], Subject]


@attrs.frozen
class Found:
    """How many questions were asked, what is wrong, a line each, and if nothing is, the evidence for each theorem."""

    questions: int
    problems: tuple[str, ...]
    evidence: tuple[TheoremEvidence, ...]


def check_certificate(
    directory: Path, subject_of: SubjectOf, jobs: int = 1, progress: verify_solvers.Progress = verify_solvers.silent
) -> Found:
    """Re-check a directory; raises `ValueError` if it holds no certificate that this version reads."""
    said = read(directory)
    rows = list[Planned]()
    problems = [*_on_disk(directory, said), *_as_installed(said, subject_of, rows)]
    questions = [(directory / path, question.expected) for path, question in said.files.items()]
    proofs = [directory / path for path in said.proofs]
    with verify_solvers.pool(jobs) as executor:
        answers = executor.map(_wrong_answer, questions, chunksize=8)
        refused = executor.map(_not_checked, proofs)
        for names, found in ((list(said.files), answers), (list(said.proofs), refused)):
            wrong = zip(names, verify_solvers.followed(names, found, progress), strict=True)
            problems += [f"{path}: {why}" for path, why in wrong if why]
    evidence = () if problems else tuple(standings(rows, dict(_goals(said))))
    return Found(len(questions), tuple(problems), evidence)


def _goals(said: Manifest) -> Iterator[tuple[tuple[str, str], Goals]]:
    """Yield how many goals each theorem of each policy has, and how many of them a proof."""
    asked = Counter(Path(path).parent.as_posix() for path, each in said.files.items() if each.about == "goal")
    proved = Counter(Path(path).parent.as_posix() for path in said.proofs)
    for policy, folders in said.evidence.items():
        for theorem, where in folders.items():
            yield (policy, theorem), Goals(asked[where], proved[where])


def _on_disk(directory: Path, said: Manifest) -> Iterator[str]:
    """Yield files that are missing, changed, or not in the manifest."""
    sums = {path: question.sha256 for path, question in said.files.items()} | said.proofs
    for path, value in sums.items():
        if not (directory / path).is_file():
            yield f"{path}: missing"
        elif sha256((directory / path).read_bytes()) != value:
            yield f"{path}: changed since the manifest was written"
    beside = companions(said)
    for name, content in beside.items():
        if not (directory / name).is_file():
            yield f"{name}: missing"
        elif (directory / name).read_bytes() != content:
            yield f"{name}: not what belongs to this manifest"
    known = {*sums, *beside}
    for file in sorted(file for file in directory.rglob("*") if file.is_file()):
        if (name := file.relative_to(directory).as_posix()) not in known:
            yield f"{name}: not in the manifest"


def _as_installed(said: Manifest, subject_of: SubjectOf, claimed: list[Planned]) -> Iterator[str]:
    """Yield where the manifest differs from what the installed code and the stored deployment make of it.

    What they claim, and the certificate has or was sampled, is added to `claimed`.
    """
    try:
        deployment = deployments.read(said.deployment)
        names = [certificate.policy for certificate in said.certificates]
        subjects = [part(name) if name in PARTS else subject_of(name, deployment) for name in names]
    except ValueError as error:
        yield f"{MANIFEST}: {error}"
        return
    rows, questions = list[Planned](), dict[str, verify_solvers.Question]()
    for row in plan(subjects).planned:
        if row.theorem.id in said.evidence.get(row.subject.name, {}):
            claimed.append(row)
            rows.append(row)
            questions |= files_of(row.task, files(row.task))
        elif isinstance(claims_of(row.task.source)[row.theorem.id], SampledClaim):
            claimed.append(row)
        elif not row.task.dropped:
            yield f"{row.subject.name}: {row.theorem.id} is claimed, and the certificate has no proof of it"
    made = manifest(said.fairsched, rows, deployment, said.solvers, questions, said.proofs)
    if changed := list(_changed_code(said, made)):
        # Whatever else differs follows from that.
        yield from changed
    else:
        yield from _differences(MANIFEST, *(json.loads(each.to_json()) for each in (said, made)))


def _changed_code(said: Manifest, made: Manifest) -> Iterator[str]:
    """Yield what runs and is not, word for word, what was proved about; each function once, whichever policies have
    it."""
    here = {certificate.policy: certificate.code for certificate in made.certificates}
    pairs = ((each.code, here[each.policy]) for each in said.certificates if each.policy in here)
    yield from dict.fromkeys(change for pair in pairs for change in code_changes(*pair))


def _differences(where: str, said: Any, made: Any) -> Iterator[str]:
    """Yield the places in which two documents differ, innermost first found."""
    if isinstance(said, dict) and isinstance(made, dict):
        for key in dict.fromkeys((*said, *made)):
            if key not in said or key not in made:
                yield f"{where}: {key} is {'not made by' if key in said else 'missing, and is made by'} the code here"
            else:
                yield from _differences(f"{where}: {key}", said[key], made[key])
    elif isinstance(said, list) and isinstance(made, list) and len(said) == len(made):
        for one, other in zip(said, made, strict=True):
            name = one.get("id", one.get("policy", "")) if isinstance(one, dict) else ""
            yield from _differences(f"{where} {name}".rstrip(), one, other)
    elif said != made:
        yield f"{where}: says {said!r}, and the code here makes it {made!r}"


def _wrong_answer(asked: tuple[Path, str]) -> str | None:
    """Return what a solver says instead of the expected answer; nothing about a file that is missing."""
    path, expected = asked
    if not path.is_file():
        return None
    text = path.read_text()
    for name, ask in (("z3", verify_solvers.z3_answer), ("cvc5", verify_solvers.cvc5_answer)):
        try:
            answer = ask(text)
        except ValueError as error:
            return f"{name}: {error}"
        if answer != expected:
            return f"expected {expected}, and {name} says {answer}"
    return None


def _not_checked(proof: Path) -> str | None:
    """Return why a proof is not accepted; nothing about a file that is missing."""
    found = check_files(question_of(proof), proof)
    return None if found.accepted or not proof.is_file() else f"not checked: {found.why}"
