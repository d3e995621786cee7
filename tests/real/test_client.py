"""The client against a real vLLM: its labels, its scores and its tokens, beside what transformers says of the model."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from bench_serve import VllmServer
from conftest import API_KEY

from loadgen.client import ChatMessage, ChatResponse, RequestError, VLLMClient

# The first test waits for the server, and the first request with log-probabilities for a compilation.
pytestmark = [pytest.mark.timeout(300), pytest.mark.anyio]

LABELS = ["yes", "no", "maybe"]
PREFIXES = ["no", "no way", "no way out"]
QUESTION = "Is the sky blue? Answer yes, no or maybe."
TOLERANCE = 1e-3
"""Nats, between two computations in single precision."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def client(vllm_server: VllmServer) -> VLLMClient:
    return VLLMClient(base_url=vllm_server.url)


@pytest.fixture(scope="module")
def tokenizer(vllm_server: VllmServer) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(vllm_server.model_path)


@pytest.fixture(scope="module")
def reference(vllm_server: VllmServer) -> Callable[[Sequence[int], int], list[float]]:
    """The log-probabilities that transformers computes: of each of some ids, from the place `start` on."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(vllm_server.model_path, dtype=torch.float32).eval()

    def logprobs(ids: Sequence[int], start: int) -> list[float]:
        with torch.no_grad():
            told = torch.log_softmax(model(torch.tensor([list(ids)])).logits[0], dim=-1)
        # The place before a token tells its probability.
        return [float(told[place - 1, ids[place]]) for place in range(start, len(ids))]

    return logprobs


def rendered(tokenizer: Any, question: str) -> list[int]:
    """The ids of a chat of one user message, up to where the answer begins."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


# --- choice -----------------------------------------------------------------------------------------------------------


async def test_all_of_200_choices_at_temperature_1_are_labels(client):
    answers: list[ChatResponse] = []
    limit = anyio.CapacityLimiter(16)

    async def choose(number: int) -> None:
        async with limit:
            answers.append(await client.achat(f"{QUESTION} {number}", constrain_labels=LABELS, temperature=1.0))

    async with client, anyio.create_task_group() as tasks:
        for number in range(200):
            tasks.start_soon(choose, number)
    assert len(answers) == 200
    assert {answer.content for answer in answers} <= set(LABELS)
    assert all(answer.content == answer.label for answer in answers)
    # A model of random weights says none of them by itself, but at this temperature more than one where it must.
    assert len({answer.label for answer in answers}) > 1


async def test_the_former_field_alone_is_ignored_and_beside_the_current_one_does_no_harm(client):
    former = {"guided_choice": LABELS}
    free = await client.achat(QUESTION, temperature=0.0, max_tokens=8, extra_body=former)
    assert free.label not in LABELS
    choice = await client.achat(QUESTION, temperature=1.0, constrain_labels=LABELS, extra_body=former)
    assert choice.label in LABELS


async def test_the_server_is_found_to_constrain(client):
    assert await client.asupports_bare_label_constraint()


async def test_a_label_that_max_tokens_cuts_off_is_an_error(client):
    with pytest.raises(RequestError, match="cut off by max_tokens") as caught:
        await client.achat(QUESTION, constrain_labels=["incomprehensibilities"], max_tokens=1)
    assert caught.value.kind == "not_a_label"


async def test_the_same_question_has_the_same_label_each_time(client):
    # At the server's own default of 1 the model of random weights says more than one.
    async with client:
        answers = {(await client.achat(QUESTION, constrain_labels=LABELS)).label for _ in range(10)}
        drawn = {(await client.achat(QUESTION, constrain_labels=LABELS, temperature=1.0)).label for _ in range(30)}
    assert len(answers) == 1
    assert len(drawn) > 1


