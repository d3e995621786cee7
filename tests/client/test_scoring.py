"""The score of a completion: which ids are sent, where the border lies, and what of the answer is read."""

import pytest

from loadgen.client import ChatMessage, Image, RequestError, Text, VLLMClient
from tests.client.scripted import Vllm, scripted

pytestmark = pytest.mark.anyio

PAIRS = {"ab": 1, "bc": 2}
"""What the merging tokenizer has besides letters."""


def merged_ids(text: str) -> list[int]:
    """A tokenizer that takes `ab` and `bc` as one token where it meets them first."""
    ids: list[int] = []
    at = 0
    while at < len(text):
        pair = PAIRS.get(text[at : at + 2])
        ids.append(ord(text[at]) if pair is None else pair)
        at += 1 if pair is None else 2
    return ids


class Merging(Vllm):
    """A scripted server with that tokenizer; a plain text begins with the special token 99."""

    def _tokenize(self, body):
        rendered = super()._tokenize(body)
        text = body.get("prompt") or "".join(map(chr, rendered["tokens"]))
        special = [99] if body.get("add_special_tokens", "messages" not in body) else []
        ids = special + merged_ids(text)
        return {"count": len(ids), "tokens": ids}


def lists(ids, **more):
    """An answer of parallel lists alone, as an older server gives it, one generated token at its end."""
    count = len(ids)
    logprobs = {
        "tokens": [f"t{token}" for token in ids] + ["generated"],
        "token_logprobs": [None, *(-float(n) for n in range(1, count + 1))],
        "top_logprobs": [None, *({"x": -0.5, f"t{n}": -float(n)} for n in range(1, count + 1))],
        "text_offset": list(range(count + 1)),
    }
    return {"choices": [{"text": "", "logprobs": logprobs}]} | more


def sent(server) -> dict:
    (body,) = [seen.json for seen in server.seen if seen.path == "/v1/completions"]
    return body


async def test_a_text_is_scored_by_ids_after_the_ids_of_its_prompt():
    async with scripted(Merging(nats=2.0).respond) as server, VLLMClient(base_url=server.url) as client:
        score = await client.ascore("xy", "ab!")
    assert sent(server)["prompt"] == [99, ord("x"), ord("y"), 1, ord("!")]
    assert sent(server)["echo"] is True
    assert [each.token.id for each in score.logprobs] == [1, ord("!")]
    assert (score.completion, score.merged, score.sum, score.mean) == ("ab!", False, -4.0, -2.0)


async def test_a_completion_that_merges_with_its_prompt_is_scored_apart_and_told():
    async with scripted(Merging().respond) as server, VLLMClient(base_url=server.url) as client:
        score = await client.ascore("xa", "bc")
    # In one the text "xabc" is x, ab, c; apart it is x, a and bc.
    assert sent(server)["prompt"] == [99, ord("x"), ord("a"), 2]
    assert score.merged is True
    assert [each.token.id for each in score.logprobs] == [2]


async def test_messages_are_rendered_by_the_server_and_its_words_decide_the_border():
    messages = [ChatMessage("user", "hi")]
    theirs = {"chat_template_kwargs": {"enable_thinking": False}, "seed": 1}
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url, extra_body=theirs) as client:
        score = await client.ascore(messages, "ok")
    rendering = next(seen.json for seen in server.seen if seen.path == "/tokenize")
    assert rendering == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert sent(server)["prompt"] == [*map(ord, "<user>hi<assistant>ok")]
    assert (score.merged, len(score.logprobs)) == (False, 2)


@pytest.mark.parametrize("given", [[ChatMessage("user", "hi")], "hi"], ids=["messages", "text"])
async def test_messages_may_be_given_by_their_name(given):
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url) as client:
        score = await client.ascore(messages=given, completion="ok")
        assert sent(server)["prompt"] == [*map(ord, "<user>hi<assistant>ok")]
        assert len(score.logprobs) == 2
        for both in ({}, {"prompt": "a", "messages": given}):
            with pytest.raises(ValueError, match="either a prompt or messages"):
                await client.ascore(completion="ok", **both)


async def test_fields_of_the_body_reach_what_they_concern_the_rendering_or_the_score():
    theirs = {"priority": 1, "cache_salt": "s", "chat_template_kwargs": {"enable_thinking": False}, "min_tokens": 9}
    call = {"priority": 2, "documents": [{"text": "d"}], "response_format": {"type": "json_object"}, "stop": ["x"]}
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url, extra_body=theirs) as client:
        await client.ascore([ChatMessage("user", "hi")], "ok", extra_body=call)
    rendering = next(seen.json for seen in server.seen if seen.path == "/tokenize")
    # `/tokenize` takes documents among the template's values alone.
    assert rendering["chat_template_kwargs"] == {"enable_thinking": False, "documents": [{"text": "d"}]}
    scoring = sent(server)
    del scoring["prompt"]
    assert scoring == {
        "model": "tiny",
        "priority": 2,
        "cache_salt": "s",
        "max_tokens": 1,
        "temperature": 0.0,
        "echo": True,
        "logprobs": 0,
    }


