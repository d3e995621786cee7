import datetime
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ExitCode, ProfileError
from loadgen.profile import Concurrency, Constant, EngineTarget, HttpTarget, Poisson, Profile, SimTarget, Steps
from loadgen.profile.decoding import encode
from loadgen.profile.file import load_profile, profile_toml, ready_profiles, run_dir, write_profile
from loadgen.profile.output import resolve_dir
from loadgen.profile.overrides import Overrides
from loadgen.runner.requirements import check_environment
from loadgen.units import Duration, Rate

SMALL = """
[load]
kind = "poisson"
rate = 10
duration = "10s"
"""
STEPS = """
[load]
kind = "steps"
steps = [{ kind = "poisson", rate = 1, requests = 5 }, { kind = "constant", rate = 2, requests = 5 }]
"""
SIM = '[target]\nkind = "sim"\ntransport = "in-process"\nstream = false\ntimeout = "5s"\n'
HTTP = '[target]\nkind = "http"\nurl = "http://127.0.0.1:8000"\n'
ENGINE = '[target]\nkind = "engine"\nmodel = "m"\n'
STARTED = datetime.datetime(2026, 1, 31, 23, 59, 58)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(content: str | bytes, **changes: Any) -> Profile:
    Path("p.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_profile("p.toml", Overrides(**changes))


def faults(content: str | bytes, **changes: Any) -> list[str]:
    with pytest.raises(ProfileError) as caught:
        load(content, **changes)
    assert all("\n" not in fault for fault in caught.value.faults)
    return caught.value.faults


def fault(content: str | bytes, **changes: Any) -> str:
    (only,) = faults(content, **changes)
    return only


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


# --- overrides --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assignment", "changed"),
    [
        ("load.rate=50", Poisson(rate=Rate(50), duration=Duration(10_000_000_000))),
        ("load.rate=300/min", Poisson(rate=Rate(5), duration=Duration(10_000_000_000))),
        ('load.rate="300/min"', Poisson(rate=Rate(5), duration=Duration(10_000_000_000))),
        ("load.duration=1m", Poisson(rate=Rate(10), duration=Duration(60_000_000_000))),
        ('load={kind="concurrency",concurrency=2,requests=3}', Concurrency(concurrency=2, requests=3)),
        ("load.kind=constant", Constant(rate=Rate(10), duration=Duration(10_000_000_000))),
    ],
)
def test_set_takes_toml_or_else_text(assignment: str, changed: Any) -> None:
    assert load(SMALL, sets=(assignment,)).load == changed


def test_set_takes_what_toml_reads_as_a_date_for_text() -> None:
    assert load(SMALL, sets=("name=2026-01-31",)).name == "2026-01-31"


def test_set_takes_text_that_would_be_several_toml_lines_for_text() -> None:
    assert load(SMALL, sets=("name=1\nrate=2",)).name == "1\nrate=2"


def test_set_keeps_an_equals_sign_of_the_value() -> None:
    assert load(SMALL, sets=("name=a=b",)).name == "a=b"


def test_set_none_takes_a_key_away() -> None:
    profile = load(SMALL, sets=("load.duration=none", "load.requests=7"))
    assert profile.load == Poisson(rate=Rate(10), requests=7)


def test_set_makes_the_tables_on_the_way() -> None:
    profile = load(SMALL, sets=('slo.ttft."p99.9"=1s', "slo.error_rate=0.5"))
    assert profile.slo is not None
    assert profile.slo.ttft == {"p99.9": Duration(1_000_000_000)}
    assert profile.slo.error_rate == 0.5


@pytest.mark.parametrize("path", ["load.steps.1.rate", "load.steps[1].rate"])
def test_set_reaches_into_lists(path: str) -> None:
    steps = load(STEPS, sets=(f"{path}=9",)).load
    assert isinstance(steps, Steps)
    assert [step.rate for step in steps.steps if not hasattr(step, "end_rate")] == [1, 9]


def test_set_replaces_a_list_item() -> None:
    content = '[load]\nkind = "sweep"\nrates = [1, 2]\nrequests = 5\n'
    profile = load(content, sets=("load.rates.0=7",))
    assert encode(profile)["load"]["rates"] == [7.0, 2.0]


def test_later_sets_win() -> None:
    assert load(SMALL, sets=("name=a", "name=b")).name == "b"


