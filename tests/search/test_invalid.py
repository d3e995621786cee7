import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loadgen.profile import Saturate
from loadgen.search.invalid import TRIES, valid_places, with_invalid
from loadgen.search.plans import at_rate
from loadgen.summary.summary import SearchPoint, SearchResult
from tests.search.handmade import latency, stage

PLAN = at_rate(Saturate(), 10.0, 5.0, "doubling")
GOOD, BAD = stage(PLAN), stage(PLAN, faults=("requests were sent late",))


@pytest.mark.parametrize(
    ("stages", "sent"),
    [
        ([GOOD, GOOD], [0, 1]),
        ([GOOD, BAD, GOOD], [0, 2]),
        ([BAD, BAD, GOOD], [2]),
        ([GOOD, BAD, BAD, BAD], [0, 3]),
        ([BAD, GOOD, BAD, GOOD, BAD, GOOD], [1, 3, 5]),
        ([], []),
    ],
)
def test_a_spoilt_stage_is_asked_for_again_and_the_third_in_a_row_is_believed(stages, sent) -> None:
    assert valid_places(stages, latencies=True) == sent


@given(st.lists(st.booleans(), max_size=20))
def test_what_is_sent_does_not_change_as_stages_are_added(spoilt: list[bool]) -> None:
    stages = [BAD if one else GOOD for one in spoilt]
    sent = valid_places(stages, latencies=True)
    for count in range(len(stages)):
        assert valid_places(stages[:count], latencies=True) == [place for place in sent if place < count]
    assert len(stages) - len(sent) <= (TRIES - 1) * (len(sent) + 1)


def test_a_few_late_requests_spoil_no_stage_whose_latencies_are_not_looked_at() -> None:
    # The bound is 5 % of the mean service time, which is 1 s.
    late, very_late = (
        replace(BAD, latency_seconds=replace(BAD.latency_seconds, lateness=replace(latency(1, 1, 1), mean=mean)))
        for mean in (0.04, 0.06)
    )
    assert valid_places([late, GOOD], latencies=False) == [0, 1]
    assert valid_places([late, GOOD], latencies=True) == [1]
    assert valid_places([very_late, GOOD], latencies=False) == [1]


def test_the_result_names_all_stages_by_their_places_in_the_run() -> None:
    stages = [GOOD, BAD, GOOD, BAD, BAD, GOOD]
    places = valid_places(stages, latencies=True)
    points = [SearchPoint(stage=i, purpose="doubling", outcome="pass", reason="fine", offered=10.0) for i in range(3)]
    found = SearchResult("saturate", "rate", "found", "it was", points, evidence=(1, 2))
    whole = with_invalid(found, places, stages)
    assert [point.stage for point in whole.points] == [0, 1, 2, 3, 4, 5]
    assert [point.outcome for point in whole.points] == ["pass", "undecided", "pass", "undecided", "undecided", "pass"]
    assert whole.points[1].reason.startswith("asked for again: the generator was the bottleneck")
    assert whole.evidence == (2, 5)
