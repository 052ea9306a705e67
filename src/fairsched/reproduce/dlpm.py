"""DLPM on one worker: the front between fairness and throughput, and the number of clients.

Source: Cao et al., "Locality-aware Fair Scheduling in LLM Serving" (DLPM), evaluation.
"""

from functools import partial

from fairsched.reproduce.row import A100, Ours, Row, Say, falls, measured, rate, run, workload

QUANTA = (256, 1_024, 4_096, 16_384, 32_768, 65_536, 262_144)
CLIENTS = ((5, 30), (10, 15), (20, 7), (30, 5), (50, 3))
"""Clients, and trees of thoughts of each: about 150 trees in all."""
MIXED = ("tree-of-thoughts", "llm-judge", "long-context-qa")
MIX = {
    **{f"{part}.clients": 2 for part in MIXED},
    "tree-of-thoughts.trees": 12,
    "llm-judge.articles": 90,
    "long-context-qa.document_tokens": 8_000,
}
"""Two clients of each kind of program."""


@partial(
    Row,
    id="35",
    about="the quantum moves DLPM from VTC to LPM",
    source="DLPM, figure 1",
    paper="a larger quantum gives more throughput and less fairness: a front between VTC and LPM",
    band="throughput rises and Jain's index of charged service falls with the quantum (within 1 % and 0.2 %); "
    "within 10 % of LPM's throughput at the large end, of VTC's Jain index at the small end",
    why="24 clients, so that their trees do not fit into memory side by side; the small end keeps more than VTC's "
    "throughput, since a client's own requests still go longest prefix first",
    seconds=15,
)
def front(say: Say) -> Ours:
    """Quanta between VTC and LPM."""
    jobs = workload("tree-of-thoughts", "longer-prefix", clients=24, trees=8, rate=8)
    say("lpm and vtc")
    lpm, vtc = run(jobs, "lpm"), run(jobs, "vtc")
    sweep = []
    for quantum in QUANTA:
        say(f"quantum {quantum:,}")
        sweep.append(run(jobs, "dlpm", params={"quantum": quantum}))
    rates = [rate(one) for one in sweep]
    even = [measured(one.jain_charged, "Jain's index") for one in sweep]
    client = measured(sweep[0].jain_client, "Jain's index") / measured(vtc.jain_client, "Jain's index")
    least = rates[-1] / rate(lpm)
    rises, sinks = falls(reversed(rates), 0.01), falls(even, 0.002)
    return Ours(
        f"requests/s {' '.join(f'{one:.2f}' for one in rates)} (lpm {rate(lpm):.2f}, vtc {rate(vtc):.2f}); Jain of "
        f"charged service {' '.join(f'{one:.3f}' for one in even)}; at the ends {least:.3f} of LPM's throughput and "
        f"{client:.3f} of VTC's Jain index",
        rises and sinks and least >= 0.9 and client >= 0.9,
        {"quanta": QUANTA, "throughput_rps": rates, "jain_charged": even, "of_lpm": least, "of_vtc_jain": client},
    )


@partial(
    Row,
    id="37",
    about="5 to 50 clients at a constant rate",
    source="DLPM, evaluation",
    paper="DLPM's service rate stays close to LPM's, VTC's is lower",
    band="dlpm/lpm >= 0.9 and vtc/lpm below dlpm/lpm at every point",
    why="A100; on the A10G, whose memory does not hold a tree in progress for each of 20 clients or more, dlpm/lpm "
    "falls to 0.73 with the default quantum",
    seconds=15,
)
def clients(say: Say) -> Ours:
    """The same trees from more and more clients."""
    dlpm, vtc = [], []
    for count, trees in CLIENTS:
        say(f"{count} clients")
        jobs = workload("tree-of-thoughts", "none", clients=count, trees=trees)
        best, ours, theirs = (
            measured(run(jobs, name, latency=A100).measures.client_service_rate, "service rate")
            for name in ("lpm", "dlpm", "vtc")
        )
        dlpm.append(ours / best)
        vtc.append(theirs / best)
    return Ours(
        f"dlpm/lpm {' '.join(f'{one:.2f}' for one in dlpm)}, vtc/lpm {' '.join(f'{one:.2f}' for one in vtc)} "
        f"with {', '.join(str(count) for count, _ in CLIENTS)} clients",
        min(dlpm) >= 0.9 and all(low < high for low, high in zip(vtc, dlpm, strict=True)),
        {"clients": [count for count, _ in CLIENTS], "dlpm_over_lpm": dlpm, "vtc_over_lpm": vtc},
    )


@partial(
    Row,
    id="38",
    about="clients of different programs",
    source="DLPM, figure 12",
    paper="DLPM's response and completion times are best, VTC's charged service is most even",
    band="the same signs, of means",
    why="trees of thoughts, judges and questions about documents of 8,000 tokens, one A10G; at p99 LPM's programs "
    "end earlier, since it starves the clients that would make others wait",
    seconds=10,
)
def mixed(say: Say) -> Ours:
    """Clients of three kinds of programs on one worker."""
    jobs = workload("mixed", None, parts="+".join(MIXED), rate=12.0, **MIX)
    runs = {}
    for policy in ("fcfs", "lpm", "vtc", "dlpm"):
        say(policy)
        runs[policy] = run(jobs, policy)
    response = {name: measured(one.measures.ttft_us.mean, "mean") / 1e6 for name, one in runs.items()}
    completion = {name: measured(one.measures.program_latency_us.mean, "mean") / 1e6 for name, one in runs.items()}
    even = {name: measured(one.jain_charged, "Jain's index") for name, one in runs.items()}
    best = all(min(one, key=one.__getitem__) == "dlpm" for one in (response, completion))
    return Ours(
        "mean response, completion in s, Jain of charged service: "
        + "; ".join(f"{name} {response[name]:.1f}, {completion[name]:.1f}, {even[name]:.3f}" for name in runs),
        best and max(even, key=even.__getitem__) == "vtc",
        {"ttft_mean_s": response, "program_mean_s": completion, "jain_charged": even},
    )
