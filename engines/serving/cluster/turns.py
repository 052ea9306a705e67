"""When the workers of a cluster are called: all at any time, or, where they share credit, one decides at a time.

What one worker charges decides what another may do.  So a worker whose policy shares credit is called twice for a step:
to decide, with the credit as it is, and to compute what it decided.  While one decides no other does, and reports of
others are not taken; a decision is short, and all compute at once.  So a policy sees what it sees in a simulation: all
that was decided before, the output of all steps that were reported, and all that waits, except at workers that compute,
which hear of new requests when their step is over.
"""

from collections.abc import Callable, Mapping

from fairsched.engines.serving.cluster.member import LiveWorker, SharedCredit
from fairsched.engines.serving.cluster.worker import Cadence, ServingReport


class DecisionTurns:
    """Calls the `members`, each for `pace`, `ahead` calls at a time; with `credit`, in turns by `clock`."""

    def __init__(
        self,
        members: Mapping[int, LiveWorker],
        pace: Cadence,
        ahead: int,
        credit: SharedCredit | None,
        clock: Callable[[], int],
    ) -> None:
        self._members = members
        self._pace = pace
        self._ahead = ahead
        self._credit = credit
        self._clock = clock
        self._since: dict[LiveWorker, tuple[int, bool, int]] = {}
        self._deciding: LiveWorker | None = None
        self._hearing: list[LiveWorker] = []
        self._insisted: LiveWorker | None = None

    def send(self) -> list[LiveWorker]:
        """Call those that have anything to do; returns those whose reports may be taken."""
        members, credit = [*self._members.values()], self._credit
        for member in members:
            if credit is None or member.is_starting:
                member.send(self._pace, self._ahead)
            elif member.decided:
                member.compute(self._pace)
        if credit is None:
            return members
        if self._deciding not in members:
            self._hearing = [member for member in self._hearing if member in members and member.head is not None]
            self._deciding = None if self._hearing else self._next(members, credit)
        return members if self._deciding is None else [self._deciding]

    def _next(self, members: list[LiveWorker], credit: SharedCredit) -> LiveWorker | None:
        """Let the member decide that has been ready for the longest time, or the one that is to do something.

        At one instant, one that goes on after a step is before those that rested and look whether credit has changed.

        Before, the others are told what they do not know: a client counts that waits at any of them.
        """
        ready = [member for member in members if not member.is_starting and member.is_to_decide]
        now_ns, since = self._clock(), self._since
        self._since = {member: since.get(member, (now_ns, member.rests, member.worker)) for member in ready}
        if len(ready) > 1:
            self._hearing = [member for member in ready if member.outbox]
            for member in self._hearing:
                member.hear(self._pace)
            if self._hearing:
                return None
        insisted, self._insisted = self._insisted, None
        if insisted not in members:
            insisted = None
        chosen = insisted or min(self._since, key=self._since.__getitem__, default=None)
        if chosen is not None:
            self._since.pop(chosen, None)
            chosen.decide(credit, self._pace, may_idle=insisted is None)
        return chosen

    def reported(self, member: LiveWorker, report: ServingReport) -> None:
        """Take a report, with all that it tells."""
        credit, decided = self._credit, member is self._deciding
        if decided:
            self._deciding = None
        if credit is not None and not report.decided and (decided or not member.calls):
            credit.becomes(credit.sharing.idle(credit.value, member.worker), member.worker)

    def insist(self, *, landed: bool) -> bool:
        """When nothing can happen any more, let one worker do something; whether there is one.

        KV that `landed` may wait for credit of its client, and hold the memory that a client in credit waits for: the
        youngest request loses it.  Else the policy of a worker that has requests is at fault, and its guard decides.
        """
        if self._credit is None:
            return False
        ages = {member: -1 if member.last is None or member.last.landed is None else member.last.landed
                for member in self._members.values() if member.calls}  # fmt: skip
        holding = {member: age for member, age in ages.items() if age >= 0} if landed else ages
        if not holding:
            return False
        self._insisted = max(holding, key=lambda member: (holding[member], member.worker))
        return True
