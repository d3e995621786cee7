"""Renders chats and completions as vLLM writes them: events of a stream, mostly constant bytes, and whole answers."""

import time
from typing import Any, Final

import msgspec

from loadgen.sim.api.generation import Generation
from loadgen.sim.model import tokenizer
from loadgen.sim.model.language import Words
from loadgen.sim.model.logprobs import Scored, Scorer, chat_logprobs, completion_logprobs, prompt_logprobs, score_prompt

DONE: Final = b"data: [DONE]\n\n"
"""What ends most event streams."""


class Answer:
    """One answer, from its first byte to its last."""

    def __init__(self, generation: Generation, answer_id: str, model: str) -> None:
        self._generation = generation
        self._id = answer_id
        self._model = model
        self._created = int(time.time())
        self._chat = generation.kind == "chat"
        self._words = Words(generation.prompt.context, generation.script)
        self._plain = not (generation.script or generation.echo)  # words that JSON need not escape
        self._text_offset = 0
        self._ids = generation.prompt.encode() if self._needs_ids() else []
        self._scorer: Scorer | None = None
        if generation.logprobs is not None:
            self._scorer = Scorer(generation.prompt.context, generation.logprobs, generation.labels)
        if generation.stream:
            self._prepare()

    @property
    def given(self) -> int:
        """Tokens that were told so far."""
        return self._words.given

    def event(self, tokens: int, finish_reason: str | None) -> bytes:
        """The bytes for the next tokens of the stream: with the role before the first, with the end marker after the
        last (which has the finish reason)."""
        generation = self._generation
        first = self._words.given == 0
        text, ids = self._words.take(tokens)
        parts = [self._opening] if first and self._chat else []
        shown = text.encode() if self._plain else _escaped(self._echoed(text) if first else text)
        parts += (self._before_text, shown, self._after_text)
        if self._scorer is not None:
            parts += (msgspec.json.encode(self._logprobs(ids, first)), b',"finish_reason":')
        parts.append(b"null" if finish_reason is None else b'"%s"' % finish_reason.encode())
        if generation.return_token_ids:
            parts += (b',"token_ids":', msgspec.json.encode(ids))
        if first and not self._chat and (generation.return_token_ids or generation.echo):
            parts += (b',"prompt_token_ids":', msgspec.json.encode(self._ids))
        parts.append(b"}]")
        if generation.continuous_usage:
            parts += (b',"usage":', self._usage())
        parts.append(b"}\n\n")
        if finish_reason is not None:
            if generation.include_usage:
                parts += (self._head, b',"choices":[],"usage":', self._usage(), b"}\n\n")
            parts.append(DONE)
        return b"".join(parts)

    def whole(self, tokens: int, finish_reason: str) -> bytes:
        """The body of an answer that is not streamed."""
        generation = self._generation
        text, ids = self._words.take(tokens)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = self._echoed(text)
        if self._scorer is not None:
            choice["logprobs"] = self._logprobs(ids, first=True)
        answer: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion" if self._chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": [choice],
            "usage": msgspec.Raw(self._usage()),
        }
        of_prompt = answer if self._chat else choice
        if generation.return_token_ids:
            choice["token_ids"] = ids
            of_prompt["prompt_token_ids"] = self._ids
        if generation.prompt_logprobs is not None:
            of_prompt["prompt_logprobs"] = prompt_logprobs(self._scored_prompt(generation.prompt_logprobs))
        return msgspec.json.encode(answer)

    def _needs_ids(self) -> bool:
        generation = self._generation
        return generation.return_token_ids or generation.echo or generation.prompt_logprobs is not None

    def _echoed(self, text: str) -> str:
        """The text of the choice where it begins: after the prompt, or instead of it."""
        if not self._generation.echo:
            return text
        # vLLM keeps the prompt's text to itself where its ids are told.
        prompt = "" if self._generation.return_token_ids else tokenizer.decode(self._ids)
        return prompt if self._generation.prompt_only else prompt + text

    def _scored_prompt(self, top: int) -> list[Scored | None]:
        return score_prompt(self._generation.prompt.before, self._ids, top)

    def _logprobs(self, ids: list[int], first: bool) -> dict[str, Any]:
        generation = self._generation
        assert self._scorer is not None
        assert generation.logprobs is not None
        scored: list[Scored | None] = []
        if first and generation.echo:
            scored += self._scored_prompt(generation.logprobs)
        if generation.prompt_only:
            ids = []
        of_answer = self._scorer.take(ids)
        if self._chat:
            return chat_logprobs(of_answer, generation.logprobs)
        told = self._ids + ids if scored else ids
        logprobs = completion_logprobs([*scored, *of_answer], told, self._text_offset, as_ids=generation.as_ids)
        if told:
            self._text_offset = logprobs["text_offset"][-1] + len(logprobs["tokens"][-1])
        return logprobs

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
        logprobs = b"" if self._scorer is not None else b'null,"finish_reason":'
        self._after_text = (b'"}' if self._chat else b'"') + b',"logprobs":' + logprobs
        role = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        self._opening = choices + role
        if self._generation.return_token_ids:
            self._opening += b',"prompt_token_ids":' + msgspec.json.encode(self._ids)
        if self._generation.continuous_usage:
            self._opening += b',"usage":' + self._usage()
        self._opening += b"}\n\n"

    def _usage(self) -> bytes:
        prompt, output = self._generation.prompt.tokens, self._words.given
        return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (prompt, prompt + output, output)


def _escaped(text: str) -> bytes:
    """The text as it stands within a JSON string."""
    return msgspec.json.encode(text)[1:-1]
