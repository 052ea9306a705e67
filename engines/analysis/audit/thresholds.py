"""Thresholds of an audit for CI: `starved>0,p99_wait>5s` fails where a figure is beyond its limit.

A threshold is a figure, a comparison and a value, with a client's name before it if it is about one: `free.p99_wait>5s`
(a name with a comma or a comparison in it stands in double quotes).  It says what must not be.  Times have units
(`5s`, `500ms`, `1m30s`) or are seconds; numbers may have a suffix, as `10k` or `32Ki`; a number of requests may be a
share of them: `errors>1%`.

A figure of which the log tells only a part is a range: calls that are kept out may have waited not at all, or until
their end.  A threshold that holds, or does not, over the whole range is judged.  One that holds at one end only cannot
be judged, and must not pass in silence.  Of inferred waits the estimate is judged, and the margin is said.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal
from xml.etree import ElementTree

import attrs

from fairsched.engines.analysis.audit.findings import Audit, ClientFindings, Range
from fairsched.engines.analysis.figures import count, safe_text, share, time
from fairsched.engines.analysis.outcomes import Summary
from fairsched.engines.logs.access import ValueFault, length_reader
from fairsched.policies.registry import unknown

Verdict = Literal["ok", "failed", "unknown"]
Kind = Literal["time", "number", "requests"]

_ONE = re.compile(r'\s*(?:(?:"([^"]*)"|([^",<>=]*?))\s*\.\s*)?([A-Za-z_0-9]+)\s*(>=|<=|>|<)\s*([^,\s<>=]+)\s*(?:,|$)')
_VALUE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Zµ%]*)")
_TIMES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_NUMBER_MAX = 10**12
_length_ns = length_reader("s")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}


@attrs.frozen
class Known:
    """What is known of a figure: its value, and from where to where it could be; None where nothing is."""

    value: float | None
    low: float | None
    high: float | None
    margin: tuple[float, float] | None = None
    """What inferred waits may be off by: said, not judged."""


Figure = Callable[[Audit, ClientFindings], Known]


def _exactly(value: float | None) -> Known:
    return Known(value, value, value)


def _percentile(what: str, name: str) -> Figure:
    """Return a percentile of waits or first tokens, with its range."""

    def figure(audit: Audit, of: ClientFindings) -> Known:
        summary: Summary = getattr(of, f"{what}_us")
        value = getattr(summary, name)
        found = {"wait": of.wait_range_us, "ttft": of.ttft_range_us}.get(what)
        if found is None or value is None:
            return _exactly(value)
        ends = _ends(found, name)
        # An estimate is judged; what is kept out has none.
        untold = of.kept_out if what == "wait" else of.untold
        return Known(value, *ends) if untold else Known(value, value, value, ends)

    return figure


def _ends(found: Range, name: str) -> tuple[float, float]:
    return getattr(found.low, name), getattr(found.high, name)


def _number(name: str) -> Figure:
    return lambda audit, of: _exactly(getattr(of, name))


def _at_least(value: Callable[[Audit, ClientFindings], float | None]) -> Figure:
    """Return a figure that calls which are kept out could only raise, by nothing tells how much."""

    def figure(audit: Audit, of: ClientFindings) -> Known:
        found = value(audit, of)
        return Known(found, found, math.inf) if audit.total.kept_out and found is not None else _exactly(found)

    return figure


def _starved(value: Callable[[ClientFindings], float], most: Callable[[list[int], int], float]) -> Figure:
    """Return a figure of starvation, and from the longest that stretches may be, the most that it is."""

    def figure(audit: Audit, of: ClientFindings) -> Known:
        found = value(of)
        if audit.evidence.at_most is None:
            return _exactly(found)
        lengths = [
            stretch.length_ns
            for client, several in audit.may_starve.items()
            if of is audit.total or audit.clients[client] is of
            for stretch in several
        ]
        return Known(found, found, max(found, most(lengths, audit.starved_after_ns)))

    return figure


def _violations(audit: Audit, of: ClientFindings) -> Known:
    return _exactly(None if audit.within_bound is None else float(not audit.within_bound))


_WHOLE = ("gap", "bound_violations", "assumptions_broken")
"""Figures of no single client."""
FIGURES: dict[str, tuple[Kind, Figure]] = {
    "starved": (
        "number",
        _starved(lambda of: of.starved, lambda lengths, after: sum(each // after for each in lengths)),
    ),
    "starved_time": ("time", _starved(lambda of: of.starved_us_max, lambda lengths, _: max(lengths, default=0) / 1e3)),
    **{
        f"{name}_{what}": ("time", _percentile(what, name))
        for what in ("wait", "ttft", "latency")
        for name in ("mean", "p50", "p90", "p95", "p99")
    },
    "gap": ("number", _at_least(lambda audit, of: audit.bounded_gap.cost)),
    "bound_violations": ("number", _violations),
    "assumptions_broken": ("number", lambda audit, of: _exactly(len(audit.broken_assumptions()))),
    "gained": ("number", _at_least(lambda audit, of: of.ahead)),
    "lost": ("number", _at_least(lambda audit, of: of.behind)),
    **{
        name: ("requests", _number(name))
        for name in ("errors", "rejected", "cancelled", "failed", "retries", "unfinished", "kept_out")
    },
    "requests": ("number", _number("requests")),
}
"""What a threshold may be about."""


@attrs.frozen
class Threshold:
    """One threshold: what must not be.  `limit` is in microseconds or numbers; with `of_requests` a share of them."""

    text: str
    client: str | None
    figure: str
    comparison: str
    limit: float
    of_requests: bool = False


@attrs.frozen
class Judgement:
    """A threshold with its verdict, the figure (in microseconds, or a number) and a sentence."""

    threshold: Threshold
    verdict: Verdict
    value: float | None
    said: str
    model: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values; times in seconds."""
        scale = 1e6 if FIGURES[self.threshold.figure][0] == "time" else 1
        return {
            "threshold": self.threshold.text,
            "client": self.threshold.client,
            "model": self.model,
            "figure": self.threshold.figure,
            "value": None if self.value is None else self.value / scale,
            "limit": self.threshold.limit / scale,
            "verdict": self.verdict,
            "said": self.said,
        }


