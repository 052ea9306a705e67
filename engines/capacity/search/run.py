"""The search: the goodput of every candidate, on all cores, with a journal from which an interrupted one goes on."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import msgspec

from fairsched.engines.capacity.highest_rate import Goodput, RateTrial, SloTarget, goodput
from fairsched.engines.capacity.search.space import LINK_BYTES_PER_S, Candidate, Objective, likely_rate
from fairsched.engines.simulation import Progress, run_tasks
from fairsched.model.request import Workload

SCHEMA = 2
"""Version of the journal."""


@attrs.frozen
class Query:
    """What is asked of every candidate: requests, targets, and how close."""

    workload: Workload
    targets: tuple[SloTarget, ...]
    resolution: float

    def to_dict(self) -> dict[str, Any]:
        """Return what makes two questions the same."""
        sizes = hashlib.sha256()
        for job in self.workload.jobs:
            request = job.request
            sizes.update(f"{request.arrival_ns},{request.prompt.tokens},{job.output_tokens};".encode())
        return {
            "workload": self.workload.name,
            "requests": len(self.workload.jobs),
            "sha256": sizes.hexdigest(),
            "targets": [target.text for target in self.targets],
            "resolution": self.resolution,
            "link_bytes_per_s": LINK_BYTES_PER_S,
        }


@attrs.frozen
class Rated:
    """A candidate with its goodput, and the seconds that its simulations took."""

    candidate: Candidate
    goodput: Goodput
    seconds: float

    @property
    def rate(self) -> float:
        """Requests a second that keep the targets; 0 if no rate does."""
        return self.goodput.rate or 0.0

    def value(self, objective: Objective) -> float:
        """Return the rate over what the fleet takes."""
        return self.rate / self.amount(objective)

    def amount(self, objective: Objective) -> float:
        """Return what the fleet takes: of kilojoules, what it drew a second at its rate."""
        drawn = self.goodput.tried[self.rate].watts if objective == "joule" and self.rate else None
        return self.candidate.fleet.amount(objective) if drawn is None else drawn / 1_000

    @property
    def least_excess(self) -> float:
        """How far the worst target was exceeded at the rate where that was least."""
        return min(trial.worst for trial in self.goodput.tried.values())


@attrs.frozen
class Search:
    """What was found, best first, and how long it took; `resumed` of it was in the journal already."""

    question: Query
    objective: Objective
    found: tuple[Rated, ...]
    candidates: int
    wall_s: float
    resumed: int = 0

    @property
    def complete(self) -> bool:
        """Whether every candidate was tried."""
        return len(self.found) == self.candidates

    @property
    def best(self) -> Rated | None:
        """The best candidate that keeps the targets at any rate."""
        return self.found[0] if self.found and self.found[0].rate else None

    @property
    def nearest(self) -> Rated:
        """The candidate that exceeds the targets least; raises `ValueError` where none was tried."""
        return min(self.found, key=lambda found: found.least_excess)

    @property
    def simulations(self) -> int:
        """Simulations of all candidates, those of the journal too."""
        return sum(len(found.goodput.tried) for found in self.found)

    @property
    def simulations_per_s(self) -> float:
        """Simulations of this run, those of the journal not, over the time that it took."""
        ran = sum(len(found.goodput.tried) for found in self.found if found.seconds > 0)
        return ran / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def frontier(self) -> tuple[Rated, ...]:
        """The candidates than which none has as high a rate for less, cheapest first."""
        front: list[Rated] = []
        ordered = sorted(self.found, key=lambda found: (found.amount(self.objective), -found.rate))
        for found in ordered:
            if found.rate > (front[-1].rate if front else 0.0):
                front.append(found)
        return tuple(front)

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `fairsched search --json`."""
        best, front = self.best, {found.candidate for found in self.frontier}
        return {
            **self.question.to_dict(),
            "objective": self.objective,
            "complete": self.complete,
            "best": None if best is None else best.candidate.text,
            "simulations": self.simulations,
            "simulations_per_s": self.simulations_per_s,
            "wall_s": self.wall_s,
            "resumed": self.resumed,
            "candidates": [
                {
                    "candidate": found.candidate.text,
                    "fleet": found.candidate.fleet.text,
                    "gpus": found.candidate.fleet.gpus,
                    "prefill_share": found.candidate.fleet.prefill_share,
                    "rate": found.goodput.rate,
                    "value": found.value(self.objective),
                    "watts": None if found.goodput.rate is None else found.goodput.tried[found.rate].watts,
                    "frontier": found.candidate in front,
                    "monotone": found.goodput.is_monotone,
                    "open_above": found.goodput.open_above,
                    "highest": found.goodput.highest,
                    "tried": {f"{rate:.6g}": list(trial.excess) for rate, trial in found.goodput.tried.items()},
                }
                for found in self.found
            ],
        }


