"""What each kind asks of an engine, and what is read from its answer; real engines answer in tests/real."""

from types import SimpleNamespace

import pytest

from loadgen.measure.outcome import Exchange
from loadgen.profile import Audio, EngineTarget, Workload
from loadgen.targets.base import TargetInfo
from loadgen.targets.engine.kinds import engine_kind, kind_sampling
from loadgen.targets.http.endpoints.choice import choice_endpoint
from loadgen.targets.http.endpoints.score import score_endpoint
from loadgen.workload.request import Request

NAMES = frozenset(
    {"temperature", "logprobs", "prompt_logprobs", "max_tokens", "min_tokens", "ignore_eos", "structured_outputs"}
)
"""Some of what vLLM's SamplingParams takes, all that matters here among them."""
LABELS = ("no", "no way")
PLAIN = Request(0)
OTHERS = Request(0, labels=("yes", "may"))


def choice(**keys) -> Workload:
    return Workload(kind="choice", labels=LABELS, **keys)


def score(**keys) -> Workload:
    return Workload(kind="score", prompt_format="tokens", output_tokens=4, **keys)


def sampling(workload: Workload, defaults=None):
    return kind_sampling(workload, EngineTarget(model="m"), defaults or {}, NAMES)


def read(workload: Workload, output: SimpleNamespace, request: Request = PLAIN) -> Exchange:
    exchange = Exchange()
    engine_kind(workload).reader(request)(output, exchange)
    return exchange


def own_fields(workload: Workload, request: Request):
    return engine_kind(workload).own_fields(request)


def text(said: str) -> SimpleNamespace:
    return SimpleNamespace(outputs=[SimpleNamespace(text=said)])


# --- what is asked ----------------------------------------------------------------------------------------------------


def test_a_choice_is_constrained_as_it_is_over_http():
    over_http = choice_endpoint(choice(), TargetInfo(kind="http", version="0.32.0")).own_fields
    assert sampling(choice()).of(None) == over_http(PLAIN)
    assert own_fields(choice(), OTHERS) == over_http(OTHERS)


def test_a_request_with_labels_of_its_own_is_asked_for_these():
    assert own_fields(choice(), PLAIN) == {}
    assert own_fields(choice(), OTHERS) == {"max_tokens": 4, "structured_outputs": {"choice": ["yes", "may"]}}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_what_the_body_says_holds_for_requests_with_labels_of_their_own(name):
    assert own_fields(choice(body={name: 9}), OTHERS) == {"structured_outputs": {"choice": ["yes", "may"]}}


def test_nothing_is_asked_for_that_would_make_an_answer_go_on_after_its_label():
    # The model's own defaults of lengths give way, too.
    assert sampling(choice(), defaults={"max_tokens": 100}).of(None) == {
        "max_tokens": 7,
        "structured_outputs": {"choice": ["no", "no way"]},
    }


def test_a_score_asks_for_the_log_probabilities_of_the_prompt_and_for_one_token():
    assert sampling(score()).of(None) == {"prompt_logprobs": 0, "logprobs": 0, "max_tokens": 1, "temperature": 0}


def test_a_score_asks_for_as_many_tokens_and_the_same_temperature_as_it_does_over_http():
    over_http = score_endpoint(score(), TargetInfo(kind="http")).fields
    asked = sampling(score()).of(None)
    assert {name: asked[name] for name in ("max_tokens", "temperature", "logprobs")} == {
        name: value for name, value in over_http.items() if name != "echo"
    }


def test_the_others_that_a_score_is_to_tell_are_told_of_the_prompt_as_with_an_echo_over_http():
    asked = sampling(score(body={"logprobs": 3})).of(None)
    assert asked["prompt_logprobs"] == asked["logprobs"] == 3


def test_a_transcription_is_greedy_whatever_the_models_own_defaults_and_its_language_is_no_sampling_parameter():
    workload = Workload(kind="transcribe", audio=Audio(), body={"language": "en", "max_completion_tokens": 9})
    assert sampling(workload, defaults={"temperature": 0.6}).of(None) == {"max_tokens": 9, "temperature": 0.0}
    assert engine_kind(workload).hears


def test_a_body_lies_over_what_a_kind_asks_for():
    assert sampling(score(body={"temperature": 0.5})).of(None)["temperature"] == 0.5
    other = {"choice": ["yes", "no"]}
    assert sampling(choice(body={"structured_outputs": other})).of(None)["structured_outputs"] == other


@pytest.mark.parametrize("body", [{"max_tokens": 3}, {"max_completion_tokens": 3}])
def test_a_maximum_of_the_body_takes_the_place_of_a_kinds_own_by_either_name(body):
    assert sampling(choice(body=body)).of(None)["max_tokens"] == 3


@pytest.mark.parametrize(
    ("workload", "streams"),
    [(Workload(), True), (Workload(kind="completion"), True), (choice(), False), (score(), False)],
    ids=lambda value: value.kind if isinstance(value, Workload) else "",
)
def test_a_kind_with_a_whole_answer_is_not_streamed_whatever_the_target_says(workload, streams):
    assert sampling(workload).stream is streams


def test_a_choice_asks_for_log_probabilities_as_a_chat_does():
    assert sampling(choice(body={"logprobs": True, "top_logprobs": 2})).of(None)["logprobs"] == 2


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_text_alone_is_not_read_a_second_time(kind):
    assert engine_kind(Workload(kind=kind)).reader is None


# --- what is read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "label"), [("no", "no"), ("no way", "no way"), (" no\n", "no")])
def test_an_answer_is_counted_as_the_label_that_it_is_without_space_around_it(said, label):
    exchange = read(choice(), text(said))
    assert (exchange.label, exchange.failure) == (label, None)


def test_an_answer_to_a_request_with_labels_of_its_own_must_be_one_of_these():
    assert read(choice(), text("may"), OTHERS).label == "may"
    assert read(choice(), text("no"), OTHERS).failure == "not_a_label"


@pytest.mark.parametrize("said", ["", "No", "no way out", "yes"])
def test_an_answer_that_is_no_label_fails(said):
    exchange = read(choice(), text(said))
    assert (exchange.label, exchange.failure) == (None, "not_a_label")
    assert f'"{said}"' in exchange.message


SCORED = {7: object()}
"""A token with its log-probability, as vLLM tells it: by its id."""


@pytest.mark.parametrize(
    ("told", "items", "failure"),
    [
        # The first token of a prompt has none, and only the last 2 are scored.
        ([None, SCORED, SCORED, SCORED], 2, None),
        ([None, SCORED], 1, "protocol"),  # of the two that are all the prompt
        ([SCORED, SCORED, None, SCORED], 1, "protocol"),
        ([SCORED, {}, SCORED], 1, "protocol"),
        ([], 0, "protocol"),
        (None, 0, "protocol"),
    ],
)
def test_the_tokens_of_the_completion_that_have_a_log_probability_are_counted(told, items, failure):
    exchange = read(score(), SimpleNamespace(prompt_logprobs=told), Request(0, scored_tokens=2))
    assert (exchange.items, exchange.failure) == (items, failure)
    if failure is not None:
        assert exchange.message == f"{items} of 2 tokens of the completion have a log-probability"
