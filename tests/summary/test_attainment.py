from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.judge.summarise import summarise
from loadgen.measure.outcome import CANCELLED, DROPPED, FAILED, LOST, UNFINISHED, Outcome
from loadgen.profile.slo import Slo, slo_of
from loadgen.statistics.proportion import product_interval, rate_interval, share_interval, wilson_interval
from loadgen.summary.summary import Stage

SECONDS = 24


@pytest.fixture
def stage(build: Any, tmp_path: Path) -> Any:
    """The summary of a stage of 24 s under these promises, after a warm-up of 2 s."""

    def of(promises: dict[str, Any], outcomes: list[Outcome], **run: Any) -> Stage:
        grid, slo = build.grid(warmup=2), slo_of(promises)
        deltas = [build.delta(*outcomes, grid=grid, slo=slo)] if outcomes else []
        run = {"stop": 2.0 + SECONDS, "meta": build.meta(grid), "header": build.header(slo=promises), **run}
        summary = summarise(build.run(tmp_path, deltas, **run))
        assert summary.verdict.slo is not None
        return summary.stages[0]

    return of


def requests(build: Any, slow: dict[int, int], **fields: Any) -> list[Outcome]:
    """10 a second, of which so many of a second take 300 ms and the others 100; those of the warm-up all do."""
    return [
        build.outcome(2 + second + i / 10, tokens=(0.3 if second < 0 or i < slow.get(second, 0) else 0.1,), **fields)
        for second in range(-2, SECONDS)
        for i in range(10)
    ]


PROMISE = {"attainment": 0.9, "request": {"response": "200ms"}}


def test_attainment_is_the_share_of_the_windows_requests_that_were_good(build: Any, stage: Any) -> None:
    # 6 of 240 are slow: all in second 3. That is the fourth interval, and v counts from there.
    attainment = stage(PROMISE, requests(build, {3: 6})).attainment
    assert attainment.value == pytest.approx(234 / 240)
    good = np.full(SECONDS, 10)
    good[3] = 4
    # 90 % of 240 is rank 216, which all of the fast ones share.
    assert attainment.ci == share_interval(np.full(SECONDS, 10), good)


def test_while_all_are_good_the_slowest_of_them_tell_how_bursts_come(build: Any, stage: Any) -> None:
    # Of 240 good ones, 216 take 100 ms and 24 of them 180 ms, in three bursts of 8.
    outcomes = [
        build.outcome(2 + second + i / 10, tokens=(0.18 if second in (3, 4, 5) and i < 8 else 0.1,))
        for second in range(SECONDS)
        for i in range(10)
    ]
    attainment = stage(PROMISE, outcomes).attainment
    near = np.full(SECONDS, 10)
    near[3:6] = 2
    assert attainment.value == 1
    assert attainment.ci == share_interval(np.full(SECONDS, 10), np.full(SECONDS, 10), near)
    assert attainment.ci[0] < wilson_interval(240, 240)[0] - 0.05


@pytest.mark.parametrize("account", [FAILED + "http_503", UNFINISHED, DROPPED])
def test_what_did_not_complete_was_not_good(build: Any, stage: Any, account: str) -> None:
    outcomes = requests(build, {})
    outcomes += [build.outcome(5.5, account=account, tokens=(), took=0.1)] * 60
    assert stage(PROMISE, outcomes).attainment.value == pytest.approx(240 / 300)


@pytest.mark.parametrize("account", [CANCELLED, LOST])
def test_what_is_no_fault_of_the_target_does_not_count(build: Any, stage: Any, account: str) -> None:
    outcomes = [*requests(build, {}), build.outcome(5.5, account=account, tokens=(), took=0.1)]
    assert stage(PROMISE, outcomes).attainment.value == 1


def test_where_none_completed_none_was_good(build: Any, stage: Any) -> None:
    outcomes = [build.outcome(2.0 + i / 10, account=FAILED + "connect", tokens=(), took=0.1) for i in range(240)]
    attainment = stage(PROMISE, outcomes).attainment
    assert attainment.value == 0
    assert attainment.ci == share_interval(np.full(SECONDS, 10), np.zeros(SECONDS, np.int64))


def test_without_requests_there_is_no_attainment(stage: Any) -> None:
    result = stage(PROMISE, [])
    assert result.attainment is None


def test_a_window_of_no_length_has_a_share_and_no_interval(build: Any, stage: Any) -> None:
    promise = {"goodput": 5, **PROMISE}
    outcomes = [build.outcome(2.0, tokens=(0.1,)), build.outcome(2.0, tokens=(0.3,))]
    result = stage(promise, outcomes, stop=2.0)
    assert (result.attainment.value, result.attainment.ci, result.throughput.goodput_ci) == (0.5, None, None)


def test_goodput_has_the_interval_of_its_rate_and_its_share(build: Any, stage: Any) -> None:
    # Of 10/s 9.75 are good; 5/s are promised, the share of which all of the fast ones exceed.
    promise = {"goodput": 5, "request": {"response": "200ms"}}
    result = stage(promise, requests(build, {3: 6}))
    all_of_them, good = np.full(SECONDS, 10), np.full(SECONDS, 10)
    good[3] = 4
    share, rate = share_interval(all_of_them, good), rate_interval(all_of_them, np.ones(SECONDS))
    assert share is not None
    assert rate is not None
    # Each ends 100 ms after its start, so that one of the window ends after it.
    assert result.throughput.goodput == pytest.approx(233 / SECONDS)
    assert result.throughput.goodput_ci == pytest.approx(
        product_interval(233 / SECONDS, (10, rate), (234 / 240, share))
    )
    assert result.attainment is None


def test_a_promise_of_latencies_alone_asks_for_neither(build: Any, stage: Any) -> None:
    result = stage({"response": {"p99": "200ms"}}, requests(build, {}))
    assert (result.attainment, result.throughput.goodput_ci) == (None, None)
    assert result.throughput.goodput is not None


def test_limits_on_no_request_make_no_goodput(build: Any, stage: Any) -> None:
    assert stage({"error_rate": 0.1}, requests(build, {})).throughput.goodput is None


def test_the_run_is_judged_by_what_the_stage_attained(build: Any, tmp_path: Path) -> None:
    promises = {"attainment": 0.99, "request": {"response": "200ms"}}
    slo: Slo = slo_of(promises)
    deltas = [build.delta(*requests(build, dict.fromkeys(range(SECONDS), 5)), slo=slo)]
    summary = summarise(build.run(tmp_path, deltas, stop=2.0 + SECONDS, header=build.header(slo=promises)))
    assert summary.verdict.slo is not None
    assert [(one.metric, one.outcome) for one in summary.verdict.slo.checks] == [("attainment", "missed")]
