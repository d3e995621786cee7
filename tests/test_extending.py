"""docs/extending.md: each extension is made known by one line of one table. A toy of each is added, and works."""

import re
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from loadgen.clock import MonotonicClock
from loadgen.judge import slo as judging
from loadgen.load import arrivals
from loadgen.load.stages import StagePlan
from loadgen.measure import batch
from loadgen.measure.outcome import Grid
from loadgen.profile import HttpTarget, Poisson, Profile, Saturate, SimTarget, Slo, Workload, kinds
from loadgen.profile.load import _Load
from loadgen.profile.slo import LATENCIES
from loadgen.report import files
from loadgen.report.html import _GLOSSARY
from loadgen.search import saturate
from loadgen.summary.summary import Latencies, SearchResult, SloCheck, Summary
from loadgen.targets import kinds as targets
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.endpoints import table
from loadgen.targets.http.endpoints.endpoint import Endpoint
from loadgen.units import NS_PER_SECOND, Duration, Rate
from loadgen.workload import sources
from loadgen.workload.request import Request
from loadgen.workload.tokens import estimate
from tests.search.handmade import stage

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")
SECOND = Duration(NS_PER_SECOND)
LOAD = Poisson(rate=Rate(1), duration=SECOND)


def test_the_page_names_files_and_tables_that_there_are() -> None:
    named = re.findall(r"`([a-z_/]+)\.py: (\w+)`", PAGE)
    assert len(named) >= 8
    for path, name in named:
        assert hasattr(import_module(f"loadgen.{path.replace('/', '.')}"), name), f"{path}.py has no {name}"
    root = Path(arrivals.__file__).parents[1]
    for path in re.findall(r"`([a-z_]+(?:/[a-z_]+)+)\.py`", PAGE):
        assert (root / f"{path}.py").exists() or path.startswith("tests/"), path


def test_the_walks_name_what_there_is() -> None:
    walks = PAGE.partition("# Three walks")[2]
    for walk in walks.split("\n## ")[1:]:
        room = ""
        for line in walk.splitlines():
            room = found[1] if (found := re.match(r"\d\. `(\w+)/`:", line)) else room
            for place, name in re.findall(r"`((?:\w+/)?\w+)\.(\w+)`", line):
                assert hasattr(import_module(f"loadgen.{room}.{place.replace('/', '.')}"), name), (
                    f"{room}: {place}.{name}"
                )


class Pairs(_Load, frozen=True, kw_only=True, tag_field="kind", tag="pairs"):
    """Two requests at once, each second."""

    @property
    def mean_rate(self) -> float:
        return 2.0


def _draw_pairs(load: Pairs, rng: np.random.Generator) -> Iterator[np.ndarray]:
    first = 0
    while True:
        yield np.repeat(np.arange(first, first + 8), 2) * NS_PER_SECOND
        first += 8


def test_an_arrival_process_is_a_table_of_the_profile_and_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    process = arrivals.Process(draw=_draw_pairs, seconds=lambda load, requests: requests / 2)
    monkeypatch.setitem(arrivals.PROCESSES, Pairs, process)
    load: Any = Pairs(duration=Duration(10 * NS_PER_SECOND))
    schedule = arrivals.Schedule(load, np.random.default_rng(1), 0)
    assert schedule.take(NS_PER_SECOND, 100) == [0, 0, NS_PER_SECOND, NS_PER_SECOND]
    assert (schedule.count, arrivals.expected(load)) == (20, (20.0, 10.0))
    plan = StagePlan(name=load.title, load=load)
    assert (plan.name, plan.kind, plan.offered_rate, plan.expected_ns()) == ("pairs", "pairs", 2.0, 10 * NS_PER_SECOND)


def test_a_source_of_requests_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting:
        def __init__(self, workload: Workload, tokenization: Any, nonce: int) -> None: ...

        def request(self, index: int) -> Request:
            return Request(index=index, prompt=str(index))

    monkeypatch.setitem(sources.SOURCES, "counting", Counting)
    workload: Any = replace(Workload(), source="counting")
    assert sources.make_workload(workload, estimate(), 0).request(7).prompt == "7"


