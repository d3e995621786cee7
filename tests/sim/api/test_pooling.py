"""Embeddings, pooling, scores and ranks: the vectors themselves, and the server's answers."""

import base64
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from loadgen.sim.config import SimConfig
from loadgen.sim.model import tokenizer
from loadgen.sim.model.language import EMBEDDING_SIZE, embed, similarity
from tests.sim.api.serving import CHAT, FAST, post, serving

EMBEDDINGS = "/v1/embeddings"
texts = st.text(alphabet="abcd é\n", min_size=1)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@given(texts, st.integers(0, 2**40), st.integers(1, EMBEDDING_SIZE))
def test_a_vector_has_length_1_in_any_number_of_dimensions(text, seed, dimensions):
    vector = embed(tokenizer.encode(text), seed, dimensions)
    assert len(vector) == dimensions
    assert math.isclose(sum(value * value for value in vector), 1)


@given(texts, st.integers(1, EMBEDDING_SIZE))
def test_fewer_dimensions_point_where_the_first_of_all_do(text, dimensions):
    ids = tokenizer.encode(text)
    first = embed(ids, 0)[:dimensions]
    length = math.sqrt(sum(value * value for value in first))
    assert embed(ids, 0, dimensions) == pytest.approx([value / length for value in first])


def test_texts_that_share_words_are_more_alike():
    query, near, far = (
        embed(tokenizer.encode(text), 0) for text in ("the big cat", "a big cat sat", "prices rose today")
    )
    assert similarity(query, near) > 0.3 > similarity(query, far)
    assert similarity(query, query) == pytest.approx(1)


@pytest.mark.anyio
async def test_a_batch_gets_what_its_inputs_get_alone_texts_or_ids():
    batch = ["one", "two and three", "four"]
    async with serving() as (_, session):
        _, together = await post(session, EMBEDDINGS, {"model": "sim", "input": batch})
        alone = [(await post(session, EMBEDDINGS, {"input": text}))[1] for text in batch]
        _, ids = await post(session, EMBEDDINGS, {"input": [tokenizer.encode(text) for text in batch]})
        _, one = await post(session, EMBEDDINGS, {"input": tokenizer.encode("two and three")})
    vectors = [item["embedding"] for item in together["data"]]
    assert vectors == [answer["data"][0]["embedding"] for answer in alone]
    assert vectors == [item["embedding"] for item in ids["data"]]
    assert vectors[1] == one["data"][0]["embedding"]
    assert [item["index"] for item in together["data"]] == [0, 1, 2]
    assert {item["object"] for item in together["data"]} == {"embedding"}
    assert together["usage"]["prompt_tokens"] == together["usage"]["total_tokens"] == 5
    assert together["object"] == "list"


@pytest.mark.anyio
async def test_base64_holds_the_same_numbers_as_floats_of_32_bits():
    body = {"input": "one", "dimensions": 8}
    async with serving() as (_, session):
        _, plain = await post(session, EMBEDDINGS, body)
        _, packed = await post(session, EMBEDDINGS, body | {"encoding_format": "base64"})
    numbers = struct.unpack("<8f", base64.b64decode(packed["data"][0]["embedding"]))
    assert numbers == pytest.approx(plain["data"][0]["embedding"], rel=1e-6)


@pytest.mark.anyio
async def test_a_chat_is_embedded_without_the_prompt_to_the_assistant():
    async with serving() as (_, session):
        _, answer = await post(session, EMBEDDINGS, {"messages": CHAT["messages"]})
    # Three tokens of the template, the role and two words.
    assert answer["usage"]["prompt_tokens"] == 6


