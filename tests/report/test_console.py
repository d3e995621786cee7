import io
import re
from typing import Any

import pytest
from rich.console import Console

from loadgen.report.console import render_summary
from loadgen.summary.summary import (
    Accuracy,
    AcrossRepeats,
    Estimate,
    Items,
    Latencies,
    Repeated,
    Stage,
    Stationary,
    Summary,
    TargetStart,
    Throughput,
    Tokens,
)


def told(summary: Summary, width: int = 100, **console: Any) -> str:
    """What the console shows, as text."""
    file = io.StringIO()
    render_summary(summary, Console(file=file, width=width, **console))
    return file.getvalue()


def row(text: str, label: str) -> str:
    """The first line that begins with `label`."""
    return next(line for line in text.splitlines() if line.startswith(label))


# --- the verdict ------------------------------------------------------------------------------------------------------


def test_a_valid_run_says_so_first(build: Any) -> None:
    assert told(build.summary()).splitlines()[0] == "VALID"


def test_an_invalid_run_says_so_first_and_gives_each_reason(build: Any) -> None:
    verdict = build.verdict(valid=False, reasons=["p99 lateness of 23 ms exceeds 10 ms", "98 % were sent"])
    lines = [line.strip() for line in told(build.summary(verdict=verdict)).splitlines()]
    assert lines[0].startswith("INVALID")
    assert lines[1:3] == ["- p99 lateness of 23 ms exceeds 10 ms", "- 98 % were sent"]


@pytest.mark.parametrize(("met", "word"), [(True, "met"), (False, "missed"), (None, "undecided")])
def test_the_slo_is_met_missed_or_undecided(build: Any, met: bool | None, word: str) -> None:
    verdict = build.verdict(slo=build.slo(met, build.check(word)))
    assert told(build.summary(verdict=verdict)).splitlines()[1].startswith(f"SLO {word}")


def test_a_promise_that_is_not_met_stands_with_the_verdict(build: Any) -> None:
    check = build.check("missed", value=0.6, ci=(0.55, None))
    text = told(build.summary(verdict=build.verdict(slo=build.slo(False, check, build.check("met")))))
    assert "- poisson 20/s: ttft p99 ≤ 500 ms: missed, measured 600 ms [550 ms, ?]" in text.split("started")[0]


def test_every_promise_stands_with_its_stage(build: Any) -> None:
    errors = build.check("met", metric="error_rate", percentile=None, limit=0.01, value=0.002, ci=None, unit="share")
    text = told(build.summary(verdict=build.verdict(slo=build.slo(True, build.check("met"), errors))))
    assert "ttft p99 ≤ 500 ms: met, measured 100 ms [90 ms, 120 ms]" in text
    assert "error_rate ≤ 1.0 %: met, measured 0.2 %" in text


def test_a_promise_without_a_measurement_shows_none(build: Any) -> None:
    check = build.check("undecided", value=None, ci=None)
    text = told(build.summary(verdict=build.verdict(slo=build.slo(None, check))))
    assert "ttft p99 ≤ 500 ms: undecided, measured -" in text


def test_warnings_are_told_before_the_numbers(build: Any) -> None:
    text = told(build.summary(verdict=build.verdict(warnings=["the loop is closed"])))
    assert text.index("warning: the loop is closed") < text.index("p99")


# --- latencies --------------------------------------------------------------------------------------------------------


def test_p99_is_shown_with_its_interval(build: Any) -> None:
    stage = build.replaced(build.stage(), ttft=build.latency(0.05, ci={"p99": (0.095, 0.105)}))
    assert "100 [95.0, 105]" in row(told(build.summary(stage)), "ttft")


def test_an_interval_that_is_open_above_ends_in_a_question_mark(build: Any) -> None:
    stage = build.replaced(build.stage(), ttft=build.latency(0.05, ci={"p99": (0.095, None)}))
    assert "100 [95.0, ?]" in row(told(build.summary(stage)), "ttft")


