"""Thresholds of an audit: what is read is what was written, and a figure that a log cannot tell passes no threshold."""

import json
from typing import Any
from xml.etree import ElementTree

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.analysis.audit import FIGURES, Audit, audit_log, exit_status, judged, junit, read_thresholds
from fairsched.engines.analysis.audit.thresholds import Judgement
from fairsched.engines.analysis.outcomes import Summary
from tests.support.access_logs import Line, write

FLOOD = [Line("flood", 1_000 * k, 100, 800, 50, 20) for k in range(30)]
SMALL = [Line("small", 0, 20_000, 100, 100, 50), Line("small", 40_000, 20, 100, 100, 50, failed=True)]
SILENT = {"start_ms": 0, "latency_ms": 900, "prompt_tokens": 1, "output_tokens": 5}

TEXTS = st.text(st.characters(exclude_characters='"', exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12)
TIMES = {"": 1e6, "s": 1e6, "ms": 1e3, "us": 1.0, "m": 60e6}


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """An audit in which one client waits twenty seconds, and one call of thirty-two fails."""
    return audit_log(write(tmp_path_factory.mktemp("log") / "access.jsonl", [*FLOOD, *SMALL]))


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """An audit of a log without any first token, in which answers took from 0.9 to 20 s."""
    path = tmp_path_factory.mktemp("log") / "access.jsonl"
    rows = [SILENT | {"client": "a"}, SILENT | {"client": "b", "latency_ms": 20_000}]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return audit_log(path)


def one(audit: Audit, text: str) -> Judgement:
    """The verdict on a single threshold."""
    (found,) = judged([audit], read_thresholds(text))
    return found


@given(
    st.lists(
        st.tuples(
            st.none() | TEXTS,
            st.sampled_from([name for name, (kind, _) in FIGURES.items() if kind == "time"]),
            st.sampled_from([">", ">=", "<", "<="]),
            st.integers(0, 10**5),
            st.sampled_from(list(TIMES)),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_what_is_written_is_read(given_: list[tuple[Any, ...]]) -> None:
    """Any number of thresholds with any name in quotes, and a time in any unit."""
    texts = [
        (f'"{client}".' if client is not None else "") + f"{figure}{comparison}{value}{unit}"
        for client, figure, comparison, value, unit in given_
    ]
    found = read_thresholds(", ".join(texts))
    assert [each.text for each in found] == texts
    assert [(each.client, each.figure, each.comparison) for each in found] == [row[:3] for row in given_]
    assert [each.limit for each in found] == [value * TIMES[unit] for *_, value, unit in given_]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "as p99_wait>5s; found nothing"),
        ("starved", "as p99_wait>5s; found starved"),
        ("starved=0", "as p99_wait>5s; found starved=0"),
        ("starved>0 p99_wait>5", "as p99_wait>5s; found starved>0 p99_wait>5"),
        ("starved>0,p99_wit>5s", "unknown figure 'p99_wit'; did you mean p99_wait"),
        ("p99_wait>5 parsecs", "as p99_wait>5s"),
        ("p99_wait>5x", "p99_wait>5x: expected a length of time as 5s"),
        ("gap>5s", "gap>5s: expected a number as 5 or 10k, found 5s"),
        pytest.param("requests>" + "9" * 400, "expected a number up to 10^12", id="huge"),
        ("p99_wait>5%", "expected a length of time"),
        ("free.gap>5", "gap is of all clients together"),
    ],
)
def test_a_threshold_that_is_none_is_refused(text: str, said: str) -> None:
    """In one line that names it."""
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        read_thresholds(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "verdict", "said"),
    [
        ("starved>0", "failed", "starved is 1, more than 0"),
        ("starved>1", "ok", "starved is 1, not more than 1"),
        ("flood.starved>0", "ok", "starved of flood is 0"),
        ("starved_time>=20s", "failed", "starved_time is 20 s, at least 20 s"),
        ("p99_wait>5s", "failed", "p99_wait is 20 s, more than 5 s"),
        ("flood.p99_wait>5", "ok", "p99_wait of flood is 100 ms, not more than 5 s"),
        ("p50_latency<1min", "failed", "p50_latency is 900 ms, less than 60 s"),
        ("rejected>3%", "failed", "rejected is 3.1% (1 of 32), more than 3.0%"),
        ("rejected>4%", "ok", "not more than 4.0%"),
        ("small.rejected>=1", "failed", "rejected of small is 1, at least 1"),
        ("requests<1Ki", "failed", "requests is 32, less than 1,024"),
        ("requests<1k", "failed", "requests is 32, less than 1,000"),
        ("bound_violations>0", "unknown", "nothing was promised"),
        ("gained>1k", "ok", "gained is 200"),
    ],
)
def test_figures_are_held_to_their_limits(audit: Audit, text: str, verdict: str, said: str) -> None:
    """Each with a sentence of figure and limit."""
    found = one(audit, text)
    assert (found.verdict, exit_status([found])) == (verdict, {"ok": 0, "failed": 1, "unknown": 2}[verdict])
    assert said in found.said
    assert found.to_json()["verdict"] == verdict


