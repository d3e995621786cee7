"""Tokens told by a server: of the simulator, whose tokenizer merges and has spaces in front of words."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client import RequestError, Token, Tokenized, VLLMClient
from loadgen.client.tokens import common_prefix
from loadgen.sim.api.server import open_server
from loadgen.sim.model import tokenizer
from tests.client.scripted import Vllm, scripted

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client() -> AsyncIterator[VLLMClient]:
    async with open_server() as server, VLLMClient(base_url=server.url) as client:
        yield client


async def test_a_text_has_the_ids_and_the_texts_of_its_tokens(client):
    tokenized = await client.atokenize("hello world café")
    assert tokenized.ids == tuple(tokenizer.encode("hello world café"))
    assert "".join(token.text for token in tokenized.tokens) == "hello world café"
    assert tokenized.tokens[1].text == " world"
    assert tokenized.count == len(tokenized.tokens)


async def test_ids_give_their_text_back(client):
    assert await client.adetokenize((await client.atokenize("hello\n world")).ids) == "hello\n world"


async def test_a_text_after_a_context_has_the_tokens_that_it_adds(client):
    added = await client.atokenize(" world", context="hello")
    assert [token.text for token in added.tokens] == [" world"]
    assert (added.merged, added.replaced, added.count) == (False, (), 1)
    both = (await client.atokenize("hello world")).ids
    assert both == (await client.atokenize("hello")).ids + added.ids


async def test_a_merge_across_the_border_is_told_with_what_it_replaced(client):
    # Words are cut after six bytes: "hel" and "lo" make one token, which takes the place of "hel".
    added = await client.atokenize("lo you", context="hel")
    assert [token.text for token in added.tokens] == ["hello", " you"]
    assert [token.text for token in added.replaced] == ["hel"]
    assert (added.merged, added.count) == (True, 1)


async def test_a_text_of_nothing_has_no_tokens(client):
    assert await client.atokenize("") == Tokenized(())
    assert await client.atokenize("", context="hello") == Tokenized(())


async def test_a_server_that_tells_no_strings_is_asked_for_each_token():
    def respond(path, body):
        said = Vllm().respond(path, body)
        return said | {"token_strs": None} if path == "/tokenize" else said

    async with scripted(respond) as server, VLLMClient(base_url=server.url) as client:
        assert (await client.atokenize("a b")).tokens == (Token("a", 97), Token(" ", 32), Token("b", 98))


@pytest.mark.parametrize("special", [True, False])
async def test_special_tokens_are_as_asked_for(special):
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url) as client:
        await client.atokenize("a", add_special_tokens=special)
    assert server.seen[-1].json["add_special_tokens"] is special


async def test_a_failure_has_the_server_s_words_and_is_no_empty_list():
    def respond(path, body):
        return None if path in ("/tokenize", "/detokenize") else Vllm().respond(path, body)

    async with scripted(respond) as server, VLLMClient(base_url=server.url) as client:
        for call in (client.atokenize("a"), client.adetokenize([1])):
            with pytest.raises(RequestError, match="Not Found") as caught:
                await call
            assert (caught.value.kind, caught.value.status) == ("http_404", 404)


async def test_an_answer_of_another_shape_is_an_error():
    def respond(path, body):
        return {"tokens": "many"} if path == "/tokenize" else Vllm().respond(path, body)

    async with scripted(respond) as server, VLLMClient(base_url=server.url) as client:
        with pytest.raises(RequestError, match="protocol") as caught:
            await client.atokenize("a")
    assert caught.value.kind == "protocol"


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_common_prefix_is_the_longest(one, other):
    same = common_prefix(one, other)
    assert one[:same] == other[:same]
    assert one[: same + 1] != other[: same + 1] or same == len(one) == len(other)
