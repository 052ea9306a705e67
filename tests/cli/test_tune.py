"""`fairsched tune`: an answer that is true of its runs, and one clear line for what is wrong."""

from pathlib import Path

import pytest

from fairsched.cli import main
from tests.cli.conftest import Figures, Refused

SMALL = ["demo", "--limit", "150", "--quanta", "256-16384"]


def test_tune_says_which_quantum_and_cap(figures: Figures, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The choice keeps the target as measured, with its proof, what it costs, every point, and the plot."""
    said = figures("tune", *SMALL, "--max-wait", "6s", "--report", str(tmp_path))
    points = {(point["quantum"], point["in_flight_cap_tokens"]): point for point in said["points"]}
    chosen = points[said["chosen"]["quantum"], said["chosen"]["in_flight_cap_tokens"]]
    assert chosen["wait_us"]["p99"] <= said["max_wait_us"] == 6e6
    kept = [point for point in points.values() if point["wait_us"]["p99"] <= 6e6]
    assert chosen["throughput_rps"] >= 0.99 * max(point["throughput_rps"] for point in kept)
    shown = capsys.readouterr().out
    assert f"quantum {said['chosen']['quantum']}, in_flight_cap_tokens" in shown
    assert f"is admitted before {chosen['wait_bound_cost']:,} cost units are charged" in shown
    assert "<svg" in (tmp_path / "index.html").read_text()


def test_without_a_limit_it_says_what_fits_the_prompts(figures: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    """Quanta of both policies with their reasons, from the prompts alone; they can be set as printed."""
    said = figures("tune", "long-context-qa", "--limit", "100")
    prefix = said["traffic"]["prefix_tokens"]
    assert said["params"]["quantum"] == 2 * prefix
    assert said["router_params"]["quantum"] == 8 * prefix
    shown = capsys.readouterr().out.replace("\n", " ")
    assert f"quantum={2 * prefix},in_flight_cap_tokens={said['params']['in_flight_cap_tokens']}" in shown
    assert f"Prefix: {prefix:,} tokens" in shown
    assert figures("tune", "azure-chat:requests=50")["params"] == {"quantum": 4096}


def test_a_target_that_nothing_keeps_gets_the_nearest(figures: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1, and the configuration that comes closest."""
    said = figures("tune", *SMALL, "--max-wait", "1ms", status=1)
    assert said["chosen"] is None
    shortest = min(point["wait_us"]["p99"] for point in said["points"])
    nearest = [point for point in said["points"] if point["quantum"] == said["nearest"]["quantum"]]
    assert shortest in [point["wait_us"]["p99"] for point in nearest]
    assert "nothing keeps a wait of 1 ms" in capsys.readouterr().out


def test_what_is_proved_is_required(figures: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    """With `--require proved` the theorem's time at the stated rate is within the target, too."""
    said = figures("tune", *SMALL, "--require", "proved", "--rate", "10000", "--max-wait", "100s")
    (chosen,) = (
        point
        for point in said["points"]
        if {name: point[name] for name in ("quantum", "in_flight_cap_tokens")} == said["chosen"]
    )
    assert chosen["wait_bound_us"] == chosen["wait_bound_cost"] / 10_000 * 1e6 <= 100e6
    assert main(["tune", *SMALL, "--require", "proved", "--rate", "1", "--max-wait", "100s"]) == 1
    assert "No wait of 100 s is proved in any; the shortest is" in capsys.readouterr().out


def test_a_first_token_in_time_is_that_of_the_policy_that_is_named(
    figures: Figures, capsys: pytest.CaptureFixture[str]
) -> None:
    """`policies` promises the same of the configuration that `tune` names; where nothing keeps the target the least is
    said, with the limit to lower and exit status 1."""
    said = figures("tune", *SMALL, "--first-token", "1min", "--latency-model", "llama-3.1-8b-a100")
    chosen, demand = said["chosen"], said["demand"]
    assert chosen["first_token_ns"] <= said["target_ns"] == 60 * 10**9
    assert f"{chosen['basis']}: {chosen['policy']}" in capsys.readouterr().out
    longest = ["--prompt-tokens-max", str(demand["prompt_tokens"]), "--max-output-tokens", str(demand["output_tokens"])]
    given = ["--clients", str(demand["clients"]), "--latency-model", "llama-3.1-8b-a100", *longest]
    settings = [word for name, value in chosen["params"] for word in ("--set", f"{name}={value}")]
    assert figures("policies", chosen["policy"], *settings, *given)[KEYS[chosen["basis"]]] == chosen["first_token_ns"]
    said = figures("tune", *SMALL, "--first-token", "1ms", status=1)
    assert said["chosen"] is None
    shown = capsys.readouterr().out.replace("\n", " ")
    least = min(each["first_token_ns"] for each in said["promised"])
    assert f"No policy promises it. The least is {least / 1e9:,.3f} s" in shown
    assert f"Lower the number of {said['lowered'][0]}" in shown


KEYS = {
    "whatever comes": "first_token_ns",
    "with nothing in flight": "first_token_alone_ns",
    "under limits of arrivals": "first_token_limited_ns",
}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--first-token", "5s", "--max-wait", "5s"], "--first-token chooses the policy and what is set: leave out"),
        (["--require", "proved"], "--report and --require are about waits: give --max-wait"),
        (["--policy", "vtc"], "has no quantum and in-flight cap: choose one with a deficit gate"),
        (["--max-wait", "5s", "--policy", "vtc"], "has no quantum and in-flight cap: choose one with a deficit gate"),
        (["--max-wait", "5s", "--quanta", "9-3"], "expected LEAST-MOST"),
        (["--max-wait", "5s", "--quanta", "5-7"], "no power of two"),
        (["--max-wait", "5s", "--set", "quantum=5"], "a parameter that is not tuned"),
        (["--kv-capacity-tokens", "100"], "every request needs more than the 100 KV tokens"),
        (["--max-wait", "5s", "--kv-capacity-tokens", "100"], "every request needs more than the 100 KV tokens"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], said: str, refused: Refused) -> None:
    """In one line, with exit status 2."""
    assert said in refused("tune", "demo", *arguments)


@pytest.mark.parametrize("policy", ["fcfs+deficit", "fcfs+bands"])
def test_promise_says_what_the_parts_add_up_to(
    policy: str, figures: Figures, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every figure of a wait, of its parts, and a shorter one with a smaller quantum; or that no time is promised."""
    arguments = ["policies", policy, "--prompt-tokens-max", "2048", "--max-output-tokens", "256"]
    said = figures(*arguments)
    shown = capsys.readouterr().out.replace("\n", " ")
    assert f"{said['gap_bound']:,} cost units" in shown
    if policy == "fcfs+bands":
        assert said["wait_ns"] is None
        assert "nothing is promised in seconds, since turns inside a band are held in drawn worlds" in shown
        return
    assert sum(said["parts_ns"].values()) == said["completion_ns"] > said["first_token_ns"] > said["wait_ns"] > 0
    assert f"Let in after at most {said['wait_ns'] / 1e9:,.3f} s" in shown
    assert figures(*arguments, "--set", "quantum=64")["wait_ns"] < said["wait_ns"]


def test_without_limits_seconds_are_said_of_usual_requests(
    figures: Figures, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request as long as the memory takes days at worst, which helps nobody: seconds are about shorter ones, whose
    lengths stand before them, and the bound of the gap is about all."""
    said = figures("policies", "dlpm")
    shown = capsys.readouterr().out.replace("\n", " ")
    assert "Where prompts have at most 8,192 tokens and outputs at most 1,024" in shown
    assert (said["wait_prompt_tokens_max"], said["wait_max_output_tokens"]) == (8_192, 1_024)
    usual = figures("policies", "dlpm", "--prompt-tokens-max", "8192", "--max-output-tokens", "1024")
    assert usual == said
    assert said["completion_ns"] < 86_400 * 10**9
