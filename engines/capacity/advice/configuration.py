"""Configurations that do what is advised: of the gateway, and of the scheduler inside vLLM.

Both are complete and pass their checks as they are.  What only the operator knows (addresses, keys) stands in as a
placeholder that a comment names.
"""

import json
from pathlib import Path

import numpy as np

from fairsched.engines.calibration.from_log import UNLIMITED
from fairsched.engines.capacity.advice.advice import Advice
from fairsched.engines.files import make_folder, write_whole
from fairsched.engines.logs.access import UNKNOWN, AccessLog
from fairsched.model.pricing import CAPACITY_TOKENS_MAX

CLIENTS_MAX = 64
"""So many clients are written, those with the most service; others are added in the same way."""
QUANTUM = 4_096


def gateway_toml(advice: Advice) -> str:
    """Return a `gateway.toml` for the servers of the log."""
    workers = max(len(advice.log.workers) if advice.fit is None else advice.fit.machine.workers, 1)
    names = advice.log.workers if len(advice.log.workers) == workers > 1 else ()
    tokens, why = _window(advice)
    lines = [
        "# Written by `fairsched advise`. Fill in the addresses and the keys, then:",
        "#   fairsched gateway gateway.toml --check",
        "#   fairsched gateway gateway.toml --log calls.jsonl",
        'listen = "127.0.0.1:8080"',
        f"policy = {json.dumps(advice.policy)}",
        f"quantum = {advice.quantum or QUANTUM}",
        "",
    ]
    if not names and advice.fit is not None:
        lines += [
            f"# The log does not name several servers; {workers} of them fitted. With another number, keep the sums:",
            f"# {workers * tokens:,} tokens and {workers * advice.fit.machine.max_running:,} requests in all.",
        ]
    for i in range(workers):
        lines += [
            "[[server]]" + (f"  # {_comment(names[i])} in the log" if names else ""),
            f'url = "http://SERVER-{i + 1}:8000"  # fill in',
            f"window_tokens = {tokens}  # {why}",
            *_requests(advice),
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
    # Below a step's budget a quantum would cut what a step computes into turns; the default follows vLLM's budget.
    if advice.quantum is not None:
        lines += ["", "[parameters]", f"quantum = {advice.quantum}"]
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


def _window(advice: Advice) -> tuple[int, str]:
    """Return what a server takes at a time, in tokens, and why."""
    fitted = UNLIMITED if advice.fit is None else advice.fit.machine.kv_tokens
    if fitted < UNLIMITED:
        return fitted, "its KV memory, as fitted to the log"
    most = under_way_max_tokens(advice.log) // max(len(advice.log.workers), 1)
    return max(min(most, CAPACITY_TOKENS_MAX), 1), "the most that was under way in the log; about its KV cache is right"


def _requests(advice: Advice) -> list[str]:
    """Return how many calls a server takes at a time: more would queue there, in its own order."""
    if advice.fit is None:
        return []
    return [f"window_requests = {advice.fit.machine.max_running}  # what it ran at once, as fitted to the log"]


def under_way_max_tokens(log: AccessLog) -> int:
    """Return the most tokens, prompts and outputs, of requests that were served at once: the servers held that, at
    least."""
    rows = np.flatnonzero(log.output > 0)
    tokens = log.prompt[rows] + log.output[rows]
    served = np.where(log.served_ns[rows] == UNKNOWN, log.arrival_ns[rows], log.served_ns[rows])
    times, change = np.concatenate([log.end_ns[rows], served]), np.concatenate([-tokens, tokens])
    order = np.lexsort((change, times))
    return int(np.cumsum(change[order]).max(initial=0))


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
