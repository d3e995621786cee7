"""What `loadgen simulate` costs: CPU for each simulated request and second, against the floor under it.

A Poisson load on the simulated engine at its defaults, 128 prompt and 32 output tokens, is run whole: producer, worker,
measurement, journal, summary. The floor is the engine's bare scheduler, stepped over the same arrivals; whatever runs
the model in Python costs as much. Both are measured in turns, and the cheapest of each counts. Prints a line of JSON.

usage: python tools/bench_simulate.py [--rate REQUESTS_PER_SECOND] [--seconds SECONDS] [--rounds N]
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadgen.load.arrivals import Schedule
from loadgen.profile import Fixed, Poisson, Profile, SimTarget, Workload
from loadgen.runner.simulate import simulate
from loadgen.runner.virtual_time import run_virtually
from loadgen.sim.config import SimConfig
from loadgen.sim.engine.scheduler import Scheduler, SimRequest
from loadgen.units import NS_PER_SECOND, Duration, Rate

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 32


class Cost(NamedTuple):
    """CPU seconds for so many requests."""

    cpu_seconds: float
    requests: int

    @property
    def us_per_request(self) -> float:
        """Microseconds of CPU a request."""
        return self.cpu_seconds / self.requests * 1e6


def simulated(load: Poisson) -> int:
    """Run the load as `loadgen simulate` does; returns how many requests were completed."""
    profile = Profile(
        target=SimTarget(),
        workload=Workload(prompt_tokens=PROMPT_TOKENS, output_tokens=Fixed(value=OUTPUT_TOKENS)),
        load=load,
    )
    with tempfile.TemporaryDirectory() as folder:
        (stage,) = run_virtually(partial(simulate, profile, directory=Path(folder) / "run")).stages
    return stage.books.completed


def stepped(load: Poisson) -> int:
    """Step the scheduler alone over the arrivals of the same load; returns how many requests were completed."""
    schedule = Schedule(load, np.random.default_rng((0, 0)), 0)
    instants = schedule.take(schedule.end_ns, 1 << 30)
    scheduler, now_ns, added, finished = Scheduler(SimConfig()), 0, 0, 0
    while finished < len(instants):
        if scheduler.idle:
            now_ns = max(now_ns, instants[added])
        while added < len(instants) and instants[added] <= now_ns:
            scheduler.add(SimRequest(added, PROMPT_TOKENS, OUTPUT_TOKENS), instants[added])
            added += 1
        step = scheduler.step(now_ns)
        assert step is not None
        finished += sum(emission.finished for emission in step.emissions)
        now_ns = step.end_ns
    return finished


def cost(run: Callable[[Poisson], int], load: Poisson) -> Cost:
    """What a run of the load costs."""
    began = time.process_time()
    requests = run(load)
    return Cost(time.process_time() - began, requests)


def main() -> None:
    """Measure both in turns, and say what each costs."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rate", type=float, default=10.0)
    arguments.add_argument("--seconds", type=float, default=600.0)
    arguments.add_argument("--rounds", type=int, default=3)
    asked = arguments.parse_args()
    load = Poisson(rate=Rate(asked.rate), duration=Duration(round(asked.seconds * NS_PER_SECOND)))
    rounds = [(cost(simulated, load), cost(stepped, load)) for _ in range(asked.rounds)]
    whole, floor = (min(costs) for costs in zip(*rounds, strict=True))
    print(
        json.dumps(
            {
                "rate": asked.rate,
                "seconds": asked.seconds,
                "us_per_request": round(whole.us_per_request),
                "simulated_seconds_per_cpu_second": round(asked.seconds / whole.cpu_seconds),
                "floor_us_per_request": round(floor.us_per_request),
                "times_the_floor": round(whole.us_per_request / floor.us_per_request, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