@pytest.mark.anyio
async def test_pooling_answers_the_embedding_as_its_data():
    async with serving() as (_, session):
        _, embedding = await post(session, EMBEDDINGS, {"input": "one"})
        _, pooled = await post(session, "/pooling", {"input": "one"})
    assert pooled["data"][0]["data"] == embedding["data"][0]["embedding"]
    assert pooled["data"][0]["object"] == "pooling"


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize("fields", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items")])
async def test_a_query_is_scored_with_each_document(path, fields):
    one, other = fields
    documents = ["a big cat sat", "prices rose"]
    async with serving() as (_, session):
        _, answer = await post(session, path, {one: "the big cat", other: documents})
        singles = [(await post(session, path, {one: "the big cat", other: text}))[1] for text in documents]
        _, pairs = await post(session, path, {one: ["the big cat"] * 2, other: documents})
    scores = [item["score"] for item in answer["data"]]
    assert scores == [single["data"][0]["score"] for single in singles]
    assert scores == [item["score"] for item in pairs["data"]]
    assert scores[0] > scores[1]
    assert answer["usage"]["prompt_tokens"] == 3 + 4 + 2
    assert pairs["usage"]["prompt_tokens"] == 2 * 3 + 4 + 2  # each query of a pair is computed


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_documents_are_ranked_the_most_relevant_first(path):
    documents = ["prices rose", "a big cat sat", "the big cat"]
    async with serving() as (_, session):
        _, answer = await post(session, path, {"query": "the big cat", "documents": documents})
        _, best = await post(session, path, {"query": "the big cat", "documents": documents, "top_n": 1})
    assert [result["index"] for result in answer["results"]] == [2, 1, 0]
    assert [result["document"]["text"] for result in answer["results"]] == documents[::-1]
    assert answer["results"][0]["relevance_score"] == pytest.approx(1)
    assert best["results"] == answer["results"][:1]
    assert answer["usage"] == {"prompt_tokens": 12, "total_tokens": 12}


@pytest.mark.anyio
async def test_nothing_is_generated_and_the_prompts_are_computed():
    async with serving() as (server, session):
        await post(session, EMBEDDINGS, {"input": ["one", "two and three"]})
        assert server.api.engine.statistics.finished == 2
        async with session.get("/metrics") as response:
            text = await response.text()
    samples = {
        sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples
    }
    assert samples["vllm:prompt_tokens_total"] == 4
    assert samples["vllm:generation_tokens_total"] == 0
    assert samples["vllm:time_to_first_token_seconds_count"] == 0


@pytest.mark.anyio
async def test_an_embedding_takes_as_long_as_its_prompt_takes_to_compute():
    slow = SimConfig(step_base_seconds=0.05, max_num_batched_tokens=256)
    async with serving(slow) as (server, session):
        # 600 tokens in steps of at most 256: three steps of 50 ms.
        await post(session, EMBEDDINGS, {"input": [20] * 600})
        assert server.api.engine.statistics.e2e.sum >= 0.15


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (EMBEDDINGS, {"input": "a", "model": "other"}, 404, "does not exist"),
        (EMBEDDINGS, {"input": []}, 400, "at least one prompt"),
        (EMBEDDINGS, {"input": ""}, 400, "empty"),
        (EMBEDDINGS, {"input": ["a", 5]}, 400, "mixed"),
        (EMBEDDINGS, {}, 400, "Field required"),
        (EMBEDDINGS, {"input": "a", "dimensions": 0}, 400, "[1, 256], got 0"),
        (EMBEDDINGS, {"input": "a", "dimensions": 257}, 400, "[1, 256], got 257"),
        (EMBEDDINGS, {"input": "a", "encoding_format": "x"}, 400, "encoding_format"),
        (EMBEDDINGS, {"input": [20] * FAST.max_model_len}, 400, "leaves no room"),
        ("/pooling", {"input": "a", "dimensions": 3}, 400, "dimensions is currently not supported"),
        ("/pooling", {"input": "a", "task": "classify"}, 400, "Unsupported task"),
        ("/pooling", {"input": "a", "task": "token_embed"}, 400, "--pooler-config.task"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, 400, "1:1, 1:N or N:N"),
        ("/score", {"text_1": "a", "text_2": []}, 400, "text_pair"),
        ("/score", {"text_1": [], "text_2": []}, 400, "At least one text element"),
        ("/score", {"text_1": "a"}, 400, "Field required"),
        ("/rerank", {"query": "a", "documents": []}, 400, "text_pair"),
        ("/rerank", {"query": "a"}, 400, "documents"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, 400, "top_n"),
    ],
)
async def test_what_makes_no_sense_is_refused_in_vllms_shape(path, body, status, words):
    async with serving() as (_, session):
        answered, answer = await post(session, path, body)
    assert (answered, answer["error"]["code"]) == (status, status)
    assert words in answer["error"]["message"]
