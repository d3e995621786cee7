import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.judge.stages import StagesSoFar
from loadgen.judge.summarise import summarise
from loadgen.measure.aggregate import StageMeter
from loadgen.measure.journal import FOLDER, RunEnd, RunHeader, StageEnd, WorkerDeath, WorkerOpened, WorkerStats
from loadgen.measure.outcome import CANCELLED, COMPLETED, DROPPED, FAILED, LOST, TIMEOUT, UNFINISHED, Outcome
from loadgen.measure.recorder import Recorder
from loadgen.profile.slo import Slo
from loadgen.summary.stage import KILLED
from loadgen.summary.summary import Stage, Summary, TargetStart
from loadgen.units import NS_PER_MS, NS_PER_SECOND, Duration


@pytest.fixture
def stage(build: Any, tmp_path: Path) -> Any:
    """The summary of a one-stage run of these outcomes, on a grid and with the rest as a test says."""

    def of(*outcomes: Outcome, grid: Any = None, slo: Slo | None = None, **run: Any) -> Stage:
        deltas = [build.delta(*outcomes, grid=grid, slo=slo)] if outcomes else []
        profile = {} if slo is None else {"slo": {"ttft": {"p50": "300ms"}}}
        run = {"meta": build.meta(grid), "header": build.header(**profile), **run}
        return summarise(build.run(tmp_path, deltas, **run)).stages[0]

    return of


# --- which requests count ---------------------------------------------------------------------------------------------


def test_the_window_leaves_the_warm_up_out_by_intended_start(build: Any, stage: Any) -> None:
    # Warm-up of 2 s: one request is intended before its end and ends after it.
    outcomes = [build.outcome(1.9, tokens=(0.5,)), build.outcome(2.0), build.outcome(3.0)]
    result = stage(*outcomes, grid=build.grid(warmup=2))
    assert result.books.completed == 3
    assert result.window.books.completed == 2
    assert result.latency_seconds.response.count == 2
    assert (result.window.start, result.window.seconds) == (2, 8)


def test_failures_never_enter_latency(build: Any, stage: Any) -> None:
    result = stage(build.outcome(tokens=(0.1,)), *[build.outcome(1, account=FAILED + "http_503", took=9)] * 5)
    assert result.latency_seconds.response.max == pytest.approx(0.1)
    assert result.latency_seconds.failed["http_503"].count == 5
    assert result.window.books.failed == {"http_503": 5}


def test_an_unfinished_request_counts_as_a_lower_bound(build: Any, stage: Any) -> None:
    outcomes = [build.outcome(0.1 * i) for i in range(98)]
    result = stage(*outcomes, *[build.outcome(9.9, account=UNFINISHED, tokens=(), took=5)] * 2)
    for latency in (result.latency_seconds.response, result.latency_seconds.ttft):
        assert latency.count == 98 + 2
        assert latency.lower_bounds == 2
        # Rank 99 of 100 is the first of the two ages.
        assert latency.p99 == pytest.approx(5, rel=1e-3)
        assert (latency.at_least["p95"], latency.at_least["p99"]) == (False, True)
        assert latency.ci["p99"][1] is None


def test_a_timeout_is_a_failure_and_a_lower_bound(build: Any, stage: Any) -> None:
    result = stage(build.outcome(), build.outcome(account=FAILED + TIMEOUT, tokens=(0.2,), took=9))
    assert result.window.books.failed == {"timeout": 1}
    assert result.latency_seconds.response.lower_bounds == 1
    assert result.latency_seconds.ttft.lower_bounds == 0
    assert result.latency_seconds.service.count == 1