def test_an_insufficient_percentile_is_not_shown(build: Any) -> None:
    # Of 5,000 samples 50 lie beyond p99 and 5 beyond p99.9, whose value here would be 150 ms.
    stage = build.replaced(build.stage(), ttft=build.latency(0.05, count=5000))
    line = row(told(build.summary(stage)), "ttft")
    assert "n/a (5,000 samples)" in line
    assert "150" not in line.replace("[95.0, 105]", "")


def test_a_row_says_once_how_few_samples_it_has(build: Any) -> None:
    # Of 15 samples 7.5 lie beyond the median, so that no percentile is known.
    stage = build.replaced(build.stage(), ttft=build.latency(0.05, count=15))
    assert row(told(build.summary(stage)), "ttft").count("n/a") == 5
    assert row(told(build.summary(stage)), "ttft").count("(15 samples)") == 1


def test_what_is_sufficient_follows_from_the_count_where_the_summary_does_not_say(build: Any) -> None:
    stage = build.replaced(build.stage(), ttft=build.latency(0.05, count=5000, sufficient={}))
    assert row(told(build.summary(stage)), "ttft").count("n/a") == 1


def test_a_lower_bound_is_marked(build: Any) -> None:
    latency = build.latency(0.05, at_least={"p99": True}, lower_bounds=3, ci={"p99": (0.095, None)})
    line = row(told(build.summary(build.replaced(build.stage(), ttft=latency))), "ttft")
    assert "≥100 [95.0, ?]" in line  # p99
    assert "≥55.0" in line  # mean
    assert "≥200" in line  # maximum
    assert " 50.0" in line  # the median, which no lower bound reaches


def test_a_latency_that_was_not_measured_has_no_row(build: Any) -> None:
    stage = build.replaced(build.stage(), ttft=None, itl=None, tpot=None, service_ttft=None)
    text = told(build.summary(stage))
    assert not any(line.startswith(("ttft", "itl", "tpot", "service_ttft")) for line in text.splitlines())
    assert row(text, "response")


def test_failures_have_latencies_of_their_own(build: Any) -> None:
    latencies = Latencies(response=build.latency(1.0), failed={"http_429": build.latency(0.02)})
    assert row(told(build.summary(build.stage(latency_seconds=latencies))), "failed http_429")


def test_a_stage_in_which_nothing_completed_is_shown(build: Any) -> None:
    text = told(build.summary(build.silent_stage()))
    assert "no latencies: no request completed in the window" in text
    assert "40 intended = 0 completed + 40 failed" in text


# --- the rest of a stage ----------------------------------------------------------------------------------------------


def test_the_books_are_one_equation(build: Any) -> None:
    books = build.books(980, {"http_429": 10, "timeout": 5}, dropped=2, lost=1, cancelled=3, unfinished=4)
    text = told(build.summary(build.stage(books=books)))
    equation = "980 completed + 15 failed + 3 cancelled + 2 dropped + 1 lost + 4 unfinished"
    assert f"1,005 intended = {equation}" in " ".join(text.split())


def test_each_kind_of_failure_has_a_line_with_its_words_the_most_frequent_first(build: Any) -> None:
    books = build.books(9, {"connect": 3, "http_503": 1200, "timeout": 12})
    words = {"http_503": "the server is overloaded", "timeout": "no end after 2 s"}
    stage = build.stage(books=books, failure_messages=words)
    lines = [line.rstrip() for line in told(build.summary(stage)).splitlines()]
    at = next(i for i, line in enumerate(lines) if line.startswith("books"))
    # Two spaces end the column of labels; counts stand right-aligned, three spaces before the words.
    assert lines[at + 1 : at + 4] == [
        "failed http_503  1,200   the server is overloaded",
        "failed timeout      12   no end after 2 s",
        "failed connect       3",
    ]


def test_the_words_of_a_failure_are_cut_to_400_characters_on_a_few_lines(build: Any) -> None:
    stage = build.stage(books=build.books(1, {"http_500": 2}), failure_messages={"http_500": "one\n" + "two " * 499})
    text = told(build.summary(stage))
    assert "2   one two" in row(text, "failed http_500")
    # "one " and 395 more characters, which are 98 times "two " and the word once more; then the ellipsis.
    assert (text.count("two"), text.count("two…")) == (99, 1)


