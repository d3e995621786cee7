import pytest

from loadgen.errors import ProfileError
from loadgen.profile import Audio, EngineTarget, Images, Profile, SimTarget
from loadgen.profile.file import ReadyProfile, load_profile, ready_profiles
from loadgen.profile.overrides import Overrides
from loadgen.runner.expectation import expected
from loadgen.search.program import planned

READY = ready_profiles()
ENGINES = [ready for ready in READY if ready.name in ("engine", "engine-audio", "engine-image")]
SEARCHES = [ready for ready in READY if ready.name in ("saturate", "saturate_slo")]
SERVERS = [ready for ready in READY if ready.name == "engine-http"]
SIMULATED = [ready for ready in READY if ready not in ENGINES + SERVERS]


def loaded(ready: ReadyProfile) -> Profile:
    """The profile, with a model where it needs one."""
    return load_profile(ready.name, Overrides(model="m") if ready in ENGINES else None)


def test_the_ready_profiles_are_these() -> None:
    assert [ready.name for ready in READY] == [
        "choice",
        "classify",
        "concurrency",
        "concurrency_sweep",
        "constant",
        "embed",
        "engine",
        "engine-audio",
        "engine-http",
        "engine-image",
        "gamma",
        "grid",
        "offline",
        "poisson",
        "ramp",
        "saturate",
        "saturate_slo",
        "score",
        "steps",
        "sweep",
        "tokenize",
    ]


def test_the_ready_profiles_show_every_kind_of_load() -> None:
    kinds = {load_profile(ready.name).load.__struct_config__.tag for ready in SIMULATED}
    assert kinds == {"constant", "poisson", "gamma", "ramp", "steps", "concurrency", "offline", "sweep", "saturate"}


@pytest.mark.parametrize("ready", READY, ids=lambda ready: ready.name)
class TestAReadyProfile:
    def test_carries_its_own_name(self, ready: ReadyProfile) -> None:
        assert loaded(ready).name == ready.name

    def test_says_what_it_is_for_in_its_first_line(self, ready: ReadyProfile) -> None:
        assert ready.path.read_text(encoding="utf-8").startswith(f"# {ready.summary}\n")
        assert ready.summary.endswith(".")

    def test_sends_for_less_than_a_minute_unless_it_searches(self, ready: ReadyProfile) -> None:
        found = expected(loaded(ready))
        seconds = found.seconds
        if ready in SEARCHES:
            assert found.search is not None
            return
        assert seconds is not None
        assert seconds <= 45

    def test_has_stages_of_different_names(self, ready: ReadyProfile) -> None:
        names = [plan.name for plan in planned(loaded(ready)) or ()]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("ready", SIMULATED, ids=lambda ready: ready.name)
def test_a_ready_profile_needs_no_server_and_no_model(ready: ReadyProfile) -> None:
    assert isinstance(load_profile(ready.name).target, SimTarget)


@pytest.mark.parametrize("ready", ENGINES, ids=lambda ready: ready.name)
class TestAReadyProfileOfAnEngine:
    def test_needs_a_model_and_says_how_to_give_it(self, ready: ReadyProfile) -> None:
        with pytest.raises(ProfileError) as caught:
            load_profile(ready.name)
        assert caught.value.faults == ["target.model: missing; allowed: text; give it with --model MODEL"]

    def test_takes_the_model_of_the_command_line(self, ready: ReadyProfile) -> None:
        target = load_profile(ready.name, Overrides(model="org/name")).target
        assert isinstance(target, EngineTarget)
        assert target.model == "org/name"

    def test_says_in_its_second_line_that_it_needs_one(self, ready: ReadyProfile) -> None:
        assert ready.path.read_text(encoding="utf-8").splitlines()[1].startswith("# It needs --model: ")

    def test_shows_the_arguments_that_people_set(self, ready: ReadyProfile) -> None:
        text = ready.path.read_text(encoding="utf-8")
        assert all(
            f"# {name} = " in text for name in ("gpu_memory_utilization", "tensor_parallel_size", "max_model_len")
        )


def test_the_server_s_profile_sends_what_the_engine_s_does() -> None:
    in_process, over_http = load_profile("engine", Overrides(model="m")), load_profile("engine-http")
    assert (in_process.workload, in_process.load) == (over_http.workload, over_http.load)


def test_the_engines_profiles_differ_in_what_they_send_beside_text() -> None:
    sent = {ready.name: loaded(ready).workload for ready in ENGINES}
    assert {name: (workload.images, workload.audio) for name, workload in sent.items()} == {
        "engine": (None, None),
        "engine-image": (Images(count=1, width=336, height=336), None),
        "engine-audio": (None, Audio(count=1, seconds=3.0, sample_rate=16_000)),
    }
