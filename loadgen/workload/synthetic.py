"""Synthetic requests: random words, or random token ids, of the lengths that a distribution gives.

The words are in no order that means anything. An engine's speed does not depend on that, with two exceptions:
how often speculative decoding guesses right, and how long the answers are where the model ends them by
itself.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from loadgen import profile
from loadgen.workload.hashing import Purpose, fraction, hash64, hash_key
from loadgen.workload.lengths import inverse_cdf
from loadgen.workload.request import Message, Part, Request, Text, Tokenization
from loadgen.workload.synthetic_media import SyntheticMedia
from loadgen.workload.words import VOCABULARY

CORPUS_LENGTH: Final = 32_768
"""Words, or ids, that prompts are cut from."""
HEAD_BITS: Final = 64
ASSUMED_VOCABULARY_SIZE: Final = 1_000
"""Token ids that every vocabulary in use has, where its size is not known."""

_SEVERAL: Final = ("embed", "rerank", "pooling")
_FEWEST_HEADS: Final = 64
_FEWEST_FIRSTS: Final = 16


class SyntheticWorkload:
    """Requests that are a pure function of (seed, nonce, index), with lengths that are one of (seed, index).

    **Lengths.** With an exact tokenization a prompt has exactly the drawn number of tokens, as the server
    counts them: the chat template's or the tokenizer's own special tokens included (where `first_words` are not
    known, the first word may be off by what a space before it changes). A length too small for these and one
    word gives that least prompt. With an inexact one the length is met to the nearest word, by the mean.
    Prompts of token ids are exact.

    **No shared beginnings.** A prompt begins with words that spell a 64-bit hash of (seed, nonce, index), so
    a prefix cache finds nothing of another request, nor of another run. Of V = 745 words (one token each) it
    takes seven; two given requests share their first word with probability 1/V, their first four with V^-4 =
    3e-12, all seven with 2^-64: among a million requests the expected number of pairs that share four words
    is 1.6 and seven 3e-8. A block of a prefix cache (16 tokens in vLLM) is longer still: after the head comes
    text from a hashed place of a random corpus. Prompts shorter than the head carry as much of it as fits.

    **Beside the text.** A chat begins with the profile's system message, the same in all, and its user message
    holds the images, then the sounds, then the text; without these its content is the text alone. Their tokens
    come on top of the drawn length. `prompt_tokens = "none"` leaves the text out.

    **Of other kinds** than chats and completions, a request to score is one text of token ids, as long as prompt
    and completion together; one to embed, pool or rerank has inputs, and a query, that are each drawn like a prompt;
    one to transcribe is a sound.
    """

    def __init__(self, workload: profile.Workload, tokenization: Tokenization, nonce: int) -> None:
        """Raises LoadgenError where the profile wants images and there is no Pillow."""
        seed = workload.seed
        self._kind = workload.kind
        self._chat = profile.KINDS[workload.kind].conversation
        self._asks_length = profile.KINDS[workload.kind].lengths_asked
        self._inputs = workload.inputs
        self._prompt_length = None if workload.prompt_tokens is None else inverse_cdf(workload.prompt_tokens)
        self._prompt_length_key = hash_key(seed, Purpose.PROMPT_LENGTH)
        self._output_length = None if workload.output_tokens is None else inverse_cdf(workload.output_tokens)
        self._output_length_key = hash_key(seed, Purpose.OUTPUT_LENGTH)
        self._prompt: Callable[[int, int], str | tuple[int, ...]]
        if workload.prompt_format == "tokens":
            self._prompt = _IdPrompts(seed, nonce, tokenization.vocabulary_size or ASSUMED_VOCABULARY_SIZE).prompt
        else:
            around = tokenization.template_tokens if self._chat else tokenization.special_tokens
            self._prompt = _TextPrompts(seed, nonce, tokenization, around).prompt
        self._system = None if workload.system is None else Message("system", workload.system)
        self._media = SyntheticMedia(workload, nonce) if workload.images or workload.audio else None

    def request(self, index: int) -> Request:
        """Request `index`; `prompt_tokens` and `output_tokens` are the lengths as drawn."""
        if self._kind in _SEVERAL:
            return self._several(index)
        if self._kind == "transcribe" and self._media is not None:
            return Request(index, (Message("user", self._media.parts(index)),))
        prompt_tokens = None
        if self._prompt_length is not None:
            prompt_tokens = self._prompt_length(fraction(self._prompt_length_key, index))
        output_tokens = None
        if self._output_length is not None:
            output_tokens = self._output_length(fraction(self._output_length_key, index))
        if self._chat:
            messages = self._messages(index, prompt_tokens)
            if self._kind == "messages":
                return Request(index, messages, None, prompt_tokens, most_output_tokens=output_tokens)
            return Request(index, messages, None, prompt_tokens, output_tokens if self._asks_length else None)
        assert prompt_tokens is not None  # only beside images or sounds may the text be left out
        if self._kind == "score" and output_tokens is not None:
            length = prompt_tokens + output_tokens
            return Request(index, None, self._prompt(index, length), length, scored_tokens=output_tokens)
        asked = output_tokens if self._asks_length else None
        return Request(index, None, self._prompt(index, prompt_tokens), prompt_tokens, asked)

    def _messages(self, index: int, prompt_tokens: int | None) -> tuple[Message, ...]:
        content: str | tuple[Part, ...] = () if self._media is None else self._media.parts(index)
        if prompt_tokens is not None:
            text = self._prompt(index, prompt_tokens)
            assert isinstance(text, str)  # a chat has no prompts of token ids
            content = (*content, Text(text)) if content else text
        user = Message("user", content)
        return (user,) if self._system is None else (self._system, user)

    def _several(self, index: int) -> Request:
        """Inputs that are each drawn by a number of its own, so that none comes twice in a run."""
        queries = int(self._kind == "rerank")
        each = queries + self._inputs
        numbers = range(index * each, (index + 1) * each)
        assert self._prompt_length is not None  # only beside images or sounds may the text be left out
        lengths = [self._prompt_length(fraction(self._prompt_length_key, number)) for number in numbers]
        texts = tuple(self._prompt(number, length) for number, length in zip(numbers, lengths, strict=True))
        if queries:
            # How often a server counts the query is its model's affair, so the tokens asked for are not known.
            return Request(index, prompt=texts[0], inputs=texts[1:])
        return Request(index, prompt_tokens=sum(lengths), inputs=texts)


# --- prompts ----------------------------------------------------------------------------------------------------------


def _corpus(seed: int, choices: int) -> list[int]:
    """Random numbers below `choices` (the bias of the remainder is below 2^-48)."""
    key = hash_key(seed, Purpose.CORPUS)
    return [hash64(key, i) % choices for i in range(CORPUS_LENGTH)]


class _TextPrompts:
    """Text: words that spell a hash, a cut from the corpus, and one-token words to fill up."""

    def __init__(self, seed: int, nonce: int, tokenization: Tokenization, around: int) -> None:
        self._head_key = hash_key(seed, nonce, Purpose.HEAD)
        self._place_key = hash_key(seed, nonce, Purpose.PLACE)
        costs = tokenization.word_tokens
        self._around: float = around
        if tokenization.exact:
            costs = tuple(map(int, costs))
        else:
            # With half a word more room, the last word that fits ends nearest to the length.
            self._around -= sum(costs) / len(costs) / 2
        head, self._head_cost = _head_words(costs)
        safe = set(tokenization.first_words)
        firsts = [word for word in head if word in safe]
        if len(firsts) < _FEWEST_FIRSTS:
            firsts = head
        self._firsts = [VOCABULARY[word] for word in firsts]
        self._others = [" " + VOCABULARY[word] for word in head]
        self._head_length = _digits(len(firsts), len(head))
        self._text = _Text(_corpus(seed, len(VOCABULARY)), costs)
        self._fill = _fill(costs) if tokenization.exact else [""]

    def prompt(self, index: int, tokens: int) -> str:
        room = tokens - self._around
        length = max(1, min(self._head_length, int(room // self._head_cost)))
        text = self._head(index, length)
        room -= length * self._head_cost
        if room <= 0:
            return text
        cut, missing = self._text.cut(hash64(self._place_key, index) % CORPUS_LENGTH, room)
        return text + cut + self._fill[min(int(missing), len(self._fill) - 1)]

    def _head(self, index: int, length: int) -> str:
        bits, digit = divmod(hash64(self._head_key, index), len(self._firsts))
        words = [self._firsts[digit]]
        others = self._others
        for _ in range(length - 1):
            bits, digit = divmod(bits, len(others))
            words.append(others[digit])
        return "".join(words)


class _Text:
    """A long text, endlessly repeated, that is cut at words by the number of tokens."""

    def __init__(self, words: Sequence[int], costs: Sequence[float]) -> None:
        spaced = [" " + word for word in VOCABULARY]
        self._text = "".join(spaced[word] for word in words)
        self._letters = [0, *accumulate(len(spaced[word]) for word in words)]
        self._tokens = [0, *accumulate(costs[word] for word in words)]

    def cut(self, start: int, tokens: float) -> tuple[str, float]:
        """As many whole words from word `start` on as fit into `tokens`, and how many tokens are missing."""
        turns, end = divmod(self._tokens[start] + tokens, self._tokens[-1])
        stop = bisect_right(self._tokens, end) - 1
        first, last = self._letters[start], self._letters[stop]
        missing = end - self._tokens[stop]
        if not turns:
            return self._text[first:last], missing
        return self._text[first:] + self._text * (int(turns) - 1) + self._text[:last], missing


class _IdPrompts:
    """Token ids: some that spell a hash, and a cut from a corpus of ids."""

    def __init__(self, seed: int, nonce: int, vocabulary_size: int) -> None:
        self._head_key = hash_key(seed, nonce, Purpose.HEAD)
        self._place_key = hash_key(seed, nonce, Purpose.PLACE)
        self._low, high = id_range(vocabulary_size)
        self._choices = high - self._low
        self._head_length = _digits(self._choices, self._choices)
        self._ids = tuple(self._low + i for i in _corpus(seed, self._choices))

    def prompt(self, index: int, tokens: int) -> tuple[int, ...]:
        bits = hash64(self._head_key, index)
        head = []
        for _ in range(min(self._head_length, tokens)):
            bits, digit = divmod(bits, self._choices)
            head.append(self._low + digit)
        return tuple(head) + self._cut(hash64(self._place_key, index) % CORPUS_LENGTH, tokens - len(head))

    def _cut(self, start: int, count: int) -> tuple[int, ...]:
        turns, stop = divmod(start + count, CORPUS_LENGTH)
        if not turns:
            return self._ids[start:stop]
        return self._ids[start:] + self._ids * (turns - 1) + self._ids[:stop]


def id_range(vocabulary_size: int) -> tuple[int, int]:
    """The ids that prompts of token ids use, lowest and one past the highest.

    Special tokens sit at either end of a vocabulary: below 1,000 (Mistral NeMo has a thousand of them there) and
    from 32,000 up (Llama 3, Qwen, GPT). Ids between are ordinary text. Of a vocabulary under 4,000 the lowest
    quarter is left out instead.
    """
    return min(1_000, vocabulary_size // 4), max(1, min(vocabulary_size, 32_000))


def _head_words(costs: Sequence[float]) -> tuple[list[int], float]:
    """The words that heads are made of, all of one count, and that count: the smallest that enough words have."""
    words_of = Counter(costs)
    common = [cost for cost, words in words_of.items() if words >= _FEWEST_HEADS]
    cost = min(common) if common else words_of.most_common(1)[0][0]
    return [word for word, tokens in enumerate(costs) if tokens == cost], cost


def _digits(first: int, others: int) -> int:
    """How many digits spell `HEAD_BITS` bits: the first one in base `first`, the rest in base `others`."""
    digits, numbers = 1, first
    while numbers < 1 << HEAD_BITS and others > 1:
        digits, numbers = digits + 1, numbers * others
    return digits


def _fill(costs: Sequence[float]) -> list[str]:
    """Text of 0, 1, 2, ... tokens, up to one less than the longest word; [""] where no word is one token."""
    single = next((" " + VOCABULARY[word] for word, tokens in enumerate(costs) if tokens == 1), None)
    return [single * count for count in range(int(max(costs)))] if single else [""]
