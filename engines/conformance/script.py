"""Calls of clients as data, and what is recorded of them: what a scenario sends, and what it is judged by.

A script is a list of steps, so that a file of it is sent again as it was.  The journal has what happened in order, as
pairs of an event and a call's number: `sent` and `ended` by the callers; `arrived`, `begun`, `token`, `answered`,
`left` and `broke` by the mock servers.  Before servers that are not ours the callers tell `begun` and `token`, by what
they hear.  Nothing in it is a time: a slow machine has the same journal.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from fractions import Fraction
from typing import Literal

import attrs
import msgspec

VERSION = 2

Way = Literal["key", "token", "certificate", "header"]
"""How callers are known."""
MISSING, UNKNOWN = "missing", "unknown"
KEY_FLAWS = (MISSING, UNKNOWN)
TOKEN_FLAWS = (
    *(MISSING, "expired", "not valid yet", "of another issuer", "for another audience", "of an unknown key"),
    *("signed with another key", "changed after signing", "unsigned", "signed with the public key"),
)
CERTIFICATE_FLAWS = (MISSING, "expired", "of another authority", "of itself", "a server's")
"""What may be wrong with what a caller shows."""
FLAWS = frozenset({"", *KEY_FLAWS, *TOKEN_FLAWS, *CERTIFICATE_FLAWS})


class ScriptedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call: its number, its client, how many tokens it asks for, and what is special about it."""

    number: int
    client: str
    tokens: int
    gateway: int = 0
    """Which gateway it is sent to, from 0."""
    stream: bool = True
    words: str = ""
    """What the mock server is to do, as `[pauses 3]`."""
    headers: dict[str, str] = {}
    """What the caller claims, beside what names it."""
    flaw: str = ""
    """What is wrong with the key, token or certificate that it shows."""


class Send(msgspec.Struct, frozen=True, tag="send", omit_defaults=True):
    """Send calls; go on when `at_servers` calls in all are at the mock servers, and then all is quiet."""

    calls: tuple[ScriptedCall, ...]
    at_servers: int = 0


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """The mock servers stand still."""


class Release(msgspec.Struct, frozen=True, tag="release", omit_defaults=True):
    """The mock servers go on; `until_paused`: until a call stops them with `[pauses N]`."""

    until_paused: bool = False


class HearTokens(msgspec.Struct, frozen=True, tag="hear"):
    """Wait until a caller heard so many tokens, or patience is over."""

    call: int
    tokens: int


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """Callers leave."""

    calls: tuple[int, ...]


class Gone(msgspec.Struct, frozen=True, tag="gone"):
    """Wait until the mock servers have nothing to do any more, or patience is over."""


class DrainServers(msgspec.Struct, frozen=True, tag="drain"):
    """The mock servers go on; wait until all calls have ended."""


Step = Send | Hold | Release | HearTokens | Leave | Gone | DrainServers


class CallScript(msgspec.Struct, frozen=True):
    """The steps of a scenario, and the seed from which its calls were drawn."""

    scenario: str
    seed: int
    steps: tuple[Step, ...]
    version: int = VERSION

    @property
    def calls(self) -> dict[int, ScriptedCall]:
        return {call.number: call for step in self.steps if isinstance(step, Send) for call in step.calls}


@attrs.define
class HeardAnswer:
    """What a caller heard of its call."""

    status: int = 0
    tokens: int = 0
    done: int = 0
    """How often the stream said that it was whole; 1 for a whole answer that is no stream."""
    error: bool = False
    """A stream said that it went wrong."""
    lost: str = ""
    """The connection ended before the answer did."""
    left: bool = False
    usage_tokens: int | None = None
    prompt_tokens: int | None = None
    said: str = ""
    """The beginning of a refusal."""

    @property
    def answered(self) -> bool:
        """Whether an answer came to its end, without an error."""
        return 200 <= self.status < 300 and self.done == 1 and not self.error and not self.lost


