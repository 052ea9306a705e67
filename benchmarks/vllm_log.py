"""Write the access log of real vLLM on one CPU core, on a clock of constant speed, for `fairsched calibrate --log`.

    OMP_NUM_THREADS=1 python benchmarks/vllm_log.py OUT.jsonl [--seconds 600] [--running 8] [--tokens 256] [--seed 0]

Needs vLLM's CPU wheel (`make integrations` installs one).  The model is a Llama of four layers with made-up weights;
prompts have 4 to 1,000 tokens, outputs 1 to 200; load goes from single requests to overload in phases of a few seconds.

A shared machine runs a fifth faster or slower from one minute to the next, which overload multiplies.  So a fixed piece
of work is timed beside each step, and the step counts with its time over that of the work, by the median of the last
nine: `--wall` leaves that out.  Arrivals and answers are on this clock, on which vLLM alone makes time pass.
"""

import argparse
import collections
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

BASE_S = 1_790_000_000
PHASES = [(0.08, 8.0), (0.4, 8.0), (0.7, 8.0), (0.95, 8.0), (0.0, 3.0), (1.4, 6.0), (0.0, 3.0)]
"""Load as a share of the capacity, and seconds."""
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}
Plan = list[tuple[float, int, int]]
"""Seconds of arrival, prompt and output tokens."""


class Server:
    """vLLM's engine, driven step by step, and its clock."""

    def __init__(self, running: int, tokens: int, blocks: int, wall: bool) -> None:
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        import torch
        from vllm import EngineArgs, LLMEngine

        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(MODEL))
            self.engine = LLMEngine.from_engine_args(
                EngineArgs(
                    model=folder,
                    dtype="float32",
                    max_model_len=1536,
                    skip_tokenizer_init=True,
                    load_format="dummy",
                    enforce_eager=True,
                    max_num_seqs=running,
                    max_num_batched_tokens=tokens,
                    enable_prefix_caching=False,
                    block_size=32,
                    num_gpu_blocks_override=blocks,
                    seed=0,
                    disable_log_stats=True,
                )
            )
        self.matrices = torch.randn(32, 256), torch.randn(256, 704), torch.randn(704, 256)
        self.silu = torch.nn.functional.silu
        self.last: collections.deque[int] = collections.deque(maxlen=9)
        for _ in range(50):
            self.work()
        self.unit = 0 if wall else statistics.median(self.work() for _ in range(400))

    def work(self) -> int:
        """Nanoseconds that a fixed piece of work takes now: products of matrices, and Python."""
        start = time.perf_counter_ns()
        x, up, down = self.matrices
        for _ in range(6):
            x = self.silu(x @ up) @ down * 0.01
        counts: dict[int, int] = {}
        for i in range(3000):
            counts[i % 97] = counts.get(i % 89, 0) + i
        return time.perf_counter_ns() - start

    def step(self) -> tuple[list[Any], int]:
        """One step: what came out, and nanoseconds."""
        speed = 1.0
        if self.unit:
            self.last.append(self.work())
            speed = self.unit / statistics.median(self.last)
        start = time.perf_counter_ns()
        outputs = self.engine.step()
        return outputs, int((time.perf_counter_ns() - start) * speed)

    def serve(self, plan: Plan, rng: random.Random) -> list[dict[str, Any]]:
        """Rows of the log; where nothing runs, time passes at once."""
        from vllm import SamplingParams

        arrivals = [int(arrival_s * 1e9) for arrival_s, *_ in plan]
        first: dict[int, int] = {}
        rows: list[dict[str, Any]] = []
        sent = now = 0
        while len(rows) < len(plan):
            if sent == len(rows):
                now = max(now, arrivals[sent])
            while sent < len(plan) and arrivals[sent] <= now:
                _, prompt, output = plan[sent]
                ids = [rng.randrange(5, 1000) for _ in range(prompt)]
                asked = SamplingParams(
                    max_tokens=output, min_tokens=output, ignore_eos=True, temperature=0.0, detokenize=False
                )
                self.engine.add_request(str(sent), {"prompt_token_ids": ids}, asked)
                sent += 1
            outputs, took = self.step()
            now += took
            for each in outputs:
                i = int(each.request_id)
                if each.outputs and each.outputs[0].token_ids:
                    first.setdefault(i, now)
                if each.finished:
                    rows.append(
                        {
                            "arrival": round(BASE_S + arrivals[i] / 1e9, 6),
                            "client": "ab"[i % 3 == 0],
                            "prompt_tokens": plan[i][1],
                            "output_tokens": len(each.outputs[0].token_ids),
                            "ttft_ms": round((first[i] - arrivals[i]) / 1e6, 3),
                            "latency_ms": round((now - arrivals[i]) / 1e6, 3),
                            "status": 200,
                        }
                    )
        return rows


def lengths(rng: random.Random) -> tuple[int, int]:
    """Prompt and output tokens of a request."""
    prompt = min(max(int(rng.lognormvariate(5.0, 0.8)), 4), 1000)
    return prompt, min(max(int(rng.lognormvariate(3.2, 0.7)), 1), 200)


def main() -> None:
    """Measure the capacity, then serve phases of load and write the log."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=600, help="of the log's clock, at least (default: 600)")
    parser.add_argument("--running", type=int, default=8, help="most requests at once (default: 8)")
    parser.add_argument("--tokens", type=int, default=256, help="most tokens of a step (default: 256)")
    parser.add_argument("--blocks", type=int, default=512, help="KV blocks of 32 tokens (default: 512)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wall", action="store_true", help="take the wall clock, whatever the speed does")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    server = Server(options.running, options.tokens, options.blocks, options.wall)
    burst: Plan = [(0.0, *lengths(rng)) for _ in range(64)]
    server.serve(burst, rng)
    rows = server.serve(burst, rng)
    capacity = 64e3 / max(row["latency_ms"] for row in rows)
    print(f"capacity {capacity:.1f} requests/s", flush=True)
    plan: Plan = []
    start = 0.0
    while start < options.seconds:
        for load, span in rng.sample(PHASES, len(PHASES)):
            arrival = start
            while load and (arrival := arrival + rng.expovariate(load * capacity)) < start + span:
                plan.append((arrival, *lengths(rng)))
            start += span
    print(f"{len(plan):,} requests in {start:.0f} s", flush=True)
    rows = sorted(server.serve(plan, rng), key=lambda row: row["arrival"])
    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
