"""`fairsched conform`: hold a gateway to what its clients expect of it, from outside."""

import asyncio
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fairsched import __version__
from fairsched.cli.arguments import assignment, job_count, positive_int, seed, span, whole
from fairsched.cli.output import (
    folders,
    print_commands,
    print_files,
    progress_bar,
    shown,
    writable,
    write_figures,
)
from fairsched.engines.gateway.blackbox import CLIENTS, SCENARIOS, ScenarioLimits

if TYPE_CHECKING:
    from rich.console import Console

    from fairsched.engines.gateway.blackbox import CallScript, CheckedScenario, Credentials

FAILED = 1
"""Exit status where a scenario fails."""
PORT = 18001
KEYS = {client: f"sk-conform-{client}-0123456789" for client in CLIENTS}
"""The keys that clients have where none are given."""
_STYLES = {"passes": "green", "fails": "bold red", "not applicable": "dim"}


def add_conform(command: ArgumentParser) -> None:
    """Declare the command."""
    weights = ", ".join(f"{client} (weight {weight})" for client, weight in CLIENTS.items())
    command.description = (
        "Hold any OpenAI-compatible gateway, or two instances before the same servers, to scenarios: fairness, "
        "weights, starvation, identity, cancellation, streaming, ends.  Figures are counts of calls and tokens.  The "
        f"gateway knows the clients {weights}.  Exits with 1 if a scenario fails."
    )
    command.add_argument("urls", metavar="URL", nargs="+", help="the gateway's address, without /v1; or of two")
    command.add_argument(
        "--servers",
        type=job_count,
        metavar="N",
        help="serve so many mock servers, to which the gateway is pointed (default: it has servers of its own)",
    )
    command.add_argument("--host", default="127.0.0.1", help="where mock servers listen (default: %(default)s)")
    command.add_argument(
        "--port",
        type=whole("a port", 1, 65_535),
        default=PORT,
        metavar="P",
        help="of the first mock server; others follow (default: %(default)s)",
    )
    command.add_argument(
        "--at-once",
        type=positive_int,
        default=8,
        metavar="N",
        help="calls that the servers work on at a time, all together (default: %(default)s)",
    )
    command.add_argument(
        "--gap-tokens",
        type=positive_int,
        metavar="N",
        help="how far service may move from shares, in output tokens (default: twice what is in the servers)",
    )
    command.add_argument(
        "--others",
        type=positive_int,
        metavar="N",
        help="calls of a flood that may begin before one that waits (default: twice --at-once)",
    )
    command.add_argument(
        "--key",
        action="append",
        type=_key,
        default=[],
        metavar="CLIENT=KEY",
        help=f"a client's key (repeat; default: {KEYS['gold']} and so on)",
    )
    known = command.add_mutually_exclusive_group()
    known.add_argument(
        "--client-header", metavar="NAME", help="clients are named by this header, which a trusted proxy sets"
    )
    known.add_argument(
        "--tokens",
        type=Path,
        metavar="DIR",
        help="clients show tokens (JWT) of an issuer whose keys are DIR/jwks.json, which is made if it is not there",
    )
    known.add_argument(
        "--certificates",
        type=Path,
        metavar="DIR",
        help="clients show certificates of DIR/authority.pem, which is made if it is not there, as are gateway.pem and "
        "gateway.key for a gateway to show",
    )
    command.add_argument("--model", help="the model's name (default: the first that the gateway lists)")
    command.add_argument(
        "--scenario",
        action="append",
        type=_scenario,
        metavar="NAME",
        help=f"of {', '.join(SCENARIOS)} (repeat; default: all)",
    )
    command.add_argument("--seed", type=seed, default=0, metavar="S", help="of what is drawn (default: 0)")
    command.add_argument(
        "--wait",
        dest="wait_ns",
        type=span(),
        default="60s",
        metavar="TIME",
        help="for the gateway to answer, as 2min or a number of seconds (default: %(default)s)",
    )
    command.add_argument(
        "--failures",
        type=Path,
        default=Path("out", "conform"),
        metavar="DIR",
        help="the folder for scenarios that fail, to replay (default: %(default)s)",
    )
    command.add_argument("--replay", type=Path, metavar="FILE", help="send the calls of such a file again")
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.set_defaults(run=run_conform)


def _key(text: str) -> tuple[str, str]:
    client, key = assignment(text)
    if client not in CLIENTS:
        raise ArgumentTypeError(f"a client is one of {', '.join(CLIENTS)}, not {client!r}")
    return client, key


