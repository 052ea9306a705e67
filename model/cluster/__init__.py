"""One cluster as a value: where each request is, which KV moves, which workers serve, and the pure transitions of it.
The simulator, the live cluster and the conformance battery drive it. Read `transitions` first.
"""

from fairsched.model.cluster.state import (
    ClusterState,
    Command,
    FreeKv,
    GoWithoutKv,
    LeaveBatch,
    Move,
    MovePhase,
    PlaceAgain,
    ReleaseKv,
    ReserveKv,
    ResumeRequest,
    SendKv,
    TellFailed,
    WorkerPhase,
    check,
)
from fairsched.model.cluster.transitions import (
    Transition,
    arrive,
    end,
    enter,
    fail,
    fetch,
    grant,
    hold,
    land,
    leave,
    left,
    link_back,
    link_fails,
    lose,
    lose_kv,
    migrate,
    numbered,
    pass_on,
    place,
    release_early,
    unreserved,
    unstrand,
)

__all__ = [
    "ClusterState", "Command", "FreeKv", "GoWithoutKv", "LeaveBatch", "Move", "MovePhase", "PlaceAgain", "ReleaseKv",
    "ReserveKv", "ResumeRequest", "SendKv", "TellFailed", "Transition", "WorkerPhase", "arrive", "check", "end",
    "enter", "fail", "fetch", "grant", "hold", "land", "leave", "left", "link_back", "link_fails", "lose", "lose_kv",
    "migrate", "numbered", "pass_on", "place", "release_early", "unreserved", "unstrand"
]  # fmt: skip
