"""What the kinds of target have in common, and what is told of an engine before its model is loaded."""

import sys
from typing import get_args

import pytest

from loadgen.clock import LoopClock
from loadgen.errors import ExitCode, LoadgenError
from loadgen.profile import Constant, EngineTarget, Fixed, HttpTarget, Profile, SimTarget, Target, Workload
from loadgen.targets import kinds
from loadgen.targets.base import TargetInfo
from loadgen.targets.kinds import checked_target, patience_with
from loadgen.units import NS_PER_SECOND, Duration, Rate

ENGINE = EngineTarget(model="models/tiny")


def profile(target: EngineTarget) -> Profile:
    load = Constant(rate=Rate(1), duration=Duration(NS_PER_SECOND))
    return Profile(target=target, workload=Workload(prompt_tokens=16, output_tokens=Fixed(value=4)), load=load)


@pytest.fixture
def without_vllm(monkeypatch):
    """As where vLLM is not installed."""
    monkeypatch.setitem(sys.modules, "vllm", None)


@pytest.fixture
def with_vllm(monkeypatch, tmp_path):
    """As where vLLM is installed: one that must not be imported."""
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('seconds of importing, before anything was checked')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)


def test_every_kind_of_target_can_be_checked_and_opened():
    assert kinds.KINDS.keys() == set(get_args(Target))


@pytest.mark.parametrize("target", [HttpTarget(url="http://localhost:8000"), SimTarget()], ids=["http", "sim"])
def test_what_loads_no_model_is_opened_within_ten_minutes_and_closed_within_15_s(target):
    patience = patience_with(target)
    assert (patience.open_seconds, patience.close_seconds) == (600, 15)


def test_a_worker_with_an_engine_is_given_longer_than_the_engines_own_limit():
    # Start and warm-up have that limit each, and say why at it; a minute later the worker is taken for hung.
    for start_seconds in (90, 7200):
        target = EngineTarget(model="m", start_timeout=Duration(start_seconds * NS_PER_SECOND))
        assert patience_with(target).open_seconds == 2 * start_seconds + 60
    # vLLM may take a minute to shut down.
    assert patience_with(ENGINE).close_seconds > 60


@pytest.mark.anyio
async def test_without_vllm_an_engine_is_refused_with_how_to_install_it(without_vllm):
    with pytest.raises(LoadgenError) as refused:
        async with checked_target(profile(ENGINE), LoopClock()):
            raise AssertionError("checked")
    assert str(refused.value) == "target.kind = engine: needs vLLM in this environment: pip install 'loadgen[vllm]'"
    assert refused.value.exit_code == ExitCode.USAGE


@pytest.mark.anyio
@pytest.mark.parametrize("request_format", ["nonsense", "nowhere/template.jinja", "{{ unfinished"])
async def test_an_engine_with_a_bad_request_format_is_refused_before_a_model_is_loaded(with_vllm, request_format):
    target = EngineTarget(model="models/tiny", request_format=request_format)
    with pytest.raises(LoadgenError) as refused:
        async with checked_target(profile(target), LoopClock()):
            raise AssertionError("checked")
    assert request_format in str(refused.value)
    assert "request_format" in str(refused.value)
    assert refused.value.exit_code == ExitCode.USAGE


@pytest.mark.anyio
@pytest.mark.parametrize("request_format", ["default-template", "plain", "{% for m in messages %}{{ m }}{% endfor %}"])
async def test_of_an_engine_that_is_to_be_loaded_only_its_name_is_known(with_vllm, request_format):
    given = profile(EngineTarget(model="models/tiny", request_format=request_format))
    async with checked_target(given, LoopClock()) as checked:
        assert checked.profile is given
        assert checked.info == TargetInfo(kind="engine", model="models/tiny")
        assert checked.tokenization is None
