import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.profile import (
    AbortWhen,
    Audio,
    Choice,
    Concurrency,
    Constant,
    EngineTarget,
    Fixed,
    Gamma,
    Histogram,
    HttpTarget,
    Images,
    Lengths,
    Load,
    Lognormal,
    Normal,
    Offline,
    Output,
    Poisson,
    Profile,
    Ramp,
    SimTarget,
    Steps,
    Sweep,
    Target,
    Uniform,
    Workers,
    Workload,
)
from loadgen.profile.decoding import DecodingError, decode, encode
from loadgen.profile.slo import Slo
from loadgen.units import Duration, Rate

POISSON = {"kind": "poisson", "rate": 10, "requests": 5}


def faults(shape: Any, data: Any, path: str = "") -> list[str]:
    with pytest.raises(DecodingError) as caught:
        decode(shape, data, path)
    assert all("\n" not in fault for fault in caught.value.faults)
    return caught.value.faults


def fault(shape: Any, data: Any, path: str = "") -> str:
    (only,) = faults(shape, data, path)
    return only


# --- what is read -----------------------------------------------------------------------------------------------------


def test_the_smallest_profile_is_a_load() -> None:
    profile = decode(Profile, {"load": POISSON})
    assert profile == Profile(load=Poisson(rate=Rate(10), requests=5))


def test_durations_and_rates_are_read_from_text_into_their_own_types() -> None:
    load = decode(Load, {"kind": "constant", "rate": "300/min", "duration": "1m30s", "warmup": "500ms"})
    assert load == Constant(rate=Rate(5), duration=Duration(90_000_000_000), warmup=Duration(500_000_000))
    assert [type(value) for value in (load.rate, load.duration, load.warmup)] == [Rate, Duration, Duration]


def test_a_literal_stands_beside_a_duration() -> None:
    assert decode(Load, POISSON | {"warmup": "auto"}).warmup == "auto"


def test_a_zero_duration_needs_no_unit() -> None:
    assert decode(Load, POISSON | {"warmup": 0}).warmup == Duration(0)


def test_lengths_are_a_number_or_a_table() -> None:
    assert decode(Lengths, 512) == 512
    assert decode(Lengths, {"dist": "fixed", "value": 512}) == Fixed(value=512)


def test_a_whole_number_is_taken_for_a_float() -> None:
    mean = decode(Lengths, {"dist": "normal", "mean": 10, "sd": 0}).mean
    assert mean == 10.0
    assert isinstance(mean, float)


def test_none_in_quotes_takes_a_default_away() -> None:
    assert decode(Workload, {"output_tokens": "none"}).output_tokens is None


def test_none_is_plain_text_where_text_is_allowed() -> None:
    assert decode(Workload, {"tokenizer": "none"}).tokenizer == "none"


def test_the_arguments_of_an_engine_are_taken_as_they_are() -> None:
    args = {"limit_mm_per_prompt": {"image": 2}, "tokenizer": "none", "enable_lora": False, "all": [{"x": 1.5}]}
    assert decode(EngineTarget, {"model": "m", "engine_args": args}).engine_args == args


def test_the_body_is_taken_as_it_is() -> None:
    body = {"temperature": 0.5, "stop": ["a"], "nested": {"x": True}}
    assert decode(Workload, {"body": body}).body == body


