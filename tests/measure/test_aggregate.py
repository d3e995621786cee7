import itertools
import json
from collections.abc import Generator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.measure.aggregate import StageMeter
from loadgen.measure.delta import StageDelta
from loadgen.measure.outcome import CANCELLED, COMPLETED, DROPPED, FAILED, TIMEOUT, UNFINISHED, Outcome
from loadgen.statistics.histogram import Histogram
from loadgen.units import NS_PER_MS, NS_PER_SECOND, Duration

MS = NS_PER_MS


def duration(ms: int) -> Duration:
    return Duration(ms * MS)


def test_a_meter_that_saw_nothing_has_nothing_to_tell(build: Any) -> None:
    assert StageMeter(0, build.grid(), None, keep_records=False).flush(build.origin_ns) is None


def test_what_is_noted_between_the_slices_of_a_flush_belongs_to_the_next(build: Any) -> None:
    meter = StageMeter(0, build.grid(), None, keep_records=False)
    meter.record(build.outcome(index=1))
    ended: list[list[int]] = []
    slices = meter.flush_in_slices(build.origin_ns)
    for later in itertools.count(2):
        try:
            next(slices)
        except StopIteration as done:
            ended.append(done.value.ended)
            break
        meter.record(build.outcome(index=later))
    rest = meter.flush(build.origin_ns)
    assert rest is not None
    # One request before the first slice; one after each but the last.
    assert ended == [[1]]
    assert rest.ended == list(range(2, later))
    assert later > 2


