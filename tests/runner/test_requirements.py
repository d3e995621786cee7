from pathlib import Path

import pytest

from loadgen.profile import Concurrency, Profile, SweepAxis
from loadgen.profile.file import load_profile
from loadgen.profile.grid import grid_points
from loadgen.runner import requirements
from loadgen.runner.requirements import check_environment, slot_faults
from loadgen.units import NS_PER_SECOND, Duration
from tests.profile.reading import HTTP, SMALL, load
from tests.profile.reading import folder as folder


def test_the_environment_is_asked_for_the_named_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = load(f'{HTTP}api_key_env = "LOADGEN_TEST_KEY"\n{SMALL}')
    monkeypatch.delenv("LOADGEN_TEST_KEY", raising=False)
    line = "target.api_key_env: the environment variable LOADGEN_TEST_KEY is"
    assert check_environment(profile) == [f"{line} not set"]
    monkeypatch.setenv("LOADGEN_TEST_KEY", "")
    assert check_environment(profile) == [f"{line} empty"]
    monkeypatch.setenv("LOADGEN_TEST_KEY", "x")
    assert check_environment(profile) == []


def test_the_environment_is_not_asked_where_no_variable_is_named() -> None:
    assert check_environment(load(HTTP + SMALL)) == []
    assert check_environment(load(SMALL)) == []


def test_images_need_pillow_and_the_lack_of_it_is_told_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = load(SMALL, sets=("workload.images.count=1",))
    assert check_environment(profile) == []
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)  # as where nothing is installed
    assert check_environment(profile) == ["workload.images: needs the library Pillow: pip install 'loadgen[media]'"]
    assert check_environment(load(SMALL)) == []


def test_what_any_point_of_a_grid_needs_of_the_environment_is_looked_for(tmp_path: Path) -> None:
    rows = tmp_path / "there.jsonl"
    rows.write_text('{"prompt": "hello"}')
    (tmp_path / "profile.toml").write_text(
        '[workload]\nsource = "dataset"\ndataset = { path = "there.jsonl" }\n'
        '[load]\nkind = "offline"\nrequests = 1\n'
        '[[sweep]]\nkey = "workload.dataset.path"\nvalues = ["there.jsonl", "missing.jsonl"]\n'
    )
    profile = load_profile(str(tmp_path / "profile.toml"))
    # Like the path of a dataset, swept ones are those beside the profile's file.
    assert [one.profile.workload.dataset.path for one in grid_points(profile)] == [
        str(rows), str(tmp_path / "missing.jsonl"),
    ]  # fmt: skip
    (fault,) = check_environment(profile)
    assert "missing.jsonl" in fault


def test_slots_are_held_against_those_of_the_same_point() -> None:
    load = Concurrency(concurrency=50, duration=Duration(NS_PER_SECOND))
    slots = SweepAxis(key="workers.max_inflight", values=(10, 100))
    (fault,) = slot_faults(Profile(load=load, sweep=(slots,)))
    assert fault.startswith("workers.max_inflight = 10")
    both = Profile(load=load, sweep=(slots, SweepAxis(key="load.concurrency", values=(5, 10))))
    assert slot_faults(both) == []
