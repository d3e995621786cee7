"""Jobs in a worker, in virtual time, on a simulated engine whose answers take exactly the time that it is told."""

from contextlib import asynccontextmanager

import anyio
import pytest

from loadgen.measure.aggregate import StageMeter
from loadgen.measure.outcome import Grid, Outcome
from loadgen.profile import Fixed, SimTarget, Workload
from loadgen.sim.config import SimFaults
from loadgen.targets.sim import open_sim, tokenizer_of_simulator
from loadgen.units import NS_PER_SECOND
from loadgen.workers.dispatch import Dispatcher
from loadgen.workers.jobs import StageRun
from loadgen.workers.messages import Stop
from loadgen.workload.sources import make_workload
from tests.mortal_target import ENGINE_DEAD, MortalTarget

pytestmark = pytest.mark.anyio

MS = 1_000_000
WORKLOAD = make_workload(Workload(prompt_tokens=16, output_tokens=Fixed(value=4)), tokenizer_of_simulator(), 0)


class Recording(StageMeter):
    """A meter that also keeps the outcomes for the test to read."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(0, grid, None, keep_records=False)
        self.outcomes: list[Outcome] = []

    def record(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        super().record(outcome)

    def by_index(self) -> dict[int, Outcome]:
        return {outcome.index: outcome for outcome in self.outcomes}


@asynccontextmanager
async def dispatching(clock, *, answer_seconds=1.0, slots=10, timeout_seconds=600.0, drop=False, closed=False):
    """A dispatcher with one stage, and what it recorded; answers take `answer_seconds`."""
    target = SimTarget(transport="in-process", faults=SimFaults(response_delay_seconds=answer_seconds))
    async with open_sim(target, clock) as session:
        options = {"timeout_seconds": timeout_seconds, "drop": drop, "closed": closed}
        async with dispatching_to(session, clock, slots=slots, **options) as things:
            yield things


@asynccontextmanager
async def dispatching_to(target, clock, *, slots=10, timeout_seconds=600.0, drop=False, closed=False, open_since_ns=0):
    """A dispatcher to this target with one stage, and what it recorded."""
    async with anyio.create_task_group() as tasks:
        timeout_ns = round(timeout_seconds * NS_PER_SECOND)
        dispatcher = Dispatcher(target, clock, slots=slots, timeout_ns=timeout_ns, open_since_ns=open_since_ns)
        await tasks.start(dispatcher.run)
        meter = Recording(Grid(clock.now_ns(), clock.now_ns(), NS_PER_SECOND))
        run = StageRun(0, WORKLOAD, meter, drop=drop, closed=closed)
        if not closed:
            dispatcher.begin(run, slots=0, slots_from_ns=0, stop_ns=None)
        yield dispatcher, run, meter
        tasks.cancel_scope.cancel()


async def test_a_job_starts_at_its_intended_start_whatever_the_order_in_which_jobs_come(clock):
    async with dispatching(clock) as (dispatcher, _, meter):
        now = clock.now_ns()
        starts = {0: now + 300 * MS, 1: now + 100 * MS, 2: now + 200 * MS}
        dispatcher.add(0, list(starts), list(starts.values()))
        await anyio.sleep(3)
        assert {index: outcome.sent_ns for index, outcome in meter.by_index().items()} == starts
        assert {outcome.account for outcome in meter.outcomes} == {"completed"}


async def test_a_burst_at_one_instant_starts_whole(clock):
    async with dispatching(clock, slots=200) as (dispatcher, _, meter):
        at = clock.now_ns() + 50 * MS
        dispatcher.add(0, list(range(200)), [at] * 200)
        await anyio.sleep(0.06)
        assert dispatcher.in_flight == 200
        await anyio.sleep(2)
        assert {outcome.sent_ns for outcome in meter.outcomes} == {at}


async def test_a_job_without_a_slot_waits_in_order_and_the_wait_is_queued_and_not_lateness(clock):
    # One slot, answers of 1 s, three jobs at once: they are admitted 0, 1 and 2 s after their intended start.
    async with dispatching(clock, slots=1) as (dispatcher, _, meter):
        at = clock.now_ns() + 100 * MS
        dispatcher.add(0, [0, 1, 2], [at] * 3)
        await anyio.sleep(4)
        outcomes = meter.by_index()
        assert [outcomes[i].admitted_ns - at for i in range(3)] == [0, NS_PER_SECOND, 2 * NS_PER_SECOND]
        assert [outcomes[i].sent_ns - outcomes[i].admitted_ns for i in range(3)] == [0, 0, 0]


async def test_a_job_that_comes_too_late_to_the_worker_is_late_and_not_queued(clock):
    async with dispatching(clock) as (dispatcher, _, meter):
        await anyio.sleep(1)
        intended = clock.now_ns() - 500 * MS
        dispatcher.add(0, [0], [intended])
        await anyio.sleep(2)
        (outcome,) = meter.outcomes
        assert outcome.admitted_ns == intended
        assert outcome.sent_ns - outcome.admitted_ns == 500 * MS


async def test_a_late_job_counts_as_queued_only_while_no_slot_was_free(clock):
    # The only slot is taken from 0 to 1 s; a job intended at 0.5 s reaches the worker at 1.2 s. It waited for the slot
    # until 1 s and for the generator from then on.
    async with dispatching(clock, slots=1) as (dispatcher, _, meter):
        start = clock.now_ns()
        dispatcher.add(0, [0], [start])
        await anyio.sleep(1.2)
        dispatcher.add(0, [1], [start + 500 * MS])
        await anyio.sleep(2)
        late = meter.by_index()[1]
        assert late.admitted_ns - late.intended_ns == 500 * MS
        assert late.sent_ns - late.admitted_ns == 200 * MS


async def test_with_drop_a_job_without_a_slot_is_dropped_when_it_is_due(clock):
    async with dispatching(clock, slots=1, drop=True) as (dispatcher, _, meter):
        start = clock.now_ns()
        dispatcher.add(0, [0, 1, 2], [start, start + 500 * MS, start + 1100 * MS])
        await anyio.sleep(3)
        assert {i: outcome.account for i, outcome in meter.by_index().items()} == {
            0: "completed",
            1: "dropped",
            2: "completed",
        }
        assert meter.by_index()[1].end_ns == start + 500 * MS


async def test_a_request_that_takes_longer_than_the_timeout_is_failed_at_its_age(clock):
    async with dispatching(clock, answer_seconds=5, timeout_seconds=2) as (dispatcher, _, meter):
        dispatcher.add(0, [0], [clock.now_ns()])
        await anyio.sleep(3)
        (outcome,) = meter.outcomes
        assert outcome.account == "failed:timeout"
        assert outcome.end_ns - outcome.sent_ns == 2 * NS_PER_SECOND
        # The answer's four tokens come evenly over 5 s: the one at 1.25 s was seen.
        assert len(outcome.exchange.chunks_ns) == 1


async def test_stopping_recalls_what_lies_ahead_and_ends_what_waits_and_lets_the_rest_drain(clock):
    async with dispatching(clock, slots=1) as (dispatcher, run, meter):
        start = clock.now_ns()
        dispatcher.add(0, [0, 1, 2], [start, start + 100 * MS, start + 900 * MS])
        await anyio.sleep(0.5)
        stop_ns = clock.now_ns()
        assert dispatcher.stop(Stop(0, stop_ns, stop_ns + 10 * NS_PER_SECOND)) == [2]
        await anyio.sleep(2)
        assert {i: (o.account, o.end_ns - start) for i, o in meter.by_index().items()} == {
            0: ("completed", NS_PER_SECOND),
            1: ("unfinished", 500 * MS),
        }
        assert dispatcher.news.over == [run]
        assert dispatcher.news.credits == 3


async def test_what_has_not_ended_when_the_drain_is_over_is_unfinished_with_what_was_seen_of_it(clock):
    async with dispatching(clock, answer_seconds=8) as (dispatcher, run, meter):
        start = clock.now_ns()
        dispatcher.add(0, [0], [start])
        await anyio.sleep(1)
        dispatcher.stop(Stop(0, start + NS_PER_SECOND, start + 5 * NS_PER_SECOND))
        await anyio.sleep(5)
        (outcome,) = meter.outcomes
        assert (outcome.account, outcome.end_ns - start) == ("unfinished", 5 * NS_PER_SECOND)
        # Four tokens evenly over 8 s: at 2 and 4 s.
        assert [ns - start for ns in outcome.exchange.chunks_ns] == [2 * NS_PER_SECOND, 4 * NS_PER_SECOND]
        assert dispatcher.news.over == [run]


async def test_cancelling_books_what_is_in_flight_as_cancelled(clock):
    async with dispatching(clock) as (dispatcher, _, meter):
        dispatcher.add(0, [0, 1], [clock.now_ns()] * 2)
        await anyio.sleep(0.5)
        dispatcher.cancel(0)
        await anyio.sleep(0.1)
        assert [outcome.account for outcome in meter.outcomes] == ["cancelled", "cancelled"]
        assert dispatcher.in_flight == 0


async def test_a_closed_loop_starts_the_next_request_the_moment_a_slot_is_free(clock):
    async with dispatching(clock, closed=True) as (dispatcher, run, meter):
        start = clock.now_ns() + 100 * MS
        dispatcher.begin(run, slots=2, slots_from_ns=start, stop_ns=None)
        dispatcher.add(0, list(range(6)), [])
        await anyio.sleep(4)
        intended = sorted(outcome.intended_ns - start for outcome in meter.outcomes)
        assert intended == [0, 0, NS_PER_SECOND, NS_PER_SECOND, 2 * NS_PER_SECOND, 2 * NS_PER_SECOND]
        assert all(outcome.sent_ns == outcome.admitted_ns == outcome.intended_ns for outcome in meter.outcomes)
        indices, instants = dispatcher.news.started[0]
        assert indices == list(range(6))
        assert sorted(ns - start for ns in instants) == intended


async def test_a_slot_that_finds_no_job_makes_the_next_one_late(clock):
    # The slot is free from 1 s on; its next job comes at 1.5 s: intended at 1 s, late by 0.5 s.
    async with dispatching(clock, closed=True) as (dispatcher, run, meter):
        start = clock.now_ns()
        dispatcher.begin(run, slots=1, slots_from_ns=start, stop_ns=None)
        dispatcher.add(0, [0], [])
        await anyio.sleep(1.5)
        dispatcher.add(0, [1], [])
        await anyio.sleep(2)
        second = meter.by_index()[1]
        assert (second.intended_ns - start, second.sent_ns - second.admitted_ns) == (NS_PER_SECOND, 500 * MS)


async def test_a_closed_loop_starts_nothing_once_its_time_is_over_and_gives_back_what_it_did_not_start(clock):
    async with dispatching(clock, closed=True) as (dispatcher, run, meter):
        start = clock.now_ns()
        dispatcher.begin(run, slots=1, slots_from_ns=start, stop_ns=start + 1500 * MS)
        dispatcher.add(0, [0, 1, 2, 3], [])
        await anyio.sleep(3)
        assert dispatcher.stop(Stop(0, start + 1500 * MS, None)) == [2, 3]
        assert sorted(outcome.index for outcome in meter.outcomes) == [0, 1]
        assert dispatcher.news.over == [run]


async def test_a_fault_of_the_workload_costs_one_request_and_names_itself(clock):
    class Faulty:
        def request(self, index: int):
            if index == 1:
                raise ValueError("row 1 has no text")
            return WORKLOAD.request(index)

    async with dispatching(clock) as (dispatcher, run, meter):
        run.workload = Faulty()
        dispatcher.add(0, [0, 1, 2], [clock.now_ns() + 100 * MS] * 3)
        await anyio.sleep(2)
        outcomes = meter.by_index()
        assert [outcomes[i].account for i in range(3)] == ["completed", "failed:request", "completed"]
        assert outcomes[1].exchange.message == "ValueError: row 1 has no text"


# --- a target that dies -----------------------------------------------------------------------------------------------


async def test_an_open_loop_starts_nothing_more_from_the_first_request_that_finds_its_target_gone(clock):
    # Two slots: 0 and 1 are in flight, 2 and 3 wait, 4 and 5 fall due later. The target dies at 0.5 s; 0 ends then and
    # frees a slot, 1 a second later. Nobody has called `abandon` yet.
    target = MortalTarget(clock, answer_seconds=10, notice_seconds=1)
    async with dispatching_to(target, clock, slots=2) as (dispatcher, _, meter):
        start = clock.now_ns()
        dispatcher.add(0, list(range(6)), [start + ms * MS for ms in (0, 1, 2, 3, 700, 3000)])
        await anyio.sleep(0.5)
        target.die()
        await anyio.sleep(5)
        assert sorted(target.sent) == [0, 1]
        assert {i: (o.account, o.end_ns - start) for i, o in meter.by_index().items()} == {
            0: (f"failed:{ENGINE_DEAD}", 500 * MS),
            1: (f"failed:{ENGINE_DEAD}", 1500 * MS),
        }
        assert dispatcher.in_flight == 0


async def test_what_falls_due_at_a_target_that_is_gone_is_not_sent_though_slots_are_free(clock):
    target = MortalTarget(clock, answer_seconds=10)
    async with dispatching_to(target, clock) as (dispatcher, _, meter):
        start = clock.now_ns()
        dispatcher.add(0, [0, 1, 2], [start, start + 700 * MS, start + 3000 * MS])
        await anyio.sleep(0.5)
        target.die()
        await anyio.sleep(5)
        assert target.sent == [0]
        assert [outcome.index for outcome in meter.outcomes] == [0]


async def test_a_burst_that_falls_due_as_the_target_dies_is_not_sent(clock):
    # More than start at once before the loop looks around: the rest is still due when the first has failed.
    target = MortalTarget(clock, answer_seconds=10)
    async with dispatching_to(target, clock, slots=200) as (dispatcher, _, meter):
        target.die()
        dispatcher.add(0, list(range(200)), [clock.now_ns()] * 200)
        await anyio.sleep(1)
        assert len(target.sent) < 100
        assert [outcome.account for outcome in meter.outcomes] == [f"failed:{ENGINE_DEAD}"] * len(target.sent)


async def test_a_closed_loop_starts_nothing_more_from_the_first_request_that_finds_its_target_gone(clock):
    target = MortalTarget(clock, answer_seconds=10, notice_seconds=1)
    async with dispatching_to(target, clock, closed=True) as (dispatcher, run, meter):
        dispatcher.begin(run, slots=2, slots_from_ns=clock.now_ns(), stop_ns=None)
        dispatcher.add(0, list(range(6)), [])
        await anyio.sleep(0.5)
        target.die()
        await anyio.sleep(5)
        assert sorted(target.sent) == [0, 1]
        assert sorted(meter.by_index()) == [0, 1]
        assert dispatcher.news.started[0][0] == [0, 1]


async def test_abandoning_waits_for_what_ends_by_itself_and_records_nothing_of_what_was_not_sent(clock):
    # The requests 0 to 2 notice at 0, 1 and 2 s that their target is gone; 3 waits for a slot, 4 is not due.
    target = MortalTarget(clock, answer_seconds=10, notice_seconds=1)
    async with dispatching_to(target, clock, slots=3) as (dispatcher, _, meter):
        start = clock.now_ns()
        dispatcher.add(0, list(range(5)), [start + ms * MS for ms in (0, 1, 2, 3, 1000)])
        await anyio.sleep(0.5)
        target.die()
        await dispatcher.abandon()
        assert clock.now_ns() - start == 2500 * MS
        await anyio.sleep(5)
        accounts = {index: outcome.account for index, outcome in meter.by_index().items()}
        assert accounts == dict.fromkeys(range(3), f"failed:{ENGINE_DEAD}")
        assert dispatcher.news.credits == 3
        assert dispatcher.queued == 0


async def test_abandoning_cuts_what_does_not_end_by_itself_as_failed(clock):
    # The request 1 would notice after 60 s.
    target = MortalTarget(clock, answer_seconds=100, notice_seconds=60)
    async with dispatching_to(target, clock) as (dispatcher, _, meter):
        start = clock.now_ns()
        dispatcher.add(0, [0, 1], [start] * 2)
        await anyio.sleep(1)
        target.die()
        await dispatcher.abandon()
        assert {i: (o.account, o.end_ns - start) for i, o in meter.by_index().items()} == {
            0: (f"failed:{ENGINE_DEAD}", NS_PER_SECOND),
            1: ("failed:target", 6 * NS_PER_SECOND),
        }
        assert dispatcher.in_flight == 0


async def test_abandoning_before_any_request_has_noticed_starts_nothing_more(clock):
    # A closed loop whose requests still succeed: their slots would start others.
    target = MortalTarget(clock, answer_seconds=1)
    async with dispatching_to(target, clock, closed=True) as (dispatcher, run, meter):
        start = clock.now_ns()
        dispatcher.begin(run, slots=2, slots_from_ns=start, stop_ns=None)
        dispatcher.add(0, list(range(6)), [])
        await anyio.sleep(0.5)
        await dispatcher.abandon()
        assert clock.now_ns() - start == NS_PER_SECOND
        await anyio.sleep(5)
        assert {i: o.account for i, o in meter.by_index().items()} == {0: "completed", 1: "completed"}


async def test_with_nothing_in_flight_abandoning_returns_at_once(clock):
    async with dispatching_to(MortalTarget(clock), clock) as (dispatcher, _, meter):
        start = clock.now_ns()
        dispatcher.add(0, [0], [start + NS_PER_SECOND])
        await dispatcher.abandon()
        assert clock.now_ns() == start
        await anyio.sleep(5)
        assert meter.outcomes == []


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
async def test_jobs_that_come_to_an_abandoned_worker_are_not_taken(clock, closed):
    target = MortalTarget(clock)
    async with dispatching_to(target, clock, closed=closed) as (dispatcher, run, meter):
        if closed:
            dispatcher.begin(run, slots=2, slots_from_ns=clock.now_ns(), stop_ns=None)
        await dispatcher.abandon()
        dispatcher.add(0, [0, 1], [] if closed else [clock.now_ns()] * 2)
        await anyio.sleep(5)
        assert (target.sent, meter.outcomes, run.held) == ([], [], 0)


async def test_what_was_due_before_the_target_could_be_loaded_waited_for_it_and_is_not_late(clock):
    # The target was opened at 5 s. Intended at 2 s: queued for 3 s. Intended at 6 s and given at 6.5 s: late by 0.5 s.
    start = clock.now_ns()
    await anyio.sleep(5)
    async with dispatching_to(MortalTarget(clock), clock, open_since_ns=clock.now_ns()) as (dispatcher, _, meter):
        dispatcher.add(0, [0], [start + 2 * NS_PER_SECOND])
        await anyio.sleep(1.5)
        dispatcher.add(0, [1], [start + 6 * NS_PER_SECOND])
        await anyio.sleep(3)
        waits = {i: (o.admitted_ns - o.intended_ns, o.sent_ns - o.admitted_ns) for i, o in meter.by_index().items()}
        assert waits == {0: (3 * NS_PER_SECOND, 0), 1: (0, 500 * MS)}


async def test_what_waited_for_the_target_of_another_worker_is_late_only_from_when_it_was_handed_over(clock):
    # Both handed over at 3 s, and here at 3.2 s: 0 was intended at 1 s, 1 at 3.1 s.
    async with dispatching_to(MortalTarget(clock), clock) as (dispatcher, _, meter):
        start = clock.now_ns()
        await anyio.sleep(3.2)
        dispatcher.add(0, [0, 1], [start + NS_PER_SECOND, start + 3100 * MS], start + 3 * NS_PER_SECOND)
        await anyio.sleep(3)
        waits = {i: (o.admitted_ns - o.intended_ns, o.sent_ns - o.admitted_ns) for i, o in meter.by_index().items()}
        assert waits == {0: (2 * NS_PER_SECOND, 200 * MS), 1: (0, 100 * MS)}


async def test_a_stage_that_stops_at_an_abandoned_worker_is_over_only_with_the_worker(clock):
    # The jobs that came after the abandonment are known to the parent alone: "over" would be said without them.
    target = MortalTarget(clock)
    async with dispatching_to(target, clock) as (dispatcher, _, meter):
        start = clock.now_ns()
        dispatcher.add(0, [0], [start])
        await anyio.sleep(0.5)
        target.die()
        await anyio.sleep(0.1)
        dispatcher.add(0, [1], [start + 550 * MS])
        assert dispatcher.stop(Stop(0, clock.now_ns(), None)) == []
        await dispatcher.abandon()
        assert dispatcher.news.over == []
        assert sorted(meter.by_index()) == [0]
        assert dispatcher.meters == [meter]  # its last measurements are still told