def test_the_words_of_a_failure_are_those_that_came_first(build: Any, tmp_path: Path) -> None:
    def told(kind: str, message: str) -> Outcome:
        return build.outcome(account=FAILED + kind, tokens=(), message=message)  # type: ignore[no-any-return]

    deltas = [
        build.delta(told("http_503", "")),
        build.delta(told("http_503", "overloaded"), told(TIMEOUT, "no end after 2 s")),
        build.delta(told("http_503", "still overloaded"), told("connect", "refused")),
    ]
    summary = summarise(build.run(tmp_path, deltas))
    words = {"http_503": "overloaded", "timeout": "no end after 2 s", "connect": "refused"}
    assert summary.stages[0].failure_messages == words
    assert msgspec.to_builtins(summary)["stages"][0]["failure_messages"] == words


def test_where_nothing_failed_there_are_no_words_and_lost_requests_have_none(build: Any, stage: Any) -> None:
    result = stage(build.outcome(), more=lambda recorder: recorder.book(0, LOST, [build.origin_ns]))
    assert result.books.lost == 1
    assert "failure_messages" not in msgspec.to_builtins(result)


def test_the_words_of_at_most_32_kinds_of_failure_are_kept_of_all_workers(build: Any, tmp_path: Path) -> None:
    def worker(first_status: int) -> Any:
        kinds = [FAILED + f"http_{first_status + i}" for i in range(20)]
        return build.delta(*[build.outcome(account=kind, tokens=(), message="no") for kind in kinds])

    kept = summarise(build.run(tmp_path, [worker(400), worker(500)])).stages[0].failure_messages
    # All 20 of the worker that was heard first, and 12 of the other.
    assert list(kept) == [f"http_{400 + i}" for i in range(20)] + [f"http_{500 + i}" for i in range(12)]


def test_whole_answers_have_no_ttft_even_where_some_never_were_sent(build: Any, stage: Any) -> None:
    unsent = build.outcome(account=UNFINISHED, queued=None, took=5)
    result = stage(
        build.outcome(streamed=False, output=5), unsent, header=build.header(target={"kind": "http", "stream": False})
    )
    assert result.latency_seconds.ttft is None
    assert result.latency_seconds.itl is None
    assert result.latency_seconds.tpot is None
    assert result.latency_seconds.response.count == 2


def test_98_short_gaps_and_a_long_one_are_not_a_mean(build: Any, stage: Any) -> None:
    instants = [0.1 + 0.01 * i for i in range(99)] + [0.1 + 0.98 + 1.0]
    itl = stage(build.outcome(tokens=instants)).latency_seconds.itl
    assert itl.count == 99
    assert itl.p50 == pytest.approx(0.010, rel=1e-3)
    assert itl.p99 == pytest.approx(1.0, rel=1e-3)


def test_requests_intended_in_the_window_count_as_sent_only_before_its_end(build: Any, stage: Any) -> None:
    outcomes = [build.outcome(0.5), build.outcome(1.5, queued=1.0, tokens=(2,)), build.outcome(1.6, late=None)]
    assert stage(*outcomes, stop=2.0).window.sent == 1


# --- rates and levels -------------------------------------------------------------------------------------------------


def test_tokens_count_when_they_come_and_not_when_requests_end(build: Any, stage: Any) -> None:
    # A token at 1 s, 5 s and 11 s, the window ends at 10 s.
    result = stage(build.outcome(tokens=(1, 5, 11), output=3, prompt=100))
    assert result.throughput.output_tokens == pytest.approx(2 / 10)
    assert result.throughput.prompt_tokens == pytest.approx(100 / 10)
    assert result.throughput.requests == 0


def test_what_comes_in_during_the_warm_up_is_no_rate(build: Any, stage: Any) -> None:
    result = stage(build.outcome(0.5), build.outcome(2.5), grid=build.grid(warmup=2))
    assert result.throughput.requests == pytest.approx(1 / 8)


def test_concurrency_is_weighted_by_time(build: Any, stage: Any) -> None:
    # Two requests of 5 s, overlapping for 2 s of a window of 10 s.
    concurrency = stage(build.outcome(0, tokens=(5,)), build.outcome(3, tokens=(5,))).concurrency
    assert concurrency.mean == pytest.approx(1.0)
    assert concurrency.max == 2


def test_goodput_is_there_only_under_promises(build: Any, stage: Any) -> None:
    assert stage(build.outcome()).throughput.goodput is None