# --- what is refused: path, value, what is allowed, near miss ---------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "data", "expected"),
    [
        (Profile, {"load": POISSON, "wrokers": {}}, "wrokers = a table: unknown key; allowed: name, target, workload, "
            "load, sweep, workers, slo, output; did you mean `workers`?"),
        (AbortWhen, {"error_rate": 0.5, "zzz": "x"}, 'zzz = "x": unknown key; allowed: error_rate, after'),
        (Profile, {}, 'load: missing; allowed: a table with kind = "constant", "poisson", "gamma", "ramp", "steps", '
            '"concurrency", "offline", "sweep", "saturate"'),
        (Profile, {"load": 5}, 'load = 5: allowed: a table with kind = "constant", "poisson", "gamma", "ramp", '
            '"steps", "concurrency", "offline", "sweep", "saturate"'),
        (Lengths, "many", '"many": allowed: a whole number from 1 to 10000000 or a table with dist = "fixed", "uniform", '  # noqa: E501
            '"normal", "lognormal", "choice", "histogram"'),
        (Lengths, {"dist": "fixed"}, "value: missing; allowed: a whole number from 1 to 10000000"),
        (Lengths, {"dist": "fixed", "value": 0}, "value = 0: allowed: a whole number from 1 to 10000000"),
        (Lengths, {"dist": "fixed", "value": 1.5}, "value = 1.5: allowed: a whole number from 1 to 10000000"),
        (Lengths, {"dist": "normal", "mean": 0, "sd": 1}, "mean = 0: allowed: a number above 0 of at most 10000000"),
        (Lengths, {"dist": "choice", "values": []}, "values = []: allowed: a list of at least 1, each item a whole "
            "number from 1 to 10000000"),
        (Lengths, {"dist": "choice", "values": [1, "x"]}, 'values[1] = "x": allowed: a whole number from 1 to 10000000'),  # noqa: E501
        (Workload, {"seed": True}, "seed = true: allowed: a whole number of at least 0"),
        (Workload, {"seed": 2**70}, "seed = a number beyond 64 bits: allowed: a whole number of at least 0"),
        (Workload, {"cache_bust": 1}, "cache_bust = 1: allowed: true or false"),
        (Workload, {"body": 3}, "body = 3: allowed: a table, each value anything"),
        (Workload, {"kind": "chatt"}, 'kind = "chatt": allowed: "chat", "completion", "choice", "score", "tokenize", '
            '"embed", "rerank", "pooling", "responses", "messages", "transcribe"; did you mean "chat"?'),
        (Workload, {"images": {"width": 7}}, "images.width = 7: allowed: a whole number from 8 to 8192"),
        (Workload, {"audio": {"seconds": 0}}, "audio.seconds = 0: allowed: a number above 0 of at most 3600"),
        (EngineTarget, {"model": "m", "engine_args": 3}, "engine_args = 3: allowed: a table, each value anything"),
        (Workload, {"tokenizer": 5}, "tokenizer = 5: allowed: text"),
        (Output, {"formats": "json"}, 'formats = "json": allowed: a list, each item "json", "csv", "html", "hlog"'),
        (Output, {"formats": ["jsn"]}, 'formats[0] = "jsn": allowed: "json", "csv", "html", "hlog"; did you mean '
            '"json"?'),
        (Workers, {"processes": "automatic"}, 'processes = "automatic": allowed: a whole number of at least 1 or '
            '"auto"; did you mean "auto"?'),
        (Workers, {"lookahead": "fast"}, 'lookahead = "fast": allowed: a duration such as "500ms", "60s", "2m" or '
            '"1h30m"'),
        (AbortWhen, {"error_rate": 1.5}, "error_rate = 1.5: allowed: a number from 0 to 1"),
        (AbortWhen, {"error_rate": float("nan")}, "error_rate = nan: allowed: a number from 0 to 1"),
        (Slo, {"ttft": {"p98": "1s"}}, 'ttft.p98 = "1s": unknown key; allowed: p50, p90, p95, p99, p99.9; did you '
            "mean `p99`?"),
        (Slo, {"ttft": "1s"}, 'ttft = "1s": allowed: a table, each value a duration such as "500ms", "60s", "2m" or '
            '"1h30m"'),
        (Slo, {"error_rate": "low"}, 'error_rate = "low": allowed: a number from 0 to 1 or "none"'),
    ],
)  # fmt: skip
def test_a_refusal_tells_path_value_what_is_allowed_and_a_near_miss(shape: Any, data: Any, expected: str) -> None:
    assert fault(shape, data) == expected


def test_a_path_runs_through_lists_and_tables() -> None:
    data = {"load": {"kind": "steps", "steps": [POISSON, POISSON | {"rate": "fast"}]}}
    expected = 'load.steps[1].rate = "fast": allowed: requests per second such as 20.0, "20/s" or "300/min"'
    assert fault(Profile, data) == expected


def test_a_path_quotes_a_key_with_a_dot() -> None:
    assert fault(Slo, {"ttft": {"p99.9": "soon"}}, "slo").startswith('slo.ttft."p99.9" = "soon": allowed: a duration')


