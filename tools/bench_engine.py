"""What an engine inside loadgen costs in throughput, beside a bare loop over the same engine.

The same closed loop twice, each in fresh processes: `loadgen run` on a `concurrency` profile with `kind = "engine"`,
and `bench_engine_floor.py`, about forty lines of asyncio over `AsyncLLMEngine.generate`. Engine arguments, prompt and
output lengths, sampling parameters, streaming (outputs of what is new) and event loop (uvloop) are the same; prompts
are token ids in both. They alternate, since machines are shared: medians over the pairs are shown.

Throughput is that of a window which is cut from both in the same way, by the ends of requests: it begins with the end
of request number `--skip`, counted in the order of their ends, and ends with that of the last but `--in-flight`. So
neither the start, nor the first prompts that all come at once, nor the tail in which slots fall empty are in it, and
both windows hold the same number of requests. loadgen's ends are those of its `requests.jsonl`, whose writing is part
of what it costs here.

CPU is that of the process in which the engine's front end lives, all threads: its user and system time in the window
over the window's requests (of loadgen's worker from the first to the last of its reports in the window, about one a
second). The engine's core and loadgen's parent are other processes. It tells more than the rates where other work
keeps the machine busy, though it, too, grows then.

On a CPU set VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
VLLM_NO_USAGE_STATS=1.

usage: python tools/bench_engine.py MODEL [--pairs N] [--requests N] [--engine-args JSON] [--json FILE]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from engine_runs import TOOLS, Profile, loadgen, parser_of, process_group, say

from loadgen.measure.delta import StageDelta
from loadgen.measure.journal import WorkerStats, read_stage
from loadgen.targets.engine.postmortem import epitaph

BUDGET = 0.95


class Rates(NamedTuple):
    """What one run reached in its window."""

    requests_per_second: float
    tokens_per_second: float
    cpu_ms_per_request: float


class End(NamedTuple):
    """The end of a request, in seconds of any clock, and its output tokens."""

    seconds: float
    tokens: int


def window(ends: Sequence[End], skip: int, tail: int) -> tuple[int, int]:
    """The window over requests in the order of their ends: the positions of the two whose ends are its own."""
    first, last = skip - 1, len(ends) - 1 - tail
    if last <= first:
        raise SystemExit(f"{len(ends)} requests leave no window after {skip} and before the last {tail}")
    return first, last


def rates(ends: Sequence[End], skip: int, tail: int, cpu_ms_per_request: float) -> Rates:
    """The request that begins the window is not in it, the one that ends it is."""
    first, last = window(ends, skip, tail)
    seconds = ends[last].seconds - ends[first].seconds
    requests, tokens = last - first, sum(end.tokens for end in ends[first + 1 : last + 1])
    return Rates(requests / seconds, tokens / seconds, cpu_ms_per_request)


# --- the bare loop ----------------------------------------------------------------------------------------------------


def bare(options: argparse.Namespace, folder: Path) -> Rates:
    """Run the floor to its end."""
    folder.mkdir(parents=True)
    out, log = folder / "ends.json", folder / "floor.log"
    command = [sys.executable, str(TOOLS / "bench_engine_floor.py"), options.model]
    command += ["--engine-args", json.dumps(options.engine_args), "--out", str(out)]
    for name in ("in_flight", "requests", "prompt_tokens", "output_tokens"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    with process_group(command, log) as process:
        status = process.wait()
    if status:
        raise SystemExit(epitaph(f"the bare loop ended with exit code {status}", log))
    found = json.loads(out.read_text(encoding="utf-8"))
    ends = [End(seconds, tokens) for seconds, tokens, _ in found]
    first, last = window(ends, options.skip, options.in_flight)
    cpu_seconds = found[last][2] - found[first][2]
    return rates(ends, options.skip, options.in_flight, 1e3 * cpu_seconds / (last - first))


# --- loadgen ----------------------------------------------------------------------------------------------------------


def profile_of(options: argparse.Namespace) -> Profile:
    """The closed loop as a profile. The records say when each request ended."""
    return {
        "target": {"kind": "engine", "model": options.model, "engine_args": options.engine_args},
        "workload": {
            "kind": "completion",
            "prompt_format": "tokens",
            "prompt_tokens": options.prompt_tokens,
            "output_tokens": options.output_tokens,
        },
        "load": {"kind": "concurrency", "concurrency": options.in_flight, "requests": options.requests},
        "workers": {"processes": 1, "max_inflight": options.in_flight},
        "output": {"formats": ["json"], "records": True},
    }


def in_loadgen(options: argparse.Namespace, folder: Path) -> Rates:
    """Run loadgen to its end."""
    run = loadgen(profile_of(options), folder)
    lines = (run.folder / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    ends = sorted(End(record["end"], record.get("output_tokens", 0)) for record in records)
    first, last = window(ends, options.skip, options.in_flight)
    return rates(ends, options.skip, options.in_flight, _cpu_ms_per_request(run.folder, first, last))


def _cpu_ms_per_request(folder: Path, first: int, last: int) -> float:
    """CPU of the worker between the reports that came when more than `first` and at most `last` requests had ended.

    A report stands in the journal before what ended with it, at the begin as at the end.
    """
    ended = 0
    reports: list[tuple[int, int]] = []
    for record in read_stage(folder, 0):
        if isinstance(record, WorkerStats) and first < ended <= last:
            reports.append((ended, record.cpu_ns))
        elif isinstance(record, StageDelta):
            ended += len(record.ended)
    if len(reports) < 2:
        raise SystemExit("the window is too short for the CPU time of the worker, which it reports once a second")
    (began, began_ns), (done, done_ns) = reports[0], reports[-1]
    return (done_ns - began_ns) / 1e6 / (done - began)


# --- showing ----------------------------------------------------------------------------------------------------------


def table(bares: Sequence[Rates], ours: Sequence[Rates]) -> list[str]:
    """A Markdown table: medians over the pairs, their ratio, and the ratios of the single pairs."""
    lines = ["| | bare loop | loadgen | ratio | of single pairs |", "|---|---:|---:|---:|---:|"]
    for position, name in enumerate(("requests/s", "output tokens/s", "CPU of the front end's process, ms a request")):
        bare_values, our_values = ([found[position] for found in side] for side in (bares, ours))
        middle = [statistics.median(values) for values in (bare_values, our_values)]
        ratios = sorted(our / floor for floor, our in zip(bare_values, our_values, strict=True))
        digits = 0 if middle[0] >= 1000 else 2
        shown = " | ".join(f"{value:,.{digits}f}" for value in middle)
        lines.append(f"| {name} | {shown} | {middle[1] / middle[0]:.3f} | {ratios[0]:.3f} to {ratios[-1]:.3f} |")
    return lines


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2560)
    parser.add_argument("--skip", type=int, default=256, help="requests before the window")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    options = parser.parse_args()
    bares: list[Rates] = []
    ours: list[Rates] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for pair in range(options.pairs):
            # Each goes first in every other pair: what drifts with time falls on both alike.
            turns = [(bares, bare), (ours, in_loadgen)]
            for side, measure in turns if pair % 2 == 0 else turns[::-1]:
                side.append(measure(options, Path(folder) / f"{measure.__name__}-{pair}"))
                rate, load = side[-1].requests_per_second, os.getloadavg()[0]
                say(f"pair {pair + 1}, {measure.__name__}: {rate:.1f} requests/s (load average {load:.1f})")
    print("\n".join(table(bares, ours)))
    bare_rate, our_rate = (statistics.median(run.requests_per_second for run in side) for side in (bares, ours))
    kept = "kept" if our_rate >= BUDGET * bare_rate else "MISSED"
    print(f"\nbudget: at least {BUDGET:.2f} of the bare loop's requests/s; {kept}")
    if options.json is not None:
        found = {name: [run._asdict() for run in side] for name, side in (("bare", bares), ("loadgen", ours))}
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