def test_goodput_counts_the_requests_that_met_them(build: Any, stage: Any) -> None:
    slo = Slo(ttft={"p50": Duration(300 * NS_PER_MS)})
    result = stage(build.outcome(tokens=(0.2,)), build.outcome(tokens=(0.4,)), slo=slo)
    assert result.throughput.goodput == pytest.approx(1 / 10)


def test_the_series_has_a_row_for_each_interval_from_the_origin(build: Any, stage: Any) -> None:
    outcomes = [build.outcome(0.5, tokens=(1.0,), output=4), build.outcome(2.5), build.outcome(2.6)]
    series = stage(*outcomes, grid=build.grid(warmup=2), stop=4).series
    assert series.start == [0, 1, 2]
    assert series.arrivals == [1, 0, 2]
    assert series.completed == [0, 1, 2]
    assert series.output_tokens == [0, 4, 2]
    assert series.in_flight == pytest.approx([0.5, 0.5, 0.2])
    assert series.ttft_p50[1] is None
    assert (series.ttft_p50[0], series.ttft_p50[2]) == pytest.approx((1.0, 0.1), rel=1e-3)


def test_means_of_tokens_are_of_the_completed_requests_of_the_window(build: Any, stage: Any) -> None:
    outcomes = [
        build.outcome(0.5, output=100),
        build.outcome(2.5, tokens=(0.1, 0.2), output=6, asked=6, prompt=10, prompt_asked=8),
        build.outcome(2.6, tokens=(0.1, 0.2), output=2, asked=6, prompt=20, prompt_asked=8),
    ]
    result = stage(*outcomes, grid=build.grid(warmup=2))
    tokens = result.tokens
    assert (tokens.output, tokens.output_asked, tokens.prompt, tokens.prompt_asked) == (4, 6, 15, 8)
    assert (tokens.per_chunk, tokens.counted_by) == (2, "usage")
    assert result.short == 1


def test_the_poorest_source_of_token_counts_is_named(build: Any, stage: Any) -> None:
    assert stage(build.outcome(output=1), build.outcome()).tokens.counted_by == "chunks"


# --- the warm-up that is found ----------------------------------------------------------------------------------------


def filling(build: Any, seconds: float) -> list[Outcome]:
    """20 requests a second of 4 s each: in flight grows for 4 s and is steady then."""
    return [build.outcome(i / 20, tokens=(0.1, 4.0)) for i in range(round(seconds * 20))]


def test_the_warm_up_is_found_and_ends_with_an_interval(build: Any, stage: Any) -> None:
    window = stage(*filling(build, 40), meta=build.meta(warmup_auto=True), stop=40.0).window
    assert 3 <= window.start <= 6
    assert window.start == int(window.start)
    assert window.books.completed == (40 - window.start) * 20


def test_the_warm_up_never_goes_past_half(build: Any, stage: Any) -> None:
    growing = [build.outcome(i / 20, tokens=(0.1 + i / 200, 0.2 + i / 10)) for i in range(400)]
    assert stage(*growing, meta=build.meta(warmup_auto=True), stop=20.0).window.start <= 10


# --- stationarity -----------------------------------------------------------------------------------------------------


def test_a_target_that_fills_up_without_a_warm_up_is_not_called_unstable(build: Any, stage: Any) -> None:
    # 2,000 arrivals in 50 s, 200 in flight: 10 % of them are still there at the end.
    outcomes = [build.outcome(i / 40, tokens=(0.1, 5.0)) for i in range(2000)]
    assert stage(*outcomes, stop=50.0).stationary.verdict == "stable"


def test_a_target_that_goes_on_filling_is(build: Any, stage: Any) -> None:
    # 2,000 arrivals in 50 s, each of which takes longer than the one before: half of what comes in stays.
    outcomes = [build.outcome(i / 40, tokens=(0.1, 0.2 + i / 40)) for i in range(2000)]
    assert stage(*outcomes, stop=50.0).stationary.verdict == "unstable"