def test_a_path_starts_where_the_data_stands() -> None:
    assert fault(Workers, {"processes": 0}, "workers").startswith("workers.processes = 0: ")


@pytest.mark.parametrize(("given", "meant"), [(60, "60s"), (0.25, "250ms")])
def test_a_bare_number_is_no_duration_and_the_refusal_says_what_it_would_be(given: float, meant: str) -> None:
    expected = (
        f'lookahead = {given}: allowed: a duration such as "500ms", "60s", "2m" or "1h30m"; did you mean "{meant}"?'
    )
    assert fault(Workers, {"lookahead": given}) == expected


@pytest.mark.parametrize("given", [True, False, -1, "-1s", float("inf"), [1], {"s": 1}])
def test_what_is_no_duration_at_all_is_refused_without_a_guess(given: Any) -> None:
    assert fault(Workers, {"lookahead": given}).endswith('"1h30m"')


@pytest.mark.parametrize("given", [True, "fast", float("nan"), [1], {"rate": 1}])
def test_what_is_no_rate_is_refused(given: Any) -> None:
    assert "allowed: requests per second such as" in fault(Load, POISSON | {"rate": given})


@pytest.mark.parametrize(
    ("kind", "meant"),
    [
        ("posson", '; did you mean "poisson"?'),
        ("Ramp", '; did you mean "ramp"?'),
        ("saturated", '; did you mean "saturate"?'),
        (7, ""),
    ],
)
def test_a_wrong_kind_is_told_with_the_kinds_there_are(kind: Any, meant: str) -> None:
    kinds = '"constant", "poisson", "gamma", "ramp", "steps", "concurrency", "offline", "sweep", "saturate"'
    shown = f'"{kind}"' if isinstance(kind, str) else kind
    assert fault(Load, {"kind": kind, "rate": 1}, "load") == f"load.kind = {shown}: allowed: {kinds}{meant}"


def test_a_missing_kind_is_told_with_the_kinds_there_are() -> None:
    assert fault(Target, {"timeout": "5s"}, "target") == 'target.kind: missing; allowed: "http", "sim", "engine"'


def test_a_missing_kind_is_guessed_where_only_one_has_these_keys() -> None:
    expected = 'target.kind: missing; allowed: "http", "sim", "engine"; did you mean "http"?'
    assert fault(Target, {"url": "http://x"}, "target") == expected


def test_a_misspelt_kind_key_is_told_beside_the_missing_kind() -> None:
    assert faults(Target, {"knd": "sim"}, "target") == [
        'target.knd = "sim": unknown key; allowed: kind; did you mean `kind`?',
        'target.kind: missing; allowed: "http", "sim", "engine"',
    ]


def test_a_percentile_with_a_dot_and_without_quotes_is_explained() -> None:
    data = {"ttft": {"p99": {"9": "1s"}}}  # what TOML makes of `ttft = { p99.9 = "1s" }`
    assert fault(Slo, data, "slo") == 'slo.ttft.p99.9: a key with a dot stands in quotes: "p99.9"'


def test_a_rule_over_several_keys_is_told_at_the_path_of_their_table() -> None:
    assert fault(Profile, {"load": {"kind": "poisson", "rate": 1}}) == "load: needs duration or requests (or both)"


def test_a_rule_is_not_looked_at_while_a_key_of_its_table_is_at_fault() -> None:
    data = {"kind": "poisson", "rate": "fast"}  # also has neither duration nor requests
    assert fault(Load, data).startswith('rate = "fast"')


def test_all_faults_are_told_at_once() -> None:
    data = {
        "nmae": "x",
        "target": {"kind": "http", "url": "ftp://x"},
        "workload": {"kind": "chatt", "prompt_tokens": 0, "output_tokens": {"dist": "uniform", "min": 5, "max": 1}},
        "load": {"kind": "steps", "steps": [{"kind": "posson"}, {"kind": "constant", "requests": 1, "rate": -1}]},
        "slo": {"error_rate": 2},
    }
    told = [line.split(":")[0].split(" = ")[0] for line in faults(Profile, data)]
    assert told == [
        "nmae",
        "target",
        "workload.kind",
        "workload.prompt_tokens",
        "workload.output_tokens",
        "load.steps[0].kind",
        "load.steps[1]",
        "slo.error_rate",
    ]