def test_a_client_that_is_not_there_is_refused(audit: Audit) -> None:
    """With the name that was meant."""
    with pytest.raises(ValueError, match="unknown client 'smal'; did you mean small"):
        one(audit, "smal.p99_wait>1")


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("p99_wait>5s", "unknown"),
        ("p99_ttft>5s", "unknown"),
        ("starved>0", "unknown"),
        ("a.starved>0", "ok"),
        ("b.starved>0", "unknown"),
        ("b.starved_time>19s", "unknown"),
        ("b.starved_time>20s", "ok"),
        ("gap>1M", "unknown"),
        ("p99_latency>5s", "failed"),
        ("errors>0", "ok"),
    ],
)
def test_what_a_log_cannot_tell_passes_no_threshold(silent: Audit, text: str, verdict: str) -> None:
    """Without first tokens nothing is known of waits: the exit status is not 0, and a known figure is judged."""
    found = one(silent, text)
    assert found.verdict == verdict
    assert (exit_status([found]) == 0) == (verdict == "ok")


def test_a_log_that_tells_a_part_is_judged_where_that_is_enough(audit: Audit) -> None:
    """Where some calls are kept out, a threshold is judged if whatever they waited would not change the verdict."""
    total = audit.total
    assert total.wait_range_us is None
    low, high = attrs.evolve(total.wait_us, p99=2e6), attrs.evolve(total.wait_us, p99=9e6)
    part = attrs.evolve(total, kept_out=1, untold=1, wait_range_us=_range(low, high), starved=0)
    found = attrs.evolve(audit, total=part)
    assert [one(found, f"p99_wait>{limit}s").verdict for limit in (1, 2, 5, 9)] == [
        "failed",
        "unknown",
        "unknown",
        "ok",
    ]
    assert [one(found, f"p99_wait<{limit}s").verdict for limit in (1, 5, 10)] == ["ok", "unknown", "failed"]
    assert [one(found, text).verdict for text in ("p99_wait>=2s", "p99_wait<=2s")] == ["failed", "unknown"]
    inferred = attrs.evolve(part, kept_out=0, untold=0)
    said = one(attrs.evolve(audit, total=inferred), "p99_wait>25s")
    assert (said.verdict, "between 2 s and 9 s: first tokens are inferred" in said.said) == ("ok", True)


def _range(low: Summary, high: Summary) -> Any:
    from fairsched.engines.analysis.audit.findings import Range

    return Range(low, high)


def test_junit_has_a_case_for_each_threshold(audit: Audit) -> None:
    """A failure for what is beyond its limit, an error for what cannot be judged; whatever a client is named."""
    thresholds = read_thresholds('starved>0,errors>50%,bound_violations>0,"a]]&\x07".starved>0')
    known = judged([audit], thresholds[:3])
    odd = attrs.evolve(known[0], threshold=thresholds[3])
    document = ElementTree.fromstring(junit([*known, odd], "a.jsonl\x00"))
    cases = document.findall("./testsuite/testcase")
    assert [[child.tag for child in case] for case in cases] == [["failure"], ["system-out"], ["error"], ["failure"]]
    assert document.attrib == {"tests": "4", "failures": "2", "errors": "1"}
    assert cases[0].attrib["name"] == "starved>0"
    assert exit_status(known) == 1