def test_a_queue_before_a_cap_is_growth_though_in_flight_is_flat(build: Any, stage: Any) -> None:
    # 100/s come, 50/s go, and never more than 5 are in flight.
    outcomes = [build.outcome(i / 100, queued=i / 100, tokens=(i / 100 + 0.1,)) for i in range(4000)]
    result = stage(*outcomes, stop=40.0)
    assert result.concurrency.max <= 6
    assert result.stationary.verdict == "unstable"


# --- books and merging ------------------------------------------------------------------------------------------------

ACCOUNTS = [COMPLETED, FAILED + "http_503", FAILED + TIMEOUT, CANCELLED, DROPPED, UNFINISHED, LOST]

requests = st.lists(
    st.tuples(
        st.sampled_from(ACCOUNTS),
        st.integers(0, 9_999),  # ms
        st.lists(st.integers(1, 3_000), max_size=4),
        st.booleans(),
    ),
    max_size=30,
)


def outcomes_of(build: Any, requests: list[Any]) -> list[Outcome]:
    found = []
    for index, (account, at, tokens, streamed) in enumerate(requests):
        unsent = account in (DROPPED, LOST)
        found.append(
            build.outcome(
                at / 1000,
                index=index,
                account=account,
                queued=None if unsent else 0.001 * (at % 7),
                tokens=sorted(token / 1000 + 0.01 for token in tokens),
                took=4.0,
                streamed=streamed,
                output=len(tokens),
            )
        )
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests)
def test_the_books_balance_whatever_becomes_of_requests(
    build: Any, tmp_path_factory: pytest.TempPathFactory, requests: list[Any]
) -> None:
    outcomes = outcomes_of(build, requests)
    directory = tmp_path_factory.mktemp("run")
    grid = build.grid(warmup=3)
    lost = [outcome.intended_ns for outcome in outcomes if outcome.account == LOST]
    told = [outcome for outcome in outcomes if outcome.account != LOST]
    build.run(
        directory,
        [build.delta(*told, grid=grid)] if told else [],
        meta=build.meta(grid),
        intended=len(outcomes),
        more=lambda recorder: recorder.book(0, LOST, lost),
    )
    stage = summarise(directory).stages[0]
    assert stage.books.ended == stage.books.intended == len(outcomes)
    assert stage.window.books.ended == sum(outcome.intended_ns >= grid.window_ns for outcome in outcomes)
    bounds = stage.window.books.unfinished + stage.window.books.failed.get(TIMEOUT, 0)
    counted = stage.latency_seconds.response
    assert (counted.count if counted else 0) == stage.window.books.completed + bounds


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(requests, st.integers(1, 4), st.integers(0, 1000))
def test_however_outcomes_are_split_over_workers_and_flushes_the_summary_is_the_same(
    build: Any, tmp_path_factory: pytest.TempPathFactory, requests: list[Any], workers: int, seed: int
) -> None:
    outcomes = [outcome for outcome in outcomes_of(build, requests) if outcome.account != LOST]
    if not outcomes:
        return
    slo = Slo(ttft={"p50": Duration(300 * NS_PER_MS)})
    whole = summarise(build.run(tmp_path_factory.mktemp("whole"), [build.delta(*outcomes, slo=slo)]))
    rng = random.Random(seed)
    meters = [StageMeter(0, build.grid(), slo, keep_records=False) for _ in range(workers)]
    deltas = []
    for outcome in sorted(outcomes, key=lambda one: one.end_ns):
        meter = rng.choice(meters)
        build.note(meter, outcome)
        if rng.random() < 0.3:
            deltas.append(meter.flush(outcome.end_ns))
    last = max(outcome.end_ns for outcome in outcomes)
    deltas += [meter.flush(last) for meter in meters]
    split = summarise(build.run(tmp_path_factory.mktemp("split"), [delta for delta in deltas if delta]))
    assert comparable(split) == comparable(whole)
    assert rates(split) == pytest.approx(rates(whole))


