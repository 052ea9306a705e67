"""Orders of programs: by virtual finish time, and by least attained service with a half-life.

A program is a client: give each one a client of its own (`with_account`).

Virtual finish times: the call whose program would be finished first, were all programs served at once.
Sources: self-clocked fair queueing (Golestani, 1994), whose clock is the tag of what is in service; Autellix orders the
calls of programs by the service that they attained, Justitia agents by virtual finish times of predicted costs (both
recalled; that the bound it claims is false, and what is true, is in `fairsched.verify.proofs.orders.virtual_finish`).

Rule.  A call costs its prompt and twice its
predicted output.  *Attained*: a call's tag is its cost beyond the program's last tag, or beyond the clock if that is
later; so a program that has been served much comes after others.  *Predicted*: the first call sets the tag of all, by
its cost times the calls that the caller says follow one after the other (`Request.downstream_levels`), until the clock
has passed it.  The least tag goes first, and the clock is at the beginning of the last call that was let in.  Where no
request waits, all tags are forgotten.

As an order it promises nothing, and a gate does: under the hierarchical gate programs share by deficits, and the tags
decide only among those in credit.  Tags count in units of `UNIT` cost units from when the queue was last empty; beyond
what a rank can hold (268 million) they are equal, and the order is that of arrival.

Least attained service (LAS).  Source: llm-d-router's fairness policy `program-aware` (pull requests 1534, 2120), with
its defaults.  A call that ends adds its prompt and twice its output to what its program attained, which decays with a
half-life of 60 s.  Next is the oldest call of the program with the most of

    80 % of  1 - attained / range    +    20 % of  wait of its oldest call / range

where range is from the least to the most of the programs that wait.  Decay scales what all attained and waiting
lengthens all waits alike, so the scores stand until a call comes, goes or ends (P-LAS-1), and decode steps may be leapt
over.  Here the weight of new service grows instead, from h to 2h within a half-life of h milliseconds, and once a
half-life all sums are halved: integers, for an exponential that is met at its ends and at most 6.2 % above between.
A sum that has come to nothing is forgotten, as llm-d forgets a program after an hour without service.
"""

from typing import Any, ClassVar, Literal

import attrs
from immutables import Map
from msgspec.structs import replace

from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.pricing import COMMON
from fairsched.model.request import TOKENS_MAX, Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.orders.base import OldestOfEach, Order, QueuedRequest, QueueExtension
from fairsched.policies.orders.predicted_output import predicted
from fairsched.policies.validators import not_negative, one_of, percent

UNIT = 64
"""Cost units of a rank."""
NS_PER_MS = 1_000_000

_SOURCE = "llm-d-router's LAS; this library"
P_LAS_1 = Theorem(
    "P-LAS-1",
    "while no call comes, goes or ends, decay and waits change no two programs' order: they scale all scores alike",
    _SOURCE,
)
P_LAS_2 = Theorem(
    "P-LAS-2",
    "a program goes before one whose oldest call came no later only if it attained less",
    _SOURCE,
)
P_LAS_3 = Theorem(
    "P-LAS-3",
    "of N programs, one that attained at most a when its only call came has n + (N - 1) (ceil(a / c) + B - 1) calls "
    "let in before it at most, where n calls waited, another costs c at least, and B run at most",
    _SOURCE,
    bound="n + (N - 1) (ceil(a / c) + B - 1)",
    scope=Scope.TESTED,
    rests_on=("P-LAS-2",),
)
P_LAS_4 = Theorem(
    "P-LAS-4",
    "whatever programs come, none waits with its only call, beyond the calls that waited, for more half-lives than "
    "2 a h has bits",
    _SOURCE,
    bound="log2(2 a h) + 1 half-lives",
    scope=Scope.TESTED,
    rests_on=("P-LAS-2",),
)


def cost(request: Request) -> int:
    """Return what a call is taken to cost."""
    return COMMON.input * request.prompt.tokens + COMMON.output * predicted(request)