def test_a_long_value_is_cut_and_stays_on_one_line() -> None:
    shown = fault(Workload, {"kind": "two\nlines " + "x" * 1000}).split(": allowed")[0]
    assert shown.startswith('kind = "two\\nlines xxx')
    assert len(shown) < 80


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"api_key": "s3cret"}, "target.api_key"),
        ({"api_key_env": ["s3cret"]}, "target.api_key_env"),
        ({"headers": "Bearer s3cret"}, "target.headers"),
        ({"headers": {"X-Team": ["s3cret"]}}, "target.headers.X-Team"),
    ],
)
def test_a_value_that_may_be_a_secret_is_not_shown(data: dict[str, Any], path: str) -> None:
    told = fault(Target, {"kind": "http", "url": "http://x"} | data, "target")
    assert told.startswith(f"{path} = (hidden): ")
    assert "s3cret" not in told


def test_text_that_cannot_be_written_is_refused() -> None:
    assert "allowed: text" in fault(Output, {"dir": "\udcff"})


# --- round trip -------------------------------------------------------------------------------------------------------

whole = st.integers(1, 10**6)
number = st.floats(0.001, 1e6)
spread = st.floats(0, 100)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
durations = st.integers(1, 10**15).map(Duration)
rates = number.map(Rate)
fractions = st.floats(0, 1)
bounds = st.tuples(whole, whole).map(sorted)
values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)


def weights(count: int) -> st.SearchStrategy[tuple[float, ...]]:
    return st.tuples(*[number] * count)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


lengths = st.one_of(
    whole,
    st.builds(Fixed, value=whole),
    bounds.map(lambda b: Uniform(min=b[0], max=b[1])),
    st.builds(lambda b, mean, sd: Normal(mean=mean, sd=sd, min=b[0], max=b[1]), bounds, number, number),
    st.builds(Lognormal, mean=number, cv=spread, min=whole),
    st.lists(whole, min_size=1, max_size=4).flatmap(
        lambda v: st.builds(Choice, values=st.just(tuple(v)), weights=optional(weights(len(v))))
    ),
    st.sets(whole, min_size=2, max_size=4).flatmap(
        lambda e: st.builds(Histogram, edges=st.just(tuple(sorted(e))), weights=weights(len(e) - 1))
    ),
)
images = st.builds(Images, count=whole, width=st.integers(8, 8192), height=st.integers(8, 8192))
sounds = st.builds(Audio, count=whole, seconds=st.floats(0.001, 3600), sample_rate=st.integers(1000, 192_000))
workloads = st.one_of(
    st.builds(
        Workload,
        kind=st.sampled_from(["chat", "completion"]),
        prompt_tokens=lengths,
        output_tokens=optional(lengths),
        seed=st.integers(0, 2**63 - 1),
        nonce=optional(st.integers(0, 2**63 - 1)),
        cache_bust=st.booleans(),
        tokenizer=optional(text),
        body=st.dictionaries(text, values, max_size=3),
    ),
    st.builds(Workload, system=optional(text), images=optional(images), audio=optional(sounds)),
    st.just(Workload(kind="completion", prompt_format="tokens")),
)
targets = st.one_of(
    st.builds(SimTarget, transport=st.sampled_from(["http", "in-process"]), stream=st.booleans(), timeout=durations),
    st.builds(
        HttpTarget,
        url=st.sampled_from(["http://127.0.0.1:8000", "https://host/v1", "http://[::1]:80"]),
        model=text,
        api_key_env=optional(text),
        headers=st.dictionaries(text, text, max_size=3),
        stream=st.booleans(),
        timeout=durations,
        connect_timeout=durations,
        verify_tls=st.booleans(),
    ),
    st.builds(
        EngineTarget,
        model=text.filter(str.strip),
        engine_args=st.dictionaries(text.filter(lambda name: name != "model"), values, max_size=3),
        request_format=text,
        image_placeholder=text,
        audio_placeholder=text,
        stream=st.booleans(),
        timeout=durations,
        start_timeout=durations,
    ),
)
timings = st.fixed_dictionaries(
    {
        "duration": st.just(None) | st.integers(10**9 + 1, 10**15).map(Duration),
        "requests": whole,
        "warmup": st.just("auto") | st.integers(0, 10**9).map(Duration),
        "drain": durations,
        "overflow": st.sampled_from(["wait", "drop"]),
        "abort_when": optional(st.builds(AbortWhen, error_rate=fractions, after=whole)),
    }
)
steps = st.one_of(
    st.builds(lambda t, rate: Constant(rate=rate, **t), timings, rates),
    st.builds(lambda t, rate: Poisson(rate=rate, **t), timings, rates),
    st.builds(lambda t, rate, k: Gamma(rate=rate, burstiness=k, **t), timings, rates, number),
    st.builds(
        lambda t, low, high: Ramp(start_rate=low, end_rate=high, **t | {"duration": Duration(10**10)}),
        timings,
        rates,
        rates,
    ),
)
loads = st.one_of(
    steps,
    st.lists(steps, min_size=1, max_size=3).map(lambda s: Steps(steps=tuple(s))),
    st.builds(lambda t, slots: Concurrency(concurrency=slots, **t), timings, whole),
    st.builds(lambda t: Offline(**t | {"duration": None}), timings),
    st.builds(lambda t, r: Sweep(rates=tuple(r), **t), timings, st.sets(rates, min_size=1, max_size=4)),
    st.builds(lambda t, c: Sweep(concurrency=tuple(c), **t), timings, st.sets(whole, min_size=1, max_size=4)),
)
limits = st.dictionaries(st.sampled_from(["p50", "p90", "p95", "p99", "p99.9"]), durations)
profiles = st.builds(
    Profile,
    name=text,
    target=targets,
    workload=workloads,
    load=loads,
    workers=st.builds(Workers, processes=whole | st.just("auto"), gpus_per_worker=optional(whole), lookahead=durations),
    slo=optional(st.builds(Slo, ttft=limits, itl=limits, error_rate=optional(fractions))),
    output=st.builds(
        Output,
        dir=text,
        formats=st.lists(st.sampled_from(["json", "csv", "html", "hlog"])).map(tuple),
        records=st.booleans(),
    ),
)


