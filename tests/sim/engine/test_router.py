"""Replicas behind a router: whom each request goes to, and what queueing theory says of the waits."""

import math
from collections.abc import Callable
from statistics import fmean, stdev
from typing import Final, NamedTuple

import anyio
import numpy as np
import pytest

from loadgen.runner.virtual_time import VirtualClock, run_virtually
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.sim.engine.router import Router, Routing, open_replicas
from loadgen.units import NS_PER_SECOND

SERVICE_SECONDS: Final = 0.01
# One request after the other, each of one step of exactly 10 ms.
ONE_BY_ONE: Final = SimConfig(
    max_num_seqs=1,
    step_base_seconds=SERVICE_SECONDS,
    seconds_per_prefill_token=0.0,
    seconds_per_decode_seq=0.0,
    seconds_per_kv_token=0.0,
)
REQUESTS: Final = 10_000


class Mean(NamedTuple):
    value: float
    error: float
    """Its standard error, from the means of 20 batches that follow each other."""


def mean_of(waits: list[float]) -> Mean:
    means = [fmean(batch) for batch in np.array_split(np.array(waits), 20)]
    return Mean(fmean(means), stdev(means) / math.sqrt(len(means)))


def waits(replicas: int, routing: Routing, load: float, lengths: tuple[int, ...] = (1,), seed: int = 1) -> list[float]:
    """How long each request of a Poisson process waited before its service, in seconds.

    `load` is that of a replica; outputs have any of `lengths`, each of them as often as the others, and take as many
    services.
    """

    async def main(clock: VirtualClock) -> list[float]:
        random = np.random.default_rng(seed)
        gaps = random.exponential(SERVICE_SECONDS * fmean(lengths) / load / replicas, REQUESTS)
        seen: list[float] = []

        async def ask(router: Router, length: int) -> None:
            began_ns = clock.now_ns()
            with router.generate(8, length, final_only=True) as stream:
                async for _ in stream:
                    seen.append((clock.now_ns() - began_ns) / NS_PER_SECOND - length * SERVICE_SECONDS)

        async with (
            open_replicas(ONE_BY_ONE, SimFaults(), clock, replicas=replicas, routing=routing, seed=seed) as router,
            anyio.create_task_group() as tasks,
        ):
            for instant, length in zip(np.cumsum(gaps), random.choice(lengths, REQUESTS), strict=True):
                await clock.sleep_until(round(instant * NS_PER_SECOND))
                tasks.start_soon(ask, router, int(length))
        return seen

    return run_virtually(main)


def chosen(replicas: int, routing: Routing, play: Callable[[Router], None], seed: int = 0) -> list[int]:
    """How many requests each replica got of those that `play` asks for at one instant."""

    async def main(clock: VirtualClock) -> list[int]:
        async with open_replicas(
            ONE_BY_ONE, SimFaults(), clock, replicas=replicas, routing=routing, seed=seed
        ) as router:
            play(router)
            return [engine.statistics.requests for engine in router.engines]

    return run_virtually(main)


def ask_for(requests: int) -> Callable[[Router], None]:
    def play(router: Router) -> None:
        for _ in range(requests):
            router.generate(8, 1)

    return play


def test_round_robin_gives_each_replica_its_turn():
    assert chosen(3, "round-robin", ask_for(8)) == [3, 3, 2]


def test_prompts_alone_are_spread_as_generations_are():
    def play(router: Router) -> None:
        for _ in range(4):
            router.prefill(8)

    assert chosen(2, "round-robin", play) == [2, 2]


def test_least_loaded_takes_the_replica_with_the_fewest_unfinished_requests():
    def play(router: Router) -> None:
        first = router.generate(8, 1)  # goes to replica 0
        router.generate(8, 1)  # to 1
        router.generate(8, 1)  # to 2
        router.engines[0].abort(first)
        router.generate(8, 1)  # to 0, which has none any more

    assert chosen(3, "least-loaded", play) == [2, 1, 1]


def test_of_several_that_are_least_loaded_the_next_in_turn_is_taken():
    def play(router: Router) -> None:
        for _ in range(6):
            with router.generate(8, 1):  # given up at once, so that no replica has any
                pass

    assert chosen(3, "least-loaded", play) == [2, 2, 2]


def test_random_is_even_in_the_long_run_and_the_same_for_the_same_seed():
    counts = chosen(4, "random", ask_for(4000), seed=5)
    # Each is binomial of mean 1,000 and deviation sqrt(4,000 x 1/4 x 3/4) = 27.
    assert all(abs(count - 1000) <= 5 * 27 for count in counts)
    assert counts == chosen(4, "random", ask_for(4000), seed=5)
    assert counts != chosen(4, "random", ask_for(4000), seed=6)


@pytest.mark.parametrize("load", [0.5, 0.7, 0.8])
def test_the_mean_wait_at_one_replica_is_that_of_pollaczek_and_khinchine(load):
    # M/D/1: load / (2 (1 - load)) services.
    truth = load / (2 * (1 - load)) * SERVICE_SECONDS
    mean = mean_of(waits(1, "round-robin", load))
    assert mean.error < 0.1 * truth
    assert abs(mean.value - truth) <= 3.5 * mean.error


def test_a_random_half_of_a_poisson_process_is_one_so_that_each_replica_waits_as_if_alone():
    truth = 0.8 / (2 * (1 - 0.8)) * SERVICE_SECONDS
    mean = mean_of(waits(2, "random", 0.8))
    assert mean.error < 0.1 * truth
    assert abs(mean.value - truth) <= 3.5 * mean.error


def test_least_loaded_waits_less_than_round_robin_and_that_less_than_random():
    # The same arrivals for all three, of services of 10 and of 100 ms. Round-robin makes the gaps at a replica more
    # regular than random does (the variance of two gaps is half of the square of their mean); least-loaded sees, too,
    # that a replica is held up by a long service.
    least, in_turn, random = (
        mean_of(waits(2, routing, 0.7, lengths=(1, 10))) for routing in ("least-loaded", "round-robin", "random")
    )
    assert in_turn.value - least.value > 3 * math.hypot(least.error, in_turn.error)
    assert random.value - in_turn.value > 3 * math.hypot(in_turn.error, random.error)


def test_where_all_services_take_the_same_time_the_least_loaded_replica_is_the_next_in_turn():
    assert waits(2, "least-loaded", 0.7) == waits(2, "round-robin", 0.7)


def test_each_replica_has_jitter_of_its_own():
    async def main(clock: VirtualClock) -> list[int]:
        config = SimConfig(jitter_cv=0.5)
        ends: list[int] = []

        async def ask(router: Router) -> None:
            with router.generate(8, 20, final_only=True) as stream:
                async for _ in stream:
                    ends.append(clock.now_ns())

        async with (
            open_replicas(config, SimFaults(), clock, replicas=2, routing="round-robin") as router,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(ask, router)
            tasks.start_soon(ask, router)
        return ends

    one, two = run_virtually(main)
    assert one != two
