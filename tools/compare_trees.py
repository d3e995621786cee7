"""Two checkouts, one result: profiles in virtual time give the same summary in both, or this says where they differ.

usage: compare_trees.py OLD NEW [PROFILE ...]

By default the ready profiles that can be simulated. Instants of the wall clock and process ids are left out.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROFILES = (
    "poisson", "constant", "gamma", "ramp", "steps", "offline", "concurrency", "concurrency_sweep", "sweep", "grid",
    "saturate", "saturate_slo",
)  # fmt: skip
LABELS = ("started_at", "pid")


def simulated(tree: Path, profile: str) -> dict[str, Any]:
    """The summary of a profile as the code of a checkout measures it."""
    module = "loadgen.cli.commands" if (tree / "loadgen" / "cli").is_dir() else "loadgen.cli"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", module, "simulate", profile, "-q", "--set", "workload.nonce=1", "--out", folder],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree)},
            check=False,  # a missed SLO is a result, too
        )
        return json.loads((Path(folder) / "summary.json").read_bytes())


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """A line for each place at which two summaries differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new} - set(LABELS)):
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{path}[{place}]")
    elif old != new:
        yield f"{path}: {old} and {new}"


def main() -> int:
    old, new = (Path(tree).resolve() for tree in sys.argv[1:3])
    status = 0
    for profile in sys.argv[3:] or PROFILES:
        before, after = simulated(old, profile), simulated(new, profile)
        found = list(differences(before, after))
        requests = sum(stage["books"]["intended"] for stage in after["stages"])
        print(f"{profile:18} {len(after['stages']):3} stages {requests:7,} requests: {len(found) or 'no'} differences")
        for line in found[:10]:
            print(f"  {line[:150]}")
        status |= bool(found)
    return status


if __name__ == "__main__":
    sys.exit(main())
