"""The simulated model: its probabilities are probabilities, and its words are what it finds likeliest."""

import math

from hypothesis import given
from hypothesis import strategies as st

from loadgen.sim.model import tokenizer
from loadgen.sim.model.language import VOCABULARY, Words, after, begin, fraction, likeliest, log_probability, rank

texts = st.text().map(lambda text: text.encode(errors="replace").decode())  # lone surrogates are no text
seeds = st.integers(0, 2**40)


@given(texts, seeds, st.sets(st.binary(min_size=1, max_size=6)))
def test_the_probabilities_of_any_tokens_sum_to_at_most_1(text, seed, words):
    context = begin(seed, text.encode())
    pieces = {token for word in words for token in (*_one_token(word), *_one_token(b" " + word))}
    common = {token for token, _ in likeliest(context, VOCABULARY)}
    specials = {tokenizer.BEGIN, tokenizer.END, tokenizer.IMAGE, tokenizer.AUDIO}
    everything = common | pieces | specials
    assert len(common) == VOCABULARY
    assert sum(math.exp(log_probability(context, token)) for token in everything) <= 1


def _one_token(piece: bytes) -> list[int]:
    """The piece's token, where it is one of a text."""
    ids = tokenizer.encode(text) if (text := piece.decode(errors="ignore")) else []
    return ids if len(ids) == 1 else []


def test_short_rare_tokens_all_together_have_less_than_the_rest_of_the_common_ones():
    context = begin(0, b"once upon")
    common = {token for token, _ in likeliest(context, VOCABULARY)}
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(one + other for one in letters for other in letters)]
    rare = {tokenizer.encode(space + word)[0] for word in words for space in ("", " ")} - common
    # All words of one and two letters: two of the six lengths, of which letters are at most 97 % and 97 % squared.
    assert 0 < sum(math.exp(log_probability(context, token)) for token in rare) < 0.05 * 2 / 6
    assert math.isclose(sum(math.exp(log_probability(context, token)) for token in common), 0.95)


@given(texts, seeds)
def test_the_likeliest_tokens_are_in_order_and_agree_with_each_ones_probability_and_rank(text, seed):
    context = begin(seed, text.encode())
    pairs = likeliest(context, 20)
    logprobs = [logprob for _, logprob in pairs]
    assert logprobs == sorted(logprobs, reverse=True)
    assert [log_probability(context, token) for token, _ in pairs] == logprobs
    assert [rank(context, token) for token, _ in pairs] == list(range(1, 21))


@given(texts, seeds)
def test_the_context_after_a_text_is_that_after_its_tokens_one_by_one(text, seed):
    context = begin(seed, b"")
    for token in tokenizer.encode(text):
        context = after(context, token)
    assert context.state == begin(seed, text.encode()).state
    if text:
        assert context == begin(seed, text.encode())


@given(texts, seeds, st.lists(st.integers(1, 5), max_size=10))
def test_any_portions_of_an_answer_are_the_same_words_each_the_likeliest(text, seed, portions):
    context = begin(seed, text.encode())
    words = Words(context)
    taken = [words.take(count) for count in portions]
    whole = Words(context).take(sum(portions))
    assert ("".join(said for said, _ in taken), [token for _, ids in taken for token in ids]) == whole
    assert words.given == sum(portions)
    for token in whole[1]:
        assert likeliest(context, 1)[0][0] == token
        context = after(context, token)
    assert tokenizer.encode(whole[0]) == whole[1]


@given(st.text(alphabet="aé€𝄞 ", min_size=1, max_size=20), st.lists(st.integers(1, 3), min_size=20, max_size=20))
def test_a_script_is_said_as_it_is_in_any_portions_and_words_follow(label, portions):
    script = (*tokenizer.encode(label), tokenizer.END)
    words = Words(begin(0, b"x"), script)
    parts = [words.take(count) for count in portions]
    ids = [token for _, part in parts for token in part]
    text = "".join(said for said, _ in parts)
    whole_text, whole_ids = Words(begin(0, b"x"), script).take(sum(portions))
    assert (text, ids) == (whole_text, whole_ids)
    said = min(sum(portions), len(script))
    assert ids[:said] == list(script[:said])
    if sum(portions) >= len(script):
        assert text.startswith(label)
        assert tokenizer.decode(ids[len(script) :]) == text.removeprefix(label)


def test_another_seed_says_something_else():
    assert Words(begin(1, b"hello")).take(8) != Words(begin(2, b"hello")).take(8)


def test_fractions_are_spread_over_all_that_is_between_0_and_1():
    drawn = [fraction(begin(0, str(number).encode()).state) for number in range(1000)]
    tenths = [int(10 * share) for share in drawn]
    # 100 a tenth, give or take four standard deviations of sqrt(1000 * .1 * .9) = 9.5
    assert all(62 <= tenths.count(tenth) <= 138 for tenth in range(10))