def test_books_that_do_not_balance_say_so(build: Any) -> None:
    text = told(build.summary(build.stage(books=build.books(90, intended=100))))
    assert "100 intended ≠ 90 completed: THE BOOKS DO NOT BALANCE, 10 missing" in text


def test_the_books_of_the_window_are_shown_where_they_differ(build: Any) -> None:
    text = told(build.summary(build.stage(window_books=build.books(900))))
    assert "900 intended = 900 completed" in row(text, "in window")


def test_tokens_that_differ_from_what_was_asked_are_pointed_out(build: Any) -> None:
    more = Tokens(counted_by="usage", prompt_asked=500.0, prompt=550.0)
    assert "prompt 500 asked, 550 measured (+10.0 %)" in told(build.summary(build.stage(tokens=more)))


def test_chunks_are_not_called_tokens(build: Any) -> None:
    chunks = Tokens(counted_by="chunks", output=128.0)
    text = told(build.summary(build.stage(tokens=chunks)))
    assert "2,531 output chunks/s" in text
    assert "CHUNKS, not tokens" in text


def test_a_closed_loop_shows_its_slots(build: Any) -> None:
    text = told(build.summary(build.stage(kind="concurrency", offered_rate=None, intended_concurrency=64)))
    assert "offered 64 slots" in text
    assert "mean 12.3, max 31 of 64 slots" in text


def test_goodput_is_shown_where_it_is_known(build: Any) -> None:
    rates = Throughput(requests=19.8, output_tokens=1.0, prompt_tokens=1.0, goodput=17.5)
    assert "19.8 requests/s, goodput 17.5/s" in told(build.summary(build.stage(throughput=rates)))


def test_labels_are_shown_with_their_shares_the_most_frequent_first(build: Any) -> None:
    text = told(build.summary(build.stage(labels={"no": 250, "yes": 750})))
    assert "yes 750 (75 %), no 250 (25 %)" in row(text, "labels")


def test_accuracy_is_shown_with_its_counts_and_only_where_it_is_known(build: Any) -> None:
    text = told(build.summary(build.stage(labels={"no": 1600}, accuracy=Accuracy(0.75, 1200, 1600))))
    assert "75 %: 1,200 of 1,600 answers are the expected label" in row(text, "accuracy")
    assert "accuracy" not in told(build.summary(build.stage(labels={"no": 1600})))


def test_vectors_are_shown_by_request_and_by_second(build: Any) -> None:
    rates = Throughput(requests=19.8, output_tokens=0.0, prompt_tokens=1.0, items=158.0)
    items = Items(what="vectors", mean=8.0, dimensions=256.0)
    text = told(build.summary(build.stage(throughput=rates, items=items, tokens=Tokens(counted_by="none", prompt=9.0))))
    assert "8.00 a request of 256 dimensions" in row(text, "vectors")
    assert "158 vectors/s" in text
    assert row(text, "tokens").split() == ["tokens", "prompt", "9.00"]


def test_retries_are_told_where_there_were_any(build: Any) -> None:
    assert row(told(build.summary(build.stage(retries=1200))), "retries").split()[1] == "1,200"
    assert "retries" not in told(build.summary(build.stage()))


# --- several stages ---------------------------------------------------------------------------------------------------


def test_a_sweep_begins_with_a_table_of_its_points(build: Any) -> None:
    failing = build.books(90, {"http_503": 10})
    stages = [
        build.stage("poisson 5/s", offered_rate=5.0),
        build.stage("poisson 50/s", offered_rate=50.0, books=failing, stationary=Stationary("unstable", "it grew")),
    ]
    text = told(build.summary(*stages))
    first, second = row(text, "1 "), row(text, "2 ")
    assert " ".join(first.split()) == "1 5/s 19.8 2,531 50 ms 100 ms 24 ms 3.20 s [3.04, 3.36] 0 % stable"
    assert second.split()[-3:] == ["10", "%", "UNSTABLE"]
    assert text.index(first) < text.index("stage 1 of 2: poisson 5/s") < text.index("stage 2 of 2: poisson 50/s")


