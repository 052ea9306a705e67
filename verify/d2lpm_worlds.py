"""What is false of D2LPM and of per-client round robin as printed: worlds in which shipped workers and routers show it.

Workers are small: 16 tokens of KV and a local quantum of 4, so that U = 31 and the gap at one worker is at most
2(Q + U - 1) = 68; and so are requests.  A client is ``[prefix, shared tokens, outputs, how many requests it keeps in
the system, how many it sends in all]``.
"""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from fairsched.model.pricing import Rates
from fairsched.model.request import Client
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.base import Router
from fairsched.policies.batching import Chunked
from fairsched.policies.d2lpm import D2LPM
from fairsched.policies.deficit import DeficitGate
from fairsched.policies.dlpm import DLPM
from fairsched.policies.router import PerClientRoundRobin
from fairsched.verify.cluster_play import Behaviour, Tick, gap_max, play
from fairsched.verify.false_claim import FalseClaim
from fairsched.verify.tested import TestedClaim

CAPACITY, WORKERS = 16, 2
RATES = Rates()
LOCAL = DLPM(gate=DeficitGate(rates=RATES, quantum=4), batching=Chunked(max_batched_tokens=CAPACITY, max_running=4))
F, G = 0, 1
MANY = 1 << 30

World = Mapping[str, Any]


def bound_cost() -> int:
    """D2-5.1's sum over the workers of 2(Q_w + U_w - 1)."""
    clients = (Client(F, "f"), Client(G, "g"))
    per_worker = LOCAL.service_gap_bound(clients, LOCAL.limits(CAPACITY, CAPACITY))
    assert per_worker is not None
    return WORKERS * per_worker


def router_of(world: SimpleNamespace) -> Router[Any]:
    """D2LPM with the world's quantum, or per-client round robin where it has none."""
    return D2LPM(quantum=world.quantum) if world.quantum else PerClientRoundRobin()


def played(world: SimpleNamespace) -> Iterator[Tick]:
    """The world, tick by tick."""
    clients = [Behaviour(prefix, shared, tuple(outputs), *kept) for prefix, shared, outputs, *kept in world.clients]
    return play(router_of(world), LOCAL, clients, workers=WORKERS, capacity=CAPACITY, ticks=world.ticks, rates=RATES)


def _world(quantum: int, ticks: int, *clients: list[Any]) -> World:
    return {"quantum": quantum, "ticks": ticks, "clients": list(clients)}


# --- CD1: a worker idles while a request waits elsewhere --------------------------------------------------------------


def _nobody_waits_beside_an_idle_worker(w: SimpleNamespace) -> Mapping[str, Any]:
    return {"no worker idles while a request waits": not any(tick.idle and any(tick.waiting) for tick in played(w))}


CD1 = _world(100, 4, [1, 4, [4], 3, 3])
"""Three requests with one prefix, of which a worker holds two: all go where the prefix is."""

# --- CD2: backlogged somewhere is not backlogged everywhere -----------------------------------------------------------


def _gap_within_the_sum(w: SimpleNamespace) -> Mapping[str, Any]:
    """Whoever waits somewhere at each tick is compared; there is nothing to show if one of them ever waits nowhere."""
    ticks = list(played(w))[WARM_UP:]
    if not all(tick.waiting[client] for tick in ticks for client in (F, G)):
        return {}
    return {"|W_f - W_g| <= sum over w of 2(Q_w + U_w - 1)": gap_max(ticks, F, G) <= bound_cost()}


def _waits_everywhere(w: SimpleNamespace) -> Mapping[str, Any]:
    ticks = list(played(w))[WARM_UP:]
    if not all(tick.waiting[F] for tick in ticks):
        return {}
    return {"f waits at every worker": all(len(tick.waiting[F]) == WORKERS for tick in ticks)}


WARM_UP = 20
_CROWD = ([1, 4, [4], 6, MANY], [2, 4, [4], 6, MANY], [1, 4, [4], 6, MANY])
"""f and a third client share a prefix and so a worker; g has the other one alone."""


def cd2(quantum: int, ticks: int) -> World:
    """f and g always wait somewhere, for so many ticks, with this Q_w."""
    return _world(quantum, ticks, *_CROWD)


ALTERNATING = ([1, 0, [9, 1], 4, MANY], [2, 0, [5], 4, MANY])
"""CD3: f's outputs alternate, so each second request, the long one, goes to the same worker."""


def cd3(ticks: int) -> World:
    """f waits at worker 0 all the time, and never at worker 1."""
    return _world(0, ticks, *ALTERNATING)


# --- all of them ------------------------------------------------------------------------------------------------------


def _false(name: str, statement: str, source: str, world: World, shows: Any) -> TestedClaim:
    theorem = Theorem(name, statement, source, (), scope=Scope.BOUNDED)
    return TestedClaim(theorem, lambda: (world,), shows)


def refutations() -> tuple[FalseClaim, ...]:
    """Each with the smallest of its worlds that was looked at."""
    as_printed = "requests are placed when they come and stay, as printed and as shipped"
    wide, endless, alternating = cd2(100, 300), cd2(1_000_000, 300), cd3(200)
    return (
        FalseClaim(
            _false(
                "CD1",
                "D2LPM is work-conserving: no worker idles while a request waits",
                "D2LPM, on work conservation (reconstructed)",
                CD1,
                _nobody_waits_beside_an_idle_worker,
            ),
            as_printed,
            "D-wc",
            "two workers, three requests with one prefix: one waits at worker 0, and worker 1 never runs",
            CD1,
        ),
        FalseClaim(
            _false(
                "CD2",
                "D2-5.1 for clients that are backlogged: the gap is bounded whatever Q_w is",
                "D2LPM, theorem 5.1 (reconstructed)",
                wide,
                _gap_within_the_sum,
            ),
            "backlogged means: a request waits somewhere",
            "D2-5.1",
            "f shares a worker with a third client, g has one alone until Q_w = 100 is used up: a gap of more than 136",
            wide,
        ),
        FalseClaim(
            _false(
                "CD2-LEMMA",
                "who is backlogged is backlogged at every worker",
                "D2LPM, the lemma to theorem 5.1 (reconstructed)",
                endless,
                _waits_everywhere,
            ),
            as_printed,
            "D2-5.1",
            "all of f's requests wait where its prefix is, as long as it has credit there",
            endless,
        ),
        FalseClaim(
            _false(
                "CD3",
                "per-client round robin is fair, with a fair gate at each worker",
                "D2LPM, appendix A.6 (reconstructed), whose title says unbounded where its statement says bounded",
                alternating,
                _gap_within_the_sum,
            ),
            "requests go round by their number",
            "D2-5.1",
            "outputs of 9 and 1 in turn: f waits at worker 0 only, and all of worker 1 is g's",
            alternating,
        ),
        FalseClaim(
            _false(
                "D2-A.5",
                "D2LPM is fair without a limit to Q_w",
                "this library; that it is not is D2LPM's appendix A.5",
                endless,
                _gap_within_the_sum,
            ),
            "Q_w larger than all that is ever charged",
            "D2-spread",
            "f stays where its prefix is, beside a third client, and gets half of what g gets for as long as one likes",
            endless,
        ),
    )
