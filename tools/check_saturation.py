"""Is the saturation rate that `loadgen run saturate` finds the one that the target has?

Two judgements of one search over real HTTP and real processes:

- Against the embedded simulator the truth is known: `loadgen.sim.engine.capacity`. The answer's error is printed.
- Against any server (`--target URL`): two further runs of loadgen, at 0.9 and 1.15 times the answer, each of 35 mean
  service times or 2,000 requests. The first must be stable and the second unstable.

With neither error nor contradiction the exit code is 0, else 1.

usage: python tools/check_saturation.py [--target URL] [--model NAME] [--prompt TOKENS] [--output TOKENS]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from loadgen.profile import SimTarget
from loadgen.profile.file import load_profile
from loadgen.sim.engine.capacity import capacity

SERVICE_TIMES, REQUESTS = 40, 2400
"""A little more than it takes to tell, since the target fills first."""
FACTORS = {0.9: "stable", 1.15: "unstable"}
TOLERANCE = 0.10


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        found = _loadgen("saturate", Path(folder) / "search", options)
        seconds = time.monotonic() - began
        search = found["search"]
        rate = search.get("saturation")
        print(f"{seconds:.0f} s, {len(search['points'])} stages: {search['reason']}")
        if rate is None:
            return 1
        truth = None if options.target else _truth(options)
        if truth is not None:
            print(f"capacity {truth:.2f}/s: off by {rate / truth - 1:+.1%}")
        right = truth is None or abs(rate / truth - 1) <= TOLERANCE
        service = max(stage["latency_seconds"]["service"]["mean"] for stage in found["stages"][:2])
        return 0 if _confirmed(rate, service, Path(folder), options) and right else 1


def _confirmed(rate: float, service: float, folder: Path, options: argparse.Namespace) -> bool:
    right = True
    for factor, wanted in FACTORS.items():
        offered = rate * factor
        seconds = max(SERVICE_TIMES * service, REQUESTS / offered)
        sets = ["load.kind=poisson", f"load.rate={offered}", f"load.duration={seconds}s"]
        stage = _loadgen("saturate", folder / wanted, options, sets)["stages"][0]
        told = stage["stationary"]["verdict"]
        print(f"at {factor:g} x {rate:.4g}/s: {told} (wanted {wanted}): {stage['stationary']['reason']}")
        right &= told == wanted
    return right


def _loadgen(profile: str, folder: Path, options: argparse.Namespace, sets: list[str] | None = None) -> dict[str, Any]:
    command = [sys.executable, "-m", "loadgen.cli.commands", "run", profile, "--out", str(folder), "--quiet"]
    if options.target:
        command += ["--target", options.target]
    if options.model:
        command += ["--model", options.model]
    lengths = [f"workload.prompt_tokens={options.prompt}", f"workload.output_tokens={options.output}"]
    for one in [*lengths, *_without_search(sets)]:
        command += ["--set", one]
    subprocess.run(command, check=False)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary


def _without_search(sets: list[str] | None) -> list[str]:
    """The changes, and that the keys of the search, which another kind of load does not have, go."""
    return [] if sets is None else ['load={kind="poisson", rate=1, duration="1s"}', *sets]


def _truth(options: argparse.Namespace) -> float:
    target = load_profile("saturate").target
    assert isinstance(target, SimTarget)
    return capacity(target.engine, options.prompt, options.output).requests_per_second


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="a server's URL; absent: the embedded simulator")
    parser.add_argument("--model", help="the model to ask for")
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens")
    parser.add_argument("--output", type=int, default=32, help="output tokens")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
