"""The `loadgen` command as a process, and simulated servers for it to load: what the end-to-end tests share."""

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from loadgen.report.summary_json import read_summary
from loadgen.sim.api.server import ServerSettings
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.summary.summary import Summary

# The engine of these tests is fast, so that it is not what they wait for.
QUICK = SimConfig(step_base_seconds=0.002, seconds_per_prefill_token=1e-6, seconds_per_decode_seq=1e-5)


class Ran(NamedTuple):
    """How the command ended."""

    exit_code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def summary(self) -> Summary:
        return read_summary(self.folder)


def command(folder: Path, profile: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "loadgen.cli.commands", "run", profile, "--out", str(folder), *options]


def run(folder: Path, profile: str, *options: str, timeout: float = 90) -> Ran:
    """Run a profile to its end. `options` are those of the command line."""
    done = subprocess.run(command(folder, profile, *options), capture_output=True, text=True, timeout=timeout)
    return Ran(done.returncode, done.stdout, done.stderr, folder)


def sets(**keys: Any) -> list[str]:
    """`load__rate=5` as `--set load.rate=5`."""
    return [f"--set={name.replace('__', '.')}={json.dumps(value)}" for name, value in keys.items()]


class Server(NamedTuple):
    url: str

    def stats(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/sim/stats") as answer:
            return json.load(answer)


@contextlib.contextmanager
def simulated_server(config: SimConfig = QUICK, **faults: Any) -> Iterator[Server]:
    """The simulated vLLM in a process of its own, which ends when its standard input does."""
    settings = ServerSettings(config=config, faults=SimFaults(**faults))
    with subprocess.Popen(
        [sys.executable, "-m", "loadgen.sim.api.server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdin.write(msgspec.json.encode(settings) + b"\n")
        process.stdin.flush()
        port = json.loads(process.stdout.readline())["port"]
        yield Server(f"http://127.0.0.1:{port}")
        process.stdin.close()
