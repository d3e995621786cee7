"""The simulated model: what it says next and how likely it finds each token, as pure functions of the text so far.

All that it remembers of a text is its CRC-32, which begins with the seed. So a text and its token ids mean the same to
it, and what a generation says of its tokens is what scoring them as a prompt says.

Its probabilities: 131 common tokens share 95 % by a power law whose order and steepness the state decides; the
likeliest is the one that it says. The rest falls off with a piece's length, so that the probabilities of all the tokens
that a text can have sum to less than 1.
"""

import codecs
import math
import zlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from loadgen.sim.model import tokenizer

_WORDS: Final = (
    "the", "of", "and", "to", "in", "is", "it", "you", "that", "he", "was", "for", "on", "are", "with",
    "as", "his", "they", "be", "at", "one", "have", "this", "from", "or", "had", "by", "hot", "but",
    "some", "what", "there", "we", "can", "out", "other", "were", "all", "your", "when", "up", "use",
    "word", "how", "said", "an", "each", "she", "which", "do", "their", "time", "if", "will", "way",
    "about", "many", "then", "them", "would", "write", "like", "so", "these",
)  # fmt: skip
"""64 words, each one token with or without a space before it."""
_SPACED_TEXTS: Final = tuple(f" {word}" for word in _WORDS)
_SPACED_BYTES: Final = tuple(text.encode() for text in _SPACED_TEXTS)
_SPACED_IDS: Final = tuple(tokenizer.encode(text)[0] for text in _SPACED_TEXTS)
_WORD_IDS: Final = tuple(tokenizer.encode(word)[0] for word in _WORDS)

_COMMON: Final = (*_SPACED_IDS, *_WORD_IDS, tokenizer.END, *tokenizer.encode("\n"), *tokenizer.encode(" a"))
_SIZE: Final = len(_COMMON)  # 131, a prime: a walk of any stride visits them all
_PLACES: Final = {token: place for place, token in enumerate(_COMMON)}
VOCABULARY: Final = _SIZE
"""How many tokens the model ranks; all others come after them."""

_COMMON_SHARE: Final = 0.95
_LETTER: Final = math.log(0.97 / 26)  # one small letter within a rare piece
_OTHER_BYTE: Final = math.log(0.03 / 230)
_RARE: Final = math.log((1 - _COMMON_SHARE) / 2 / 6)  # with a space or without, of one to six bytes
_SPECIAL: Final = math.log((1 - _COMMON_SHARE) * 1e-9)
_WHIM: Final = 8.0  # a rare token may be this much less likely (natural logarithm), as the state decides


class Context(NamedTuple):
    """What the model remembers of a text."""

    state: int
    spaced: bool
    """The next word carries a space before it: the text ends with none."""


def begin(seed: int, text: bytes, *sources: str) -> Context:
    """The context after a text; `sources` are what stands behind the media in it."""
    state = seed & 0xFFFFFFFF
    for source in sources:
        state = zlib.crc32(source.encode(), state)
    return Context(zlib.crc32(text, state), not text[-1:].isspace())


def after(context: Context, token: int) -> Context:
    """The context one token later."""
    piece = tokenizer.token_bytes(token)
    return Context(zlib.crc32(piece, context.state), not piece[-1:].isspace())


def log_probability(context: Context, token: int) -> float:
    """The natural logarithm of the token's probability after this context."""
    place = _PLACES.get(token)
    if place is not None:
        return _table(context)[_rank(context, place)]
    piece = tokenizer.token_bytes(token)
    if token & 7 not in range(1, 7):
        return _SPECIAL
    word = piece[1:] if len(piece) > 1 and piece.startswith(b" ") else piece
    letters = sum(97 <= byte <= 122 for byte in word)
    whim = fraction(zlib.crc32(piece, context.state))
    return _RARE + letters * _LETTER + (len(word) - letters) * _OTHER_BYTE - _WHIM * whim


def rank(context: Context, token: int) -> int:
    """1 for the likeliest token. The rare ones all rank behind the common ones, together."""
    place = _PLACES.get(token)
    return _SIZE + 1 if place is None else _rank(context, place) + 1


def likeliest(context: Context, count: int) -> list[tuple[int, float]]:
    """The `count` likeliest tokens (at most `VOCABULARY`) and their log-probabilities, the likeliest first."""
    first, stride = _walk(context)
    return [(_COMMON[(first + stride * k) % _SIZE], logprob) for k, logprob in enumerate(_table(context)[:count])]