def _scenario(text: str) -> str:
    if text not in SCENARIOS:
        raise ArgumentTypeError(f"a scenario is one of {', '.join(SCENARIOS)}, not {text!r}")
    return text


def _shown(arguments: Namespace) -> "Credentials":
    """Return what clients show."""
    from fairsched.engines.gateway.blackbox import Header, Keys

    if arguments.client_header is not None:
        return Header(arguments.client_header)
    if arguments.tokens is None and arguments.certificates is None:
        return Keys(KEYS | dict(arguments.key))
    try:
        from fairsched.engines.gateway.blackbox import Certificates, Tokens
    except ImportError:
        raise ValueError("tokens and certificates need another package: pip install 'fairsched[jwt]'") from None
    if arguments.tokens is not None:
        return Tokens(arguments.tokens)
    hosts = dict.fromkeys(["localhost", "127.0.0.1", *filter(None, (urlsplit(url).hostname for url in arguments.urls))])
    return Certificates(arguments.certificates, CLIENTS, tuple(hosts))


def run_conform(arguments: Namespace) -> int:
    """Run the command; returns the exit status: 1 if a scenario fails."""
    # Only here, so that help works without the extra.
    from fairsched.engines.gateway.blackbox import Gateways, conform, read_failure, write_failure

    for url in arguments.urls:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"a URL starts with http:// or https://, not {url!r}")
        if arguments.certificates is not None and url.startswith("http://"):
            raise ValueError(f"--certificates: a certificate is shown at an https:// address, not at {url!r}")
    if len(arguments.urls) > 2:
        raise ValueError(f"one URL, or those of two instances, not {len(arguments.urls)}")
    writable(json=arguments.json)
    script: CallScript | None = None
    limits = ScenarioLimits.of(arguments.at_once, arguments.gap_tokens, arguments.others)
    if arguments.replay is not None:
        script, limits = read_failure(arguments.replay)
    else:
        folders(failures=arguments.failures)
    gateways = Gateways(tuple(url.rstrip("/") for url in arguments.urls), _shown(arguments), arguments.model)
    with progress_bar() as progress:
        found = asyncio.run(
            conform(
                gateways,
                limits,
                servers=arguments.servers or 0,
                host=arguments.host,
                port=arguments.port,
                names=tuple(arguments.scenario or SCENARIOS),
                script=script,
                seed=arguments.seed,
                wait_seconds=arguments.wait_ns / 1e9,
                said=lambda urls: print(f"mock servers: {' '.join(urls)}", file=sys.stderr, flush=True),
                progress=progress,
            )
        )
    files: dict[str, Path] = {}
    if script is None:
        for checked in found:
            if checked.verdict.result == "fails":
                files[checked.scenario.name] = arguments.failures / f"{checked.scenario.name}.json"
                write_failure(files[checked.scenario.name], checked, limits, __version__)
    document = {
        "fairsched": __version__,
        "gateways": list(gateways.urls),
        "servers": arguments.servers or 0,
        "seed": arguments.seed if script is None else script.seed,
        "limits": {"at_once": limits.at_once, "gap_tokens": limits.gap_tokens, "others": limits.others},
        "scenarios": [
            each.to_json() | ({"file": str(files[each.scenario.name])} if each.scenario.name in files else {})
            for each in found
        ],
    }
    write_figures(arguments.json, document)
    with shown(arguments.json) as console:
        _print(console, found, files, arguments)
    return FAILED if any(each.verdict.result == "fails" for each in found) else 0


def _print(console: "Console", found: "list[CheckedScenario]", files: dict[str, Path], arguments: Namespace) -> None:
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
    results: list[str] = [each.verdict.result for each in found]
    counts = [
        f"{results.count(result)} {result.replace('fails', 'fail').replace('passes', 'pass')}" for result in _STYLES
    ]
    print_lines(console, [f"Of {len(found)}: {', '.join(counts)}."])
    if files:
        print_lines(console, ["To send the calls of a failure again:"])
        again = {"--servers": arguments.servers, "--tokens": arguments.tokens, "--certificates": arguments.certificates}
        options = [text for name, value in again.items() if value is not None for text in (name, str(value))]
        first = next(iter(files.values()))
        print_commands(console, ["fairsched", "conform", *arguments.urls, *options, "--replay", str(first)])
    print_files(console, Figures=arguments.json)