def read_thresholds(text: str) -> tuple[Threshold, ...]:
    """Read thresholds that are separated by commas.  Raises `ValueError` that names the one that is wrong.

    >>> [(each.client, each.figure, each.limit) for each in read_thresholds("starved>0, free.p99_wait>5s")]
    [(None, 'starved', 0.0), ('free', 'p99_wait', 5000000.0)]
    """
    found: list[Threshold] = []
    place = 0
    while place < len(text) or not found:
        match = _ONE.match(text, place)
        if match is None:
            wrong = text[place:].partition(",")[0].strip() or "nothing"
            raise ValueError(f"a threshold is a figure, a comparison and a value, as p99_wait>5s; found {wrong}")
        quoted, plain, figure, comparison, value = match.groups()
        if figure not in FIGURES:
            raise unknown("figure", figure, FIGURES)
        client = quoted if quoted is not None else plain
        said = match[0].strip().rstrip(",").strip()
        if client is not None and figure in _WHOLE:
            raise ValueError(f"{said}: {figure} is of all clients together, and of no single one")
        found.append(Threshold(said, client, figure, comparison, *_limit(said, figure, value)))
        place = match.end()
    return tuple(found)


def _limit(said: str, figure: str, text: str) -> tuple[float, bool]:
    kind, _ = FIGURES[figure]
    if kind == "time":
        try:
            return _length_ns(text) / 1e3, False
        except ValueFault:
            raise ValueError(f"{said}: expected a length of time as 5s or 500ms, found {text}") from None
    match = _VALUE.fullmatch(text)
    if match is not None and kind == "requests" and match[2] == "%":
        return float(match[1]) / 100, True
    if match is None or match[2] not in _TIMES:
        share_too = ", or a share of the requests as 1%" if kind == "requests" else ""
        raise ValueError(f"{said}: expected a number as 5 or 10k{share_too}, found {text}")
    limit = float(match[1]) * _TIMES[match[2]]
    if limit > _NUMBER_MAX:
        raise ValueError(f"{said}: expected a number up to 10^12, found {text[:40]}")
    return limit, False