def test_a_point_that_is_not_known_is_no_number(build: Any) -> None:
    few = build.replaced(build.stage(), ttft=build.latency(0.05, count=100), itl=None)
    line = row(told(build.summary(few, build.stage())), "1 ")
    assert " ".join(line.split()) == "1 20/s 19.8 2,531 50 ms n/a - 3.20 s [3.04, 3.36] 0 % stable"


def sweep(build: Any, *rates: float) -> list[Stage]:
    return [build.point_stage(rate) for rate in rates]


SWEEP = {"load": {"kind": "sweep"}}


def test_the_stages_of_a_sweep_have_no_tables_of_their_own(build: Any) -> None:
    text = told(build.summary(*sweep(build, 5.0, 50.0), profile=SWEEP))
    assert "stage 1 of 2" not in text
    assert "service_ttft" not in text
    assert " ".join(row(text, "2 ").split()).startswith("2 50/s 50.0 6,400")  # 128 tokens a request


def test_the_promises_of_a_sweep_stand_in_a_table_a_row_a_stage(build: Any) -> None:
    stages = sweep(build, 5.0, 50.0)
    checks = [
        build.check("met", stage=stages[0].name),
        build.check("missed", stage=stages[1].name, value=0.6, ci=(0.55, None)),
    ]
    text = told(build.summary(*stages, profile=SWEEP, verdict=build.verdict(slo=build.slo(False, *checks))))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1] == "SLO missed: of 2 checks 1 missed, 1 met"
    at = lines.index("# ttft p99 ≤ 500 ms")
    assert lines[at + 2 : at + 4] == ["1 met 100 ms [90 ms, 120 ms]", "2 missed 600 ms [550 ms, ?]"]
    assert text.count("missed") == 3  # the verdict does not list it besides


def test_a_search_of_14_stages_and_its_answer_fit_a_screen(build: Any) -> None:
    stages = [*build.search_stages(), *(build.point_stage(20.0 + rate, purpose="double") for rate in range(10))]
    warnings = [f"Stage {stage.name}: unstable, {'because ' * 20}." for stage in stages]
    text = told(build.summary(*stages, search=build.search(), verdict=build.verdict(warnings=warnings)))
    lines = text.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100
    assert text.count("warning: ") == 4
    assert "and 10 more warnings" in text
    assert text.index("#") < text.index("Saturation rate: 20/s") < text.index("stage 3 at 40/s")


def test_warnings_of_the_whole_run_come_before_those_of_stages(build: Any) -> None:
    warnings = [*(f"Stage {number}: unstable." for number in range(9)), "Worker 1 died."]
    lines = told(build.summary(profile=SWEEP, verdict=build.verdict(warnings=warnings))).splitlines()
    assert lines[1].strip() == "- warning: Worker 1 died."


def test_of_many_reasons_of_stages_that_are_compared_the_first_are_told(build: Any) -> None:
    reasons = [f"Stage {number}: late." for number in range(9)]
    text = told(build.summary(profile=SWEEP, verdict=build.verdict(valid=False, reasons=reasons)))
    assert text.count(": late.") == 4
    assert "and 5 more reasons" in text
    assert told(build.summary(verdict=build.verdict(valid=False, reasons=reasons))).count(": late.") == 9


def test_a_percentile_that_no_stage_knows_gives_way_to_one_that_some_do(build: Any) -> None:
    few = {"ttft": build.latency(0.05, count=100), "response": build.latency(1.6, count=100)}
    stages = [build.replaced(build.point_stage(rate), **few) for rate in (5.0, 50.0)]
    line = row(told(build.summary(*stages, profile=SWEEP)), "1 ")
    assert "50 ms" in line
    assert "1.60 s" in line


