"""What vLLM's API server costs: the same schedule on an engine inside loadgen and over HTTP, by percentile.

Each pair is two runs of loadgen that differ in `[target]` alone: `kind = "engine"`, and `kind = "http"` against a vLLM
server that this script starts with the same engine arguments and ends again. Seed, nonce, arrivals and lengths are the
profile's, so both see the same requests at the same instants. Every run has a fresh engine, so none finds a prefix
cache that another has filled. Which goes first alternates.

The Markdown table shows of each side the run whose percentile is the median over the pairs (of an even number the lower
one), with the 95 % interval of that percentile within that run; and of the differences within a pair (HTTP less engine)
the mean, its Student's 95 % interval across the pairs, and the smallest and the largest. The two intervals answer two
questions: how well one run knows its own percentile, and how well the mean over such pairs is known. The latter takes
three pairs or more; of two it would be 13 standard errors to either side. A percentile with fewer than ten samples
beyond it in any run stands as n/a: p99 of TTFT needs 1,000 requests in the window. Below it: what shows whether the two
are comparable and whether loadgen kept up.

In process, the prompt's template and its tokens are made ahead of the due time; a server does that after the request
has come. That is part of the difference, and so is the network, here the loopback. Where server, engine and loadgen
share few cores, so is their contention for them.

On a CPU set VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
VLLM_NO_USAGE_STATS=1.

usage: python tools/front_end_cost.py MODEL [--pairs N] [--rate N] [--duration SECONDS] [--engine-args JSON]
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engine_runs import Profile, Run, loadgen, parser_of, process_group, say

from loadgen.judge.repeats import across
from loadgen.targets.engine.postmortem import epitaph

METRICS = ("ttft", "itl", "tpot", "response")
PERCENTILES = ("p50", "p90", "p99")
START_SECONDS = 600.0
FEWEST_PAIRS = 3
"""So many have an interval across them."""


# --- the server -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server(model: str, engine_args: Mapping[str, Any], log: Path) -> Iterator[str]:
    """A vLLM server on a free port of the loopback; gives its URL. Its whole process group ends with the context."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", model, *flags_of(engine_args)]
    with process_group(command, log) as process:
        _wait_until_healthy(url, process, log)
        yield url


