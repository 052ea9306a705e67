"""A quota is exceeded by what calls overran, and by nothing else: the arithmetic of budgets, as it ships.

Q-most is about one window of one budget, one call, and any others under way, which hold `others` of it: the invariant
is kept by a reservation that fits, by an end, and by the beginning of a new window, whatever the call used.  A call
that did not say what it used is one that used what it held.  That each call is charged once, and that windows and time
are what they should be, is a property that is played (`tests/policies/guarantees/test_quota.py`).
"""

from types import SimpleNamespace

from fairsched.model.theorem import Theorem
from fairsched.verify.logic import ArithmeticClaim, Bug, Condition, Functions, Shown, arithmetic, if_then
from fairsched.verify.proofs.kernels import quota

_SOURCE = "this library; the shipped text on unknown integers, one call beside any others"

Q_MOST = Theorem(
    "Q-most",
    "what a window was charged and what calls under way hold come to at most q + v: the quota, and what calls used "
    "beyond what they had reserved; a reservation that fits, an end and a new window keep it so, and a call that fits "
    "is not refused",
    _SOURCE,
    bound="q + v",
)
Q_CHARGE = Theorem(
    "Q-charge",
    "at its end a call is charged what it used and holds nothing; it overruns by what it used beyond what it held, and "
    "by nothing if it used no more",
    _SOURCE,
)
QUOTA_THEOREMS = (Q_MOST, Q_CHARGE)

_CALL = Condition(lambda w: (w.used >= 0) & (w.others >= 0) & (w.held >= 0) & (w.spent >= 0))


def _full() -> tuple[int, int]:
    """Calls of 7 and 5 that fill a quota of 12, the first of which used all; a token more does not fit."""
    used, reserved, _ = quota.charged(0, 12, 7, 7)
    assert quota.fits(used, reserved, 0, 12)
    assert not quota.fits(used, reserved, 1, 12)
    return used + reserved, 12


@arithmetic(
    Q_MOST,
    ("used", "others", "held", "spent", "tokens", "q", "v"),
    _CALL,
    Condition(lambda w: (w.tokens >= 1) & (w.q >= 1) & (w.v >= 0)),
    Condition(lambda w: w.used + w.others + w.held <= w.q + w.v),
    attained=_full,
)
def most(w: SimpleNamespace, functions: Functions = quota) -> Shown:
    """`held` by a call that ends and used `spent`; another wants to reserve `tokens`."""
    before = w.others + w.held
    fits = functions.fits(w.used, before, w.tokens, w.q)
    used, reserved, more = functions.charged(w.used, before, w.held, w.spent)
    return {
        "a reservation that fits keeps it": if_then(fits, w.used + before + w.tokens <= w.q + w.v),
        "a reservation that fits is within the quota": if_then(fits, w.used + before + w.tokens <= w.q),
        "a call that fits is not refused": if_then(w.used + before + w.tokens <= w.q, fits),
        "an end keeps it": used + reserved <= w.q + w.v + more,
        "a new window keeps it": before <= w.q + w.v,
    }


@arithmetic(Q_CHARGE, ("used", "others", "held", "spent"), _CALL)
def charge(w: SimpleNamespace, functions: Functions = quota) -> Shown:
    """Return a call that held `held` and used `spent`."""
    used, reserved, more = functions.charged(w.used, w.others + w.held, w.held, w.spent)
    return {
        "it is charged what it used": used == w.used + w.spent,
        "it holds nothing": reserved == w.others,
        "it overruns by no more than it used beyond": (more >= 0) & if_then(w.spent <= w.held, more == 0),
        "it overruns by what it used beyond": if_then(w.spent >= w.held, more == w.spent - w.held),
    }


def claims() -> tuple[ArithmeticClaim, ...]:
    """Return the claims about budgets."""
    return most(), charge()


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    return (
        Bug("a token too many", most(fits=lambda used, reserved, tokens, q: used + reserved + tokens <= q + 1)),
        Bug("a token too few", most(fits=lambda used, reserved, tokens, q: used + reserved + tokens < q)),
        Bug("what is reserved does not count", most(fits=lambda used, reserved, tokens, q: used + tokens <= q)),
        Bug("an overrun is forgotten", most(charged=lambda u, r, held, spent: (u + spent, r - held, 0))),
        Bug("an end leaves what it held", charge(charged=lambda u, r, held, spent: (u + spent, r, 0))),
        Bug("an end frees what was used", charge(charged=lambda u, r, held, spent: (u + spent, r - spent, 0))),
        Bug("an end charges what was held", charge(charged=lambda u, r, held, spent: (u + held, r - held, 0))),
    )
