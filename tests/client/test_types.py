"""What the client's values say of themselves."""

import math

import pytest

from loadgen.client import ChatMessage, ScoringResponse, Token, Tokenized, TokenLogprob
from loadgen.client.types import messages_of
from loadgen.workload.request import Image, Message


def scored(*logprobs: float) -> ScoringResponse:
    return ScoringResponse("ab", tuple(TokenLogprob(Token("a", 1), each) for each in logprobs), False, {})


def test_a_score_has_a_sum_a_mean_and_a_perplexity():
    score = scored(-1.0, -3.0)
    assert (score.sum, score.mean) == (-4.0, -2.0)
    assert score.perplexity == pytest.approx(math.exp(2))


def test_a_perplexity_beyond_a_float_is_infinite():
    assert scored(-9999.0).perplexity == math.inf


def test_a_text_that_merges_with_its_context_counts_what_it_adds():
    # "hel" and "lo" in one are the one token "hello".
    merged = Tokenized((Token("hello", 5),), merged=True, replaced=(Token("hel", 4),))
    assert merged.ids == (5,)
    assert merged.count == 0


def test_what_a_text_was_cut_into_is_a_sequence_of_its_tokens():
    tokens = (Token("hel", 4), Token("lo", 6), Token("!", 7))
    tokenized = Tokenized(tokens)
    assert len(tokenized) == 3
    assert tuple(tokenized) == tokens
    assert (tokenized[0], tokenized[-1], tokenized[1:]) == (tokens[0], tokens[2], tokens[1:])
    assert Token("lo", 6) in tokenized


def test_a_text_is_one_message_of_the_user():
    assert messages_of("hi") == (Message("user", "hi"),)


def test_messages_may_be_mappings_or_values_with_parts():
    picture = Image(b"png")
    given = [{"role": "system", "content": "be brief"}, ChatMessage("user", (picture,)), Message("assistant", "ok")]
    assert messages_of(given) == (
        Message("system", "be brief"),
        Message("user", (picture,)),
        Message("assistant", "ok"),
    )


@pytest.mark.parametrize("given", [[], [{"role": "user"}], [{"role": "user", "content": [{"type": "text"}]}]])
def test_what_is_no_message_is_refused(given):
    with pytest.raises(ValueError, match="message"):
        messages_of(given)
