"""The attacks, each with the honest flood that asks for the same work: what the findings are held against."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import attrs

from tests.support.attacks import floods
from tests.support.attacks.floods import POLITE

FLOODERS = tuple(f"f{i}" for i in range(16))
"""Clients whose calls may be a flood; their keys are `sk-` and the name, as the polite one's."""
FOUR = tuple(f"sk-{name}" for name in FLOODERS[:4])
ADMIN_KEY = "sk-administrator"
BODY_BYTES = 8 << 20
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer nobody\r\n"
KNOWN_HEAD = HEAD.replace(b"nobody", b"sk-f0")
LARGE = HEAD + b"content-length: %d\r\n\r\n" % BODY_BYTES + b" " * (BODY_BYTES - 1)
CHAT = floods.chat(**floods.USAGE)
HONEST = floods.loops(16, CHAT)
LONG = floods.loops(32, CHAT, tokens=600)
"""Answers of seven seconds, twice as many as there are slots for."""
F1 = ("sk-f1",)


def _large(**how: Any) -> floods.Flood:
    """Return a client beside long answers that always asks for a prompt of a window of 10,000 tokens."""
    prompt = f"[tokens 8] {'a' * 38_000}"
    return floods.beside(LONG, floods.loops(1, floods.chat(prompt, 8, **floods.USAGE), keys=F1, **how))


@attrs.frozen
class Attack:
    """An attack, and what it runs against."""

    finding: int
    name: str
    says: str
    flood: floods.Flood
    honest: floods.Flood = HONEST
    engines: int = 1
    honest_engines: int | None = None
    """Engines of the honest run, where the attack's are not all able to serve."""
    honest_limits: tuple[tuple[str, Any], ...] | None = None
    """Limits of the honest run, where the attack is beyond them."""
    slots: int = 4
    interval: int = 1
    """Tokens in an event."""
    window_tokens: int = 330
    quantum: int = 64
    config_values: tuple[tuple[str, Any], ...] = ()
    limits: tuple[tuple[str, Any], ...] = ()
    descriptors: int = 8192
    """Of the gateway's process, where it has one of its own."""
    polite_key: str = f"sk-{POLITE}"
    polite_weight: int = 1
    polite_at_once: int = 4
    polite_tokens: int = 12

    def as_honest(self) -> "Attack":
        """Return the honest flood in the attack's place; attacks with the same one return equal values."""
        return attrs.evolve(
            self,
            finding=0,
            name="honest",
            says="",
            flood=self.honest,
            engines=self.honest_engines or self.engines,
            limits=self.limits if self.honest_limits is None else self.honest_limits,
            honest_engines=None,
            honest_limits=None,
        )

    def config(
        self, urls: Sequence[str], *, listen: str = "127.0.0.1:0", without: Sequence[str] = (), gateways: int = 1
    ) -> str:
        """Return the gateway's configuration before these engines, without settings that an older one does not know.

        Where `admin_keys` are not known, keys are in plain text.  Of several gateways each has its part of the windows.
        """
        plain = "admin_keys" in without
        lines = [f'listen = "{listen}"', 'identify = "key"', 'policy = "fcfs+deficit"', f"quantum = {self.quantum}"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in self.config_values if name not in without]
        lines.append("status = true")
        if not plain:
            lines.append(f'admin_keys = ["{_hashed(ADMIN_KEY)}"]')
        lines += ["[limits]", f"body_bytes = {BODY_BYTES}"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in self.limits if name not in without]
        for name in (POLITE, *FLOODERS):
            weight = self.polite_weight if name == POLITE else 1
            key = f"sk-{name}" if plain else _hashed(f"sk-{name}")
            lines += [f"[client.{name}]", f'keys = ["{key}"]', f"weight = {weight}"]
        for url in urls:
            lines += ["[[server]]", f'url = "{url}"', f"window_tokens = {self.window_tokens // gateways}"]
        if gateways > 1:
            lines += ["[store]", 'url = "file:///nowhere"', f"gateways = {gateways}"]
        return "\n".join(lines) + "\n"


