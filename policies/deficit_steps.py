"""What the deficit gate's kernel does in one step, as theorems about the text alone.

The kernel is that of `fairsched.policies.deficit`; the theorems about intervals rest on these.
"""

from fairsched.model.theorem import Theorem

D_GATE = Theorem(
    "D-gate",
    "the gate lets in only who waits, has q > 0 and is ready, the best score among them, and somebody if there is one",
    "theorems of the kernel itself: what GateRespected means",
    (),
)
D_REFILL = Theorem(
    "D-refill",
    "refill_rounds(q) = refill repeated until no refill is due, for any number of rounds and any quanta of 1 or more",
    "this library: the closed form that production runs is the kernel's event, repeated",
    (),
)
D_PRINTED = Theorem(
    "D-printed",
    "under the printed rule who comes back has neither credit nor debt, and nobody else's deficit changes",
    "DLPM, its rejoin rule (reconstructed), kept as a variant: what the refutation of D-4.2 as printed is about",
    (),
)
D_UNDER_CAP = Theorem(
    "D-under-cap",
    "the cap keeps a request out exactly if the KV promised to its client would exceed it with the request",
    "this library: D-cap holds for any stricter cap, so this was found missing by a mutant",
    (),
)

STEPS = (D_GATE, D_UNDER_CAP, D_REFILL)
"""Those about what ships; D-printed is about a variant."""