def test_outcomes_are_coloured(build: Any) -> None:
    text = told(
        build.summary(*build.search_stages(), search=build.search()), force_terminal=True, color_system="standard"
    )
    assert "\x1b[32mpass\x1b[0m" in text
    assert "\x1b[1;31mfail\x1b[0m" in text


def test_a_search_that_found_nothing_says_so_last(build: Any) -> None:
    search = build.search(ended_by="target", reason="all timed out", saturation=None, bracket=(None, None))
    text = told(build.summary(build.silent_stage(purpose="low load"), search=search))
    assert "No saturation rate was found." in text.split("generator")[1]
    assert "40 in stage 1" in row(text, "failed connect")


def test_failures_of_stages_that_are_compared_are_summed_up_with_the_words_of_one(build: Any) -> None:
    stages = [
        build.stage(books=build.books(90, {"http_503": 10})),
        build.stage(),
        build.stage(books=build.books(90, {"http_503": 5, "timeout": 1}), failure_messages={"http_503": "busy"}),
    ]
    lines = [" ".join(line.split()) for line in told(build.summary(*stages, profile=SWEEP)).splitlines()]
    assert "failed http_503 15 in stages 1, 3 busy" in lines
    assert "failed timeout 1 in stage 3" in lines


def test_faults_of_the_generator_in_a_search_are_told_with_their_stage(build: Any) -> None:
    stages = [*build.search_stages(), build.point_stage(80.0, purpose="double", generator_faults=["Sent late."])]
    assert "the generator: Sent late." in row(told(build.summary(*stages, search=build.search())), "stage 5")


def test_repeats_stand_with_their_means_and_both_kinds_of_interval(build: Any) -> None:
    stages = [build.stage(repeat=1), build.stage(repeat=2)]
    repeated = Repeated("poisson 20/s", [0, 1], {"ttft.p99": AcrossRepeats(2, 0.1, (0.09, 0.11))})
    text = told(build.summary(*stages, repeats=[repeated]))
    line = " ".join(row(text, "poisson 20/s  ").split())
    # Within: p99 is 100 ms in both, 5 % to both sides.
    assert line == "poisson 20/s 2 ttft p99 100 ms [90 ms, 110 ms] [95 ms, 105 ms]"


def test_a_grid_names_its_settings(build: Any) -> None:
    stages = [build.stage(settings={"workload.output_tokens.value": tokens}) for tokens in (64, 4096)]
    text = told(build.summary(*stages))
    assert "output_tokens" in text
    assert "4096" in text


def test_a_simulated_run_says_so_before_anything_else(build: Any) -> None:
    assert told(build.summary(simulated=True)).startswith("SIMULATED: in virtual time")
    assert "SIMULATED" not in told(build.summary())


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_points_of_a_search_fit_a_terminal_of_any_width(build: Any, width: int) -> None:
    text = told(
        build.summary(*build.search_stages(), search=build.search()), width=width, force_terminal=True, no_color=True
    )
    points = re.sub(r"\x1b\[[0-9;]*m", "", text).split("generator")[0]
    assert "UNSTABLE" in points
    assert max(map(len, points.splitlines())) <= width


def test_what_ended_a_stage_early_is_told(build: Any) -> None:
    text = told(build.summary(build.stage(ended_by="stop_when", end_reason="the backlog grows")))
    assert "ended by stop_when: the backlog grows" in " ".join(text.split())


def test_attainment_is_shown_where_it_is_known(build: Any) -> None:
    text = told(build.summary(build.stage(attainment=Estimate(0.9, (0.85, 0.95)))))
    assert "90 % [85 %, 95 %] of the requests met their limits" in row(text, "attainment")


# --- the generator ----------------------------------------------------------------------------------------------------


def test_the_generator_tells_of_itself(build: Any) -> None:
    text = told(build.summary()).split("generator")[1]
    assert "p99 180 us" in row(text, "lateness")
    assert "p99 400 us" in row(text, "loop lag")
    assert "31 % of a core" in row(text, "worker 1")


