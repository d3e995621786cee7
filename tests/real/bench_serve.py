"""The real `vllm bench serve`, run against a server under test, as a second opinion on what loadgen measures."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

TIMEOUT_SECONDS = 300.0


class VllmServer(msgspec.Struct, frozen=True):
    """A real vLLM server that is up, with the tiny model."""

    url: str
    """Without a path and without a slash at its end."""
    model: str
    """As the server calls it."""
    model_path: Path
    """The folder of the model and its tokenizer."""
    pid: int
    """Of the API server; its engine is a child of it, in the same process group."""
    log: Path
    """What it wrote to standard output and error."""


class BenchResult(msgspec.Struct, frozen=True):
    """What `vllm bench serve` reports. It times from the send of a request, so its TTFT is our service TTFT."""

    completed: int
    mean_ttft_seconds: float
    mean_tpot_seconds: float
    request_throughput: float
    output_token_throughput: float


def run_bench_serve(
    server: VllmServer, *, prompt_tokens: int, output_tokens: int, concurrency: int, requests: int
) -> BenchResult:
    """Run a closed loop of `concurrency` over `requests` random completions of exactly `output_tokens` each.

    Every call draws a new seed: prompts that the server has seen before would be answered out of its prefix cache.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve"]
        command += ["--backend", "openai", "--base-url", server.url, "--endpoint", "/v1/completions"]
        command += ["--model", server.model, "--tokenizer", str(server.model_path)]
        command += ["--dataset-name", "random", "--random-range-ratio", "0"]
        command += ["--random-input-len", str(prompt_tokens), "--random-output-len", str(output_tokens), "--ignore-eos"]
        command += ["--num-prompts", str(requests), "--num-warmups", str(concurrency)]
        command += ["--max-concurrency", str(concurrency), "--request-rate", "inf"]
        command += ["--seed", str(secrets.randbelow(2**31)), "--disable-tqdm"]
        command += ["--save-result", "--result-dir", str(result.parent), "--result-filename", result.name]
        offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        ended = subprocess.run(
            command,
            env=os.environ | offline,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        if ended.returncode != 0 or not result.exists():
            raise RuntimeError(f"vllm bench serve ended with {ended.returncode}:\n{ended.stdout[-4000:]}")
        report = json.loads(result.read_bytes())
    return BenchResult(
        completed=report["completed"],
        mean_ttft_seconds=report["mean_ttft_ms"] / 1e3,
        mean_tpot_seconds=report["mean_tpot_ms"] / 1e3,
        request_throughput=report["request_throughput"],
        output_token_throughput=report["output_throughput"],
    )
