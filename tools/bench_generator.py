"""What the generator costs, how late it is, how fast it can go, and whether its memory grows.

Everything is measured on the command line's own `loadgen run`, in processes of its own, against `tools/sink.py`, which
is far cheaper than any client, in a process of its own too. Each number's derivation stands at the function that makes
it. Machines differ and are shared: parts are repeated in turn and medians are shown, beside a floor measured in the
same run (`tools/bench_floor.py`, the cheapest client in Python), so that ratios can be compared where times cannot.

usage: python tools/bench_generator.py [--part cpu lateness peak memory] [--repeat N] [--json FILE]
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import tomli_w
from rich.console import Console
from rich.table import Table

from loadgen.measure.journal import WorkerStats, read_run, read_stage

TOOLS = Path(__file__).resolve().parent
STREAMS = 64
TOKENS = 128
STEP_MS = 10.0
RATES = (100, 1000, 5000)
IDLE_STREAMS = (100, 2000)
PARTS = ("cpu", "lateness", "peak", "memory")

Profile = dict[str, Any]


class Row(NamedTuple):
    """What was measured, its value and unit, and the budget or the comparison beside it."""

    what: str
    value: float
    unit: str
    beside: str = ""


class Cost(NamedTuple):
    """What one run took. `cpu_seconds`: user and system time of all its processes; `worker_seconds`: of its workers."""

    cpu_seconds: float
    worker_seconds: float
    wall_seconds: float
    summary: dict[str, Any]


# --- processes --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def sink(tokens: int = 0, step_ms: float = STEP_MS) -> Iterator[int]:
    """A sink server; gives its port."""
    command = [sys.executable, str(TOOLS / "sink.py"), "--tokens", str(tokens), "--step-ms", str(step_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.stdin.close()


def served(port: int) -> int:
    """How many requests a sink has answered."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as reply:
        return int(json.load(reply)["served"])


def profile(port: int, load: Profile, *, streamed: bool, **workers: Any) -> Profile:
    """A profile of short prompts, without an HTML report."""
    return {
        "target": {"kind": "http", "url": f"http://127.0.0.1:{port}", "stream": streamed, "preflight_timeout": "60s"},
        "workload": {"prompt_tokens": 64, "output_tokens": TOKENS if streamed else 1},
        "load": load,
        "workers": workers,
        "output": {"formats": ["json"]},
    }


def closed_loop(port: int, requests: int, *, streamed: bool, streams: int = STREAMS) -> Profile:
    """One worker with so many requests in flight, until `requests` have started."""
    load = {"kind": "concurrency", "concurrency": streams, "requests": requests}
    return profile(port, load, streamed=streamed, processes=1, max_inflight=max(streams, 64))


