"""Workers that die, in virtual time: what they had is lost or given to others, and the books balance to the request."""

from contextlib import asynccontextmanager

import anyio
import pytest
from msgspec.structs import replace

from loadgen.errors import ExitCode, LoadgenError, RunFailure, TargetError, innermost, one_failure
from loadgen.profile import Concurrency, Constant, Fixed, Offline, Profile, SimTarget, Workers, Workload
from loadgen.sim.config import SimFaults
from loadgen.targets import kinds
from loadgen.units import NS_PER_SECOND, Duration, Rate
from loadgen.workers.launch import InlineLauncher
from loadgen.workers.messages import Gone, Snapshot, Stop
from tests.mortal_target import ENGINE_DEAD, REASON, Lives


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


# --- targets that die, of workers that tell it ------------------------------------------------------------------------


@pytest.fixture
def live(monkeypatch):
    """Runs a profile on mortal targets; takes what `Lives` takes."""

    def put(deaths=(), **options) -> Lives:
        lives = Lives(deaths, **options)
        monkeypatch.setitem(kinds.KINDS, SimTarget, replace(kinds.KINDS[SimTarget], open=lives))
        return lives

    return put


LOADS = [
    Constant(rate=Rate(20), duration=seconds(20), drain=seconds(30)),
    Concurrency(concurrency=10, requests=300),
    Concurrency(concurrency=10, duration=seconds(20)),
    Offline(requests=300),
]
NAMES = ["open", "closed-requests", "closed-duration", "offline"]


@pytest.mark.parametrize("load", LOADS, ids=NAMES)
@pytest.mark.parametrize("processes", [1, 2])
def test_with_a_target_that_dies_nothing_is_lost_and_what_was_not_sent_is_sent_after_all(
    run_virtually, live, load, processes
):
    # One target dies at 5.05 s, when ten requests or so are in flight, and is there again 5.5 s later.
    lives = live([5.05], workers=processes)
    plan = profile(load, processes=processes)
    plan = replace(plan, workers=replace(plan.workers, max_inflight=40))
    summary = run_virtually(plan)
    (stage,) = summary.stages
    assert_balanced(summary)
    books = stage.books
    assert set(books.failed) == {ENGINE_DEAD}
    assert (books.lost, books.unfinished, books.cancelled, books.dropped) == (0, 0, 0, 0)
    assert books.completed == books.intended - books.failures
    # No more than the slots of one worker were in flight as it died.
    assert 1 <= books.failures <= 40 // processes
    assert len(lives.targets) == processes + 1
    # Each request was sent once, whichever target it came to.
    sent = [index for target in lives.targets for index in target.sent]
    assert len(sent) == len(set(sent)) == books.intended
    if stage.kind in ("constant", "offline") or load.requests:
        assert books.intended == load.requests if load.requests else 400


def test_a_worker_whose_target_died_is_named_with_the_reason_and_has_its_new_start_reported(run_virtually, live):
    live([5.05])
    summary = run_virtually(profile(LOADS[0], processes=1))
    (worker,) = summary.generator.workers
    assert worker.deaths == [REASON]
    assert any(REASON in warning for warning in summary.verdict.warnings)
    # The first target was there at once, the second in 5 s.
    assert worker.target.start_seconds == 5


@pytest.mark.parametrize("load", LOADS, ids=NAMES)
def test_with_restarts_used_up_the_run_ends_and_what_was_due_is_unfinished_and_was_queued(run_virtually, live, load):
    lives = live([3.05, 11.05], start_seconds=5.0)
    plan = profile(load, processes=1, max_restarts=1)
    plan = replace(plan, workers=replace(plan.workers, max_inflight=10))
    summary = run_virtually(plan)
    (stage,) = summary.stages
    assert_balanced(summary)
    assert stage.ended_by == "failure"
    assert len(lives.targets) == 2
    assert any("no worker is left" in reason for reason in summary.verdict.reasons)
    assert stage.books.lost == 0
    assert set(stage.books.failed) == {ENGINE_DEAD}
    # In a closed loop nothing is due until a slot starts it.
    assert (stage.books.unfinished > 0) == (stage.kind != "concurrency")
    # They waited for the target: the generator is not to blame that they were not sent.
    assert not any("were sent" in reason for reason in summary.verdict.reasons)


@pytest.mark.parametrize("load", LOADS, ids=NAMES)
@pytest.mark.parametrize("instant", [5.2, 7.0], ids=["while-it-dies", "while-it-opens"])
def test_a_stop_while_the_target_is_gone_books_what_was_due_as_unfinished(run_virtually, live, load, instant):
    # It dies at 5.05 s, its worker says so at 5.55 s, and the next is there at 10.55 s.
    async def stop(halt):
        await anyio.sleep_until(instant)
        halt.ask("interrupted")

    live([5.05])
    plan = profile(load, processes=1)
    plan = replace(plan, workers=replace(plan.workers, max_inflight=10))
    summary = run_virtually(plan, stop)
    (stage,) = summary.stages
    assert_balanced(summary)
    assert stage.ended_by == "interrupted"
    assert stage.books.lost == 0
    assert stage.books.failures <= 10
    assert (stage.books.unfinished > 0) == (stage.kind != "concurrency")
    assert not any("were sent" in reason for reason in summary.verdict.reasons)


