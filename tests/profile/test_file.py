import datetime
from pathlib import Path

import pytest

from loadgen.errors import ExitCode, ProfileError
from loadgen.profile import EngineTarget, Poisson, Profile
from loadgen.profile.file import load_profile, profile_toml, ready_profiles, run_dir, write_profile
from loadgen.profile.overrides import Overrides
from loadgen.units import Duration, Rate
from tests.profile.reading import ENGINE, HTTP, SMALL, STEPS, fault, faults, load


def refusal(source: str) -> str:
    with pytest.raises(ProfileError) as caught:
        load_profile(source)
    (only,) = caught.value.faults
    return only


# --- finding and reading ----------------------------------------------------------------------------------------------


def test_a_profile_is_read_from_its_path() -> None:
    assert load(SMALL) == Profile(load=Poisson(rate=Rate(10), duration=Duration(10_000_000_000)))


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm() -> None:
    assert load(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode()) == load(SMALL)


def test_a_bare_name_means_a_ready_profile() -> None:
    assert load_profile("poisson").name == "poisson"


def test_a_file_goes_before_a_ready_profile_of_the_same_name() -> None:
    Path("poisson").write_text('name = "mine"' + SMALL)
    assert load_profile("poisson").name == "mine"


def test_a_folder_does_not_hide_a_ready_profile() -> None:
    Path("poisson").mkdir()
    assert load_profile("poisson").name == "poisson"


@pytest.mark.parametrize("source", ["poison", "poison.toml", "Poisson.toml"])
def test_a_ready_profile_is_suggested_for_a_name_like_it(source: str) -> None:
    told = refusal(source)
    assert told.startswith("no such file, nor a ready profile (choice, ")
    assert told.endswith("; did you mean `poisson`?")


def test_a_file_is_suggested_for_a_path_like_it() -> None:
    Path("sub").mkdir()
    Path("sub/nightly.toml").write_text(SMALL)
    assert refusal("sub/nigthly.toml").endswith("; did you mean `sub/nightly.toml`?")


def test_nothing_is_suggested_for_a_path_like_none() -> None:
    assert refusal("zzz/zzz.toml").endswith(")")


def test_a_folder_is_refused_with_the_profile_inside() -> None:
    Path("run-1").mkdir()
    Path("run-1/profile.toml").write_text(SMALL)
    assert refusal("run-1") == "a folder, not a profile; did you mean `run-1/profile.toml`?"


def test_an_unreadable_file_is_refused_with_the_reason() -> None:
    Path("loop.toml").symlink_to("loop.toml")
    assert refusal("loop.toml") == "cannot be read: Too many levels of symbolic links"


@pytest.mark.parametrize("source", ["a\0b", "x" * 5000])
def test_an_impossible_path_is_refused(source: str) -> None:
    assert refusal(source).startswith("cannot be read: ")


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("name = \n", "(at line 1, column 8)"),
        ("a = 1\na = 2\n", "(at line 2, column 6)"),
        ("a = 1\nb = [1,", "(at line 2, column 8)"),
        ("a = 1\nb", "(at line 2, column 2)"),
    ],
)
def test_a_syntax_error_is_told_with_line_and_column(content: str, where: str) -> None:
    told = fault(content)
    assert told.startswith("not TOML: ")
    assert where in told


@pytest.mark.parametrize("content", ["a = " + "[" * 10_000, "a = " + "9" * 5000])
def test_toml_that_python_cannot_hold_is_refused(content: str) -> None:
    assert fault(content).startswith("not TOML: ")


def test_bytes_that_are_no_text_are_told_with_their_line() -> None:
    assert fault(b'name = "x"\n# caf\xe9\n') == "not UTF-8 text: byte 0xe9 in line 2"


def test_an_error_names_the_source_in_each_line_and_ends_with_the_exit_code_of_usage() -> None:
    with pytest.raises(ProfileError) as caught:
        load('nmae = "x"\n[load]\nkind = "poisson"\nrate = 1\n')
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["p.toml", "p.toml"]
    assert caught.value.exit_code is ExitCode.USAGE


def test_faults_of_the_file_the_overrides_and_the_secrets_are_told_together() -> None:
    content = 'nmae = "x"\n' + HTTP + 'headers = { Authorization = "s3cret" }\n' + SMALL
    assert [line.split(" ")[0] for line in faults(content, sets=("load.rate.x=1", "load.overflow=drpo"))] == [
        "load.rate.x:",
        "target.headers.Authorization:",
        "nmae",
        "load.overflow",
    ]


def test_an_engine_without_a_model_is_told_how_to_get_one() -> None:
    expected = "target.model: missing; allowed: text; give it with --model MODEL"
    assert fault('[target]\nkind = "engine"\n' + SMALL) == expected


# --- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ready.name for ready in ready_profiles()])
def test_a_written_profile_loads_as_an_equal_one(name: str) -> None:
    profile = load_profile(name, Overrides(model="m"))
    write_profile(profile, Path("out.toml"))
    assert load_profile("out.toml") == profile


def test_a_written_profile_keeps_what_a_file_can_hold_at_all() -> None:
    body = '[workload]\noutput_tokens = "none"\nbody = { stop = ["\\n", "\\"q\\""], nested = { x = [1, 2.5, true] } }\n'
    content = 'name = "a\\tb é"\n' + body + '[slo]\nttft = { "p99.9" = "1s" }\n' + STEPS
    profile = load(content)
    assert load(profile_toml(profile)) == profile


def test_a_written_profile_keeps_the_nested_arguments_of_an_engine() -> None:
    args = (
        '{ dtype = "float32", limit_mm_per_prompt = { image = 2 }, empty = {}, '
        'speculative_config = { model = "d", stages = [{ n = 1, "a.b" = [] }, { n = 2.5 }] } }'
    )
    profile = load(f"{ENGINE}engine_args = {args}\n{SMALL}")
    assert isinstance(profile.target, EngineTarget)
    assert profile.target.engine_args["speculative_config"]["stages"][0] == {"n": 1, "a.b": []}
    assert load(profile_toml(profile)) == profile


def test_writing_leaves_nothing_but_the_file(folder: Path) -> None:
    write_profile(load_profile("poisson"), Path("out.toml"))
    assert [path.name for path in folder.iterdir()] == ["out.toml"]


# --- the folder of a run ----------------------------------------------------------------------------------------------


def test_a_runs_folder_is_that_of_its_profile_now() -> None:
    before = datetime.datetime.now()
    folder = run_dir(load_profile("poisson"))
    started = datetime.datetime.strptime(folder.name, "poisson-%Y%m%d-%H%M%S")
    assert folder.parent == Path("runs")
    # The name has whole seconds, so it may lie up to one before.
    assert before - datetime.timedelta(seconds=1) < started <= datetime.datetime.now()


def test_runs_that_start_within_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    profile = load_profile("poisson", Overrides(sets=(f"output.dir={tmp_path}/{{name}}-{{time}}",)))
    folders = set()
    for _ in range(3):
        folder = run_dir(profile)
        folder.mkdir()
        folders.add(folder)
    assert len(folders) == 3