def test_sets_win_over_short_forms() -> None:
    assert load(SMALL, rate="20", sets=("load.rate=30",)).load.rate == 30


@pytest.mark.parametrize("index", ["2", "-1", "first"])
def test_set_refuses_a_list_item_that_is_not_there(index: str) -> None:
    assert fault(STEPS, sets=(f"load.steps.{index}.rate=9",)) == (
        f"load.steps.{index}: allowed: items 0 to 1 of load.steps"
    )


def test_set_refuses_a_path_through_what_is_no_table() -> None:
    assert fault(SMALL, sets=("load.kind.x=9",)) == 'load.kind.x: load.kind = "poisson" is not a table'


@pytest.mark.parametrize("assignment", ["load.rate", "=5", "load..rate=5", ".rate=5", "load.=5", 'a"b=1', "a b=1"])
def test_set_refuses_what_is_no_assignment(assignment: str) -> None:
    assert fault(SMALL, sets=(assignment,)).endswith(": allowed: KEY=VALUE such as load.rate=50")


def test_a_target_url_makes_the_target_a_server() -> None:
    assert load(SMALL, target="http://h:1").target == HttpTarget(url="http://h:1")


def test_a_target_url_keeps_what_both_kinds_of_target_have() -> None:
    target = load(SIM + SMALL, target="http://h:1").target
    assert target == HttpTarget(url="http://h:1", stream=False, timeout=Duration(5_000_000_000))


def test_a_target_url_changes_only_the_url_of_a_server() -> None:
    target = load(HTTP + 'model = "m"\n' + SMALL, target="http://h:1").target
    assert target == HttpTarget(url="http://h:1", model="m")


def test_a_target_url_does_not_hide_a_misspelt_key() -> None:
    assert fault(SIM + 'timout = "5s"\n' + SMALL, target="http://h:1").startswith('target.timout = "5s": unknown key')


def test_a_model_is_the_servers_or_the_simulators() -> None:
    http, sim = load(HTTP + SMALL, model="m").target, load(SMALL, model="m").target
    assert isinstance(http, HttpTarget)
    assert http.model == "m"
    assert isinstance(sim, SimTarget)
    assert sim.engine.model == "m"


def test_a_model_goes_to_the_target_that_is_given_with_it() -> None:
    assert load(SMALL, target="http://h:1", model="m").target == HttpTarget(url="http://h:1", model="m")


def test_a_key_of_a_target_that_the_file_leaves_out_is_the_default_targets() -> None:
    assert load(SMALL, sets=("target.stream=false",)).target == SimTarget(stream=False)


def test_a_model_is_the_engines() -> None:
    assert load('[target]\nkind = "engine"\n' + SMALL, model="n").target == EngineTarget(model="n")
    assert load(ENGINE + SMALL, model="n").target == EngineTarget(model="n")


def test_an_engine_without_a_model_is_told_how_to_get_one() -> None:
    expected = "target.model: missing; allowed: text; give it with --model MODEL"
    assert fault('[target]\nkind = "engine"\n' + SMALL) == expected


def test_a_target_url_takes_the_place_of_an_engine_and_keeps_its_model() -> None:
    keys = 'request_format = "plain"\nimage_placeholder = "<i>"\nstart_timeout = "9m"\nstream = false\n'
    content = ENGINE + keys + "engine_args = { max_model_len = 512 }\n" + SMALL
    assert load(content, target="http://h:1").target == HttpTarget(url="http://h:1", model="m", stream=False)


def test_a_target_url_in_place_of_an_engine_without_a_model_asks_the_server_for_one() -> None:
    content = '[target]\nkind = "engine"\n' + SMALL
    assert load(content, target="http://h:1").target == HttpTarget(url="http://h:1", model="auto")


def test_set_reaches_into_the_arguments_of_an_engine() -> None:
    sets = ("dtype=float32", "max_model_len=512", "enforce_eager=true", "limit_mm_per_prompt.image=2")
    target = load(ENGINE + SMALL, sets=tuple(f"target.engine_args.{each}" for each in sets)).target
    assert isinstance(target, EngineTarget)
    assert target.engine_args == {
        "dtype": "float32",
        "max_model_len": 512,
        "enforce_eager": True,
        "limit_mm_per_prompt": {"image": 2},
    }


@pytest.mark.parametrize("rate", [300, "300", "300/s", "18000/min"])
def test_a_rate_is_the_loads(rate: Any) -> None:
    assert load(SMALL, rate=rate).load.rate == 300


