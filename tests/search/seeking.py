"""Whole searches against a simulated engine: each asked stage is measured, until no other is asked for."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from loadgen.load.stages import StagePlan
from loadgen.measure.outcome import Books
from loadgen.sim.config import SimConfig
from loadgen.summary.summary import Stage
from tests.search.queue_sim import run_stage

MOST_STAGES = 60


def seek(
    ask: Callable[[Sequence[Stage]], StagePlan | None],
    engine: SimConfig,
    prompt: int,
    output: int,
    seed: int,
    seen: Callable[[Stage], Stage] = lambda stage: stage,
) -> list[Stage]:
    """The stages that a search asks for; each has arrivals of its own. `seen` changes what is measured of one."""
    stages: list[Stage] = []
    service = None
    while (plan := ask(stages)) is not None:
        stage = seen(run_stage(engine, prompt, output, plan, seed * 100 + len(stages), service))
        stages.append(stage)
        if service is None and stage.latency_seconds.service is not None:
            service = stage.latency_seconds.service.mean
        assert len(stages) < MOST_STAGES
    return stages


def failing(stage: Stage) -> Stage:
    """A target that fails every request."""
    books = Books(stage.books.intended, 0, {"http_503": stage.books.intended}, 0, 0, 0, 0)
    return replace(stage, books=books, window=replace(stage.window, books=books), failure_messages={"http_503": "no"})


def limited(limit: float, stage: Stage) -> Stage:
    """A generator that sends no more than so many requests a second, so that a backlog of unsent ones grows."""
    rate = stage.offered_rate or 0
    if rate <= limit:
        return stage
    sent = round(stage.window.books.intended * limit / rate)
    return replace(
        stage,
        generator_faults=["p99 lateness of 900 ms exceeds 10 ms."],
        window=replace(stage.window, sent=sent),
        stationary=replace(stage.stationary, growing=True),
        throughput=replace(stage.throughput, requests=min(limit, stage.throughput.requests)),
        latency_seconds=replace(stage.latency_seconds, lateness=stage.latency_seconds.service),
    )
