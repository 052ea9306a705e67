"""A folder that keeps an engine through restarts: its last snapshot, and a journal of what happened since.

    store = EngineStore(Path("/var/lib/serving/worker-0"))
    recovery = store.recover(policy)                      # None the first time
    if recovery is None:
        engine = Engine(policy, store.executor(model), kv_capacity_tokens=..., log=store)
    else:
        engine = resume(recovery.saved, policy, store.executor(model), log=store)
    store.snapshot(engine)                                # now, and then now and then

A snapshot and its journal carry one number.  The next snapshot is written whole before anything of the last is removed;
whatever happens in between, one snapshot is there with all that happened since.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from fairsched.engines.serving.executor import Executor, Sampling
from fairsched.engines.serving.log import EventLog
from fairsched.engines.serving.loop import Engine
from fairsched.engines.serving.state.journal import StateStore, read_journal
from fairsched.engines.serving.state.restart import Recovery, kept, recovered
from fairsched.engines.serving.state.snapshot import packed, restore, sha256_of, snapshot
from fairsched.model.decision import StepPlan
from fairsched.model.events import Event
from fairsched.model.request import Client, Job
from fairsched.policies.base import AnyLocalPolicy

_log = logging.getLogger("fairsched.engine")


class EngineStore(StateStore, EventLog):
    """The `log` of an engine, around its executor and another log if there is one.

    `sync` puts each line on the disk before the engine goes on (see `engines.serving.state.journal`).  The engine
    serves on when a line cannot be written.  One process at a time may use a folder.  Raises `OSError` where it
    cannot be made.
    """

    def __init__(self, folder: Path, *, log: EventLog | None = None, sync: bool = False) -> None:
        super().__init__(_log, sync=sync)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._inner_log = log
        self._number = max((int(path.stem.split("-")[1]) for path in folder.glob("snapshot-*.json")), default=0)

    # --- what happens -----------------------------------------------------------------------------------------------

    def define_client(self, client: Client) -> None:
        self.append("client", client)
        if self._inner_log is not None:
            self._inner_log.define_client(client)

    def define_request(self, job: Job) -> None:
        self.append("request", job)
        if self._inner_log is not None:
            self._inner_log.define_request(job)

    def record(self, events: list[Event]) -> None:
        if events:
            self.append("events", events)
        if self._inner_log is not None:
            self._inner_log.record(events)

    def executor(self, inner: Executor) -> Executor:
        """Return the executor, with the tokens of requests and steps on record before a caller hears of them."""
        return _Recorded(inner, self)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def snapshot(self, engine: Engine) -> Path:
        """Keep the engine as it is between two steps, and begin a new journal.  O(state); returns the file.

        After `engine.replace_policy` take one at once: a journal goes on under the policy of its snapshot.  Raises
        `SnapshotError` while the policy is set aside, `OSError` where the file cannot be written; the last snapshot and
        its journal then stay, and go on.
        """
        data = snapshot(engine.policy, kept(engine))
        last = self._files
        self._number += 1
        path, journal = self._files
        self.save(path, data, journal, sha256_of(data))
        for each in last:
            each.unlink(missing_ok=True)
        return path

    def recover(self, policy: AnyLocalPolicy) -> Recovery | None:
        """Return what the folder keeps: the last snapshot, all that happened since, and then memory is lost; or None.

        `policy` is the one that kept it; `OtherPolicyError` says which that is.  To go on under another one, recover
        with the old policy, `resume`, and replace it with its state migrated.  Raises `SnapshotError` or
        `ValueError` for files that are broken: nothing is forgiven silently.
        """
        path, journal = self._files
        if not path.exists():
            return None
        data = path.read_bytes()
        saved, tail = restore(data, policy), read_journal(journal)
        if tail.after not in ("", sha256_of(data)):
            raise ValueError(f"{journal} goes on from another snapshot than {path.name}")
        return recovered(policy, saved, tail)

    @property
    def _files(self) -> tuple[Path, Path]:
        """The snapshot and its journal."""
        return self.folder / f"snapshot-{self._number:06}.json", self.folder / f"journal-{self._number:06}.jsonl"


class _Recorded:
    """An executor whose tokens the store has before the engine tells them to a caller."""

    def __init__(self, inner: Executor, store: EngineStore) -> None:
        self._inner = inner
        self._store = store

    def submit(
        self, request_id: int, prompt_ids: Sequence[int], sampling: Sampling, generated: Sequence[int] = ()
    ) -> None:
        self._inner.submit(request_id, prompt_ids, sampling, generated)
        if not generated:
            self._store.append("prompt", request_id, packed(prompt_ids), sampling)

    def follow(self, events: Sequence[Event]) -> None:
        self._inner.follow(events)

    def execute(self, plan: StepPlan) -> dict[int, int]:
        produced = self._inner.execute(plan)
        if produced:
            self._store.append("tokens", list(produced.items()))
        return produced

    def close(self) -> None:
        self._inner.close()
