"""Log-probabilities of chats, completions and prompts: their shapes, and that they all say the same."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sim.model import tokenizer
from loadgen.sim.model.language import begin, log_probability
from loadgen.sim.model.logprobs import Scorer, score_prompt
from tests.sim.api.serving import CHAT, COMPLETION, LENGTH, data_events, post, serving

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@given(st.text(alphabet="ab é\n", min_size=1), st.text(alphabet="ab é\n"), st.integers(0, 20))
def test_a_text_scored_in_portions_or_as_part_of_a_prompt_scores_the_same(prompt, text, top):
    before, ids, more = begin(3, b""), tokenizer.encode(prompt), tokenizer.encode(text)
    whole = score_prompt(before, [*ids, *more], top)
    scorer = Scorer(begin(3, prompt.encode()), top)
    portions = [entry for token in more for entry in scorer.take([token])]
    assert whole[len(ids) :] == portions
    assert whole[0] is None
    for entry in portions:
        assert entry.candidates[0][:2] == (entry.token, entry.logprob)
        others = [other.logprob for other in entry.candidates[1:]]
        assert others == sorted(others, reverse=True)
        assert sum(math.exp(other.logprob) for other in entry.candidates) <= 1
        assert top <= len(entry.candidates) <= top + 1 or (top, len(entry.candidates)) == (0, 1)


@pytest.mark.anyio
async def test_a_chats_log_probabilities_tell_each_token_and_the_likeliest_ones():
    async with serving() as (_, session):
        _, answer = await post(session, CHATS, CHAT | LENGTH | {"logprobs": True, "top_logprobs": 3})
    choice = answer["choices"][0]
    content = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == choice["message"]["content"]
    assert len(content) == 5
    for entry in content:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        top = entry["top_logprobs"]
        assert [set(one) for one in top] == [{"token", "logprob", "bytes"}] * 3
        assert top[0] == {name: entry[name] for name in ("token", "logprob", "bytes")}
        assert [one["logprob"] for one in top] == sorted((one["logprob"] for one in top), reverse=True)
        assert sum(math.exp(one["logprob"]) for one in top) <= 1


@pytest.mark.anyio
async def test_without_top_logprobs_only_the_tokens_own_are_told():
    async with serving() as (_, session):
        _, answer = await post(session, CHATS, CHAT | LENGTH | {"logprobs": True})
        _, completion = await post(session, COMPLETIONS, COMPLETION | LENGTH | {"logprobs": 0})
    assert [entry["top_logprobs"] for entry in answer["choices"][0]["logprobs"]["content"]] == [[]] * 5
    logprobs = completion["choices"][0]["logprobs"]
    told = [dict([pair]) for pair in zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)]
    assert logprobs["top_logprobs"] == told


@pytest.mark.anyio
async def test_a_completions_log_probabilities_are_parallel_lists():
    async with serving() as (_, session):
        _, answer = await post(session, COMPLETIONS, COMPLETION | LENGTH | {"logprobs": 2})
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]
    assert {name: len(values) for name, values in logprobs.items()} == {
        "text_offset": 5,
        "token_logprobs": 5,
        "tokens": 5,
        "top_logprobs": 5,
    }
    assert "".join(logprobs["tokens"]) == choice["text"]
    for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
        assert choice["text"][offset:].startswith(token)
    for token, own, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert (len(top), top[token]) == (2, own)


@pytest.mark.anyio
@pytest.mark.parametrize("constraint", [LENGTH, {"structured_outputs": {"choice": ["certainly", "not at all"]}}])
async def test_a_stream_tells_the_same_log_probabilities_chunk_by_chunk(constraint):
    chat = CHAT | {"logprobs": True, "top_logprobs": 2} | constraint
    completion = COMPLETION | {"logprobs": 2} | constraint
    async with serving() as (_, session):
        whole_chat = (await post(session, CHATS, chat))[1]["choices"][0]["logprobs"]["content"]
        whole_completion = (await post(session, COMPLETIONS, completion))[1]["choices"][0]["logprobs"]
        role, *chat_chunks = [event["choices"][0] for event in await data_events(session, CHATS, chat)]
        chunks = [event["choices"][0]["logprobs"] for event in await data_events(session, COMPLETIONS, completion)]
    assert role["logprobs"] is None
    assert [entry for chunk in chat_chunks for entry in chunk["logprobs"]["content"]] == whole_chat
    for name, values in whole_completion.items():
        assert [value for chunk in chunks for value in chunk[name]] == values


@pytest.mark.anyio
@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_an_echo_scores_the_prompt_and_null_stands_for_its_first_token(max_tokens):
    body = COMPLETION | LENGTH | {"echo": True, "logprobs": 1, "max_tokens": max_tokens, "prompt": "see the sea"}
    async with serving() as (_, session):
        _, answer = await post(session, COMPLETIONS, body)
        streamed = await data_events(session, COMPLETIONS, body)
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"].startswith("see the sea")
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert len(logprobs["tokens"]) == 3 + max_tokens
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    for place, own in enumerate(logprobs["token_logprobs"][1:3], 1):
        before = "".join(logprobs["tokens"][:place])
        (token,) = tokenizer.encode(logprobs["tokens"][place])
        assert own == log_probability(begin(0, before.encode()), token)
    # vLLM generates a token for max_tokens = 0 too, and keeps it to itself.
    assert answer["usage"]["completion_tokens"] == max(1, max_tokens)
    assert choice["finish_reason"] == "length"
    chunks = [event["choices"][0] for event in streamed]
    assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
    for name, values in logprobs.items():
        assert [value for chunk in chunks for value in chunk["logprobs"][name]] == values
    assert chunks[0]["prompt_token_ids"] == tokenizer.encode("see the sea")


@pytest.mark.anyio
async def test_an_echo_without_log_probabilities_is_the_prompt_and_the_text():
    async with serving() as (_, session):
        _, plain = await post(session, COMPLETIONS, COMPLETION | LENGTH)
        _, echoed = await post(session, COMPLETIONS, COMPLETION | LENGTH | {"echo": True})
        _, prompt = await post(session, COMPLETIONS, COMPLETION | {"echo": True, "max_tokens": 0})
    assert echoed["choices"][0]["text"] == "hello there" + plain["choices"][0]["text"]
    assert echoed["choices"][0]["logprobs"] is None
    assert prompt["choices"][0]["text"] == "hello there"


@pytest.mark.anyio
async def test_scoring_an_answer_equals_what_generating_it_said():
    async with serving() as (_, session):
        _, tokens = await post(session, "/tokenize", {"messages": CHAT["messages"]})
        ids = tokens["tokens"]
        _, chat = await post(session, CHATS, CHAT | LENGTH | {"logprobs": True, "return_token_ids": True})
        _, completion = await post(session, COMPLETIONS, COMPLETION | LENGTH | {"prompt": ids, "logprobs": 0})
        said = chat["choices"][0]["token_ids"]
        scored = {"prompt": ids + said, "echo": True, "logprobs": 0, "max_tokens": 0}
        _, score = await post(session, COMPLETIONS, scored)
    generated = [entry["logprob"] for entry in chat["choices"][0]["logprobs"]["content"]]
    assert score["choices"][0]["logprobs"]["token_logprobs"][len(ids) :] == generated
    assert completion["choices"][0]["logprobs"]["token_logprobs"] == generated
    by_id = score["choices"][0]["prompt_logprobs"][len(ids) :]
    assert [entry[str(token)]["logprob"] for entry, token in zip(by_id, said, strict=True)] == generated


@pytest.mark.anyio
async def test_a_prompt_of_ids_gets_the_answer_of_its_text():
    async with serving() as (_, session):
        _, text = await post(session, COMPLETIONS, COMPLETION)
        _, ids = await post(session, COMPLETIONS, COMPLETION | {"prompt": tokenizer.encode("hello there")})
    assert text["choices"] == ids["choices"]


@pytest.mark.anyio
@pytest.mark.parametrize(("path", "body"), [(CHATS, CHAT), (COMPLETIONS, COMPLETION)])
async def test_prompt_logprobs_tell_each_prompt_token_by_id_with_its_rank(path, body):
    async with serving() as (_, session):
        _, answer = await post(session, path, body | {"prompt_logprobs": 2, "return_token_ids": True})
    of_prompt = answer if path == CHATS else answer["choices"][0]
    ids = of_prompt["prompt_token_ids"]
    first, *others = of_prompt["prompt_logprobs"]
    assert first is None
    assert len(others) == len(ids) - 1
    for token, told in zip(ids[1:], others, strict=True):
        assert next(iter(told)) == str(token)
        assert 2 <= len(told) <= 3
        assert {1, 2} <= {one["rank"] for one in told.values()}
        assert told[str(token)]["decoded_token"] == tokenizer.decode([token])


@pytest.mark.anyio
async def test_tokens_are_written_as_ids_when_asked_for():
    body = COMPLETION | LENGTH | {"logprobs": 0, "return_tokens_as_token_ids": True, "return_token_ids": True}
    async with serving() as (_, session):
        _, answer = await post(session, COMPLETIONS, body)
    choice = answer["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "asked", "param"),
    [
        (CHATS, {"logprobs": True, "top_logprobs": 21}, "logprobs"),
        (CHATS, {"logprobs": True, "top_logprobs": -1}, "logprobs"),
        (CHATS, {"top_logprobs": 2}, "top_logprobs"),
        (CHATS, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": 21}, "prompt_logprobs"),
        (COMPLETIONS, {"logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"logprobs": -2}, "logprobs"),
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": 0, "prompt_logprobs": 1}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": 1025}, "max_tokens"),
        (CHATS, {"max_tokens": 0, "echo": True}, "max_tokens"),
    ],
)
async def test_what_vllm_refuses_is_refused_by_name(path, asked, param):
    body = CHAT if path == CHATS else COMPLETION
    async with serving() as (_, session):
        status, answer = await post(session, path, body | asked)
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, 400, param)
