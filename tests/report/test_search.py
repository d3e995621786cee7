from typing import Any

import pytest

from loadgen.report.search import Answer, answer_of
from loadgen.search.saturate import CUTS
from loadgen.summary.summary import Overload, SearchPoint

BEST_SO_FAR = "Best saturation rate so far: at least 20/s. The search did not come to its end."


def answer(build: Any, **fields: Any) -> Answer:
    found = answer_of(build.summary(*build.search_stages(), search=build.search(**fields)))
    assert found is not None
    return found


def lines(found: Answer) -> dict[str, str]:
    return {line.label: line.text for line in found.lines}


def test_a_run_that_searched_nothing_has_no_answer(build: Any) -> None:
    assert answer_of(build.summary()) is None


def test_the_answer_comes_with_its_bracket_and_the_evidence_of_both_ends(build: Any) -> None:
    found = answer(build)
    assert (found.headline, found.tone) == ("Saturation rate: 20/s", "good")
    assert lines(found) == {
        "ended": "the search was carried through: the ends are close enough",
        "bracket": "between 20/s and 40/s, 100 % apart",
        "passed": "stage 4 at 20/s: all but 1 % of what came went",
        "failed": "stage 3 at 40/s: 30 % more came than went",
    }


def test_an_answer_under_an_slo_says_so(build: Any) -> None:
    profile = {"load": {"kind": "saturate"}, "slo": {"ttft": {"p99": "500ms"}}}
    found = answer_of(build.summary(*build.search_stages(), search=build.search(), profile=profile))
    assert found is not None
    assert found.headline == "Saturation rate: 20/s, under the SLO"


def test_a_concurrency_is_sought_in_slots(build: Any) -> None:
    points = [SearchPoint(0, "double", "pass", "all went", 1.0), SearchPoint(1, "double", "fail", "none went", 48.0)]
    found = answer(build, objective="concurrency", saturation=1.0, bracket=(1.0, 48.0), points=points, evidence=(0, 1))
    assert found.headline == "Saturation concurrency: 1 slot"
    assert lines(found)["bracket"].startswith("between 1 slot and 48 slots, 4700 % apart")
    assert lines(found)["failed"] == "stage 2 at 48 slots: none went"


@pytest.mark.parametrize(
    ("ended_by", "headline", "words"),
    [
        ("undecided", "Saturation rate: 20/s", "only loads were left that no stage could decide"),
        ("max_time", BEST_SO_FAR, "max_time was over"),
        ("interrupted", BEST_SO_FAR, "a person"),
        ("killed", BEST_SO_FAR, "was killed"),
        ("failure", BEST_SO_FAR, "the run failed"),
        ("generator", BEST_SO_FAR, "bottleneck"),
    ],
)
def test_a_search_that_was_cut_short_has_its_best_so_far_labelled(
    build: Any, ended_by: str, headline: str, words: str
) -> None:
    found = answer(build, ended_by=ended_by, reason=CUTS.get(ended_by, "why"))
    assert (found.headline, found.tone) == (headline, "doubt")
    assert lines(found)["ended"].count(words) == 1


def test_a_target_that_does_not_answer_has_one_clear_line(build: Any) -> None:
    found = answer(
        build,
        ended_by="target",
        reason="all 8 requests timed out",
        saturation=None,
        bracket=(None, None),
        evidence=(None, None),
        tolerance=None,
    )
    assert (found.headline, found.tone) == ("No saturation rate was found.", "bad")
    assert lines(found) == {
        "ended": "the target does not answer, or fails from the first: all 8 requests timed out",
        "bracket": "none: no load passed, and none failed",
    }


def test_a_bracket_may_be_open_below_or_above(build: Any) -> None:
    below = answer(build, saturation=None, bracket=(None, 2.5), evidence=(None, 2))
    assert lines(below)["bracket"] == "below 2.5/s: nothing that was tried passed"
    assert "passed" not in lines(below)
    above = answer(build, saturation=1234.5, bracket=(1234.5, None), evidence=(3, None))
    assert lines(above)["bracket"] == "1,234/s or more: nothing that was tried failed"  # half to even at four digits
    assert "failed" not in lines(above)


def test_what_could_not_be_decided_is_told(build: Any) -> None:
    assert lines(answer(build, undecided=(22.0, 25.0)))["undecided"] == "from 22/s to 25/s nothing could be decided"
    assert lines(answer(build, undecided=(22.0, 22.0)))["undecided"] == "22/s could not be decided"


def test_what_overload_costs_is_told_where_it_costs_anything(build: Any) -> None:
    loss = lines(answer(build, overload=Overload(40.0, 17.0, 0.15)))["overload"]
    assert (
        loss
        == "of 40.0/s offered the target completed no more than 17.0/s: overload costs it 15 % of its saturation rate"
    )
    assert "overload" not in lines(answer(build, overload=Overload(40.0, 20.0, 0.0)))


def test_the_ends_of_a_sweep_are_not_called_its_saturation(build: Any) -> None:
    assert answer(build, kind="sweep").headline == "Ceiling of the sweep: 20/s"
    assert answer(build, kind="sweep", saturation=None).headline == "No ceiling of the sweep was found."


def test_what_the_search_says_is_brief_and_printable(build: Any) -> None:
    found = answer(build, reason="\x1b[31m" + "x" * 2000)
    assert "\x1b" not in lines(found)["ended"]
    assert len(lines(found)["ended"]) < 500