@pytest.mark.anyio
async def test_a_kind_of_target_is_a_table_of_the_profile_and_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    class Echo(msgspec.Struct, frozen=True):
        """A target of the test's own."""

    @asynccontextmanager
    async def check(profile: Profile, clock: object) -> AsyncIterator[targets.Checked]:
        yield targets.Checked(profile, TargetInfo(kind="echo"), None)

    @asynccontextmanager
    async def opened(profile: Profile, info: TargetInfo, clock: object) -> AsyncIterator[Any]:
        yield f"a session with {info.kind}"

    monkeypatch.setitem(targets.KINDS, Echo, targets.Kind(check, opened))
    echo: Any = Echo()
    profile, clock = Profile(target=echo, load=LOAD), MonotonicClock()
    async with (
        targets.checked_target(profile, clock) as checked,
        targets.open_target(profile, checked.info, clock) as session,
    ):
        assert session == "a session with echo"
    assert targets.patience_with(echo).close_seconds == 15


def test_an_endpoint_is_a_line_and_its_kind_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.ENDPOINTS, "rhyme", lambda workload, info: Endpoint(path="rhymes", streams=True))
    monkeypatch.setitem(kinds.KINDS, "rhyme", kinds.Kind(conversation=True, streamed=True))
    workload: Any = Workload(kind="rhyme", system="Be brief.")  # type: ignore[arg-type]
    assert table.endpoint_of(workload, TargetInfo(kind="http")).path == "rhymes"
    with pytest.raises(ValueError, match="the simulator in a worker has chat and completion; a server has the rest"):
        Profile(workload=workload, load=LOAD, target=SimTarget(transport="in-process"))
    assert Profile(workload=workload, load=LOAD, target=HttpTarget(url="http://h")).workload.kind == "rhyme"


def test_a_report_format_is_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_virtually: Callable[[Profile], Summary]
) -> None:
    summary = run_virtually(Profile(name="short", load=LOAD, target=SimTarget(transport="in-process")))
    monkeypatch.setitem(files.FORMATS, "txt", files.Format("name.txt", lambda summary: summary.name.encode()))
    assert files.write_files(summary, tmp_path, ["txt"]) == [tmp_path / "name.txt"]
    assert (tmp_path / "name.txt").read_bytes() == b"short"


def test_a_latency_is_a_line_a_field_and_words_for_people() -> None:
    measured = {*batch.LATENCIES, "itl"}
    assert measured == set(Latencies.__struct_fields__) - {"failed"}
    assert set(LATENCIES) == measured - {"lateness"}  # the generator's own is promised by nobody
    assert measured <= {name for name, _ in _GLOSSARY}


def test_a_latency_that_is_added_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    one = batch.Batch(Grid(0, 0, NS_PER_SECOND), [], array("q"), array("q"), array("q"))
    monkeypatch.setitem(batch.LATENCIES, "twice", lambda b: (2 * b.end, b.completed))
    assert "twice" in {samples.metric for samples in one.samples()}


def test_a_promise_is_a_function_in_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    def brief(slo: Slo, one: Any) -> Iterator[SloCheck]:
        yield SloCheck(one.name, "seconds", None, 60.0, judging.MET, one.window.seconds)

    monkeypatch.setattr(judging, "PROMISES", [*judging.PROMISES, brief])
    assert [check.metric for check in judging.check(Slo(), [stage()]).checks] == ["seconds"]


def test_a_search_is_a_generator_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(load: Saturate, slo: object, points: list[Any]) -> Any:
        measured = yield StagePlan(name="once", load=LOAD, purpose="low load")
        return SearchResult("saturate", "rate", "found", f"{measured.name} was enough", points)

    monkeypatch.setitem(saturate.KINDS, ("rate", False), saturate.Kind(search, lambda so_far: pytest.fail("not cut")))
    asked = saturate.next_stage(Saturate(), None, [])
    assert asked is not None
    assert asked.name == "once"
    measured = replace(stage(), name="once", ended_by="duration")
    assert saturate.next_stage(Saturate(), None, [measured]) is None
    assert saturate.result(Saturate(), None, [measured], None).reason == "once was enough"