def rates(summary: Summary) -> list[float | None]:
    (stage,) = summary.stages
    rates = stage.throughput
    return [rates.requests, rates.output_tokens, rates.goodput or 0.0, stage.concurrency.mean]


def comparable(summary: Summary) -> dict[str, Any]:
    """A summary without what sums of floating point or of maxima leave open."""
    (stage,) = summary.stages
    latencies = stage.latency_seconds.named() | stage.latency_seconds.failed
    return {
        "books": (stage.books, stage.window, stage.tokens, stage.short, stage.stationary, stage.curves),
        "latencies": {
            name: (one.count, one.min, one.max, one.mean, one.p50, one.p99, one.ci, one.at_least, one.clamped)
            for name, one in latencies.items()
        },
        "series": (stage.series.arrivals, stage.series.completed, stage.series.ttft_p99, stage.series.response_p50),
    }


# --- runs that ended badly, and several stages ------------------------------------------------------------------------


def test_a_killed_run_is_summarised_as_far_as_it_came(build: Any, tmp_path: Path) -> None:
    directory = build.run(tmp_path, [build.delta(build.outcome(0.5), build.outcome(3.2))], ended=False)
    path = directory / FOLDER / "stage-0000.msgpack"
    path.write_bytes(path.read_bytes() + b"\x40\x00\x00\x00half a record")
    summary = summarise(directory)
    assert summary.stages[0].books.completed == 2
    assert summary.stages[0].ended_by == KILLED
    assert summary.stages[0].window.seconds == pytest.approx(3.4)  # the last thing was an end at 3.3 s, in bin 33
    assert not summary.verdict.valid
    assert "outstanding is not known" in summary.verdict.reasons[0]


def test_a_run_that_never_had_a_stage_is_a_summary_too(build: Any, tmp_path: Path) -> None:
    recorder, _ = build.recorder(tmp_path)
    recorder.run_ended(RunEnd(True, 0.5, 2 * NS_PER_SECOND, failure="OSError: no"))
    recorder.close()
    summary = summarise(tmp_path)
    assert (summary.stages, summary.interrupted, summary.failure) == ([], True, "OSError: no")
    assert summary.generator.credits_exhausted_seconds == 2


def test_a_stage_without_a_request_is_a_summary_too(stage: Any) -> None:
    result = stage()
    assert (result.books.intended, result.series, result.latency_seconds.response) == (0, None, None)
    assert result.stationary.verdict == "too_short"


def test_a_stage_can_be_summarised_before_the_run_is_over(build: Any, tmp_path: Path) -> None:
    recorder, _ = build.recorder(tmp_path)
    for number in range(2):
        recorder.stage_started(build.meta(stage=number, name=f"stage {number}"))
    recorder.apply(build.delta(build.outcome()), 0, build.origin_ns)
    recorder.stage_ended(StageEnd(0, build.origin_ns + 10 * NS_PER_SECOND, 1, "duration"))
    so_far = StagesSoFar(tmp_path, 1)
    assert so_far[0].books.completed == 1
    with pytest.raises(IndexError):
        so_far[1]
    recorder.close()


def test_a_worker_is_reported_over_all_of_its_processes(build: Any, tmp_path: Path) -> None:
    def more(recorder: Recorder) -> None:
        for pid, cpu in ((10, 3), (11, 5)):
            recorder.worker(WorkerStats(0, pid, cpu, 10, 100, 1, 1, 0, 0))
        recorder.worker_died(WorkerDeath(0, 10, "signal 9", 2))

    summary = summarise(build.run(tmp_path, [build.delta(build.outcome())], more=more))
    (worker,) = summary.generator.workers
    assert (worker.worker, worker.pid, worker.restarts, worker.deaths) == (0, 11, 1, ["signal 9"])
    assert "Worker 0 (pid 10) died: signal 9." in summary.verdict.warnings


# --- targets that workers start themselves ----------------------------------------------------------------------------