def flags_of(engine_args: Mapping[str, Any]) -> list[str]:
    """Engine arguments as the options of vLLM's server: `max_model_len = 1024` is `--max-model-len 1024`."""
    flags: list[str] = []
    for name, value in engine_args.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, list):
            flags += [f"--{option}", *map(str, value)]
        else:
            flags += [f"--{option}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return flags


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_until_healthy(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(epitaph(f"the server ended with exit code {process.returncode}", log))
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:  # not listening yet
            time.sleep(0.5)
    raise SystemExit(epitaph(f"the server was not up after {START_SECONDS:.0f} s", log))


# --- the runs ---------------------------------------------------------------------------------------------------------


def profile_of(options: argparse.Namespace, target: Profile, nonce: int) -> Profile:
    """The one schedule, on this target."""
    return {
        "target": target,
        "workload": {
            "prompt_tokens": options.prompt_tokens,
            "output_tokens": options.output_tokens,
            "seed": 1,
            "nonce": nonce,
        },
        "load": {
            "kind": "poisson",
            "rate": options.rate,
            "duration": f"{options.duration}s",
            "warmup": f"{options.warmup}s",
        },
        "workers": {"processes": 1},
        "output": {"formats": ["json"]},
    }


def on_engine(options: argparse.Namespace, folder: Path, nonce: int) -> Run:
    target = {"kind": "engine", "model": options.model, "engine_args": options.engine_args}
    return loadgen(profile_of(options, target, nonce), folder / "engine")


def over_http(options: argparse.Namespace, folder: Path, nonce: int) -> Run:
    with server(options.model, options.engine_args, folder / "server.log") as url:
        target = {"kind": "http", "url": url, "preflight_timeout": "60s"}
        return loadgen(profile_of(options, target, nonce), folder / "http")


# --- showing ----------------------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """A percentile of one run and its interval within that run, in milliseconds; no upper end where it is open."""

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        ends = ("?" if end is None else f"{end:.2f}" for end in (self.low, self.high))
        return f"{self.value:.2f} [{', '.join(ends)}]"


def table(engines: Sequence[Run], servers: Sequence[Run]) -> Iterator[str]:
    """The latencies side by side, in milliseconds."""
    yield "| ms | engine | HTTP | mean difference | its 95 % interval | smallest to largest |"
    yield "|---|---:|---:|---:|---:|---:|"
    for metric in METRICS:
        for percentile in PERCENTILES:
            sides = [_known(runs, metric, percentile) for runs in (engines, servers)]
            cells = ["n/a"] * 5 if None in sides else _cells(*sides)
            yield f"| {metric} {percentile} | {' | '.join(cells)} |"


def _cells(engine: Sequence[Known], http: Sequence[Known]) -> list[str]:
    differences = [there.value - here.value for here, there in zip(engine, http, strict=True)]
    overall = across(differences)
    enough = len(differences) >= FEWEST_PAIRS and overall.ci is not None
    interval = "{:.2f} to {:.2f}".format(*overall.ci) if enough else f"needs {FEWEST_PAIRS} pairs"
    spread = f"{min(differences):.2f} to {max(differences):.2f}" if len(differences) > 1 else "one pair"
    return [str(_median(engine)), str(_median(http)), f"{overall.mean:.2f}", interval, spread]


def _median(runs: Sequence[Known]) -> Known:
    """The run in the middle by its value; of an even number the lower one."""
    return sorted(runs, key=lambda run: run.value)[(len(runs) - 1) // 2]


def _known(runs: Sequence[Run], metric: str, percentile: str) -> list[Known] | None:
    """A percentile of every run; None where too few samples lie beyond it in one of them."""
    latencies = [run.stage["latency_seconds"][metric] for run in runs]
    # Only what is insufficient needs to be told; what the summary does not tell is sufficient.
    if not all(latency.get("sufficient", {}).get(percentile, True) for latency in latencies):
        return None
    return [_in_ms(latency[percentile], *latency.get("ci", {}).get(percentile, (None, None))) for latency in latencies]


def _in_ms(value: float, low: float | None, high: float | None) -> Known:
    return Known(1e3 * value, *(None if end is None else 1e3 * end for end in (low, high)))


def comparability(engines: Sequence[Run], servers: Sequence[Run]) -> Iterator[str]:
    """A table of what must agree, and of the generator's own lateness: the largest of all runs."""
    yield "| | engine | HTTP |"
    yield "|---|---:|---:|"
    for name, of in (
        ("requests completed in the window", lambda run: run.stage["window"]["books"]["completed"]),
        ("mean prompt tokens", lambda run: run.stage["tokens"]["prompt"]),
        ("mean output tokens", lambda run: run.stage["tokens"]["output"]),
        ("output tokens a chunk", lambda run: run.stage["tokens"]["per_chunk"]),
        ("mean requests in flight", lambda run: run.stage["concurrency"]["mean"]),
    ):
        shown = (statistics.median(map(of, runs)) for runs in (engines, servers))
        yield f"| {name} | {' | '.join(f'{value:,.5g}' for value in shown)} |"
    lateness = (max(1e3 * run.summary["generator"]["lateness"]["p99"] for run in runs) for runs in (engines, servers))
    yield f"| lateness p99 of the worst run, ms | {' | '.join(f'{value:.2f}' for value in lateness)} |"
    valid = (sum(run.summary["verdict"]["valid"] for run in runs) for runs in (engines, servers))
    yield f"| valid runs, of {len(engines)} | {' | '.join(map(str, valid))} |"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second, Poisson")
    parser.add_argument("--duration", type=int, default=110, help="seconds of arrivals, the warm-up included")
    parser.add_argument("--warmup", type=int, default=5, help="seconds before the window")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    options = parser.parse_args()
    engines: list[Run] = []
    servers: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for pair in range(options.pairs):
            # Each goes first in every other pair: what drifts with time falls on both alike.
            turns = [(engines, on_engine), (servers, over_http)]
            for side, measure in turns if pair % 2 == 0 else turns[::-1]:
                below = Path(folder) / str(pair)
                below.mkdir(exist_ok=True)
                side.append(measure(options, below, pair + 1))
                say(f"pair {pair + 1}, {measure.__name__}: done (load average {os.getloadavg()[0]:.1f})")
    print("\n".join([*table(engines, servers), "", *comparability(engines, servers)]))
    if not all(run.summary["verdict"]["valid"] for run in (*engines, *servers)):
        print("\nNot all runs were valid: loadgen was late itself, so this is not the server's cost alone.")
    if options.json is not None:
        found = {name: [run.summary for run in side] for name, side in (("engine", engines), ("http", servers))}
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