@attrs.frozen
class Record:
    """What came of a script: the journal, and what each caller heard."""

    script: CallScript
    journal: list[tuple[str, int]]
    heard: dict[int, HeardAnswer]
    mocked: bool
    """The journal has what mock servers told."""
    heard_held: dict[int, int] = attrs.field(factory=dict)
    """Tokens that a caller had heard while the servers stood still, by call."""

    def of(self, client: str) -> list[int]:
        return [number for number, call in self.script.calls.items() if call.client == client]

    def refused(self, calls: Iterable[int]) -> list[HeardAnswer]:
        """Return what callers heard that have no whole answer."""
        return [self.heard[number] for number in calls if not self.heard[number].answered]

    def counts(self, event: str) -> Counter[int]:
        """Return how often an event happened, by call."""
        return Counter(call for what, call in self.journal if what == event)

    def prompt_tokens(self, call: int) -> int:
        """Return the length of a call's prompt, as its answer said (0: it did not)."""
        return self.heard[call].prompt_tokens or 0

    def computed_after(self, calls: Collection[int], slack: int) -> list[int]:
        """Return for which of these calls, whose callers left, more than `slack` tokens were computed when all of them
        had left."""
        ends = [i for i, (what, number) in enumerate(self.journal) if what == "ended" and number in calls]
        late = Counter(number for what, number in self.journal[max(ends, default=0) :] if what == "token")
        return [number for number in calls if late[number] > slack]

    def begun_between(self, call: int, others: Collection[int]) -> int | None:
        """Return how many other calls began between a call's sending and its beginning; None if it never began."""
        seen, sent = 0, False
        for what, number in self.journal:
            if number == call and what == "sent":
                sent = True
            elif number == call and what == "begun":
                return seen
            elif sent and what == "begun" and number in others:
                seen += 1
        return None

    def service_gap(
        self, left: str, right: str, weights: dict[str, int], prices: tuple[int, int] = (0, 1)
    ) -> tuple[Fraction | None, dict[str, int]]:
        """Return how far two clients' service, by weight, moved apart in any interval in which both waited (None: they
        never waited at one time), and what each got while they did, at `prices` of a prompt and an output token."""
        *_, found = self.service_gaps(left, right, weights, prices)
        return found

    def service_gaps(
        self, left: str, right: str, weights: dict[str, int], prices: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[Fraction | None, dict[str, int]]]:
        """Yield the same of the journal so far: of its beginning, and after each entry."""
        clients = {number: call.client for number, call in self.script.calls.items()}
        waiting: dict[str, set[int]] = {left: set(), right: set()}
        apart = low = high = Fraction(0)
        widest: Fraction | None = None
        got = {left: 0, right: 0}
        before = False
        yield widest, got
        for what, number in self.journal:
            client = clients[number]
            if client in waiting:
                if what == "sent":
                    waiting[client].add(number)
                elif what in ("begun", "ended"):
                    waiting[client].discard(number)
                if what in ("begun", "token") and before:
                    got[client] += (cost := prices[1] if what == "token" else prices[0] * self.prompt_tokens(number))
                    apart += Fraction(cost if client == left else -cost, weights[client])
                both = all(waiting.values())
                if both:
                    low, high = (min(low, apart), max(high, apart)) if before else (apart, apart)
                    widest = max(widest or Fraction(0), high - low)
                before = both
            yield widest, got


class ScenarioVerdict(msgspec.Struct, frozen=True):
    """What a scenario found: the result, the figure measured beside its limit, and why where it does not apply."""

    result: Literal["passes", "fails", "not applicable"]
    measured: str = ""
    limit: str = ""
    reason: str = ""


class Failure(msgspec.Struct, frozen=True):
    """A file of a scenario that failed: the calls, what they were held to, and what happened."""

    fairsched: str
    script: CallScript
    limits: dict[str, int]
    verdict: ScenarioVerdict
    journal: list[tuple[str, int]]