@attrs.frozen
class VirtualFinish(Order):
    """The least virtual finish time first."""

    name: ClassVar[str] = "virtual-finish"

    service: Literal["attained", "predicted"] = attrs.field(
        default="attained", validator=one_of("attained", "predicted")
    )
    """Whether a program's tag grows with each of its calls, or is set by its first for all."""

    def rank(self, request: Request, cached_tokens: int) -> int:
        """Rank it as if it were the first to wait."""
        return -min(cost(request) // UNIT, TOKENS_MAX)

    def rank_queued(self, queued: QueuedRequest, cached_tokens: int) -> int:
        return -min(queued.tag // UNIT, TOKENS_MAX)

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        return (VirtualClock(), *super().extensions())


class VirtualClock(QueueExtension[VirtualFinish], frozen=True, gc=False):
    """The virtual time, the last tag of each program that has one, and how many requests wait."""

    now: int = 0
    tags: Map[int, int] = Map()
    waiting: int = 0

    def joined(
        self, order: VirtualFinish, queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple["VirtualClock", QueuedRequest]:
        if queued.preemptions:
            # What was taken out keeps the tag that it came with.
            return replace(self, waiting=self.waiting + 1), queued
        request = queued.request
        last, own = max(self.tags.get(request.client, 0), self.now), cost(request)
        if order.service == "attained":
            tag = last + own
        else:
            tag = last if last > self.now else last + own * (request.downstream_levels + 1)
        clock = VirtualClock(self.now, self.tags.set(request.client, tag), self.waiting + 1)
        return clock, replace(queued, tag=tag)

    def left(
        self, order: VirtualFinish, queued: QueuedRequest, score: int, group: int, admitted: bool
    ) -> "VirtualClock":
        if self.waiting == 1:
            return VirtualClock()
        now = max(self.now, queued.tag - cost(queued.request)) if admitted else self.now
        return VirtualClock(now, self.tags, self.waiting - 1)

    def check(self, order: VirtualFinish, waiting: list[tuple[QueuedRequest, int, int]], cache: PrefixCache) -> None:
        assert self.waiting == len(waiting)
        # No call waits with a later tag than its program's, and where none waits there are no tags.
        assert waiting or not self.tags
        for queued, _, _ in waiting:
            assert queued.preemptions or queued.tag <= self.tags[queued.request.client]


# --- least attained service -------------------------------------------------------------------------------------------


@attrs.frozen
class LeastAttained(Order):
    """The program that attained least service first, and waits count beside it; of a program the oldest call."""

    name: ClassVar[str] = "least-attained"

    half_life_ms: int = attrs.field(default=60_000, validator=not_negative)
    """In how many milliseconds attained service counts half; 0: it never decays."""
    wait_percent: int = attrs.field(default=20, validator=percent)
    """How much of a program's score is the wait of its oldest call, in per cent; the rest is what it attained."""

    def rank(self, request: Request, cached_tokens: int) -> int:
        """Return 0: calls of one program go in order of arrival, and programs are compared when one is to be served."""
        return 0

    def merit(self, less: Any, spread: Any, earlier: Any, span: Any) -> Any:
        """Return the score of a program, times `spread` and `span`, which are 1 at least.

        It attained so much less than the one that attained most, of a range of `spread`, and its oldest call came so
        much earlier than the youngest of these, of a range of `span`.
        """
        return (100 - self.wait_percent) * less * span + self.wait_percent * earlier * spread

    def weight(self, part_ms: int) -> int:
        """Return what service weighs in this part of a half-life."""
        return self.half_life_ms + part_ms

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        return (AttainedService(), *super().extensions())

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """Return LAS's own; P-LAS-4 needs a half-life."""
        return (P_LAS_1, P_LAS_2, P_LAS_3, *([P_LAS_4] if self.half_life_ms else []))


class AttainedService(OldestOfEach[LeastAttained], frozen=True, gc=False):
    """What each program attained, and how many half-lives have passed."""

    attained: Map[int, int] = Map()
    half_lives: int = 0

    def finished(self, order: LeastAttained, request: Request, output_tokens: int, time_ns: int) -> "AttainedService":
        """Return the same with a call charged.  O(1), and O(programs) once a half-life."""
        cost = COMMON.input * request.prompt.tokens + COMMON.output * output_tokens
        attained, passed = self.attained, self.half_lives
        if order.half_life_ms:
            now, part = divmod(time_ns // NS_PER_MS, order.half_life_ms)
            if now > passed:
                attained = Map({program: s for program, had in attained.items() if (s := had >> (now - passed))})
            # A clock that was set back stands.
            cost *= order.weight(part if now >= passed else 0)
            passed = max(now, passed)
        return replace(
            self, attained=attained.set(request.client, attained.get(request.client, 0) + cost), half_lives=passed
        )

    def first(self, order: LeastAttained, oldest: list[QueuedRequest]) -> QueuedRequest:
        """Return the call of the program with the best score; of equals the oldest."""
        services = {queued.age: self.attained.get(queued.request.client, 0) for queued in oldest}
        arrivals = [queued.request.arrival_ns for queued in oldest]
        most, last = max(services.values()), max(arrivals)
        spread, span = max(most - min(services.values()), 1), max(last - min(arrivals), 1)

        def score(queued: QueuedRequest) -> tuple[int, int]:
            less, earlier = most - services[queued.age], last - queued.request.arrival_ns
            return order.merit(less, spread, earlier, span), -queued.age

        return max(oldest, key=score)

    def check(self, order: LeastAttained, waiting: list[tuple[QueuedRequest, int, int]], cache: PrefixCache) -> None:
        super().check(order, waiting, cache)
        # No program is kept that attained nothing.
        assert all(service > 0 for service in self.attained.values())
