"""Renders answers as vLLM writes them: events of a stream, each mostly constant bytes, and whole answers."""

import time
from typing import Any, Final

import msgspec

from loadgen.sim import tokenizer
from loadgen.sim.protocol import Generation

_WORDS: Final = (
    "the", "of", "and", "to", "in", "is", "it", "you", "that", "he", "was", "for", "on", "are", "with",
    "as", "his", "they", "be", "at", "one", "have", "this", "from", "or", "had", "by", "hot", "but",
    "some", "what", "there", "we", "can", "out", "other", "were", "all", "your", "when", "up", "use",
    "word", "how", "said", "an", "each", "she", "which", "do", "their", "time", "if", "will", "way",
    "about", "many", "then", "them", "would", "write", "like", "so", "these",
)  # fmt: skip
"""64 words, each one token with or without a space before it."""
_WORD_IDS: Final = tuple(tokenizer.encode(word)[0] for word in _WORDS)
_SPACED_IDS: Final = tuple(tokenizer.encode(f" {word}")[0] for word in _WORDS)
_DONE: Final = b"data: [DONE]\n\n"


class Words:
    """An answer's words, one a token: an endless walk through the list that a number chooses."""

    def __init__(self, draw: int, *, first_spaced: bool) -> None:
        self._start = draw
        self._stride = draw >> 6 | 1  # odd: all 64 words come before one comes again
        self._first_spaced = first_spaced
        self.given = 0

    def take(self, count: int) -> tuple[str, list[int]]:
        """The next words as text, and their token ids."""
        places = [(self._start + self._stride * k) % 64 for k in range(self.given, self.given + count)]
        text = " " + " ".join([_WORDS[place] for place in places])
        ids = [_SPACED_IDS[place] for place in places]
        if self.given == 0 and not self._first_spaced:
            text = text[1:]
            ids[0] = _WORD_IDS[places[0]]
        self.given += count
        return text, ids


class Answer:
    """One answer, from its first byte to its last."""

    def __init__(self, generation: Generation, answer_id: str, model: str) -> None:
        self._generation = generation
        self._id = answer_id
        self._model = model
        self._created = int(time.time())
        self._chat = generation.kind == "chat"
        self.words = Words(generation.draw, first_spaced=not self._chat)
        if generation.stream:
            self._prepare()

    def event(self, tokens: int, finish_reason: str | None) -> bytes:
        """The bytes for the next tokens of the stream: with the role before the first, with the end marker after the
        last (which has the finish reason)."""
        first = self.words.given == 0
        text, ids = self.words.take(tokens)
        parts = [self._opening] if first and self._chat else []
        parts += (self._before_text, text.encode(), self._after_text)
        parts.append(b"null" if finish_reason is None else b'"%s"' % finish_reason.encode())
        if self._generation.prompt_ids is not None:
            parts += (b',"token_ids":', msgspec.json.encode(ids))
            if first and not self._chat:
                parts += (b',"prompt_token_ids":', msgspec.json.encode(self._generation.prompt_ids))
        parts.append(b"}]")
        if self._generation.continuous_usage:
            parts += (b',"usage":', self._usage())
        parts.append(b"}\n\n")
        if finish_reason is not None:
            if self._generation.include_usage:
                parts += (self._head, b',"choices":[],"usage":', self._usage(), b"}\n\n")
            parts.append(_DONE)
        return b"".join(parts)

    def whole(self, tokens: int, finish_reason: str) -> bytes:
        """The body of an answer that is not streamed."""
        text, ids = self.words.take(tokens)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        answer: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion" if self._chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": [choice],
            "usage": msgspec.Raw(self._usage()),
        }
        if self._generation.prompt_ids is not None:
            choice["token_ids"] = ids
            (answer if self._chat else choice)["prompt_token_ids"] = self._generation.prompt_ids
        return msgspec.json.encode(answer)

    def _prepare(self) -> None:
        name = b"chat.completion.chunk" if self._chat else b"text_completion"
        self._head = b'data: {"id":%s,"object":"%s","created":%d,"model":%s' % (
            msgspec.json.encode(self._id),
            name,
            self._created,
            msgspec.json.encode(self._model),
        )
        choices = self._head + b',"choices":[{"index":0,'
        self._before_text = choices + (b'"delta":{"content":"' if self._chat else b'"text":"')
        self._after_text = (b'"}' if self._chat else b'"') + b',"logprobs":null,"finish_reason":'
        role = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        self._opening = choices + role
        if self._generation.prompt_ids is not None:
            self._opening += b',"prompt_token_ids":' + msgspec.json.encode(self._generation.prompt_ids)
        if self._generation.continuous_usage:
            self._opening += b',"usage":' + self._usage()
        self._opening += b"}\n\n"

    def _usage(self) -> bytes:
        prompt, output = self._generation.prompt_tokens, self.words.given
        return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (prompt, prompt + output, output)
