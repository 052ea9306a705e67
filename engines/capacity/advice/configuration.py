"""Configurations that do what is advised: of the gateway, and of the scheduler inside vLLM.

Both are complete and pass their checks as they are.  What only the operator knows (keys, and addresses that are not in
the log) stands in as a placeholder that a comment names; what the log does not tell is said as a warning.
"""

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import numpy as np

from fairsched.engines.calibration.from_log import SEATS, UNLIMITED
from fairsched.engines.capacity.advice.advice import Advice
from fairsched.engines.capacity.advice.effects import QUANTUM
from fairsched.engines.files import make_folder, write_whole
from fairsched.engines.logs.access import UNKNOWN
from fairsched.model.pricing import CAPACITY_TOKENS_MAX
from fairsched.model.request import Client
from fairsched.policies.guarantees import WindowTerms, window_limits
from fairsched.policies.registry import local_policy, with_parameters

CLIENTS_MAX = 64
"""So many clients are written, those with the most service; others are added in the same way."""
KNOWN_MIN = 0.9
"""The log must tell of such a share of the requests when their wait was over, for windows to be known."""
LARGEST = 8
"""A window for which nothing better is known holds so many of the largest request."""
_PLAIN = re.compile(r"https?://[A-Za-z0-9._:/\[\]-]+")


def gateway_toml(advice: Advice) -> str:
    """Return a `gateway.toml` for the servers of the log."""
    windows = Windows.of(advice)
    workers = windows.servers
    names = advice.log.workers if len(advice.log.workers) == workers else ()
    lines = [
        "# Written by `fairsched advise`. Fill in the addresses and the keys, then:",
        "#   fairsched gateway gateway.toml --check",
        "#   fairsched gateway gateway.toml --log calls.jsonl",
        'listen = "127.0.0.1:8080"',
        f"policy = {json.dumps(advice.policy)}",
        f"quantum = {QUANTUM}",
        "",
        *(f"# WARNING: {warning}" for warning in windows.warnings),
    ]
    if len(names) < 2 and advice.fit is not None:
        lines += [
            f"# The log does not name several servers; {workers} of them fitted. With another number, keep the sums:",
            f"# {workers * windows.tokens:,} tokens and {workers * windows.requests:,} requests in all.",
        ]
    for i in range(workers):
        name = names[i] if names else ""
        url = _url(name)
        lines += [
            "[[server]]" + (f"  # {_comment(name)} in the log" if name else ""),
            f"url = {json.dumps(url)}" if url else f'url = "http://SERVER-{i + 1}:8000"  # fill in',
            f"window_tokens = {windows.tokens}  # {windows.why_tokens}",
            f"window_requests = {windows.requests}  # {windows.why_requests}",
            "",
        ]
    lines.append("# Fill in a key of each client: `fairsched gateway --hash-key` prints its line.")
    for i, (name, weight) in enumerate(_clients(advice)):
        lines += [f"[client.{_key(name)}]", f'keys = ["sha256:{i + 1:064x}"]  # fill in']
        lines += [f"weight = {weight}"] if weight != 1 else []
    hidden = len(advice.log.clients) - CLIENTS_MAX
    if hidden > 0:
        lines += ["", f"# {hidden:,} clients with less service are left out; add them in the same way, or take"]
        lines += ['# unknown_clients = "own" at the top.']
    return "\n".join(lines) + "\n"


def vllm_toml(advice: Advice) -> str:
    """Return the settings of the scheduler inside vLLM, as the file that `FAIRSCHED_VLLM_CONFIG` names."""
    weights = {name: weight for name, weight in _clients(advice) if weight != 1}
    lines = [
        "# Written by `fairsched advise`. To use it:",
        "#   FAIRSCHED_VLLM_CONFIG=vllm.toml vllm serve MODEL "
        "--scheduler-cls fairsched.integrations.vllm.FairScheduler",
        "# A request names its client in vllm_xargs, or the gateway does.",
        f"policy = {json.dumps(advice.policy)}",
    ]
    if weights:
        lines += ["", "[clients]", *(f"{_key(name)} = {weight}" for name, weight in weights.items())]
    return "\n".join(lines) + "\n"


def write_configurations(directory: Path, advice: Advice) -> list[Path]:
    """Write `gateway.toml` and `vllm.toml` into a folder, which is made if need be.  Raises `OSError`."""
    make_folder(directory)
    written = []
    for name, text in (("gateway.toml", gateway_toml(advice)), ("vllm.toml", vllm_toml(advice))):
        path = directory / name
        write_whole(path, text)
        written.append(path)
    return written


