"""What came out of a comparison, in sentences: under which policies clients wait, which are slow, which are neither.

The *others* are all clients but the one that asks for most: what they wait is what a policy does to clients that share
a server with a flood.
"""

from collections.abc import Callable, Sequence

from fairsched.engines.analysis.figures import Compared, count, rate, safe_text, share, standing, time, who
from fairsched.engines.analysis.metrics import Run
from fairsched.engines.analysis.outcomes import summary
from fairsched.model.algebra import Bools

LONG, LONG_US = 5, 1e6
"""The others wait long who wait more than so many times the shortest wait of all runs, and so much longer."""
SLOW = 0.8
"""A run is slow that answers less than this share of the most requests a second."""
_NAMED = 3
Named = tuple[str, Run]


def largest_client(run: Run) -> int | None:
    """Return the client that asks for most; None where no other one was served."""
    most = run.series.clients[0] if run.series.clients and run.requests else None
    return most if most is not None and (_served(run) & (run.requests["client"] != most)).any() else None


def others_wait_us(run: Run) -> float | None:
    """Return the p99 TTFT of the others' requests; of all requests where no other client was served."""
    if not run.requests:
        return None
    table, most = run.requests, largest_client(run)
    rows = _served(run) if most is None else _served(run) & (table["client"] != most)
    return summary(table["first_token_ns"][rows] - table["arrival_ns"][rows]).p99


def _served(run: Run) -> Bools:
    served: Bools = run.requests["first_token_ns"] >= 0
    return served


def verdict(comparison: Compared) -> list[str]:
    """Return the answer in sentences, the most important first.

    Of several rates the highest counts, where policies differ most.
    """
    if not comparison.runs:
        return ["No run was completed."]
    top = max(run.rate_scale for run in comparison.runs)
    runs = [(label, run) for label, run in comparison.named() if run.rate_scale == top]
    said = [_judged(runs), *_gaps(runs), _bounds(comparison)]
    if len({run.rate_scale for run in comparison.runs}) > 1:
        said[0] = f"At rate x{top:g}, the highest: {said[0]}"
    return said


def _judged(runs: Sequence[Named]) -> str:
    """Return which runs let the others wait, which are slow, and which are neither, in one sentence."""
    figures = [(safe_text(label), others_wait_us(run), run.measures.throughput_rps) for label, run in runs]
    known = [(label, wait, rps or 0.0) for label, wait, rps in figures if wait is not None]
    if not known:
        return f"No request had a first token: {runs[0][1].refusal or 'none was rejected'}."
    flood = largest_client(runs[0][1])
    whose = "requests" if flood is None else f"the clients beside {who(runs[0][1].names[flood])}"
    shortest = min(wait for _, wait, _ in known)
    fastest, _, most = max(known, key=lambda each: each[2])
    late = [each for each in known if each[1] > LONG * shortest and each[1] > shortest + LONG_US]
    slow = [each for each in known if each not in late and each[2] < SLOW * most]
    good = [each for each in known if each not in late and each not in slow]
    said = []
    if late:
        waits = _listed([time(wait) for _, wait, _ in late])
        said.append(f"under {_listed([label for label, _, _ in late])} {whose} wait {waits} for a first token (p99)")
    if slow:
        lost = _listed([share(1 - rps / most) for _, _, rps in slow])
        verb = "answers" if len(slow) == 1 else "answer"
        said.append(f"{_listed([label for label, _, _ in slow])} {verb} {lost} fewer requests than {fastest}")
    if good:
        rates, waits = _range([each[2] for each in good], rate), _range([each[1] for each in good], time)
        names = _listed([label for label, _, _ in good])
        if said:
            said.append(f"{names} {'does' if len(good) == 1 else 'do'} neither: {rates} requests/s, and {waits}")
        else:
            same = "" if len(good) == 1 else ", about alike"
            said.append(f"under {names} {whose} wait {waits} for a first token (p99), at {rates} requests/s{same}")
    text = "; ".join(said)
    return f"{text[0].upper() if said[0].startswith('under') else text[0]}{text[1:]}."


def _listed(names: Sequence[str]) -> str:
    """Return names as a sentence has them, the first few of many."""
    shown = [*names[:_NAMED], f"{len(names) - _NAMED} more"] if len(names) > _NAMED + 1 else [*names]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _range(values: Sequence[float], text: Callable[[float], str]) -> str:
    least, most = text(min(values)), text(max(values))
    return least if least == most else f"{least} to {most}"


def _gaps(runs: Sequence[Named]) -> list[str]:
    """Return where the gap is smallest and largest, in the one cost by which all policies are compared."""
    waited = sorted(
        ((run.common_gap.cost, label, run) for label, run in runs if run.common_gap.ahead is not None),
        key=lambda each: each[0],
    )
    if not waited:
        return ["No two clients ever waited at the same time."] if len(runs[0][1].names) > 1 else []
    (least, best, _), (most, worst, unfair) = waited[0], waited[-1]
    gap = unfair.common_gap
    assert gap.ahead is not None
    assert gap.behind is not None
    pair = (
        f"{who(unfair.names[gap.ahead])} was served {count(most)} cost units more than "
        f"{who(unfair.names[gap.behind])} while both waited"
    )
    if len(waited) == 1:
        return [f"Under {worst}, {pair}."]
    return [
        f"All policies charged alike, the gap between two waiting clients is smallest under {best} ({count(least)} "
        f"cost units); under {worst}, {pair}."
    ]


def why_over(run: Run) -> str:
    """Return what excuses a gap over its bound; nothing should not."""
    if run.unexplained:
        return "no assumption is broken: an error in fairsched"
    return f"broken: {', '.join(run.excuses)}"


def broke_a_bound(comparison: Compared) -> bool:
    """Return whether the gap of a run is over its bound."""
    return any(standing(run) == "over bound" for run in comparison.runs)


def _bounds(comparison: Compared) -> str:
    """Return whether the bounds held that were promised."""
    bounded = [(label, run) for label, run in comparison.named() if run.service_gap_bound is not None]
    if not bounded:
        return "No policy here promises a bound."
    if over := [f"{label} ({why_over(run)})" for label, run in bounded if standing(run) == "over bound"]:
        return f"The bound is BROKEN under {'; '.join(over)}."
    loose = sum(standing(run) == "not binding" for _, run in bounded)
    runs = {1: "the one run", 2: "both runs"}.get(len(bounded), f"all {len(bounded)} runs")
    text = f"The proved bound held in {runs} that {'has' if len(bounded) == 1 else 'have'} one"
    if loose == len(bounded):
        return f"{text}, but was more than any client got: nothing here could break it."
    return text + (f"; in {loose} nothing could have broken it." if loose else ".")
