"""The attacks, each with the honest flood that asks for the same work: what the findings are held against."""

from typing import Any

import attrs

from tests.support.attacks.floods import (
    POLITE,
    USAGE,
    Flood,
    after,
    beside,
    chat,
    fails_fast,
    fills_names,
    hangs,
    loops,
    over_quota,
    random_keys,
    sockets,
)

FLOODERS = tuple(f"f{i}" for i in range(16))
"""Clients whose calls may be a flood; their keys are `sk-` and the name, as the polite one's."""
FOUR = tuple(f"sk-{name}" for name in FLOODERS[:4])
BODY_BYTES = 8 << 20
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer nobody\r\n"
LARGE = HEAD + b"content-length: %d\r\n\r\n" % BODY_BYTES + b" " * (BODY_BYTES - 1)
LONG = chat("[tokens 120]", 120, **USAGE)
SHORT = chat("[tokens 100]", 100, **USAGE)
HONEST = loops(32, LONG)


@attrs.frozen
class Attack:
    """An attack, and what it runs against."""

    finding: int
    name: str
    says: str
    flood: Flood
    honest: Flood = HONEST
    engines: int = 1
    honest_engines: int | None = None
    """Engines of the honest run, where the attack's are not all able to serve."""
    slots: int = 8
    interval: int = 1
    """Tokens in an event."""
    window_tokens: int = 1200
    config: tuple[tuple[str, Any], ...] = ()
    limits: tuple[tuple[str, Any], ...] = ()
    descriptors: int = 8192
    """Of the gateway's process, where it has one of its own."""
    polite_key: str = f"sk-{POLITE}"
    polite_weight: int = 1
    polite_at_once: int = 8
    polite_tokens: int = 24


ATTACKS = (
    Attack(
        1,
        "withheld",
        "streams without usage, with a stop text of 20,000 characters",
        loops(32, chat("[tokens 120]", 120, stream=True, stop=["z" * 20_000])),
    ),
    Attack(
        1,
        "several",
        "streams without usage of an engine that sends ten tokens in an event",
        loops(32, chat("[tokens 120]", 120, stream=True)),
        interval=10,
    ),
    Attack(
        2,
        "leaves",
        "callers that leave calls that are not streamed shortly before the answer",
        loops(12, chat("[tokens 120]", 120), leaves=(1.2, 1.5)),
    ),
    Attack(2, "late-500", "answers of 500 after the work", loops(32, chat("[tokens 120] [fails late]", 120))),
    Attack(
        2,
        "time-outs",
        "calls that are not streamed and take longer than a server may be silent",
        loops(32, chat("[tokens 400]", 400)),
        honest=loops(32, chat("[tokens 400]", 400, **USAGE)),
        config=(("call_seconds", 3),),
        limits=(("read_seconds", 3.0),),
        window_tokens=4000,
    ),
    Attack(
        3,
        "declares",
        "four clients that declare 960 tokens and stop at 100, in a window of 1,000",
        loops(32, chat("[tokens 100]", 960, **USAGE), keys=FOUR),
        honest=loops(32, SHORT, keys=FOUR),
        window_tokens=1000,
    ),
    Attack(
        3,
        "ordinary",
        "four clients that declare 512 tokens for 64, without malice",
        loops(32, chat("[tokens 64]", 512, **USAGE), keys=FOUR),
        honest=loops(32, chat("[tokens 64]", 64, **USAGE), keys=FOUR),
        window_tokens=1000,
    ),
    Attack(
        5,
        "fails-fast",
        "one of two engines answers 500 at once",
        after(fails_fast, HONEST),
        engines=2,
        honest_engines=1,
    ),
    Attack(5, "hangs", "one of two engines hangs", after(hangs, HONEST), engines=2, honest_engines=1),
    Attack(
        6,
        "own-429",
        "both engines answer 429 for the flood's key",
        after(over_quota, HONEST),
        engines=2,
        slots=4,
        window_tokens=600,
    ),
    Attack(
        6,
        "huge",
        "answers of 70 MB that are no streams",
        loops(2, chat("[tokens 8] [answers 70000000 bytes]", 8)),
        engines=2,
        slots=4,
        window_tokens=600,
    ),
    Attack(
        7,
        "idle",
        "1,100 idle connections at 1,024 descriptors",
        beside(HONEST, sockets(1100, b"")),
        descriptors=1024,
    ),
    Attack(
        7,
        "bodies",
        "150 unknown callers that hold a body of 8 MiB less a byte",
        beside(HONEST, sockets(150, LARGE)),
        config=(("unknown_clients", "reject"),),
    ),
    Attack(
        7,
        "slow-heads",
        "300 callers that send a byte of a header a second",
        beside(HONEST, sockets(300, HEAD + b"x: ", b"x")),
    ),
    Attack(
        7,
        "slow-bodies",
        "300 callers that send a byte of a body a second",
        beside(HONEST, sockets(300, HEAD + b"content-length: 4000\r\n\r\n{", b" ")),
        config=(("unknown_clients", "reject"),),
    ),
    Attack(
        9,
        "names",
        "1,100 random keys list models; then a stranger floods, and the polite client is a stranger",
        after(fills_names(1100), loops(96, LONG, keys=("sk-stranger",))),
        honest=loops(96, LONG, keys=("sk-stranger",)),
        config=(("unknown_clients", "own"),),
        polite_key="sk-another-stranger",
    ),
    Attack(9, "random-keys", "another key with every call, and the gateway's defaults", random_keys(32, LONG)),
    Attack(
        9,
        "lower-case",
        "half of the flood's calls spell `bearer` in lower case",
        loops(32, LONG, keys=("bearer sk-f0", "Bearer sk-f0")),
    ),
    Attack(
        10,
        "full-queue",
        "four clients fill a queue of 64; the polite one has weight 4 and one call at a time",
        loops(120, SHORT, keys=FOUR),
        honest=loops(48, SHORT, keys=FOUR),
        limits=(("waiting", 64), ("waiting_per_client", 32)),
        polite_weight=4,
        polite_at_once=1,
    ),
)
