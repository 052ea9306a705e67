"""A folder that keeps an engine through restarts: its last snapshot, and a journal of what happened since.

    keeper = Keeper(Path("/var/lib/serving/worker-0"))
    recovery = keeper.recover(policy)                      # None the first time
    if recovery is None:
        engine = Engine(policy, keeper.executor(model), kv_capacity_tokens=..., log=keeper)
    else:
        engine = resume(recovery.saved, policy, keeper.executor(model), log=keeper)
    keeper.snapshot(engine)                                # now, and then now and then

A snapshot and its journal carry one number.  The next snapshot is written whole before anything of the last is removed;
whatever happens in between, one snapshot is there with all that happened since.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from fairsched.engines.executor import Executor, Sampling
from fairsched.engines.journal import NOTHING, Journal, JournalError, Tail, read_journal
from fairsched.engines.restart import Recovery, kept, recovered
from fairsched.engines.serving import Engine
from fairsched.engines.serving_audience import EventLog
from fairsched.engines.snapshot import restore, sha256_of, snapshot, write_whole
from fairsched.model.events import Event
from fairsched.model.plan import StepPlan
from fairsched.model.request import Client
from fairsched.model.workload import Job
from fairsched.policies.base import LocalPolicy

_log = logging.getLogger("fairsched.engine")


class Keeper:
    """The `log` of an engine, around its executor and another log if there is one.  A context manager.

    `sync` puts each line on the disk before the engine goes on (see `engines.journal`).  When a line cannot be written
    the engine serves on, `failure` says why, and a restart goes back to the line before, until the next snapshot.  One
    process at a time may use a folder.  Raises `OSError` where it cannot be made.
    """

    def __init__(self, folder: Path, *, log: EventLog | None = None, sync: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._log = log
        self._sync = sync
        self._number = max((int(path.stem.split("-")[1]) for path in folder.glob("snapshot-*.json")), default=0)
        self._journal: Journal | None = None
        self.failure: OSError | None = None

    # --- what happens -----------------------------------------------------------------------------------------------

    def define_client(self, client: Client) -> None:
        """The next client."""
        self._write(lambda journal: journal.client(client))
        if self._log is not None:
            self._log.define_client(client)

    def define_request(self, job: Job) -> None:
        """The next request."""
        self._write(lambda journal: journal.request(job))
        if self._log is not None:
            self._log.define_request(job)

    def record(self, events: list[Event]) -> None:
        """The events of a transition."""
        self._write(lambda journal: journal.events(events))
        if self._log is not None:
            self._log.record(events)

    def executor(self, inner: Executor) -> Executor:
        """The executor, with the tokens of requests and steps on record before anybody hears of them."""
        return _Recorded(inner, self)

    def prompt(self, request_id: int, prompt_ids: Sequence[int], sampling: Sampling) -> None:
        """The tokens of a request that is about to come."""
        self._write(lambda journal: journal.prompt(request_id, prompt_ids, sampling))

    def tokens(self, produced: dict[int, int]) -> None:
        """The tokens of a step that is about to end."""
        self._write(lambda journal: journal.tokens(produced))

    def _write(self, write: Callable[[Journal], None]) -> None:
        if self._journal is not None:
            try:
                write(self._journal)
            except OSError as error:
                _log.exception("the journal in %s cannot be written any more", self.folder)
                self.failure = error
                self.close()

    # --- snapshots --------------------------------------------------------------------------------------------------

    def snapshot(self, engine: Engine) -> Path:
        """Keep the engine as it is between two steps, and begin a new journal.  O(state); returns the file.

        After `engine.replace_policy` take one at once: a journal goes on under the policy of its snapshot.  Raises
        `SnapshotError` while the policy is set aside, `OSError` where the file cannot be written; the last snapshot and
        its journal then stay, and go on.
        """
        data = snapshot(engine.policy, kept(engine))
        last, self._number = self._number, self._number + 1
        path = self._snapshot(self._number)
        write_whole(path, data)
        self.close()
        self.failure = None
        self._journal = Journal(self._journal_path(self._number), sha256_of(data), sync=self._sync)
        self._snapshot(last).unlink(missing_ok=True)
        self._journal_path(last).unlink(missing_ok=True)
        return path

    def recover(self, policy: LocalPolicy[Any]) -> Recovery | None:
        """What the folder keeps: the last snapshot, all that happened since, and then memory is lost; None if it keeps
        nothing.

        `policy` is the one that kept it; `OtherPolicyError` says which that is.  To go on under another one, recover
        with the old policy, `resume`, and replace it with its state migrated.  Raises `SnapshotError` or
        `JournalError` for files that are broken: nothing is forgiven silently.
        """
        path = self._snapshot(self._number)
        if not path.exists():
            return None
        data = path.read_bytes()
        return recovered(policy, restore(data, policy), self._tail(sha256_of(data)))

    def _tail(self, sha256: str) -> Tail:
        path = self._journal_path(self._number)
        tail = read_journal(path) if path.exists() else NOTHING
        if tail.after not in ("", sha256):
            raise JournalError(f"{path} goes on from another snapshot than {self._snapshot(self._number).name}")
        return tail

    def _snapshot(self, number: int) -> Path:
        return self.folder / f"snapshot-{number:06}.json"

    def _journal_path(self, number: int) -> Path:
        return self.folder / f"journal-{number:06}.jsonl"

    def close(self) -> None:
        """Nothing more is kept; what is there stays."""
        if self._journal is not None:
            self._journal.close()
        self._journal = None

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Recorded:
    """An executor whose tokens the keeper has before the engine tells them to anybody."""

    def __init__(self, inner: Executor, keeper: Keeper) -> None:
        self._inner = inner
        self._keeper = keeper

    def submit(
        self, request_id: int, prompt_ids: Sequence[int], sampling: Sampling, generated: Sequence[int] = ()
    ) -> None:
        self._inner.submit(request_id, prompt_ids, sampling, generated)
        if not generated:
            self._keeper.prompt(request_id, prompt_ids, sampling)

    def follow(self, events: Sequence[Event]) -> None:
        self._inner.follow(events)

    def execute(self, plan: StepPlan) -> dict[int, int]:
        produced = self._inner.execute(plan)
        self._keeper.tokens(produced)
        return produced

    def close(self) -> None:
        self._inner.close()
