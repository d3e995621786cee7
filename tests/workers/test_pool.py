"""Workers that die, in virtual time: what they had is lost or given to others, and the books balance to the request."""

from contextlib import asynccontextmanager

import anyio
import pytest
from msgspec.structs import replace

from loadgen.profile import Concurrency, Constant, Fixed, Offline, Profile, SimTarget, Workers, Workload
from loadgen.sim.config import SimFaults
from loadgen.units import NS_PER_SECOND, Duration, Rate
from loadgen.workers.launch import InlineLauncher


class Mortal(InlineLauncher):
    """Workers of which some die: `deaths[worker]` are the instants, one for each of its lives."""

    def __init__(self, clock, deaths: dict[int, list[float]]) -> None:
        super().__init__(clock)
        self._deaths = {worker: list(instants) for worker, instants in deaths.items()}

    @asynccontextmanager
    async def launch(self, worker: int):
        async with super().launch(worker) as incarnation, anyio.create_task_group() as tasks:
            instants = self._deaths.get(worker)
            if instants:
                tasks.start_soon(self._kill_at, incarnation, instants.pop(0))
            yield incarnation
            tasks.cancel_scope.cancel()

    async def _kill_at(self, incarnation, seconds: float) -> None:
        await anyio.sleep_until(seconds)
        await incarnation.channel.aclose()


def profile(load, *, processes=2, max_restarts=2, answer_seconds=1.0) -> Profile:
    target = SimTarget(transport="in-process", faults=SimFaults(response_delay_seconds=answer_seconds))
    return Profile(
        target=target,
        workload=Workload(prompt_tokens=16, output_tokens=Fixed(value=4)),
        load=load,
        workers=Workers(processes=processes, max_restarts=max_restarts),
    )


def seconds(count: float) -> Duration:
    return Duration(round(count * NS_PER_SECOND))


def assert_balanced(summary):
    for stage in summary.stages:
        assert stage.books.ended == stage.books.intended
        assert stage.window.books.ended == stage.window.books.intended


def test_what_was_due_at_a_dead_worker_is_lost_and_what_was_not_is_done_by_the_others(run_virtually):
    # 20/s over two workers; worker 1 dies at 5 s of the clock. It had 10/s x 1 s in flight, and of those that had ended
    # it had not told the last 250 ms: 10 to 13 are lost. Every other request is done, those handed to it for the
    # 250 ms to come included.
    load = Constant(rate=Rate(20), duration=seconds(10))
    summary = run_virtually(profile(load), launcher=lambda clock: Mortal(clock, {1: [5.0]}))
    (stage,) = summary.stages
    assert_balanced(summary)
    assert stage.books.intended == 200
    assert 10 <= stage.books.lost <= 13
    assert stage.books.completed == 200 - stage.books.lost
    assert stage.latency_seconds.lateness.max == 0
    assert sum("Worker 1" in warning for warning in summary.verdict.warnings) == 1


def test_the_only_worker_is_started_again_and_goes_on(run_virtually):
    load = Constant(rate=Rate(20), duration=seconds(10))
    summary = run_virtually(profile(load, processes=1), launcher=lambda clock: Mortal(clock, {0: [3.0, 6.0]}))
    (stage,) = summary.stages
    assert_balanced(summary)
    assert stage.books.intended == 200
    # Two deaths, each with 20 or 21 in flight and at most 5 that had ended and not been told.
    assert 40 <= stage.books.lost <= 52
    assert stage.books.completed == 200 - stage.books.lost


def test_a_restarted_worker_inherits_its_slots_of_a_closed_loop(run_virtually):
    load = Concurrency(concurrency=10, duration=seconds(20))
    summary = run_virtually(profile(load), launcher=lambda clock: Mortal(clock, {1: [5.05]}))
    (stage,) = summary.stages
    assert_balanced(summary)
    # Its five slots were in flight; what they had ended within the last snapshot is lost too.
    assert 5 <= stage.books.lost <= 10
    assert stage.concurrency.max == 10
    assert stage.concurrency.mean > 9.5


def test_a_closed_loop_of_a_given_number_of_requests_starts_all_of_them_over_a_death(run_virtually):
    load = Concurrency(concurrency=10, requests=100)
    summary = run_virtually(profile(load), launcher=lambda clock: Mortal(clock, {0: [3.05]}))
    (stage,) = summary.stages
    assert_balanced(summary)
    assert stage.books.intended == 100
    assert stage.books.completed == 100 - stage.books.lost


def test_when_no_worker_is_left_the_run_ends_with_its_report(run_virtually):
    load = Constant(rate=Rate(20), duration=seconds(600))
    summary = run_virtually(
        profile(load, processes=1, max_restarts=1), launcher=lambda clock: Mortal(clock, {0: [3.0, 6.0]})
    )
    (stage,) = summary.stages
    assert_balanced(summary)
    assert stage.ended_by == "failure"
    assert stage.books.intended < 150
    assert not summary.verdict.valid
    assert any("no worker is left" in reason for reason in summary.verdict.reasons)


@pytest.mark.parametrize("instant", [10.05, 10.5, 10.95])
def test_a_worker_that_dies_while_the_stage_drains_loses_what_it_had(run_virtually, instant):
    load = Constant(rate=Rate(20), duration=seconds(10))
    summary = run_virtually(profile(load), launcher=lambda clock: Mortal(clock, {1: [instant]}))
    (stage,) = summary.stages
    assert_balanced(summary)
    assert stage.books.intended == 200
    assert stage.books.lost > 0
    assert stage.books.completed == 200 - stage.books.lost


class Hanging(InlineLauncher):
    """Workers of which the first to be numbered `worker` falls silent at an instant, without ending."""

    def __init__(self, clock, worker: int, instant: float) -> None:
        super().__init__(clock)
        self._hung = {worker: instant}

    @asynccontextmanager
    async def launch(self, worker: int):
        async with super().launch(worker) as incarnation:
            if worker in self._hung:
                incarnation.channel = Silent(incarnation.channel, self._hung.pop(worker))
            yield incarnation


class Silent:
    """A channel from which nothing comes after an instant."""

    def __init__(self, channel, instant: float) -> None:
        self._channel = channel
        self._instant = instant

    async def send(self, message) -> None:
        await self._channel.send(message)

    async def receive(self):
        message = await self._channel.receive()
        if anyio.current_time() >= self._instant:
            await anyio.sleep_forever()
        return message

    async def aclose(self) -> None:
        await self._channel.aclose()


@pytest.mark.parametrize(
    "load",
    [
        Constant(rate=Rate(20), duration=seconds(60)),
        Concurrency(concurrency=10, requests=400),
        Concurrency(concurrency=10, duration=seconds(60)),
        Offline(requests=400),
    ],
    ids=["open", "closed-requests", "closed-duration", "offline"],
)
def test_a_worker_that_hangs_is_ended_and_named_and_hides_nothing(run_virtually, load):
    plan = profile(load, max_restarts=1)
    plan = replace(plan, workers=replace(plan.workers, max_inflight=20))
    summary = run_virtually(plan, launcher=lambda clock: Hanging(clock, 1, 5.0))
    (stage,) = summary.stages
    assert_balanced(summary)
    assert stage.books.lost > 0
    assert any("said nothing for" in warning for warning in summary.verdict.warnings)
    # Where more than 1 % of the window was lost, the numbers do not cover the load that was asked for.
    covered = stage.books.lost <= 0.01 * stage.books.intended
    assert summary.verdict.valid == (covered or stage.kind == "offline")
