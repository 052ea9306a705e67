"""Advice as a value and in words: what a log shows, what is advised, and a paragraph for a reader who decides."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from fairsched.engines.analysis import safe_text, share, time
from fairsched.engines.analysis.audit import Audit
from fairsched.engines.calibration.from_log import LogFit
from fairsched.engines.capacity.advice.effects import Effects, Interval
from fairsched.engines.logs.access import AccessLog
from fairsched.model.shown import short_repr

Verdict = Literal["gate", "leave", "capacity", "unknown"]
"""`gate`: it would help.  `leave`: no client waits long.  `capacity`: clients wait, and a gate would not help most.
`unknown`: clients wait, and what a gate would do cannot be told from this log."""

FEW = 200
"""A log with fewer requests is too short for a machine to be fitted and judged."""
_NAMED = 3
"""So many clients are named in a sentence."""


@attrs.frozen(eq=False)
class Advice:
    """What is found and what is advised.

    `harmed` are the clients that waited long, by number, and where a gate is advised those that it helps.  `fit` is
    the machine that was fitted, and `effects` is what a gate changes; None where it did not come to that: `why_not`
    says why.  `models` are there where a log has models that share no server: the first of them is looked at.
    `complete` is False after an interrupt: then there is what was found until then.
    """

    __repr__ = short_repr

    log: AccessLog
    audit: Audit
    harmed: tuple[int, ...]
    verdict: Verdict
    fit: LogFit | None = None
    effects: Effects | None = None
    why_not: str = ""
    weights: Mapping[str, int] = attrs.field(factory=dict)
    models: tuple[str, ...] = ()
    complete: bool = True

    @property
    def policy(self) -> str:
        """The policy that is advised: the order that was recognised, under a gate."""
        return f"{'fcfs' if self.fit is None else self.fit.machine.policy}+deficit"

    @property
    def paragraph(self) -> str:
        """The advice in a few sentences."""
        return " ".join(self.sentences())

    def sentences(self) -> list[str]:
        """Return the advice in sentences, the verdict first."""
        said = [verdict(self), *_harm(self), *_certainty(self), *next_steps(self)[:1]]
        if self.models:
            first, *others = (safe_text(name) for name in self.models)
            apart = f"{_listed(others)} had servers of their own: choose them with --only model=NAME."
            said.append(f"This is about {first}; {apart}")
        return said

    def to_json(self) -> dict[str, Any]:
        """Return the document of `fairsched advise --json`: plain values, None where there is nothing to say."""
        effects = self.effects
        return {
            "verdict": self.verdict,
            "paragraph": self.paragraph,
            "complete": self.complete,
            "why_not": self.why_not or None,
            "harmed": [self.audit.clients[client].name for client in self.harmed],
            "policy": self.policy,
            "log_more": to_log(self.log),
            "calibration": None if self.fit is None else self.fit.to_json(),
            "effects": None if effects is None else effects.to_json(),
            "audit": self.audit.to_json(),
        }


def verdict(advice: Advice) -> str:
    """Return what to do, in one sentence."""
    clients = names(advice, advice.harmed)
    match advice.verdict:
        case "gate":
            effects = _effects(advice)
            return (
                f"Put a gate before the server: the p99 time to a first token of {clients} would fall from "
                f"{time(effects.logged(advice.harmed).p99)} to {_between(effects.gated(advice.harmed))}, "
                f"{_throughput(effects)}."
            )
        case "capacity":
            return f"The server is short of capacity: {clients} wait, and a gate alone would not help most of them."
        case "leave":
            return "Leave it as it is: no client starved, and none waited long."
    if not advice.complete:
        return f"Interrupted: {clients} had to wait, and what a gate would change was not computed."
    if not advice.harmed:
        return f"Nothing is advised: {advice.why_not}."
    return f"{_capital(clients)} had to wait; what a gate would change cannot be told from this log."


def _between(interval: Interval) -> str:
    if interval[1] == float("inf"):
        return f"at least {time(interval[0])}"
    low, high = map(time, interval)
    return low if low == high else f"between {low} and {high}"


def names(advice: Advice, clients: Sequence[int]) -> str:
    """Return the clients' names, the first few of many."""
    shown = [advice.audit.who(client) for client in clients[:_NAMED]]
    more = len(clients) - len(shown)
    if more:
        shown.append(f"{more:,} more client{'s' * (more > 1)}")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else "no client"


def _effects(advice: Advice) -> Effects:
    assert advice.effects is not None
    return advice.effects


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith("client ") else text


