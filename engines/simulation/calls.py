"""The requests of a run with their dependencies: which may be sent when a request ends, and which never will."""

from collections.abc import Iterable, Sequence

from fairsched.model.request import Job


class CallGraph:
    """The jobs of a workload by id, and which of them are over.

    Raises `ValueError` for an id that is there twice, and for one that follows a request that is not there.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.jobs: dict[int, Job] = {}
        self.over: set[int] = set()
        self._children: dict[int, list[int]] = {}
        self._missing: dict[int, int] = {}
        for job in jobs:
            request = job.request
            if request.id in self.jobs:
                raise ValueError(f"request {request.id} is in the workload twice")
            self.jobs[request.id] = job
            if job.after:
                self._missing[request.id] = len(job.after)
                for parent in job.after:
                    self._children.setdefault(parent, []).append(request.id)
        for parent, children in self._children.items():
            if parent not in self.jobs:
                raise ValueError(f"request {children[0]} comes after request {parent}, which is not in the workload")

    @property
    def all_over(self) -> bool:
        return len(self.over) == len(self.jobs)

    def roots(self) -> Iterable[Job]:
        """Return the requests that depend on no other."""
        return (job for job in self.jobs.values() if not job.after)

    def end(self, request_id: int, finished: bool) -> tuple[Sequence[int], Sequence[int]]:
        """End a request; returns those that may be sent now, and those that never will because it did not finish.

        The latter are over too, with all that depend on them, each after the one that it depends on.
        """
        self.over.add(request_id)
        if request_id not in self._children:
            return (), ()
        due: list[int] = []
        lost: list[int] = []
        ended = [(request_id, finished)]
        while ended:
            parent, finished = ended.pop()
            if parent != request_id:
                if parent in self.over:
                    continue
                self.over.add(parent)
                lost.append(parent)
            children = [child for child in self._children.pop(parent, ()) if child not in self.over]
            for child in children:
                self._missing[child] -= 1
                if finished and not self._missing[child]:
                    due.append(child)
            if not finished:
                ended += [(child, False) for child in reversed(children)]
        return due, lost
