"""State that survives a restart: snapshot and journal. Read `state_store` first."""

from typing import TYPE_CHECKING

from fairsched.model.lazy import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.serving.state.journal import JournalError, StateStore, Tail, read_journal
    from fairsched.engines.serving.state.restart import resume
    from fairsched.engines.serving.state.snapshot import packed, unpacked, write_whole
    from fairsched.engines.serving.state.state_store import EngineStore
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "EngineStore", "JournalError", "StateStore", "Tail", "packed", "read_journal", "resume", "unpacked",
    "write_whole"
]  # fmt: skip