def engine(worker: int = 0, pid: int = 10, seconds: float = 18.25, **facts: object) -> WorkerOpened:
    told = {"kind": "engine", "model": "tiny", "url": None, "omitted_fields": [], "warnings": [], **facts}
    return WorkerOpened(worker, pid, round(seconds * NS_PER_SECOND), 2_400_000_000, told)


def test_the_start_of_a_workers_target_is_that_of_its_latest_life(build: Any, tmp_path: Path) -> None:
    def more(recorder: Recorder) -> None:
        recorder.worker_opened(engine(pid=10, seconds=30))
        recorder.worker_opened(engine(worker=1, pid=20, seconds=40))
        recorder.worker_died(WorkerDeath(0, 10, "signal SIGKILL", 2))
        recorder.worker_opened(engine(pid=11, seconds=18.25))

    summary = summarise(build.run(tmp_path, [build.delta(build.outcome())], more=more))
    # Nothing but their starts is known of these workers: no stats came.
    assert [(worker.pid, worker.restarts) for worker in summary.generator.workers] == [(11, 1), (20, 0)]
    assert [worker.target for worker in summary.generator.workers] == [
        TargetStart(18.25, 2_400_000_000),
        TargetStart(40.0, 2_400_000_000),
    ]


def test_a_worker_without_a_target_of_its_own_has_no_such_key(build: Any, tmp_path: Path) -> None:
    def more(recorder: Recorder) -> None:
        recorder.worker(WorkerStats(0, 10, 3, 10, 100, 1, 1, 0, 0))

    summary = summarise(build.run(tmp_path, [build.delta(build.outcome())], more=more))
    assert "target" not in msgspec.to_builtins(summary.generator.workers[0])
    assert summary.environment == {"loadgen": "0"}


def test_the_first_target_that_was_up_completes_what_is_known_of_the_target(build: Any, tmp_path: Path) -> None:
    known = {"loadgen": "0", "target": {"kind": "engine", "model": "tiny", "version": "0.32.0"}}
    header = RunHeader("run", "2023-11-14T22:13:20+00:00", 1.0, build.origin_ns, {}, known)

    def more(recorder: Recorder) -> None:
        recorder.worker_opened(engine(max_model_len=1024))
        recorder.worker_opened(engine(worker=1, max_model_len=2048))

    summary = summarise(build.run(tmp_path, [build.delta(build.outcome())], header=header, more=more))
    # `url` is None, `omitted_fields` and `warnings` are empty: left out.
    told = {"kind": "engine", "model": "tiny", "version": "0.32.0", "max_model_len": 1024}
    assert summary.environment == {"loadgen": "0", "target": told}


def test_what_targets_warned_of_as_they_started_is_a_warning_once(build: Any, tmp_path: Path) -> None:
    def more(recorder: Recorder) -> None:
        for worker in range(2):
            recorder.worker_opened(engine(worker=worker, warnings=["The context was cut to 512."]))

    summary = summarise(build.run(tmp_path, [build.delta(build.outcome())], more=more))
    assert summary.verdict.warnings.count("The context was cut to 512.") == 1
    assert "warnings" not in summary.environment["target"]


def test_the_last_words_of_a_worker_are_whole_in_the_summary(build: Any, tmp_path: Path) -> None:
    words = "the engine died\n" + "x" * 1984  # 2,000 characters on two lines
    summary = summarise(
        build.run(
            tmp_path,
            [build.delta(build.outcome())],
            more=lambda recorder: recorder.worker_died(WorkerDeath(0, 10, words, 1)),
        )
    )
    assert summary.generator.workers[0].deaths == [words]
    assert any(words in warning for warning in summary.verdict.warnings)


def test_curves_end_where_samples_do_not_suffice(build: Any, stage: Any) -> None:
    curve = stage(*[build.outcome(i / 100) for i in range(200)]).curves["ttft"]
    # At least 10 of 200 lie beyond each point: up to the fraction .95.
    assert 0.9 < curve[-1][0] <= 0.95
    assert curve[0][0] == 0