def _hashed(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


ATTACKS = (
    Attack(
        1,
        "withheld",
        "streams without usage, with a stop text of 20,000 characters",
        floods.loops(16, floods.chat(stream=True, stop=["z" * 20_000])),
    ),
    Attack(
        1,
        "several",
        "streams without usage of an engine that sends ten tokens in an event",
        floods.loops(16, floods.chat(stream=True)),
        interval=10,
    ),
    Attack(
        2,
        "leaves",
        "callers that leave calls that are not streamed shortly before the answer",
        floods.loops(6, floods.chat("[tokens 60]", 60), leaves=(0.6, 0.75)),
        honest=floods.loops(6, floods.chat("[tokens 60]", 60)),
    ),
    Attack(
        2,
        "late-500",
        "answers of 500 after the work",
        floods.loops(16, floods.chat("[tokens {n}] [fails late]")),
        honest=floods.loops(16, floods.chat()),
    ),
    Attack(
        2,
        "short-500",
        "answers of 500 after the work, which is over in less time than a failure at once may take",
        floods.loops(64, floods.chat("[tokens {n}] [fails late]"), tokens=10),
        honest=floods.loops(64, floods.chat(), tokens=10),
        slots=16,
    ),
    Attack(
        2,
        "time-outs",
        "calls that are not streamed and take longer than a server may be silent",
        floods.loops(8, floods.chat("[tokens 250]", 250), stagger=0.4),
        honest=floods.loops(8, floods.chat("[tokens 250]", 250), stagger=0.4),
        honest_limits=(),
        slots=8,
        limits=(("read_seconds", 2.0),),
        window_tokens=1120,
    ),
    Attack(
        3,
        "declares",
        "four clients that declare 470 tokens and stop at 60, in a window of 500",
        floods.loops(16, floods.chat(most=470, **floods.USAGE), keys=FOUR),
        honest=floods.loops(16, CHAT, keys=FOUR),
        window_tokens=500,
    ),
    Attack(
        3,
        "ordinary",
        "four clients that declare 256 tokens for 32, without malice",
        floods.loops(16, floods.chat(most=256, **floods.USAGE), tokens=32, keys=FOUR),
        honest=floods.loops(16, CHAT, tokens=32, keys=FOUR),
        window_tokens=500,
    ),
    Attack(
        5,
        "fails-fast",
        "one of two engines answers 500 at once",
        floods.after(floods.fails_fast, HONEST),
        engines=2,
        honest_engines=1,
    ),
    Attack(
        5,
        "hangs",
        "one of two engines hangs",
        floods.beside(HONEST, floods.later(4.0, floods.hangs)),
        engines=2,
        honest_engines=1,
    ),
    Attack(
        6,
        "own-429",
        "both engines answer 429 for the flood's key",
        floods.after(floods.over_quota, HONEST),
        engines=2,
        slots=2,
        window_tokens=165,
    ),
    Attack(
        6,
        "huge",
        "answers of 70 MB that are no streams",
        floods.loops(1, floods.chat("[tokens 8] [answers 70000000 bytes]", 8), pause=2.0),
        engines=2,
        slots=2,
        window_tokens=165,
    ),
    Attack(
        7,
        "idle",
        "1,100 idle connections at 1,024 descriptors",
        floods.beside(HONEST, floods.sockets(1100, b"")),
        descriptors=1024,
    ),
    Attack(
        7,
        "bodies",
        "150 unknown callers that hold a body of 8 MiB less a byte",
        floods.beside(HONEST, floods.sockets(150, LARGE)),
        config_values=(("unknown_clients", "reject"),),
    ),
    Attack(
        7,
        "slow-heads",
        "300 callers that send a byte of a header a second",
        floods.beside(HONEST, floods.sockets(300, HEAD + b"x: ", b"x")),
    ),
    Attack(
        7,
        "slow-bodies",
        "300 callers that send a byte of a body a second",
        floods.beside(HONEST, floods.sockets(300, HEAD + b"content-length: 4000\r\n\r\n{", b" ")),
        config_values=(("unknown_clients", "reject"),),
    ),
    Attack(
        7,
        "known-slow-bodies",
        "220 bodies of a client with a key, of which nothing comes, before a gateway of 64 connections",
        floods.beside(HONEST, floods.sockets(220, KNOWN_HEAD + b"content-length: 4000\r\n\r\n{")),
        limits=(("connections", 64),),
    ),
    Attack(
        8,
        "window-sized",
        "one call as large as the window is always in the queue; the honest one asks for a long answer",
        _large(),
        honest=floods.beside(LONG, floods.loops(1, CHAT, tokens=600, keys=F1)),
        slots=16,
        window_tokens=10_000,
        quantum=4096,
    ),
    Attack(
        8,
        "withdrawn",
        "a call as large as the window is withdrawn after six seconds, and asked again",
        _large(leaves=(6.0, 6.001)),
        honest=floods.beside(LONG, floods.loops(1, CHAT, tokens=600, keys=F1)),
        slots=16,
        window_tokens=10_000,
        quantum=4096,
    ),
    Attack(
        9,
        "names",
        "1,100 random keys list models; then a stranger floods, and the polite client is a stranger",
        floods.after(floods.fills_names(1100), floods.loops(48, CHAT, keys=("sk-stranger",))),
        honest=floods.loops(48, CHAT, keys=("sk-stranger",)),
        config_values=(("unknown_clients", "own"),),
        polite_key="sk-another-stranger",
    ),
    Attack(9, "random-keys", "another key with every call, and the gateway's defaults", floods.random_keys(16, CHAT)),
    Attack(
        9,
        "lower-case",
        "half of the flood's calls spell `bearer` in lower case",
        floods.loops(16, CHAT, keys=("bearer sk-f0", "Bearer sk-f0")),
    ),
    Attack(
        10,
        "full-queue",
        "four clients fill a queue of 64; the polite one has weight 4 and one call at a time",
        floods.loops(76, CHAT, keys=FOUR),
        honest=floods.loops(40, CHAT, keys=FOUR),
        limits=(("waiting", 64), ("waiting_per_client", 32)),
        polite_weight=4,
        polite_at_once=1,
    ),
)