def judged(audits: Sequence[Audit], thresholds: Sequence[Threshold]) -> tuple[Judgement, ...]:
    """Hold each of the audits of a log to the thresholds; those about a client, where it is.

    Raises `ValueError` for a client that is in none.
    """
    found: list[Judgement] = []
    for threshold in thresholds:
        names = {client.name: None for audit in audits for client in audit.clients}
        if threshold.client is not None and threshold.client not in names:
            raise unknown("client", threshold.client, names)
        for audit in audits:
            of = [audit.total] if threshold.client is None else audit.clients
            found += [_judge(audit, each, threshold) for each in of if threshold.client in (None, each.name)]
    return tuple(found)


def exit_status(judgements: Sequence[Judgement]) -> int:
    """Return 1 where a threshold is passed, else 2 where one cannot be judged, else 0."""
    verdicts = {each.verdict for each in judgements}
    return 1 if "failed" in verdicts else 2 if "unknown" in verdicts else 0


def audit_document(audits: Sequence[Audit], judgements: Sequence[Judgement]) -> dict[str, Any]:
    """Return the document of `fairsched audit --json`: that of one audit, or a list of several, with the thresholds."""
    thresholds = {"thresholds": [each.to_json() for each in judgements]}
    if len(audits) == 1:
        return audits[0].to_json() | thresholds
    return {"log": str(audits[0].evidence.path), "audits": [audit.to_json() for audit in audits]} | thresholds


def _judge(audit: Audit, of: ClientFindings, threshold: Threshold) -> Judgement:
    kind, figure = FIGURES[threshold.figure]
    known = figure(audit, of)
    name = threshold.figure + (f" of {safe_text(threshold.client)}" if threshold.client is not None else "")
    model = audit.evidence.model
    if known.value is None or known.low is None or known.high is None:
        return Judgement(threshold, "unknown", None, f"{name} cannot be judged: {_why(audit, threshold.figure)}", model)
    divisor = max(of.requests, 1) if threshold.of_requests else 1
    beyond = [_COMPARE[threshold.comparison](end / divisor, threshold.limit) for end in (known.low, known.high)]
    show: Callable[[float], str] = time if kind == "time" else count
    if threshold.of_requests:
        limit = share(threshold.limit)
        value = f"{share(known.value / divisor)} ({count(known.value)} of {of.requests:,})"
    else:
        limit, value = show(threshold.limit), show(known.value)
    if known.margin is not None:
        value += f" (between {show(known.margin[0])} and {show(known.margin[1])}: first tokens are inferred)"
    if beyond[0] != beyond[1]:
        untold = audit.total.untold + int(audit.evidence.calls.doubtful.sum())
        most = "any number" if math.isinf(known.high) else show(known.high)
        reason = f"it is between {show(known.low)} and {most}, {untold:,} calls having no first token"
        return Judgement(threshold, "unknown", known.value, f"{name} cannot be judged: {reason}", model)
    said = f"{name} is {value}, {'' if beyond[0] else 'not '}{_WORDS[threshold.comparison]} {limit}"
    return Judgement(threshold, "failed" if beyond[0] else "ok", known.value, said, model)


_WORDS = {">": "more than", ">=": "at least", "<": "less than", "<=": "at most"}


def _why(audit: Audit, figure: str) -> str:
    """Return why a figure has no value."""
    if figure == "bound_violations":
        return "nothing was promised in this log"
    if figure.endswith(("wait", "ttft")):
        return "the log has no first token from which it could be told"
    return "no request finished"


def junit(judgements: Sequence[Judgement], log: str) -> bytes:
    """Return JUnit XML: a test case for each threshold, a failure where it is passed, an error where nothing tells."""
    failures, errors = (sum(each.verdict == verdict for each in judgements) for verdict in ("failed", "unknown"))
    counted = {"tests": f"{len(judgements)}", "failures": f"{failures}", "errors": f"{errors}"}
    suites = ElementTree.Element("testsuites", counted)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "fairsched audit", **counted})
    for each in judgements:
        place = safe_text(log if each.model is None else f"{log}: {each.model}", None)
        name = safe_text(each.threshold.text, None)
        case = ElementTree.SubElement(suite, "testcase", {"classname": place, "name": name})
        if each.verdict == "ok":
            ElementTree.SubElement(case, "system-out").text = each.said
        else:
            kind = "failure" if each.verdict == "failed" else "error"
            ElementTree.SubElement(case, kind, {"message": each.said, "type": each.threshold.figure}).text = each.said
    ElementTree.indent(suites)
    document: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return document
