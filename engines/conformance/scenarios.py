"""What a gateway is held to: a claim in a line, the calls that try it, and a judgement of what happened.

Every figure is a count of calls or tokens.  Mock servers stand still while calls are sent, so that the order in which a
gateway lets them go on is its own choice, and not that of a busy machine.
"""

import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import attrs
from msgspec.structs import replace

from fairsched.engines.conformance import script as steps
from fairsched.engines.conformance.script import Record, ScenarioVerdict, ScriptedCall, Send, Way

CLIENTS = {"gold": 4, "bronze": 1, "polite": 1}
"""The clients that a gateway must know, and their weights."""
TOKENS = (12, 20)
"""Output tokens of a call, from and to."""
SHORT, LONG = (2, 6), (24, 32)
"""The same, where answers of one client are short and those of another are long."""
COSTS = (1, 2)
"""What a prompt and an output token cost where calls are not alike, as in VTC."""
LATE_TOKENS = 2
"""Of a stream whose caller left so many may be computed: a gateway may learn it when it passes on the next."""
_CLAIMS = (
    *("x-client", "x-client-id", "x-user", "x-user-id", "x-forwarded-user", "x-tenant", "x-fairsched-client"),
    *(
        "x-gateway-inference-fairness-id",
        "x-llm-d-inference-fairness-id",
        "x-litellm-end-user-id",
        "openai-organization",
    ),
)
"""Headers in which a caller may say that it is another one."""


