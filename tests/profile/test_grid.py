from pathlib import Path

import pytest
import tomli_w
from msgspec.structs import replace

from loadgen.errors import ProfileError
from loadgen.profile import HttpTarget, Poisson, Profile, Ramp, Saturate, Steps, StopWhen, SweepAxis
from loadgen.profile.decoding import DecodingError
from loadgen.profile.file import load_profile
from loadgen.profile.grid import grid_points
from loadgen.search.program import planned
from loadgen.units import NS_PER_SECOND, Duration, Rate

LOAD = Poisson(rate=Rate(5), duration=Duration(10 * NS_PER_SECOND))


def grid(*axes: tuple[str, tuple[object, ...]], load: object = LOAD) -> Profile:
    return Profile(load=load, sweep=tuple(SweepAxis(key=key, values=values) for key, values in axes))


def test_without_axes_a_profile_stands_for_itself() -> None:
    profile = grid()
    assert [(one.settings, one.profile) for one in grid_points(profile)] == [({}, profile)]


def test_axes_make_a_grid_whose_last_key_changes_fastest() -> None:
    found = grid_points(grid(("workload.output_tokens", (4, 16)), ("load.rate", (1, "120/min"))))
    assert [one.settings for one in found] == [
        {"workload.output_tokens": 4, "load.rate": 1},
        {"workload.output_tokens": 4, "load.rate": "120/min"},
        {"workload.output_tokens": 16, "load.rate": 1},
        {"workload.output_tokens": 16, "load.rate": "120/min"},
    ]
    assert [(one.profile.workload.output_tokens, one.profile.load.rate) for one in found] == [
        (4, 1.0), (4, 2.0), (16, 1.0), (16, 2.0),
    ]  # fmt: skip
    assert all(one.profile.sweep == () for one in found)


@pytest.mark.parametrize("key", ["target.stream", "workers.processes", "target.engine.max_num_seqs"])
def test_any_key_of_the_profile_can_be_swept(key: str) -> None:
    values = (False, True) if key == "target.stream" else (1, 2)
    assert len({repr(one.profile) for one in grid_points(grid((key, values)))}) == 2


def faults(profile: Profile) -> list[str]:
    with pytest.raises(DecodingError) as refused:
        grid_points(profile)
    return refused.value.faults


def test_a_key_that_there_is_not_is_told_with_a_near_miss_for_each_of_its_values() -> None:
    found = faults(grid(("workload.outputs_tokens", (4, 16)), ("load.rate", (1, 2))))
    assert len(found) == 2
    assert all("did you mean `output_tokens`" in fault for fault in found)


def test_a_value_that_a_key_cannot_have_is_told_once_whatever_the_other_keys() -> None:
    (fault,) = faults(grid(("load.rate", (1, -3)), ("workload.output_tokens", (4, 16, 64))))
    assert fault.startswith("sweep: with load.rate = -3")


@pytest.mark.parametrize("key", ["name", "output.dir", "sweep[0].key", "", "load..rate"])
def test_what_is_no_setting_of_a_stage_is_refused(key: str) -> None:
    assert "sweep[0].key" in faults(grid((key, (1, 2))))[0]


def test_a_secret_is_refused() -> None:
    (fault,) = faults(grid(("target.headers.Authorization", ("Bearer abc", "Bearer def"))))
    assert "secret" in fault
    assert "abc" not in fault


def test_a_key_that_stands_there_twice_is_refused() -> None:
    assert "twice" in faults(grid(("load.rate", (1, 2)), ("load.rate", (3, 4))))[0]


def test_one_value_in_two_spellings_is_refused() -> None:
    (fault,) = faults(grid(("load.rate", (20, "20/s"))))
    assert fault == "sweep: load.rate = '20/s': stands there twice, in other words"


def test_a_search_takes_no_grid() -> None:
    assert "search" in faults(grid(("workload.output_tokens", (4, 16)), load=Saturate()))[0]


def test_an_axis_that_repeats_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="repeat"):
        SweepAxis(key="load.rate", values=(1, 2, 1))


@pytest.mark.parametrize(
    "values",
    [({"kind": "saturate"}, {"kind": "offline", "requests": 5}), ({"kind": "sweep", "points": 3, "duration": "5s"},)],
)
def test_a_search_is_no_point_of_a_grid(values: tuple[object, ...]) -> None:
    (fault,) = faults(grid(("load", values)))
    assert "search" in fault


def test_the_name_of_a_variable_is_no_secret() -> None:
    profile = replace(grid(("target.api_key_env", ("KEY_A", "KEY_B"))), target=HttpTarget(url="http://127.0.0.1:1"))
    assert [one.profile.target.api_key_env for one in grid_points(profile)] == ["KEY_A", "KEY_B"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("target.url", "http://user:hunter2@host:1"),
        ("target.headers", {"Authorization": "Bearer hunter2"}),
        ("target.headers.Authorization", "Bearer hunter2"),
        ("target.api_key_env", "sk-hunter2"),
        ("target", {"kind": "http", "url": "http://user:hunter2@host:1"}),
        ("target", {"kind": "engine", "model": "m", "engine_args": {"hf_token": "hunter2"}}),
    ],
)
def test_a_secret_among_swept_values_is_refused_in_one_line_that_does_not_show_it(
    tmp_path: Path, key: str, value: object
) -> None:
    profile = {
        "target": {"kind": "http", "url": "http://host:1"},
        "load": {"kind": "offline", "requests": 1},
        "sweep": [{"key": key, "values": [value]}],
    }
    path = tmp_path / "profile.toml"
    path.write_text(tomli_w.dumps(profile))
    with pytest.raises(ProfileError) as refused:
        load_profile(str(path))
    (fault,) = refused.value.faults
    assert fault.startswith("sweep[0]")
    assert "hunter2" not in fault


def test_a_long_value_or_one_of_several_lines_is_named_by_its_beginning_and_its_place() -> None:
    names = [plan.name for plan in planned(grid(("workload.system", ("short", "one\ntwo", "x" * 1000, "x" * 1001))))]
    assert names == [
        "workload.system = short: poisson 5/s",
        "workload.system = one two… (value 2): poisson 5/s",
        f"workload.system = {'x' * 40}… (value 3): poisson 5/s",
        f"workload.system = {'x' * 40}… (value 4): poisson 5/s",
    ]


def test_a_step_takes_no_repeat_and_a_ramp_no_slo_that_there_is_not() -> None:
    once = Poisson(rate=Rate(5), requests=5)
    with pytest.raises(ValueError, match="no repeat"):
        Steps(steps=(once, replace(once, repeat=2)))
    ramp = Ramp(start_rate=Rate(1), end_rate=Rate(2), duration=Duration(9), stop_when=StopWhen(slo_missed=True))
    with pytest.raises(ValueError, match="slo_missed"):
        Profile(load=ramp)


@pytest.mark.parametrize("of_rates", [{"start_rate": Rate(5)}, {"arrivals": "gamma"}])
def test_a_search_for_a_concurrency_takes_nothing_of_rates(of_rates: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="closed loop"):
        Saturate(objective="concurrency", **of_rates)
