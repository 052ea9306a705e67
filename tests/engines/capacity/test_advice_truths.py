"""Advice held against a server that is not the simulator: the verdict is right, and the interval holds the truth."""

from pathlib import Path

import pytest

import fairsched as fs
from tests.support.engines.log_truths import TRUTHS, asked, p99, serve, write_log

SPAN = 500.0


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("flood", "nginx"),
        ("two servers", "own"),
        ("overload", "csv"),
        ("idle", "nginx"),
        ("burst", "nginx"),
        ("long prompts", "csv"),
        ("agents", "own"),
    ],
)
def test_what_is_advised_is_right_and_its_interval_holds_the_truth(tmp_path: Path, kind: str, form: str) -> None:
    """Whatever the log leaves out (servers, queues, first tokens, tokens of some calls), the verdict is that of the
    kind of load, and where a gate is advised the harmed clients' p99 under one is in the interval; else that of those
    who would wait nevertheless is."""
    truth = TRUTHS[kind]
    found = fs.advise(
        write_log(tmp_path / f"log.{form}", serve(asked(kind, SPAN), truth.servers), form), skip_malformed=True
    )
    assert found.verdict == truth.verdict, found.paragraph
    if found.effects is None:
        return
    told = found.harmed if found.verdict == "gate" else found.effects.waiting
    names = {found.log.clients[client] for client in told}
    seen, began = found.effects.window.seen, min(call.at for call in asked(kind, SPAN))
    start, stop = (began + seen.arrival[seen.judged][i] / 1e9 for i in (0, -1))
    gated = serve(asked(kind, SPAN), truth.servers, gate=True)
    low, high = found.effects.gated(told)
    assert low <= 1e6 * p99([call for call in gated if call.client in names and start <= call.at <= stop]) <= high
    assert found.verdict != "gate" or "batch" not in names
