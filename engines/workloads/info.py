"""What is in a workload: counts, rates, lengths, clients and shared prefixes, as a value and as text."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairsched.engines.workloads.sharing import key_portions, shared_blocks
from fairsched.model.request import Job, Prompt, Workload

CLIENTS_SHOWN_MAX = 20


def trace_info(workload: Workload) -> dict[str, Any]:
    """Return figures of a workload, ready for JSON.

    Rates and the coefficient of variation of times between arrivals count requests sent on their own, not those sent
    when another finished.  `prefix` is what an infinite cache would serve if requests ran in the workload's order,
    None when no prompt has keys: `shared_blocks_ratio` counts blocks (a last, partly filled one too),
    `shared_tokens_ratio` prompt tokens, and `distinct_tokens` is the cache that would need.  `key_portions`, None like
    `prefix`, says how many there are, how many requests share one and how long they are (`sharing.py`).
    """
    jobs = workload.jobs
    arrivals_ns = np.array([job.request.arrival_ns for job in jobs if not job.after], dtype=np.int64)
    duration_s = float(arrivals_ns[-1] - arrivals_ns[0]) / 1e9 if len(arrivals_ns) else 0.0
    gaps = np.diff(arrivals_ns)
    return {
        "name": workload.name,
        "requests": len(jobs),
        "independent_requests": len(arrivals_ns),
        "duration_s": duration_s,
        "arrivals_per_s": len(arrivals_ns) / duration_s if duration_s else None,
        "interarrival_cv": float(gaps.std() / gaps.mean()) if len(gaps) and gaps.any() else None,
        "prompt_tokens": _summary([job.request.prompt_tokens for job in jobs]),
        "output_tokens": _summary([job.output_tokens for job in jobs]),
        "max_output_tokens": _summary([job.request.max_output_tokens for job in jobs]),
        "clients": _clients(workload),
        "prefix": _prefix(jobs),
        "key_portions": _key_portions([job.request.prompt for job in jobs]),
        "programs": len({job.program for job in jobs if job.program is not None}),
        "sessions": len({job.request.session for job in jobs if job.request.session is not None}),
        "cancelled_by_caller": sum(job.cancel_after_ns is not None for job in jobs),
        "notes": list(workload.notes),
    }


def _summary(values: Sequence[int]) -> dict[str, float]:
    array = np.array(values)
    p50, p95, p99 = np.percentile(array, (50, 95, 99)).tolist()
    return {
        "total": int(array.sum()),
        "mean": float(array.mean()),
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "max": int(array.max()),
    }


def _clients(workload: Workload) -> dict[str, dict[str, float]]:
    """Return requests and tokens of each client, busiest first."""
    requests: Counter[int] = Counter()
    prompt: Counter[int] = Counter()
    output: Counter[int] = Counter()
    for job in workload.jobs:
        client = job.request.client
        requests[client] += 1
        prompt[client] += job.request.prompt_tokens
        output[client] += job.output_tokens
    total = len(workload.jobs)
    return {
        client.name: {
            "requests": requests[client.id],
            "share": requests[client.id] / total,
            "weight": client.weight,
            "prompt_tokens": prompt[client.id],
            "output_tokens": output[client.id],
        }
        for client in sorted(workload.clients, key=lambda client: (-requests[client.id], client.id))
    }


def _prefix(jobs: Sequence[Job]) -> dict[str, Any] | None:
    prompts = [job.request.prompt for job in jobs]
    if not any(prompt.keys for prompt in prompts):
        return None
    hits = [min(shared, prompt.reusable_blocks) for shared, prompt in zip(shared_blocks(prompts), prompts, strict=True)]
    hit_tokens = sum(hit * prompt.block_tokens for hit, prompt in zip(hits, prompts, strict=True))
    blocks = sum(-(-prompt.tokens // prompt.block_tokens) for prompt in prompts)
    tokens = sum(prompt.tokens for prompt in prompts)
    return {
        "block_tokens": sorted({prompt.block_tokens for prompt in prompts}),
        "blocks": blocks,
        "shared_blocks_ratio": sum(hits) / blocks,
        "shared_tokens_ratio": hit_tokens / tokens,
        "distinct_tokens": tokens - hit_tokens,
    }


def _key_portions(prompts: Sequence[Prompt]) -> dict[str, Any] | None:
    """`sharers_mean` is over key portions, `tokens_mean` and `prompt_ratio_mean` are over requests."""
    found = key_portions(prompts)
    if not found:
        return None
    sharers = np.array([key.sharers for key in found])
    lengths = [key.tokens for key in found for _ in key.prompts]
    ratios = [key.tokens / prompts[index].tokens for key in found for index in key.prompts]
    return {
        "count": len(found),
        "unshared": int((sharers == 1).sum()),
        "sharers_mean": float(sharers.mean()),
        "sharers_sd": float(sharers.std()),
        "sharers_max": int(sharers.max()),
        "tokens_mean": float(np.mean(lengths)),
        "prompt_ratio_mean": float(np.mean(ratios)),
    }


def render_info(info: dict[str, Any]) -> str:
    """Return the figures of `trace_info` as lines of plain text, but for those of each client."""
    prefix, cv, rate = info["prefix"], info["interarrival_cv"], info["arrivals_per_s"]
    dependent = info["requests"] - info["independent_requests"]
    lines = [
        f"{info['name']}: {info['requests']:,} requests from {len(info['clients']):,} clients",
        f"  arrivals    {info['independent_requests']:,} over {info['duration_s']:,.1f} s"
        + (f", {rate:,.2f} a second" if rate else "")
        + (f", coefficient of variation {cv:.2f}" if cv else "")
        + (f"; {dependent:,} more are sent when others finished" if dependent else ""),
        *(
            f"  {name:<11} {_spread(info[key])}"
            for name, key in (("prompt", "prompt_tokens"), ("output", "output_tokens"))
        ),
        f"  max output  up to {info['max_output_tokens']['max']:,} tokens",
    ]
    if prefix is None:
        lines.append("  prefixes    the trace names none")
    else:
        blocks = "/".join(str(size) for size in prefix["block_tokens"])
        lines.append(
            f"  prefixes    {prefix['shared_blocks_ratio']:.1%} of {prefix['blocks']:,} blocks ({blocks} tokens) and "
            f"{prefix['shared_tokens_ratio']:.1%} of tokens hit an infinite cache "
            f"of {prefix['distinct_tokens']:,} tokens"
        )
    keys = info["key_portions"]
    if keys is not None:
        lines.append(
            f"  keys        {keys['count']:,} key portions, {keys['unshared']:,} of one request alone; "
            f"{keys['sharers_mean']:,.1f} requests share one on average, {keys['sharers_max']:,} at most; "
            f"a request's is {keys['tokens_mean']:,.0f} tokens, {keys['prompt_ratio_mean']:.1%} of its prompt"
        )
    if info["programs"] or info["sessions"] or info["cancelled_by_caller"]:
        lines.append(
            f"  structure   {info['programs']:,} programs, {info['sessions']:,} sessions, "
            f"{info['cancelled_by_caller']:,} requests given up by their caller"
        )
    return "\n".join(lines)


def _spread(figures: dict[str, float]) -> str:
    return (
        f"mean {figures['mean']:,.0f}, p50 {figures['p50']:,.0f}, p95 {figures['p95']:,.0f}, "
        f"p99 {figures['p99']:,.0f}, max {figures['max']:,} tokens"
    )