@pytest.mark.parametrize(
    ("content", "kind", "meant"),
    [
        ('[load]\nkind = "concurrency"\nconcurrency = 1\nrequests = 1', "concurrency", ""),
        ('[load]\nkind = "offline"\nrequests = 1', "offline", ""),
        ('[load]\nkind = "sweep"\nrates = [1]\nrequests = 1', "sweep", "; did you mean `load.rates`?"),
        (
            '[load]\nkind = "ramp"\nstart_rate = 1\nend_rate = 2\nduration = "5s"',
            "ramp",
            "; did you mean `load.start_rate` and `load.end_rate`?",
        ),
        (STEPS, "steps", ""),
    ],
)
def test_a_rate_is_refused_where_the_load_has_none(content: str, kind: str, meant: str) -> None:
    expected = (
        f'load.rate = "5": kind = "{kind}" has no rate of its own; allowed for: "constant", "poisson", "gamma"{meant}'
    )
    assert fault(content, rate="5") == expected


def test_a_duration_is_the_loads() -> None:
    assert load(SMALL, duration="3s").load.duration == Duration(3_000_000_000)


def test_a_duration_is_refused_where_the_load_has_none() -> None:
    assert fault(STEPS, duration="3s").startswith('load.duration = "3s": kind = "steps" has no duration of its own')


def test_a_wrong_short_form_is_refused_as_the_key_that_it_sets() -> None:
    assert [line.split(":")[0] for line in faults(SMALL, rate="fast", duration="soon")] == [
        'load.duration = "soon"',
        'load.rate = "fast"',
    ]


def test_short_forms_of_a_file_without_a_load_are_refused_for_that() -> None:
    assert fault('name = "x"', rate="5").startswith("load.kind: missing; allowed: ")


# --- secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["Authorization", "authorization", "api-key", "X-API-Key", "Cookie", "X-Auth-Token"])
def test_a_header_that_holds_a_secret_is_refused_and_not_shown(header: str) -> None:
    told = fault(f'{HTTP}headers = {{ {header} = "s3cret" }}\n{SMALL}')
    assert told == (
        f"target.headers.{header}: a secret must not stand in a profile; "
        'name the variable that holds the key: api_key_env = "VLLM_API_KEY"'
    )


def test_other_headers_are_fine() -> None:
    target = load(f'{HTTP}headers = {{ X-Team = "a" }}\n{SMALL}').target
    assert isinstance(target, HttpTarget)
    assert target.headers == {"X-Team": "a"}


@pytest.mark.parametrize("url", ["http://me:s3cret@h:1", "https://s3cret@h", "me:s3cret@h:1"])
def test_credentials_in_the_url_are_refused_and_not_shown(url: str) -> None:
    told = fault(f'[target]\nkind = "http"\nurl = "{url}"\n{SMALL}')
    assert told.startswith("target.url: holds credentials before the @; name the variable")
    assert "s3cret" not in told


@pytest.mark.parametrize(
    "changes", [{"target": "http://me:s3cret@h"}, {"sets": ("target.headers.Authorization=s3cret",)}]
)
def test_a_secret_from_the_command_line_is_refused_too(changes: dict[str, Any]) -> None:
    told = fault(HTTP + SMALL, **changes)
    assert told.startswith("target.")
    assert "s3cret" not in told


def test_a_key_in_place_of_its_variables_name_is_refused_and_not_shown() -> None:
    told = fault(f'{HTTP}api_key_env = "sk-s3cret"\n{SMALL}')
    assert told.startswith("target.api_key_env = (hidden): not the name of an environment variable")
    assert "s3cret" not in told


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ('hf_token = "s3cret"', "hf_token"),
        ('api_key = ["s3cret"]', "api_key"),
        ('x = [{ s3_secret_access_key = "s3cret" }]', "x[0].s3_secret_access_key"),
        ('x = { y = { s3_access_key_id = "s3cret" } }', "x.y.s3_access_key_id"),
    ],
)
def test_a_secret_among_the_arguments_of_an_engine_is_refused_and_not_shown(args: str, path: str) -> None:
    told = fault(f"{ENGINE}engine_args = {{ {args} }}\n{SMALL}")
    told_of, _, remedy = told.partition(": ")
    assert told_of == f"target.engine_args.{path}"
    assert remedy.startswith("a secret must not stand in a profile; set the environment variable HF_TOKEN instead")
    assert "s3cret" not in told


