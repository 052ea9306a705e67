"""A bypass budget: how many younger requests of a group may be let in before its oldest one.

A gate serves clients in time, and an order may still starve one request of a served client (counterexample CE5).  With
a budget b the group's head is its best request until the oldest has been passed over b times, then the oldest until it
is let in.  A group is a client under a gate, everybody without one.

Counting costs one integer a group and one a request.  Whoever comes takes a *place*: how many have left the group's
queue so far, and how many wait in it.  Were nobody passed over, just as many would have left when it becomes the
oldest; whatever left beyond that passed it over.  Who left for good without being let in counts too, since telling
that apart would cost an index of its own: the budget is then used up earlier, and no wait becomes longer.  A preempted
request comes back to its old place.

D-request with D-A.2 or V-4.11 gives a time, by argument and not in the solver.  Let X bound how long a client with a
ready head waits for one admission (D-A.2-time with the deepest debt D = U - 1; V-4.11-time).  Each admission begins
such a wait anew, so a request waits at most X (b + older + back + 1), the last 1 for its own admission.  Under an open
gate there is no X, and the bound is one of admissions only.  A due head is not skipped: while its prefix is being
computed, or it does not fit, or a cap holds it, its group waits with it.
"""

import msgspec

from fairsched.model.algebra import Algebra, Scalar
from fairsched.model.sorted_tuple import SortedTuple
from fairsched.model.theorem import Assumption, Theorem

# --- theorems, proved in fairsched.verify.bypass_proofs -------------------------------------------------------------

DUE_RESPECTED = Assumption(
    "DueRespected", "While a group's oldest request has used up the bypass budget, no other of the group is admitted."
)
D_HEAD = Theorem(
    "D-head",
    "a group's head is the oldest of its requests if that was passed over b times, and its best one if not",
    "this library: the rule itself, found necessary by mutants",
    (),
)
D_PASSED = Theorem(
    "D-passed",
    "what counts as passing r over is exactly how many have left the queue since r came, less those who waited then",
    "this library: the budget is not used up too early, found necessary by a mutant",
    (),
    bound="gone - ahead",
)
D_LINE = Theorem(
    "D-line",
    "of two requests that came to a group, the places are at least as far apart as requests came from the older one on "
    "before the younger one, however many were let in, gave up or came back",
    "this library: what makes one integer a request enough to count with",
    (),
)
D_OLDER = Theorem(
    "D-older",
    "a count that begins with who waits when r comes, and goes up and down with those before r who come back or leave, "
    "is the number of those who wait before r",
    "this library: D-request counts so",
    (),
    bound="older",
)
D_REQUEST = Theorem(
    "D-request",
    "with a bypass budget b, at most b + older + back requests of its group are let in before r, where `older` are "
    "those that waited when r came (or came back) and `back` counts older ones that came back preempted since",
    "this library",
    (DUE_RESPECTED,),
    bound="b + older + back",
    rests_on=("D-line", "D-older"),
)
THEOREMS = (D_HEAD, D_PASSED, D_LINE, D_OLDER, D_REQUEST)

# --- kernel -----------------------------------------------------------------------------------------------------------
# Scalars of one group: `left` counts who has left its queue, `waiting` who waits in it.


def place(o: Algebra, left: Scalar, waiting: Scalar) -> Scalar:
    """The place of whoever comes now."""
    return left + waiting


def gone(o: Algebra, left: Scalar) -> Scalar:
    """Somebody leaves the queue."""
    return left + 1


def due(o: Algebra, left: Scalar, oldest: Scalar, budget: Scalar) -> Scalar:
    """Whether the oldest, whose place this is, has been passed over so often that it is next."""
    return left - oldest >= budget


def head(o: Algebra, best: Scalar, oldest: Scalar, is_due: Scalar) -> Scalar:
    """The score that the group offers: of its best request, or of its oldest."""
    return o.where(is_due, oldest, best)


# --- gate and queue see the head of a group; what is behind it ------------------------------------------------------

NO_PLACE = -1
"""The place of a request where there is no budget, or that has not come yet."""


class Line(msgspec.Struct, frozen=True):
    """The ages of those who wait in a group, and how many have left its queue."""

    ages: SortedTuple[int] = SortedTuple()
    left: int = 0


NOBODY_CAME = Line()
