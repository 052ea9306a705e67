"""State that survives a restart: snapshot and journal. Read `state_store` first."""

from fairsched.engines.serving.state.restart import resume
from fairsched.engines.serving.state.snapshot import packed, unpacked
from fairsched.engines.serving.state.state_store import EngineStore

__all__ = ["EngineStore", "packed", "resume", "unpacked"]