def test_latencies_start_at_the_intended_start_and_their_service_twins_at_the_send(build: Any) -> None:
    delta = build.delta(build.outcome(queued=0.2, late=0.1, tokens=(0.5, 0.9)))
    exact = {name: build.sums(delta, name).sum_ns // MS for name in ("ttft", "service_ttft", "response", "service")}
    # Sent at .2 + .1 s; the first token at .5 s, the end at .9 s.
    assert exact == {"ttft": 500, "service_ttft": 200, "response": 900, "service": 600}
    assert build.sums(delta, "queued").sum_ns == 200 * MS
    assert build.sums(delta, "lateness").sum_ns == 100 * MS


def test_each_gap_is_one_sample(build: Any) -> None:
    # 98 gaps of 10 ms and one of 1 s: the mean of the request would say 20 ms.
    instants = [0.1 + 0.01 * i for i in range(99)] + [0.1 + 0.98 + 1.0]
    itl = Histogram()
    itl.add(build.sums(build.delta(build.outcome(tokens=instants)), "itl"))
    assert itl.count == 99
    assert itl.value_at(0.5) == pytest.approx(10 * MS, rel=1e-3)
    assert itl.value_at(0.99) == pytest.approx(1000 * MS, rel=1e-3)  # rank 99 of 99


def test_tpot_spreads_over_tokens_and_not_over_chunks(build: Any) -> None:
    # 5 tokens in 2 chunks 400 ms apart: 400 / (5 - 1).
    assert build.sums(build.delta(build.outcome(tokens=(0.1, 0.5), output=5)), "tpot").sum_ns == 100 * MS


@pytest.mark.parametrize(("tokens", "output"), [((0.1,), 1), ((0.1,), 5), ((0.1, 0.2), 1)])
def test_tpot_is_absent_where_no_time_between_tokens_is_known(build: Any, tokens: Any, output: int) -> None:
    assert build.sums(build.delta(build.outcome(tokens=tokens, output=output)), "tpot") is None


def test_a_whole_answer_has_no_ttft_itl_or_tpot(build: Any) -> None:
    delta = build.delta(build.outcome(streamed=False, took=0.5, output=10))
    assert [build.sums(delta, name) for name in ("ttft", "service_ttft", "ttft_content", "itl", "tpot")] == [None] * 5
    assert build.sums(delta, "response").count == 1


@pytest.mark.parametrize("account", [FAILED + "http_503", FAILED + TIMEOUT, CANCELLED, UNFINISHED])
def test_only_completed_requests_enter_latencies(build: Any, account: str) -> None:
    delta = build.delta(build.outcome(account=account, tokens=(0.1, 0.2), took=0.3))
    for name in ("ttft", "service_ttft", "ttft_content", "itl", "tpot", "response", "service", "connect"):
        assert build.sums(delta, name) is None


def test_a_failure_has_a_latency_of_its_kind(build: Any) -> None:
    delta = build.delta(build.outcome(account=FAILED + "http_503", tokens=(), took=0.3))
    assert build.sums(delta, "failed:http_503").sum_ns == 300 * MS


def test_queued_and_lateness_are_facts_of_every_request_that_was_sent(build: Any) -> None:
    delta = build.delta(build.outcome(account=FAILED + "http_503", queued=0.2, tokens=(), took=0.3))
    assert build.sums(delta, "queued").sum_ns == 200 * MS
    assert build.sums(delta, "lateness").count == 1


@pytest.mark.parametrize("account", [UNFINISHED, FAILED + TIMEOUT])
def test_what_had_not_ended_bounds_response_and_without_a_token_ttft(build: Any, account: str) -> None:
    without = build.delta(build.outcome(account=account, tokens=(), took=5))
    assert build.sums(without, "response_at_least").sum_ns == 5000 * MS
    assert build.sums(without, "ttft_at_least").sum_ns == 5000 * MS
    with_token = build.delta(build.outcome(account=account, tokens=(1.0,), took=5))
    assert build.sums(with_token, "response_at_least").sum_ns == 5000 * MS
    assert build.sums(with_token, "ttft_at_least") is None


def test_what_ended_in_another_way_bounds_nothing(build: Any) -> None:
    for account in (FAILED + "disconnect", CANCELLED, DROPPED):
        assert build.sums(build.delta(build.outcome(account=account, tokens=(), took=5)), "response_at_least") is None


def test_every_request_stands_in_one_account_by_the_interval_of_its_intended_start(build: Any) -> None:
    delta = build.delta(
        build.outcome(0.5, index=7),
        build.outcome(0.7, index=8),
        build.outcome(1.5, index=9, account=DROPPED, queued=None),
    )
    assert delta.ended == [7, 8, 9]
    assert sorted(delta.accounts) == [(0, COMPLETED, 2), (1, DROPPED, 1)]


def test_intervals_before_the_window_are_negative(build: Any) -> None:
    delta = build.delta(build.outcome(0.5), grid=build.grid(warmup=2))
    assert delta.accounts == [(-2, COMPLETED, 1)]


def test_a_send_is_told_by_the_intervals_of_its_intended_start_of_its_slot_and_of_itself(build: Any) -> None:
    delta = build.delta(build.outcome(0.5, queued=2.0, late=0.6, tokens=(3.0,)), build.outcome(0.6))
    assert sorted(delta.sent) == [(0, 0, 0, 1), (0, 2, 3, 1)]


def test_a_request_without_a_slot_is_excused_and_one_that_had_a_slot_is_not(build: Any) -> None:
    delta = build.delta(
        build.outcome(0.5, account=UNFINISHED, queued=None), build.outcome(1.5, account=UNFINISHED, late=None)
    )
    assert delta.excused == [(0, 1)]


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_tokens_count_at_the_instants_of_their_chunks(build: Any) -> None:
    # 6 tokens over 3 chunks, 2 each; bins of 100 ms.
    delta = build.delta(build.outcome(tokens=(0.15, 0.25, 0.95), output=6, prompt=100))
    assert build.series(delta, "output_tokens") == {1: 2, 2: 2, 9: 2}
    assert build.series(delta, "prompt_tokens") == {1: 100}


def test_tokens_of_known_chunks_are_not_spread(build: Any) -> None:
    delta = build.delta(build.outcome(tokens=(0.15, 0.25), chunk_tokens=(1, 5)))
    assert build.series(delta, "output_tokens") == {1: 1, 2: 5}
    assert delta.tokens[0].output == 6
    assert delta.tokens[0].by_token_ids == 1


def test_tokens_of_a_whole_answer_count_at_its_end(build: Any) -> None:
    delta = build.delta(build.outcome(streamed=False, took=0.55, output=6, prompt=100))
    assert build.series(delta, "output_tokens") == {5: 6}
    assert build.series(delta, "prompt_tokens") == {5: 100}


def test_what_came_of_an_unfinished_answer_counts_as_one_token_a_chunk(build: Any) -> None:
    delta = build.delta(build.outcome(account=UNFINISHED, tokens=(0.15, 0.25), took=5, output=None))
    assert build.series(delta, "output_tokens") == {1: 1, 2: 1}
    assert delta.tokens == []  # the means are of completed requests


def test_without_a_count_chunks_stand_for_tokens(build: Any) -> None:
    (totals,) = build.delta(build.outcome(tokens=(0.1, 0.2, 0.3))).tokens
    assert (totals.output, totals.output_n, totals.by_chunks, totals.by_usage) == (3, 1, 1, 0)


def test_the_count_of_a_whole_answer_without_usage_is_not_known(build: Any) -> None:
    (totals,) = build.delta(build.outcome(streamed=False)).tokens
    assert (totals.output_n, totals.by_chunks) == (0, 0)


@pytest.mark.parametrize(("output", "short"), [(9, 1), (10, 0), (None, 0)])
def test_an_output_is_short_where_its_count_is_known_to_be(build: Any, output: int | None, short: int) -> None:
    assert build.delta(build.outcome(asked=10, output=output)).tokens[0].short == short


# --- in flight --------------------------------------------------------------------------------------------------------


def test_in_flight_is_integrated_exactly_over_bins(build: Any) -> None:
    meter = StageMeter(0, build.grid(), None, keep_records=False)
    meter.entered(build.origin_ns + 50 * MS)
    meter.entered(build.origin_ns + 150 * MS)
    meter.left(build.origin_ns + 175 * MS)
    delta = meter.flush(build.origin_ns + 300 * MS)
    # Bin 0: one for 50 ms; bin 1: one for 100 ms and another for 25 ms; bin 2: one for 100 ms.
    assert build.series(delta, "inflight_integral_ns") == {0: 50 * MS, 1: 125 * MS, 2: 100 * MS}
    assert build.series(delta, "inflight_max") == {0: 1, 1: 2, 2: 1, 3: 1}
    assert meter.in_flight == 1


def test_a_slot_taken_as_it_is_freed_is_not_in_use_twice(build: Any) -> None:
    meter = StageMeter(0, build.grid(), None, keep_records=False)
    meter.entered(build.origin_ns)
    meter.entered(build.origin_ns + 50 * MS)
    meter.left(build.origin_ns + 50 * MS)
    assert build.series(meter.flush(build.origin_ns + 60 * MS), "inflight_max") == {0: 1}


moves = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 800)), min_size=1, max_size=20)


