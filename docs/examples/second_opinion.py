"""A second opinion on a certificate, by a program that shares no code with `fairsched.verify`.

    python docs/examples/second_opinion.py out/certificate

It reads the directory that `fairsched verify --certificate` wrote, and disagrees where a sum, the manifest, a solver's
answer, or a number is not what it finds itself.  Numbers are worked out from the configuration by the formulas of the
manifest, and worlds of two clients that wait are played on the shipped policy: no gap may be over the certified one.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any

from fairsched.engines.simulation import RunSpec, simulate_events
from fairsched.model.events import Admitted, Arrived, Decoded
from fairsched.model.machine import PRESETS
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.registry import LOCAL_POLICIES, cluster_policy

GAPS = {"D-4.1", "D-pause-gap", "V-4.4"}
"""Theorems about two clients of equal weight that both wait."""
PLAIN = re.compile(r"[\d\s()*+-]+")
REQUESTS = 12

# --- files ------------------------------------------------------------------------------------------------------------


def sha256(raw: bytes) -> str:
    """Return a hash as hexadecimal digits."""
    return hashlib.sha256(raw).hexdigest()


def wrong_files(folder: Path, manifest: dict[str, Any]) -> Iterator[str]:
    """Yield what the sums, the expected answers and the manifest do not agree about."""
    sums = {path: value for value, path in map(str.split, (folder / "checksums.txt").read_text().splitlines())}
    for path, value in sums.items():
        if not (folder / path).is_file() or sha256((folder / path).read_bytes()) != value:
            yield f"{path}: not the file of checksums.txt"
    said = {path: asked["sha256"] for path, asked in manifest["files"].items()} | manifest["proofs"]
    for path in sorted(said.keys() | (sums.keys() - {"manifest.json", "expected.txt"})):
        if said.get(path) != sums.get(path):
            yield f"{path}: the manifest has another hash than checksums.txt"
    expected = "".join(f"{asked['expected']} {path}\n" for path, asked in sorted(manifest["files"].items()))
    if (folder / "expected.txt").read_text() != expected:
        yield "expected.txt: other answers than the manifest's"
    for each in manifest["certificates"]:
        configuration = json.dumps(each["configuration"], sort_keys=True).encode()
        if sha256(configuration) != each["configuration_sha256"]:
            yield f"{each['policy']}: the configuration has another hash"
        for theorem in each["theorems"]:
            folders = manifest["evidence"][each["policy"]].get(theorem["id"])
            asked = [asked for path, asked in manifest["files"].items() if Path(path).parent.name == folders]
            if {asked["about"] for asked in asked} < {"goal", "hypotheses"}:
                yield f"{each['policy']}: {theorem['id']} has no goal and hypotheses"
            if any(each["expected"] != {"goal": "unsat"}.get(each["about"], "sat") for each in asked):
                yield f"{theorem['id']}: an answer is expected that proves nothing"


def answer(path: Path) -> str:
    """Return what a solver says to a question: a command, or else the package z3."""
    for command in filter(None, map(shutil.which, ("z3", "cvc5"))):
        return subprocess.run([command, path], capture_output=True, text=True, check=False).stdout.strip()
    import z3

    solver = z3.Solver()
    solver.from_file(str(path))
    return str(solver.check())


# --- numbers ----------------------------------------------------------------------------------------------------------


def charge_max(configuration: dict[str, Any]) -> int | None:
    """Return U in a configuration; None for a gate of which this program does not know it."""
    of, policy = configuration["deployment"], configuration["policy"]
    gate, batch = policy.get("gate", {"class": ""}), policy.get("batching", {})
    memory, outputs = of["kv_capacity_tokens"], of["max_output_tokens"]
    prompt, kind = min(of["prompt_tokens_max"], memory - 1), gate["class"].rpartition(".")[2]
    if kind not in {"DeficitGate", "CounterGate", "InBatchGate"} or batch["reserve"] != "static":
        return None
    w_e, w_q = gate["rates"]["input"], gate["rates"]["output"]
    if kind == "InBatchGate":
        longest = min(prompt + outputs, gate["context_tokens"] or memory, memory)
        return int(w_q * min(batch["max_running"], memory) + w_e * longest)
    capped = gate.get("in_flight_cap_tokens") and gate["cap_holds"] == "always" and not gate["cached_percent"]
    room = min(memory, gate["in_flight_cap_tokens"]) if capped else memory
    last = min(prompt, room - 1) if w_e >= w_q else 1
    most: int = w_q * room + (w_e - w_q) * last
    return max(most, w_e * memory) if kind == "CounterGate" else most


def number(theorem: dict[str, Any], configuration: dict[str, Any]) -> int | None:
    """Return a bound by its formula, for clients who were given nothing back; None for one with other words."""
    most, gate = charge_max(configuration), configuration["policy"].get("gate", {})
    weights = sorted(set(configuration["deployment"]["weights"].values()))
    if most is None or ("quantum" not in gate and len(weights) > 1):
        return None
    formula = re.sub(r"(?<=\d)(?=[A-Z])|(?<=\w) (?=[(A-Z])", " * ", theorem["bound"])
    quanta = [gate.get("quantum", 0) * weight for weight in weights]
    found = list[int]()
    for pair in combinations_with_replacement(quanta, 2):
        if pair[0] != pair[1] and "EqualQuanta" in theorem["assumptions"]:
            continue
        for q_f, q_g in (pair, pair[::-1]):
            values = {"Q": q_f, "Q_f": q_f, "Q_g": q_g, "U_f": most, "U_g": most, "B_f": 0, "B_g": 0, "D": most - 1}
            text = " ".join(str(values.get(word, word)) for word in re.findall(r"\w+|\S", formula))
            if not PLAIN.fullmatch(text):
                return None
            found.append(-(-eval(text) // (min(pair) if " * (" in formula else 1)))
    return max(found)


# --- worlds -----------------------------------------------------------------------------------------------------------


def largest_gap(shapes: tuple[tuple[int, int], ...], params: dict[str, str], each: dict[str, Any]) -> int:
    """Play two clients with requests of these prompts and outputs, and return the largest gap while both waited."""
    of, gate = each["configuration"]["deployment"], each["configuration"]["policy"]["gate"]
    jobs = []
    for i in range(REQUESTS * 2):
        prompt, outputs = shapes[i % len(shapes)]
        jobs.append(Job(Request(i, i % 2, i, Prompt(prompt), outputs), outputs))
    workload = Workload("world", tuple(jobs), (Client(0, "f"), Client(1, "g")))
    policy, memory = RunSpec.of(each["policy"], params=params).policy, of["kv_capacity_tokens"]
    events = simulate_events(
        workload, policy, cluster_policy("round-robin"), PRESETS[of["latency_model"]], kv_capacity_tokens=memory
    )
    waits, lead, seen, largest = Counter[int](), 0, [0], 0
    for event in events:
        if isinstance(event, Arrived | Admitted):
            client = event.client if isinstance(event, Admitted) else event.request.client
            waits[client] += 1 if isinstance(event, Arrived) else -1
        if isinstance(event, Admitted):
            whole = event.cached_prefix_tokens if gate["class"].endswith("CounterGate") else 0
            lead += (1, -1)[event.client] * gate["rates"]["input"] * (event.extend_tokens + whole)
        elif isinstance(event, Decoded):
            for client, tokens in zip(event.clients, event.tokens, strict=True):
                lead += (1, -1)[client] * gate["rates"]["output"] * tokens
        seen = [*seen, lead] if waits[0] and waits[1] else [lead]
        largest = max(largest, max(seen) - min(seen))
    return largest


def played(each: dict[str, Any], params: dict[str, str]) -> int:
    """Return the largest gap of all worlds of a policy: requests that fill the memory, in outputs, prompts and both."""
    of, gate = each["configuration"]["deployment"], each["configuration"]["policy"]["gate"]
    limits = of["kv_capacity_tokens"], gate.get("in_flight_cap_tokens"), gate.get("context_tokens")
    memory = min(filter(None, limits))
    prompt = min(of["prompt_tokens_max"], memory - 1)
    long, half = min(of["max_output_tokens"], memory - 1), min(of["max_output_tokens"], memory // 2)
    kinds = ((1, long), (prompt, min(long, memory - prompt)), (min(prompt, memory // 2), half), (1, 1))
    return max(largest_gap(shapes, params, each) for shapes in product(kinds, repeat=2))


def disagreements(folder: Path) -> Iterator[str]:
    """Yield where this program is of another opinion than the certificate.

    Of routers and of policies that are not in the catalogue it plays no world.
    """
    manifest = json.loads((folder / "manifest.json").read_text())
    yield from wrong_files(folder, manifest)
    for path, asked in manifest["files"].items():
        if (said := answer(folder / path)) != asked["expected"]:
            yield f"{path}: {asked['expected']} is certified, and a solver says {said}"
    for each in manifest["certificates"]:
        stated = {theorem["id"] for theorem in each["theorems"] if theorem["bound_cost"] is not None}
        gap = 0
        if GAPS & stated and each["policy"] in LOCAL_POLICIES:
            gap = played(each, manifest["deployment"]["policies"].get(each["policy"], {}))
        for theorem in each["theorems"]:
            bound, found = theorem["bound_cost"], number(theorem, each["configuration"])
            if bound is not None and found is not None and bound != found:
                yield f"{each['policy']}: {theorem['id']} is {found:,} here, and {bound:,} is certified"
            if theorem["id"] in GAPS and bound is not None and gap > bound:
                yield f"{each['policy']}: {theorem['id']} is broken: a gap of {gap:,}, and {bound:,} is certified"


def not_worked_out(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield the numbers that this program has no formula for, or no U."""
    for each in manifest["certificates"]:
        for theorem in each["theorems"]:
            if theorem["bound_cost"] is not None and number(theorem, each["configuration"]) is None:
                yield f"{each['policy']}: {theorem['id']}"


if __name__ == "__main__":
    certificate = Path(sys.argv[1])
    found = list(disagreements(certificate))
    silent = ", ".join(not_worked_out(json.loads((certificate / "manifest.json").read_text())))
    print("\n".join(found) or "agrees", f"not worked out: {silent}" if silent else "", sep="\n")
    sys.exit(bool(found))
