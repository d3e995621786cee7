"""Synthetic requests: pure in (seed, nonce, index), of the asked length, and with beginnings of their own."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.profile import Audio, Images, Lognormal, Uniform, Workload
from loadgen.workload import request as parts
from loadgen.workload.request import Message, Request, Tokenization, text_of
from loadgen.workload.sources import make_workload, workload_nonce
from loadgen.workload.synthetic import CORPUS_LENGTH, SyntheticWorkload, id_range
from loadgen.workload.words import VOCABULARY

TEMPLATE, SPECIAL = 11, 1
# Words of one, two, four and eight tokens; without a space before it every other word is one token longer.
TOY = Tokenization(
    source="server",
    exact=True,
    word_tokens=tuple(2.0 ** (i % 4) for i in range(len(VOCABULARY))),
    template_tokens=TEMPLATE,
    vocabulary_size=5000,
    special_tokens=SPECIAL,
    first_words=tuple(range(0, len(VOCABULARY), 2)),
)
PLACE = {word: i for i, word in enumerate(VOCABULARY)}
CORPUS_TOKENS = CORPUS_LENGTH * (1 + 2 + 4 + 8) // 4  # about

indices = st.integers(0, 2**40)


def toy_count(text: str) -> int:
    """The tokens of a text in the toy tokenizer."""
    words = [PLACE[word] for word in text.split(" ")]
    return sum(int(TOY.word_tokens[word]) for word in words) + words[0] % 2


def content(request: Request) -> str:
    """The text of a request, chat or not."""
    if request.messages is not None:
        return text_of(request.messages[-1])
    assert isinstance(request.prompt, str)
    return request.prompt


def ids(request: Request) -> tuple[int, ...]:
    assert isinstance(request.prompt, tuple)
    return request.prompt


def chat(length: int = 200, tokenization: Tokenization = TOY, nonce: int = 0, seed: int = 1) -> SyntheticWorkload:
    return SyntheticWorkload(Workload(prompt_tokens=length, seed=seed), tokenization, nonce)


def completion(length: int, tokenization: Tokenization = TOY) -> SyntheticWorkload:
    return SyntheticWorkload(Workload(kind="completion", prompt_tokens=length), tokenization, 0)


def id_prompts(length: int, tokenization: Tokenization = TOY, nonce: int = 0) -> SyntheticWorkload:
    profile = Workload(kind="completion", prompt_format="tokens", prompt_tokens=length)
    return SyntheticWorkload(profile, tokenization, nonce)


SPREAD = Uniform(min=1, max=3000)
CHAT = SyntheticWorkload(Workload(prompt_tokens=SPREAD), TOY, 0)
COMPLETION = SyntheticWorkload(Workload(kind="completion", prompt_tokens=Uniform(min=2, max=3000)), TOY, 0)
IDS = SyntheticWorkload(Workload(kind="completion", prompt_format="tokens", prompt_tokens=SPREAD), TOY, 0)


# --- purity -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "nonce", "index"), [(0, 0, 0), (1, 0, 12345), (2**70, 2**32 - 1, 2**40)])
def test_a_fresh_workload_gives_the_same_request(seed: int, nonce: int, index: int) -> None:
    one, other = chat(seed=seed, nonce=nonce), chat(seed=seed, nonce=nonce)
    other.request(index + 1)  # what was asked before does not matter
    assert one.request(index) == other.request(index)


def test_another_nonce_gives_the_same_lengths_and_other_beginnings() -> None:
    profile = Workload(prompt_tokens=Lognormal(mean=200, cv=0.6, min=50), output_tokens=Uniform(min=1, max=500))
    one, other = SyntheticWorkload(profile, TOY, 1), SyntheticWorkload(profile, TOY, 2)
    for index in range(500):
        a, b = one.request(index), other.request(index)
        assert (a.prompt_tokens, a.output_tokens) == (b.prompt_tokens, b.output_tokens)
        assert content(a).split(" ")[:3] != content(b).split(" ")[:3]


def test_another_seed_gives_other_lengths() -> None:
    profile = [Workload(prompt_tokens=Uniform(min=1, max=10**6), seed=seed) for seed in (1, 2)]
    one, other = (SyntheticWorkload(p, TOY, 1) for p in profile)
    assert all(one.request(i).prompt_tokens != other.request(i).prompt_tokens for i in range(100))


# --- lengths ----------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(indices)
def test_a_chat_prompt_has_exactly_the_drawn_tokens_or_the_least_possible(index: int) -> None:
    request = CHAT.request(index)
    assert request.prompt_tokens is not None
    assert request.prompt is None
    assert TEMPLATE + toy_count(content(request)) == max(request.prompt_tokens, TEMPLATE + 1)


def test_short_prompts_are_exact_too() -> None:
    workload = SyntheticWorkload(Workload(prompt_tokens=Uniform(min=1, max=TEMPLATE + 30)), TOY, 0)
    for request in map(workload.request, range(1000)):
        assert request.prompt_tokens is not None
        assert TEMPLATE + toy_count(content(request)) == max(request.prompt_tokens, TEMPLATE + 1)


@settings(deadline=None)
@given(indices)
def test_a_completion_prompt_counts_the_tokenizers_own_tokens_and_no_template(index: int) -> None:
    request = COMPLETION.request(index)
    assert SPECIAL + toy_count(content(request)) == request.prompt_tokens
    assert request.messages is None


def test_a_prompt_may_be_longer_than_the_corpus() -> None:
    length = 3 * CORPUS_TOKENS
    assert TEMPLATE + toy_count(content(chat(length).request(5))) == length


def test_text_is_plain_ascii_with_single_spaces() -> None:
    for length in (1, 15, 100, 1000):
        text = content(chat(length).request(3))
        assert text.isascii()
        assert " ".join(text.split()) == text


@pytest.mark.parametrize("mean", [0.7, 1.0, 1.31, 4.2])
def test_an_inexact_length_is_met_to_the_nearest_word(mean: float) -> None:
    tokenization = Tokenization("server", False, (mean,) * len(VOCABULARY), template_tokens=TEMPLATE)
    workload = SyntheticWorkload(Workload(prompt_tokens=Uniform(min=30, max=2000)), tokenization, 0)
    for request in map(workload.request, range(200)):
        words = content(request).count(" ") + 1
        assert request.prompt_tokens is not None
        assert abs(TEMPLATE + words * mean - request.prompt_tokens) <= mean / 2 + 1e-6


def test_without_words_of_one_token_a_length_is_met_as_nearly_as_whole_words_allow() -> None:
    tokenization = Tokenization("server", True, (3.0,) * len(VOCABULARY))
    words = content(completion(100, tokenization).request(0)).split(" ")
    assert len(words) * 3 == 99


def test_lengths_follow_their_distributions_and_are_independent() -> None:
    profile = Workload(prompt_tokens=Lognormal(mean=512, cv=0.6), output_tokens=Lognormal(mean=128, cv=0.5))
    workload = SyntheticWorkload(profile, TOY, 1)
    n = 10_000
    pairs = [(r.prompt_tokens or 0, r.output_tokens or 0) for r in map(workload.request, range(n))]
    # Four standard errors: 4 x .6 x 512 / 100 = 12.3 and 4 x .5 x 128 / 100 = 2.6; of a correlation of 0 it is 4 / 100.
    mean_in, mean_out = (sum(column) / n for column in zip(*pairs, strict=True))
    assert mean_in == pytest.approx(512, abs=12.3)
    assert mean_out == pytest.approx(128, abs=2.6)
    covariance = sum((a - mean_in) * (b - mean_out) for a, b in pairs) / n
    assert abs(covariance / (0.6 * 512 * 0.5 * 128)) < 0.04


def test_no_output_length_is_asked_for_where_the_profile_has_none() -> None:
    workload = SyntheticWorkload(Workload(output_tokens=None), TOY, 0)
    assert workload.request(0).output_tokens is None


# --- beginnings -------------------------------------------------------------------------------------------------------


def test_no_two_requests_share_their_first_four_words() -> None:
    workload = chat(60, Tokenization("server", True, (1.0,) * len(VOCABULARY)))
    heads = [tuple(content(workload.request(i)).split(" ", 4)[:4]) for i in range(20_000)]
    # Expected number of equal pairs, were they drawn by chance: 20,000^2 / 2 / 745^4 = 6e-4.
    assert len(set(heads)) == len(heads)


def test_the_first_word_varies_as_much_as_the_vocabulary_allows() -> None:
    workload = chat(60, Tokenization("server", True, (1.0,) * len(VOCABULARY)))
    firsts = Counter(content(workload.request(i)).split(" ", 1)[0] for i in range(20_000))
    assert len(firsts) == len(VOCABULARY)
    # 20,000 / 745 = 27 each, Poisson: 6 standard deviations up is 58.
    assert max(firsts.values()) < 58


def test_prompts_of_one_word_still_differ() -> None:
    workload = completion(SPECIAL + 1)
    texts = [content(workload.request(i)) for i in range(200)]
    assert all(" " not in text for text in texts)
    # Drawn from the 187 words of one token (every fourth of 745), which are all among those that may be first:
    # 187 (1 - (1 - 1/187)^200) = 123 different ones expected.
    assert len(set(texts)) > 90


def test_a_tokenizer_of_letters_still_gives_varied_beginnings() -> None:
    # No word of one token but few, none common enough for a head: the head is of longer words.
    tokenization = Tokenization("server", True, tuple(float(len(word) + 1) for word in VOCABULARY))
    workload = chat(300, tokenization)
    heads = {tuple(content(workload.request(i)).split(" ", 4)[:4]) for i in range(2000)}
    # Heads are of one of the 64 or more words of the shortest common length: 2,000^2 / 2 / 64^4 = .12 pairs at most.
    assert len(heads) == 2000


# --- token ids --------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(indices)
def test_a_prompt_of_ids_has_exactly_the_drawn_length_and_no_special_ids(index: int) -> None:
    request = IDS.request(index)
    assert len(ids(request)) == request.prompt_tokens
    assert all(1000 <= token < 5000 for token in ids(request))


def test_a_prompt_of_ids_may_be_longer_than_the_corpus() -> None:
    assert len(ids(id_prompts(2 * CORPUS_LENGTH + 77).request(1))) == 2 * CORPUS_LENGTH + 77


def test_prompts_of_ids_begin_with_a_hash_of_nonce_and_index() -> None:
    one, other = id_prompts(50, nonce=1), id_prompts(50, nonce=2)
    heads = [ids(workload.request(i))[:4] for workload in (one, other) for i in range(5000)]
    # 10,000^2 / 2 / 4,000^4 = 2e-7 equal pairs expected.
    assert len(set(heads)) == len(heads)


@pytest.mark.parametrize(
    ("vocabulary_size", "expected"),
    [(128_000, (1000, 32_000)), (5000, (1000, 5000)), (1000, (250, 1000)), (1, (0, 1))],
)
def test_ids_keep_away_from_both_ends_of_a_vocabulary(vocabulary_size: int, expected: tuple[int, int]) -> None:
    assert id_range(vocabulary_size) == expected


def test_where_the_vocabulary_is_unknown_ids_stay_below_a_thousand() -> None:
    tokenization = Tokenization("server", True, (1.0,) * len(VOCABULARY))
    assert max(ids(id_prompts(2000, tokenization).request(0))) < 1000


# --- beside the text --------------------------------------------------------------------------------------------------


def test_a_system_message_comes_first_and_is_the_same_in_every_chat() -> None:
    workload = SyntheticWorkload(Workload(system="Be brief."), TOY, 0)
    for request in map(workload.request, range(3)):
        assert request.messages is not None
        assert [message.role for message in request.messages] == ["system", "user"]
        assert request.messages[0] == Message("system", "Be brief.")


def test_images_come_before_sounds_and_sounds_before_the_text() -> None:
    profile = Workload(images=Images(count=2, width=8, height=8), audio=Audio(count=2, seconds=0.01))
    (message,) = SyntheticWorkload(profile, TOY, 0).request(5).messages or ()
    kinds = [parts.Image, parts.Image, parts.Audio, parts.Audio, parts.Text]
    assert [type(part) for part in message.content] == kinds


def test_without_media_a_message_is_plain_text() -> None:
    (message,) = CHAT.request(5).messages or ()
    assert isinstance(message.content, str)


def test_a_system_message_and_media_leave_the_text_as_it_is() -> None:
    profile = Workload(system="Be brief.", images=Images(width=8, height=8), audio=Audio(seconds=0.01))
    laden, plain = SyntheticWorkload(profile, TOY, 3), SyntheticWorkload(Workload(), TOY, 3)
    assert [content(laden.request(i)) for i in range(20)] == [content(plain.request(i)) for i in range(20)]


# --- other kinds ------------------------------------------------------------------------------------------------------


@given(indices)
def test_a_request_to_score_is_prompt_and_completion_of_ids_in_one(index: int) -> None:
    profile = Workload(
        kind="score", prompt_format="tokens", prompt_tokens=Uniform(min=1, max=50), output_tokens=Uniform(min=1, max=9)
    )
    alike = Workload(kind="completion", prompt_tokens=profile.prompt_tokens, output_tokens=profile.output_tokens)
    request, lengths = (SyntheticWorkload(one, TOY, 0).request(index) for one in (profile, alike))
    assert request.scored_tokens == lengths.output_tokens
    assert len(ids(request)) == request.prompt_tokens == lengths.prompt_tokens + lengths.output_tokens
    assert request.output_tokens is None


def test_the_inputs_of_a_request_to_embed_are_prompts_that_come_once_in_a_run() -> None:
    profile = Workload(kind="embed", inputs=3, prompt_tokens=Uniform(min=60, max=90))
    requests = [SyntheticWorkload(profile, TOY, 0).request(index) for index in range(200)]
    inputs = [text for request in requests for text in request.inputs or () if isinstance(text, str)]
    assert len(set(inputs)) == len(inputs) == 600
    for request in requests:
        assert request.prompt_tokens == sum(toy_count(str(text)) + SPECIAL for text in request.inputs or ())
        assert (request.messages, request.prompt, request.output_tokens) == (None, None, None)


@pytest.mark.parametrize("kind", ["choice", "tokenize"])
def test_a_kind_that_needs_no_length_asks_for_none(kind: str) -> None:
    labels = ("yes", "no") if kind == "choice" else ()
    request = SyntheticWorkload(Workload(kind=kind, labels=labels), TOY, 0).request(1)  # type: ignore[arg-type]
    assert request.output_tokens is None
    assert (request.messages is None) == (kind == "tokenize")


def test_a_request_to_rerank_has_a_query_of_its_own_and_documents() -> None:
    workload = SyntheticWorkload(Workload(kind="rerank", inputs=3, prompt_tokens=40), TOY, 0)
    texts = [text for index in range(50) for r in [workload.request(index)] for text in (r.prompt, *(r.inputs or ()))]
    assert len(set(texts)) == len(texts) == 50 * 4
    assert workload.request(0).prompt_tokens is None  # servers differ in how often they count the query


def test_a_request_to_transcribe_is_a_sound_alone() -> None:
    workload = SyntheticWorkload(Workload(kind="transcribe", audio=Audio(seconds=0.01)), TOY, 0)
    (message,) = workload.request(3).messages or ()
    assert [type(part) for part in message.content] == [parts.Audio]
    assert workload.request(3) == workload.request(3) != workload.request(4)


@pytest.mark.parametrize("system", [None, "be brief"])
@pytest.mark.parametrize("kind", ["chat", "choice"])
def test_without_a_text_a_chat_is_its_images_and_sounds_alone(kind: str, system: str | None) -> None:
    labels = ("yes", "no") if kind == "choice" else ()
    media = {"images": Images(count=2, width=8, height=8), "audio": Audio(seconds=0.01)}
    profile = Workload(kind=kind, labels=labels, system=system, prompt_tokens=None, **media)
    request = SyntheticWorkload(profile, TOY, 0).request(3)
    *before, user = request.messages or ()
    assert [message.content for message in before] == ([system] if system else [])
    assert [type(part) for part in user.content] == [parts.Image, parts.Image, parts.Audio]
    assert request.prompt_tokens is None


def test_a_message_asks_for_a_maximum_and_for_no_exact_length() -> None:
    request = SyntheticWorkload(Workload(kind="messages", output_tokens=9), TOY, 0).request(1)
    assert (request.output_tokens, request.most_output_tokens) == (None, 9)


# --- sources ----------------------------------------------------------------------------------------------------------


def test_a_workload_is_made_by_the_name_of_its_source() -> None:
    profile = Workload(source="synthetic")
    assert make_workload(profile, TOY, 3).request(8) == SyntheticWorkload(profile, TOY, 3).request(8)


def test_the_nonce_is_the_profiles_own_or_zero_or_drawn() -> None:
    assert workload_nonce(Workload(nonce=7, cache_bust=False)) == 7
    assert workload_nonce(Workload(cache_bust=False)) == 0
    drawn = {workload_nonce(Workload()) for _ in range(5)}
    assert len(drawn) > 1
    assert all(0 <= nonce < 2**32 for nonce in drawn)