@pytest.mark.parametrize("labels", [LABELS, PREFIXES], ids=["apart", "prefixes"])
async def test_label_log_probabilities_are_those_of_transformers(client, tokenizer, reference, labels):
    answer = await client.achat(QUESTION, constrain_labels=labels, logprobs=True, temperature=0.0)
    exact = await client.achat(QUESTION, constrain_labels=labels, label_logprobs="exact")
    prompt = rendered(tokenizer, QUESTION)
    for label in labels:
        path = [*tokenizer.encode(label, add_special_tokens=False), tokenizer.eos_token_id]
        expected = sum(reference([*prompt, *path], len(prompt)))
        assert exact.label_logprobs[label] == pytest.approx(expected, abs=TOLERANCE)
        assert answer.label_logprobs[label] == pytest.approx(exact.label_logprobs[label], abs=TOLERANCE)


@pytest.mark.parametrize("labels", [LABELS, PREFIXES], ids=["apart", "prefixes"])
async def test_the_probabilities_of_labels_sum_to_at_most_one(client, labels):
    answer = await client.achat(QUESTION, constrain_labels=labels, logprobs=True)
    assert list(answer.label_logprobs) == labels
    assert 0 < sum(map(math.exp, answer.label_logprobs.values())) <= 1


async def test_this_server_tells_the_log_probabilities_of_a_choice_after_the_constraint(client):
    # Where only one label is allowed most of its tokens are certain; the model itself would hardly say it.
    answer = await client.achat(QUESTION, constrain_labels=["qzxj"], logprobs=True, temperature=0.0)
    assert sum(each.logprob for each in answer.logprobs) > -6
    assert answer.label_logprobs["qzxj"] < -20


# --- score ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompt", "completion"), [("The answer is", " yes, it is."), ("def f(x):\n", "    return x")])
async def test_a_score_is_that_of_transformers_token_by_token(client, tokenizer, reference, prompt, completion):
    score = await client.ascore(prompt, completion)
    before, whole = tokenizer.encode(prompt), tokenizer.encode(prompt + completion)
    assert score.merged is False
    assert [each.token.id for each in score.logprobs] == whole[len(before) :]
    expected = reference(whole, len(before))
    assert [each.logprob for each in score.logprobs] == pytest.approx(expected, abs=TOLERANCE)
    assert score.sum == pytest.approx(sum(expected), abs=TOLERANCE * len(expected))
    assert "".join(each.token.text for each in score.logprobs) == completion


async def test_a_score_after_messages_is_after_the_server_s_own_template(client, tokenizer, reference):
    score = await client.ascore([ChatMessage("user", QUESTION)], "yes, it is", top_logprobs=3)
    prompt = rendered(tokenizer, QUESTION)
    ids = [*prompt, *tokenizer.encode("yes, it is", add_special_tokens=False)]
    assert score.merged is False
    expected = reference(ids, len(prompt))
    assert [each.logprob for each in score.logprobs] == pytest.approx(expected, abs=TOLERANCE)
    assert {len(each.top_logprobs) for each in score.logprobs} == {3}


async def test_a_score_takes_the_fields_of_a_chat_that_has_the_same_prompt(client, tokenizer):
    body = {"cache_salt": "salt", "documents": [{"text": "a"}], "chat_template_kwargs": {"x": 1}, "min_tokens": 5}
    form = {"response_format": {"type": "json_object"}}
    score = await client.ascore(messages=QUESTION, completion="yes", extra_body=body | form)
    plain = await client.ascore(messages=QUESTION, completion="yes")
    assert score.sum == pytest.approx(plain.sum, abs=TOLERANCE)
    chat = await client.achat(QUESTION, max_tokens=5, extra_body=body)
    assert chat.usage.prompt_tokens == len(rendered(tokenizer, QUESTION))


async def test_a_completion_that_merges_with_its_prompt_is_flagged_and_scored_as_sent(client, tokenizer, reference):
    # "way" is one token and "w" another: in one text nothing would be cut there.
    prompt, completion = "There is no w", "ay out"
    before, after = tokenizer.encode(prompt), tokenizer.encode(completion, add_special_tokens=False)
    assert tokenizer.encode(prompt + completion) != before + after
    score = await client.ascore(prompt, completion)
    assert score.merged is True
    assert [each.token.id for each in score.logprobs] == after
    expected = reference(before + after, len(before))
    assert [each.logprob for each in score.logprobs] == pytest.approx(expected, abs=TOLERANCE)


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("context", "text"), [("hello", " world"), ("a = 1\n", "b = 2"), ("", "hello"), ("Zeit", "!")])
async def test_a_text_after_a_context_has_the_difference_of_both_lists(client, tokenizer, context, text):
    added = await client.atokenize(text, context=context)
    before, both = tokenizer.encode(context), tokenizer.encode(context + text)
    assert both[: len(before)] == before  # no merge crosses
    assert list(added.ids) == both[len(before) :]
    assert added.merged is False
    assert "".join(token.text for token in added.tokens) == text