@attrs.frozen
class ScenarioLimits:
    """What a gateway may do: calls that the servers work on at a time, all together; how far service may move from
    shares, in output tokens of a client of weight 1; other calls that may begin before one that waits."""

    at_once: int = 8
    gap_tokens: int = 256
    others: int = 16

    @classmethod
    def of(cls, at_once: int, gap_tokens: int | None = None, others: int | None = None) -> "ScenarioLimits":
        """Return limits for so many calls at a time: by default twice what is in the servers then."""
        return cls(at_once, gap_tokens or 2 * at_once * sum(TOKENS) // 2, others or 2 * at_once)

    @property
    def gap(self) -> str:
        """The limit of a scenario about shares."""
        return f"{self.gap_tokens} tokens"


@attrs.frozen
class Setting:
    """What is there to be tried: limits, instances, mock servers, and how callers are known."""

    limits: ScenarioLimits
    instances: int = 1
    mocked: bool = True
    way: Way = "key"


_KNOWN_BY: dict[Way, str] = {
    "key": "keys",
    "token": "tokens",
    "certificate": "certificates",
    "header": "a header that is trusted",
}
Judge = Callable[[Record, ScenarioLimits], ScenarioVerdict]
Sends = Callable[[random.Random, ScenarioLimits], list[steps.Step]]


@attrs.frozen
class Scenario:
    """A name, a claim in a line, the calls, and the judgement; what it needs to be tried."""

    name: str
    claim: str
    sends: Sends
    judge: Judge
    instances: int = 1
    mocked: bool = False
    ways: tuple[Way, ...] = ("key", "token", "certificate", "header")
    """How callers are known where it is tried."""
    after: str | None = None
    """A scenario that must pass, or this one shows nothing."""

    def lacks(self, setting: Setting) -> str:
        """Return why it cannot be tried; empty if it can."""
        if setting.instances < self.instances:
            return "one URL was given"
        if self.mocked and not setting.mocked:
            return "what servers do is seen with --servers only"
        return "" if setting.way in self.ways else f"clients are known by {_KNOWN_BY[setting.way]}"

    def script(self, seed: int, limits: ScenarioLimits) -> steps.CallScript:
        return steps.CallScript(self.name, seed, tuple(self.sends(random.Random(f"{self.name} {seed}"), limits)))


def _verdict(passes: bool, measured: object, limit: object, reason: str = "") -> ScenarioVerdict:
    return ScenarioVerdict("passes" if passes else "fails", str(measured), str(limit), reason)


def _drawn(
    rng: random.Random,
    numbers: Iterator[int],
    client: str,
    calls: int,
    *,
    streams: bool | None = None,
    tokens: tuple[int, int] = TOKENS,
    **how: Any,
) -> tuple[ScriptedCall, ...]:
    """Calls of a client; streams, or every other one."""
    return tuple(
        ScriptedCall(
            next(numbers), client, rng.randint(*tokens), stream=bool(i % 2) if streams is None else streams, **how
        )
        for i in range(calls)
    )


# --- shares -----------------------------------------------------------------------------------------------------------


def _beside(
    first: str,
    second: str,
    gateways: tuple[tuple[int, ...], int] = ((0,), 0),
    tokens: tuple[tuple[int, int], tuple[int, int]] = (TOKENS, TOKENS),
) -> Sends:
    """Return two clients that ask for far more than there is, for answers of so many tokens; the first one's calls are
    there before those of the second."""

    def sends(rng: random.Random, limits: ScenarioLimits) -> list[steps.Step]:
        numbers, calls = count(1), 8 * limits.at_once
        early = _drawn(rng, numbers, first, calls, tokens=tokens[0])
        early = tuple(replace(call, gateway=gateways[0][i % len(gateways[0])]) for i, call in enumerate(early))
        late = _drawn(rng, numbers, second, calls, tokens=tokens[1], gateway=gateways[1])
        return [steps.Hold(), Send(early, limits.at_once), Send(late)]

    return sends


def _by_weight(first: str, second: str, *, by_cost: bool = False) -> Judge:
    """Return the two get service by weight while both wait, and the second one's calls are all answered.

    By cost, the limit is for what the dearest calls cost.
    """

    def judge(record: Record, limits: ScenarioLimits) -> ScenarioVerdict:
        most, limit, unit = limits.gap_tokens, limits.gap, "tokens"
        if by_cost:
            calls = record.script.calls.items()
            dearest = max(COSTS[0] * record.prompt_tokens(i) + COSTS[1] * call.tokens for i, call in calls)
            most, unit = most * dearest * 2 // sum(TOKENS), "units"
            limit = f"{most} {unit}"
        if refused := record.refused(record.of(second)):
            return _refused(second, refused, len(record.of(second)), limit)
        gap, got = record.service_gap(first, second, CLIENTS, COSTS if by_cost else (0, 1))
        if gap is None:
            return ScenarioVerdict("not applicable", "", limit, f"{first} and {second} never waited at one time")
        ratio = f"{second} {got[second]} to {first} {got[first]} {unit}"
        return _verdict(gap <= most, f"{float(gap):.0f} {unit}", limit, ratio)

    return judge


def _refused(client: str, refused: list[Any], of: int, limit: str) -> ScenarioVerdict:
    first = refused[0]
    how = first.lost or (f"HTTP {first.status}" if not 200 <= first.status < 300 else "an answer that is not whole")
    return ScenarioVerdict(
        "fails", f"{len(refused)} of {of} not answered", limit, f"{client}: {how} {first.said}".strip()
    )


def _one_call(rng: random.Random, limits: ScenarioLimits) -> list[steps.Step]:
    numbers = count(1)
    flood = _drawn(rng, numbers, "bronze", 8 * limits.at_once)
    return [steps.Hold(), Send(flood, limits.at_once), Send(_drawn(rng, numbers, "polite", 1))]


def _is_soon(record: Record, limits: ScenarioLimits) -> ScenarioVerdict:
    (call,) = record.of("polite")
    limit = f"{limits.others} calls"
    if refused := record.refused([call]):
        return _refused("polite", refused, 1, limit)
    others = record.begun_between(call, record.of("bronze"))
    assert others is not None
    return _verdict(others <= limits.others, f"{others} calls", limit)


# --- callers ----------------------------------------------------------------------------------------------------------


def _claims(rng: random.Random, limits: ScenarioLimits) -> list[steps.Step]:
    """Return a flood that claims another name with each call: the polite client, or one that is not known."""
    hold, flood, polite = _beside("bronze", "polite")(rng, limits)
    assert isinstance(flood, Send)
    claimed = [
        replace(call, headers=dict.fromkeys(_CLAIMS, "polite" if i % 2 else f"unknown-{rng.randrange(1 << 30)}"))
        for i, call in enumerate(flood.calls)
    ]
    return [hold, Send(tuple(claimed), flood.at_servers), polite]


def _flawed(*flaws: str) -> Sends:
    """Return a call that shows each of these, of a client that has credit, and then one that shows what is right."""

    def sends(_: random.Random, __: ScenarioLimits) -> list[steps.Step]:
        wrong = tuple(ScriptedCall(number, "gold", 2, flaw=flaw) for number, flaw in enumerate(flaws, 1))
        return [
            Send(wrong),
            steps.DrainServers(),
            Send((ScriptedCall(len(flaws) + 1, "gold", 2),)),
            steps.DrainServers(),
        ]

    return sends


def _are_refused(*statuses: int) -> Judge:
    """Wrong calls get one of these (0: their connection ends), and the right one is answered."""

    def judge(record: Record, _: ScenarioLimits) -> ScenarioVerdict:
        *wrong, right = record.heard
        if refused := record.refused([right]):
            return _refused("gold, who came after", refused, 1, "0 calls")
        said = {number: record.heard[number].status for number in wrong}
        other = [
            f"{record.script.calls[i].flaw}: HTTP {status}" for i, status in said.items() if status not in statuses
        ]
        answered = sum(200 <= status < 300 for status in said.values())
        return _verdict(not other, f"{answered} of {len(wrong)} calls", "0 calls", ", ".join(other))

    return judge


def _leavers(rng: random.Random, limits: ScenarioLimits) -> list[steps.Step]:
    """Let callers of twice what the servers can work on leave when the first tokens are there."""
    numbers = count(1)
    calls = _drawn(rng, numbers, "bronze", 2 * limits.at_once, words="[pauses 2]")
    after = Send(_drawn(rng, numbers, "polite", 2))
    left = steps.Leave(tuple(call.number for call in calls))
    return [
        steps.Hold(),
        Send(calls, limits.at_once),
        steps.Release(until_paused=True),
        left,
        steps.Gone(),
        steps.Release(),
        after,
    ]


def _work_stopped(record: Record, _: ScenarioLimits) -> ScenarioVerdict:
    left = record.of("bronze")
    if refused := record.refused(record.of("polite")):
        return _refused("polite, who came after", refused, 2, "0 calls")
    late = record.computed_after(left, LATE_TOKENS)
    streams = sum(record.script.calls[number].stream for number in late)
    said = f"{streams} streams, {len(late) - streams} others" if late else ""
    return _verdict(not late, f"{len(late)} of {len(left)} calls", "0 calls", said)


# --- answers ----------------------------------------------------------------------------------------------------------

HEARD_TOKENS, BREAKS_AT = 3, 4


def _held_stream(_: random.Random, __: ScenarioLimits) -> list[steps.Step]:
    call = ScriptedCall(1, "polite", 12, words=f"[pauses {HEARD_TOKENS}]")
    return [
        steps.Hold(),
        Send((call,), 1),
        steps.Release(until_paused=True),
        steps.HearTokens(1, HEARD_TOKENS),
        steps.DrainServers(),
    ]


def _came_at_once(record: Record, _: ScenarioLimits) -> ScenarioVerdict:
    heard = record.heard_held.get(1, 0)
    if refused := record.refused([1]):
        return _refused("polite", refused, 1, f"{HEARD_TOKENS} tokens")
    return _verdict(heard >= HEARD_TOKENS, f"{heard} tokens", f"{HEARD_TOKENS} tokens", "while the server stands still")


def _said_usage(record: Record, _: ScenarioLimits) -> ScenarioVerdict:
    if refused := record.refused(record.heard):
        return _refused("polite", refused, len(record.heard), "2 of 2 calls")
    right = sum(
        heard.usage_tokens == (call.tokens if record.mocked else heard.tokens) and bool(heard.prompt_tokens)
        for call, heard in ((call, record.heard[number]) for number, call in record.script.calls.items())
    )
    return _verdict(right == len(record.heard), f"{right} of {len(record.heard)} calls", "2 of 2 calls")


def _said_error(record: Record, _: ScenarioLimits) -> ScenarioVerdict:
    heard = record.heard[1]
    if heard.status >= 400 and not heard.tokens:
        # What was not begun may be refused.
        return _verdict(True, f"HTTP {heard.status}", "an error")
    if heard.error:
        measured = "an error event"
    elif heard.lost:
        measured = "a cut connection"
    else:
        measured = "a whole answer" if heard.done else "an end without a mark"
    return _verdict(heard.error, measured, "an error event", f"after {heard.tokens} of 12 tokens")


def _mixed(rng: random.Random, limits: ScenarioLimits) -> list[steps.Step]:
    """Streams and others of three clients, some of which break off or are left."""
    numbers = count(1)
    calls = [call for client in CLIENTS for call in _drawn(rng, numbers, client, 2 * limits.at_once)]
    breaking = _drawn(rng, numbers, "bronze", 2, streams=True, words=f"[breaks {BREAKS_AT}]")
    rng.shuffle(calls)
    leaves = tuple(call.number for call in calls[: limits.at_once // 2])
    return [steps.Hold(), Send((*calls, *breaking), limits.at_once), steps.Leave(leaves)]


def _ended_once(record: Record, _: ScenarioLimits) -> ScenarioVerdict:
    wrong: dict[str, int] = {}
    arrived, ended = record.counts("arrived"), record.counts("ended")
    for number, call in record.script.calls.items():
        heard = record.heard[number]
        problem = ""
        if ended[number] != 1 or heard.lost.startswith("no end"):
            problem = "without an end"
        elif record.mocked and arrived[number] > 1:
            problem = "computed twice"
        elif heard.left or not 200 <= heard.status < 300 or (call.words and record.mocked):
            pass
        elif not heard.answered:
            problem = "cut short"
        elif record.mocked and heard.tokens != call.tokens:
            problem = "with other tokens than the server's"
        if problem:
            wrong[problem] = wrong.get(problem, 0) + 1
    said = ", ".join(f"{times} {problem}" for problem, times in wrong.items())
    refused = sum(heard.status >= 400 for heard in record.heard.values())
    reason = said or (f"{refused} were refused" if refused else "")
    return _verdict(not wrong, f"{sum(wrong.values())} of {len(record.heard)} calls", "0 calls", reason)


SCENARIOS = {
    each.name: each
    for each in (
        Scenario(
            "flood",
            "beside a flood a client of the same weight gets half while both wait",
            _beside("bronze", "polite"),
            _by_weight("bronze", "polite"),
        ),
        Scenario(
            "weights",
            "clients of weights 4 and 1 get service by weight while both wait",
            _beside("bronze", "gold"),
            _by_weight("bronze", "gold"),
        ),
        Scenario(
            "starvation",
            "a client with one call does not wait for all of a flood",
            _one_call,
            _is_soon,
        ),
        Scenario(
            "outputs",
            "beside a client of long answers one of short answers gets half by cost (prompts 1, outputs 2 a token)",
            _beside("bronze", "polite", tokens=(LONG, SHORT)),
            _by_weight("bronze", "polite", by_cost=True),
        ),
        Scenario(
            "two-instances",
            "weights 4 and 1 hold also where each client has an instance of its own",
            _beside("bronze", "gold", ((1,), 0)),
            _by_weight("bronze", "gold"),
            instances=2,
            after="weights",
        ),
        Scenario(
            "two-instances-flood",
            "a flood through two instances gets no more than through one",
            _beside("bronze", "polite", ((0, 1), 0)),
            _by_weight("bronze", "polite"),
            instances=2,
            after="flood",
        ),
        Scenario(
            "identity",
            "a flood gains nothing by headers that name another client",
            _claims,
            _by_weight("bronze", "polite"),
            ways=("key", "token", "certificate"),
            after="flood",
        ),
        Scenario(
            "keys",
            "calls without a key, or with one that is not known, are refused",
            _flawed(*steps.KEY_FLAWS),
            _are_refused(401, 403),
            ways=("key",),
        ),
        Scenario(
            "tokens",
            "calls without a token, or with one that is not of its issuer, for this gateway and now, are refused",
            _flawed(*steps.TOKEN_FLAWS),
            _are_refused(401, 403),
            ways=("token",),
        ),
        Scenario(
            "certificates",
            "callers without a certificate, or with one that is not of the authority, for callers and now, are refused",
            _flawed(*steps.CERTIFICATE_FLAWS),
            _are_refused(400, 401, 403, 0),
            ways=("certificate",),
        ),
        Scenario(
            "cancellation",
            "the work of a caller that leaves stops at the server and in the queue",
            _leavers,
            _work_stopped,
            mocked=True,
        ),
        Scenario(
            "streaming",
            "tokens reach the caller while the server has not yet computed the next",
            _held_stream,
            _came_at_once,
            mocked=True,
        ),
        Scenario(
            "usage",
            "what the server says of usage reaches the caller",
            lambda rng, _: [Send(_drawn(rng, count(1), "polite", 2))],
            _said_usage,
        ),
        Scenario(
            "stream-errors",
            "a stream whose server is gone ends in an error event",
            lambda _, __: [Send((ScriptedCall(1, "polite", 12, words=f"[breaks {BREAKS_AT}]"),))],
            _said_error,
            mocked=True,
        ),
        Scenario(
            "exactly-once",
            "every call ends once and is computed at most once, also beside leavers",
            _mixed,
            _ended_once,
        ),
    )
}
"""By name, in the order in which they are tried."""
