from typing import Any

import pytest

from loadgen.profile import EngineTarget, HttpTarget
from tests.profile.reading import ENGINE, HTTP, SMALL, fault, faults, load


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