@given(moves, st.lists(st.integers(0, 3000), max_size=5))
def test_flushes_in_between_change_neither_integral_nor_maximum(
    build: Any, stays: list[tuple[int, int]], flushes: list[int]
) -> None:
    events = sorted(
        [(start, 1) for start, _ in stays]
        + [(start + length, 0) for start, length in stays]
        + [(f, 2) for f in flushes]
    )
    whole, split = (StageMeter(0, build.grid(), None, keep_records=False) for _ in range(2))
    deltas = []
    for at, kind in events:
        for meter in (whole, split):
            if kind == 2 and meter is split:
                deltas.append(meter.flush(build.origin_ns + at * MS))
            elif kind < 2:
                (meter.entered if kind else meter.left)(build.origin_ns + at * MS)
    end = build.origin_ns + 4000 * MS
    once = whole.flush(end)
    deltas.append(split.flush(end))
    for name in ("inflight_integral_ns", "inflight_max", "sent"):
        total: dict[int, float] = {}
        for delta in filter(None, deltas):
            for number, amount in build.series(delta, name).items():
                total[number] = total.get(number, 0) + amount
        assert total == build.series(once, name)


def test_an_end_that_is_told_late_still_counts_in_full(build: Any) -> None:
    meter = StageMeter(0, build.grid(), None, keep_records=False)
    meter.entered(build.origin_ns)
    first = meter.flush(build.origin_ns + 100 * MS)
    meter.left(build.origin_ns + 60 * MS)
    second = meter.flush(build.origin_ns + 200 * MS)
    told = [build.series(delta, "inflight_integral_ns").get(0, 0) for delta in (first, second)]
    assert sum(told) == 60 * MS


# --- the words of failures --------------------------------------------------------------------------------------------


def failure(build: Any, kind: str, message: str) -> Outcome:
    return build.outcome(account=FAILED + kind, tokens=(), took=0.3, message=message)  # type: ignore[no-any-return]


def test_the_words_of_the_first_failure_of_each_kind_are_told(build: Any) -> None:
    told = [("http_503", "overloaded"), ("http_503", "still overloaded"), (TIMEOUT, "no end after 2 s")]
    delta = build.delta(*[failure(build, kind, message) for kind, message in told])
    assert delta.messages == {"http_503": "overloaded", "timeout": "no end after 2 s"}


def test_the_words_of_a_kind_are_told_once_and_not_with_every_delta(build: Any) -> None:
    meter = StageMeter(0, build.grid(), None, keep_records=False)
    told = []
    for kind in ("http_503", "http_503", "connect", "http_503"):
        meter.record(failure(build, kind, f"words of {kind}"))
        told.append(meter.flush(build.origin_ns).messages)
    assert told == [{"http_503": "words of http_503"}, {}, {"connect": "words of connect"}, {}]