@settings(max_examples=200, deadline=None)
@given(profiles)
def test_an_encoded_profile_decodes_to_an_equal_one(profile: Profile) -> None:
    assert decode(Profile, encode(profile)) == profile


@settings(max_examples=100, deadline=None)
@given(profiles)
def test_an_encoded_profile_survives_msgpack(profile: Profile) -> None:
    assert decode(Profile, msgspec.msgpack.decode(msgspec.msgpack.encode(encode(profile)))) == profile


def test_an_encoded_profile_is_plain_data_with_its_kinds() -> None:
    load = Poisson(rate=Rate(10), duration=Duration(90_000_000_000))
    data = encode(Profile(load=load, workload=Workload(output_tokens=None)))
    assert data["target"]["kind"] == "sim"
    assert data["load"] == {
        "kind": "poisson",
        "duration": "1m30s",
        "warmup": "0s",
        "drain": "1m",
        "overflow": "wait",
        "repeat": 1,
        "rate": 10.0,
    }
    assert type(data["load"]["rate"]) is float
    assert data["output"]["formats"] == ["json", "csv", "html", "hlog"]
    assert data["workload"]["output_tokens"] == "none"
    assert "slo" not in data


def test_a_type_that_no_profile_holds_is_an_error_of_ours() -> None:
    with pytest.raises(TypeError, match="cannot hold"):
        decode(set[int], [1])


keys = st.sampled_from(
    ["name", "target", "workload", "load", "slo", "kind", "rate", "duration", "steps", "ttft", "p99"]
)
wild = st.recursive(values, lambda inner: st.dictionaries(keys, inner, max_size=4), max_leaves=8)


@given(st.dictionaries(keys, wild))
def test_any_data_is_decoded_or_refused_and_nothing_else(data: dict[str, Any]) -> None:
    with contextlib.suppress(DecodingError):
        decode(Profile, data)