async def test_a_merge_across_the_border_of_a_context_is_told(client, tokenizer):
    added = await client.atokenize("ay out", context="There is no w")
    before, both = tokenizer.encode("There is no w"), tokenizer.encode("There is no way out")
    assert added.merged
    kept = len(before) - len(added.replaced)
    assert before[:kept] + list(added.ids) == both


async def test_ids_give_their_text_back(client, tokenizer):
    text = "héllo wörld, 日本 🙂\n"
    tokenized = await client.atokenize(text)
    assert list(tokenized.ids) == tokenizer.encode(text)
    assert await client.adetokenize(tokenized.ids) == text


# --- both ways --------------------------------------------------------------------------------------------------------


async def test_calls_that_block_give_the_same(client):
    choice = {"constrain_labels": LABELS, "label_logprobs": "exact", "temperature": 0.0}
    async with client:
        label = await client.achat(QUESTION, **choice)
        score = await client.ascore("The answer is", " yes")
        tokenized = await client.atokenize("world", "hello ")
        models = await client.amodels()
    with client:  # inside a running loop
        assert client.supports_bare_label_constraint
        same = client.chat(QUESTION, **choice)
        assert (same.label, same.usage) == (label.label, label.usage)
        assert same.label_logprobs == pytest.approx(label.label_logprobs, abs=TOLERANCE)
        again = client.score("The answer is", " yes")
        assert [each.token for each in again.logprobs] == [each.token for each in score.logprobs]
        assert again.sum == pytest.approx(score.sum, abs=TOLERANCE)
        assert client.tokenize("world", "hello ") == tokenized
        assert client.detokenize(tokenized.ids) == await client.adetokenize(tokenized.ids)
        assert client.models() == models


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "status", "words"),
    [
        (lambda client, url: VLLMClient("none", url).achat("hi"), 404, "`none` does not exist"),
        (lambda client, url: client.achat("hello " * 2000), 400, "maximum context length"),
        (lambda client, url: client.achat("hi", max_tokens=0), 400, "max_tokens"),
        (lambda client, url: client.achat("hi", temperature=-1.0), 400, "temperature"),
        (lambda client, url: client.achat("hi", logprobs=True, top_logprobs=999), 400, "logprobs"),
        (lambda client, url: client.adetokenize([-1]), 400, "greater than or equal to 0"),
        (lambda client, url: client.aembed("hi"), 404, "Not Found"),
    ],
    ids=["no such model", "too long", "no tokens", "no such temperature", "too many", "no token id", "no embeddings"],
)
async def test_a_refusal_is_an_error_in_the_server_s_words(client, vllm_server, call, status, words):
    with pytest.raises(RequestError) as caught:
        await call(client, vllm_server.url)
    assert (caught.value.kind, caught.value.status) == (f"http_{status}", status)
    assert words in caught.value.words


async def test_a_wrong_key_is_told(embedding_server):
    with pytest.raises(RequestError, match="Unauthorized") as caught:
        await VLLMClient(base_url=embedding_server.url, api_key="sk-wrong").aembed("hi")
    assert (caught.value.kind, caught.value.status) == ("http_401", 401)


async def test_a_server_of_a_pooling_model_gives_a_vector_for_each_text(embedding_server):
    client = VLLMClient(base_url=embedding_server.url, api_key=API_KEY)
    response = await client.aembed(["hello world", "something else", "hello world"])
    first, other, again = response.vectors
    assert len(first) == len(other) > 1
    assert first == pytest.approx(again, abs=TOLERANCE)
    assert first != pytest.approx(other, abs=TOLERANCE)
    assert response.usage.prompt_tokens > 3
    with pytest.raises(RequestError) as caught:
        await client.achat("hi")
    assert caught.value.kind.startswith("http_4")