def _url(name: str) -> str | None:
    """Return the address of a server, without `/v1`, by its name in the log; None for a name that is none."""
    text = name if "://" in name else f"http://{name}"
    try:
        parts = urlsplit(text)
        there = parts.scheme in ("http", "https") and parts.hostname and (parts.port or "://" in name)
    except ValueError:
        return None
    return text.rstrip("/").removesuffix("/v1").rstrip("/") if there and _PLAIN.fullmatch(text) else None


@attrs.frozen
class Windows:
    """What a server takes at a time, why, and what is to be known of that before it is used."""

    servers: int
    tokens: int
    requests: int
    why_tokens: str
    why_requests: str
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, advice: Advice) -> "Windows":
        """Return the KV memory and the batch that were fitted to the log, else the most that it shows at once."""
        warnings = []
        servers = max(len(advice.log.workers) if advice.fit is None else advice.fit.machine.workers, 1)
        at_once, requests, known = in_service_max(advice)
        if len(advice.log.workers) < 2:
            at_once, requests = -(-at_once // servers), -(-requests // servers)
        why_requests = "the most that the log shows in service at once"
        # A limit below what the log shows is none.
        if advice.fit is not None and requests <= advice.fit.machine.max_running < SEATS:
            requests, why_requests = advice.fit.machine.max_running, "what it ran at once, as fitted to the log"
        if advice.fit is not None and at_once <= advice.fit.machine.kv_tokens < UNLIMITED:
            tokens, why = advice.fit.machine.kv_tokens, "its KV memory, as fitted to the log"
        else:
            tokens, why = at_once, "the most that the log shows in service at once; about its KV cache is right"
            if known < KNOWN_MIN:
                largest = int((advice.log.prompt + advice.log.output).max(initial=1))
                tokens, why = max(tokens, LARGEST * largest), "UNKNOWN: set it to the server's KV cache"
                warnings.append(
                    f"The log tells for {known:.0%} of requests when their wait was over: window_tokens is unknown."
                )
        tokens = max(min(tokens, CAPACITY_TOKENS_MAX), 1)
        bound = _bound(advice, servers * tokens)
        service = sum(client.service for client in advice.audit.clients)
        if bound is not None and bound >= service:
            warnings.append(
                f"With these windows two clients may differ by {bound:,} cost units, and the log has {service:,} in "
                "all: smaller windows make the bound smaller."
            )
        return cls(servers, tokens, max(requests, 1), why, why_requests, tuple(warnings))


def _bound(advice: Advice, tokens: int) -> int | None:
    """Return what the policy promises of two clients in windows of so many tokens together."""
    policy = with_parameters(local_policy(advice.policy), {"quantum": str(QUANTUM)})
    clients = tuple(Client(i, name, weight) for i, (name, weight) in enumerate(_clients(advice)))
    clients = clients if len(clients) > 1 else (Client(0, "a"), Client(1, "b"))
    return policy.guarantee.service_gap_bound(clients, window_limits(policy.guarantee, tokens, WindowTerms()))


def in_service_max(advice: Advice) -> tuple[int, int, float]:
    """Return the most tokens and the most requests that one server had in service at once, as far as the log tells
    when waits were over, and for what share of the requests with outputs it does."""
    log, calls = advice.log, advice.audit.evidence.calls
    ran = log.output > 0
    rows = np.flatnonzero(ran & (calls.served_ns != UNKNOWN))
    most = [0, 0]
    for worker in np.unique(log.worker[rows]).tolist():
        mine = rows[log.worker[rows] == worker]
        times = np.concatenate([log.end_ns[mine], calls.served_ns[mine]])
        for i, each in enumerate((log.prompt[mine] + log.output[mine], np.ones_like(mine))):
            change = np.concatenate([-each, each])
            most[i] = max(most[i], int(np.cumsum(change[np.lexsort((change, times))]).max(initial=0)))
    return most[0], most[1], len(rows) / max(int(ran.sum()), 1)


def _clients(advice: Advice) -> list[tuple[str, int]]:
    """Return names and weights of the clients with the most service."""
    found = sorted(advice.audit.clients, key=lambda client: (-client.service, client.name))
    return [(client.name, client.weight) for client in found[:CLIENTS_MAX]]


def _key(name: str) -> str:
    """Return a name as a key of TOML: quoted as a basic string, whose escapes are those of JSON (but for
    surrogates)."""
    return json.dumps(name.encode("utf-8", "replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name.encode("utf-8", "replace").decode())