def test_the_start_of_an_engine_is_told(build: Any) -> None:
    workers = [build.worker(0, target=TargetStart(18.34, 2_412_000_000))]
    text = told(build.summary(generator=build.generator(workers=workers)))
    assert " ".join(row(text, "engine").split()) == "engine started in 18.3 s, 2.41 GB"


def test_the_starts_of_several_engines_are_told_as_a_range(build: Any) -> None:
    starts = [TargetStart(21.0, 2_400_000_000), TargetStart(9.5, 2_412_000_000), TargetStart(18.34, 2_400_000_000)]
    workers = [build.worker(number, target=start) for number, start in enumerate(starts)]
    text = told(build.summary(generator=build.generator(workers=workers)))
    assert " ".join(row(text, "engines").split()) == "engines 3, started in 9.50 s to 21.0 s, 2.40 GB to 2.41 GB each"


def test_workers_without_an_engine_of_their_own_tell_of_none(build: Any) -> None:
    assert "started in" not in told(build.summary())


def test_the_last_words_of_an_engine_stay_on_a_few_lines(build: Any) -> None:
    words = "\n".join(["the engine died", *["Traceback line"] * 150])  # about 2,000 characters
    verdict = build.verdict(valid=False, reasons=[f"The run failed: {words}."], warnings=[f"Worker 0 died: {words}."])
    workers = [build.worker(0, deaths=[words])]
    text = told(build.summary(verdict=verdict, generator=build.generator(workers=workers)))
    # Each of the three is cut to 400 characters; "Traceback line " has 15.
    assert text.count("the engine died") == text.count("…") == 3
    assert text.replace("\n", "").count("Traceback") <= 3 * 400 / 15


def test_a_worker_that_died_is_named_among_many(build: Any) -> None:
    workers = [build.worker(n) for n in range(63)] + [build.worker(63, cpu=0.9, restarts=1, deaths=["SIGKILL"])]
    text = told(build.summary(generator=build.generator(workers=workers)))
    assert "64, 32 % of a core each, at most 90 % (worker 63)" in text
    assert "died: SIGKILL" in row(text, "worker 63")
    assert not any(line.startswith("worker 1 ") for line in text.splitlines())


# --- any terminal, any text -------------------------------------------------------------------------------------------


def test_markup_and_escapes_in_what_others_said_are_shown_as_they_are(build: Any) -> None:
    hostile = "[red]a[/red] \x1b[31mb\x1b[0m \u202ec"
    verdict = build.verdict(valid=False, reasons=[hostile], warnings=[hostile])
    stage = build.stage(
        name=hostile,
        books=build.books(1, {hostile: 2}),
        failure_messages={hostile: hostile},
        stationary=Stationary("stable", hostile),
        kind="[b]",
    )
    summary = build.summary(
        stage, name=hostile, verdict=verdict, generator=build.generator(workers=[build.worker(deaths=[hostile])])
    )
    text = told(summary, force_terminal=False)
    assert text.count("[red]a[/red] \\x1b[31mb\\x1b[0m \\u202ec") >= 6
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_wide_summary_fits_100_columns_and_loses_nothing(build: Any) -> None:
    big = build.latency(0.9, count=9_999_999, at_least={"p99": True}, lower_bounds=1)
    stage = build.stage(
        name="a name that is long " * 8,
        latency_seconds=Latencies(ttft_content=big, service_ttft=big, failed={"a_kind_of_failure" * 3: big}),
        stationary=Stationary("stable", "because " * 40),
    )
    text = told(build.summary(stage, stage))
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text


def test_where_no_terminal_sets_the_width_it_is_100(build: Any) -> None:
    assert told(build.summary(), width=80) == told(build.summary(), width=100)


def test_a_narrow_terminal_gets_fewer_columns_and_no_cut_numbers(build: Any) -> None:
    text = told(build.summary(build.stage(), build.stage()), width=80, force_terminal=True, no_color=True)
    assert "p90" not in text
    assert "p99.9" in text
    assert "…" not in text