def search_fleets(
    question: Query,
    candidates: Sequence[Candidate],
    *,
    objective: Objective = "gpu",
    jobs: int = 1,
    ray: str | None = None,
    journal: Path | None = None,
    progress: Progress | None = None,
) -> Search:
    """Return the goodput of every candidate, the best rate for the `objective` first.

    `jobs` processes or the cores of a `ray` cluster run candidates at the same time (`run_tasks` says what it raises).
    Each candidate that is done goes into the file `journal`, and one that is there already is not run again.  An
    interrupt ends the search with what was found.  Raises `ValueError` for a journal of another question, or for an
    objective that is not known of some fleet, before anything is run.
    """
    for candidate in candidates:
        candidate.fleet.amount(objective)
        candidate.spec  # noqa: B018 - names and values are checked here
    by_text = {candidate.text: candidate for candidate in candidates}
    done = {} if journal is None else _read(journal, question, by_text)
    waiting = [candidate for candidate in candidates if candidate.text not in done]
    found, started = list(done.values()), time.perf_counter()

    def told(what: str) -> None:
        if progress is not None:
            progress(what, len(found), len(candidates))

    told("")
    try:
        for _, each in run_tasks(_measured, [(question, candidate) for candidate in waiting], jobs=jobs, ray=ray):
            found.append(each)
            if journal is not None:
                _append(journal, _entry(each))
            told(each.candidate.text)
    except KeyboardInterrupt:
        if not found:
            raise
    found.sort(key=lambda each: (-each.value(objective), each.least_excess, each.candidate.text))
    wall_s = time.perf_counter() - started
    return Search(question, objective, tuple(found), len(candidates), wall_s, len(done))


def _measured(task: tuple[Query, Candidate]) -> Rated:
    """Run a candidate, also in another process."""
    question, candidate = task
    started = time.perf_counter()
    found = goodput(
        question.workload,
        candidate.spec,
        candidate.fleet.cluster(),
        question.targets,
        start=likely_rate(candidate.fleet, question.workload),
        resolution=question.resolution,
    )
    return Rated(candidate, found, time.perf_counter() - started)


# --- the journal ------------------------------------------------------------------------------------------------------


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    fairsched_search: int
    question: dict[str, Any]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    candidate: str
    rate: float | None
    open_above: bool
    tried: tuple[tuple[float, tuple[float | None, ...], int, int, float | None], ...]


def _entry(found: Rated) -> _Entry:
    # JSON has no infinity.
    tried = tuple(
        (rate, tuple(None if each == float("inf") else each for each in trial.excess), *attrs.astuple(trial)[1:])
        for rate, trial in found.goodput.tried.items()
    )
    return _Entry(found.candidate.text, found.goodput.rate, found.goodput.open_above, tried)


def _append(journal: Path, line: msgspec.Struct) -> None:
    with journal.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")


def _read(journal: Path, question: Query, candidates: dict[str, Candidate]) -> dict[str, Rated]:
    """Return what the journal has of these candidates, and begin one where there is none.

    A last line that was cut off by an interrupt is dropped.
    """
    head = msgspec.json.decode(msgspec.json.encode(_Head(SCHEMA, question.to_dict())), type=_Head)
    lines = journal.read_bytes().split(b"\n") if journal.exists() else [b""]
    if lines == [b""]:
        _append(journal, head)
        return {}
    try:
        theirs = msgspec.json.decode(lines[0], type=_Head)
    except msgspec.DecodeError:
        raise ValueError(f"{journal} is no journal of a search: another file keeps it") from None
    if theirs != head:
        differs = [key for key, value in head.question.items() if theirs.question.get(key) != value] or ["version"]
        raise ValueError(f"{journal} is of another search: it differs in {', '.join(differs)}; name another file")
    whole, rest = lines[1:-1], lines[-1]
    if rest:
        journal.write_bytes(b"\n".join(lines[:-1]) + b"\n")
    return {found.candidate.text: found for found in _entries(journal, whole, candidates)}


def _entries(journal: Path, lines: Sequence[bytes], candidates: dict[str, Candidate]) -> Iterator[Rated]:
    for number, line in enumerate(lines, 2):
        try:
            entry = msgspec.json.decode(line, type=_Entry)
        except msgspec.DecodeError as error:
            raise ValueError(f"{journal}, line {number}: {error}") from None
        if entry.candidate in candidates:
            tried = {
                rate: RateTrial(
                    tuple(float("inf") if each is None else each for each in excess), finished, requests, watts
                )
                for rate, excess, finished, requests, watts in entry.tried
            }
            yield Rated(candidates[entry.candidate], Goodput(entry.rate, tried, entry.open_above), 0.0)
