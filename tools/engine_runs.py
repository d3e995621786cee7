"""What the benchmarks of the engine target share: their options, processes that leave nothing behind, runs of loadgen.

Not a script. A process that holds an engine has processes below it and sockets in a folder: each gets a process group
and a temporary folder of its own, and both are gone when it has ended, however it did.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import tomli_w

Profile = dict[str, Any]

TOOLS: Final = Path(__file__).resolve().parent
ENGINE_ARGS: Final = {"dtype": "float32", "enforce_eager": True, "max_model_len": 1024, "max_num_seqs": 64}
"""For a tiny model on a CPU."""
LEAST_COMPLETED: Final = 0.99
STOP_SECONDS: Final = 20.0


class Run(NamedTuple):
    """A run of loadgen: its folder, which lasts as long as the caller's, and its summary."""

    folder: Path
    summary: dict[str, Any]

    @property
    def stage(self) -> dict[str, Any]:
        stage: dict[str, Any] = self.summary["stages"][0]
        return stage


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """The options that both have: the model, the engine's arguments, how many pairs, where the numbers go."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder, or a name on the Hugging Face hub")
    parser.add_argument("--engine-args", type=json.loads, default=ENGINE_ARGS, help="a JSON object, by vLLM's names")
    parser.add_argument("--json", type=Path, help="write what every run measured to this file")
    return parser


def say(text: str) -> None:
    """Progress, beside the table on standard output."""
    print(text, file=sys.stderr, flush=True)


def loadgen(profile: Profile, folder: Path) -> Run:
    """Run `loadgen run` on a profile, with its files below `folder`.

    Ends the benchmark where more than one request in a hundred was not completed: what is compared must be the same
    work.
    """
    folder.mkdir(parents=True)
    source, out = folder / "bench.toml", folder / "run"
    source.write_text(tomli_w.dumps(profile), encoding="utf-8")
    command = [sys.executable, "-m", "loadgen.cli.commands", "run", str(source), "--out", str(out), "--quiet"]
    status = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    if not (out / "summary.json").exists():
        raise SystemExit(f"loadgen ended with exit code {status}")
    run = Run(out, json.loads((out / "summary.json").read_text(encoding="utf-8")))
    books = run.stage["books"]
    if books["completed"] < LEAST_COMPLETED * books["intended"]:
        raise SystemExit(f"too few requests were completed: {books}; {run.stage.get('failure_messages')}")
    return run


@contextlib.contextmanager
def process_group(command: list[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that leads a group of its own and writes into `log`; nobody of the group is left after the context."""
    with tempfile.TemporaryDirectory(prefix="vllm-") as sockets, log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | {"VLLM_RPC_BASE_PATH": sockets},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _end_group(process)


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + STOP_SECONDS
    _send_to_group(process, signal.SIGTERM)
    while time.monotonic() < deadline and _send_to_group(process, 0):
        process.poll()
        time.sleep(0.1)
    _send_to_group(process, signal.SIGKILL)
    process.wait()


def _send_to_group(process: "subprocess.Popen[bytes]", number: int) -> bool:
    """Send a signal (0: none) to the group; False if nobody is left in it."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
