"""How probable each label is, from an answer's own log-probabilities and by scoring."""

import math

import pytest

from loadgen.client import LabelError, Token, TokenLogprob, VLLMClient
from loadgen.client.label_logprobs import from_answer
from tests.client.scripted import END, END_TEXT, Vllm, answer, letters, scripted

ENDS = Token(END_TEXT, END)
NO, WAY, YES = 10, 11, 12
LABELS = {"no": (NO,), "no way": (NO, WAY), "yes": (YES,)}


def place(token: int | None, logprob: float, **tops: float) -> TokenLogprob:
    """A token of an answer; `tops` are told by text."""
    likeliest = tuple(TokenLogprob(Token(END_TEXT if text == "end" else text), each) for text, each in tops.items())
    return TokenLogprob(Token("", token), logprob, likeliest)


def test_the_answered_label_is_as_probable_as_its_tokens_and_its_end():
    found = from_answer([place(NO, -1.0), place(END, -0.5)], LABELS, ENDS)
    assert found == {"no": -1.5}


def test_a_label_that_begins_the_answer_is_known_where_its_end_is_among_the_likeliest():
    answered = [place(NO, -1.0), place(WAY, -0.25, end=-2.0), place(END, -0.5)]
    # "no" leaves the answer "no way" at its end: -1 - 2; the answer itself is -1 - 0.25 - 0.5.
    assert from_answer(answered, LABELS, ENDS) == {"no": -3.0, "no way": -1.75}


def test_a_label_whose_end_is_not_among_the_likeliest_is_not_known():
    assert set(from_answer([place(NO, -1.0), place(WAY, -0.25), place(END, -0.5)], LABELS, ENDS)) == {"no way"}


def test_a_label_that_goes_on_after_the_answer_s_end_is_not_known():
    assert "no way" not in from_answer([place(NO, -1.0, yes=-2.0), place(END, -0.5)], LABELS, ENDS)


def test_an_answer_without_ids_tells_nothing():
    assert from_answer([place(None, -1.0), place(None, -0.5)], LABELS, ENDS) == {}


def scoring_requests(server):
    return [seen.json for seen in server.seen if seen.path == "/v1/completions"]


@pytest.mark.anyio
async def test_masked_log_probabilities_are_not_the_model_s_so_that_each_label_is_scored():
    async with scripted(Vllm(masks=True, nats=4.0).respond) as server, VLLMClient(base_url=server.url) as client:
        response = await client.achat("is it?", constrain_labels=["yes", "no"], logprobs=True)
    # Every letter is -4, and so is the end: 3 + 1 and 2 + 1 tokens.
    assert response.label_logprobs == {"yes": -16.0, "no": -12.0}
    # What is sent to be scored is the rendered prompt, the label, and the end.
    prompt = [*map(ord, "<user>is it?<assistant>")]
    assert sorted(body["prompt"] for body in scoring_requests(server)) == sorted(
        [[*prompt, *map(ord, label), END] for label in ("yes", "no")]
    )


@pytest.mark.anyio
async def test_the_model_s_own_log_probabilities_spare_the_score_of_the_answered_label():
    async with scripted(Vllm(masks=False, nats=4.0).respond) as server, VLLMClient(base_url=server.url) as client:
        response = await client.achat("is it?", constrain_labels=["yes", "no"], logprobs=True)
        assert response.label_logprobs == {"yes": -16.0, "no": -12.0}
        assert len(scoring_requests(server)) == 1
        exact = await client.achat("is it?", constrain_labels=["yes", "no"], label_logprobs="exact")
        assert exact.label_logprobs == response.label_logprobs
        assert len(scoring_requests(server)) == 3


@pytest.mark.anyio
async def test_labels_of_which_one_begins_another_sum_to_at_most_one():
    async with scripted(Vllm(nats=0.7).respond) as server, VLLMClient(base_url=server.url) as client:
        response = await client.achat("is it?", constrain_labels=["a", "ab", "abc"], label_logprobs="exact")
    # With 0.7 nats a token, about 1/2: 1/4 + 1/8 + 1/16, a little less.
    assert sum(map(math.exp, response.label_logprobs.values())) == pytest.approx(
        math.exp(-1.4) + math.exp(-2.1) + math.exp(-2.8)
    )


