"""Re-checks a certificate: hashes, answers of both solvers, and that it is about the code that is installed.

Everything that the directory says is made again from the installed code and compared: the questions, the texts of the
theorems with their constants, the hashes of kernels and configurations.  So a manifest that claims more than was proved
is caught even when all its hashes agree.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import msgspec

from fairsched.verify import deployment as deployments
from fairsched.verify.certificate import MANIFEST, Manifest, companions, files_of, manifest, read, sha256
from fairsched.verify.decide import File, files, pool
from fairsched.verify.deployment import Deployment
from fairsched.verify.report import Planned, plan
from fairsched.verify.second_opinion import cvc5_answer, z3_answer
from fairsched.verify.subject import PARTS, Subject, claims_of
from fairsched.verify.tested import TestedClaim

SubjectOf = Callable[[str, Deployment], Subject]


@attrs.frozen
class Found:
    """How many questions were asked, and what is wrong, a line each."""

    questions: int
    problems: tuple[str, ...]


def check(directory: Path, subject_of: SubjectOf, jobs: int = 1) -> Found:
    """Re-check a directory; raises `ValueError` if it holds no certificate that this version reads."""
    said = read(directory)
    problems = [*_on_disk(directory, said), *_as_installed(said, subject_of)]
    asked = {path: (directory / path, question.expected) for path, question in said.files.items()}
    there = {path: asked[path] for path in asked if asked[path][0].is_file()}
    with pool(jobs) as executor:
        answers = executor.map(_wrong_answer, there.values(), chunksize=8)
        problems += [f"{path}: {wrong}" for path, wrong in zip(there, answers, strict=True) if wrong]
    return Found(len(asked), tuple(problems))


def _on_disk(directory: Path, said: Manifest) -> Iterator[str]:
    """Files that are missing, changed, or not in the manifest."""
    for path, question in said.files.items():
        if not (directory / path).is_file():
            yield f"{path}: missing"
        elif sha256((directory / path).read_bytes()) != question.sha256:
            yield f"{path}: changed since the manifest was written"
    beside = companions(said)
    for name, content in beside.items():
        if not (directory / name).is_file():
            yield f"{name}: missing"
        elif (directory / name).read_bytes() != content:
            yield f"{name}: not what belongs to this manifest"
    known = {*said.files, *beside}
    for file in sorted(file for file in directory.rglob("*") if file.is_file()):
        if (name := file.relative_to(directory).as_posix()) not in known:
            yield f"{name}: not in the manifest"


def _as_installed(said: Manifest, subject_of: SubjectOf) -> Iterator[str]:
    """Where the manifest differs from what the installed code and the stored deployment make of it."""
    try:
        deployment = deployments.read(said.deployment)
        names = [certificate.policy for certificate in said.certificates]
        subjects = [PARTS[name]() if name in PARTS else subject_of(name, deployment) for name in names]
    except ValueError as error:
        yield f"{MANIFEST}: {error}"
        return
    rows, questions = list[Planned](), dict[str, File]()
    for row in plan(subjects).planned:
        if row.theorem.id in said.evidence.get(row.subject.name, {}):
            rows.append(row)
            questions |= files_of(row.task, files(row.task))
        elif not row.task.dropped and not isinstance(claims_of(row.task.source)[row.theorem.id], TestedClaim):
            yield f"{row.subject.name}: {row.theorem.id} is claimed, and the certificate has no proof of it"
    made = manifest(said.fairsched, rows, deployment, said.solvers, questions)
    yield from _changed_kernels(said, made)
    alike = msgspec.structs.replace(made, kernels=said.kernels)
    yield from _differences(MANIFEST, *(json.loads(each.to_json()) for each in (said, alike)))


def _changed_kernels(said: Manifest, made: Manifest) -> Iterator[str]:
    """Functions that are not, word for word, those that were proved about."""
    for name in dict.fromkeys((*said.kernels, *made.kernels)):
        if name not in made.kernels:
            yield f"{name}: the certificate is about a kernel that is not here"
        elif name not in said.kernels:
            yield f"{name}: a kernel that the certificate does not know"
        elif said.kernels[name] != made.kernels[name]:
            yield f"{name}: the kernel's text has changed since it was proved about"


def _differences(where: str, said: Any, made: Any) -> Iterator[str]:
    """The places in which two documents differ, innermost first found."""
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
    """What a solver says instead of the expected answer."""
    path, expected = asked
    text = path.read_text()
    for name, ask in (("z3", z3_answer), ("cvc5", cvc5_answer)):
        try:
            answer = ask(text)
        except ValueError as error:
            return f"{name}: {error}"
        if answer != expected:
            return f"expected {expected}, and {name} says {answer}"
    return None
