"""What servers say that they computed is held against what calls there were charged."""

from pathlib import Path

import attrs
import pytest

from fairsched.engines.gateway.servers.fleet import SPAN_NS, ComputedTokens, computed_in
from fairsched.engines.gateway.window.estimates import PromptBounds
from tests.support.attacks import virtual
from tests.support.attacks.floods import USAGE, beside, chat, loops
from tests.support.attacks.table import ATTACKS
from tests.support.attacks.virtual import Played

VLLM = b"""# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.2345e+04
vllm:prompt_tokens_total{engine="1",model_name="m"} 5.0
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 50.0
"""
SGLANG = b'sglang:prompt_tokens_total{model_name="m"} 12300.0\nsglang:generation_tokens_total{model_name="m"} 100.0\n'


@pytest.mark.parametrize("said", [VLLM, SGLANG])
def test_what_servers_count_is_read(said: bytes) -> None:
    """Prompts and outputs, of all replicas together."""
    assert computed_in(said) == 12400
    assert computed_in(b"vllm:num_requests_running 3.0\n") is None


def test_more_than_was_charged_is_shown_a_span_at_a_time() -> None:
    """An eighth and what is in flight at either end are tolerated; a count that begins anew is no difference."""
    compared, beyond = ComputedTokens(), []
    for span, (said, charged, in_flight) in enumerate(
        [(1000, 0, 50), (1950, 800, 0), (2900, 1600, 10), (7, 2400, 0), (1000, 2401, 0)]
    ):
        compared.tell(said + 1, charged, 0, span * SPAN_NS - 1)
        beyond.append(compared.tell(said, charged, in_flight, span * SPAN_NS))
    assert beyond == [0, 0, 40, 0, 992]
    assert (compared.computed, compared.charged, compared.uncharged) == (993, 1, 1032)


def dense(folder: Path) -> Played:
    """Two clients of equal weights, and prompts of 4,000 tokens in as many bytes; one leaves at each first token."""
    body = chat(f"[prompt 4000] [tokens 8] {'9' * 3900}", 8, **USAGE)
    flood = beside(loops(8, body, until=b'"content": "x'), loops(8, body, keys=("sk-f1",)))
    attack = attrs.evolve(ATTACKS[0], flood=flood, slots=2, window_tokens=12_000, polite_at_once=1)
    return virtual.play(attack, seconds=66.0, folder=folder)


@pytest.mark.parametrize("hides", [False, True], ids=["charged", "charged by bytes"])
def test_dense_prompts_that_are_left_are_charged_or_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hides: bool
) -> None:
    """A caller that leaves at the first token has no more computed than one that reads to the end.  Where its prompts
    are charged by their bytes, as before, it has, and status, log and metrics show that more was computed than
    charged."""
    monkeypatch.setattr(virtual, "MockServer", virtual.TellingServer)
    if hides:
        monkeypatch.setattr(PromptBounds, "of", lambda self, client, most: -(-most // 4))
    run = dense(tmp_path)
    left, read = (run.status["clients"][name]["requests"] for name in ("f0", "f1"))
    (server,) = run.status["servers"].values()
    assert (left > 2 * read) == hides
    assert (server["uncharged_tokens"] > 10_000) == hides
    assert ("tokens more than calls there were charged" in caplog.text) == hides
    if not hides:
        assert server["uncharged_tokens"] == 0
        assert left <= 1.1 * read
