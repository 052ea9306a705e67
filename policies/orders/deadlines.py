"""Orders by deadline: the earliest first, the least slack first, and the least slack and most tokens for the work.

Sources: Liu and Layland (1973) for the earliest deadline, Mok (1983) for the least slack (least laxity), JITServe
(arXiv 2504.20068) for just in time, of which the aims are taken and the rule is ours.  Deadlines are
the callers' own targets (`Request.slo`): a request that is to have its first token within t of its arrival has a
deadline then, and one that is to end within t has another.  The nearest counts.  A request without such a target goes
after all that have one, in order of arrival; a target for the time between tokens says nothing of when to begin.

Slack at a time is what is left until the deadline, less what the request still has to do.  Time shortens the slack of
all waiting requests alike, so the least is that of the least deadline - work: the clock is not in it, a decision stands
until a request comes or goes, and decode steps may be leapt over.

A key is a time in nanoseconds, as exact as the request's own: 63 bits are 292 years, where a rank beside an age in one
score (`score_of`) has 23 bits.  So these orders rank the queue in each decision (`RanksByKey`), by a number that is
found once, when the request joins.

Just in time.  JITServe gives each request just the bandwidth that its target needs, as late as that allows, and prefers
requests that yield many tokens in time for it.  Here slack says how late a request may begin, and its tokens for each
unit of work, told apart by factors of two, what it yields: with twice the tokens it counts as due `window_ns` earlier.
It is the logarithm of the index of apparent tardiness (Vepsalainen and Morton, 1987), in which time is a term, not a
factor, so that the clock cancels here too.  A request that is late is not given up, and bandwidth is not shared out.

None of them promises anything: under overload the earliest deadline goes to requests that are late already.  A late
request is not passed over, since what is late now depends on the clock.
Under a gate (`edf+deficit`) deadlines count within a client: no client gains service by asking for more haste.  What
that costs a request that is due first of all, the gate says (D-late).
"""

from collections.abc import Iterator
from typing import ClassVar

import attrs

from fairsched.model.request import Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.orders.abilities import OWN_MAX, RanksByKey
from fairsched.policies.orders.base import QueuedRequest
from fairsched.policies.orders.predicted_output import predicted_left
from fairsched.policies.validators import not_negative

P_DL_1 = Theorem(
    "P-DL-1",
    "behind any gate a request is let in only before those of its client that wait and are due later, or as soon and "
    "came later; without a gate, before all that are",
    "this library; in drawn worlds",
    scope=Scope.TESTED,
)
NS_PER_S = 1_000_000_000
NO_DEADLINE_NS = OWN_MAX
"""The deadline of a request that has none, and the latest there is."""


def deadlines(request: Request, prompt_ns: int, output_ns: int) -> Iterator[int]:
    """Yield the latest times to begin, one for each target: of `prompt_ns` of work until the first token, and
    `output_ns` from then on.

    >>> from fairsched.model.request import Prompt, Slo
    >>> list(deadlines(Request(0, 0, 100, Prompt(8), 4, slo=Slo(ttft_ns=50, latency_ns=200)), 20, 60))
    [130, 220]
    """
    slo = request.slo
    if slo is None:
        return
    if slo.ttft_ns is not None:
        yield request.arrival_ns + slo.ttft_ns - prompt_ns
    if slo.latency_ns is not None:
        yield request.arrival_ns + slo.latency_ns - prompt_ns - output_ns


def nearest(request: Request, prompt_ns: int = 0, output_ns: int = 0) -> int:
    """Return the nearest of a request's deadlines, less the work that is to be done before it."""
    found = min(deadlines(request, prompt_ns, output_ns), default=NO_DEADLINE_NS)
    return max(-OWN_MAX, min(found, NO_DEADLINE_NS))


@attrs.frozen
class EarliestDeadline(RanksByKey):
    """The nearest deadline first; of equals, and of those without one, the oldest."""

    name: ClassVar[str] = "earliest-deadline"

    def number(self, queued: QueuedRequest) -> int:
        """Return when the request is due, in nanoseconds."""
        return nearest(queued.request)

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        return (P_DL_1,)


@attrs.frozen
class LeastSlack(EarliestDeadline):
    """The least slack first: the nearest deadline less the predicted work before it."""

    name: ClassVar[str] = "least-slack"

    prompt_token_ns: int = attrs.field(default=100_000, validator=not_negative)
    """How long a token of a prompt takes, in nanoseconds."""
    output_token_ns: int = attrs.field(default=20_000_000, validator=not_negative)
    """How long an output token takes, in nanoseconds: about a decode step."""

    def work_ns(self, queued: QueuedRequest) -> tuple[int, int]:
        """Return how long the prompt takes, and what is predicted of the output and was not produced yet from then
        on."""
        left = predicted_left(queued)
        return self.prompt_token_ns * queued.context_tokens, self.output_token_ns * max(left - 1, 0)

    def number(self, queued: QueuedRequest) -> int:
        """Return the latest time to begin, in nanoseconds."""
        return nearest(queued.request, *self.work_ns(queued))


@attrs.frozen
class JustInTime(LeastSlack):
    """The least slack first, where more tokens for the work make up for slack."""

    name: ClassVar[str] = "just-in-time"

    window_ns: int = attrs.field(default=1_000_000_000, validator=not_negative)
    """By how much earlier a request counts as due that yields twice the tokens for the same work, in nanoseconds."""

    def number(self, queued: QueuedRequest) -> int:
        """Return the latest time to begin, in nanoseconds, less the window for each factor of two in what it yields."""
        begins = super().number(queued)
        if begins == NO_DEADLINE_NS:
            return begins
        tokens = queued.context_tokens + predicted_left(queued)
        return max(-OWN_MAX, begins - self.window_ns * yield_class(tokens, sum(self.work_ns(queued))))


def yield_class(tokens: int, work_ns: int) -> int:
    """Return the tokens for each second of work, as the whole power of two below: those alike are of one class.

    >>> yield_class(400, 8_000_000_000), yield_class(800, 8_000_000_000)
    (5, 6)
    """
    return (tokens * NS_PER_S // max(work_ns, 1)).bit_length() - 1