def test_arrivals_that_end_before_the_target_is_there_again_leave_what_was_due_unfinished(run_virtually, live):
    # 20/s for 10 s; the target dies at 6.05 s and would be there at 36.55 s.
    live([6.05], start_seconds=30.0)
    summary = run_virtually(profile(Constant(rate=Rate(20), duration=seconds(10), drain=seconds(5)), processes=1))
    (stage,) = summary.stages
    assert_balanced(summary)
    assert stage.books.intended == 200
    # 20/s x 1 s were in flight. From then on (at 5.95 s of the stage, after the 119th arrival or so) nothing was sent.
    assert stage.books.failures == pytest.approx(20, abs=1)
    assert stage.books.unfinished == pytest.approx(81, abs=1)
    assert stage.books.lost == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [(LoadgenError("a wrong name"), ExitCode.USAGE), (TargetError("no memory"), ExitCode.UNREACHABLE)],
)
def test_a_target_that_does_not_open_ends_the_run_with_the_code_of_who_is_at_fault(
    run_virtually, monkeypatch, error, code
):
    @asynccontextmanager
    async def opener(profile, info, clock):
        raise error
        yield

    monkeypatch.setitem(kinds.KINDS, SimTarget, replace(kinds.KINDS[SimTarget], open=opener))
    with pytest.raises((LoadgenError, BaseExceptionGroup)) as raised:
        run_virtually(profile(LOADS[0]))
    failure = innermost(raised.value)
    assert (type(failure), str(failure)) == (type(error), str(error))
    assert failure.exit_code == code


def test_a_target_that_does_not_open_again_counts_as_a_death_and_is_tried_again(run_virtually, monkeypatch):
    # The first dies at 5.05 s; the second does not open; the third does.
    lives = Lives([5.05], start_seconds=1.0)
    opened = []

    @asynccontextmanager
    async def opener(profile, info, clock):
        opened.append(clock.now_ns())
        if len(opened) == 2:
            raise TargetError("no memory")
        async with lives(profile, info, clock) as target:
            yield target

    monkeypatch.setitem(kinds.KINDS, SimTarget, replace(kinds.KINDS[SimTarget], open=opener))
    summary = run_virtually(profile(LOADS[0], processes=1, max_restarts=2))
    (stage,) = summary.stages
    assert_balanced(summary)
    assert len(opened) == 3
    assert (stage.books.lost, stage.books.unfinished) == (0, 0)
    assert any("no memory" in warning for warning in summary.verdict.warnings)


class Talkative(InlineLauncher):
    """Workers of which one repeats its last snapshot after it has said that its target is gone."""

    @asynccontextmanager
    async def launch(self, worker: int):
        async with super().launch(worker) as incarnation:
            incarnation.channel = Repeating(incarnation.channel)
            yield incarnation


class Repeating:
    """A channel from which the last snapshot with deltas comes once more after Gone."""

    def __init__(self, channel) -> None:
        self._channel = channel
        self._last = None
        self._again = False

    async def send(self, message) -> None:
        await self._channel.send(message)

    async def receive(self):
        if self._again:
            self._again = False
            return self._last
        message = await self._channel.receive()
        if isinstance(message, Snapshot) and any(delta.ended for delta in message.deltas):
            self._last = message
        self._again = isinstance(message, Gone)
        return message

    async def aclose(self) -> None:
        await self._channel.aclose()


def test_what_a_worker_says_after_it_has_said_that_its_target_is_gone_counts_for_nothing(run_virtually, live):
    live([5.05])
    summary = run_virtually(profile(LOADS[0], processes=1), launcher=Talkative)
    assert_balanced(summary)
    assert summary.stages[0].books.intended == 400


class HardOfHearing(InlineLauncher):
    """Workers that learn of a stop 0.2 s after it was decided."""

    @asynccontextmanager
    async def launch(self, worker: int):
        async with super().launch(worker) as incarnation:
            incarnation.channel = Delaying(incarnation.channel)
            yield incarnation


class Delaying:
    """A channel on which a Stop takes its time."""

    def __init__(self, channel) -> None:
        self._channel = channel

    async def send(self, message) -> None:
        if isinstance(message, Stop):
            await anyio.sleep(0.2)
        await self._channel.send(message)

    async def receive(self):
        return await self._channel.receive()

    async def aclose(self) -> None:
        await self._channel.aclose()


def test_what_a_worker_sent_before_it_learnt_of_the_stop_was_intended_after_all(run_virtually):
    async def interrupt(halt):
        await anyio.sleep(5.03)
        halt.ask("interrupted")

    load = Constant(rate=Rate(100), duration=seconds(60))
    summary = run_virtually(profile(load, processes=1), interrupt, HardOfHearing)
    (stage,) = summary.stages
    assert_balanced(summary)
    # The stage begins at 0.1 s. To the stop, which is heeded within 0.1 s, 493 to 503 are due; in the 0.2 s until the
    # worker learns of it 20 more are sent.
    assert 513 <= stage.books.completed == stage.books.intended <= 524


# --- before the load begins -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opening_seconds", [2.0, 100.0], ids=["soon", "late"])
def test_a_worker_that_dies_for_good_before_the_load_begins_fails_the_run_and_leaves_nobody_waiting(
    run_virtually, live, opening_seconds
):
    # The first worker is there at once, dies at 1.05 s, and may not start again; the other one still opens its target.
    live([1.05], start_seconds=opening_seconds)
    why = r"worker 0 died more often than workers\.max_restarts allows, before the load began"
    with pytest.raises(RunFailure, match=why) as caught, one_failure():
        run_virtually(profile(LOADS[0], processes=2, max_restarts=0))
    assert caught.value.exit_code == ExitCode.INVALID
