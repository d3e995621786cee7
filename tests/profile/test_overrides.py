from typing import Any

import pytest

from loadgen.profile import Concurrency, Constant, EngineTarget, HttpTarget, Poisson, SimTarget, Steps
from loadgen.profile.decoding import encode
from loadgen.units import Duration, Rate
from tests.profile.reading import ENGINE, HTTP, SIM, SMALL, STEPS, fault, faults, load


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