def loadgen(settings: Profile, *, while_running: Callable[[psutil.Process], None] | None = None) -> Cost:
    """Run `loadgen run` to its end, whatever its verdict.

    The CPU time is `wait4`'s: of the process and of all its descendants that were waited for, as loadgen does for its
    workers. That of the workers is what the last of their reports in the run's journal says.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        source, run = Path(folder) / "bench.toml", Path(folder) / "run"
        source.write_text(tomli_w.dumps(settings))
        began = time.monotonic()
        process = psutil.Popen(
            [sys.executable, "-m", "loadgen.cli.commands", "run", str(source), "--out", str(run), "--quiet"],
            stdout=subprocess.DEVNULL,
        )
        if while_running is not None:
            while_running(process)
        _, _, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - began
        summary = json.loads((run / "summary.json").read_text())
        worker_ns: dict[int, int] = {}
        for record in [*read_run(run), *read_stage(run, 0)]:
            if isinstance(record, WorkerStats):
                worker_ns[record.pid] = max(worker_ns.get(record.pid, 0), record.cpu_ns)
    return Cost(usage.ru_utime + usage.ru_stime, sum(worker_ns.values()) / 1e9, wall, summary)


def floor(port: int, requests: int, *, streamed: bool) -> float:
    """CPU seconds that the floor takes for so many requests, start-up included."""
    command = [sys.executable, str(TOOLS / "bench_floor.py"), "--port", str(port)]
    command += ["--connections", str(STREAMS), "--requests", str(requests), *(["--streamed"] if streamed else [])]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit("the floor failed")
    return usage.ru_utime + usage.ru_stime


# --- cpu and peak -----------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """One way to be loaded: how many requests the short and the long run have, and what one of them is counted as.

    `floor_times`: how many times as many the floor gets, which is so much faster that its difference would drown.
    """

    name: str
    unit: str
    tokens: int
    step_ms: float
    short: int
    long: int
    floor_times: int
    budget_us: float
    peak_per_second: float
    """What a worker core is meant to reach; 0: it is the server that paces."""

    @property
    def units(self) -> int:
        """Requests or tokens by which the long run exceeds the short one."""
        return (self.long - self.short) * max(self.tokens, 1)


CASES = (
    Case("one-chunk requests", "request", 0, 0.0, 4_000, 24_000, 8, 200.0, 4_000),
    Case("streams paced at 10 ms", "token", TOKENS, STEP_MS, STREAMS, 13 * STREAMS, 1, 25.0, 0),
    Case("streams saturated", "token", TOKENS, 0.0, 8 * STREAMS, 72 * STREAMS, 8, 25.0, 40_000),
)


class Difference(NamedTuple):
    """A long closed-loop run less a short one; per unit (request or token), in us, and units per second."""

    all_us: float
    worker_us: float
    floor_us: float
    per_wall_second: float


def difference(case: Case) -> Difference:
    """One round of a case: floor and generator, each short and long, against one sink.

    - us per unit = (CPU of the long run - CPU of the short run) / (units of the long run - units of the short run).
      Start-up, the preflight and what the summary costs at least are in both and cancel.
    - units per wall second = the throughput of the long run's summary: requests (or tokens) that ended in the window
      over its length.
    """
    streamed = case.tokens > 0
    with sink(case.tokens, case.step_ms) as port:
        floors = [floor(port, requests * case.floor_times, streamed=streamed) for requests in (case.short, case.long)]
        short, long = (loadgen(closed_loop(port, requests, streamed=streamed)) for requests in (case.short, case.long))
    stage = long.summary["stages"][0]
    if stage["books"]["completed"] != case.long:
        raise SystemExit(f"{case.name}: {stage['books']}")
    return Difference(
        (long.cpu_seconds - short.cpu_seconds) / case.units * 1e6,
        (long.worker_seconds - short.worker_seconds) / case.units * 1e6,
        (floors[1] - floors[0]) / (case.units * case.floor_times) * 1e6,
        stage["throughput"]["output_tokens" if streamed else "requests"],
    )


def medians(rounds: list[Difference]) -> Difference:
    return Difference(*(statistics.median(values) for values in zip(*rounds, strict=True)))


def measure_closed_loops(parts: set[str], repeat: int) -> Iterator[Row]:
    """Cost and peak come from the same runs.

    - cpu: medians of `difference` over the rounds; the ratio is that of the medians.
    - peak per core = 1 / (the workers' CPU per unit), which is what one worker with a core of its own reaches; the rate
      in wall time is what one worker did reach here, beside its parent and the sink.
    """
    rounds: dict[str, list[Difference]] = {case.name: [] for case in CASES}
    for _ in range(repeat):
        for case in CASES:
            rounds[case.name].append(difference(case))
    for case in CASES:
        found = medians(rounds[case.name])
        if "cpu" in parts:
            ratio = f"{found.all_us / found.floor_us:.1f} x the floor's {found.floor_us:.1f} us"
            budget = f"budget {case.budget_us:g} us; {ratio}"
            yield Row(f"{case.name}: CPU of all processes", found.all_us, f"us/{case.unit}", budget)
            yield Row(f"{case.name}: of which the worker", found.worker_us, f"us/{case.unit}")
        if "peak" in parts:
            target = f"target {case.peak_per_second:,.0f}" if case.peak_per_second else ""
            yield Row(f"{case.name}: per worker core", 1e6 / found.worker_us, f"{case.unit}s/s", target)
            yield Row(f"{case.name}: reached by one worker", found.per_wall_second, f"{case.unit}s/s")


# --- lateness ---------------------------------------------------------------------------------------------------------


def measure_lateness(repeat: int) -> Iterator[Row]:
    """Poisson arrivals of one-chunk requests for 10 s, with as many workers as loadgen chooses.

    Lateness is the summary's own: sent - admitted, over the whole run. Achieved/offered is the rate of the requests
    that ended in the window over the profile's rate. Medians of the rounds.
    """
    found: dict[int, list[tuple[float, float, float]]] = {rate: [] for rate in RATES}
    with sink() as port:
        for _ in range(repeat):
            for rate in RATES:
                load = {"kind": "poisson", "rate": rate, "duration": "10s"}
                summary = loadgen(profile(port, load, streamed=False)).summary
                lateness = summary["generator"]["lateness"]
                achieved = summary["stages"][0]["throughput"]["requests"] / rate
                found[rate].append((lateness["p50"] * 1e6, lateness["p99"] * 1e6, achieved))
    for rate, rounds in found.items():
        p50, p99, achieved = (statistics.median(values) for values in zip(*rounds, strict=True))
        yield Row(f"{rate:,}/s: lateness p50", p50, "us")
        yield Row(f"{rate:,}/s: lateness p99", p99, "us", "budget 2,000 us on a quiet machine" if rate == 1000 else "")
        yield Row(f"{rate:,}/s: achieved / offered", achieved, "")


# --- memory -----------------------------------------------------------------------------------------------------------


def resident(process: psutil.Process) -> tuple[int, int]:
    """Resident bytes of a loadgen parent and of its one worker, 0 where that is not there."""
    try:
        workers = [child.memory_info().rss for child in process.children()]
        return process.memory_info().rss, max(workers, default=0)
    except psutil.NoSuchProcess:
        return 0, 0


def running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def measure_growth(first: int, last: int) -> Iterator[Row]:
    """Resident memory of parent and worker in one closed-loop run, when the sink had served `first` and `last` of it.

    The run has a little more requests than `last`, so that both are seen while it runs.
    """
    seen: dict[int, tuple[int, int]] = {}
    with sink() as port:

        def watch(process: psutil.Process) -> None:
            while running(process):
                count = served(port)
                for mark in (first, last):
                    if count >= mark and mark not in seen:
                        seen[mark] = resident(process)
                time.sleep(0.2)

        loadgen(closed_loop(port, last + last // 50, streamed=False), while_running=watch)
    for position, name in enumerate(("parent", "worker")):
        for mark in (first, last):
            yield Row(f"{name} after {mark:,} requests", seen[mark][position] / 1e6, "MB")
        growth = seen[last][position] / seen[first][position] - 1
        yield Row(f"{name}: growth", 100 * growth, "%", "budget: none (within 10 %)")


def measure_streams() -> Iterator[Row]:
    """Bytes per stream in flight: the largest resident memory of the worker with 2,000 streams that wait for their
    next token, less that with 100, over 1,900."""
    largest = []
    for streams in IDLE_STREAMS:
        peak = 0

        def watch(process: psutil.Process) -> None:
            nonlocal peak
            while running(process):
                peak = max(peak, resident(process)[1])
                time.sleep(0.05)

        with sink(tokens=2, step_ms=4000) as port:
            loadgen(closed_loop(port, streams, streamed=True, streams=streams), while_running=watch)
        largest.append(peak)
    each = (largest[1] - largest[0]) / (IDLE_STREAMS[1] - IDLE_STREAMS[0])
    yield Row("worker: memory per stream in flight", each / 1e3, "kB", "budget 30 kB")


# --- showing ----------------------------------------------------------------------------------------------------------


def show(title: str, rows: list[Row], console: Console) -> None:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column, justify in (("what", "left"), ("value", "right"), ("unit", "left"), ("beside it", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for name, value, unit, note in rows:
        table.add_row(name, f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}", unit, note)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=["cpu", "lateness", "peak"])
    parser.add_argument("--repeat", type=int, default=3, help="rounds of cpu, peak and lateness")
    parser.add_argument("--memory-requests", type=int, default=1_000_000, help="the later mark of the memory part")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    options = parser.parse_args()
    parts = set(options.part)
    console = Console(width=120)
    found: dict[str, list[Row]] = {}
    if parts & {"cpu", "peak"}:
        found["closed loops"] = list(measure_closed_loops(parts, options.repeat))
        show("Closed loops, one worker", found["closed loops"], console)
    if "lateness" in parts:
        found["lateness"] = list(measure_lateness(options.repeat))
        show("Lateness", found["lateness"], console)
    if "memory" in parts:
        last = options.memory_requests
        found["memory"] = [*measure_growth(last // 10, last), *measure_streams()]
        show("Memory", found["memory"], console)
    if options.json is not None:
        rows = {title: [row._asdict() for row in rows] for title, rows in found.items()}
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