def test_a_hubs_token_from_the_command_line_is_refused_too_whatever_else_is_wrong() -> None:
    sets = ("target.engine_args.hf_token=s3cret", "target.engine_args.hf_token.x=1")
    told = faults(ENGINE + SMALL, sets=sets)
    assert [line.split(":")[0] for line in told] == ["target.engine_args.hf_token.x", "target.engine_args.hf_token"]
    assert "s3cret" not in " ".join(told)


@pytest.mark.parametrize(
    "args",
    [
        {"max_num_batched_tokens": 64},
        {"tokenizer": "x"},
        {"tokenizer_mode": "auto"},
        {"skip_tokenizer_init": True},
        {"num_lookahead_tokens": 3},
        {"hf_overrides": {"image_token": "<image>", "eos_token_id": 2}},
        {"hf_token": True},  # the one that the hub's own program has saved
    ],
)
def test_what_only_sounds_like_a_secret_is_an_argument_of_an_engine(args: dict[str, Any]) -> None:
    target = load(ENGINE + SMALL, sets=tuple(f"target.engine_args.{k}={_toml(v)}" for k, v in args.items())).target
    assert isinstance(target, EngineTarget)
    assert target.engine_args == args


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def test_an_at_sign_behind_the_host_is_no_credential() -> None:
    assert load(f'[target]\nkind = "http"\nurl = "http://h/a@b"\n{SMALL}').target == HttpTarget(url="http://h/a@b")


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


@pytest.mark.parametrize(
    "url", ["h:8000", "http://", "http://h:port", "http://h:0", "http://[::1", "http://h h", "ftp://h"]
)
def test_a_url_that_is_no_server_is_refused(url: str) -> None:
    expected = f'target: url = "{url}": must be http://HOST:PORT or https://HOST:PORT, with or without a path'
    assert fault(SMALL, target=url) == expected


def test_a_url_with_a_query_is_refused_and_not_shown() -> None:
    assert fault(SMALL, target="http://h?key=s3cret") == "target: url must have no ? or #"


@pytest.mark.parametrize("key", ["timeout", "connect_timeout", "preflight_timeout"])
def test_a_timeout_of_0_is_refused(key: str) -> None:
    assert fault(HTTP + SMALL, sets=(f"target.{key}=0s",)) == f"target: {key} must be longer than 0"


# --- what an engine, and what media, must fulfil ----------------------------------------------------------------------


@pytest.mark.parametrize("key", ["timeout", "start_timeout"])
def test_a_timeout_of_0_is_refused_for_an_engine(key: str) -> None:
    assert fault(ENGINE + SMALL, sets=(f"target.{key}=0s",)) == f"target: {key} must be longer than 0"


@pytest.mark.parametrize("model", ["", "  "])
def test_an_empty_model_of_an_engine_is_refused(model: str) -> None:
    expected = "target: model is empty: must be a folder, or a name on the Hugging Face hub"
    assert fault(ENGINE + SMALL, model=model) == expected


def test_another_model_among_the_arguments_of_an_engine_is_refused() -> None:
    told = fault(ENGINE + SMALL, sets=("target.engine_args.model=n",))
    assert told == 'target: engine_args.model = "n" is not target.model = "m"'


def test_the_same_model_among_the_arguments_of_an_engine_does_no_harm() -> None:
    target = load(ENGINE + SMALL, sets=("target.engine_args.model=m",)).target
    assert target == EngineTarget(model="m", engine_args={"model": "m"})


@pytest.mark.parametrize("assignment", ['system="x"', "images.count=1", "audio.count=1"])
def test_a_system_message_and_media_are_for_chats_only(assignment: str) -> None:
    told = fault(SMALL, sets=("workload.kind=completion", f"workload.{assignment}"))
    name = assignment.partition("=")[0].partition(".")[0]
    assert told.startswith(f'workload: {name} needs kind = "chat" or "choice"')


