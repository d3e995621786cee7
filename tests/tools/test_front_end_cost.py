"""The table of what the API server costs, from runs whose numbers are known."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
METRICS = ("ttft", "itl", "tpot", "response")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, which finds what it shares with others beside it."""
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("front_end_cost")


def run_of(tool: ModuleType, seconds: float, *, high: float | None = None, sufficient: bool = True) -> Any:
    """A run in which every percentile of every latency has this value, with an interval from 1 ms below it."""
    percentiles = tool.PERCENTILES
    latency = dict.fromkeys(percentiles, seconds)
    intervals = {name: [seconds - 1e-3, high] for name in percentiles}
    enough = dict.fromkeys(percentiles, sufficient)
    stage = {"latency_seconds": {name: {**latency, "ci": intervals, "sufficient": enough} for name in METRICS}}
    return tool.Run(Path(), {"stages": [stage]})


def rows(tool: ModuleType, engines: list[Any], servers: list[Any]) -> list[list[str]]:
    """The cells of the table below its head."""
    lines = list(tool.table(engines, servers))[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_three_pairs_tell_the_mean_difference_with_students_interval(tool):
    engines = [run_of(tool, seconds, high=seconds + 2e-3) for seconds in (0.010, 0.012, 0.011)]
    servers = [run_of(tool, seconds) for seconds in (0.020, 0.024, 0.022)]
    found = rows(tool, engines, servers)
    assert len(found) == len(METRICS) * len(tool.PERCENTILES)
    # Differences of 10, 12 and 11 ms: mean 11, standard deviation 1, and t(2, .975) = 4.303 times 1 / sqrt(3) is 2.48.
    assert found[0] == [
        "ttft p50",
        "11.00 [10.00, 13.00]",
        "22.00 [21.00, ?]",
        "11.00",
        "8.52 to 13.48",
        "10.00 to 12.00",
    ]


def test_two_pairs_have_no_interval_and_the_lower_run_stands_for_its_side(tool):
    engines = [run_of(tool, 0.012), run_of(tool, 0.010)]
    servers = [run_of(tool, 0.020), run_of(tool, 0.024)]
    # Differences of 8 and 14 ms.
    assert rows(tool, engines, servers)[0] == [
        "ttft p50",
        "10.00 [9.00, ?]",
        "20.00 [19.00, ?]",
        "11.00",
        "needs 3 pairs",
        "8.00 to 14.00",
    ]


def test_one_pair_has_no_spread(tool):
    assert rows(tool, [run_of(tool, 0.010)], [run_of(tool, 0.013)])[0][3:] == ["3.00", "needs 3 pairs", "one pair"]


def test_a_percentile_that_one_run_has_too_few_samples_for_is_not_shown(tool):
    engines = [run_of(tool, 0.010) for _ in range(3)]
    servers = [*engines[:2], run_of(tool, 0.010, sufficient=False)]
    assert all(row[1:] == ["n/a"] * 5 for row in rows(tool, engines, servers))
