"""Answers constrained to labels: in themselves, and as the server gives them."""

import itertools
import math
from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from loadgen.sim.model import tokenizer
from loadgen.sim.model.choice import MASKED, allowed, choose, masked, tokenized
from loadgen.sim.model.language import after, begin, log_probability
from tests.sim.api.serving import CHAT, COMPLETION, data_events, post, serving

LABELS = ["yes", "no", "no way"]
CHOICE = {"structured_outputs": {"choice": LABELS}, "max_tokens": 20}
PATHS = ["/v1/chat/completions", "/v1/completions"]

labels_of_any_kind = st.lists(st.text(alphabet="abno é€", max_size=12), min_size=1, max_size=6)


@pytest.fixture
def anyio_backend():
    return "asyncio"


def _body(path: str) -> dict:
    return (CHAT if "chat" in path else COMPLETION) | CHOICE


def _said(choice: dict) -> str:
    return choice["message"]["content"] if "message" in choice else choice["text"]


@given(labels_of_any_kind, st.text(alphabet="xyz"), st.booleans(), st.integers(0, 99))
def test_what_is_chosen_is_one_of_the_labels_and_its_end(labels, prompt, greedy, salt):
    chosen = choose(begin(0, prompt.encode()), tokenized(labels), greedy=greedy, salt=salt)
    assert chosen[-1] == tokenizer.END
    assert tokenizer.decode(chosen[:-1]) in labels


@given(labels_of_any_kind, st.text(alphabet="xyz"))
def test_the_probabilities_of_all_labels_sum_to_1_where_others_are_masked_and_to_less_where_none_are(labels, prompt):
    tries = tokenized(labels)
    constrained = free = 0.0
    for label in tries:
        context, logprob, free_logprob = begin(0, prompt.encode()), 0.0, 0.0
        for place, token in enumerate(label):
            logprob += dict(masked(context, allowed(tries, label[:place])))[token]
            free_logprob += log_probability(context, token)
            context = after(context, token)
        constrained += math.exp(logprob)
        free += math.exp(free_logprob)
    assert math.isclose(constrained, 1, rel_tol=1e-9)
    assert 0 < free < 1


@given(labels_of_any_kind)
def test_nothing_follows_the_end_of_a_label_and_something_anything_before_it(labels):
    tries = tokenized(labels)
    for label in tries:
        assert all(label[place] in allowed(tries, label[:place]) for place in range(len(label)))
        assert allowed(tries, label) == []


@given(st.text(alphabet="xyz", min_size=1), labels_of_any_kind)
def test_the_greedy_label_begins_with_the_likeliest_token(prompt, labels):
    assume(len(set(labels)) > 1)
    tries = tokenized(labels)
    context = begin(0, prompt.encode())
    chosen = choose(context, tries, greedy=True, salt=0)
    assert chosen[0] == max(allowed(tries, []), key=lambda token: log_probability(context, token))


def test_labels_are_drawn_as_often_as_they_are_likely():
    tries = tokenized(["up", "out"])
    expected = drawn = 0.0
    for number in range(2000):
        context = begin(0, f"question {number}".encode())
        expected += math.exp(dict(masked(context, [label[0] for label in tries]))[tries[0][0]])
        drawn += choose(context, tries, greedy=False, salt=0) == tries[0]
    # 2,000 draws of variance at most 1/4 each: four standard deviations are 4 * sqrt(500) = 89.
    assert abs(drawn - expected) < 89
    assert 200 < drawn < 1800


@pytest.mark.anyio
@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_is_one_of_the_labels_and_its_end_is_a_token(path):
    said = Counter()
    async with serving() as (_, session):
        for number in range(30):
            status, answer = await post(session, path, _body(path) | {"seed": number})
            choice = answer["choices"][0]
            said[_said(choice)] += 1
            assert (status, choice["finish_reason"]) == (200, "stop")
            assert answer["usage"]["completion_tokens"] == tokenizer.count(_said(choice)) + 1
    assert set(said) <= set(LABELS)
    assert len(said) > 1


