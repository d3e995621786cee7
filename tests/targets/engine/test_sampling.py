"""`[workload.body]` as an engine's sampling parameters: tables of what goes in and what a request then asks for."""

import pytest

from loadgen.errors import LoadgenError
from loadgen.targets.engine.sampling import sampling_of

NAMES = frozenset(
    {
        "temperature",
        "top_p",
        "n",
        "seed",
        "stop",
        "logit_bias",
        "logprobs",
        "prompt_logprobs",
        "max_tokens",
        "min_tokens",
        "ignore_eos",
        "structured_outputs",
    }
)
"""Some of what vLLM's SamplingParams takes, all that matters here among them."""


def sampling(body, *, defaults=None, chat=True, stream=True):
    return sampling_of(body, defaults or {}, NAMES, chat=chat, stream=stream)


def fault(body, *, chat=True) -> str:
    with pytest.raises(LoadgenError) as refused:
        sampling(body, chat=chat)
    return str(refused.value)


# --- what has the same name in both -----------------------------------------------------------------------------------


def test_an_empty_body_sets_nothing_and_streams_as_the_target_does():
    for stream in (True, False):
        plain = sampling({}, stream=stream)
        assert plain.fields == {}
        assert plain.stream is stream
        assert plain.priority == 0
        assert plain.template_fields == {}


@pytest.mark.parametrize("chat", [True, False])
def test_what_the_engine_calls_the_same_is_passed_on_as_it_is(chat):
    body = {"temperature": 0.5, "seed": 7, "stop": ["\n"], "prompt_logprobs": 2, "n": 1}
    assert sampling(body, chat=chat).fields == body


def test_a_body_goes_over_the_defaults_of_the_model():
    defaults = {"temperature": 0.6, "top_p": 0.9}
    assert sampling({"temperature": 0.0}, defaults=defaults).fields == {"temperature": 0.0, "top_p": 0.9}


def test_structured_outputs_are_passed_on_as_a_table():
    choice = {"structured_outputs": {"choice": ["yes", "no"]}}
    assert sampling(choice).fields == choice


# --- what has another -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "logprobs"),
    [
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": 3}),
        ({"logprobs": True}, {"logprobs": 0}),  # that of the token itself, no others
        ({"logprobs": False, "top_logprobs": 3}, {}),
        ({"logprobs": False}, {}),
        ({"top_logprobs": 3}, {}),
    ],
)
def test_a_chat_asks_for_logprobs_with_a_yes_and_a_number(body, logprobs):
    assert sampling(body, chat=True).fields == logprobs


@pytest.mark.parametrize("wanted", [0, 3])
def test_a_completion_asks_for_logprobs_with_a_number(wanted):
    assert sampling({"logprobs": wanted}, chat=False).fields == {"logprobs": wanted}


@pytest.mark.parametrize("wanted", [0, 3, "true"])
def test_a_chat_that_asks_for_logprobs_with_anything_else_is_told_how(wanted):
    assert fault({"logprobs": wanted}) == ("workload.body.logprobs: a chat takes true or false, and top_logprobs = n")


@pytest.mark.parametrize(
    ("form", "fields"),
    [
        ({"type": "text"}, {}),
        ({"type": "json_object"}, {"structured_outputs": {"json_object": True}}),
        (
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "integer"}}},
            {"structured_outputs": {"json": {"type": "integer"}}},
        ),
    ],
    ids=lambda value: value.get("type"),
)
def test_a_response_format_becomes_structured_outputs(form, fields):
    assert sampling({"response_format": form}).fields == fields


@pytest.mark.parametrize(
    "form",
    [
        "json_object",
        {"type": "xml"},
        {},
        {"type": ["text"]},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": 1},
    ],
    ids=str,
)
def test_a_response_format_that_is_none_is_refused_with_those_there_are(form):
    assert fault({"response_format": form}) == (
        'workload.body.response_format: its type must be one of "text", "json_object", "json_schema"'
    )


def test_what_is_no_sampling_parameter_goes_where_it_belongs():
    body = {"priority": 3, "chat_template_kwargs": {"enable_thinking": False}}
    beside = sampling(body)
    assert beside.fields == {}
    assert beside.priority == 3
    assert beside.template_fields == {"enable_thinking": False}


@pytest.mark.parametrize("stream", [True, False])
def test_a_body_decides_whether_answers_are_streamed(stream):
    assert sampling({"stream": stream}, stream=not stream).stream is stream


# --- what is of no use ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("guided_choice", "structured_outputs = { choice = [...] }"),
        ("chat_template", "target.request_format"),
        ("guided_json", "structured_outputs = { json = ... }"),
        ("guided_regex", "structured_outputs = { regex = ... }"),
        ("guided_grammar", "structured_outputs = { grammar = ... }"),
        ("model", "target.model"),
    ],
)
def test_a_name_that_means_something_over_http_alone_is_refused_with_what_to_use(name, instead):
    assert fault({name: "x"}) == f"workload.body.{name}: an engine does not take it; use {instead}"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("temprature", "temperature"),
        ("max_token", "max_tokens"),
        ("prority", "priority"),
        ("top_logprob", "top_logprobs"),
    ],
)
def test_a_near_miss_is_refused_with_what_was_meant(name, meant):
    assert fault({name: 1}) == f"workload.body.{name}: no sampling parameter of this vLLM; did you mean `{meant}`?"


