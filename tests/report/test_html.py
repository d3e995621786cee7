import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from plotly.graph_objects import Figure

from loadgen.report.html import to_html
from loadgen.summary.summary import AcrossRepeats, Latencies, Repeated, SearchPoint, Stationary, Summary, TargetStart

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \"'{{ 7*7 }} <!-- %{x} [red]"
HEADINGS = ("h1", "h2", "h3")


class Page(HTMLParser):
    """A parsed report: its tags with their attributes, its visible text, and the content of its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self.style = ""
        self._open = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            self.scripts[-1] += data
        elif self._open == "style":
            self.style += data
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def figures(self) -> dict[str, Any]:
        return dict(json.loads(self.scripts[0]))

    def attributes(self, name: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(name)) is not None]


def page_of(summary: Summary) -> Page:
    return Page(to_html(summary).decode())


@pytest.fixture
def sweep(build: Any) -> Summary:
    rates = (5.0, 20.0, 40.0)
    verdicts = ("stable", "stable", "unstable")
    return build.summary(
        *[
            build.stage(f"poisson {rate:g}/s", offered_rate=rate, stationary=Stationary(verdict, "why"))
            for rate, verdict in zip(rates, verdicts, strict=True)
        ]
    )


# --- what it says -----------------------------------------------------------------------------------------------------


def test_the_verdict_is_the_title_and_the_first_heading_after_the_name(build: Any) -> None:
    page = page_of(build.summary(name="night", verdict=build.verdict(valid=False, reasons=["late by 23 ms"])))
    assert page.text.startswith("INVALID: night")
    assert page.text.index("INVALID These numbers are the generator's") < page.text.index("late by 23 ms")


def test_the_slo_and_the_warnings_are_told(build: Any) -> None:
    slo = build.slo(False, build.check("missed", value=0.6, ci=(0.55, None)))
    text = page_of(build.summary(verdict=build.verdict(slo=slo, warnings=["the loop is closed"]))).text
    assert "SLO missed: of 1 check 1 missed" in text
    assert "ttft p99 ≤ 500 ms 600 ms [550 ms, ?] missed" in text
    assert "1 warning the loop is closed" in text


def test_every_percentile_stands_with_its_interval(build: Any) -> None:
    stage = build.stage(latency_seconds=Latencies(ttft=build.latency(0.05)))
    text = page_of(build.summary(stage)).text
    assert "ttft ms 55.0 50.0 [47.5, 52.5] 75.0 [71.3, 78.8] 85.0 [80.8, 89.3] 100 [95.0, 105] 150" in text


def test_a_percentile_that_is_not_known_is_no_number(build: Any) -> None:
    stage = build.stage(latency_seconds=Latencies(ttft=build.latency(0.05, count=500)))
    text = page_of(build.summary(stage)).text
    assert "ttft p99 n/a (500 samples)" in text  # the key number
    assert "85.0 [80.8, 89.3] n/a (500 samples) n/a (500 samples) 200 500" in text  # the table


def test_a_lower_bound_is_marked(build: Any) -> None:
    latency = build.latency(0.05, at_least={"p99": True}, lower_bounds=3, ci={"p99": (0.09, None)})
    assert "≥100 [90.0, ?]" in page_of(build.summary(build.stage(latency_seconds=Latencies(ttft=latency)))).text


def test_books_generator_environment_and_profile_are_shown(build: Any) -> None:
    text = page_of(build.summary(build.stage(books=build.books(980, {"timeout": 20})))).text
    assert "1,000 intended = 980 completed + 20 failed" in text
    assert "31 % of a core, 84 MB" in text
    assert '"model": "tiny"' in text
    assert '[load] kind = "poisson" rate = 20.0 duration = "60s"' in text


def test_the_starts_of_engines_are_shown_and_their_last_words_cut(build: Any) -> None:
    workers = [build.worker(0, target=TargetStart(18.34, 2_412_000_000), deaths=["x" * 2000])]
    verdict = build.verdict(valid=False, reasons=["y" * 2000], warnings=["z" * 2000])
    text = page_of(build.summary(generator=build.generator(workers=workers), verdict=verdict)).text
    assert "engine started in 18.3 s, 2.41 GB" in text
    for letter in "xyz":
        assert f"{letter * 399}…" in text  # 400 with the ellipsis
        assert letter * 400 not in text


def test_the_words_of_failures_stand_with_their_counts_escaped_and_cut(build: Any) -> None:
    words = {"http_503": "<b>overloaded</b> & busy", "http_500": "x" * 2000}
    books = build.books(980, {"http_503": 12, "http_500": 5, "connect": 3})
    html = to_html(build.summary(build.stage(books=books, failure_messages=words))).decode()
    assert "<dt>failed http_503</dt><dd>12   &lt;b&gt;overloaded&lt;/b&gt; &amp; busy</dd>" in html
    assert f"<dt>failed http_500</dt><dd> 5   {'x' * 399}…</dd>" in html  # 400 with the ellipsis
    assert "<dt>failed connect</dt><dd> 3</dd>" in html


def test_a_profile_that_toml_cannot_hold_is_shown_as_json(build: Any) -> None:
    assert '"nonce": null' in page_of(build.summary(profile={"nonce": None})).text


def test_a_latency_that_was_not_measured_is_absent(build: Any) -> None:
    latencies = Latencies(response=build.latency(1.0))
    page = page_of(build.summary(build.stage(latency_seconds=latencies, curves={"response": build.curve(1.0)})))
    before_words = page.text.split("Words and signs")[0]
    assert "ttft" not in before_words
    assert {trace["name"] for trace in page.figures["stage-1-percentiles"]["data"]} == {"response"}


def test_a_stage_in_which_nothing_completed_is_shown(build: Any) -> None:
    page = page_of(build.summary(build.silent_stage()))
    assert "No latencies: no request completed in the window." in page.text
    assert page.figures == {}


def test_a_run_without_stages_is_shown(build: Any) -> None:
    page = page_of(msgspec.structs.replace(build.summary(), stages=[]))
    assert "VALID" in page.text


# --- the charts -------------------------------------------------------------------------------------------------------


def test_every_chart_of_the_page_has_a_figure_that_plotly_accepts(sweep: Summary) -> None:
    page = page_of(sweep)
    places = page.attributes("data-plot")
    assert len(places) == len(set(places)) == 4 + 3 * 5
    assert set(places) == page.figures.keys()
    for figure in page.figures.values():
        Figure(figure)  # raises on a property that plotly does not have


def test_the_percentile_curve_is_dotted_where_too_few_samples_lie_beyond(build: Any) -> None:
    # Of 2,000 samples 10 lie beyond p99.5: the curve is known up to there, at 1/(1-p) = 200.
    stage = build.stage(latency_seconds=Latencies(ttft=build.latency(count=2000)), curves={"ttft": build.curve()})
    known, past, marks = page_of(build.summary(stage)).figures["stage-1-percentiles"]["data"]
    assert known["x"][-1] == pytest.approx(200)
    assert past["line"]["dash"] == "dot"
    assert past["x"] == pytest.approx([200, 1000, 10_000])  # and no point for the maximum, which has no place
    assert marks["x"] == pytest.approx([2, 10, 20, 100])  # p99.9 is not known


def test_intervals_are_error_bars_and_a_triangle_where_open(build: Any) -> None:
    ttft = build.latency(0.05, count=2000, ci={"p50": (0.04, 0.07), "p99": (0.08, None)})
    stage = build.stage(latency_seconds=Latencies(ttft=ttft), curves={"ttft": build.curve()})
    marks = page_of(build.summary(stage)).figures["stage-1-percentiles"]["data"][2]
    assert marks["error_y"]["arrayminus"] == pytest.approx([0.01, 0, 0, 0.02])
    assert marks["error_y"]["array"] == pytest.approx([0.02, 0, 0, 0])
    assert marks["marker"]["symbol"] == ["circle", "circle", "circle", "triangle-up"]


def test_time_series_have_gaps_and_rates_per_second(build: Any) -> None:
    figures = page_of(build.summary()).figures
    ttft = next(trace for trace in figures["stage-1-latency"]["data"] if trace["name"] == "ttft p50")
    assert ttft["x"][:2] == [0.5, 1.5]  # the middles of intervals of 1 s
    assert ttft["y"][2] is None
    assert figures["stage-1-rates"]["data"][0]["y"][0] == 20  # 20 arrivals in 1 s


def test_what_lies_outside_of_the_window_is_shaded(build: Any) -> None:
    shapes = page_of(build.summary()).figures["stage-1-rates"]["layout"]["shapes"]
    assert [(shape["x0"], shape["x1"]) for shape in shapes] == [(0.0, 5.0)]  # the warm-up; the series ends before 60 s


def test_a_sweep_is_drawn_against_its_rates_with_unstable_points_hollow(sweep: Summary) -> None:
    figures = page_of(sweep).figures
    completed = next(trace for trace in figures["sweep-throughput"]["data"] if trace["name"] == "completed/s")
    assert completed["x"] == [5.0, 20.0, 40.0]
    assert completed["marker"]["symbol"] == ["circle", "circle", "circle-open"]
    p99 = next(trace for trace in figures["sweep-latency"]["data"] if trace["name"] == "ttft p99")
    assert p99["y"] == pytest.approx([0.1, 0.1, 0.1])
    assert p99["error_y"]["array"] == pytest.approx([0.005] * 3)


def test_a_sweep_of_closed_loops_is_drawn_against_its_slots(build: Any) -> None:
    stages = [build.stage(f"{n}", offered_rate=None, intended_concurrency=n) for n in (64, 8)]
    figure = page_of(build.summary(*stages)).figures["sweep-concurrency"]
    assert figure["data"][0]["x"] == [8.0, 64.0]


# --- searches, grids and repeats --------------------------------------------------------------------------------------


@pytest.fixture
def search(build: Any) -> Summary:
    profile = {"load": {"kind": "saturate"}, "slo": {"ttft": {"p99": "500ms"}}}
    return build.summary(*build.search_stages(), search=build.search(knee=20.0), profile=profile)


def test_the_answer_of_a_search_stands_before_its_points(search: Summary) -> None:
    text = page_of(search).text
    answer = "Saturation rate: 20/s, under the SLO ended the search was carried through"
    assert text.index("VALID These numbers") < text.index(answer) < text.index("All stages #")
    assert "30 % more came than went" in text[text.index("All stages #") :]


def test_the_outcomes_of_a_search_are_badges(search: Summary) -> None:
    badges = [
        a["class"] for tag, a in page_of(search).tags if tag == "span" and (a.get("class") or "").startswith("badge")
    ]
    assert badges.count("badge good") == 2 + 3  # two pass, three are stable
    assert badges.count("badge bad") == 1 + 1


def test_a_search_of_one_stage_shows_its_point(build: Any) -> None:
    search = build.search(ended_by="target", saturation=None, bracket=(None, None), evidence=(None, None))
    page = page_of(build.summary(build.search_stages()[0], search=search))
    assert "No saturation rate was found." in page.text
    assert "low load measured" in page.text
    assert not any(name.startswith("sweep") for name in page.figures)


def test_the_checks_of_a_search_are_not_listed_as_promises_of_the_run(build: Any) -> None:
    slo = build.slo(False, build.check("missed", stage="poisson 40/s"))
    page = page_of(build.summary(*build.search_stages(), search=build.search(), verdict=build.verdict(slo=slo)))
    assert "SLO missed" in page.text
    assert page.attributes("aria-label").count("Service level objectives") == 1  # that of the stage


def test_all_that_a_search_draws_plotly_accepts(search: Summary) -> None:
    figures = page_of(search).figures
    assert {"sweep-latency", "sweep-throughput", "sweep-tokens", "sweep-concurrency"} <= figures.keys()
    for figure in figures.values():
        Figure(figure)  # raises on a property that plotly does not have


def test_repeats_have_a_table_of_all_their_quantities(build: Any) -> None:
    values = {"ttft.p99": AcrossRepeats(2, 0.1, (0.09, 0.11)), "throughput.requests": AcrossRepeats(2, 19.8, None)}
    stages = [build.stage(repeat=1), build.stage(repeat=2)]
    text = page_of(build.summary(*stages, repeats=[Repeated("poisson 20/s", [0, 1], values)])).text
    assert "poisson 20/s 2 ttft p99 100 ms [90 ms, 110 ms] [95 ms, 105 ms] poisson 20/s 2 completed 19.8/s" in text


def test_a_simulated_run_is_marked_in_the_title_and_at_the_top(build: Any) -> None:
    text = page_of(build.summary(simulated=True)).text
    assert text.startswith("SIMULATED, VALID: poisson")
    assert text.index("SIMULATED: in virtual time") < text.index("VALID These numbers")
    assert "SIMULATED" not in page_of(build.summary()).text


def test_many_warnings_are_folded(build: Any) -> None:
    def is_open(count: int) -> bool:
        warnings = [f"warning {number}" for number in range(count)]
        page = page_of(build.summary(verdict=build.verdict(warnings=warnings)))
        return "open" in next(attributes for tag, attributes in page.tags if tag == "details")

    assert is_open(6)
    assert not is_open(7)


def test_hostile_settings_and_reasons_stay_text(build: Any) -> None:
    stages = [
        build.point_stage(rate, settings={HOSTILE: HOSTILE, "b": rate}, purpose=HOSTILE, repeat=1)
        for rate in (1.0, 2.0)
    ]
    search = build.search(points=[SearchPoint(0, HOSTILE, HOSTILE, HOSTILE, 1.0)], reason=HOSTILE, evidence=(0, None))
    repeats = [Repeated(HOSTILE, [0], {HOSTILE: AcrossRepeats(1, 1.0, None)})]
    page = page_of(build.summary(*stages, search=search, repeats=repeats))
    assert len(page.scripts) == 3  # data, chart library, drawing
    assert not any(tag == "img" or "onerror" in attributes for tag, attributes in page.tags)
    assert "<script>" not in json.dumps(page.figures)


# --- what it must not do ----------------------------------------------------------------------------------------------


@pytest.fixture
def hostile(build: Any) -> Summary:
    stage = build.stage(
        name=HOSTILE,
        kind=HOSTILE,
        ended_by=HOSTILE,
        books=build.books(1, {HOSTILE: 2}),
        failure_messages={HOSTILE: HOSTILE},
        stationary=Stationary(HOSTILE, HOSTILE),
        latency_seconds=Latencies(ttft=build.latency(), failed={HOSTILE: build.latency()}),
        curves={"ttft": build.curve()},
    )
    check = build.check(HOSTILE, stage=HOSTILE, metric=HOSTILE)
    return build.summary(
        stage,
        stage,
        name=HOSTILE,
        started_at=HOSTILE,
        verdict=build.verdict(valid=False, reasons=[HOSTILE], warnings=[HOSTILE], slo=build.slo(False, check)),
        generator=build.generator(workers=[build.worker(deaths=[HOSTILE])]),
        environment={HOSTILE: HOSTILE},
        profile={HOSTILE: HOSTILE},
    )


def test_hostile_text_is_shown_and_never_becomes_part_of_the_page(hostile: Summary) -> None:
    page = page_of(hostile)
    assert page.text.count(HOSTILE) >= 10
    assert len(page.scripts) == 3  # data, chart library, drawing
    assert not any(tag == "img" or "onerror" in attributes for tag, attributes in page.tags)


def test_hostile_text_in_the_data_of_the_charts_is_text_there_too(hostile: Summary) -> None:
    html = to_html(hostile).decode()
    data = html[html.index('id="figures">') + len('id="figures">') :]
    data = data[: data.index("</script>")]
    assert "<" not in data
    told = json.dumps(json.loads(data))
    assert "alert(1)" in told  # the names of stages do stand in the data, with their markup escaped for plotly
    assert "<script>" not in told


def test_nothing_is_fetched(sweep: Summary) -> None:
    page = page_of(sweep)
    targets = page.attributes("href") + page.attributes("src")
    assert [target for target in targets if not target.startswith(("#", "data:"))] == []
    own = page.style + page.scripts[0] + page.scripts[2]
    assert not re.search(r"https?://|@import|url\(", own)


def test_the_policy_of_the_page_allows_its_own_scripts_and_nothing_else(sweep: Summary) -> None:
    page = page_of(sweep)
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a) or ""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in page.scripts[1:]]
    assert policy.startswith("default-src 'none';")
    assert re.findall(r"sha256-([^']+)", policy) == hashes


# --- who reads it -----------------------------------------------------------------------------------------------------


def test_headings_go_down_one_level_at_a_time(sweep: Summary) -> None:
    levels = [HEADINGS.index(tag) for tag, _ in page_of(sweep).tags if tag in HEADINGS]
    assert levels[0] == 0
    assert levels.count(0) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_every_link_within_the_page_has_its_target_and_no_id_is_used_twice(sweep: Summary) -> None:
    page = page_of(sweep)
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    links = [target[1:] for target in page.attributes("href") if target.startswith("#")]
    labels = " ".join(page.attributes("aria-labelledby")).split()
    assert {*links, *labels} <= set(ids)


def test_what_scrolls_can_be_scrolled_with_the_keyboard(sweep: Summary) -> None:
    scrolling = [a for tag, a in page_of(sweep).tags if a.get("class") == "scroll" or tag == "pre"]
    assert scrolling
    assert all(attributes.get("tabindex") == "0" for attributes in scrolling)
