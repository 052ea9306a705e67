"""The first sentences of a comparison's report: which policy is fairest here and at what cost, which client gains and
which pays, and whether bounds held."""

from collections.abc import Sequence

from fairsched.engines.analysis.figures import Compared, count, digits, rate, share, standing, time, who
from fairsched.engines.analysis.metrics import Run

SAME = 0.01
"""Gaps and throughputs that differ by less than this share are told as equal."""
Named = tuple[str, Run]


def verdict(comparison: Compared) -> list[str]:
    """Return the answer in sentences, the most important first.

    The fairest run has the smallest common gap: the only one in which all policies are charged alike.  Of several
    rates the highest counts, where policies differ most.
    """
    if not comparison.runs:
        return ["No run was completed."]
    top = max(run.rate_scale for run in comparison.runs)
    runs = [(label, run) for label, run in comparison.named() if run.rate_scale == top]
    said = _fairness(runs)
    if len({run.rate_scale for run in comparison.runs}) > 1:
        said[0] = f"At rate x{top:g}, the highest: {said[0]}"
    return [*said, _bounds(comparison)]


def broke_a_bound(comparison: Compared) -> bool:
    """Return whether the gap of a run is over its bound."""
    return any(standing(run) == "over bound" for run in comparison.runs)


def _fairness(runs: Sequence[Named]) -> list[str]:
    waited = [(label, run) for label, run in runs if run.common_gap.ahead is not None]
    if not waited:
        alone = "there is one client" if len(runs[0][1].names) < 2 else "no two clients ever waited at the same time"
        return [f"Nothing to be fair about: {alone}. {_fastest(runs)}"]
    ranked = sorted(waited, key=lambda row: (row[1].common_gap.cost, -(row[1].measures.throughput_rps or 0)))
    (best, fair), (worst, unfair) = ranked[0], ranked[-1]
    least, most = fair.common_gap.cost, unfair.common_gap.cost
    if len(ranked) == 1:
        return [f"Under {best}, {_pair(fair)}.", *_longest(fair)]
    if most - least <= SAME * most:
        return [
            f"The {len(ranked)} runs are equally fair: under each, one client received about {count(most)} cost units "
            f"more than another that waited, too. {_fastest(runs)}"
        ]
    times = f"{digits(most / least)} times as much" if least else "a gap where there is none"
    return [
        f"{best} is the fairest here{_cost(best, fair, runs)}: the largest gap between two waiting clients, all "
        f"policies charged alike, is {count(least)} cost units. Under {worst} it is {count(most)}, {times}.",
        f"Under {worst}, {_pair(unfair)}.",
        *_moved(best, fair, worst, unfair),
    ]


def _pair(run: Run) -> str:
    """Who received how much more than whom, in the cost by which all policies are compared."""
    gap = run.common_gap
    assert gap.ahead is not None
    assert gap.behind is not None
    ahead, behind = who(run.names[gap.ahead]), who(run.names[gap.behind])
    return f"{ahead} received {count(gap.cost)} cost units more than {behind} while both waited"


def _cost(label: str, run: Run, runs: Sequence[Named]) -> str:
    """What the fairest run costs in throughput against the run with the most."""
    rated = [(other.measures.throughput_rps or 0.0, name) for name, other in runs]
    most, name = max(rated)
    mine = run.measures.throughput_rps or 0.0
    if not most or most - mine <= SAME * most:
        return f", at no cost in throughput ({rate(mine)} requests/s)"
    return (
        f", and costs {share(1 - mine / most)} of the throughput of {name} ({rate(mine)} for {rate(most)} requests/s)"
    )


def _moved(best: str, fair: Run, worst: str, unfair: Run) -> list[str]:
    """The client whose waits shrink most between two runs, and the one whose waits grow most."""
    changes = []
    for name in fair.names:
        before, after = (run.clients[name].ttft_us.p99 for run in (unfair, fair))
        if before is not None and after is not None:
            changes.append((after - before, name, before, after))
    if not changes:
        return []
    gains, pays = min(changes), max(changes)
    told = [
        f"{who(name)} {verb}: {time(before)} under {worst}, {time(after)} under {best}"
        for (change, name, before, after), verb, sign in ((gains, "gains", -1), (pays, "pays", 1))
        if change * sign > SAME * max(before, after)
    ]
    return [f"Time to first token, p99: {'; '.join(told)}."] if told else []


def _longest(run: Run) -> list[str]:
    """The client that waits longest."""
    waits = [(found.ttft_us.p99, name) for name, found in run.clients.items() if found.ttft_us.p99 is not None]
    if len(waits) < 2:
        return []
    (long, last), (short, first) = max(waits), min(waits)
    return [f"{who(last)} waits longest for a first token (p99 {time(long)}), {who(first)} shortest ({time(short)})."]


def _fastest(runs: Sequence[Named]) -> str:
    rated = [(run.measures.throughput_rps or 0.0, label) for label, run in runs]
    most, label = max(rated)
    return f"The most throughput has {label} ({rate(most)} requests/s)."


def why_over(run: Run) -> str:
    """What excuses a gap over its bound; nothing should not."""
    if run.unexplained:
        return "no assumption is broken: an error in fairsched"
    return f"broken: {', '.join(run.excuses)}"


def _bounds(comparison: Compared) -> str:
    """Whether the bounds held that were promised."""
    bounded = [(label, standing(run)) for label, run in comparison.named() if run.service_gap_bound is not None]
    if not bounded:
        return "No policy here promises a bound."
    over = [f"{label} ({why_over(run)})" for label, run in comparison.named() if standing(run) == "over bound"]
    loose = sum(where == "not binding" for _, where in bounded)
    if over:
        return f"The bound is BROKEN under {'; '.join(over)}."
    runs = {1: "the one run", 2: "both runs"}.get(len(bounded), f"all {len(bounded)} runs")
    text = f"The proved bound held in {runs} that {'has' if len(bounded) == 1 else 'have'} one"
    if loose == len(bounded):
        return f"{text}, but was more than any client got: nothing here could break it."
    return text + (f"; in {loose} nothing could have broken it." if loose else ".")