@pytest.mark.anyio
@pytest.mark.parametrize("path", PATHS)
async def test_the_same_request_gets_the_same_label_streamed_or_not(path):
    async with serving() as (_, session):
        for number in range(10):
            body = _body(path) | {"seed": number}
            whole = (await post(session, path, body))[1]["choices"][0]
            choices = [event["choices"][0] for event in await data_events(session, path, body)]
            texts = [choice["delta"]["content"] if "delta" in choice else choice["text"] for choice in choices]
            assert "".join(texts) == _said(whole)
            assert choices[-1]["finish_reason"] == "stop"
            assert texts[-1] == ""  # the end of the label shows nothing


@pytest.mark.anyio
async def test_at_temperature_0_the_seed_of_a_request_changes_nothing():
    async with serving() as (_, session):
        bodies = [_body(PATHS[0]) | {"temperature": 0, "seed": number} for number in range(8)]
        answers = [(await post(session, PATHS[0], body))[1] for body in bodies]
    assert len({_said(answer["choices"][0]) for answer in answers}) == 1


@pytest.mark.anyio
async def test_too_few_tokens_cut_a_label():
    body = COMPLETION | {"structured_outputs": {"choice": ["certainly not"]}, "max_tokens": 2}
    async with serving() as (_, session):
        _, answer = await post(session, "/v1/completions", body)
    assert answer["choices"][0]["text"] == "certainly"  # "certai" and "nly"
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.anyio
@pytest.mark.parametrize("path", PATHS)
async def test_with_ignore_eos_more_follows_the_label(path):
    async with serving() as (_, session):
        _, answer = await post(session, path, _body(path) | {"ignore_eos": True})
    choice = answer["choices"][0]
    assert answer["usage"]["completion_tokens"] == 20
    assert choice["finish_reason"] == "length"
    assert any(_said(choice).startswith(f"{label} ") for label in LABELS)
    assert _said(choice) not in LABELS


@pytest.mark.anyio
async def test_log_probabilities_are_of_what_was_allowed():
    body = _body(PATHS[0]) | {"logprobs": True, "top_logprobs": 4, "temperature": 0}
    async with serving() as (_, session):
        _, answer = await post(session, PATHS[0], body)
    first, *_, end = answer["choices"][0]["logprobs"]["content"]
    told = {entry["token"]: entry["logprob"] for entry in first["top_logprobs"]}
    assert {token for token, logprob in told.items() if logprob > MASKED} == {"yes", "no"}
    assert math.isclose(math.exp(told["yes"]) + math.exp(told["no"]), 1)
    assert list(told.values())[2:] == [MASKED, MASKED]
    assert end["token"] == "<|im_end|>"
    # After "yes" and "no way" nothing else is allowed; after "no" there may be " way".
    assert (end["logprob"] == 0) == (answer["choices"][0]["message"]["content"] != "no")


@pytest.mark.anyio
async def test_guided_choice_is_ignored():
    async with serving() as (_, session):
        plain = await post(session, PATHS[0], CHAT)
        guided = await post(session, PATHS[0], CHAT | {"guided_choice": LABELS})
    assert guided[0] == 200
    assert guided[1]["choices"] == plain[1]["choices"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"choice": []}, "Choice '[]' cannot be an empty list"),
        ({}, "You must use one kind of structured outputs constraint but none are specified"),
        ({"choice": ["a"], "regex": "a"}, "You can only use one kind of constraints for structured outputs"),
        ({"regex": "a"}, "'choice' alone"),
        ({"choice": "a"}, "1 validation error"),
    ],
)
async def test_a_choice_that_makes_no_sense_is_refused(asked, message):
    async with serving() as (_, session):
        for path, body in zip(PATHS, (CHAT, COMPLETION), strict=True):
            status, answer = await post(session, path, body | {"structured_outputs": asked})
            assert status == 400
            assert message in answer["error"]["message"]


def test_every_label_of_a_few_is_drawn_for_some_prompt():
    tries = tokenized(["positive", "negative", "neutral"])
    contexts = (begin(0, f"review {number}".encode()) for number in itertools.count())
    drawn = {choose(context, tries, greedy=True, salt=0) for context in itertools.islice(contexts, 200)}
    assert drawn == set(tries)
