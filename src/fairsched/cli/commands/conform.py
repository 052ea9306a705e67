"""`fairsched conform`: hold a gateway to what its clients expect of it, from outside."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter

from fairsched import __version__
from fairsched.cli import output, values
from fairsched.cli.values import Count, File, Folder, Json, PositiveInt, Report, Time
from fairsched.engines.conformance import CLIENTS, SCENARIOS, ScenarioLimits
from fairsched.model import installing

if TYPE_CHECKING:
    from rich.console import Console

    from fairsched.engines.analysis.report import Page
    from fairsched.engines.conformance import CallScript, CheckedScenario, Credentials

FAILED = 1
"""Exit status where a scenario fails."""
PORT = 18001
FAILURES = Path("out", "conform")
"""The folder for scenarios that fail."""
KEYS = {client: f"sk-conform-{client}-0123456789" for client in CLIENTS}
"""The keys that clients have where none are given."""
_STYLES = {"passes": "green", "fails": "bold red", "not applicable": "dim"}


def _key(text: str) -> tuple[str, str]:
    client, key = values.assignment(text)
    if client not in CLIENTS:
        raise ValueError(f"a client is one of {', '.join(CLIENTS)}, not {client!r}")
    return client, key


def _scenario(text: str) -> str:
    if text not in SCENARIOS:
        raise ValueError(f"a scenario is one of {', '.join(SCENARIOS)}, not {text!r}")
    return text


def conform(
    *urls: Annotated[str, Parameter(metavar="URL")],
    servers: Count | None = None,
    listen: Annotated[tuple[str, int], values.read(values.address, "HOST:PORT", show_default=values.joined(":"))] = (
        "127.0.0.1",
        PORT,
    ),
    at_once: PositiveInt = 8,
    gap_tokens: PositiveInt | None = None,
    others: PositiveInt | None = None,
    key: Annotated[tuple[tuple[str, str], ...], values.each(_key, "CLIENT=KEY")] = (),
    client_header: Annotated[str | None, Parameter(metavar="NAME")] = None,
    tokens: Folder | None = None,
    certificates: Folder | None = None,
    model: str | None = None,
    seed: values.Seed = 0,
    scenario: Annotated[tuple[str, ...], values.each(_scenario, "NAME")] = (),
    wait: Time | None = None,
    replay: File | None = None,
    json: Json = None,
    report: Report = None,
) -> int:
    """Hold any OpenAI-compatible gateway, or two instances before the same servers, to scenarios: fairness, weights,
    starvation, identity, cancellation, streaming, ends.  Figures are counts of calls and tokens.  The gateway knows the
    clients gold (weight 4), bronze and polite (1 each).  Exits with 1 if a scenario fails.

    Args:
        urls: the gateway's address, without /v1; or of two
        servers: serve so many mock servers, to which the gateway is pointed (default: it has servers of its own)
        listen: where the first mock server listens; others follow
        at_once: calls that the servers work on at a time, all together
        gap_tokens: how far service may move from shares, in output tokens (default: twice what is in the servers)
        others: calls of a flood that may begin before one that waits (default: twice --at-once)
        key: a client's key (repeat; default: sk-conform-gold-0123456789 and so on)
        client_header: clients are named by this header, which a trusted proxy sets
        tokens: clients show tokens (JWT) of an issuer whose keys are DIR/jwks.json, which is made if it is not there
        certificates: clients show certificates of DIR/authority.pem, which is made if it is not there, as are
            gateway.pem and gateway.key for a gateway to show
        model: the model's name (default: the first that the gateway lists)
        seed: draws the calls
        scenario: one of the scenarios (repeat; default: all); those that fail are written to out/conform, to replay
        wait: for a gateway that is still to be started (default: it listens, and answers within a minute)
        replay: send the calls of such a file again
    """
    # Only here, so that help works without the extra.
    from fairsched.engines.conformance import Gateways, read_failure, write_failure
    from fairsched.engines.conformance import conform as conformed

    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"a URL starts with http:// or https://, not {url!r}")
        if certificates is not None and url.startswith("http://"):
            raise ValueError(f"--certificates: a certificate is shown at an https:// address, not at {url!r}")
    if len(urls) > 2:
        raise ValueError(f"one URL, or those of two instances, not {len(urls)}")
    output.writable(json=json)
    output.folders(report=report)
    script: CallScript | None = None
    limits = ScenarioLimits.of(at_once, gap_tokens, others)
    if replay is not None:
        script, limits = read_failure(replay)
    else:
        output.folders(failures=FAILURES)
    gateways = Gateways(
        tuple(url.rstrip("/") for url in urls), _shown(urls, key, client_header, tokens, certificates), model
    )
    with output.progress_bar() as progress:
        found = asyncio.run(
            conformed(
                gateways,
                limits,
                servers=servers or 0,
                host=listen[0],
                port=listen[1],
                names=tuple(scenario or SCENARIOS),
                script=script,
                seed=seed,
                wait_seconds=None if wait is None else wait / 1e9,
                said=lambda urls: print(f"mock servers: {' '.join(urls)}", file=sys.stderr, flush=True),
                progress=progress,
            )
        )
    files: dict[str, Path] = {}
    if script is None:
        for checked in found:
            if checked.verdict.result == "fails":
                files[checked.scenario.name] = FAILURES / f"{checked.scenario.name}.json"
                write_failure(files[checked.scenario.name], checked, limits, __version__)
    document = {
        "fairsched": __version__,
        "gateways": list(gateways.urls),
        "servers": servers or 0,
        "seed": seed if script is None else script.seed,
        "limits": {"at_once": limits.at_once, "gap_tokens": limits.gap_tokens, "others": limits.others},
        "scenarios": [
            each.to_json() | ({"file": str(files[each.scenario.name])} if each.scenario.name in files else {})
            for each in found
        ],
    }
    output.write_figures(json, document)
    page = None if report is None else _page(found, limits).write(report)
    given = {"--servers": servers, "--tokens": tokens, "--certificates": certificates}
    again = [text for name, value in given.items() if value is not None for text in (name, str(value))]
    with output.shown(json) as console:
        _print(console, found, files, [*urls, *again])
        output.print_files(console, Figures=json, Report=page)
    return FAILED if any(each.verdict.result == "fails" for each in found) else 0


def _shown(
    urls: tuple[str, ...],
    key: tuple[tuple[str, str], ...],
    client_header: str | None,
    tokens: Path | None,
    certificates: Path | None,
) -> "Credentials":
    """Return what clients show."""
    from fairsched.engines.conformance import Header, Keys

    if sum(each is not None for each in (client_header, tokens, certificates)) > 1:
        raise ValueError("clients are named by one of --client-header, --tokens and --certificates")
    if client_header is not None:
        return Header(client_header)
    if tokens is None and certificates is None:
        return Keys(KEYS | dict(key))
    try:
        from fairsched.engines.conformance import Certificates, Tokens
    except ImportError:
        raise ValueError(f"tokens and certificates need another package: {installing('jwt')}") from None
    if tokens is not None:
        return Tokens(tokens)
    hosts = dict.fromkeys(["localhost", "127.0.0.1", *filter(None, (urlsplit(url).hostname for url in urls))])
    assert certificates is not None
    return Certificates(certificates, CLIENTS, tuple(hosts))


def _counted(found: "list[CheckedScenario]") -> str:
    results: list[str] = [each.verdict.result for each in found]
    counts = [
        f"{results.count(result)} {result.replace('fails', 'fail').replace('passes', 'pass')}" for result in _STYLES
    ]
    return f"Of {len(found)}: {', '.join(counts)}."


def _page(found: "list[CheckedScenario]", limits: ScenarioLimits) -> "Page":
    """Return the page that plays what was tried, failures first."""
    from fairsched.engines.analysis.report import Page

    failed = [each for each in found if each.verdict.result == "fails"]
    tried = sorted((each for each in found if each.record is not None), key=lambda each: each not in failed)
    return Page(
        title="A gateway held to scenarios",
        verdict=[_counted(found), *(f"It does not hold that {each.scenario.claim}." for each in failed)],
        parts=[each.played(limits) for each in tried],
        tone="bad" if failed else "good",
        command=output.command_line(),
    )


def _print(console: "Console", found: "list[CheckedScenario]", files: dict[str, Path], again: list[str]) -> None:
    from fairsched.engines.analysis import Column, print_lines, print_small, print_table, safe_text

    columns = [
        Column("Scenario", kind="word"),
        Column("Result", kind="word"),
        Column("Measured", 1),
        Column("Limit", 2),
        Column("Claim", 3, "word"),
    ]
    rows = [
        (
            each.scenario.name,
            (each.verdict.result, _STYLES[each.verdict.result]),
            each.verdict.measured or "-",
            each.verdict.limit or "-",
            each.scenario.claim,
        )
        for each in found
    ]
    print_table(console, columns, rows)
    notes = []
    for each in found:
        reason = safe_text(each.verdict.reason, None) if each.verdict.reason else ""
        if each.verdict.result == "fails":
            reason = f"it does not hold that {each.scenario.claim}" + (f" ({reason})" if reason else "")
        if reason:
            notes.append(f"{each.scenario.name}: {reason}")
    print_small(console, notes)
    print_lines(console, [_counted(found)])
    if files:
        print_lines(console, ["To send the calls of a failure again:"])
        first = next(iter(files.values()))
        output.print_commands(console, ["fairsched", "conform", *again, "--replay", str(first)])