def test_a_name_like_no_other_is_refused_as_it_is():
    assert fault({"zzz": 1}) == "workload.body.zzz: no sampling parameter of this vLLM"


def test_all_names_of_no_use_are_told_at_once():
    lines = fault({"zzz": 1, "temperature": 0.5, "guided_json": {}}).splitlines()
    assert [line.split(":")[0] for line in lines] == ["workload.body.zzz", "workload.body.guided_json"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"priority": "high"}, "workload.body.priority: must be a whole number"),
        ({"stream": "no"}, "workload.body.stream: must be true or false"),
        ({"logprobs": True, "top_logprobs": "all"}, "workload.body.top_logprobs: must be a whole number"),
        ({"chat_template_kwargs": 3}, "workload.body.chat_template_kwargs: must be a table"),
    ],
    ids=lambda value: next(reversed(value)) if isinstance(value, dict) else "",
)
def test_a_value_of_the_wrong_type_is_refused_by_name(body, words):
    assert fault(body) == words


@pytest.mark.parametrize(
    ("name", "instead"), [("chat_template", "; use target.request_format"), ("tokenize", ""), ("return_dict", "")]
)
def test_what_is_no_word_for_a_template_is_refused_among_those_for_it(name, instead):
    words = f"workload.body.chat_template_kwargs.{name}: not for a template{instead}"
    assert fault({"chat_template_kwargs": {name: True}}) == words


# --- lengths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"max_tokens": 32, "min_tokens": 32, "ignore_eos": True}),
        ({"temperature": 0.0}, {"temperature": 0.0, "max_tokens": 32, "min_tokens": 32, "ignore_eos": True}),
        # The body's maximum takes the asked length's place; a minimum of 32 beside a maximum of 8 would be refused.
        ({"max_tokens": 8}, {"max_tokens": 8, "ignore_eos": True}),
        ({"max_completion_tokens": 8}, {"max_tokens": 8, "ignore_eos": True}),
        ({"max_tokens": 8, "min_tokens": 4}, {"max_tokens": 8, "min_tokens": 4, "ignore_eos": True}),
        ({"min_tokens": 4}, {"max_tokens": 32, "min_tokens": 4, "ignore_eos": True}),
        ({"ignore_eos": False}, {"max_tokens": 32, "min_tokens": 32, "ignore_eos": False}),
        (
            {"max_tokens": 8, "min_tokens": 4, "ignore_eos": False},
            {"max_tokens": 8, "min_tokens": 4, "ignore_eos": False},
        ),
    ],
    ids=str,
)
def test_an_asked_length_is_exact_but_for_what_the_body_sets_itself(body, fields):
    assert sampling(body).of(32) == fields


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        # None, and not vLLM's own default of 16: to the end of the context, as its server does.
        ({}, {"max_tokens": None}),
        ({"max_tokens": 8}, {"max_tokens": 8}),
        ({"max_completion_tokens": 8}, {"max_tokens": 8}),
        ({"min_tokens": 4}, {"max_tokens": None, "min_tokens": 4}),
        ({"ignore_eos": True}, {"max_tokens": None, "ignore_eos": True}),
    ],
    ids=str,
)
def test_where_no_length_is_asked_for_the_model_ends_when_it_will(body, fields):
    assert sampling(body).of(None) == fields


def test_of_two_maxima_the_newer_name_holds():
    assert sampling({"max_tokens": 8, "max_completion_tokens": 9}).of(None) == {"max_tokens": 9}


def test_the_models_own_default_of_a_length_holds_only_where_none_is_asked_for():
    kept = sampling({}, defaults={"max_tokens": 100})
    assert kept.of(None) == {"max_tokens": 100}
    assert kept.of(32) == {"max_tokens": 32, "min_tokens": 32, "ignore_eos": True}


def test_what_one_request_is_given_is_its_own():
    shared = sampling({"stop": ["\n"]})
    first = shared.of(1)
    first["max_tokens"] = 99
    assert shared.of(2)["max_tokens"] == 2
    assert shared.fields == {"stop": ["\n"]}


def test_an_answer_with_a_form_ends_by_itself_within_the_asked_length() -> None:
    kept = sampling({"structured_outputs": {"choice": ["yes", "no"]}})
    assert kept.of(32) == {"structured_outputs": {"choice": ["yes", "no"]}, "max_tokens": 32}


def test_token_ids_of_a_logit_bias_are_text_in_toml_and_numbers_to_the_engine() -> None:
    assert sampling({"logit_bias": {"5": 1.5}}).fields["logit_bias"] == {5: 1.5}
    with pytest.raises(LoadgenError, match=r"workload\.body\.logit_bias"):
        sampling({"logit_bias": {"five": 1.5}})


def test_more_than_one_answer_a_request_is_refused() -> None:
    assert sampling({"n": 1}).fields["n"] == 1
    with pytest.raises(LoadgenError, match=r"workload\.body\.n: "):
        sampling({"n": 2})