def fraction(state: int) -> float:
    """A number in [0, 1) that looks drawn from the state."""
    return (state * 2_654_435_761 & 0xFFFFFFFF) / 2**32  # scrambled: a CRC alone is linear


class Words:
    """An answer as it is said: a script of tokens, where there is one, then word after word, always the likeliest."""

    def __init__(self, context: Context, script: Sequence[int] = ()) -> None:
        self._state, self._spaced = context
        self._script = script
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace") if script else None
        self.given = 0
        """Tokens said so far."""

    def take(self, count: int) -> tuple[str, list[int]]:
        """The next tokens as text, and their ids."""
        begun = self.given
        self.given += count
        if begun >= len(self._script):
            return self._words(count)
        scripted = list(self._script[begun : begun + count])
        shown = "".join(map(self._recite, scripted))
        text, ids = self._words(count - len(scripted)) if count > len(scripted) else ("", [])
        return shown + text, scripted + ids

    def _recite(self, token: int) -> str:
        """A token of the script as text; the end shows nothing, nor does a character before it is whole."""
        assert self._decoder is not None
        self._state, self._spaced = after(Context(self._state, self._spaced), token)
        return "" if token == tokenizer.END else self._decoder.decode(tokenizer.token_bytes(token))

    def _words(self, count: int) -> tuple[str, list[int]]:
        state = self._state
        if self._spaced and count == 1:  # by far the most frequent, hence apart
            place = state & 63
            self._state = zlib.crc32(_SPACED_BYTES[place], state)
            return _SPACED_TEXTS[place], [_SPACED_IDS[place]]
        texts: list[str] = []
        ids: list[int] = []
        for _ in range(count):
            place = state & 63
            words, tokens = (_SPACED_TEXTS, _SPACED_IDS) if self._spaced else (_WORDS, _WORD_IDS)
            texts.append(words[place])
            ids.append(tokens[place])
            state = zlib.crc32(texts[-1].encode(), state)
            self._spaced = True
        self._state = state
        return "".join(texts), ids


def _walk(context: Context) -> tuple[int, int]:
    """Where the common tokens begin by likelihood, and how far apart they lie in the list."""
    return (context.state & 63) + (0 if context.spaced else 64), (context.state >> 6) % (_SIZE - 1) + 1


def _rank(context: Context, place: int) -> int:
    first, stride = _walk(context)
    return (place - first) * pow(stride, -1, _SIZE) % _SIZE


def _table(context: Context) -> list[float]:
    return _TABLES[context.state >> 28]


def _power_law(exponent: float) -> list[float]:
    weights = [(k + 1) ** -exponent for k in range(_SIZE)]
    scale = math.log(_COMMON_SHARE / sum(weights))
    return [scale + math.log(weight) for weight in weights]


_TABLES: Final = [_power_law(0.8 + step / 8) for step in range(16)]
"""From a likeliest token of about 9 % to one of about 80 %."""


EMBEDDING_SIZE: Final = 256
"""Components of a whole vector."""


_TOUCHED: Final = 4  # components that a token adds to or takes from


def embed(ids: Iterable[int], seed: int, dimensions: int = EMBEDDING_SIZE) -> list[float]:
    """A text's vector, of length 1: the first `dimensions` of its components, scaled anew."""
    sums = [0.0] * EMBEDDING_SIZE
    for token in ids:
        state = zlib.crc32(tokenizer.token_bytes(token).lstrip(b" "), seed & 0xFFFFFFFF)
        for turn in range(_TOUCHED):
            # A byte of the state says which component, a bit of the next one its sign.
            state = state * 2_654_435_761 + turn & 0xFFFFFFFF
            sums[state >> 24] += 1.0 if state & 1 << 23 else -1.0
    # Every component has a little of its own, so that no vector is zero, and none has many zeroes.
    base = zlib.crc32(repr(sums).encode(), seed & 0xFFFFFFFF)
    vector = [total + 0.1 * _small(base + place) for place, total in enumerate(sums[:dimensions])]
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector]


def similarity(one: Sequence[float], other: Sequence[float]) -> float:
    """The cosine of the angle between two vectors of length 1."""
    return sum(map(float.__mul__, one, other))


def _small(number: int) -> float:
    """Between -1 and 1, never 0, and scrambled."""
    return ((number * 2_654_435_761 & 0xFFFFFFFF) - 2**31 + 0.5) / 2**31
