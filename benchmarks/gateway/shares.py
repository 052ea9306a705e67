"""Well-behaved clients before two real servers while another floods them: TTFT with the gateway and without.

Three clients ask for a short answer now and then; one sends a burst of long calls.  The same trace is replayed by
`fairsched loadtest` against

- "round robin": the gateway with an endless window and no gate, so that calls go on at once and servers queue them;
- "gateway": a window of tokens under the deficit gate.

Two servers have to be there, such as vLLM on a CPU, one thread each:

    OMP_NUM_THREADS=1 vllm serve MODEL --max-num-seqs 2 --port 8001
    OMP_NUM_THREADS=1 vllm serve MODEL --max-num-seqs 2 --port 8002
    python benchmarks/gateway/shares.py http://127.0.0.1:8001 http://127.0.0.1:8002 --plot docs/plots/gateway.svg
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

SYSTEMS = {
    "round robin": 'policy = "fcfs"\nrouter = "round-robin"',
    "gateway": 'policy = "fcfs+deficit"\nquantum = 128',
}
FAIRSCHED = str(Path(sys.executable).with_name("fairsched"))
ENDLESS = 1_000_000_000
LIGHT = ("ada", "ben", "cem")
HOG = "hog"


def trace(seconds: int, burst: int) -> list[dict[str, object]]:
    """Each of three clients asks every two seconds; from second 4 on the other sends its burst, 10 calls a second."""
    rows: list[dict[str, object]] = []
    for i, client in enumerate(LIGHT):
        for at in range(i * 600, seconds * 1000, 2000):
            rows.append({"timestamp": at, "input_length": 16, "output_length": 8, "client": client})
    for i in range(burst):
        rows.append({"timestamp": 4000 + 100 * i, "input_length": 16, "output_length": 256, "client": HOG})
    return sorted(rows, key=lambda row: float(str(row["timestamp"])))


def measured(system: str, servers: list[str], window: int, folder: Path) -> dict[str, object]:
    """The run that `fairsched loadtest` writes, through a gateway of its own."""
    lines = ['listen = "127.0.0.1:0"', 'identify = "header"', "bytes_per_token = 1", "status = true", SYSTEMS[system]]
    for name in (*LIGHT, HOG):
        lines.append(f"[client.{name}]")
    for url in servers:
        lines += ["[[server]]", f'url = "{url}"']
        lines.append(f"window_tokens = {window if system == 'gateway' else ENDLESS}")
        lines.append(f"window_requests = {ENDLESS}")
    config, out, report = folder / "gateway.toml", folder / "load.json", folder / f"{system}.json"
    config.write_text("\n".join(lines) + "\n")
    command = [FAIRSCHED, "gateway", str(config), "--report", str(report)]
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert gateway.stdout is not None
        url = gateway.stdout.readline().split(" at ")[1].split()[0]
        load = [FAIRSCHED, "loadtest", url, str(folder / "trace.jsonl")]
        load += ["--ignore-eos", "--json", str(out)]
        subprocess.run(load, check=True, stdout=subprocess.DEVNULL)
    finally:
        gateway.send_signal(signal.SIGTERM)
        gateway.wait(60)
    run: dict[str, object] = json.loads(out.read_text())["runs"][0]
    status = json.loads(report.read_text())
    return run | {"status": status}


def milliseconds(run: dict[str, object], client: str, percentile: str) -> float:
    """A percentile of a client's TTFT."""
    clients = run["clients"]
    assert isinstance(clients, dict)
    return float(clients[client]["ttft_us"][percentile]) / 1000


def worst_p99(run: dict[str, object]) -> float:
    """The largest p99 of TTFT of a well-behaved client, in milliseconds."""
    return max(milliseconds(run, client, "p99") for client in LIGHT)


def plot(runs: dict[str, dict[str, object]], path: Path) -> None:
    """TTFT of each well-behaved client, p50 and p99, by system; the burst's client beside them."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 3.6), layout="constrained")
    names = (*LIGHT, HOG)
    width = 0.8 / len(runs)
    for i, (system, run) in enumerate(runs.items()):
        places = [place + (i - (len(runs) - 1) / 2) * width for place in range(len(names))]
        axes.bar(places, [milliseconds(run, name, "p99") / 1000 for name in names], width, label=f"{system}, p99")
        axes.plot(places, [milliseconds(run, name, "p50") / 1000 for name in names], "k_", markersize=9)
    axes.plot([], [], "k_", label="p50")
    axes.set_xticks(range(len(names)), [*LIGHT, f"{HOG} (the burst)"])
    axes.set_ylabel("time to first token, s")
    axes.set_yscale("log")
    figure.legend(loc="outside upper center", ncols=len(runs) + 1, frameon=False, fontsize="small")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Run all systems, print a table, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="*", metavar="URL", help="two servers, without /v1")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="which of them (default: %(default)s)")
    parser.add_argument("--window", type=int, default=600, help="tokens a server (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=40, help="length of the trace (default: %(default)s)")
    parser.add_argument("--burst", type=int, default=60, help="calls of the burst (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, of which the middle one is drawn")
    parser.add_argument("--plot", type=Path, help="draw it here")
    parser.add_argument("--json", type=Path, help="write every run here")
    arguments = parser.parse_args()
    if not arguments.servers:
        print("skipped: it needs the addresses of two OpenAI-compatible servers (see its first lines)")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = trace(arguments.seconds, arguments.burst)
        (folder / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        runs: dict[str, list[dict[str, object]]] = {}
        for system in arguments.systems.split(",") * arguments.repeat:
            run = measured(system, arguments.servers, arguments.window, folder)
            runs.setdefault(system, []).append(run)
            worst = worst_p99(run)
            median = max(milliseconds(run, client, "p50") for client in LIGHT)
            seconds, rate = float(str(run["makespan_us"])) / 1e6, float(str(run["output_tokens_per_s"]))
            print(
                f"{system}: {run['finished']} of {run['requests']} finished in {seconds:.1f} s, "
                f"{rate:.0f} output tokens/s; well-behaved clients: TTFT p50 at most "
                f"{median:.0f} ms, p99 at most {worst:.0f} ms; {HOG}: p99 {milliseconds(run, HOG, 'p99'):.0f} ms",
                flush=True,
            )
    middle = {system: sorted(each, key=worst_p99)[len(each) // 2] for system, each in runs.items()}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(runs, indent=2) + "\n")
    if arguments.plot is not None:
        plot(middle, arguments.plot)


if __name__ == "__main__":
    main()
