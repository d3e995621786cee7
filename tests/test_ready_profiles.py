import pytest

from loadgen.expectation import expected
from loadgen.load.stages import plan_stages
from loadgen.profile import SimTarget
from loadgen.profile_file import ReadyProfile, load_profile, ready_profiles

READY = ready_profiles()


def test_the_ready_profiles_are_these() -> None:
    assert [ready.name for ready in READY] == [
        "concurrency",
        "concurrency_sweep",
        "constant",
        "gamma",
        "offline",
        "poisson",
        "ramp",
        "steps",
        "sweep",
    ]


def test_the_ready_profiles_show_every_kind_of_load() -> None:
    kinds = {load_profile(ready.name).load.__struct_config__.tag for ready in READY}
    assert kinds == {"constant", "poisson", "gamma", "ramp", "steps", "concurrency", "offline", "sweep"}


@pytest.mark.parametrize("ready", READY, ids=lambda ready: ready.name)
class TestAReadyProfile:
    def test_carries_its_own_name(self, ready: ReadyProfile) -> None:
        assert load_profile(ready.name).name == ready.name

    def test_says_what_it_is_for_in_its_first_line(self, ready: ReadyProfile) -> None:
        assert ready.path.read_text(encoding="utf-8").startswith(f"# {ready.summary}\n")
        assert ready.summary.endswith(".")

    def test_needs_no_server(self, ready: ReadyProfile) -> None:
        assert isinstance(load_profile(ready.name).target, SimTarget)

    def test_sends_for_less_than_a_minute(self, ready: ReadyProfile) -> None:
        seconds = expected(load_profile(ready.name)).seconds
        assert seconds is not None
        assert seconds <= 45

    def test_has_stages_of_different_names(self, ready: ReadyProfile) -> None:
        names = [plan.name for plan in plan_stages(load_profile(ready.name).load)]
        assert len(set(names)) == len(names)
