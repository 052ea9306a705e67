"""The order in which to run a batch of offline jobs so that shared prefixes are computed once, and what that saves.

The prompts are grouped by prefixes (`fairsched.policies`, BatchLLM), groups are ordered, and jobs keep the file's order
within their group.
"""

import time
from pathlib import Path

import attrs
import msgspec
import numpy as np

from fairsched.engines.files import whole_file
from fairsched.engines.workloads import BatchJobs, Progress, read_batch
from fairsched.model.algebra import Ints
from fairsched.model.shown import short_repr
from fairsched.policies.offline import Grouping, GroupOrder, PrefixGroups, batch_tree, group_places, groups_by


class OrderedJob(msgspec.Struct, frozen=True):
    """A line of the order: the job, its group, and how many leading tokens all of the group share."""

    id: int
    group: int
    prefix_tokens: int


@attrs.frozen
class BatchSummary:
    """What the grouping of a batch comes to; `saved_tokens_max` is what sharing on all levels would save."""

    jobs: int
    groups: int
    shared_groups: int
    prompt_tokens: int
    saved_tokens: int
    saving_ratio: float
    saved_tokens_max: int
    saving_ratio_max: float
    grouping: str
    order: str
    read_s: float
    group_s: float


@attrs.frozen(eq=False)
class BatchOrder:
    """The jobs of a batch, their groups, and the place of each job's group."""

    __repr__ = short_repr

    jobs: BatchJobs
    groups: PrefixGroups
    places: Ints
    summary: BatchSummary

    def write(self, path: Path, progress: Progress = lambda count: None) -> None:
        """Write a JSON line a job: groups in order, and in each group the jobs as they came.

        A file that is half written is not left.  Raises `OSError`.
        """
        encode = msgspec.json.Encoder().encode
        order = np.argsort(self.places, kind="stable")
        prefixes = self.groups.prefix_tokens[self.groups.group_of]
        columns = (self.jobs.ids[order].tolist(), self.places[order].tolist(), prefixes[order].tolist())
        with whole_file(path) as file:
            for count, (job, place, prefix) in enumerate(zip(*columns, strict=True), 1):
                file.write(encode(OrderedJob(job, place, prefix)) + b"\n")
                if count % 10_000 == 0:
                    progress(count)


def order_batch(
    path: Path,
    *,
    grouping: Grouping = "exact",
    order: GroupOrder = "per_request",
    format: str | None = None,
    progress: Progress = lambda count: None,
) -> BatchOrder:
    """Return the order in which to run the jobs of a file in any trace format (`format`; None: recognised).

    `progress` is called with the number of jobs that were read.  Raises `WorkloadError`, as `read_batch` does.

    >>> from tempfile import TemporaryDirectory
    >>> row = '{"timestamp": 0, "output_length": 1, "block_tokens": 1, "input_length": 3, "hash_ids": [1, 2, %d]}'
    >>> with TemporaryDirectory() as folder:
    ...     jobs = Path(folder, "jobs.jsonl")
    ...     _ = jobs.write_text("\\n".join(row % key for key in (7, 8, 9)))
    ...     found = order_batch(jobs)
    >>> found.summary.groups, found.summary.saved_tokens
    (1, 4)
    """
    begun = time.perf_counter()
    jobs = read_batch(path, progress, format)
    read = time.perf_counter()
    tree = batch_tree(jobs.chains, jobs.tokens, jobs.block_tokens, jobs.key_bytes)
    groups = groups_by(tree, grouping)
    places = group_places(tree, groups, order, jobs.output_tokens)[groups.group_of]
    summary = BatchSummary(
        jobs=len(tree.tokens),
        groups=len(groups.sizes),
        shared_groups=int((groups.sizes > 1).sum()),
        prompt_tokens=tree.prompt_tokens,
        saved_tokens=groups.saved_tokens,
        saving_ratio=groups.saving_ratio,
        saved_tokens_max=tree.saved_tokens_max,
        saving_ratio_max=tree.saved_tokens_max / tree.prompt_tokens,
        grouping=grouping,
        order=order,
        read_s=read - begun,
        group_s=time.perf_counter() - read,
    )
    return BatchOrder(jobs, groups, places, summary)
