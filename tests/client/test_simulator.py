"""The client's calls against the simulated vLLM, whose answers hang together as a model's do."""

import math
from collections.abc import AsyncIterator

import pytest

from loadgen.client import ChatMessage, RequestError, VLLMClient
from loadgen.sim.api.server import open_server

pytestmark = pytest.mark.anyio

LABELS = ["no", "no way", "yes"]


@pytest.fixture
async def client() -> AsyncIterator[VLLMClient]:
    async with open_server() as server, VLLMClient(base_url=server.url) as client:
        yield client


async def test_choices_are_labels_and_their_probabilities_sum_to_at_most_one(client):
    assert await client.asupports_bare_label_constraint()
    said = set()
    for number in range(20):
        answer = await client.achat(f"Is it {number}?", constrain_labels=LABELS, temperature=1.0, logprobs=True)
        said.add(answer.content)
        assert list(answer.label_logprobs) == LABELS
        assert 0 < sum(map(math.exp, answer.label_logprobs.values())) <= 1
    assert said <= set(LABELS)


async def test_label_log_probabilities_are_the_scores_of_the_labels(client):
    question = [ChatMessage("user", "Is it?")]
    answer = await client.achat(question, constrain_labels=LABELS, logprobs=True, temperature=0.0)
    exact = await client.achat(question, constrain_labels=LABELS, label_logprobs="exact")
    for label in LABELS:
        assert answer.label_logprobs[label] == pytest.approx(exact.label_logprobs[label], abs=1e-6)
        # The end comes on top of the label's own tokens, and is no more likely than certain.
        assert exact.label_logprobs[label] <= (await client.ascore(question, label)).sum


async def test_the_score_of_two_halves_is_the_score_of_the_whole(client):
    whole = await client.ascore("one two", " three four five")
    halves = [await client.ascore("one two", " three"), await client.ascore("one two three", " four five")]
    assert whole.sum == pytest.approx(sum(half.sum for half in halves), abs=1e-6)
    assert not whole.merged
    assert "".join(each.token.text for each in whole.logprobs) == whole.completion


async def test_a_completion_that_goes_on_with_the_prompt_s_last_word_is_flagged(client):
    assert (await client.ascore("one tw", "o three")).merged is True


async def test_a_text_has_one_vector_wherever_it_stands(client):
    both = await client.aembed(["hello", "world"])
    assert both.vectors[1] == pytest.approx((await client.aembed("world")).vectors[0])
    assert both.vectors[0] != both.vectors[1]


async def test_a_prompt_beyond_the_context_is_refused_in_the_server_s_words(client):
    with pytest.raises(RequestError, match="context") as caught:
        await client.achat("hello " * 9000)
    assert (caught.value.kind, caught.value.status) == ("http_400", 400)
