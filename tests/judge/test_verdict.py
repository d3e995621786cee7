from pathlib import Path
from typing import Any

import pytest

from loadgen.judge.summarise import summarise
from loadgen.measure.aggregate import StageMeter
from loadgen.measure.journal import RunEnd, StageEnd, WorkerDeath, WorkerStats
from loadgen.measure.outcome import COMPLETED, DROPPED, FAILED, LOST, UNFINISHED
from loadgen.measure.recorder import Recorder
from loadgen.summary.summary import Verdict
from loadgen.units import NS_PER_MS, NS_PER_SECOND


@pytest.fixture
def verdict(build: Any, tmp_path: Path) -> Any:
    """The verdict on a run of 100 requests at 10/s, TTFT 100 ms, each as `request` says, and those of `also`."""

    def of(also: tuple[Any, ...] = (), count: int = 100, meta: Any = None, **rest: Any) -> Verdict:
        run = {key: rest.pop(key) for key in ("intended", "more", "ended", "header") if key in rest}
        directory = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        outcomes = [build.outcome(i / 10, **rest) for i in range(count)]
        return summarise(build.run(directory, [build.delta(*outcomes, *also)], meta=meta, **run)).verdict

    return of


def reason(verdict: Verdict) -> str:
    assert not verdict.valid
    (only,) = verdict.reasons
    return only


def warned(verdict: Verdict, words: str) -> bool:
    return any(words in warning for warning in verdict.warnings)


# --- validity ---------------------------------------------------------------------------------------------------------


def test_a_punctual_run_is_valid(verdict: Any) -> None:
    assert verdict(late=0.001).valid


@pytest.mark.parametrize(("ttft", "late", "valid"), [(0.1, 0.0099, True), (0.1, 0.011, False), (1.0, 0.045, True)])
def test_lateness_may_be_10_ms_or_5_percent_of_the_median_ttft(
    verdict: Any, ttft: float, late: float, valid: bool
) -> None:
    assert verdict(late=late, tokens=(ttft,)).valid is valid


def test_where_nothing_streams_service_time_sets_the_bound(verdict: Any) -> None:
    assert verdict(late=0.045, streamed=False, took=1.0).valid


def test_the_reason_names_numbers_and_the_busy_worker(build: Any, verdict: Any) -> None:
    def stats(recorder: Recorder) -> None:
        for cpu, wall in ((0, 0), (97, 100)):
            recorder.worker(WorkerStats(3, 1, cpu, wall, 0, 0, 0, 0, 0))
        recorder.worker(WorkerStats(4, 2, 50, 100, 0, 0, 0, 0, 0))

    told = reason(verdict(late=0.02, more=stats))
    assert "Lateness p99 is 20 ms, above the bound of 10 ms" in told
    assert "worker 3 used 97 % of a core: give the run more workers.processes" in told
    assert "worker 4" not in told


def test_without_a_busy_process_the_machine_is_suspected(verdict: Any) -> None:
    assert "busiest process" in reason(verdict(late=0.02))


def test_offline_is_exempt_from_lateness(build: Any, verdict: Any) -> None:
    assert verdict(late=0.05, meta=build.meta(kind="offline", judged=False)).valid


def test_requests_that_had_a_slot_and_were_not_sent_invalidate(build: Any, verdict: Any) -> None:
    unsent = [build.outcome(9.5, account=UNFINISHED, late=None)] * 2
    assert "Only 100 of 102 requests intended in the window were sent within it (98 %" in reason(verdict(tuple(unsent)))


def test_requests_that_had_no_slot_do_not(build: Any, verdict: Any) -> None:
    waiting = [build.outcome(9.5, account=account, queued=None) for account in (UNFINISHED, DROPPED)] * 20
    result = verdict(tuple(waiting), more=lambda recorder: recorder.book(0, UNFINISHED, [build.origin_ns] * 20))
    assert result.valid
    assert warned(result, "20 requests (12.5 %) were dropped for want of a free slot")  # of 100 + 40 + 20


def test_a_slow_event_loop_invalidates(build: Any, tmp_path: Path) -> None:
    meter = StageMeter(0, build.grid(), None, keep_records=False)
    for i in range(100):
        build.note(meter, build.outcome(i / 10))
        meter.lag(build.origin_ns + i * 100 * NS_PER_MS, 15 * NS_PER_MS)
    told = summarise(build.run(tmp_path, [meter.flush(build.origin_ns + 10 * NS_PER_SECOND)])).verdict
    assert "Event loop lag p99 is 15 ms" in reason(told)


def test_a_loop_that_is_slow_in_the_drain_only_does_not(build: Any, tmp_path: Path) -> None:
    meter = StageMeter(0, build.grid(), None, keep_records=False)
    build.note(meter, build.outcome())
    for second in range(10, 20):
        meter.lag(build.origin_ns + second * NS_PER_SECOND, NS_PER_SECOND)
    assert summarise(build.run(tmp_path, [meter.flush(build.origin_ns + 20 * NS_PER_SECOND)])).verdict.valid