CHOICE = ("kind=choice", 'labels=["a", "b"]')


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (["kind=choice"], 'kind = "choice" needs labels, at least two, different and not empty'),
        (["kind=choice", 'labels=["a"]'], 'kind = "choice" needs labels, at least two, different and not empty'),
        (["kind=choice", 'labels=["a", " a"]'], 'kind = "choice" needs labels, at least two, different and not empty'),
        (["kind=choice", 'labels=["a", " "]'], 'kind = "choice" needs labels, at least two, different and not empty'),
        ([*CHOICE, "body.ignore_eos=true"], "body.ignore_eos: something would follow the label"),
        ([*CHOICE, "body.min_tokens=9"], "body.min_tokens: something would follow the label"),
        (["kind=embed", "body.stream=true"], 'body.stream: a request of kind = "embed" has a whole answer'),
        (['labels=["a", "b"]'], 'labels need kind = "choice"'),
        (["inputs=2"], 'inputs needs kind = "embed" or "rerank" or "pooling"'),
        (["kind=pooling", "dimensions=2"], 'dimensions needs kind = "embed"'),
        (
            ["kind=messages", "output_tokens=none"],
            'kind = "messages" needs output_tokens: its API has no answer without a maximum',
        ),
        (["kind=transcribe"], 'kind = "transcribe" needs audio, one sound a request'),
        (["kind=transcribe", "audio.count=2"], 'kind = "transcribe" needs audio, one sound a request'),
        (["kind=responses", "images.count=1"], 'images needs kind = "chat" or "choice"'),
        (["kind=score"], 'kind = "score" needs prompt_format = "tokens": where the completion begins is then exact'),
        (
            ["kind=score", "prompt_format=tokens", "output_tokens=none"],
            'kind = "score" needs output_tokens, the length of the completion that is scored',
        ),
        (
            ["kind=tokenize", "prompt_format=tokens"],
            'prompt_format = "tokens" needs kind = "completion" or "score" or "embed"',
        ),
    ],
)  # fmt: skip
def test_what_a_kind_of_workload_needs_or_does_not_take_is_told(sets: list[str], told: str) -> None:
    assert fault(SMALL, sets=tuple(f"workload.{key}" for key in sets)) == f"workload: {told}"


@pytest.mark.parametrize("kind", ["tokenize", "rerank", "responses"])
def test_a_model_in_a_worker_is_refused_what_only_a_server_does(kind: str) -> None:
    sets = (f"workload.kind={kind}",)
    engine = f'workload.kind = "{kind}": an engine in a worker has chat, completion, choice, score and embed'
    assert fault(ENGINE + SMALL, sets=sets) == f"{engine}; a server has the rest"
    simulator = f'workload.kind = "{kind}": the simulator in a worker has chat and completion'
    assert fault(SMALL, sets=(*sets, "target.transport=in-process")) == f"{simulator}; a server has the rest"


@pytest.mark.parametrize(("kind", "runner"), [("chat", "pooling"), ("embed", "generate")])
def test_an_engine_is_refused_a_kind_that_its_runner_has_not(kind: str, runner: str) -> None:
    sets = (f"workload.kind={kind}", f"target.engine_args.runner={runner}")
    told = f'workload.kind = "{kind}": an engine of engine_args.runner = "{runner}" has none'
    assert fault(ENGINE + SMALL, sets=sets) == told


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


def test_a_runs_folder_has_its_name_and_time() -> None:
    assert resolve_dir("runs/{name}-{time}", "poisson", STARTED) == Path("runs/poisson-20260131-235958")


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


def test_a_runs_folder_may_have_no_placeholder() -> None:
    assert resolve_dir("out", "poisson", STARTED) == Path("out")


@pytest.mark.parametrize(
    ("name", "safe"),
    [("a/b", "a-b"), ("../../etc", "etc"), ("..", "run"), ("", "run"), ("my run: 5", "my-run-5"), ("été", "été")],
)
def test_a_runs_folder_is_made_safe_from_its_name(name: str, safe: str) -> None:
    assert resolve_dir("runs/{name}", name, STARTED) == Path("runs") / safe


@pytest.mark.parametrize("pattern", ["runs/{nam}", "{", "}", "{name.x}", "{name!z}", "{0}", "{}", "{name:d}", ""])
def test_a_pattern_that_cannot_be_filled_is_refused_before_anything_starts(pattern: str) -> None:
    expected = f'output.dir = "{pattern}": allowed: a path, with the placeholders {{name}} and {{time}}'
    assert fault(SMALL, sets=(f'output.dir="{pattern}"',)) == expected
    with pytest.raises(ProfileError):
        resolve_dir(pattern, "x", STARTED)
