"""What an audit comes to: one sentence that is read first, and what its waits rest on."""

from fairsched.engines.analysis.audit.findings import SECOND_NS, Audit, AuditFigures
from fairsched.engines.analysis.audit.inference import Inference
from fairsched.engines.analysis.figures import count, digits, safe_text, share, time

FAILED_MIN = 0.01
"""Failures below this share of all requests are not told first."""


def verdict(audit: Audit) -> str:
    """Return the sentence that is read first: which clients starved, the p99 wait, failures, and a broken bound."""
    said = [_starved(audit), _wait(audit.total), *_failed(audit.total)]
    if audit.within_bound is False:
        bound = count(audit.evidence.bound)
        over = f"the service gap of {count(audit.bounded_gap.cost)} BREAKS its bound of {bound}"
        if audit.evidence.excuses:
            over += f", which rests on {', '.join(audit.evidence.excuses)}"
        elif audit.unexplained:
            over += ", and no assumption is broken: an error in fairsched"
        said.append(over)
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _starved(audit: Audit) -> str:
    after = digits(audit.starved_after_ns / SECOND_NS)
    if not audit.starved:
        if audit.total.kept_out:
            return f"no client is seen to starve for {after} s"
        return f"no client starved for {after} s"
    worst = next(iter(audit.starved))
    longest = f"{at_least(audit, worst)}{time(audit.clients[worst].starved_us_max)}"
    of = f"{len(audit.starved):,} of {len(audit.clients):,} clients starved"
    return f"{of}, {audit.who(worst)} {'longest, ' * (len(audit.starved) > 1)}for {longest}"


def _wait(total: AuditFigures) -> str:
    if total.wait_us.p99 is None:
        return "nothing tells how long requests waited" if total.kept_out else "no request was served"
    said = f"p99 wait {time(total.wait_us.p99)}"
    if total.wait_range_us is None:
        return said
    low, high = (time(each.p99) for each in (total.wait_range_us.low, total.wait_range_us.high))
    return said if low == high else f"{said}, between {low} and {high}"


def _failed(total: AuditFigures) -> list[str]:
    """How many requests failed in which way, where that is not seldom."""
    ways = {"ended in an error": total.errors, "were rejected": total.rejected, "were cancelled": total.cancelled}
    found = [
        f"{share(many / total.requests)} {way}" for way, many in ways.items() if many >= FAILED_MIN * total.requests > 0
    ]
    return [f"of all requests {', '.join(found)}"] if found else []


def basis(audit: Audit) -> list[str]:
    """Return what waits rest on, where the log has not all first tokens: a sentence for each model."""
    return [_inferred(said, len(audit.evidence.models) > 1) for said in audit.evidence.inferences]


def _inferred(said: Inference, several: bool) -> str:
    of = f" of {safe_text(said.model)}" if several and said.model is not None else ""
    calls = f"{said.calls:,} calls{of} have no time of a first token"
    if not said.done:
        return f"{calls}, and it cannot be inferred: {said.reason}. They are kept out of all waits."
    held = (
        f"the error on these, each held out, is {time(said.error_p50_us)} (p50) and {time(said.error_p95_us)} (p95), "
        f"and their p99 wait comes out as {time(said.wait_p99_inferred_us)} where it is {time(said.wait_p99_us)}"
    )
    return f"{calls}: it is inferred from {said.streaming:,} calls that stream; {held}."


def at_least(audit: Audit, client: int) -> str:
    """The words before a time that a client starved, which is the least that it can be where waits are inferred."""
    return "at least " if audit.clients[client].inferred else ""