def _throughput(effects: Effects) -> str:
    """Return what the gate costs."""
    low, high = (each - 1 for each in effects.throughput)
    if max(-low, high) < 0.02:
        return "at the same throughput"
    return f"with {low:+.0%} to {high:+.0%} of throughput"


def _harm(advice: Advice) -> list[str]:
    """Return which clients wait and starve, how long, and which were served meanwhile."""
    audit = advice.audit
    evidence = audit.evidence
    span = time((evidence.last_ns - evidence.origin_ns) / 1e3)
    log = f"In the log ({len(evidence.calls.client):,} requests of {len(audit.clients):,} clients in {span})"
    if not advice.harmed:
        waits = [client.wait_us.p99 for client in audit.clients if client.wait_us.p99 is not None]
        return [f"{log} the longest p99 wait of a client is {time(max(waits))}."] if waits else []
    starved = [client for client in advice.harmed if client in audit.starved]
    said = []
    if starved:
        longest = max(audit.clients[client].starved_us_max for client in starved)
        times = sum(audit.clients[client].starved for client in starved)
        said.append(
            f"{log} {names(advice, starved)} starved {times:,} time{'s' * (times > 1)}, for up to {time(longest)}: "
            "waiting with no service at all, while others were served."
        )
    else:
        longest = max(audit.clients[client].wait_us.p99 or 0.0 for client in advice.harmed)
        said.append(f"{log} the p99 wait of {names(advice, advice.harmed)} is up to {time(longest)}.")
    rest = [client for client in range(len(audit.clients)) if client not in advice.harmed]
    if rest:
        most = max(rest, key=lambda client: audit.clients[client].service)
        part = audit.clients[most].service_share
        said.append(f"Meanwhile most went to {audit.who(most)}, which had {share(part)} of all service.")
    return said


def _certainty(advice: Advice) -> list[str]:
    """Return what the figures rest on."""
    effects = advice.effects
    if effects is None:
        why = advice.verdict == "unknown" and advice.harmed and advice.complete
        return [f"No figure is claimed: {advice.why_not}."] if why else []
    window = effects.window
    where = "the log" if window.whole else f"its busiest stretch ({window.requests:,} of {window.of:,} requests)"
    by = f"Simulated on {where}, by {len(effects.members)} machines that explain it about as well"
    workers = sorted({member.machine.workers for member in effects.members})
    if "worker" not in advice.log.fields:
        by += f" (it names no server; {' or '.join(map(str, workers))} fitted: say how many there are with --workers)"
    said = [f"{by}. Requests are taken to come at the same times whatever the server does."]
    if advice.verdict != "gate" and effects.helped:
        helped = effects.helped
        said.append(
            f"A gate would help {names(advice, helped)}: p99 to a first token from {time(effects.logged(helped).p99)} "
            f"to {_between(effects.gated(helped))}."
        )
    if effects.unsure:
        unsure = effects.unsure
        said.append(
            f"For {names(advice, unsure)} it cannot be told: p99 {time(effects.logged(unsure).p99)} today, with a gate "
            f"{_between(effects.gated(unsure))}."
        )
    return said


def next_steps(advice: Advice) -> list[str]:
    """Return what to do, the first first."""
    if advice.verdict == "gate":
        return [
            "Next: fill in gateway.toml, check it with `fairsched gateway gateway.toml --check`, and put it before the "
            "server; or give vllm.toml to vLLM.",
        ]
    if advice.verdict == "capacity":
        return ["Next: `fairsched plan` says how many servers keep a target; a gate then keeps the shares."]
    if advice.verdict == "unknown" and len(advice.log.client) < FEW:
        return ["Next: take a longer log, and ask again."]
    missing = to_log(advice.log)
    if advice.verdict == "unknown" and missing:
        return [f"Next: log {_listed(missing)}, and ask again."]
    if advice.verdict == "unknown":
        return ["Next: take a log in which the clients wait longer, and ask again."]
    return ["Next: keep `fairsched audit --fail-on 'starved>0'` in CI on this log, so that it stays so."]


_TO_LOG = {
    "client": "which client sent a request",
    "ttft": "when its first token came",
    "queue": "how long it was queued",
    "worker": "which server had it",
    "cached_tokens": "how many prompt tokens came from a cache",
}


def to_log(log: AccessLog) -> list[str]:
    """Return what the log does not say, and would tell more."""
    fields = log.fields | ({"ttft"} if "first_token" in log.fields else set())
    return [text for field, text in _TO_LOG.items() if field not in fields]


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