@pytest.mark.anyio
async def test_labels_are_scored_after_the_conversation_as_this_call_has_it_rendered():
    kwargs = {"chat_template_kwargs": {"enable_thinking": False}}
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url) as client:
        await client.achat("is it?", constrain_labels=["a", "b"], label_logprobs="exact", extra_body=kwargs)
    (rendering,) = [seen.json for seen in server.seen if seen.path == "/tokenize" and "messages" in seen.json]
    assert rendering["chat_template_kwargs"] == kwargs["chat_template_kwargs"]


@pytest.mark.anyio
async def test_a_server_that_does_not_tell_the_end_of_an_answer_has_no_label_log_probabilities():
    def respond(path, body):
        said = Vllm().respond(path, body)
        if path == "/v1/chat/completions":
            content = said["choices"][0]["message"]["content"]
            return answer(content, logprobs={"content": letters(content, 0.0)["content"][:-1]})
        return said

    async with scripted(respond) as server, VLLMClient(base_url=server.url) as client:
        plain = await client.achat("is it?", constrain_labels=["yes", "no"])
        assert (plain.label, plain.label_logprobs, plain.label_logprobs_failure) == ("yes", None, None)
        asked = await client.achat("is it?", constrain_labels=["yes", "no"], logprobs=True)
    assert (asked.label, asked.label_logprobs) == ("yes", None)
    assert isinstance(asked.label_logprobs_failure, LabelError)
    assert "the token that ends an answer" in asked.label_logprobs_failure.words


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/completions"])
async def test_an_answer_that_has_come_is_kept_where_scoring_fails(path):
    def respond(asked, body):
        return None if asked == path else Vllm().respond(asked, body)

    async with scripted(respond) as server, VLLMClient(base_url=server.url) as client:
        response = await client.achat("is it?", constrain_labels=["yes", "no"], logprobs=True)
    assert (response.label, response.label_logprobs) == ("yes", None)
    failure = response.label_logprobs_failure
    assert failure is not None
    assert (failure.kind, failure.status, path in failure.asked) == ("http_404", 404, True)


def without_trial(server):
    """The requests for one answer: without those that are made once for a server."""
    paths = [seen.path for seen in server.seen if seen.path not in ("/v1/models", "/version")]
    paths.remove("/v1/chat/completions")
    return {path: paths.count(path) for path in set(paths)}


FIFTY = [f"label {number}" for number in range(50)]


@pytest.mark.anyio
async def test_the_prompt_of_many_labels_is_tokenized_once():
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url) as client:
        await client.achat("is it?", constrain_labels=FIFTY, logprobs=True)
    # The conversation and each label behind it; and each score.
    assert without_trial(server) == {
        "/v1/chat/completions": 1,
        "/tokenize": 1 + 50,
        "/detokenize": 1,
        "/v1/completions": 50,
    }


@pytest.mark.anyio
async def test_a_prompt_that_does_not_come_back_from_its_text_is_tokenized_once_more_and_not_for_each_label():
    def respond(path, body):
        return {"prompt": "something else"} if path == "/detokenize" else Vllm().respond(path, body)

    async with scripted(respond) as server, VLLMClient(base_url=server.url) as client:
        response = await client.achat("is it?", constrain_labels=FIFTY, logprobs=True)
    assert response.label_logprobs["label 7"] == -4.0 * (len("label 7") + 1)
    # The conversation, each label behind it and alone, and the prompt's text.
    assert without_trial(server)["/tokenize"] == 1 + 2 * 50 + 1
    assert sum(without_trial(server).values()) == 1 + 1 + (1 + 2 * 50 + 1) + 50


@pytest.mark.anyio
@pytest.mark.parametrize("labels", [None, ["yes", "no"]])
async def test_labels_whose_log_probabilities_nobody_wants_cost_one_request(labels):
    asked = {"logprobs": True, "label_logprobs": "none"}
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url) as client:
        await client.asupports_bare_label_constraint()
        response = await client.achat("is it?", constrain_labels=labels, **asked)
    assert without_trial(server) == {"/v1/chat/completions": 1}
    assert response.logprobs is not None
    assert (response.label_logprobs, response.label_logprobs_failure) == (None, None)


@pytest.mark.anyio
async def test_label_log_probabilities_need_labels():
    with pytest.raises(ValueError, match="needs constrain_labels"):
        await VLLMClient(base_url="http://127.0.0.1:1").achat("is it?", label_logprobs="exact")
