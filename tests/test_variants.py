import pytest

from loadgen.decoding import DecodingError
from loadgen.profile import Poisson, Profile, Saturate, SweepAxis
from loadgen.units import NS_PER_SECOND, Duration, Rate
from loadgen.variants import variants

LOAD = Poisson(rate=Rate(5), duration=Duration(10 * NS_PER_SECOND))


def grid(*axes: tuple[str, tuple[object, ...]], load: object = LOAD) -> Profile:
    return Profile(load=load, sweep=tuple(SweepAxis(key=key, values=values) for key, values in axes))


def test_without_axes_a_profile_stands_for_itself() -> None:
    profile = grid()
    assert [(one.settings, one.profile) for one in variants(profile)] == [({}, profile)]


def test_axes_make_a_grid_whose_last_key_changes_fastest() -> None:
    found = variants(grid(("workload.output_tokens", (4, 16)), ("load.rate", (1, "120/min"))))
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
    assert len({repr(one.profile) for one in variants(grid((key, values)))}) == 2


def faults(profile: Profile) -> list[str]:
    with pytest.raises(DecodingError) as refused:
        variants(profile)
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


def test_a_search_takes_no_grid() -> None:
    assert "search" in faults(grid(("workload.output_tokens", (4, 16)), load=Saturate()))[0]


def test_an_axis_that_repeats_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="repeat"):
        SweepAxis(key="load.rate", values=(1, 2, 1))