def test_words_that_come_between_the_slices_of_a_flush_travel_with_their_request(build: Any) -> None:
    meter = StageMeter(0, build.grid(), None, keep_records=False)
    meter.record(failure(build, "connect", "refused"))
    told: list[StageDelta] = []

    def flush_slowly() -> Generator[None, None, None]:
        told.append((yield from meter.flush_in_slices(build.origin_ns)))

    slices = flush_slowly()
    next(slices)
    meter.record(failure(build, "http_503", "overloaded"))
    assert list(slices)  # the rest of the slices, which were left
    assert told[0].messages == {"connect": "refused"}
    assert meter.flush(build.origin_ns).messages == {"http_503": "overloaded"}


def test_a_failure_without_words_leaves_the_place_to_the_next_of_its_kind(build: Any) -> None:
    assert build.delta(failure(build, "connect", "")).messages == {}
    assert build.delta(failure(build, "connect", ""), failure(build, "connect", "refused")).messages == {
        "connect": "refused"
    }


@pytest.mark.parametrize("account", [COMPLETED, UNFINISHED, CANCELLED])
def test_what_did_not_fail_has_no_words_of_a_failure(build: Any, account: str) -> None:
    assert build.delta(build.outcome(account=account, message="half an answer")).messages == {}


def test_the_words_of_a_failure_are_cut_to_2000_characters(build: Any) -> None:
    assert build.delta(failure(build, "connect", "é" * 2001)).messages == {"connect": "é" * 2000}


def test_the_words_of_at_most_32_kinds_are_told_and_all_failures_are_counted(build: Any) -> None:
    delta = build.delta(*[failure(build, f"http_{400 + i}", "no") for i in range(40)])
    assert list(delta.messages) == [f"http_{400 + i}" for i in range(32)]
    assert len(delta.accounts) == 40


def test_words_that_hold_no_text_do_not_keep_a_delta_from_being_sent(build: Any) -> None:
    # A file's name with a byte that is no UTF-8, as Python hands it out.
    delta = build.delta(failure(build, "request", "cannot read caf\udce9.png"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(delta), type=StageDelta) == delta
    assert delta.messages == {"request": "cannot read caf?.png"}


# --- records ----------------------------------------------------------------------------------------------------------


def test_records_say_what_is_known_and_leave_out_what_is_not(build: Any) -> None:
    meter = StageMeter(0, build.grid(), None, keep_records=True)
    meter.record(build.outcome(0.5, index=3, tokens=(0.1, 0.4), output=2))
    meter.record(build.outcome(1.0, index=4, account=DROPPED, queued=None))
    first, second = map(json.loads, meter.flush(build.origin_ns).records.splitlines())
    assert first == {
        "stage": 0,
        "index": 3,
        "account": "completed",
        "intended": 0.5,
        "admitted": 0.5,
        "sent": 0.5,
        "first_token": 0.6,
        "last_token": 0.9,
        "end": 0.9,
        "output_tokens": 2,
        "chunks": 2,
    }
    assert second == {"stage": 0, "index": 4, "account": "dropped", "intended": 1.0, "end": 1.1}


def test_a_record_has_the_id_by_which_the_targets_log_names_the_request(build: Any) -> None:
    meter = StageMeter(0, build.grid(), None, keep_records=True)
    outcome = build.outcome()
    outcome.exchange.request_id = "r-1"
    meter.record(outcome)
    assert json.loads(meter.flush(build.origin_ns).records)["request_id"] == "r-1"


@pytest.mark.parametrize(
    ("texts", "account", "text"),
    [
        (["ye", "s"], COMPLETED, "yes"),
        (["ye"], CANCELLED, "ye"),
        ([], COMPLETED, ""),  # it is known to say nothing
        ([], CANCELLED, None),
        (None, COMPLETED, None),
    ],
)
def test_a_record_has_the_text_that_came_where_it_was_kept(
    build: Any, texts: list[str] | None, account: str, text: str | None
) -> None:
    meter = StageMeter(0, build.grid(), None, keep_records=True)
    outcome = build.outcome(account=account)
    outcome.exchange.texts = texts
    meter.record(outcome)
    assert json.loads(meter.flush(build.origin_ns).records).get("text") == text


def test_loop_lag_is_kept_by_its_own_instant(build: Any) -> None:
    meter = StageMeter(0, build.grid(), None, keep_records=False)
    meter.lag(build.origin_ns + 2 * NS_PER_SECOND, 3 * MS)
    assert build.sums(meter.flush(build.origin_ns), "loop_lag").sum_ns == 3 * MS