def test_books_that_do_not_balance_invalidate(verdict: Any) -> None:
    told = reason(verdict(intended=101))
    assert told == "The books do not balance: 101 requests were intended and 100 are accounted for."


def test_a_target_at_which_nothing_completes_is_not_the_generators_fault(verdict: Any) -> None:
    result = verdict(account=FAILED + "http_503", tokens=(), took=0.1)
    assert result.valid
    assert warned(result, "Nothing completed.")
    assert warned(result, "100 % of the requests that ended in the window failed: 100 http_503.")


def test_a_run_that_failed_says_why(build: Any, tmp_path: Path) -> None:
    recorder, _ = build.recorder(tmp_path)
    recorder.stage_started(build.meta())
    recorder.stage_ended(StageEnd(0, build.origin_ns, 0, "failure"))
    recorder.run_ended(RunEnd(False, 0.1, 0, failure="no worker is left"))
    recorder.close()
    assert reason(summarise(tmp_path).verdict) == "The run failed: no worker is left."


# --- warnings ---------------------------------------------------------------------------------------------------------


def test_a_wait_for_slots_names_the_cap(verdict: Any) -> None:
    result = verdict(queued=0.5, tokens=(0.6,))
    assert result.valid
    assert warned(
        result, "Requests waited for a slot, p99 500 ms: workers.max_inflight is too low or the target too slow"
    )


def test_prompts_of_another_length_than_asked_are_told(verdict: Any) -> None:
    assert warned(verdict(prompt=103, prompt_asked=100), "103.0 tokens on average by the server's count, +3.0%")


def test_prompts_within_2_percent_are_not(verdict: Any) -> None:
    assert not warned(verdict(prompt=102, prompt_asked=100), "on average")


@pytest.mark.parametrize(("key", "value"), [("system", "Be brief."), ("images", {"count": 1}), ("audio", {"count": 1})])
def test_prompts_with_something_on_top_of_them_are_not(build: Any, verdict: Any, key: str, value: Any) -> None:
    header = build.header(workload={"prompt_tokens": 100, key: value})
    assert not warned(verdict(prompt=700, prompt_asked=100, header=header), "on average")


def test_prompts_with_nothing_on_top_of_them_are_told_whatever_else_the_workload_says(build: Any, verdict: Any) -> None:
    header = build.header(workload={"prompt_tokens": 100, "system": None, "images": None, "audio": None})
    assert warned(verdict(prompt=103, prompt_asked=100, header=header), "on average")


def test_short_outputs_are_told(verdict: Any) -> None:
    assert warned(verdict(output=5, asked=10), "100 outputs (100 %) were shorter than asked for")


def test_counting_by_chunks_is_told(verdict: Any) -> None:
    assert warned(verdict(), "counted by chunks")
    assert not warned(verdict(output=1), "counted by chunks")


def test_a_closed_loop_carries_its_note(build: Any, verdict: Any) -> None:
    assert warned(verdict(meta=build.meta(concurrency=4)), "conditioned on the target's own pace")


def test_lost_requests_and_deaths_are_told(build: Any, verdict: Any) -> None:
    def more(recorder: Recorder) -> None:
        recorder.book(0, LOST, [build.origin_ns] * 3)
        recorder.worker_died(WorkerDeath(1, 77, "signal 9", 3))

    result = verdict(more=more)
    assert warned(result, "3 requests of the window were lost")
    assert warned(result, "Worker 1 (pid 77) died: signal 9.")
    assert result.valid


def test_a_promise_that_cannot_be_decided_is_a_warning(build: Any, verdict: Any) -> None:
    result = verdict(header=build.header(slo={"ttft": {"p99": "500ms"}}))
    assert result.slo.met is None
    assert warned(result, "Whether the SLO on ttft p99 is met")


def test_what_the_run_told_itself_is_passed_on(build: Any, tmp_path: Path) -> None:
    recorder, _ = build.recorder(tmp_path)
    recorder.run_ended(RunEnd(True, 0.1, 0, warnings=["The model would not say its name."]))
    recorder.close()
    told = summarise(tmp_path).verdict
    assert warned(told, "The model would not say its name.")
    assert warned(told, "The run was interrupted")


def test_with_several_stages_each_sentence_names_its_stage(build: Any, tmp_path: Path) -> None:
    recorder, _ = build.recorder(tmp_path)
    for number in range(2):
        recorder.stage_started(build.meta(stage=number, name=f"poisson {number}/s"))
    recorder.apply(build.delta(build.outcome(account=COMPLETED, late=0.02)), 0, build.origin_ns)
    for number, intended in ((0, 1), (1, 0)):
        recorder.stage_ended(StageEnd(number, build.origin_ns + NS_PER_SECOND, intended, "duration"))
    recorder.run_ended(RunEnd(False, 0.1, 0))
    recorder.close()
    assert reason(summarise(tmp_path).verdict).startswith("Stage poisson 0/s: lateness p99")