async def test_fields_of_a_choice_reach_the_scores_of_its_labels():
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url) as client:
        call = {"label_logprobs": "exact", "extra_body": {"priority": 2}}
        await client.achat("is it?", constrain_labels=["yes", "no"], **call)
    scores = [seen.json for seen in server.seen if seen.path == "/v1/completions"]
    assert [body.get("priority") for body in scores] == [2, 2]


async def test_a_completion_without_a_token_of_its_own_has_no_score():
    def respond(path, body):
        return {"count": 1, "tokens": [5]} if path == "/tokenize" else Vllm().respond(path, body)

    async with scripted(respond) as server, VLLMClient(base_url=server.url) as client:
        with pytest.raises(ValueError, match="adds no token"):
            await client.ascore("a", " ")


async def test_where_a_prompt_s_tokens_do_not_come_back_from_its_text_a_merge_cannot_be_told():
    def respond(path, body):
        return {"prompt": "something else"} if path == "/detokenize" else Vllm().respond(path, body)

    async with scripted(respond) as server, VLLMClient(base_url=server.url) as client:
        score = await client.ascore([ChatMessage("user", "hi")], "ok")
    assert sent(server)["prompt"] == [*map(ord, "<user>hi<assistant>ok")]
    assert score.merged is None


async def test_the_parallel_lists_are_read_where_nothing_goes_by_id_and_the_generated_token_is_left_out():
    def respond(path, body):
        return lists(body["prompt"]) if path == "/v1/completions" else Vllm().respond(path, body)

    async with scripted(respond) as server, VLLMClient(base_url=server.url) as client:
        score = await client.ascore("ab", "cd", top_logprobs=2)
    # The prompt's two tokens come first: places 2 and 3 are the completion's.
    assert [each.logprob for each in score.logprobs] == [-2.0, -3.0]
    assert [each.token.id for each in score.logprobs] == [ord("c"), ord("d")]
    assert [(top.token.text, top.logprob) for top in score.logprobs[0].top_logprobs] == [("x", -0.5), ("t2", -2.0)]


async def test_the_likeliest_tokens_go_by_id_as_many_as_asked_for():
    def respond(path, body):
        if path != "/v1/completions":
            return Vllm().respond(path, body)
        entry = {"7": {"logprob": -0.1, "decoded_token": "z"}, "99": {"logprob": -3.0, "decoded_token": "c"}}
        return {"choices": [{"prompt_logprobs": [None, entry]}]}

    async with scripted(respond) as server, VLLMClient(base_url=server.url) as client:
        (only,) = (await client.ascore("a", "c", top_logprobs=1)).logprobs
    assert (only.token.text, only.token.id, only.logprob) == ("c", 99, -3.0)
    assert [(top.token.text, top.token.id) for top in only.top_logprobs] == [("z", 7)]


@pytest.mark.parametrize(
    "choice",
    [
        {"text": "a"},
        {"prompt_logprobs": [None]},
        {"prompt_logprobs": [None, {"1": {"logprob": -1.0}}]},
        {"logprobs": {"tokens": ["a"], "token_logprobs": [None]}},
        {"logprobs": {"tokens": ["a", "c"], "token_logprobs": [None, None]}},
    ],
    ids=["none at all", "too few", "of another token", "lists too short", "a null"],
)
async def test_an_answer_without_the_score_is_an_error(choice):
    def respond(path, body):
        return {"choices": [choice]} if path == "/v1/completions" else Vllm().respond(path, body)

    async with scripted(respond) as server, VLLMClient(base_url=server.url) as client:
        with pytest.raises(RequestError, match="no log-probabilities of the 1 tokens") as caught:
            await client.ascore("a", "c")
    assert caught.value.kind == "protocol"


@pytest.mark.parametrize(
    ("prompt", "completion", "words"),
    [
        ("a", "", "no completion"),
        ("", "a", "no token"),
        ([], "a", "no messages"),
        ([ChatMessage("user", (Image(b"png"), Text("what?")))], "a", "only messages of text"),
    ],
)
async def test_what_has_no_score_is_refused(prompt, completion, words):
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url) as client:
        with pytest.raises(ValueError, match=words):
            await client.ascore(prompt, completion)
